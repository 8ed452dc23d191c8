//! f64: the platform's functions, and libm's error function.

use super::{Angle, Real};
use crate::kernels::expr::op;

/// The platform's functions, one lane at a time.
impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const ANGLE_LIMIT: f64 = f64::INFINITY;

    #[inline(always)]
    fn from_f64(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn fused(self, b: f64, c: f64) -> f64 {
        self.mul_add(b, c)
    }
    #[inline(always)]
    fn abs(self) -> f64 {
        f64::abs(self)
    }
    #[inline(always)]
    fn floor(self) -> f64 {
        f64::floor(self)
    }
    #[inline(always)]
    fn ceil(self) -> f64 {
        f64::ceil(self)
    }
    #[inline(always)]
    fn round(self) -> f64 {
        f64::round_ties_even(self)
    }
    #[inline(always)]
    fn as_f16(self) -> f64 {
        super::single::to_f16(self as f32).into()
    }
    #[inline(always)]
    fn as_bf16(self) -> f64 {
        super::single::to_bf16(self as f32).into()
    }
    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }
    #[inline(always)]
    fn exp<const FMA: bool>(self) -> f64 {
        f64::exp(self)
    }
    #[inline(always)]
    fn expm1<const FMA: bool>(self) -> f64 {
        self.exp_m1()
    }
    #[inline(always)]
    fn log<const FMA: bool>(self) -> f64 {
        self.ln()
    }
    #[inline(always)]
    fn log1p<const FMA: bool>(self) -> f64 {
        self.ln_1p()
    }
    #[inline(always)]
    fn sin<const FMA: bool>(self) -> f64 {
        f64::sin(self)
    }
    #[inline(always)]
    fn cos<const FMA: bool>(self) -> f64 {
        f64::cos(self)
    }
    #[inline(always)]
    fn tan<const FMA: bool>(self) -> f64 {
        f64::tan(self)
    }
    #[inline(always)]
    fn tanh<const FMA: bool>(self) -> f64 {
        f64::tanh(self)
    }
    #[inline(always)]
    fn sigmoid<const FMA: bool>(self) -> f64 {
        let e = f64::exp(-f64::abs(self));
        (if self >= 0.0 { 1.0 } else { e }) / (1.0 + e)
    }
    #[inline(always)]
    fn erf<const FMA: bool>(self) -> f64 {
        libm::erf(self)
    }
    #[inline(always)]
    fn norm_cdf<const FMA: bool>(self) -> f64 {
        op::norm_cdf(self)
    }
    fn through_f64(self, y: f64, f: impl Fn(f64, f64) -> f64) -> f64 {
        f(self, y)
    }
    #[inline(always)]
    fn pow<const FMA: bool>(self, y: f64) -> f64 {
        self.powf(y)
    }
    fn angle_slow(self, function: Angle) -> f64 {
        match function {
            Angle::Sin => f64::sin(self),
            Angle::Cos => f64::cos(self),
            Angle::Tan => f64::tan(self),
        }
    }
}
