//! The launch that the convolution and its data gradient have in common: images to planes, sums, and what becomes of them.

use std::sync::Arc;

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_chunks_mut};
use netcl_core::backend::cpu::{CpuArgs, CpuKernel};
use netcl_core::conv::ConvGeometry;
use netcl_core::dtype::{DType, Element};
use netcl_core::kernels::expr::cpu::{Nest, Program, Source, Target};
use netcl_core::kernels::launch::{self, Access, Arg, Launch, Work};
use netcl_core::tensor::Tensor;
use smallvec::{SmallVec, smallvec};

use super::super::epilogue::ConvEpilogue;
use super::images::{self, Pixel, Place, Room};
use super::lanes::VECTORS;
use super::plan::{Axis, Part, Planes, SLACK};
use super::prologue::{self, PlanePrologue};
use super::{ENOUGH_TASKS, chunk, product, scratch, shifted, with_pixel};
use crate::dense::with_stored;
use crate::epilogue;
use crate::norm::cpu::statistics;
use crate::prologue::CheckedPrologue;

/// Bytes of planes that are filled before they are used (more where that is too few pixels): they should still be in a cache by
/// then.
const CHUNK_BYTES: usize = 2 << 20;

/// Channels whose statistics are worth another thread.
const CHANNELS: usize = 32;

/// Pixels of all images from which on packed weights are used often enough.
const LEAST_PIXELS: usize = 16;

/// Who is who: in the data gradient, filters are summed over and channels are the result.
#[derive(Clone, Copy)]
pub(super) struct Roles {
    /// Channels of the result, in a group.
    pub(super) rows: usize,
    /// Channels that are summed over.
    pub(super) depth: usize,
    /// The weight's first two axes are depth and rows, not rows and depth.
    pub(super) transposed: bool,
}

/// Everything about a launch but its memory.
pub(super) struct Problem {
    pub(super) op: &'static str,
    n: usize,
    pub(super) groups: usize,
    pub(super) roles: Roles,
    pub(super) kernel: [usize; 2],
    pub(super) planes: Planes,
    pub(super) parts: Vec<Part>,
    /// Images copied at a time; all of them where they are read where they lie.
    chunk: usize,
    /// How planes lie in memory.
    pub(super) room: Room,
    /// The distances of rows and columns there.
    pub(super) pixel: [usize; 2],
    /// Images are planes already.
    in_place: bool,
    source: Place,
    pub(super) weight: Place,
    out: Place,
    inputs: Vec<Place>,
    scalars: usize,
    /// What becomes of the sums; `None` where they are written straight into the result.
    program: Option<Arc<Program>>,
    /// How images are computed while they are copied.
    prologue: Option<PlanePrologue>,
    /// The argument that the statistics of the result's channels go to, if anybody wants them.
    statistics: Option<(usize, Place)>,
    /// Vectors are filters; otherwise they are pixels.
    packs: bool,
    /// Where packed weights are allocated, and what tells them from others of the same storage; `None` where the weight is computed
    /// by the program that is being recorded, which does not count the versions of its own memory.
    keeps: Option<(Queue, Vec<usize>)>,
}

/// The number of values that were seen, their mean, and the sum of squared deviations from it.
type Moments = (usize, [f64; 2]);

/// The memory of some images' sums.
pub(super) struct Memory<'m, S> {
    /// The first of the images, and how many there are.
    pub(super) start: usize,
    pub(super) images: usize,
    pub(super) planes: &'m [S],
    /// The weights in the order that the way of computing likes.
    pub(super) weights: *const S,
    out: SharedPtr<u8>,
    inputs: &'m [SharedPtr<u8>],
    scalars: &'m [f64],
    /// Mean and squared deviations of every piece and channel, if they are wanted.
    moments: Option<SharedPtr<[f64; 2]>>,
}

// SAFETY: the weights are only read.
unsafe impl<S: Sync> Sync for Memory<'_, S> {}

/// Some rows of one image's pixels of a part, and some channels of the result.
pub(super) struct Piece<'p> {
    pub(super) part: &'p Part,
    /// Among those in memory.
    pub(super) image: usize,
    pub(super) band: usize,
    /// Bands of an image, and the most rows that one has.
    pub(super) bands: (usize, usize),
    /// Among all channels of the result.
    pub(super) first_channel: usize,
    pub(super) channels: usize,
}

impl Piece<'_> {
    pub(super) fn first_row(&self) -> usize {
        self.band * self.bands.1
    }

    pub(super) fn height(&self) -> usize {
        self.bands.1.min(self.part.extent[0] - self.first_row())
    }

    /// The distance of its first pixel in a tensor, in bytes.
    fn bytes(&self, start: usize, place: &Place) -> isize {
        let y = self.part.first[0] + self.first_row() * self.part.step[0];
        place.bytes([start + self.image, self.first_channel, y, self.part.first[1]])
    }

    /// The distances of its channels, rows and columns in a tensor.
    fn strides(&self, place: &Place) -> [isize; 3] {
        let [_, channel, row, col] = place.strides;
        [channel, row * self.part.step[0] as isize, col * self.part.step[1] as isize]
    }
}

pub(super) fn run(
    op: &'static str,
    g: &ConvGeometry,
    roles: Roles,
    (planes, parts): (Planes, Vec<Part>),
    [source, weight, out]: [&Tensor; 3],
    (prologue, epilogue): (Option<&CheckedPrologue<'_>>, &ConvEpilogue),
    statistics: Option<&Tensor>,
) -> Result<()> {
    let depth = g.groups * roles.depth;
    let least = product::PIXELS.div_ceil(parts.first().map_or(1, |part| part.extent.iter().product())).min(g.n);
    let chunk = chunk(g.n, depth * planes.channel() * epilogue.sum.size(), CHUNK_BYTES).max(least);
    let packs = with_pixel!(epilogue.sum, E => product::suits::<<E as Pixel>::Sum>(&planes, &parts, roles));
    let place = Place::new(source);
    let in_place = prologue.is_none()
        && source.size() > 0
        && source.dtype() == epilogue.sum
        && lies_as_planes(&place, &planes, &parts, packs);
    let (chunk, room, pixel) = match (in_place, place.strides.map(isize::unsigned_abs)) {
        (true, [image, channel, row, col]) => (g.n, Room { image, channel, phase: 0, after: 0 }, [row, col]),
        _ => (chunk, Room::of(&planes, depth), [planes.pitch(), 1]),
    };
    let plane_memory = scratch(out, if in_place { 1 } else { chunk * room.image }, epilogue.sum)?;
    let program = match &epilogue.expr {
        Some(expr) => Some(epilogue::program(expr, epilogue.compute)?),
        None if epilogue.dtype == epilogue.sum => None,
        None => Some(epilogue::program(&epilogue::COPY, epilogue.compute)?),
    };
    let mut args: SmallVec<[Arg; 8]> = smallvec![
        Arg::Buffer(source.storage().clone(), Access::Read),
        Arg::Buffer(weight.storage().clone(), Access::Read),
        Arg::Buffer(out.storage().clone(), Access::Write),
        Arg::Buffer(plane_memory.storage().clone(), Access::Write),
    ];
    let mut problem = Problem {
        op,
        n: g.n,
        groups: g.groups,
        roles,
        kernel: g.kernel,
        packs,
        planes,
        parts,
        chunk,
        room,
        pixel,
        in_place,
        source: place,
        weight: Place::new(weight),
        out: Place::new(out),
        inputs: epilogue.inputs.iter().map(Place::new).collect(),
        scalars: epilogue.scalars.len(),
        program,
        prologue: None,
        statistics: None,
        keeps: None,
    };
    problem.keeps = (!weight.storage().is_planned()).then(|| (out.queue().clone(), problem.key()));
    let packed = scratch(out, problem.weights().max(1), epilogue.sum)?;
    args.push(Arg::Buffer(packed.storage().clone(), Access::Write));
    args.extend(epilogue.inputs.iter().map(|input| Arg::Buffer(input.storage().clone(), Access::Read)));
    args.extend(epilogue.scalars.iter().map(|number| number.arg(epilogue.compute)));
    problem.prologue = prologue.map(|prologue| PlanePrologue::new(prologue, &problem.source, &mut args)).transpose()?;
    problem.statistics = statistics.map(|tensor| {
        args.push(Arg::Buffer(tensor.storage().clone(), Access::Write));
        (args.len() - 1, Place::new(tensor))
    });
    let kernel = CpuKernel::new(move |args| with_pixel!(problem.source.dtype, E => problem.run::<E>(args)));
    let (queue, cost) = (out.queue().clone(), g.cost(&[source, weight, out]));
    launch::submit(Launch { name: op.into(), queue, work: Work::Cpu(kernel), args, cost })
}

/// Whether images are planes as they lie: there is nothing around their elements. Vectors of pixels need them side by side, and
/// nothing is read after the end.
fn lies_as_planes(place: &Place, planes: &Planes, parts: &[Part], packs: bool) -> bool {
    let [_, _, row, col] = place.strides;
    let whole = |axis: &Axis| axis.step == 1 && axis.starts[..] == [0] && axis.length == axis.source;
    let single = |part: &Part| part.taps.len() == 1 && part.extent == [planes.rows.length, planes.cols.length];
    let dense = col == 1 && row == planes.pitch() as isize && planes.plane().is_multiple_of(SLACK);
    let lies = matches!(parts, [part] if single(part)) && whole(&planes.rows) && whole(&planes.cols);
    lies && (packs || dense) && place.strides.iter().all(|&stride| stride >= 0)
}

/// Whether the engine is the better way for a product of matrices: of a single image, since it keeps weights packed and reads images
/// where they lie; but packing is no gain for a few pixels, and 16-bit floats would be copied.
pub(in crate::conv) fn suits_product(g: &ConvGeometry, source: &Tensor) -> bool {
    let forwards = source.layout().strides().iter().all(|&stride| stride >= 0);
    forwards && source.dtype() == source.dtype().accumulator() && g.n == 1 && g.pixels() >= LEAST_PIXELS
}

impl Problem {
    /// Channels that are read.
    pub(super) fn channels(&self) -> usize {
        self.groups * self.roles.depth
    }

    /// What tells the packed weights from others of the same storage.
    fn key(&self) -> Vec<usize> {
        let Roles { rows, depth, transposed } = self.roles;
        let mut key = vec![self.groups, rows, depth, usize::from(transposed), usize::from(self.packs)];
        key.extend(self.kernel);
        key.extend(self.weight.key());
        for part in &self.parts {
            key.push(part.taps.len());
            key.extend(part.taps.iter().map(|tap| tap.weight));
        }
        key
    }

    /// Taps of all parts.
    pub(super) fn taps(&self) -> usize {
        self.parts.iter().map(|part| part.taps.len()).sum()
    }

    /// Elements of the weights in the order that the way of computing likes.
    fn weights(&self) -> usize {
        match self.packs {
            true => with_pixel!(self.weight.dtype, E => product::weights::<<E as Pixel>::Sum>(self)),
            false => shifted::weights(self),
        }
    }

    fn run<E: Pixel>(&self, args: &CpuArgs<'_>) -> Result<()> {
        let size = size_of::<E::Sum>();
        let (source, out) = (self.source.pointer(args, 0)?, self.out.pointer(args, 2)?);
        let planes_end = if self.in_place { 0 } else { self.chunk * self.room.image };
        let planes = SharedPtr::new(args.checked_memory(3, planes_end * size)?.cast::<E::Sum>());
        let packed = SharedPtr::new(args.checked_memory(4, self.weights() * size)?.cast::<E::Sum>());
        let inputs: SmallVec<[SharedPtr<u8>; 2]> =
            self.inputs.iter().enumerate().map(|(i, place)| place.pointer(args, 5 + i)).collect::<Result<_>>()?;
        let first = 5 + self.inputs.len();
        let scalars: SmallVec<[f64; 4]> = (0..self.scalars).map(|i| args.float(first + i)).collect::<Result<_>>()?;
        let weight = self.weight.pointer(args, 1)?;
        let prologue = self.prologue.as_ref().map(|prologue| prologue.bind(args, source)).transpose()?;
        let pack = |packed: SharedPtr<E::Sum>| match self.packs {
            true => product::prepare::<E>(self, weight, packed),
            false => shifted::prepare::<E>(self, weight, packed),
        };
        let kept = match &self.keeps {
            Some((queue, key)) => {
                let place = (queue, self.weights() * size);
                args.derived(1, key, place, |packed| pack(SharedPtr::new(packed.cast())))?
            }
            None => None,
        };
        let weights = match &kept {
            Some(kept) => kept.memory()?.cast::<E::Sum>(),
            None => {
                pack(packed)?;
                packed.get().cast_const()
            }
        };
        let results = self.groups * self.roles.rows;
        let mut found: Vec<Moments> = match &self.statistics {
            Some(_) => vec![(0, [0.0; 2]); results],
            None => Vec::new(),
        };
        let mut moments = Vec::new();
        for start in (0..self.n).step_by(self.chunk) {
            let images = self.chunk.min(self.n - start);
            // SAFETY: the planes are this launch's own, and their size was checked; nobody writes them once they are filled. Images that
            // are planes end with the last one's last channel.
            let planes = unsafe {
                let counts = (start, images, self.channels());
                let target = (&self.planes, self.room, planes);
                let lengths = [images, self.channels(), self.planes.rows.length, self.planes.cols.length];
                let steps = [self.room.image, self.room.channel, self.pixel[0], self.pixel[1]];
                let last: usize = lengths.iter().zip(steps).map(|(&n, step)| n.saturating_sub(1) * step).sum();
                match &prologue {
                    _ if self.in_place => {}
                    Some(prologue) => prologue::fill(self.op, prologue, target, counts)?,
                    None => images::fill::<E>(self.op, (&self.source, source), target, counts)?,
                }
                match self.in_place {
                    true => std::slice::from_raw_parts(source.get().cast_const().cast(), last + 1),
                    false => std::slice::from_raw_parts(planes.get().cast_const(), images * self.room.image),
                }
            };
            for (index, part) in self.parts.iter().enumerate() {
                let bands = self.bands(part, images, VECTORS * <E::Sum as super::lanes::Sum>::loops().lanes);
                if !found.is_empty() {
                    moments.resize(images * bands.0 * results, [0.0; 2]);
                }
                let memory = Memory {
                    start,
                    images,
                    planes,
                    weights,
                    out,
                    inputs: &inputs,
                    scalars: &scalars,
                    moments: (!found.is_empty()).then(|| SharedPtr::new(moments.as_mut_ptr())),
                };
                match self.packs {
                    true => product::part::<E>(self, index, bands, &memory)?,
                    false => shifted::part::<E>(self, index, bands, &memory)?,
                }
                // Channel by channel in the order of images and rows, whoever computed them.
                parallel_chunks_mut(self.op, &mut found, CHANNELS, |first, found| {
                    for (piece, moments) in moments.chunks_exact(results).enumerate() {
                        let length = bands.1.min(part.extent[0] - piece % bands.0 * bands.1) * part.extent[1];
                        for (so_far, &more) in found.iter_mut().zip(&moments[first..]) {
                            *so_far = (so_far.0 + length, statistics::merge([*so_far, (length, more)]));
                        }
                    }
                })?;
            }
        }
        let Some((at, place)) = &self.statistics else { return Ok(()) };
        let to = place.pointer(args, *at)?.get();
        for (channel, (_, found)) in found.into_iter().enumerate() {
            for (i, value) in found.into_iter().enumerate() {
                // SAFETY: two elements for each channel, inside the storage.
                unsafe {
                    match place.dtype {
                        DType::F64 => *to.cast::<f64>().add(2 * channel + i) = value,
                        _ => *to.cast::<f32>().add(2 * channel + i) = value as f32,
                    }
                }
            }
        }
        Ok(())
    }

    /// Bands of rows that a part's pixels of an image are cut into, and rows of a band. The shape alone decides: statistics are
    /// merged band by band.
    fn bands(&self, part: &Part, images: usize, block: usize) -> (usize, usize) {
        let tasks = images * self.groups * self.parts.len();
        let wanted = ENOUGH_TASKS.div_ceil(tasks.max(1));
        let pixels = part.extent[0] * part.extent[1];
        // A block that reaches past the end of a band is wasted work: 105 GFLOP/s in bands of 4 rows of 56, 116 in bands of 14.
        let bands = wanted.min(pixels.div_ceil(16 * block)).clamp(1, part.extent[0]);
        // Vectors of pixels end with the band where nothing may be read after the last plane.
        let whole = |rows: &usize| (rows * part.extent[1]).is_multiple_of(SLACK);
        let unit = if self.in_place && !self.packs { (1..SLACK).find(whole).unwrap_or(SLACK) } else { 1 };
        let rows = part.extent[0].div_ceil(bands).next_multiple_of(unit);
        (part.extent[0].div_ceil(rows), rows)
    }

    /// Where the sums of a piece may be written as they are, and the distances of channels, rows and columns there; `None` if
    /// something is still to become of them.
    pub(super) fn target<S>(&self, memory: &Memory<'_, S>, piece: &Piece<'_>) -> Option<(*mut S, [isize; 3])> {
        if self.program.is_some() {
            return None;
        }
        let to = memory.out.get().wrapping_offset(piece.bytes(memory.start, &self.out));
        Some((to.cast::<S>(), piece.strides(&self.out)))
    }

    /// Makes of sums what becomes of them (unless they lie at the [`Self::target`]), and sees to the statistics.
    ///
    /// # Safety
    /// The piece's sums may be read, their `strides` apart from `sums` on, and nobody else uses its part of the result.
    pub(super) unsafe fn end<S: Element>(
        &self,
        memory: &Memory<'_, S>,
        piece: &Piece<'_>,
        (sums, strides): (*const S, [isize; 3]),
    ) {
        let shape = [piece.channels, piece.height(), piece.part.extent[1]];
        let steps = piece.strides(&self.out);
        // SAFETY: places lie inside their storages, and the caller's promise.
        unsafe {
            let target = memory.out.get().offset(piece.bytes(memory.start, &self.out));
            match &self.program {
                Some(program) => {
                    // Rows that follow each other in everything are one: short ones would be gathered by the interpreter, which
                    // takes five times as long.
                    let whole: SmallVec<[[isize; 3]; 4]> = self.inputs.iter().map(|i| piece.strides(i)).collect();
                    let joined = |by: &[isize; 3]| by[1] == by[2] * shape[2] as isize;
                    let joins = joined(&strides) && joined(&steps) && whole.iter().all(joined);
                    let axes = |by: &[isize; 3]| match joins {
                        true => SmallVec::<[isize; 3]>::from_slice(&[by[0], by[2]]),
                        false => SmallVec::from_slice(by),
                    };
                    let lengths: SmallVec<[usize; 3]> = match joins {
                        true => smallvec![shape[0], shape[1] * shape[2]],
                        false => SmallVec::from_slice(&shape),
                    };
                    let (sum_by, out_by) = (axes(&strides), axes(&steps));
                    let sum = Source { data: sums.cast::<u8>(), dtype: S::DTYPE, strides: &sum_by };
                    let steps_of: SmallVec<[SmallVec<[isize; 3]>; 4]> = whole.iter().map(axes).collect();
                    let rest = self.inputs.iter().zip(memory.inputs).zip(&steps_of).map(|((input, data), strides)| {
                        let data = data.get().offset(piece.bytes(memory.start, input));
                        Source { data, dtype: input.dtype, strides }
                    });
                    let sources: SmallVec<[Source<'_>; 4]> = std::iter::once(sum).chain(rest).collect();
                    let end = Target { data: target, dtype: self.out.dtype, strides: &out_by };
                    let range = 0..shape.iter().product();
                    let sources = &sources[..program.inputs()];
                    program.run_nest(Nest { shape: &lengths }, sources, &[end], memory.scalars, range);
                }
                None if target.cast_const() != sums.cast::<u8>() => {
                    copy((sums, strides), (target.cast(), steps), shape)
                }
                None => {}
            }
            let Some(moments) = memory.moments else { return };
            // The pixels of a channel lie side by side and are still in a cache.
            let (length, plane) = (shape[1] * shape[2], steps[0] * self.out.dtype.size() as isize);
            let at = (piece.image * piece.bands.0 + piece.band) * self.groups * self.roles.rows + piece.first_channel;
            with_stored!(self.out.dtype, O => {
                let mut wide = Vec::new();
                for channel in 0..piece.channels {
                    let values = target.offset(channel as isize * plane).cast::<O>();
                    let found = statistics::plane(std::slice::from_raw_parts(values, length), &mut wide);
                    *moments.get().add(at + channel) = found;
                }
            });
        }
    }
}

/// Copies channels, rows and columns from one place to another.
///
/// # Safety
/// All of them may be read and written, their distances apart.
unsafe fn copy<S: Copy>(
    (from, from_by): (*const S, [isize; 3]),
    (to, to_by): (*mut S, [isize; 3]),
    [channels, mut rows, mut cols]: [usize; 3],
) {
    let contiguous = |by: [isize; 3]| by[2] == 1 && by[1] == cols as isize;
    if contiguous(from_by) && contiguous(to_by) {
        (rows, cols) = (1, rows * cols);
    }
    for channel in 0..channels as isize {
        for row in 0..rows as isize {
            // SAFETY: the caller's promise.
            unsafe {
                let from = from.offset(channel * from_by[0] + row * from_by[1]);
                let to = to.offset(channel * to_by[0] + row * to_by[1]);
                if from_by[2] == 1 && to_by[2] == 1 {
                    std::ptr::copy_nonoverlapping(from, to, cols);
                } else {
                    for col in 0..cols as isize {
                        *to.offset(col * to_by[2]) = *from.offset(col * from_by[2]);
                    }
                }
            }
        }
    }
}
