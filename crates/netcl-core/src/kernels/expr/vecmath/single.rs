//! f32: polynomials of our own.

use super::{Angle, Real};

#[inline(always)]
fn fma32<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn fma64<const FMA: bool>(a: f64, b: f64, c: f64) -> f64 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Horner's rule, lowest coefficient first.
#[inline(always)]
fn poly32<const FMA: bool, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = fma32::<FMA>(sum, x, c[i]);
    }
    sum
}

#[inline(always)]
fn poly64<const FMA: bool, const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut sum = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = fma64::<FMA>(sum, x, c[i]);
    }
    sum
}

/// Adding and subtracting 1.5 * 2^23 rounds to the nearest whole number, which then stands in the low mantissa bits.
const MAGIC32: f32 = 12_582_912.0;
/// The same for f64: 1.5 * 2^52.
const MAGIC64: f64 = 6_755_399_441_055_744.0;
/// ln 2 in two parts; the first has few bits, so that small multiples of it are exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `(n, r, p)` with `x = n * ln2 + r` and `exp(r) = 1 + r + r * r * p`, for |x| < 10^4.
#[inline(always)]
fn exp_reduced<const FMA: bool>(x: f32) -> (i32, f32, f32) {
    const P: [f32; 5] = [0.499_999_94, 0.166_665_15, 0.041_668_456, 0.008_369_419, 0.001_381_314_5];
    let shifted = fma32::<FMA>(x, std::f32::consts::LOG2_E, MAGIC32);
    let n = shifted - MAGIC32;
    let r = fma32::<FMA>(n, -LN2_LOW, fma32::<FMA>(n, -LN2_HIGH, x));
    (shifted.to_bits().wrapping_sub(MAGIC32.to_bits()) as i32, r, poly32::<FMA, 5>(r, P))
}

/// 2^n for n in -126..=127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `low` below it, `high` above it, NaN as it is.
#[inline(always)]
fn clamp32(x: f32, low: f32, high: f32) -> f32 {
    let raised = if x < low { low } else { x };
    if raised > high { high } else { raised }
}

#[inline(always)]
fn exp32<const FMA: bool>(x: f32) -> f32 {
    let x = clamp32(x, -105.0, 90.0);
    let (n, r, p) = exp_reduced::<FMA>(x);
    let y = fma32::<FMA>(r * r, p, r) + 1.0;
    // Two factors, because 2^n alone may overflow or be subnormal where the result is neither.
    let half = n >> 1;
    y * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

#[inline(always)]
fn expm1_32<const FMA: bool>(x: f32) -> f32 {
    // Beyond 89 the half-scale power itself would overflow; the result is infinite well before.
    let clamped = clamp32(x, -18.0, 89.0);
    let (n, r, p) = exp_reduced::<FMA>(clamped);
    let m = fma32::<FMA>(r * r, p, r);
    // 2^n * (1 + m) - 1 at half scale, so that n = 128 does not overflow early.
    let t = power_of_two(n.wrapping_sub(1));
    let y = fma32::<FMA>(t, m, t - 0.5) * 2.0;
    if x == 0.0 { x } else { y }
}

/// log(u + c) for a normal u > 0 and a c that is small against it (zero, or what `1 + x` rounded off).
#[inline(always)]
fn log_core<const FMA: bool>(u: f32, c: f32, extra: f32) -> f32 {
    const P: [f32; 8] = [
        0.333_333_3,
        -0.250_008_2,
        0.200_012_27,
        -0.166_233_57,
        0.142_017_59,
        -0.131_601_83,
        0.127_615_75,
        -0.076_344_945,
    ];
    let bits = u.to_bits() as i32;
    // sqrt(1/2) in bits: the mantissa m ends up between it and sqrt(2).
    let k = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let m = f32::from_bits(bits.wrapping_sub(k << 23) as u32);
    // 2^-k; k may be 128 or -127 at the ends, where c is zero.
    let scale = f32::from_bits((127i32.wrapping_sub(k).clamp(1, 254) as u32) << 23);
    let f = fma32::<FMA>(c, scale, m - 1.0);
    let k = k as f32 + extra;
    let s = f * f;
    let tail = fma32::<FMA>(poly32::<FMA, 8>(f, P), f * s, k * LN2_LOW);
    let tail = fma32::<FMA>(s, -0.5, tail);
    fma32::<FMA>(k, LN2_HIGH, f + tail)
}

#[inline(always)]
fn log32<const FMA: bool>(x: f32) -> f32 {
    // Subnormals are scaled by 2^23. As arithmetic on the truth value: with a branch the compiler would run the
    // polynomial for either case and choose afterwards.
    let tiny = u32::from(x < f32::MIN_POSITIVE) as f32;
    let y = log_core::<FMA>(x * (1.0 + 8_388_607.0 * tiny), 0.0, -23.0 * tiny);
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    let y = if x < 0.0 { f32::NAN } else { y };
    if x < f32::INFINITY { y } else { x }
}

#[inline(always)]
fn log1p32<const FMA: bool>(x: f32) -> f32 {
    let u = 1.0 + x;
    // What the sum rounded off, exactly.
    let c = if x < 1.0 { x - (u - 1.0) } else { 1.0 - (u - x) };
    let y = log_core::<FMA>(u, c, 0.0);
    let y = if x == 0.0 { x } else { y };
    let y = if x == -1.0 { f32::NEG_INFINITY } else { y };
    let y = if x < -1.0 { f32::NAN } else { y };
    if x < f32::INFINITY { y } else { x }
}

#[inline(always)]
fn tanh32<const FMA: bool>(x: f32) -> f32 {
    let a = x.abs();
    let a = if a > 10.0 { 10.0 } else { a };
    let t = expm1_32::<FMA>(2.0 * a);
    (t / (t + 2.0)).copysign(x)
}

#[inline(always)]
fn sigmoid32<const FMA: bool>(x: f32) -> f32 {
    let e = exp32::<FMA>(-x.abs());
    (if x >= 0.0 { 1.0 } else { e }) / (1.0 + e)
}

/// `tail(z) * exp(z^2 / 2) * (1 + 2z)`, smooth and nearly constant, as a polynomial in `(z - 4) / (z + 4)`, which maps z from 0..14.6
/// to -1..0.57.
pub(in crate::kernels) const UPPER_TAIL: [f32; 11] = [
    0.849_695_8,
    -0.023_009_2,
    -0.096_380_1,
    0.128_906_94,
    -0.095_259,
    0.044_376_634,
    -0.010_515_583,
    -0.001_261_541_5,
    0.001_560_769_7,
    -5.792_223_2e-5,
    -1.469_461_7e-4,
];

/// The normal distribution's upper tail beyond z >= 0, given `z * z / 2` as a rounded value and what it rounded off.
#[inline(always)]
fn upper_tail<const FMA: bool>(z: f32, half_square: f32, low: f32) -> f32 {
    let t = (z - 4.0) / (z + 4.0);
    let e = exp32::<FMA>(-half_square);
    let e = fma32::<FMA>(e, -low, e);
    e * poly32::<FMA, 11>(t, UPPER_TAIL) / (1.0 + 2.0 * z)
}

/// `x * x / 2` as a sum of two f32.
#[inline(always)]
fn half_square(x: f32) -> (f32, f32) {
    let exact = 0.5 * f64::from(x) * f64::from(x);
    let high = exact as f32;
    (high, (exact - f64::from(high)) as f32)
}

#[inline(always)]
fn norm_cdf32<const FMA: bool>(x: f32) -> f32 {
    let a = x.abs();
    let z = if a > 14.6 { 14.6 } else { a };
    let (high, low) = half_square(z);
    let tail = upper_tail::<FMA>(z, high, low);
    // Below -14.5 the tail is less than half the smallest subnormal.
    let tail = if a >= 14.5 { 0.0 } else { tail };
    if x > 0.0 { 1.0 - tail } else { tail }
}

#[inline(always)]
fn erf32<const FMA: bool>(x: f32) -> f32 {
    const P: [f32; 7] = [
        std::f32::consts::FRAC_2_SQRT_PI,
        -0.376_126_26,
        0.112_835_854,
        -0.026_853_81,
        0.005_188_327_7,
        -8.010_194e-4,
        7.853_861e-5,
    ];
    let a = x.abs();
    let small = x * poly32::<FMA, 7>(x * x, P);
    let z = (if a > 4.5 { 4.5 } else { a }) * std::f32::consts::SQRT_2;
    let tail = upper_tail::<FMA>(z, 0.5 * z * z, 0.0);
    let large = (1.0 - 2.0 * tail).copysign(x);
    if a < 0.9 { small } else { large }
}

/// Reduces an angle to `r` in -pi/4..pi/4 in f64 and gives the sine and cosine of `r` and the quadrant.
#[inline(always)]
fn sin_cos64<const FMA: bool>(x: f32) -> (f64, f64, u64) {
    const S: [f64; 5] = [
        -0.166_666_666_666_304_4,
        0.008_333_333_325_212_277,
        -0.000_198_412_637_897_888_5,
        2.755_535_053_605_657e-6,
        -2.476_111_801_101_320_2e-8,
    ];
    const C: [f64; 5] = [
        -0.499_999_999_995_364_04,
        0.041_666_666_561_244_105,
        -0.001_388_888_103_223_816,
        2.479_903_095_075_468_3e-5,
        -2.717_935_538_867_555e-7,
    ];
    // pi / 2 with its last 30 bits cleared, so that multiples up to 2^22 are exact, and the rest.
    const HIGH: f64 = f64::from_bits(0x3ff9_21fb_4000_0000);
    const LOW: f64 = 7.549_789_954_891_882e-8;
    let x = f64::from(x);
    let shifted = x * std::f64::consts::FRAC_2_PI + MAGIC64;
    let n = shifted - MAGIC64;
    let r = (x - n * HIGH) - n * LOW;
    let u = r * r;
    let sin = fma64::<FMA>(r * u, poly64::<FMA, 5>(u, S), r);
    let cos = fma64::<FMA>(u, poly64::<FMA, 5>(u, C), 1.0);
    (sin, cos, shifted.to_bits())
}

/// `pow` of f32 through f64: relative error far below an ulp of f32, special values by C's rules.
#[inline(always)]
fn pow32<const FMA: bool>(x: f32, y: f32) -> f32 {
    const L: [f64; 7] = [
        2.885_390_081_777_928,
        0.961_796_693_924_319_7,
        0.577_078_017_252_704_7,
        0.412_198_401_123_749_2,
        0.320_616_448_729_227,
        0.261_442_418_921_188_86,
        0.242_936_818_218_589_92,
    ];
    const E: [f64; 9] = [
        0.999_999_999_999_762_3,
        0.693_147_180_546_514_1,
        0.240_226_506_988_804_57,
        0.055_504_109_393_417_7,
        0.009_618_128_542_842_058,
        0.001_333_345_206_222_191,
        1.540_385_176_211_703e-4,
        1.530_973_742_623_632_8e-5,
        1.317_585_544_189_939e-6,
    ];
    let a = f64::from(x.abs());
    // f32's subnormals are normal in f64. The exponent is brought to f64 through the mantissa of a large number, for
    // lack of an AVX2 conversion from i64; biased by 1023 + 1 to stay positive.
    let bits = a.to_bits();
    let k = bits.wrapping_sub(0x3fe6_a09e_667f_3bcd).wrapping_add(1024 << 52) >> 52;
    let m = f64::from_bits(bits.wrapping_sub(k.wrapping_sub(1024) << 52));
    let k = f64::from_bits(k | 0x4330_0000_0000_0000) - (4_503_599_627_370_496.0 + 1024.0);
    let s = (m - 1.0) / (m + 1.0);
    let log2 = fma64::<FMA>(s, poly64::<FMA, 7>(s * s, L), k);
    let log2 = if x == 0.0 { f64::NEG_INFINITY } else { log2 };
    let log2 = if a == f64::INFINITY { f64::INFINITY } else { log2 };
    // 0 * inf is NaN here; the exact cases below repair it.
    let p = f64::from(y) * log2;
    let p = if p < -200.0 { -200.0 } else { p };
    let p = if p > 200.0 { 200.0 } else { p };
    let shifted = p + MAGIC64;
    let r = p - (shifted - MAGIC64);
    let n = shifted.to_bits().wrapping_sub(MAGIC64.to_bits());
    let power = poly64::<FMA, 9>(r, E) * f64::from_bits(n.wrapping_add(1023) << 52);
    let power = power as f32;
    // Whole and odd exponents: beyond 2^24 every f32 is even.
    let size = y.abs();
    let whole = size >= 8_388_608.0 || (size + 8_388_608.0) - 8_388_608.0 == size;
    let half = size * 0.5;
    let half_whole = size >= 16_777_216.0 || (half + 8_388_608.0) - 8_388_608.0 == half;
    let odd = whole && !half_whole;
    let negative = x.to_bits() >> 31 == 1;
    let signed = if negative && odd { -power } else { power };
    let signed = if x < 0.0 && x > f32::NEG_INFINITY && !whole { f32::NAN } else { signed };
    let signed = if x == -1.0 && size == f32::INFINITY { 1.0 } else { signed };
    let signed = if x.is_nan() || y.is_nan() { f32::NAN } else { signed };
    if y == 0.0 || x == 1.0 { 1.0 } else { signed }
}

/// The nearest bfloat16: without branches, so that loops of it are vectorised.
#[inline(always)]
pub(super) fn to_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    f32::from_bits((if x.is_nan() { bits | 0x40_0000 } else { rounded }) & 0xffff_0000)
}

/// The nearest float16. Below its smallest normal number steps are 2^-24, what numbers of f32 next to 0.5 are apart.
#[inline(always)]
pub(super) fn to_f16(x: f32) -> f32 {
    const NORMAL: u32 = 0x3880_0000;
    const INFINITE: u32 = 0x4780_0000;
    let bits = x.to_bits();
    let size = bits & 0x7fff_ffff;
    let rounded = (size + 0xfff + ((size >> 13) & 1)) & 0xffff_e000;
    let finite = if rounded >= INFINITE { f32::INFINITY.to_bits() } else { rounded };
    let small = ((f32::from_bits(size) + 0.5) - 0.5).to_bits();
    let number = if size < NORMAL { small } else { finite };
    let result = if x.is_nan() { size | 0x40_0000 } else { number };
    f32::from_bits(result | (bits ^ size))
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    // n * HIGH is exact far beyond; the rounding of n * LOW is what must stay small against angles near a zero.
    const ANGLE_LIMIT: f32 = 1.0e5;

    #[inline(always)]
    fn from_f64(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn fused(self, b: f32, c: f32) -> f32 {
        self.mul_add(b, c)
    }
    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }
    #[inline(always)]
    fn floor(self) -> f32 {
        f32::floor(self)
    }
    #[inline(always)]
    fn ceil(self) -> f32 {
        f32::ceil(self)
    }
    #[inline(always)]
    fn round(self) -> f32 {
        f32::round_ties_even(self)
    }
    #[inline(always)]
    fn as_f16(self) -> f32 {
        to_f16(self)
    }
    #[inline(always)]
    fn as_bf16(self) -> f32 {
        to_bf16(self)
    }
    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }
    #[inline(always)]
    fn exp<const FMA: bool>(self) -> f32 {
        exp32::<FMA>(self)
    }
    #[inline(always)]
    fn expm1<const FMA: bool>(self) -> f32 {
        expm1_32::<FMA>(self)
    }
    #[inline(always)]
    fn log<const FMA: bool>(self) -> f32 {
        log32::<FMA>(self)
    }
    #[inline(always)]
    fn log1p<const FMA: bool>(self) -> f32 {
        log1p32::<FMA>(self)
    }
    #[inline(always)]
    fn sin<const FMA: bool>(self) -> f32 {
        let (sin, cos, quadrant) = sin_cos64::<FMA>(self);
        let y = if quadrant & 1 == 0 { sin } else { cos };
        let y = (if quadrant & 2 == 0 { y } else { -y }) as f32;
        if self == 0.0 { self } else { y }
    }
    #[inline(always)]
    fn cos<const FMA: bool>(self) -> f32 {
        let (sin, cos, quadrant) = sin_cos64::<FMA>(self);
        let y = if quadrant & 1 == 0 { cos } else { -sin };
        (if quadrant & 2 == 0 { y } else { -y }) as f32
    }
    #[inline(always)]
    fn tan<const FMA: bool>(self) -> f32 {
        let (sin, cos, quadrant) = sin_cos64::<FMA>(self);
        let (a, b) = if quadrant & 1 == 0 { (sin, cos) } else { (-cos, sin) };
        let y = (a / b) as f32;
        if self == 0.0 { self } else { y }
    }
    #[inline(always)]
    fn tanh<const FMA: bool>(self) -> f32 {
        tanh32::<FMA>(self)
    }
    #[inline(always)]
    fn sigmoid<const FMA: bool>(self) -> f32 {
        sigmoid32::<FMA>(self)
    }
    #[inline(always)]
    fn erf<const FMA: bool>(self) -> f32 {
        erf32::<FMA>(self)
    }
    #[inline(always)]
    fn norm_cdf<const FMA: bool>(self) -> f32 {
        norm_cdf32::<FMA>(self)
    }
    fn through_f64(self, y: f32, f: impl Fn(f64, f64) -> f64) -> f32 {
        f(f64::from(self), f64::from(y)) as f32
    }
    #[inline(always)]
    fn pow<const FMA: bool>(self, y: f32) -> f32 {
        pow32::<FMA>(self, y)
    }
    fn angle_slow(self, function: Angle) -> f32 {
        let x = f64::from(self);
        (match function {
            Angle::Sin => x.sin(),
            Angle::Cos => x.cos(),
            Angle::Tan => x.tan(),
        }) as f32
    }
}
