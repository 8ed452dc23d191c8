//! Rows into partial results, on the native CPU.
//!
//! Runs of a row are combined in the type of the computation, in many independent lanes; runs are combined in f64, so that a
//! long sum of f32 loses nothing that matters.

#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(target_arch = "x86_64")]
use crate::backend::cpu::simd;
#[cfg(target_arch = "x86_64")]
use crate::dtype::DType;
use crate::dtype::Element;
use crate::kernels::described::Combine;
use crate::kernels::expr::vecmath::Real;

/// Elements of one run: 16 for each lane.
const RUN: usize = 512;
const LANES: usize = 32;

/// How to combine two values, as a type: `simd!` knows no closures.
trait Join: Copy {
    const IDENTITY: f64;
    fn join<T: Real>(a: T, b: T) -> T;
}

macro_rules! joins {
    ($($name:ident $identity:expr, $join:expr;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name;

        impl Join for $name {
            const IDENTITY: f64 = $identity;
            #[inline(always)]
            #[allow(clippy::eq_op, reason = "x != x is the test for NaN that vectorises")]
            fn join<T: Real>(a: T, b: T) -> T {
                let join: fn(T, T) -> T = $join;
                join(a, b)
            }
        }
    )*};
}

joins! {
    Sum Combine::Sum.identity(), |a, b| a + b;
    Prod Combine::Prod.identity(), |a, b| a * b;
    Max Combine::Max.identity(), |a, b| if (a >= b) | (a != a) { a } else { b };
    Min Combine::Min.identity(), |a, b| if (a <= b) | (a != a) { a } else { b };
}

/// What a partial result and some more elements of its row combine to.
pub(super) fn fold<T: Real + Element>(combine: Combine, partial: f64, row: &[T]) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if T::DTYPE == DType::F32 && simd::avx512() {
        // SAFETY: T is f32, whatever the compiler calls it, and the slice stays borrowed; the processor has AVX-512F.
        return unsafe {
            avx512::fold(combine, partial, std::slice::from_raw_parts(row.as_ptr().cast::<f32>(), row.len()))
        };
    }
    match combine {
        Combine::Sum => fold_with(Sum, partial, row),
        Combine::Max => fold_with(Max, partial, row),
        Combine::Min => fold_with(Min, partial, row),
        Combine::Prod => fold_with(Prod, partial, row),
    }
}

trait Lane: Real + Element {}
impl<T: Real + Element> Lane for T {}

crate::simd! {
    fn fold_with<J: Join, T: Lane>(_join: J, partial: f64, row: &[T]) -> f64 {
        let identity = <T as Real>::from_f64(J::IDENTITY);
        let mut total = partial;
        for run in row.chunks(RUN) {
            let mut lanes = [identity; LANES];
            let mut parts = run.chunks_exact(LANES);
            for part in &mut parts {
                for (lane, &x) in lanes.iter_mut().zip(part) {
                    *lane = J::join(*lane, x);
                }
            }
            for (lane, &x) in lanes.iter_mut().zip(parts.remainder()) {
                *lane = J::join(*lane, x);
            }
            let mut width = LANES / 2;
            while width > 0 {
                let (low, high) = lanes.split_at_mut(width);
                for (low, &high) in low.iter_mut().zip(&*high) {
                    *low = J::join(*low, high);
                }
                width /= 2;
            }
            total = J::join(total, Element::to_f64(lanes[0]));
        }
        total
    }
}
