//! Elementary functions as branch-free code over single lanes, for the compiler to vectorise.
//!
//! The f32 functions are polynomials of our own; where f32 would lose digits (argument reduction of angles, powers) they
//! go through f64 lanes. The f64 functions are the platform's. `FMA` says whether a fused multiply-add is one
//! instruction here: the polynomials use it then, and separate products and sums elsewhere (a software fma is a call
//! per lane).

#[cfg(target_arch = "x86_64")]
pub mod avx512;
mod double;
pub(in crate::kernels) mod single;

use std::ops::{Add, Div, Mul, Neg, Sub};

/// The two types expressions are computed in.
pub trait Real:
    Copy
    + PartialOrd
    + Default
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Rounded from f64.
    fn from_f64(x: f64) -> Self;
    /// Exact product and sum, rounded once.
    fn fused(self, b: Self, c: Self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// Towards negative infinity.
    fn floor(self) -> Self;
    /// Towards positive infinity.
    fn ceil(self) -> Self;
    /// To the nearest, halves to even.
    fn round(self) -> Self;
    /// The nearest float16, ties to even.
    fn as_f16(self) -> Self;
    /// The nearest bfloat16, ties to even.
    fn as_bf16(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// e to the power of this.
    fn exp<const FMA: bool>(self) -> Self;
    /// `exp(x) - 1`.
    fn expm1<const FMA: bool>(self) -> Self;
    /// Natural logarithm.
    fn log<const FMA: bool>(self) -> Self;
    /// `log(1 + x)`.
    fn log1p<const FMA: bool>(self) -> Self;
    /// Sine; only for arguments within [`Real::ANGLE_LIMIT`].
    fn sin<const FMA: bool>(self) -> Self;
    /// Cosine; only for arguments within [`Real::ANGLE_LIMIT`].
    fn cos<const FMA: bool>(self) -> Self;
    /// Tangent; only for arguments within [`Real::ANGLE_LIMIT`].
    fn tan<const FMA: bool>(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh<const FMA: bool>(self) -> Self;
    /// `1 / (1 + exp(-x))`.
    fn sigmoid<const FMA: bool>(self) -> Self;
    /// Error function.
    fn erf<const FMA: bool>(self) -> Self;
    /// Distribution function of the standard normal.
    fn norm_cdf<const FMA: bool>(self) -> Self;
    /// A function of two numbers that is computed in f64.
    fn through_f64(self, y: Self, f: impl Fn(f64, f64) -> f64) -> Self;
    /// Power.
    fn pow<const FMA: bool>(self, y: Self) -> Self;
    /// Up to which magnitude the vectorised argument reduction of the trigonometric functions holds.
    const ANGLE_LIMIT: Self;
    /// Sine, cosine and tangent of any magnitude, one at a time.
    fn angle_slow(self, function: Angle) -> Self;
}

/// A trigonometric function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Angle {
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// Tangent.
    Tan,
}
