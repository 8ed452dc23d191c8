//! Copying images to planes: padding, phases, and 16-bit floats widened, in one pass.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use netcl_core::Result;
use netcl_core::backend::cpu::CpuArgs;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_for};
use netcl_core::dtype::{DType, Element};
use netcl_core::simd;
use netcl_core::tensor::Tensor;

use super::lanes::Sum;
use super::plan::Planes;

/// Elements below which another thread costs more than it brings.
const GRAIN: usize = 1 << 15;

/// A type of pixels, which are summed in [`Pixel::Sum`].
pub(super) trait Pixel: Element {
    type Sum: Sum + Pixel<Sum = Self::Sum>;

    /// The value in the type of the sum.
    fn wide(self) -> Self::Sum;

    /// A run of values in the type of the sum. Both slices have one length.
    fn widen(from: &[Self], to: &mut [Self::Sum]);
}

macro_rules! pixels {
    ($($ty:ty, $sum:ty, $wide:expr, $widen:expr;)*) => {$(
        impl Pixel for $ty {
            type Sum = $sum;

            #[inline(always)]
            fn wide(self) -> $sum {
                $wide(self)
            }

            #[inline(always)]
            fn widen(from: &[$ty], to: &mut [$sum]) {
                $widen(from, to);
            }
        }
    )*};
}

pixels! {
    f32, f32, |v| v, copy_row;
    f64, f64, |v| v, copy_row;
    f16, f32, f16::to_f32, |from: &[f16], to: &mut [f32]| from.convert_to_f32_slice(to);
    bf16, f32, wide_bf16, widen_bf16;
}

/// Copies a row without a call of the library for a short one, which would take longer than the copy.
#[inline(always)]
pub(super) fn copy_row<S: Copy>(from: &[S], to: &mut [S]) {
    #[inline(always)]
    fn ends<S: Copy, const N: usize>(from: &[S], to: &mut [S]) {
        if let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>())
            && let Some(start) = to.first_chunk_mut::<N>()
        {
            *start = *first;
            if let Some(end) = to.last_chunk_mut::<N>() {
                *end = *last;
            }
        }
    }
    match from.len() {
        4..8 => ends::<S, 4>(from, to),
        8..16 => ends::<S, 8>(from, to),
        16..=32 => ends::<S, 16>(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// A bfloat16 is the upper half of a float; a plain shift vectorises where the library's conversion does not.
#[inline(always)]
fn wide_bf16(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

simd! {
    fn widen_bf16(from: &[bf16], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = wide_bf16(*from);
        }
    }
}

/// Where a tensor of four axes lies; the memory itself comes with the launch.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) dtype: DType,
    offset: usize,
    end: usize,
    pub(super) strides: [isize; 4],
}

impl Place {
    pub(super) fn new(tensor: &Tensor) -> Place {
        let layout = tensor.layout();
        let mut strides = [0; 4];
        for (to, &from) in strides.iter_mut().zip(layout.strides()) {
            *to = from;
        }
        Place { dtype: tensor.dtype(), offset: layout.offset(), end: layout.end(), strides }
    }

    /// The first element, in the memory of an argument.
    pub(super) fn pointer(&self, args: &CpuArgs<'_>, at: usize) -> Result<SharedPtr<u8>> {
        let size = self.dtype.size();
        Ok(SharedPtr::new(args.checked_memory(at, self.end * size)?.wrapping_add(self.offset * size)))
    }

    /// What tells it from other places in the same memory.
    pub(super) fn key(&self) -> [usize; 6] {
        let [a, b, c, d] = self.strides.map(|stride| stride as usize);
        [self.dtype as usize, self.offset, a, b, c, d]
    }

    /// The distance of an element from the first, in bytes.
    pub(super) fn bytes(&self, index: [usize; 4]) -> isize {
        let elements: isize = index.iter().zip(self.strides).map(|(&i, stride)| i as isize * stride).sum();
        elements * self.dtype.size() as isize
    }
}

/// How planes lie in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// The distance between images.
    pub(super) image: usize,
    /// The distance between channels.
    pub(super) channel: usize,
    /// The distance between the planes of a channel.
    pub(super) phase: usize,
    /// Zeros after the last plane of each channel: what may be read there must be no numbers that spoil a sum by being
    /// multiplied by zero.
    pub(super) after: usize,
}

impl Room {
    /// One channel after the other.
    pub(super) fn of(planes: &Planes, channels: usize) -> Room {
        let (channel, phase) = (planes.channel(), planes.plane());
        Room { image: channels * channel, channel, phase, after: channel - planes.used() }
    }
}

/// Copies so many images, of so many channels each, to planes.
///
/// # Safety
/// Nobody else uses the memory from `to` on, as far as the planes in it go.
pub(super) unsafe fn fill<E: Pixel>(
    op: &'static str,
    (place, from): (&Place, SharedPtr<u8>),
    (planes, room, to): (&Planes, Room, SharedPtr<E::Sum>),
    (start, images, channels): (usize, usize, usize),
) -> Result<()> {
    let [_, _, rows, cols] = place.strides;
    parallel_for(op, images * channels, GRAIN / planes.used(), |range| {
        for index in range {
            let (image, channel) = (index / channels, index % channels);
            let at = [start + image, channel, 0, 0];
            // SAFETY: the image's channel lies inside its storage, and the caller's promise.
            unsafe {
                let from = from.get().offset(place.bytes(at)).cast::<E>();
                copy_channel(
                    from,
                    [rows, cols],
                    planes,
                    to.get().add(image * room.image + channel * room.channel),
                    room,
                );
            }
        }
    })
}

/// Copies one channel of one image to its planes, zeros around it, and zeros after the last plane.
///
/// # Safety
/// As [`copy`]; the room after the planes may be written as well.
pub(super) unsafe fn copy_channel<E: Pixel>(
    from: *const E,
    strides: [isize; 2],
    planes: &Planes,
    to: *mut E::Sum,
    room: Room,
) {
    // SAFETY: the caller's promise.
    unsafe {
        copy(from, strides, planes, to, room.phase);
        let end = to.add((planes.phases() - 1) * room.phase + planes.plane());
        std::slice::from_raw_parts_mut(end, room.after).fill(E::Sum::ZERO);
    }
}

/// Zeros between planes, which may be read: they must be no numbers that spoil a sum by being multiplied by zero.
///
/// # Safety
/// `length` elements from each of `count` places, `step` apart, may be written.
pub(super) unsafe fn zero<S: Sum>(first: *mut S, count: usize, step: usize, length: usize) {
    for i in 0..count {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(first.add(i * step), length).fill(S::ZERO) };
    }
}

/// Copies one channel of one image to its planes, and zeros around it.
///
/// # Safety
/// `from` is the channel's first element: rows and columns `strides` apart may be read as far as the axes' sources go, and the
/// planes, which lie `phase` apart from `to` on, may be written.
unsafe fn copy<E: Pixel>(from: *const E, strides: [isize; 2], planes: &Planes, to: *mut E::Sum, phase: usize) {
    let pitch = planes.pitch();
    let mut index = 0;
    for &top in &planes.rows.starts {
        let (first, end) = planes.rows.inside(top);
        for &left in &planes.cols.starts {
            let (before, after) = planes.cols.inside(left);
            // SAFETY: the caller's promise.
            let plane = unsafe { std::slice::from_raw_parts_mut(to.add(index * phase), planes.plane()) };
            index += 1;
            // Everything at once where something stays zero: many small ends of rows would take longer.
            if (first, end, before, after) != (0, planes.rows.length, 0, pitch) {
                plane.fill(E::Sum::ZERO);
            }
            for (i, row) in plane[first * pitch..end * pitch].chunks_exact_mut(pitch).enumerate() {
                let row = &mut row[before..after];
                if row.is_empty() {
                    continue;
                }
                let y = top + ((first + i) * planes.rows.step) as isize;
                let x = left + (before * planes.cols.step) as isize;
                let step = strides[1] * planes.cols.step as isize;
                // SAFETY: `Axis::inside` kept to the rows and columns that the source has.
                unsafe {
                    let from = from.offset(y * strides[0] + x * strides[1]);
                    if step == 1 {
                        E::widen(std::slice::from_raw_parts(from, row.len()), row);
                    } else if step == 2 {
                        // Pairs of a known length are what the compiler vectorises; the last element may have no second one.
                        let from = std::slice::from_raw_parts(from, 2 * row.len() - 1);
                        let (row, last) = row.split_at_mut(row.len() - 1);
                        for (to, from) in row.iter_mut().zip(from.as_chunks::<2>().0) {
                            *to = from[0].wide();
                        }
                        last[0] = from[from.len() - 1].wide();
                    } else if step > 1 {
                        let step = step as usize;
                        let from = std::slice::from_raw_parts(from, (row.len() - 1) * step + 1);
                        for (to, from) in row.iter_mut().zip(from.iter().step_by(step)) {
                            *to = from.wide();
                        }
                    } else {
                        for (j, to) in row.iter_mut().enumerate() {
                            *to = (*from.offset(j as isize * step)).wide();
                        }
                    }
                }
            }
        }
    }
}
