//! A line of f32 with AVX-512, in intrinsics: loops that the compiler vectorises must not use it (see `backend::cpu::simd`).

use std::arch::x86_64::*;

use netcl_core::kernels::expr::vecmath::avx512::exp;

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
