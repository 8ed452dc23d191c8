//! The weight gradient: for every filter, channel and tap, a dot product of the gradient's planes with shifted planes.
//!
//! ```text
//!     a channel:   | image 0 | image 1 | image 2 | .. | zeros      planes of one channel lie one after the other, so that
//!     a gradient:  | image 0 | image 1 | image 2 | .. | zeros      vectors run over the ends of images, however small those are
//! ```

use netcl_core::Result;
use netcl_core::backend::cpu::interrupt::checkpoint;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_for};
use netcl_core::backend::cpu::{CpuArgs, CpuKernel};
use netcl_core::conv::ConvGeometry;
use netcl_core::kernels::launch::{self, Access, Arg, Launch, Work};
use netcl_core::tensor::Tensor;
use smallvec::smallvec;

use super::images::{self, Pixel, Place, Room};
use super::lanes::{Sum, TAPS};
use super::plan::{self, Planes, SLACK, Tap};
use super::{ENOUGH_TASKS, GRAIN, chunk, scratch, with_pixel};

const OP: &str = "conv2d_backward_weight";
/// Bytes of planes that are filled before they are used: the more images, the fewer partial results.
const CHUNK_BYTES: usize = 16 << 20;
/// Bytes of the gradient's planes that stay in the first-level cache while columns pass by.
const SEGMENT_BYTES: usize = 24 << 10;
/// Bytes of partial sums that a task keeps: they should stay in the second-level cache.
const SUMS_BYTES: usize = 256 << 10;

/// Everything about a launch but its memory.
struct Problem {
    g: ConvGeometry,
    planes: Planes,
    /// The gradient's planes, with the same pitch and size.
    under: Planes,
    /// Zeros after the last image that may be read.
    after: usize,
    /// Pixels of an image from the first to the last.
    span: usize,
    taps: Vec<Tap>,
    chunk: usize,
    grad: Place,
    x: Place,
}

/// Writes the gradient of the weight to a dense tensor of the type of the sums.
pub(super) fn run(g: &ConvGeometry, grad: &Tensor, x: &Tensor, out: &Tensor) -> Result<()> {
    let (planes, under, part, after) = plan::one_after_the_other(g);
    let lines = [g.groups * g.channels * planes.phases(), g.groups * g.filters];
    let chunk = chunk(g.n, (lines[0] + lines[1]) * planes.plane() * out.dtype().size(), CHUNK_BYTES);
    let [x_memory, grad_memory] = lines.map(|lines| scratch(out, lines * line(&planes, chunk, after), out.dtype()));
    let args = smallvec![
        Arg::Buffer(grad.storage().clone(), Access::Read),
        Arg::Buffer(x.storage().clone(), Access::Read),
        Arg::Buffer(out.storage().clone(), Access::Write),
        Arg::Buffer(x_memory?.storage().clone(), Access::Write),
        Arg::Buffer(grad_memory?.storage().clone(), Access::Write),
    ];
    let span = part.span(planes.pitch(), part.extent[0]);
    let (grad_place, x_place) = (Place::new(grad), Place::new(x));
    let problem = Problem { g: *g, planes, under, after, span, taps: part.taps, chunk, grad: grad_place, x: x_place };
    let kernel = CpuKernel::new(move |args| with_pixel!(problem.x.dtype, E => problem.run::<E>(args)));
    let (queue, cost) = (out.queue().clone(), g.cost(&[grad, x, out]));
    launch::submit(Launch { name: OP.into(), queue, work: Work::Cpu(kernel), args, cost })
}

/// Elements of a line: one plane of every image, and zeros that may be read.
fn line(planes: &Planes, images: usize, after: usize) -> usize {
    (images * planes.plane() + after).next_multiple_of(SLACK)
}

/// The memory of a round: lines of channels and gradients, and the result.
struct Memory<'m, S> {
    planes: &'m [S],
    under: &'m [S],
    out: SharedPtr<S>,
    images: usize,
    /// Whether the result is still empty.
    starts: bool,
}

/// Filters and channels of one task.
struct Task {
    group: usize,
    first_filter: usize,
    filters: usize,
    first_channel: usize,
    channels: usize,
}

impl Problem {
    fn run<E: Pixel>(&self, args: &CpuArgs<'_>) -> Result<()> {
        let g = &self.g;
        let (channels, filters) = (g.groups * g.channels, g.groups * g.filters);
        let memory = |at: usize, elements: usize| {
            let bytes = elements * size_of::<E::Sum>();
            args.checked_memory(at, bytes).map(|memory| SharedPtr::new(memory.cast::<E::Sum>()))
        };
        let (grad, x) = (self.grad.pointer(args, 0)?, self.x.pointer(args, 1)?);
        let out = memory(2, filters * g.channels * g.taps())?;
        let (phases, plane) = (self.planes.phases(), self.planes.plane());
        let lines = [channels * phases, filters];
        let longest = line(&self.planes, self.chunk, self.after);
        let (planes, under) = (memory(3, lines[0] * longest)?, memory(4, lines[1] * longest)?);
        for start in (0..g.n).step_by(self.chunk) {
            let images = self.chunk.min(g.n - start);
            let (line, used) = (line(&self.planes, images, self.after), images * plane);
            let room = Room { image: plane, channel: phases * line, phase: line, after: 0 };
            let grad_room = Room { channel: line, ..room };
            // SAFETY: both kinds of lines are this launch's own; their sizes were checked, and those of fewer images are smaller.
            // Nobody writes them once they are filled.
            let (planes, under) = unsafe {
                images::fill::<E>(OP, (&self.x, x), (&self.planes, room, planes), (start, images, channels))?;
                images::zero(planes.get().add(used), lines[0], line, line - used);
                images::fill::<E>(OP, (&self.grad, grad), (&self.under, grad_room, under), (start, images, filters))?;
                images::zero(under.get().add(used), lines[1], line, line - used);
                (
                    std::slice::from_raw_parts(planes.get().cast_const(), lines[0] * line),
                    std::slice::from_raw_parts(under.get().cast_const(), lines[1] * line),
                )
            };
            self.accumulate::<E>(&Memory { planes, under, out, images, starts: start == 0 })?;
        }
        Ok(())
    }

    /// Adds the products of some images to the result, or starts it with them.
    fn accumulate<E: Pixel>(&self, memory: &Memory<'_, E::Sum>) -> Result<()> {
        let g = &self.g;
        let blocks = blocks(g.filters, E::Sum::loops().filters);
        let splits = ENOUGH_TASKS.div_ceil(g.groups * blocks.len()).min(g.channels.div_ceil(4));
        let channel_bytes = self.taps.len() * blocks[0].1 * E::Sum::loops().lanes * size_of::<E::Sum>();
        let per_split = g.channels.div_ceil(splits).min((SUMS_BYTES / channel_bytes).max(1));
        let splits = g.channels.div_ceil(per_split);
        let work = memory.images * self.span * blocks[0].1 * per_split * self.taps.len();
        parallel_for(OP, g.groups * blocks.len() * splits, GRAIN / work.max(1), |range| {
            let mut sums: Vec<E::Sum> = Vec::new();
            for index in range {
                checkpoint();
                let (split, rest) = (index % splits, index / splits);
                let (first_filter, filters) = blocks[rest % blocks.len()];
                let first_channel = split * per_split;
                let channels = per_split.min(g.channels - first_channel);
                let task = Task { group: rest / blocks.len(), first_filter, filters, first_channel, channels };
                // SAFETY: no other task writes these elements of the result.
                unsafe { self.task::<E>(&task, memory, &mut sums) };
            }
        })
    }

    /// # Safety
    /// The elements of the result for the task's filters and channels may be written, and read unless they are `starts`.
    unsafe fn task<E: Pixel>(&self, task: &Task, memory: &Memory<'_, E::Sum>, sums: &mut Vec<E::Sum>) {
        let (g, loops) = (&self.g, E::Sum::loops());
        let (lanes, taps) = (loops.lanes, self.taps.len());
        let (plane, line) = (self.planes.plane(), line(&self.planes, memory.images, self.after));
        let dots = loops.dots[task.filters.ilog2() as usize];
        let columns = task.channels * taps;
        let triple = TAPS * task.filters * lanes;
        sums.clear();
        sums.resize(columns.div_ceil(TAPS) * triple, E::Sum::ZERO);
        let channel = task.group * g.channels + task.first_channel;
        let filter = task.group * g.filters + task.first_filter;
        // Behind the last pixel the gradients are zero; a vector that starts before it ends inside the line.
        let vectors = ((memory.images - 1) * plane + self.span).div_ceil(lanes);
        let most = (SEGMENT_BYTES / (task.filters * lanes * size_of::<E::Sum>())).max(1);
        let segment = vectors.div_ceil(vectors.div_ceil(most));
        for first in (0..vectors).step_by(segment) {
            let count = segment.min(vectors - first);
            let grad = &memory.under[filter * line + first * lanes..];
            for (i, sums) in sums.chunks_exact_mut(triple).enumerate() {
                let mut x: [&[E::Sum]; TAPS] = [&[]; TAPS];
                for (t, x) in x.iter_mut().enumerate() {
                    // Columns past the last repeat it.
                    let column = (i * TAPS + t).min(columns - 1);
                    let tap = self.taps[column % taps];
                    let start = ((channel + column / taps) * self.planes.phases() + tap.phase) * line;
                    *x = &memory.planes[start + tap.at + first * lanes..];
                }
                // SAFETY: these are the loops for this processor.
                unsafe { dots(grad, line, x, count, sums) };
            }
        }
        for f in 0..task.filters {
            let row = ((filter + f) * g.channels + task.first_channel) * taps;
            for column in 0..columns {
                let at = (column / TAPS) * triple + (f * TAPS + column % TAPS) * lanes;
                let sum = pairwise(&sums[at..at + lanes]);
                // SAFETY: the caller's promise.
                unsafe {
                    let to = memory.out.get().add(row + column);
                    *to = if memory.starts { sum } else { *to + sum };
                }
            }
        }
    }
}

/// Filters in blocks of powers of two, without a rest: (first, count).
fn blocks(filters: usize, widest: usize) -> Vec<(usize, usize)> {
    let mut blocks = Vec::new();
    let mut first = 0;
    while first < filters {
        let count = widest.min(1 << (filters - first).ilog2());
        blocks.push((first, count));
        first += count;
    }
    blocks
}

/// The sum of the lanes of a vector, pairwise.
fn pairwise<S: Sum>(values: &[S]) -> S {
    fn fold<S: Sum, const N: usize>(mut lanes: [S; N]) -> S {
        let mut width = N;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                lanes[i] = lanes[i] + lanes[i + width];
            }
        }
        lanes[0]
    }
    // Arrays, so that the loops unroll.
    if let Ok(lanes) = <[S; 16]>::try_from(values) {
        fold(lanes)
    } else if let Ok(lanes) = <[S; 8]>::try_from(values) {
        fold(lanes)
    } else {
        values.iter().fold(S::ZERO, |sum, &value| sum + value)
    }
}
