//! Rows into partial results on the native CPU: what reductions and the row engine have in common.
//!
//! Runs of a row are combined in the type of the computation, in many independent lanes; runs are combined in f64, so that a
//! long sum of f32 loses nothing that matters.

use super::described::Combine;
use super::expr::vecmath::Real;
use crate::dtype::Element;

/// Elements of one run: 16 for each lane.
pub const RUN: usize = 512;
const LANES: usize = 32;

/// How to combine two values, as a type: `simd!` knows no closures.
pub trait Op: Copy + Default + Send + Sync + 'static {
    /// The value of no elements.
    const IDENTITY: f64;
    /// Two values as one.
    fn join<T: Real>(a: T, b: T) -> T;
}

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident, $identity:expr, $join:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl Op for $name {
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

ops! {
    /// Addition.
    Sum, Combine::Sum.identity(), |a, b| a + b;
    /// Multiplication.
    Prod, Combine::Prod.identity(), |a, b| a * b;
    /// The larger, or NaN.
    Max, Combine::Max.identity(), |a, b| if (a >= b) | (a != a) { a } else { b };
    /// The smaller, or NaN.
    Min, Combine::Min.identity(), |a, b| if (a <= b) | (a != a) { a } else { b };
}

/// One row into one value.
#[inline(always)]
pub fn plain_row<T: Real + Element, O: Op>(row: &[T]) -> f64 {
    let identity = <T as Real>::from_f64(O::IDENTITY);
    if row.len() <= LANES {
        let total = row.iter().fold(identity, |total, &x| O::join(total, x));
        return Element::to_f64(total);
    }
    let mut total = O::IDENTITY;
    for run in row.chunks(RUN) {
        let mut lanes = [identity; LANES];
        let mut parts = run.chunks_exact(LANES);
        for part in &mut parts {
            for (lane, &x) in lanes.iter_mut().zip(part) {
                *lane = O::join(*lane, x);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(parts.remainder()) {
            *lane = O::join(*lane, x);
        }
        let mut width = LANES / 2;
        while width > 0 {
            let (low, high) = lanes.split_at_mut(width);
            for (low, &high) in low.iter_mut().zip(&*high) {
                *low = O::join(*low, high);
            }
            width /= 2;
        }
        total = O::join(total, Element::to_f64(lanes[0]));
    }
    total
}
