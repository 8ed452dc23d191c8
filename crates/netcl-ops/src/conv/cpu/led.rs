//! Images that are computed while they are copied to planes: once each, and zeros around them stay zeros.

use std::sync::Arc;

use netcl_core::Result;
use netcl_core::backend::cpu::CpuArgs;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_for};
use netcl_core::kernels::expr::cpu::{Nest, Program, Registers, Source, Target};
use netcl_core::kernels::launch::{Access, Arg};
use smallvec::SmallVec;

use super::images::{Place, Room};
use super::lanes::Sum;
use super::plan::Planes;
use crate::epilogue;
use crate::lead::Lead;

/// Elements below which another thread costs more than it brings.
const GRAIN: usize = 1 << 13;

/// How images are computed; the memory comes with the launch.
pub(super) struct LedImages {
    program: Arc<Program>,
    /// The images as they lie in memory, then what else the expression reads.
    sources: Vec<Place>,
    /// The argument that the further sources begin with; scalars follow.
    first: usize,
    scalars: usize,
}

impl LedImages {
    /// Adds its arguments to those of a launch.
    pub(super) fn new(lead: &Lead<'_>, source: &Place, args: &mut SmallVec<[Arg; 8]>) -> Result<LedImages> {
        let first = args.len();
        args.extend(lead.inputs.iter().map(|input| Arg::Buffer(input.storage().clone(), Access::Read)));
        args.extend(lead.scalars.iter().map(|number| number.arg(lead.compute)));
        let sources = std::iter::once(source.clone()).chain(lead.inputs.iter().map(Place::new)).collect();
        let program = epilogue::program(lead.expr, lead.compute)?;
        Ok(LedImages { program, sources, first, scalars: lead.scalars.len() })
    }

    pub(super) fn bind(&self, args: &CpuArgs<'_>, source: SharedPtr<u8>) -> Result<Led<'_>> {
        let further = self.sources.iter().skip(1).enumerate().map(|(i, place)| place.pointer(args, self.first + i));
        let memory = std::iter::once(Ok(source)).chain(further).collect::<Result<_>>()?;
        let first = self.first + self.sources.len() - 1;
        let scalars = (0..self.scalars).map(|i| args.float(first + i)).collect::<Result<_>>()?;
        Ok(Led { images: self, memory, scalars })
    }
}

/// The same with its memory and its numbers.
pub(super) struct Led<'l> {
    images: &'l LedImages,
    memory: SmallVec<[SharedPtr<u8>; 4]>,
    scalars: SmallVec<[f64; 4]>,
}

/// Computes so many images, of so many channels each, into planes.
///
/// # Safety
/// Nobody else uses the memory from `to` on, as far as the planes in it go.
pub(super) unsafe fn compute<S: Sum>(
    op: &'static str,
    led: &Led<'_>,
    (planes, room, to): (&Planes, Room, SharedPtr<S>),
    (start, images, channels): (usize, usize, usize),
) -> Result<()> {
    parallel_for(op, images * channels, GRAIN / planes.used(), |range| {
        let mut registers = Registers::default();
        for index in range {
            let (image, channel) = (index / channels, index % channels);
            // SAFETY: the image's channel lies inside its storage, and the caller's promise.
            unsafe {
                let to = to.get().add(image * room.image + channel * room.channel);
                led.channel(&mut registers, planes, (to, room.phase), [start + image, channel]);
                let end = to.add((planes.phases() - 1) * room.phase + planes.plane());
                std::slice::from_raw_parts_mut(end, room.after).fill(S::ZERO);
            }
        }
    })
}

impl Led<'_> {
    /// Computes one channel of one image, and zeros around it.
    ///
    /// # Safety
    /// The planes, which lie `phase` apart from `to` on, may be written.
    unsafe fn channel<S: Sum>(
        &self,
        registers: &mut Registers,
        planes: &Planes,
        (to, phase): (*mut S, usize),
        [image, channel]: [usize; 2],
    ) {
        let pitch = planes.pitch();
        let tops = planes.rows.starts.iter().flat_map(|&top| planes.cols.starts.iter().map(move |&left| (top, left)));
        for (index, (top, left)) in tops.enumerate() {
            let ((first, end), (before, after)) = (planes.rows.inside(top), planes.cols.inside(left));
            // SAFETY: the caller's promise.
            let plane = unsafe { std::slice::from_raw_parts_mut(to.add(index * phase), planes.plane()) };
            if (first, end, before, after) != (0, planes.rows.length, 0, pitch) {
                plane.fill(S::ZERO);
            }
            let shape = [end - first, after - before];
            if shape.contains(&0) {
                continue;
            }
            // `Axis::inside` keeps to the rows and columns that the source has.
            let y = (top + (first * planes.rows.step) as isize) as usize;
            let x = (left + (before * planes.cols.step) as isize) as usize;
            let steps: SmallVec<[[isize; 2]; 4]> = self
                .images
                .sources
                .iter()
                .map(|place| {
                    [place.strides[2] * planes.rows.step as isize, place.strides[3] * planes.cols.step as isize]
                })
                .collect();
            let sources: SmallVec<[Source<'_>; 4]> = (self.images.sources.iter().zip(&self.memory).zip(&steps))
                .map(|((place, memory), strides)| {
                    let data = memory.get().cast_const().wrapping_offset(place.bytes([image, channel, y, x]));
                    Source { data, dtype: place.dtype, strides }
                })
                .collect();
            let program = &self.images.program;
            let strides = [pitch as isize, 1];
            let data = plane[first * pitch + before..].as_mut_ptr().cast();
            let target = Target { data, dtype: S::DTYPE, strides: &strides };
            // SAFETY: all of these elements of the sources lie in their storages, whose size was checked; the plane is ours.
            unsafe {
                let (sources, size) = (&sources[..program.inputs()], shape[0] * shape[1]);
                program.run_nest_in(registers, Nest { shape: &shape }, sources, &[target], &self.scalars, 0..size);
            }
        }
    }
}
