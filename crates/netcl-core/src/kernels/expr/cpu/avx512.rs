//! The costly instructions with AVX-512, in intrinsics: loops that the compiler vectorises must not use it (see
//! `backend::cpu::simd`). The polynomials are those of `vecmath`.

use std::arch::x86_64::*;
use std::sync::OnceLock;

use crate::backend::cpu::simd::{Level, level};
use crate::kernels::expr::UnaryOp;

const LANES: usize = 16;

/// Whether the processor has AVX-512, unless the environment asks for less (`NETCL_SIMD=avx2`, `NETCL_SIMD=baseline`).
pub(in crate::kernels) fn available() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let asked = std::env::var("NETCL_SIMD").unwrap_or_default();
        level() == Level::Avx2 && asked.trim() != "avx2" && is_x86_feature_detected!("avx512f")
    })
}

/// Does a unary instruction, if there is a wide version of it and a processor for it.
pub(super) fn unary(op: UnaryOp, a: &[f32], o: &mut [f32]) -> bool {
    if !available() {
        return false;
    }
    // SAFETY: the processor has AVX-512F.
    unsafe {
        match op {
            UnaryOp::Exp => exp_all(a, o),
            UnaryOp::Expm1 => expm1_all(a, o),
            UnaryOp::Tanh => tanh_all(a, o),
            UnaryOp::Sigmoid => sigmoid_all(a, o),
            _ => return false,
        }
    }
    true
}

/// A loop for each function: through a pointer, nothing would be inlined.
macro_rules! loops {
    ($($name:ident $function:ident;)*) => {$(
        /// # Safety
        /// The processor must have AVX-512F.
        #[target_feature(enable = "avx512f")]
        unsafe fn $name(a: &[f32], o: &mut [f32]) {
            for (a, o) in a.chunks(LANES).zip(o.chunks_mut(LANES)) {
                let mask = u16::MAX >> (LANES - a.len().min(o.len()));
                // SAFETY: the mask has as many lanes as the chunks have elements; the others are not touched.
                unsafe { _mm512_mask_storeu_ps(o.as_mut_ptr(), mask, $function(_mm512_maskz_loadu_ps(mask, a.as_ptr()))) };
            }
        }
    )*};
}

loops! {
    exp_all exp;
    expm1_all expm1;
    tanh_all tanh;
    sigmoid_all sigmoid;
}

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

#[inline]
#[target_feature(enable = "avx512f")]
fn exp(x: __m512) -> __m512 {
    let (n, m) = reduced(clamp(x, -105.0, 90.0));
    _mm512_scalef_ps(_mm512_add_ps(m, _mm512_set1_ps(1.0)), n)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn expm1(x: __m512) -> __m512 {
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

#[inline]
#[target_feature(enable = "avx512f")]
fn tanh(x: __m512) -> __m512 {
    let a = _mm512_abs_ps(x);
    let a = _mm512_min_ps(_mm512_set1_ps(10.0), a);
    let t = expm1(_mm512_add_ps(a, a));
    let y = _mm512_div_ps(t, _mm512_add_ps(t, _mm512_set1_ps(2.0)));
    // The sign of x, the rest of y: (x AND sign) OR (y AND NOT sign).
    let joined = _mm512_ternarylogic_epi32::<0xca>(sign_bit(), _mm512_castps_si512(x), _mm512_castps_si512(y));
    _mm512_castsi512_ps(joined)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn sigmoid(x: __m512) -> __m512 {
    let negative = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(x), sign_bit()));
    let e = exp(negative);
    let one = _mm512_set1_ps(1.0);
    let above = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_setzero_ps());
    _mm512_div_ps(_mm512_mask_mov_ps(e, above, one), _mm512_add_ps(one, e))
}
