//! Images that are computed while they are copied to planes: once each, and zeros around them stay zeros.

use std::sync::Arc;

use netcl_core::Result;
use netcl_core::backend::cpu::CpuArgs;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_for};
use netcl_core::kernels::expr::cpu::{Nest, Program, Registers, Source, Target};
use netcl_core::kernels::launch::{Access, Arg};
use smallvec::SmallVec;

use super::images::{self, Pixel, Place, Room};
use super::lanes::Sum;
use super::plan::Planes;
use crate::epilogue;
use crate::prologue::CheckedPrologue;

/// Elements below which another thread costs more than it brings.
const GRAIN: usize = 1 << 13;

/// How images are computed; the memory comes with the launch.
pub(super) struct PlanePrologue {
    program: Arc<Program>,
    /// The images as they lie in memory, then what else the expression reads.
    sources: Vec<Place>,
    /// The argument that the further sources begin with; scalars follow.
    first: usize,
    scalars: usize,
}

impl PlanePrologue {
    /// Adds its arguments to those of a launch.
    pub(super) fn new(
        prologue: &CheckedPrologue<'_>,
        source: &Place,
        args: &mut SmallVec<[Arg; 8]>,
    ) -> Result<PlanePrologue> {
        let first = args.len();
        args.extend(prologue.inputs.iter().map(|input| Arg::Buffer(input.storage().clone(), Access::Read)));
        args.extend(prologue.scalars.iter().map(|number| number.arg(prologue.compute)));
        let sources = std::iter::once(source.clone()).chain(prologue.inputs.iter().map(Place::new)).collect();
        let program = epilogue::program(prologue.expr, prologue.compute)?;
        Ok(PlanePrologue { program, sources, first, scalars: prologue.scalars.len() })
    }

    pub(super) fn bind(&self, args: &CpuArgs<'_>, source: SharedPtr<u8>) -> Result<BoundPrologue<'_>> {
        let further = self.sources.iter().skip(1).enumerate().map(|(i, place)| place.pointer(args, self.first + i));
        let memory = std::iter::once(Ok(source)).chain(further).collect::<Result<_>>()?;
        let first = self.first + self.sources.len() - 1;
        let scalars = (0..self.scalars).map(|i| args.float(first + i)).collect::<Result<_>>()?;
        Ok(BoundPrologue { images: self, memory, scalars })
    }
}

/// The same with its memory and its numbers.
pub(super) struct BoundPrologue<'l> {
    images: &'l PlanePrologue,
    memory: SmallVec<[SharedPtr<u8>; 4]>,
    scalars: SmallVec<[f64; 4]>,
}

/// Computes so many images, of so many channels each, and copies them to planes while they are in the cache.
///
/// # Safety
/// Nobody else uses the memory from `to` on, as far as the planes in it go.
pub(super) unsafe fn fill<S: Sum + Pixel<Sum = S>>(
    op: &'static str,
    prologue: &BoundPrologue<'_>,
    (planes, room, to): (&Planes, Room, SharedPtr<S>),
    (start, images, channels): (usize, usize, usize),
) -> Result<()> {
    let pixels = [planes.rows.source, planes.cols.source];
    parallel_for(op, images * channels, GRAIN / planes.used(), |range| {
        let (mut registers, mut computed) = (Registers::default(), vec![S::ZERO; pixels[0] * pixels[1]]);
        for index in range {
            let (image, channel) = (index / channels, index % channels);
            // SAFETY: the image's channel lies inside its storage, and the caller's promise.
            unsafe {
                prologue.channel(&mut registers, pixels, [start + image, channel], &mut computed);
                let to = to.get().add(image * room.image + channel * room.channel);
                images::copy_channel(computed.as_ptr(), [pixels[1] as isize, 1], planes, to, room);
            }
        }
    })
}

impl BoundPrologue<'_> {
    /// Computes one channel of one image.
    ///
    /// # Safety
    /// The images have such a channel of so many rows and columns.
    unsafe fn channel<S: Sum>(
        &self,
        registers: &mut Registers,
        [rows, cols]: [usize; 2],
        [image, channel]: [usize; 2],
        to: &mut [S],
    ) {
        // Rows that follow each other in everything that is read are one row.
        let even = |place: &Place| place.strides[2] == place.strides[3] * cols as isize;
        let shape = if self.images.sources.iter().all(even) { [1, rows * cols] } else { [rows, cols] };
        let sources: SmallVec<[Source<'_>; 4]> = (self.images.sources.iter().zip(&self.memory))
            .map(|(place, memory)| {
                let data = memory.get().cast_const().wrapping_offset(place.bytes([image, channel, 0, 0]));
                Source { data, dtype: place.dtype, strides: &place.strides[2..] }
            })
            .collect();
        let strides = [shape[1] as isize, 1];
        let target = Target { data: to.as_mut_ptr().cast(), dtype: S::DTYPE, strides: &strides };
        let program = &self.images.program;
        // SAFETY: all elements of the channel lie in storages whose size was checked; the target is as large, and ours.
        unsafe {
            let sources = &sources[..program.inputs()];
            program.run_nest_in(registers, Nest { shape: &shape }, sources, &[target], &self.scalars, 0..rows * cols);
        }
    }
}
