//! Parts of rows into partial results, on the native CPU.

#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(target_arch = "x86_64")]
use crate::backend::cpu::simd;
#[cfg(target_arch = "x86_64")]
use crate::dtype::DType;
use crate::dtype::Element;
use crate::kernels::described::Combine;
use crate::kernels::expr::vecmath::Real;
use crate::kernels::fold::{Max, Min, Op, Prod, Sum, plain_row};

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
    fn fold_with<J: Op, T: Lane>(_join: J, partial: f64, row: &[T]) -> f64 {
        J::join(partial, plain_row::<T, J>(row))
    }
}
