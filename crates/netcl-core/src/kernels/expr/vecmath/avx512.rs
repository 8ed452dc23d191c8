//! The functions of `single.rs` on sixteen lanes, in intrinsics: loops that the compiler vectorises must not use AVX-512 (see
//! [`simd`](crate::backend::cpu::simd)). The polynomials are the same.

use std::arch::x86_64::*;

/// `low` below it, `high` above it, NaN as it is: the second operand of a minimum or maximum wins where one is NaN.
#[inline]
#[target_feature(enable = "avx512f")]
fn clamp(x: __m512, low: f32, high: f32) -> __m512 {
    _mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), x))
}

/// `n` and `exp(r) - 1`, where `x = n ln 2 + r`.
#[inline]
#[target_feature(enable = "avx512f")]
fn reduced(x: __m512) -> (__m512, __m512) {
    let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm512_mul_ps(
        x,
        _mm512_set1_ps(std::f32::consts::LOG2_E),
    ));
    // The first part of ln 2 has few bits, so that small multiples of it are exact.
    let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693_359_4), x);
    let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.121_944_4e-4), r);
    let mut p = _mm512_set1_ps(0.001_381_314_5);
    for coefficient in [0.008_369_419, 0.041_668_456, 0.166_665_15, 0.499_999_94] {
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(coefficient));
    }
    (n, _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r))
}

/// e to the power of each lane.
///
/// # Safety
/// The processor must have AVX-512F: ask [`avx512`](crate::backend::cpu::simd::avx512).
#[inline]
#[target_feature(enable = "avx512f")]
pub fn exp(x: __m512) -> __m512 {
    let (n, m) = reduced(clamp(x, -105.0, 90.0));
    _mm512_scalef_ps(_mm512_add_ps(m, _mm512_set1_ps(1.0)), n)
}

/// `exp(x) - 1` of each lane, accurate near zero.
///
/// # Safety
/// The processor must have AVX-512F: ask [`avx512`](crate::backend::cpu::simd::avx512).
#[inline]
#[target_feature(enable = "avx512f")]
pub fn expm1(x: __m512) -> __m512 {
    let (n, m) = reduced(clamp(x, -18.0, 89.0));
    // 2^n (1 + m) - 1 at half scale, so that n = 128 does not overflow early.
    let half = _mm512_set1_ps(0.5);
    let t = _mm512_scalef_ps(half, n);
    let y = _mm512_fmadd_ps(t, m, _mm512_sub_ps(t, half));
    let y = _mm512_add_ps(y, y);
    // Zeros keep their sign.
    let zero = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(x, _mm512_setzero_ps());
    _mm512_mask_mov_ps(y, zero, x)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn sign_bit() -> __m512i {
    _mm512_set1_epi32(i32::MIN)
}

/// The hyperbolic tangent of each lane.
///
/// # Safety
/// The processor must have AVX-512F: ask [`avx512`](crate::backend::cpu::simd::avx512).
#[inline]
#[target_feature(enable = "avx512f")]
pub fn tanh(x: __m512) -> __m512 {
    let a = _mm512_abs_ps(x);
    let a = _mm512_min_ps(_mm512_set1_ps(10.0), a);
    let t = expm1(_mm512_add_ps(a, a));
    let y = _mm512_div_ps(t, _mm512_add_ps(t, _mm512_set1_ps(2.0)));
    // The sign of x, the rest of y: (x AND sign) OR (y AND NOT sign).
    let joined = _mm512_ternarylogic_epi32::<0xca>(sign_bit(), _mm512_castps_si512(x), _mm512_castps_si512(y));
    _mm512_castsi512_ps(joined)
}

/// `1 / (1 + exp(-x))` of each lane.
///
/// # Safety
/// The processor must have AVX-512F: ask [`avx512`](crate::backend::cpu::simd::avx512).
#[inline]
#[target_feature(enable = "avx512f")]
pub fn sigmoid(x: __m512) -> __m512 {
    let negative = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(x), sign_bit()));
    let e = exp(negative);
    let one = _mm512_set1_ps(1.0);
    let above = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_setzero_ps());
    _mm512_div_ps(_mm512_mask_mov_ps(e, above, one), _mm512_add_ps(one, e))
}
