//! Rows of f32 with AVX-512, in intrinsics: loops that the compiler vectorises must not use it (see `backend::cpu::simd`).

use std::arch::x86_64::*;

use crate::kernels::described::Combine;
use crate::kernels::fold::RUN;

const LANES: usize = 16;
/// Registers that are filled in turn, so that none waits for itself.
const TURNS: usize = 4;

/// The lanes of a run, combined with `$join` from `$identity` on; `$nan` gets the lanes of which one was NaN, if any is given.
macro_rules! run {
    ($run:expr, $identity:expr, $join:ident $(, $nan:ident)?) => {{
        let identity = _mm512_set1_ps($identity);
        let mut lanes = [identity; TURNS];
        let mut parts = $run.chunks_exact(TURNS * LANES);
        for part in &mut parts {
            for (k, lanes) in lanes.iter_mut().enumerate() {
                // SAFETY: sixteen of the part's elements.
                let x = unsafe { _mm512_loadu_ps(part.as_ptr().add(k * LANES)) };
                $($nan |= _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);)?
                *lanes = $join(*lanes, x);
            }
        }
        for (lanes, part) in lanes.iter_mut().zip(parts.remainder().chunks(LANES)) {
            let mask = u16::MAX >> (LANES - part.len());
            // SAFETY: the mask has as many lanes as the part has elements; the others are not touched.
            let x = unsafe { _mm512_mask_loadu_ps(identity, mask, part.as_ptr()) };
            $($nan |= _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);)?
            *lanes = $join(*lanes, x);
        }
        $join($join(lanes[0], lanes[1]), $join(lanes[2], lanes[3]))
    }};
}

/// As [`super::fold`].
///
/// # Safety
/// The processor must have AVX-512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn fold(combine: Combine, partial: f64, row: &[f32]) -> f64 {
    // A maximum of two, one of which is NaN, is the second: NaN is looked for beside it.
    let mut nan = 0;
    let mut total = partial;
    for run in row.chunks(RUN) {
        total = match combine {
            Combine::Sum => total + f64::from(_mm512_reduce_add_ps(run!(run, 0.0, _mm512_add_ps))),
            Combine::Prod => total * f64::from(_mm512_reduce_mul_ps(run!(run, 1.0, _mm512_mul_ps))),
            Combine::Max => {
                let lanes = run!(run, f32::NEG_INFINITY, _mm512_max_ps, nan);
                total.max(f64::from(_mm512_reduce_max_ps(lanes)))
            }
            Combine::Min => {
                let lanes = run!(run, f32::INFINITY, _mm512_min_ps, nan);
                total.min(f64::from(_mm512_reduce_min_ps(lanes)))
            }
        };
    }
    if nan != 0 || partial.is_nan() { f64::NAN } else { total }
}
