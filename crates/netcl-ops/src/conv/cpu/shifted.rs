//! The convolution and its data gradient: for every tap, filters times a shifted plane.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use netcl_core::Result;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_for};
use netcl_core::backend::cpu::{CpuArgs, CpuKernel};
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::cpu::{Nest, Program, Source, Target};
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::kernels::launch::{self, Access, Arg, Launch, Scalar, Work};
use netcl_core::tensor::Tensor;
use smallvec::{SmallVec, smallvec};

use super::super::finish::Finish;
use super::super::geometry::Geometry;
use super::images::{self, Pixel, Place, Room};
use super::lanes::{Sum, VECTORS};
use super::plan::{Part, Planes};
use super::{ENOUGH_TASKS, GRAIN, chunk, scratch, with_pixel};
use crate::norm::cpu::statistics;
use crate::norm::dense::with_stored;

/// Bytes of planes that are filled before they are used: they should still be in a cache by then.
const CHUNK_BYTES: usize = 4 << 20;

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
struct Problem {
    op: &'static str,
    n: usize,
    groups: usize,
    roles: Roles,
    kernel_width: usize,
    planes: Planes,
    parts: Vec<Part>,
    /// Images copied at a time.
    chunk: usize,
    source: Place,
    weight: Place,
    out: Place,
    inputs: Vec<Place>,
    scalars: usize,
    /// What becomes of the sums; `None` where they are written straight into the result.
    program: Option<Arc<Program>>,
    /// The argument that the statistics of the result's channels go to, if anybody wants them.
    statistics: Option<(usize, Place)>,
}

/// The number of values that were seen, their mean, and the sum of squared deviations from it.
type Moments = (usize, [f64; 2]);

pub(super) fn run(
    op: &'static str,
    g: &Geometry,
    roles: Roles,
    (planes, parts): (Planes, Vec<Part>),
    [source, weight, out]: [&Tensor; 3],
    finish: &Finish,
    statistics: Option<&Tensor>,
) -> Result<()> {
    let depth = g.groups * roles.depth;
    let chunk = chunk(g.n, depth * planes.channel() * finish.sum.size(), CHUNK_BYTES);
    let plane_memory = scratch(out, chunk * depth * planes.channel(), finish.sum)?;
    let taps: usize = parts.iter().map(|part| part.taps.len()).sum();
    let rows = padded(roles.rows, with_pixel!(finish.sum, E => width::<E>()));
    let packed = scratch(out, g.groups * rows * roles.depth * taps, finish.sum)?;
    let program = match &finish.expr {
        Some(expr) => Some(program(expr, finish.compute)?),
        None if finish.dtype == finish.sum => None,
        None => Some(program(&COPY, finish.compute)?),
    };
    let mut args: SmallVec<[Arg; 8]> = smallvec![
        Arg::Buffer(source.storage().clone(), Access::Read),
        Arg::Buffer(weight.storage().clone(), Access::Read),
        Arg::Buffer(out.storage().clone(), Access::Write),
        Arg::Buffer(plane_memory.storage().clone(), Access::Write),
        Arg::Buffer(packed.storage().clone(), Access::Write),
    ];
    args.extend(finish.inputs.iter().map(|input| Arg::Buffer(input.storage().clone(), Access::Read)));
    args.extend(finish.scalars.iter().map(|number| scalar_arg(number, finish.compute)));
    let statistics = statistics.map(|tensor| {
        args.push(Arg::Buffer(tensor.storage().clone(), Access::Write));
        (args.len() - 1, Place::new(tensor))
    });
    let problem = Problem {
        op,
        n: g.n,
        groups: g.groups,
        roles,
        kernel_width: g.kernel[1],
        planes,
        parts,
        chunk,
        source: Place::new(source),
        weight: Place::new(weight),
        out: Place::new(out),
        inputs: finish.inputs.iter().map(Place::new).collect(),
        scalars: finish.scalars.len(),
        program,
        statistics,
    };
    let kernel = CpuKernel::new(move |args| with_pixel!(problem.source.dtype, E => problem.run::<E>(args)));
    let (queue, cost) = (out.queue().clone(), g.cost(&[source, weight, out]));
    launch::submit(Launch { name: op.into(), queue, work: Work::Cpu(kernel), args, cost })
}

/// The end of a convolution that has none, for results of another type than the sums.
static COPY: LazyLock<Expr> = LazyLock::new(|| {
    let g = Graph::new();
    g.finish(&[g.input(0)])
});

fn scalar_arg(number: &Number, compute: DType) -> Arg {
    Arg::Scalar(match (number, compute) {
        (Number::Value(value), DType::F64) => Scalar::F64(*value),
        (Number::Value(value), _) => Scalar::F32(*value as f32),
        (Number::Slot(slot), DType::F64) => Scalar::SlotF64(slot.clone()),
        (Number::Slot(slot), _) => Scalar::SlotF32(slot.clone()),
    })
}

/// The compiled expression; made once per process.
fn program(expr: &Expr, compute: DType) -> Result<Arc<Program>> {
    type Cache = HashMap<(Expr, DType), Arc<Program>>;
    static CACHE: LazyLock<RwLock<Cache>> = LazyLock::new(RwLock::default);
    let key = (expr.clone(), compute);
    if let Some(found) = CACHE.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(found.clone());
    }
    let made = Arc::new(Program::compile(expr, compute)?);
    Ok(CACHE.write().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(made).clone())
}

/// The widest block of rows.
fn width<E: Pixel>() -> usize {
    E::Sum::loops().filters
}

/// The rows that blocks have room for: all but the last are full, and that one is the next power of two.
fn padded(rows: usize, width: usize) -> usize {
    let rest = rows % width;
    rows - rest + if rest > 0 { rest.next_power_of_two() } else { 0 }
}

/// A part of a row of the result inside a block of pixels.
struct Segment {
    /// Where it starts in the block.
    from: usize,
    row: usize,
    col: usize,
    length: usize,
}

/// How the pixels of a part are shared out.
struct Tiles {
    bands: usize,
    rows_per_band: usize,
    slices: usize,
    rows_per_slice: usize,
}

impl Problem {
    fn channels(&self) -> usize {
        self.groups * self.roles.depth
    }

    fn run<E: Pixel>(&self, args: &CpuArgs<'_>) -> Result<()> {
        let size = size_of::<E::Sum>();
        let taps: usize = self.parts.iter().map(|part| part.taps.len()).sum();
        let (source, out) = (self.source.pointer(args, 0)?, self.out.pointer(args, 2)?);
        let planes_end = self.chunk * self.channels() * self.planes.channel() * size;
        let planes = SharedPtr::new(args.checked_memory(3, planes_end)?.cast::<E::Sum>());
        let packed_end = self.groups * padded(self.roles.rows, width::<E>()) * self.roles.depth * taps * size;
        let packed = SharedPtr::new(args.checked_memory(4, packed_end)?.cast::<E::Sum>());
        let inputs: SmallVec<[SharedPtr<u8>; 2]> =
            self.inputs.iter().enumerate().map(|(i, place)| place.pointer(args, 5 + i)).collect::<Result<_>>()?;
        let first = 5 + self.inputs.len();
        let scalars: SmallVec<[f64; 4]> = (0..self.scalars).map(|i| args.float(first + i)).collect::<Result<_>>()?;
        self.pack::<E>(self.weight.pointer(args, 1)?, packed)?;
        let mut found: Vec<Moments> = match &self.statistics {
            Some(_) => vec![(0, [0.0; 2]); self.groups * self.roles.rows],
            None => Vec::new(),
        };
        for start in (0..self.n).step_by(self.chunk) {
            let images = self.chunk.min(self.n - start);
            let (channel, used) = (self.planes.channel(), self.planes.used());
            let room = Room { image: self.channels() * channel, channel, phase: self.planes.plane() };
            // SAFETY: the planes are this launch's own, and their size was checked.
            unsafe {
                let counts = (start, images, self.channels());
                images::fill::<E>(self.op, (&self.source, source), (&self.planes, room, planes), counts)?;
                images::zero(planes.get().add(used), images * self.channels(), channel, channel - used);
            }
            for part in 0..self.parts.len() {
                self.part::<E>(part, (start, images), (planes, packed, out), &inputs, &scalars, &mut found)?;
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

    /// Copies weights in the order in which blocks read them: for each group, part and block of rows, by channel, tap and row.
    fn pack<E: Pixel>(&self, weight: SharedPtr<u8>, packed: SharedPtr<E::Sum>) -> Result<()> {
        let Roles { rows, depth, transposed } = self.roles;
        let (width, all) = (width::<E>(), padded(rows, width::<E>()));
        let taps: usize = self.parts.iter().map(|part| part.taps.len()).sum();
        let blocks = rows.div_ceil(width);
        let grain = (1 << 14) / (width * depth * taps).max(1);
        parallel_for(self.op, self.groups * blocks, grain, |range| {
            for index in range {
                let (group, first) = (index / blocks, index % blocks * width);
                let block = (rows - first).min(width).next_power_of_two();
                let mut before = group * all * depth * taps;
                let [first_axis, second_axis, down, right] = self.weight.strides;
                let (by_row, by_channel, start) = match transposed {
                    false => (first_axis, second_axis, group * rows),
                    true => (second_axis, first_axis, group * depth),
                };
                let start = start as isize * first_axis + first as isize * by_row;
                let real = block.min(rows - first);
                for part in &self.parts {
                    // SAFETY: the block's own room in the packed weights, whose size was checked; weights lie inside their
                    // storage (`Place::pointer` checked the end, layouts the start).
                    let to = unsafe {
                        let to = packed.get().add(before + first * depth * part.taps.len());
                        std::slice::from_raw_parts_mut(to, depth * part.taps.len() * block)
                    };
                    let terms = (0..depth).flat_map(|channel| part.taps.iter().map(move |tap| (channel, tap.weight)));
                    for (to, (channel, tap)) in to.chunks_exact_mut(block).zip(terms) {
                        let (ky, kx) = ((tap / self.kernel_width) as isize, (tap % self.kernel_width) as isize);
                        let at = start + channel as isize * by_channel + ky * down + kx * right;
                        let from = weight.get().cast::<E>().wrapping_offset(at);
                        for (row, to) in to[..real].iter_mut().enumerate() {
                            // SAFETY: an element of the weight.
                            *to = unsafe { *from.wrapping_offset(row as isize * by_row) }.wide();
                        }
                        to[real..].fill(E::Sum::ZERO);
                    }
                    before += all * depth * part.taps.len();
                }
            }
        })
    }

    /// Bands of rows and slices of channels, so that there is enough to share out.
    fn tiles(&self, part: &Part, images: usize, block: usize, width: usize) -> Tiles {
        let tasks = images * self.groups * self.parts.len();
        let wanted = ENOUGH_TASKS.div_ceil(tasks.max(1));
        let pixels = part.extent[0] * part.extent[1];
        let bands = wanted.min(pixels.div_ceil(4 * block)).clamp(1, part.extent[0]);
        let rows_per_band = part.extent[0].div_ceil(bands);
        let blocks = self.roles.rows.div_ceil(width);
        let slices = wanted.div_ceil(bands).clamp(1, blocks);
        let rows_per_slice = blocks.div_ceil(slices) * width;
        Tiles {
            bands: part.extent[0].div_ceil(rows_per_band),
            rows_per_band,
            slices: self.roles.rows.div_ceil(rows_per_slice),
            rows_per_slice,
        }
    }

    /// The pixels of a part of some images; `found` grows by their statistics if those are wanted.
    fn part<E: Pixel>(
        &self,
        part: usize,
        (start, images): (usize, usize),
        (planes, packed, out): (SharedPtr<E::Sum>, SharedPtr<E::Sum>, SharedPtr<u8>),
        inputs: &[SharedPtr<u8>],
        scalars: &[f64],
        found: &mut [Moments],
    ) -> Result<()> {
        let Roles { rows, depth, .. } = self.roles;
        let loops = E::Sum::loops();
        let all = padded(rows, loops.filters);
        let taps_before: usize = self.parts[..part].iter().map(|part| part.taps.len()).sum();
        let taps_of_all: usize = self.parts.iter().map(|part| part.taps.len()).sum();
        let part = &self.parts[part];
        let taps: Vec<usize> = part.taps.iter().map(|tap| tap.phase * self.planes.plane() + tap.at).collect();
        let tiles = self.tiles(part, images, VECTORS * loops.lanes, loops.filters);
        let tasks = images * self.groups * tiles.bands * tiles.slices;
        let work = tiles.rows_per_band * part.extent[1] * tiles.rows_per_slice * depth * taps.len();
        let mut moments = vec![[0.0; 2]; if found.is_empty() { 0 } else { tasks * tiles.rows_per_slice }];
        let moments_of_tasks = SharedPtr::new(moments.as_mut_ptr());
        let wanted = !found.is_empty();
        parallel_for(self.op, tasks, GRAIN / work.max(1), |range| {
            let mut sums: Vec<E::Sum> = Vec::new();
            let mut segments: Vec<Segment> = Vec::new();
            for task in range {
                let (slice, rest) = (task % tiles.slices, task / tiles.slices);
                let (band, rest) = (rest % tiles.bands, rest / tiles.bands);
                let (group, image) = (rest % self.groups, rest / self.groups);
                let first_row = band * tiles.rows_per_band;
                let height = tiles.rows_per_band.min(part.extent[0] - first_row);
                let first = slice * tiles.rows_per_slice;
                let channels = first..rows.min(first + tiles.rows_per_slice);
                let place = |place: &Place| {
                    let y = part.first[0] + first_row * part.step[0];
                    place.bytes([start + image, group * rows + first, y, part.first[1]])
                };
                // SAFETY: the result's pixels of this task belong to no other; places lie inside their storages, and the
                // planes and weights were filled for these images, groups and taps.
                unsafe {
                    let target = out.get().offset(place(&self.out));
                    let [_, out_channel, out_row, out_col] = self.out.strides;
                    let steps = [out_channel, out_row * part.step[0] as isize, out_col * part.step[1] as isize];
                    let (to, strides) = if self.program.is_none() {
                        (target.cast::<E::Sum>(), steps)
                    } else {
                        sums.resize(channels.len() * height * part.extent[1], E::Sum::ZERO);
                        (sums.as_mut_ptr(), [(height * part.extent[1]) as isize, part.extent[1] as isize, 1])
                    };
                    let group_planes = (image * self.groups + group) * depth * self.planes.channel();
                    let x = planes.get().add(group_planes + first_row * self.planes.pitch());
                    let x =
                        std::slice::from_raw_parts(x, depth * self.planes.channel() - first_row * self.planes.pitch());
                    let weights = packed.get().add((group * taps_of_all + taps_before) * all * depth);
                    let weights = std::slice::from_raw_parts(weights, all * depth * taps.len());
                    self.band::<E>(part, &taps, (x, weights), channels.clone(), height, (to, strides), &mut segments);
                    if let Some(program) = &self.program {
                        let shape = [channels.len(), height, part.extent[1]];
                        let sum = Source { data: to.cast::<u8>(), dtype: self.sum::<E>(), strides: &strides };
                        let steps_of: SmallVec<[[isize; 3]; 2]> = self
                            .inputs
                            .iter()
                            .map(|i| {
                                let [_, channel, row, col] = i.strides;
                                [channel, row * part.step[0] as isize, col * part.step[1] as isize]
                            })
                            .collect();
                        let rest = self.inputs.iter().zip(inputs).zip(&steps_of).map(|((input, data), strides)| {
                            Source { data: data.get().offset(place(input)), dtype: input.dtype, strides }
                        });
                        let sources: SmallVec<[Source<'_>; 4]> = std::iter::once(sum).chain(rest).collect();
                        let end = Target { data: target, dtype: self.out.dtype, strides: &steps };
                        let range = 0..shape.iter().product();
                        program.run_nest(Nest { shape: &shape }, &sources[..program.inputs()], &[end], scalars, range);
                    }
                    if wanted {
                        // The task's pixels of a channel lie side by side and are still in a cache.
                        let (length, plane) = (height * part.extent[1], out_channel * self.out.dtype.size() as isize);
                        for channel in 0..channels.len() {
                            let values = target.offset(channel as isize * plane);
                            *moments_of_tasks.get().add(task * tiles.rows_per_slice + channel) = with_stored!(self.out.dtype, O => {
                                let values = std::slice::from_raw_parts(values.cast::<O>(), length);
                                statistics::plane(values, &mut Vec::new())
                            });
                        }
                    }
                }
            }
        })?;
        // Channel by channel in the order of images and rows, whoever computed them.
        for (task, moments) in moments.chunks_exact(tiles.rows_per_slice).enumerate() {
            let (first, rest) = (task % tiles.slices * tiles.rows_per_slice, task / tiles.slices);
            let (band, group) = (rest % tiles.bands, rest / tiles.bands % self.groups);
            let height = tiles.rows_per_band.min(part.extent[0] - band * tiles.rows_per_band);
            let channels = group * rows + first..group * rows + rows.min(first + tiles.rows_per_slice);
            for (so_far, &more) in found[channels].iter_mut().zip(moments) {
                let length = height * part.extent[1];
                *so_far = (so_far.0 + length, statistics::merge([*so_far, (length, more)]));
            }
        }
        Ok(())
    }

    fn sum<E: Pixel>(&self) -> DType {
        <E::Sum as netcl_core::dtype::Element>::DTYPE
    }

    /// The sums of so many rows of pixels, for some channels of the result. `x` starts at the first pixel in the planes of the
    /// first channel, `weights` are the packed ones of the group and part.
    ///
    /// # Safety
    /// Sums of all channels, rows and columns may be written, their `strides` apart from `to` on.
    #[expect(clippy::too_many_arguments, reason = "each is one thing that a band consists of")]
    unsafe fn band<E: Pixel>(
        &self,
        part: &Part,
        taps: &[usize],
        (x, weights): (&[E::Sum], &[E::Sum]),
        channels: std::ops::Range<usize>,
        height: usize,
        (to, strides): (*mut E::Sum, [isize; 3]),
        segments: &mut Vec<Segment>,
    ) {
        let loops = E::Sum::loops();
        let (lanes, width) = (loops.lanes, loops.filters);
        let pitch = self.planes.pitch();
        let span = part.span(pitch, height);
        // What keeps segments, and so everything that is written, inside the rows of the part.
        debug_assert!(
            pitch >= part.extent[1],
            "rows of {} pixels run into each other at a pitch of {pitch}",
            part.extent[1]
        );
        // Without taps there is nothing to add.
        let depth = if taps.is_empty() { 0 } else { self.roles.depth };
        let mut tile = [E::Sum::ZERO; 8 * VECTORS * 16];
        let mut at = 0;
        while at < span {
            let vectors = (span - at).div_ceil(lanes).min(VECTORS);
            let end = span.min(at + vectors * lanes);
            split(segments, at..end, pitch, part.extent[1]);
            for first in channels.clone().step_by(width) {
                let count = width.min(channels.end - first);
                let block = loops.blocks[count.next_power_of_two().ilog2() as usize][vectors - 1];
                let weights = &weights[first * depth * taps.len()..];
                // SAFETY: these are the loops for this processor.
                unsafe { block(&x[at..], self.planes.channel(), depth, taps, weights, &mut tile) };
                for (f, row) in tile.chunks_exact(vectors * lanes).take(count).enumerate() {
                    for segment in segments.iter() {
                        let channel = (first - channels.start + f) as isize;
                        let offset = channel * strides[0]
                            + segment.row as isize * strides[1]
                            + segment.col as isize * strides[2];
                        let values = &row[segment.from..segment.from + segment.length];
                        // SAFETY: a part of a row of the result.
                        unsafe {
                            let to = to.offset(offset);
                            if strides[2] == 1 {
                                std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
                            } else {
                                for (i, &value) in values.iter().enumerate() {
                                    *to.offset(i as isize * strides[2]) = value;
                                }
                            }
                        }
                    }
                }
            }
            at += vectors * lanes;
        }
    }
}

/// The parts of rows that lie in a range of pixels.
fn split(segments: &mut Vec<Segment>, range: std::ops::Range<usize>, pitch: usize, cols: usize) {
    segments.clear();
    let mut at = range.start;
    while at < range.end {
        let (row, col) = (at / pitch, at % pitch);
        let next = (row + 1) * pitch;
        if col < cols {
            let end = range.end.min(row * pitch + cols);
            segments.push(Segment { from: at - range.start, row, col, length: end - at });
        }
        at = next;
    }
}
