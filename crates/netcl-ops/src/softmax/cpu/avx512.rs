//! A line of f32 with AVX-512, in intrinsics: loops that the compiler vectorises must not use it (see `backend::cpu::simd`).

use std::arch::x86_64::*;

use netcl_core::kernels::expr::vecmath::avx512::exp;

/// Elements whose exponentials are summed in f32.
const RUN: usize = 512;
const LANES: usize = 16;

/// The lanes that a chunk of at most sixteen elements fills.
fn mask(chunk: &[f32]) -> u16 {
    u16::MAX >> (LANES - chunk.len())
}

/// Softmax of a line, or its logarithm.
///
/// # Safety
/// The processor must have AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn line(x: &[f32], y: &mut [f32], log: bool) {
    // SAFETY: this function's own promise.
    let (top, total) = unsafe {
        let top = highest(x);
        (top, powers(x, top, y))
    };
    let (top, rest) = (_mm512_set1_ps(top), _mm512_set1_ps(if log { total.ln() } else { total.recip() } as f32));
    for (x, y) in x.chunks(LANES).zip(y.chunks_mut(LANES)) {
        let mask = mask(x);
        // SAFETY: the mask has as many lanes as the chunks have elements; the others are not touched.
        unsafe {
            let value = if log {
                _mm512_sub_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x.as_ptr()), top), rest)
            } else {
                _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, y.as_ptr()), rest)
            };
            _mm512_mask_storeu_ps(y.as_mut_ptr(), mask, value);
        }
    }
}

/// The largest element; any other where one is NaN, which makes the sum of the exponentials NaN.
///
/// # Safety
/// The processor must have AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn highest(x: &[f32]) -> f32 {
    let mut tops = [_mm512_set1_ps(f32::NEG_INFINITY); 4];
    let (fours, rest) = x.as_chunks::<{ 4 * LANES }>();
    for four in fours {
        for (top, x) in tops.iter_mut().zip(four.as_chunks::<LANES>().0) {
            // SAFETY: a chunk of sixteen elements.
            *top = _mm512_max_ps(*top, unsafe { _mm512_loadu_ps(x.as_ptr()) });
        }
    }
    for x in rest.chunks(LANES) {
        // SAFETY: the mask has as many lanes as the chunk has elements.
        tops[0] = unsafe { _mm512_mask_max_ps(tops[0], mask(x), tops[0], _mm512_maskz_loadu_ps(mask(x), x.as_ptr())) };
    }
    let [a, b, c, d] = tops;
    _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d)))
}

/// `exp(x - top)` into `y`, and the sum. `x - top` must not be above 0 unless it is NaN.
///
/// What lies behind the line is asked for on the way: it is the next line, as a rule, and this is the one loop that computes
/// more than it moves.
///
/// # Safety
/// The processor must have AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn powers(x: &[f32], top: f32, y: &mut [f32]) -> f64 {
    assert_eq!(x.len(), y.len(), "a line and its result have one length");
    let (shift, ahead) = (_mm512_set1_ps(top), x.len());
    let mut total = 0.0;
    for (x, y) in x.chunks(RUN).zip(y.chunks_mut(RUN)) {
        let mut sum = _mm512_setzero_ps();
        for (x, y) in x.chunks(LANES).zip(y.chunks_mut(LANES)) {
            let mask = mask(x);
            _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().wrapping_add(ahead).cast());
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
