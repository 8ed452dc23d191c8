//! Conversions between all element types.
//!
//! Values follow Rust's `as`: floats round to nearest even (once, also from f64 to a 16-bit float), floats become integers
//! by truncation with saturation (NaN becomes 0), integers become narrower ones by dropping bits. One exception in
//! rounding: an i64 above 2^53 becomes a bf16 through f64, as `i64 as f64` does.

use half::f16;
use std::mem::MaybeUninit;

use half::slice::HalfFloatSliceExt;

use super::strided::{Axis, Plan, TILE, Tile, copy_tile};
use super::{GRAIN, copy};
use crate::backend::cpu::threads::{SharedPtr, parallel_for};
use crate::dtype::{DType, odd_f32};
use crate::error::Result;
use crate::shape::Layout;

/// Values converted at a time where the way leads through f32; they stay in the first-level cache.
const STAGE: usize = 1024;

/// Converts `n` dense elements.
///
/// # Safety
/// `src` must be valid for reading `n` elements of `src_dtype`, `dst` for writing `n` of `dst_dtype`, each aligned to its
/// element; the two must not overlap, and nobody may write the former or use the latter meanwhile.
pub unsafe fn cast(src: *const u8, src_dtype: DType, dst: *mut u8, dst_dtype: DType, n: usize) -> Result<()> {
    if src_dtype == dst_dtype {
        // SAFETY: the caller's promise.
        return unsafe { copy(src, dst, n * src_dtype.size()) };
    }
    let (src, dst) = (SharedPtr::new(src.cast_mut()), SharedPtr::new(dst));
    parallel_for("cast", n, GRAIN / 8, |range| {
        // SAFETY: disjoint ranges of what the caller vouched for.
        unsafe {
            let from = src.get().add(range.start * src_dtype.size());
            let to = dst.get().add(range.start * dst_dtype.size());
            cast_run(from, src_dtype, to, dst_dtype, range.len());
        }
    })
}

/// Converts elements of one layout into another of the same shape.
///
/// # Safety
/// As for [`copy_strided`](super::copy_strided), with the two dtypes' element sizes.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) where the shapes differ.
pub unsafe fn cast_strided(
    src_ptr: *const u8,
    src: &Layout,
    src_dtype: DType,
    dst_ptr: *mut u8,
    dst: &Layout,
    dst_dtype: DType,
) -> Result<()> {
    let op = "cast";
    let (from_size, to_size) = (src_dtype.size(), dst_dtype.size());
    if src_dtype == dst_dtype {
        // SAFETY: the caller's promise.
        return unsafe { super::copy_strided(src_ptr, src, dst_ptr, dst, from_size) };
    }
    let Some(plan) = Plan::new(op, src, dst)? else { return Ok(()) };
    if let Some((from, to, n)) = plan.dense() {
        // SAFETY: the caller's promise: the layouts' positions are these two runs.
        return unsafe { cast(src_ptr.add(from * from_size), src_dtype, dst_ptr.add(to * to_size), dst_dtype, n) };
    }
    let (from, to) = (SharedPtr::new(src_ptr.cast_mut()), SharedPtr::new(dst_ptr));
    plan.for_each(op, from_size + to_size, |tile| {
        // A tile is gathered into a dense one, converted, and spread out again, all inside the cache.
        let mut gathered = MaybeUninit::<[u64; TILE]>::uninit();
        let mut converted = MaybeUninit::<[u64; TILE]>::uninit();
        let (gathered, converted) = (gathered.as_mut_ptr().cast::<u8>(), converted.as_mut_ptr().cast::<u8>());
        let Tile { j, k, .. } = tile;
        let row = k.n as isize;
        let gather = Tile { dst: 0, j: Axis { dst: row, ..j }, k: Axis { dst: 1, ..k }, ..tile };
        let spread = Tile { src: 0, j: Axis { src: row, ..j }, k: Axis { src: 1, ..k }, ..tile };
        // SAFETY: tiles are disjoint parts of what the caller vouched for and have at most TILE elements of 8 bytes;
        // each step reads what the one before has written.
        unsafe {
            copy_tile(from.get(), gathered, gather, from_size);
            cast_run(gathered, src_dtype, converted, dst_dtype, j.n * k.n);
            copy_tile(converted, to.get(), spread, to_size);
        }
    })
}

/// Converts a dense run on this thread.
///
/// # Safety
/// As for [`cast`].
unsafe fn cast_run(src: *const u8, src_dtype: DType, dst: *mut u8, dst_dtype: DType, n: usize) {
    /// # Safety
    /// `src` and `dst` are as for [`cast`] with the dtypes of `S` and `D`.
    unsafe fn slices<'a, S, D>(src: *const u8, dst: *mut u8, n: usize) -> (&'a [S], &'a mut [D]) {
        // SAFETY: valid, aligned, disjoint and used by nobody else, as the caller vouches.
        unsafe { (std::slice::from_raw_parts(src.cast(), n), std::slice::from_raw_parts_mut(dst.cast(), n)) }
    }

    /// Conversions of one pair of primitive types each.
    macro_rules! pairs {
        ($($src:ident($s:ty) => $($dst:ident($d:ty))+;)*) => {
            match (src_dtype, dst_dtype) {
                $($((DType::$src, DType::$dst) => {
                    // SAFETY: the caller's promise, with the types of this arm.
                    let (from, to) = unsafe { slices::<$s, $d>(src, dst, n) };
                    crate::simd! {
                        fn convert(from: &[$s], to: &mut [$d]) {
                            for (to, &from) in to.iter_mut().zip(from) {
                                *to = from as $d;
                            }
                        }
                    }
                    convert(from, to);
                })+)*
                // SAFETY: the caller's promise; only pairs with a 16-bit float are left.
                _ => unsafe { through_f32(src, src_dtype, dst, dst_dtype, n) },
            }
        };
    }
    pairs! {
        F32(f32) => F64(f64) U8(u8) I32(i32) I64(i64);
        F64(f64) => F32(f32) U8(u8) I32(i32) I64(i64);
        U8(u8) => F32(f32) F64(f64) I32(i32) I64(i64);
        I32(i32) => F32(f32) F64(f64) U8(u8) I64(i64);
        I64(i64) => F32(f32) F64(f64) U8(u8) I32(i32);
    }
}

/// Converts a dense run in stages of f32, which holds every 16-bit float exactly.
///
/// # Safety
/// As for [`cast`].
unsafe fn through_f32(src: *const u8, src_dtype: DType, dst: *mut u8, dst_dtype: DType, n: usize) {
    let mut stage = [0f32; STAGE];
    for start in (0..n).step_by(STAGE) {
        let len = STAGE.min(n - start);
        let stage = &mut stage[..len];
        // SAFETY: `start + len <= n`.
        let (from, to) = unsafe { (src.add(start * src_dtype.size()), dst.add(start * dst_dtype.size())) };
        /// The source's elements.
        macro_rules! read {
            ($t:ty) => {
                // SAFETY: the caller's promise for elements of this type.
                unsafe { std::slice::from_raw_parts(from.cast::<$t>(), len) }
            };
        }
        /// The destination's elements.
        macro_rules! write {
            ($t:ty) => {
                // SAFETY: the caller's promise for elements of this type.
                unsafe { std::slice::from_raw_parts_mut(to.cast::<$t>(), len) }
            };
        }
        match src_dtype {
            DType::F16 => read!(f16).convert_to_f32_slice(stage),
            DType::BF16 => widen_bf16(read!(u16), stage),
            DType::F32 => stage.copy_from_slice(read!(f32)),
            DType::F64 => to_odd_f32(read!(f64), stage, |v| v),
            DType::U8 => stage.iter_mut().zip(read!(u8)).for_each(|(s, &v)| *s = f32::from(v)),
            DType::I32 => to_odd_f32(read!(i32), stage, f64::from),
            DType::I64 => to_odd_f32(read!(i64), stage, |v| v as f64),
        }
        match dst_dtype {
            DType::F16 => write!(f16).convert_from_f32_slice(stage),
            DType::BF16 => round_bf16(stage, write!(u16)),
            DType::F32 => write!(f32).copy_from_slice(stage),
            // SAFETY: `to` has room for `len` elements; f32 to another primitive type does not come back here.
            _ => unsafe { cast_run(stage.as_ptr().cast(), DType::F32, to, dst_dtype, len) },
        }
    }
}

fn to_odd_f32<T: Copy>(from: &[T], to: &mut [f32], widen: impl Fn(T) -> f64) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = odd_f32(widen(from));
    }
}

crate::simd! {
    fn widen_bf16(from: &[u16], to: &mut [f32]) {
        for (to, &from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from) << 16);
        }
    }

    fn round_bf16(from: &[f32], to: &mut [u16]) {
        for (to, &from) in to.iter_mut().zip(from) {
            let bits = from.to_bits();
            let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            // A NaN must stay one, also if all its set bits are among those that go.
            let quiet = (bits >> 16) | 0x40;
            *to = if from.is_nan() { quiet as u16 } else { rounded as u16 };
        }
    }
}
