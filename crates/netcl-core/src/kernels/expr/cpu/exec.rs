//! The instructions: one vectorised loop per primitive and instruction set.

#[cfg(target_arch = "x86_64")]
use std::any::TypeId;
use std::slice;

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::code::{Code, Instr};
#[cfg(target_arch = "x86_64")]
use crate::backend::cpu::simd;
use crate::backend::cpu::simd::Level;
use crate::kernels::expr::vecmath::{Angle, Real};
use crate::kernels::expr::{BinaryOp, UnaryOp};

/// How often a number stands in its slot at least, even if the chunk is shorter: a vector of the widest kind.
pub(super) const SPREAD: usize = 16;
#[cfg(target_arch = "x86_64")]
const _: () = assert!(SPREAD >= avx512::LANES);

/// Whether the baseline has fused multiply-add as one instruction.
const BASELINE_FMA: bool = cfg!(target_arch = "aarch64");

/// Runs instructions over the first `n` elements of the slots, of which `uniform` ones hold one number.
///
/// # Safety
/// Every slot an instruction names must be an index of `slots` and of `uniform` and point to `n >= 1` elements, initialised
/// where it is read (of a uniform slot the first [`SPREAD`] elements, where the instruction takes numbers or is wide) and writable where it is written; a
/// target must not overlap a source of the same instruction, unless it is that very source and the instruction
/// [is wide](is_wide); and the processor must have `level`.
pub(super) unsafe fn execute<T: Real>(level: Level, code: &[Instr], slots: &[*mut T], uniform: &[bool], n: usize) {
    match level {
        // SAFETY: the caller vouches for the slots and the level.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { execute_avx2(code, slots, uniform, n) },
        // SAFETY: the caller vouches for the slots.
        _ => unsafe { execute_on::<T, BASELINE_FMA>(code, slots, uniform, n) },
    }
}

/// # Safety
/// As [`execute`], on a processor with AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn execute_avx2<T: Real>(code: &[Instr], slots: &[*mut T], uniform: &[bool], n: usize) {
    // SAFETY: the caller vouches for the slots.
    unsafe { execute_on::<T, true>(code, slots, uniform, n) }
}

/// Inlined into one function per level, so that the loops are compiled for its instruction set.
///
/// # Safety
/// As [`execute`].
#[inline(always)]
unsafe fn execute_on<T: Real, const FMA: bool>(code: &[Instr], slots: &[*mut T], uniform: &[bool], n: usize) {
    #[cfg(target_arch = "x86_64")]
    let wide = FMA && wide::<T>();
    for instr in code {
        let s = instr.sources.map(|s| slots[usize::from(s)].cast_const());
        #[cfg(target_arch = "x86_64")]
        if wide {
            let operand = |k: usize| avx512::Operand::new(s[k].cast(), uniform[usize::from(instr.sources[k])]);
            let target = slots[usize::from(instr.target)].cast();
            // SAFETY: the processor has AVX-512, T is f32 and the caller vouches for the slots.
            if unsafe { avx512::instruction(instr.code, std::array::from_fn(operand), target, n) } {
                continue;
            }
        }
        // Of a number, an instruction that takes one reads the first element.
        let length =
            |k: usize| if instr.code.takes_numbers() && uniform[usize::from(instr.sources[k])] { 1 } else { n };
        // SAFETY: every slot holds n elements or a number, and the target overlaps no source, so the slices do not alias.
        let (s, o): ([&[T]; 4], &mut [T]) = unsafe {
            (
                std::array::from_fn(|k| slice::from_raw_parts(s[k], length(k))),
                slice::from_raw_parts_mut(slots[usize::from(instr.target)], n),
            )
        };
        match instr.code {
            Code::Copy => o.copy_from_slice(s[0]),
            Code::Unary(op) => unary::<T, FMA>(op, s[0], o),
            Code::Binary(op) => {
                let operand = |k: usize| (s[k], uniform[usize::from(instr.sources[k])]);
                binary::<T, FMA>(op, operand(0), operand(1), o);
            }
            Code::Fma => map3(s[0], s[1], s[2], o, |a, b, c| a.fused(b, c)),
            Code::Select => map3(s[0], s[1], s[2], o, |a, b, c| if a != T::ZERO { b } else { c }),
            Code::Choose(op) => match op {
                BinaryOp::Eq => map4(s, o, |a, b, x, y| if a == b { x } else { y }),
                BinaryOp::Ne => map4(s, o, |a, b, x, y| if a != b { x } else { y }),
                BinaryOp::Lt => map4(s, o, |a, b, x, y| if a < b { x } else { y }),
                BinaryOp::Le => map4(s, o, |a, b, x, y| if a <= b { x } else { y }),
                BinaryOp::Gt => map4(s, o, |a, b, x, y| if a > b { x } else { y }),
                _ => map4(s, o, |a, b, x, y| if a >= b { x } else { y }),
            },
        }
    }
}

/// Whether there are wider registers than the level's for this type.
#[cfg(target_arch = "x86_64")]
fn wide<T: Real>() -> bool {
    TypeId::of::<T>() == TypeId::of::<f32>() && simd::avx512()
}

/// Whether an instruction is done in wider registers: it may write where it reads, and takes a number for any source.
pub(super) fn is_wide<T: Real>(level: Level, code: Code) -> bool {
    #[cfg(target_arch = "x86_64")]
    if level == Level::Avx2 && wide::<T>() {
        return avx512::has(code);
    }
    let _ = (level, code);
    false
}

#[inline(always)]
fn unary<T: Real, const FMA: bool>(op: UnaryOp, a: &[T], o: &mut [T]) {
    match op {
        UnaryOp::Neg => map1(a, o, |x| -x),
        UnaryOp::Abs => map1(a, o, T::abs),
        UnaryOp::Sign => map1(a, o, |x| {
            let negative = if x < T::ZERO { -T::ONE } else { x };
            if x > T::ZERO { T::ONE } else { negative }
        }),
        UnaryOp::Floor => map1(a, o, T::floor),
        UnaryOp::Ceil => map1(a, o, T::ceil),
        UnaryOp::Round => map1(a, o, T::round),
        UnaryOp::Sqrt => map1(a, o, T::sqrt),
        UnaryOp::Rsqrt => map1(a, o, |x| T::ONE / x.sqrt()),
        UnaryOp::Exp => map1(a, o, T::exp::<FMA>),
        UnaryOp::Expm1 => map1(a, o, T::expm1::<FMA>),
        UnaryOp::Log => map1(a, o, T::log::<FMA>),
        UnaryOp::Log1p => map1(a, o, T::log1p::<FMA>),
        UnaryOp::Sin => {
            map1(a, o, T::sin::<FMA>);
            far_angles(a, o, Angle::Sin);
        }
        UnaryOp::Cos => {
            map1(a, o, T::cos::<FMA>);
            far_angles(a, o, Angle::Cos);
        }
        UnaryOp::Tan => {
            map1(a, o, T::tan::<FMA>);
            far_angles(a, o, Angle::Tan);
        }
        UnaryOp::Tanh => map1(a, o, T::tanh::<FMA>),
        UnaryOp::Sigmoid => map1(a, o, T::sigmoid::<FMA>),
        UnaryOp::Erf => map1(a, o, T::erf::<FMA>),
        UnaryOp::NormCdf => map1(a, o, T::norm_cdf::<FMA>),
        UnaryOp::ToF16 => map1(a, o, T::as_f16),
        UnaryOp::ToBf16 => map1(a, o, T::as_bf16),
        // Seldom in a hot loop: one at a time, in f64.
        UnaryOp::Trunc
        | UnaryOp::Exp2
        | UnaryOp::Log2
        | UnaryOp::Log10
        | UnaryOp::Sinh
        | UnaryOp::Cosh
        | UnaryOp::Asin
        | UnaryOp::Acos
        | UnaryOp::Atan
        | UnaryOp::Asinh
        | UnaryOp::Acosh
        | UnaryOp::Atanh
        | UnaryOp::Erfc => map1(a, o, |x| x.through_f64(x, |x, _| op.eval(x))),
    }
}

#[inline(always)]
#[expect(clippy::eq_op, reason = "x != x is the test for NaN that works for both types and vectorises")]
fn binary<T: Real, const FMA: bool>(op: BinaryOp, (a, one_a): (&[T], bool), (b, one_b): (&[T], bool), o: &mut [T]) {
    let truth = |holds: bool| if holds { T::ONE } else { T::ZERO };
    // A number beside a chunk stays in a register instead of being read for every element.
    macro_rules! numbers {
        ($f:expr) => {{
            let f = $f;
            match (one_a, one_b) {
                (false, false) => map2(a, b, o, f),
                (false, true) => {
                    let y = b[0];
                    map1(a, o, |x| f(x, y));
                }
                (true, false) => {
                    let x = a[0];
                    map1(b, o, |y| f(x, y));
                }
                (true, true) => o.fill(f(a[0], b[0])),
            }
        }};
    }
    match op {
        BinaryOp::Add => numbers!(|x: T, y: T| x + y),
        BinaryOp::Sub => numbers!(|x: T, y: T| x - y),
        BinaryOp::Mul => numbers!(|x: T, y: T| x * y),
        BinaryOp::Div => numbers!(|x: T, y: T| x / y),
        BinaryOp::Min => numbers!(|x: T, y: T| if (x <= y) | (x != x) { x } else { y }),
        BinaryOp::Max => numbers!(|x: T, y: T| if (x >= y) | (x != x) { x } else { y }),
        BinaryOp::Pow => map2(a, b, o, T::pow::<FMA>),
        BinaryOp::Fmod => map2(a, b, o, |x, y| x.through_f64(y, |x, y| x % y)),
        BinaryOp::Atan2 => map2(a, b, o, |x, y| x.through_f64(y, f64::atan2)),
        BinaryOp::Eq => map2(a, b, o, |x, y| truth(x == y)),
        BinaryOp::Ne => map2(a, b, o, |x, y| truth(x != y)),
        BinaryOp::Lt => map2(a, b, o, |x, y| truth(x < y)),
        BinaryOp::Le => map2(a, b, o, |x, y| truth(x <= y)),
        BinaryOp::Gt => map2(a, b, o, |x, y| truth(x > y)),
        BinaryOp::Ge => map2(a, b, o, |x, y| truth(x >= y)),
    }
}

/// Replaces the results for angles too far out for the vectorised reduction: rare, so one scan decides.
#[inline(always)]
fn far_angles<T: Real>(a: &[T], o: &mut [T], function: Angle) {
    let mut far = false;
    for x in a {
        far |= x.abs() > T::ANGLE_LIMIT;
    }
    if far {
        for (o, x) in o.iter_mut().zip(a) {
            if x.abs() > T::ANGLE_LIMIT {
                *o = x.angle_slow(function);
            }
        }
    }
}

#[inline(always)]
fn map1<T: Copy>(a: &[T], o: &mut [T], f: impl Fn(T) -> T) {
    for (o, &a) in o.iter_mut().zip(a) {
        *o = f(a);
    }
}

#[inline(always)]
fn map2<T: Copy>(a: &[T], b: &[T], o: &mut [T], f: impl Fn(T, T) -> T) {
    for ((o, &a), &b) in o.iter_mut().zip(a).zip(b) {
        *o = f(a, b);
    }
}

#[inline(always)]
fn map3<T: Copy>(a: &[T], b: &[T], c: &[T], o: &mut [T], f: impl Fn(T, T, T) -> T) {
    for (((o, &a), &b), &c) in o.iter_mut().zip(a).zip(b).zip(c) {
        *o = f(a, b, c);
    }
}

#[inline(always)]
fn map4<T: Copy>(s: [&[T]; 4], o: &mut [T], f: impl Fn(T, T, T, T) -> T) {
    let [a, b, c, d] = s;
    for ((((o, &a), &b), &c), &d) in o.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        *o = f(a, b, c, d);
    }
}
