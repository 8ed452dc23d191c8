//! Moving runs of elements between memory and registers, converting on the way.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use num_traits::AsPrimitive;
use std::slice;

use crate::dtype::{DType, Element};
use crate::kernels::expr::vecmath::Real;

/// A type that expressions are computed in, with its conversions.
pub(super) trait Compute:
    Real
    + Element
    + AsPrimitive<f32>
    + AsPrimitive<f64>
    + AsPrimitive<f16>
    + AsPrimitive<bf16>
    + AsPrimitive<u8>
    + AsPrimitive<i32>
    + AsPrimitive<i64>
{
    /// One element of any type.
    fn of<E: AsPrimitive<f32> + AsPrimitive<f64>>(from: E) -> Self;
    /// A dense run of f16.
    fn from_f16(from: &[f16], to: &mut [Self]);
    /// A dense run of bf16.
    fn from_bf16(from: &[bf16], to: &mut [Self]);
    /// Rounds to a dense run of f16.
    fn to_f16(from: &[Self], to: &mut [f16]);
    /// Rounds to a dense run of bf16.
    fn to_bf16(from: &[Self], to: &mut [bf16]);
}

impl Compute for f32 {
    #[inline(always)]
    fn of<E: AsPrimitive<f32> + AsPrimitive<f64>>(from: E) -> f32 {
        from.as_()
    }
    fn from_f16(from: &[f16], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
    fn from_bf16(from: &[bf16], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }
    fn to_f16(from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }
    fn to_bf16(from: &[f32], to: &mut [bf16]) {
        for (to, from) in to.iter_mut().zip(from) {
            let bits = from.to_bits();
            // To nearest, ties to even; a NaN must not round to infinity.
            let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            let quiet = (bits >> 16) | 0x40;
            *to = bf16::from_bits(if from.is_nan() { quiet } else { rounded } as u16);
        }
    }
}

impl Compute for f64 {
    #[inline(always)]
    fn of<E: AsPrimitive<f32> + AsPrimitive<f64>>(from: E) -> f64 {
        from.as_()
    }
    fn from_f16(from: &[f16], to: &mut [f64]) {
        from.convert_to_f64_slice(to);
    }
    fn from_bf16(from: &[bf16], to: &mut [f64]) {
        from.convert_to_f64_slice(to);
    }
    fn to_f16(from: &[f64], to: &mut [f16]) {
        to.convert_from_f64_slice(from);
    }
    fn to_bf16(from: &[f64], to: &mut [bf16]) {
        to.convert_from_f64_slice(from);
    }
}

/// Reads `to.len()` elements, `stride` apart.
///
/// # Safety
/// `from` must point to that many initialised elements of `dtype`, aligned for it.
pub(super) unsafe fn load<T: Compute>(dtype: DType, from: *const u8, stride: isize, to: &mut [T]) {
    // SAFETY: the caller vouches for `to.len()` elements of this dtype at these places.
    unsafe {
        match dtype {
            DType::F16 if stride == 1 => T::from_f16(slice::from_raw_parts(from.cast(), to.len()), to),
            DType::BF16 if stride == 1 => T::from_bf16(slice::from_raw_parts(from.cast(), to.len()), to),
            _ => crate::with_element!(dtype, E => gather::<E, T>(from.cast(), stride, to)),
        }
    }
}

/// Writes all elements of `from`, `stride` apart.
///
/// # Safety
/// `to` must point to that many writable elements of `dtype`, aligned for it.
pub(super) unsafe fn store<T: Compute>(dtype: DType, from: &[T], to: *mut u8, stride: isize) {
    // SAFETY: the caller vouches for `from.len()` elements of this dtype at these places.
    unsafe {
        match dtype {
            DType::F16 if stride == 1 => T::to_f16(from, slice::from_raw_parts_mut(to.cast(), from.len())),
            DType::BF16 if stride == 1 => T::to_bf16(from, slice::from_raw_parts_mut(to.cast(), from.len())),
            _ => crate::with_element!(dtype, E => scatter::<E, T>(from, to.cast(), stride)),
        }
    }
}

/// # Safety
/// As [`load`].
unsafe fn gather<E, T>(from: *const E, stride: isize, to: &mut [T])
where
    E: Element + AsPrimitive<f32> + AsPrimitive<f64>,
    T: Compute,
{
    if stride == 1 {
        // SAFETY: `from` holds as many elements as `to`. (A slice, so that the loop vectorises.)
        let from = unsafe { slice::from_raw_parts(from, to.len()) };
        for (to, from) in to.iter_mut().zip(from) {
            *to = T::of(*from);
        }
    } else if stride == 0 && !to.is_empty() {
        // SAFETY: one of the elements the caller vouches for.
        to.fill(T::of(unsafe { *from }));
    } else {
        for (i, to) in to.iter_mut().enumerate() {
            // SAFETY: the element at i * stride is one of those the caller vouches for.
            *to = T::of(unsafe { *from.offset(i as isize * stride) });
        }
    }
}

/// # Safety
/// As [`store`].
unsafe fn scatter<E: Element, T: Compute + AsPrimitive<E>>(from: &[T], to: *mut E, stride: isize) {
    if stride == 1 {
        // SAFETY: `to` holds as many elements as `from`.
        let to = unsafe { slice::from_raw_parts_mut(to, from.len()) };
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.as_();
        }
    } else {
        for (i, from) in from.iter().enumerate() {
            // SAFETY: the element at i * stride is one of those the caller vouches for.
            unsafe { *to.offset(i as isize * stride) = from.as_() };
        }
    }
}
