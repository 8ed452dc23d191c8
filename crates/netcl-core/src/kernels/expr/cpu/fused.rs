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

use super::avx512::{self, LANES};
use super::code::{Code, Instr, Slot};
use crate::kernels::expr::{BinaryOp, UnaryOp};

/// Registers of a value: enough to repay the choice of an instruction, few enough for those of three operands.
const VECTORS: usize = 8;
/// Elements that are taken through a whole program at a time.
const BLOCK: usize = VECTORS * LANES;
/// Elements that repay looking up where all slots lie.
pub(super) const WORTHWHILE: usize = 4 * BLOCK;

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

/// The steps of a program whose slots from `first_register` on are nobody else's; `None` if there are no two, or
/// if an instruction is not one of [`run_step`].
pub(super) fn steps(body: &[Instr], first_register: usize) -> Option<Vec<Step>> {
    if body.len() < 2 || !body.iter().all(|instr| has(instr.code)) {
        return None;
    }
    let reads = |at: usize, slot: Slot| body[at].sources.contains(&slot);
    let step = |(at, instr): (usize, &Instr)| {
        let last = at.checked_sub(1).map(|at| body[at].target);
        let before = instr.sources.iter().enumerate().map(|(k, source)| u8::from(Some(*source) == last) << k).sum();
        // The first step after the next one that reads it or writes another value there decides.
        let next = body.get(at + 1).is_some_and(|next| next.target != instr.target);
        let later = || (at + 2..body.len()).find(|&at| reads(at, instr.target) || body[at].target == instr.target);
        let kept = usize::from(instr.target) < first_register
            || next && later().is_some_and(|later| reads(later, instr.target));
        Step { instr: *instr, before, kept }
    };
    Some(body.iter().enumerate().map(step).collect())
}

/// Whether an instruction is done here: those that take less time than their operands take to come from memory. (The others
/// gain little, and their many constants would drive the value out of its registers.)
fn has(code: Code) -> bool {
    use BinaryOp::{Add, Div, Max, Min, Mul, Sub};
    use UnaryOp::{Abs, Neg, Sqrt};
    match code {
        Code::Copy | Code::Fma | Code::Select | Code::Choose(_) => true,
        Code::Binary(op) => matches!(op, Add | Sub | Mul | Div | Min | Max),
        Code::Unary(op) => matches!(op, Neg | Abs | Sqrt),
    }
}

/// Where a slot lies in the first block, and whether it moves on from block to block.
#[derive(Clone, Copy)]
struct Place {
    data: *mut f32,
    /// All bits of the distance from the first block, or none.
    moves: usize,
    /// Whether it is one vector of one number.
    number: bool,
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
        number: one,
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
    macro_rules! source {
        ($k:literal) => {
            if step.before & 1 << $k != 0 {
                before
            } else {
                let from = places[usize::from(step.instr.sources[$k])];
                // SAFETY: the block of a source, or the vector of a number.
                unsafe { load(from.at(at), from.number) }
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
        Code::Select => {
            let x = source!(0);
            let masks: [__mmask16; VECTORS] =
                std::array::from_fn(|v| _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(x[v], _mm512_setzero_ps()));
            let (holds, fails) = (source!(1), source!(2));
            each(|v| _mm512_mask_blend_ps(masks[v], fails[v], holds[v]))
        }
        Code::Choose(op) => match op {
            BinaryOp::Eq => choose!(_CMP_EQ_OQ),
            BinaryOp::Ne => choose!(_CMP_NEQ_UQ),
            BinaryOp::Lt => choose!(_CMP_LT_OQ),
            BinaryOp::Le => choose!(_CMP_LE_OQ),
            BinaryOp::Gt => choose!(_CMP_GT_OQ),
            _ => choose!(_CMP_GE_OQ),
        },
        Code::Binary(op) => match op {
            BinaryOp::Add => binary!(|x, y| _mm512_add_ps(x, y)),
            BinaryOp::Sub => binary!(|x, y| _mm512_sub_ps(x, y)),
            BinaryOp::Mul => binary!(|x, y| _mm512_mul_ps(x, y)),
            BinaryOp::Div => binary!(|x, y| _mm512_div_ps(x, y)),
            BinaryOp::Min => binary!(avx512::minimum),
            BinaryOp::Max => binary!(avx512::maximum),
            // `steps` takes no others.
            _ => before,
        },
        Code::Unary(op) => match op {
            UnaryOp::Neg => unary!(avx512::negative),
            UnaryOp::Abs => unary!(|x| _mm512_abs_ps(x)),
            UnaryOp::Sqrt => unary!(|x| _mm512_sqrt_ps(x)),
            _ => before,
        },
    }
}

/// The vectors of a block, or as often that of a number, which is read once.
///
/// # Safety
/// As many vectors, or one, are valid for reading.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(from: *const f32, number: bool) -> Value {
    // SAFETY: the caller's promise.
    let vector = |v: usize| unsafe { _mm512_loadu_ps(from.wrapping_add(v * LANES)) };
    if number { [vector(0); VECTORS] } else { each(vector) }
}

/// A value, vector by vector. (Without a loop, so that all of it stays in registers.)
#[inline]
#[target_feature(enable = "avx512f")]
fn each(f: impl Fn(usize) -> __m512) -> Value {
    [f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)]
}
