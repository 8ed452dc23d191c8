//! The costly instructions with AVX-512, sixteen elements at a time.

use std::arch::x86_64::*;

use crate::backend::cpu::simd::avx512;
use crate::kernels::expr::UnaryOp;
use crate::kernels::expr::vecmath::avx512::{exp, expm1, sigmoid, tanh};

const LANES: usize = 16;

/// Does a unary instruction, if there is a wide version of it and a processor for it.
pub(super) fn unary(op: UnaryOp, a: &[f32], o: &mut [f32]) -> bool {
    if !avx512() {
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
