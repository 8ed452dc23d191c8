//! A line of f32 with AVX-512, in intrinsics: loops that the compiler vectorises must not use it (see `backend::cpu::simd`).

use std::arch::x86_64::*;

/// Elements whose exponentials are summed in f32.
const RUN: usize = 512;
const LANES: usize = 16;

/// `exp(x - top)` into `y`, and the sum. `x - top` must not be above 0 unless it is NaN.
///
/// # Safety
/// The processor must have AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn powers(x: &[f32], top: f32, y: &mut [f32]) -> f64 {
    assert_eq!(x.len(), y.len(), "a line and its result have one length");
    let shift = _mm512_set1_ps(top);
    let mut total = 0.0;
    for (x, y) in x.chunks(RUN).zip(y.chunks_mut(RUN)) {
        let mut sum = _mm512_setzero_ps();
        for (x, y) in x.chunks(LANES).zip(y.chunks_mut(LANES)) {
            let mask = u16::MAX >> (LANES - x.len());
            // SAFETY: the mask has as many lanes as the chunks have elements; the others are not touched.
            let value = unsafe { _mm512_maskz_loadu_ps(mask, x.as_ptr()) };
            let power = exp(_mm512_sub_ps(value, shift));
            sum = _mm512_add_ps(sum, _mm512_maskz_mov_ps(mask, power));
            // SAFETY: as above.
            unsafe { _mm512_mask_storeu_ps(y.as_mut_ptr(), mask, power) };
        }
        total += f64::from(_mm512_reduce_add_ps(sum));
    }
    total
}

/// The exponential of numbers that are not above 0; NaN stays NaN.
#[target_feature(enable = "avx512f")]
fn exp(x: __m512) -> __m512 {
    // Below this every result is 0. The second operand is the result where one is NaN.
    let x = _mm512_max_ps(_mm512_set1_ps(-105.0), x);
    let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm512_mul_ps(
        x,
        _mm512_set1_ps(std::f32::consts::LOG2_E),
    ));
    // x = n * ln2 + r; the first part of ln2 has few bits, so that small multiples of it are exact.
    let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693_359_4), x);
    let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.121_944_4e-4), r);
    // exp(r) = 1 + r + r * r * p, with the coefficients of `vecmath`.
    let mut p = _mm512_set1_ps(0.001_381_314_5);
    for coefficient in [0.008_369_419, 0.041_668_456, 0.166_665_15, 0.499_999_94] {
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(coefficient));
    }
    let y = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r), _mm512_set1_ps(1.0));
    _mm512_scalef_ps(y, n)
}
