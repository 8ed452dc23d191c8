//! The instructions in f32 with AVX-512, sixteen elements at a time.
//!
//! Intrinsics throughout: loops that the compiler vectorises must not use AVX-512 (see [`simd`](crate::backend::cpu::simd)).
//! Arithmetic, comparisons and roots give the very bits of the other levels. All sources are read before the target is
//! written, so that an instruction may write where it reads.

use std::arch::x86_64::*;

use super::code::Code;
use crate::kernels::expr::vecmath::avx512::{exp, expm1, sigmoid, tanh};
use crate::kernels::expr::{BinaryOp, UnaryOp};

/// Elements of a vector: as often a number stands in its slot.
pub(super) const LANES: usize = 16;

/// A source: a chunk, or a number, which every turn reads again. (A load is cheaper than a loop for each mixture of kinds.)
#[derive(Clone, Copy)]
pub(super) struct Operand {
    data: *const f32,
    step: usize,
}

impl Operand {
    /// A chunk, or a vector of one number.
    #[inline(always)]
    pub(super) fn new(data: *const f32, one: bool) -> Operand {
        Operand { data, step: if one { 0 } else { LANES } }
    }
}

/// Whether an instruction is one of this file.
pub(super) fn has(code: Code) -> bool {
    match code {
        Code::Unary(op) => matches!(
            op,
            UnaryOp::Neg
                | UnaryOp::Abs
                | UnaryOp::Floor
                | UnaryOp::Ceil
                | UnaryOp::Round
                | UnaryOp::Sqrt
                | UnaryOp::Rsqrt
                | UnaryOp::Exp
                | UnaryOp::Expm1
                | UnaryOp::Tanh
                | UnaryOp::Sigmoid
        ),
        Code::Binary(op) => !matches!(op, BinaryOp::Pow | BinaryOp::Fmod | BinaryOp::Atan2),
        Code::Copy | Code::Fma | Code::Select | Code::Choose(_) => true,
    }
}

/// Does an instruction over `n` elements; `false` if it is not one of this file.
///
/// # Safety
/// The processor has AVX-512F. Every source that the instruction has points to `n >= 1` initialised elements, or to
/// [`LANES`] times a number, and the target to `n` writable ones; a source may be the target, but not overlap it otherwise.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn instruction(code: Code, s: [Operand; 4], o: *mut f32, n: usize) -> bool {
    const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    const UP: i32 = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    let one = _mm512_set1_ps(1.0);
    let [a, b, c, d] = s;
    macro_rules! compare {
        ($predicate:ident) => {
            map([a, b], o, n, |[x, y]| _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<$predicate>(x, y), one))
        };
    }
    macro_rules! choose {
        ($predicate:ident) => {
            map([a, b, c, d], o, n, |[x, y, holds, fails]| {
                _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<$predicate>(x, y), fails, holds)
            })
        };
    }
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match code {
            Code::Copy => map([a], o, n, |[x]| x),
            Code::Fma => map([a, b, c], o, n, |[x, y, z]| _mm512_fmadd_ps(x, y, z)),
            Code::Select => map([a, b, c], o, n, |[x, holds, fails]| {
                _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(x, _mm512_setzero_ps()), fails, holds)
            }),
            Code::Choose(op) => match op {
                BinaryOp::Eq => choose!(_CMP_EQ_OQ),
                BinaryOp::Ne => choose!(_CMP_NEQ_UQ),
                BinaryOp::Lt => choose!(_CMP_LT_OQ),
                BinaryOp::Le => choose!(_CMP_LE_OQ),
                BinaryOp::Gt => choose!(_CMP_GT_OQ),
                _ => choose!(_CMP_GE_OQ),
            },
            Code::Binary(op) => match op {
                BinaryOp::Add => map([a, b], o, n, |[x, y]| _mm512_add_ps(x, y)),
                BinaryOp::Sub => map([a, b], o, n, |[x, y]| _mm512_sub_ps(x, y)),
                BinaryOp::Mul => map([a, b], o, n, |[x, y]| _mm512_mul_ps(x, y)),
                BinaryOp::Div => map([a, b], o, n, |[x, y]| _mm512_div_ps(x, y)),
                BinaryOp::Min => map([a, b], o, n, |[x, y]| minimum(x, y)),
                BinaryOp::Max => map([a, b], o, n, |[x, y]| maximum(x, y)),
                BinaryOp::Eq => compare!(_CMP_EQ_OQ),
                BinaryOp::Ne => compare!(_CMP_NEQ_UQ),
                BinaryOp::Lt => compare!(_CMP_LT_OQ),
                BinaryOp::Le => compare!(_CMP_LE_OQ),
                BinaryOp::Gt => compare!(_CMP_GT_OQ),
                BinaryOp::Ge => compare!(_CMP_GE_OQ),
                BinaryOp::Pow | BinaryOp::Fmod | BinaryOp::Atan2 => return false,
            },
            Code::Unary(op) => match op {
                UnaryOp::Neg => map([a], o, n, |[x]| negative(x)),
                UnaryOp::Abs => map([a], o, n, |[x]| _mm512_abs_ps(x)),
                UnaryOp::Floor => map([a], o, n, |[x]| _mm512_roundscale_ps::<DOWN>(x)),
                UnaryOp::Ceil => map([a], o, n, |[x]| _mm512_roundscale_ps::<UP>(x)),
                UnaryOp::Round => map([a], o, n, |[x]| _mm512_roundscale_ps::<NEAREST>(x)),
                UnaryOp::Sqrt => map([a], o, n, |[x]| _mm512_sqrt_ps(x)),
                UnaryOp::Rsqrt => map([a], o, n, |[x]| _mm512_div_ps(one, _mm512_sqrt_ps(x))),
                UnaryOp::Exp => map([a], o, n, |[x]| exp(x)),
                UnaryOp::Expm1 => map([a], o, n, |[x]| expm1(x)),
                UnaryOp::Tanh => map([a], o, n, |[x]| tanh(x)),
                UnaryOp::Sigmoid => map([a], o, n, |[x]| sigmoid(x)),
                _ => return false,
            },
        }
    }
    true
}

/// The smaller one: the first where it is NaN, the second where that one is, since no comparison with NaN holds.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn minimum(x: __m512, y: __m512) -> __m512 {
    let first = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(x, y) | _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    _mm512_mask_blend_ps(first, y, x)
}

/// The larger one, with NaN as in [`minimum`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn maximum(x: __m512, y: __m512) -> __m512 {
    let first = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, y) | _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    _mm512_mask_blend_ps(first, y, x)
}

/// The other sign, also of zeros and NaN.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn negative(x: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MIN)))
}

/// A loop over the elements.
///
/// # Safety
/// As [`instruction`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn map<const K: usize>(from: [Operand; K], to: *mut f32, n: usize, f: impl Fn([__m512; K]) -> __m512) {
    let (mut from, mut to, mut left) = (from, to, n);
    let mut values = [_mm512_setzero_ps(); K];
    while left >= LANES {
        for (value, from) in values.iter_mut().zip(&mut from) {
            // SAFETY: whole vectors of a chunk, or the vector of a number.
            *value = unsafe { _mm512_loadu_ps(from.data) };
            from.data = from.data.wrapping_add(from.step);
        }
        // SAFETY: a whole vector of the target.
        unsafe { _mm512_storeu_ps(to, f(values)) };
        (to, left) = (to.wrapping_add(LANES), left - LANES);
    }
    if left > 0 {
        let mask = u16::MAX >> (LANES - left);
        for (value, from) in values.iter_mut().zip(&from) {
            // SAFETY: the mask has as many lanes as there are elements left; the others are not touched.
            *value = unsafe { _mm512_maskz_loadu_ps(mask, from.data) };
        }
        // SAFETY: as above.
        unsafe { _mm512_mask_storeu_ps(to, mask, f(values)) };
    }
}
