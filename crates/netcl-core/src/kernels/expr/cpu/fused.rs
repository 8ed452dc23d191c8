//! Programs in f32 with AVX-512 that keep each result in registers for the instruction after it.
//!
//! ```text
//!   loops      a - b  -> memory, 256 elements     memory * c  -> memory     memory + d  -> memory
//!   here       a - b  -> eight registers          them * c                  them + d    -> memory      and again, 128 elements on
//! ```
//!
//! A value goes to memory only if an instruction other than the next one reads it, and that memory stays in the first-level
//! cache. Every element has the very bits that [`avx512::instruction`] gives it.

use std::arch::x86_64::*;

use smallvec::SmallVec;

use super::avx512::{self, LANES, Operand};
use super::{Code, Instr, Slot};
use crate::kernels::expr::{BinaryOp, UnaryOp};

/// Registers of a value: enough to repay the choice of an instruction, few enough for those of three operands.
const VECTORS: usize = 8;
/// Elements that are taken through a whole program at a time.
const BLOCK: usize = VECTORS * LANES;
/// Elements that repay looking up where all slots lie.
pub(super) const WORTHWHILE: usize = 2 * BLOCK;

/// A value in registers.
type Value = [__m512; VECTORS];

/// An instruction, and what becomes of its result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    instr: Instr,
    /// Which sources are the result of the step before, a bit for each.
    before: u8,
    /// Whether the result is read from memory later.
    kept: bool,
}

/// The steps of a program whose slots from `first_register` on are nobody else's; `None` if an instruction is not one of AVX-512, or
/// if there is none that another one follows.
pub(super) fn steps(body: &[Instr], first_register: usize) -> Option<Vec<Step>> {
    if body.len() < 2 || !body.iter().all(|instr| avx512::has(instr.code)) {
        return None;
    }
    let reads = |at: usize, slot: Slot| body[at].sources.contains(&slot);
    let step = |(at, instr): (usize, &Instr)| {
        let last = at.checked_sub(1).filter(|_| in_registers(instr.code)).map(|at| body[at].target);
        let bits = instr.sources.iter().enumerate().map(|(k, source)| u8::from(Some(*source) == last) << k);
        let next = body.get(at + 1);
        let passed_on = next.is_some_and(|next| in_registers(next.code) && next.sources.contains(&instr.target));
        // The first step that reads it from memory or writes another value there decides.
        let later = (at + 1 + usize::from(passed_on)..body.len())
            .find(|&later| reads(later, instr.target) || body[later].target == instr.target);
        let kept = usize::from(instr.target) < first_register || later.is_some_and(|later| reads(later, instr.target));
        Step { instr: *instr, before: bits.sum(), kept }
    };
    Some(body.iter().enumerate().map(step).collect())
}

/// Whether an instruction takes the result before it from registers. (For the others, memory costs little beside what they do.)
fn in_registers(code: Code) -> bool {
    use BinaryOp::{Add, Div, Max, Min, Mul, Sub};
    use UnaryOp::{Abs, Neg, Sqrt};
    match code {
        Code::Copy | Code::Fma | Code::Choose(_) => true,
        Code::Binary(op) => matches!(op, Add | Sub | Mul | Div | Min | Max),
        Code::Unary(op) => matches!(op, Neg | Abs | Sqrt),
        Code::Select => false,
    }
}

/// Where a slot lies in the first block, and whether it moves on from block to block.
#[derive(Clone, Copy)]
struct Place {
    data: *mut f32,
    /// All bits of the distance from the first block, or none.
    moves: usize,
    /// From a vector to the next: none where a number stands in one.
    step: usize,
}

impl Place {
    /// The place in the block at `at`.
    #[inline(always)]
    fn at(self, at: usize) -> *mut f32 {
        self.data.wrapping_add(at & self.moves)
    }
}

/// Runs steps over whole blocks of the first `n` elements of the slots, and gives the number of elements that are done.
///
/// # Safety
/// As [`execute`](super::exec::execute), on a processor with AVX-512F; of slots from `first_register` on 128 elements are
/// enough.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn run(
    steps: &[Step],
    slots: &[*mut f32],
    uniform: &[bool],
    first_register: usize,
    n: usize,
) -> usize {
    let mut places: SmallVec<[Place; 24]> = SmallVec::new();
    places.extend(slots.iter().zip(uniform).enumerate().map(|(slot, (&data, &one))| Place {
        data,
        moves: if one || slot >= first_register { 0 } else { usize::MAX },
        step: if one { 0 } else { LANES },
    }));
    let done = n / BLOCK * BLOCK;
    for at in (0..done).step_by(BLOCK) {
        let mut value: Value = [_mm512_setzero_ps(); VECTORS];
        for step in steps {
            // SAFETY: the caller's promise; the block at `at` is one of the whole ones.
            value = unsafe { run_step(step, &places, at, value) };
            if step.kept {
                let to = places[usize::from(step.instr.target)].at(at);
                for (v, value) in value.into_iter().enumerate() {
                    // SAFETY: a vector of the block of the target.
                    unsafe { _mm512_storeu_ps(to.wrapping_add(v * LANES), value) };
                }
            }
        }
    }
    done
}

/// The result of a step on the block at `at`, from that of the step before.
///
/// # Safety
/// As [`run`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn run_step(step: &Step, places: &[Place], at: usize, before: Value) -> Value {
    let place = |slot: Slot| places[usize::from(slot)];
    macro_rules! source {
        ($k:literal) => {
            if step.before & 1 << $k != 0 {
                before
            } else {
                let from = place(step.instr.sources[$k]);
                // SAFETY: the block of a source, or the vector of a number.
                unsafe { load(from.at(at), from.step) }
            }
        };
    }
    macro_rules! unary {
        ($f:expr) => {{
            let x = source!(0);
            each(|v| $f(x[v]))
        }};
    }
    macro_rules! binary {
        ($f:expr) => {{
            let (x, y) = (source!(0), source!(1));
            each(|v| $f(x[v], y[v]))
        }};
    }
    macro_rules! choose {
        ($predicate:ident) => {{
            let (x, y) = (source!(0), source!(1));
            let masks: [__mmask16; VECTORS] = std::array::from_fn(|v| _mm512_cmp_ps_mask::<$predicate>(x[v], y[v]));
            let (holds, fails) = (source!(2), source!(3));
            each(|v| _mm512_mask_blend_ps(masks[v], fails[v], holds[v]))
        }};
    }
    match step.instr.code {
        Code::Copy => source!(0),
        Code::Fma => {
            let (x, y, z) = (source!(0), source!(1), source!(2));
            each(|v| _mm512_fmadd_ps(x[v], y[v], z[v]))
        }
        Code::Choose(BinaryOp::Eq) => choose!(_CMP_EQ_OQ),
        Code::Choose(BinaryOp::Ne) => choose!(_CMP_NEQ_UQ),
        Code::Choose(BinaryOp::Lt) => choose!(_CMP_LT_OQ),
        Code::Choose(BinaryOp::Le) => choose!(_CMP_LE_OQ),
        Code::Choose(BinaryOp::Gt) => choose!(_CMP_GT_OQ),
        Code::Choose(_) => choose!(_CMP_GE_OQ),
        Code::Binary(BinaryOp::Add) => binary!(|x, y| _mm512_add_ps(x, y)),
        Code::Binary(BinaryOp::Sub) => binary!(|x, y| _mm512_sub_ps(x, y)),
        Code::Binary(BinaryOp::Mul) => binary!(|x, y| _mm512_mul_ps(x, y)),
        Code::Binary(BinaryOp::Div) => binary!(|x, y| _mm512_div_ps(x, y)),
        Code::Binary(BinaryOp::Min) => binary!(avx512::minimum),
        Code::Binary(BinaryOp::Max) => binary!(avx512::maximum),
        Code::Unary(UnaryOp::Neg) => unary!(avx512::negative),
        Code::Unary(UnaryOp::Abs) => unary!(|x| _mm512_abs_ps(x)),
        Code::Unary(UnaryOp::Sqrt) => unary!(|x| _mm512_sqrt_ps(x)),
        code => {
            let sources = step.instr.sources.map(place).map(|from| Operand::new(from.at(at), from.step == 0));
            let to = place(step.instr.target).at(at);
            // SAFETY: the caller's promise for a block, passed on; then the block of the target is written.
            unsafe {
                avx512::instruction(code, sources, to, BLOCK);
                load(to, LANES)
            }
        }
    }
}

/// The vectors of a block, or as often that of a number.
///
/// # Safety
/// As many vectors, `step` elements apart, are valid for reading.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(from: *const f32, step: usize) -> Value {
    // SAFETY: the caller's promise.
    each(|v| unsafe { _mm512_loadu_ps(from.wrapping_add(v * step)) })
}

/// A value, vector by vector. (Without a loop, so that all of it stays in registers.)
#[inline]
#[target_feature(enable = "avx512f")]
fn each(f: impl Fn(usize) -> __m512) -> Value {
    [f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)]
}
