//! The weight gradient: for every filter, channel and tap, a dot product of the gradient's plane with a shifted plane.

use netcl_core::Result;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_for};
use netcl_core::backend::cpu::{CpuArgs, CpuKernel};
use netcl_core::kernels::launch::{self, Access, Arg, Launch, Work};
use netcl_core::tensor::Tensor;
use smallvec::smallvec;

use super::super::geometry::Geometry;
use super::images::{self, Pixel, Place};
use super::lanes::{Sum, TAPS};
use super::plan::{self, Planes, SLACK};
use super::{ENOUGH_TASKS, GRAIN, chunk, scratch, with_pixel};

const OP: &str = "conv2d_backward_weight";
/// Bytes of planes that are filled before they are used: the more images, the fewer partial results.
const CHUNK_BYTES: usize = 16 << 20;
/// Bytes of the gradient's planes that stay in the first-level cache while columns pass by.
const SEGMENT_BYTES: usize = 24 << 10;

/// Everything about a launch but its memory.
struct Problem {
    g: Geometry,
    planes: Planes,
    /// The gradient's planes, with the same pitch.
    under: Planes,
    /// Pixels from the first to the last.
    span: usize,
    taps: Vec<usize>,
    chunk: usize,
    grad: Place,
    x: Place,
}

/// Writes the gradient of the weight to a dense tensor of the type of the sums.
pub(super) fn run(g: &Geometry, grad: &Tensor, x: &Tensor, out: &Tensor) -> Result<()> {
    let (planes, part) = plan::forward(g);
    let under = plan::under(g, &planes);
    let (channels, filters) = (g.groups * g.channels, g.groups * g.filters);
    let per_image = channels * planes.channel() + filters * under.channel();
    let chunk = chunk(g.n, per_image * out.dtype().size(), CHUNK_BYTES);
    let memory =
        [chunk * channels * planes.channel(), chunk * filters * under.channel()].map(|n| scratch(out, n, out.dtype()));
    let [x_memory, grad_memory] = memory;
    let args = smallvec![
        Arg::Buffer(grad.storage().clone(), Access::Read),
        Arg::Buffer(x.storage().clone(), Access::Read),
        Arg::Buffer(out.storage().clone(), Access::Write),
        Arg::Buffer(x_memory?.storage().clone(), Access::Write),
        Arg::Buffer(grad_memory?.storage().clone(), Access::Write),
    ];
    let problem = Problem {
        g: *g,
        span: part.span(planes.pitch(), part.extent[0]),
        taps: part.taps.iter().map(|tap| tap.at).collect(),
        planes,
        under,
        chunk,
        grad: Place::new(grad),
        x: Place::new(x),
    };
    let kernel = CpuKernel::new(move |args| with_pixel!(problem.x.dtype, E => problem.run::<E>(args)));
    let (queue, cost) = (out.queue().clone(), g.cost(&[grad, x, out]));
    launch::submit(Launch { name: OP.into(), queue, work: Work::Cpu(kernel), args, cost })
}

/// Filters, channels and images of one task.
struct Task {
    group: usize,
    first_filter: usize,
    filters: usize,
    first_channel: usize,
    channels: usize,
    images: usize,
}

impl Problem {
    fn run<E: Pixel>(&self, args: &CpuArgs<'_>) -> Result<()> {
        let g = &self.g;
        let size = size_of::<E::Sum>();
        let (channels, filters) = (g.groups * g.channels, g.groups * g.filters);
        let memory = |at: usize, elements: usize| {
            args.checked_memory(at, elements * size).map(|memory| SharedPtr::new(memory.cast::<E::Sum>()))
        };
        let (grad, x) = (self.grad.pointer(args, 0)?, self.x.pointer(args, 1)?);
        let out = memory(2, filters * g.channels * g.taps())?;
        let planes = memory(3, self.chunk * channels * self.planes.channel())?;
        let under = memory(4, self.chunk * filters * self.under.channel())?;
        for start in (0..g.n).step_by(self.chunk) {
            let images = self.chunk.min(g.n - start);
            images::fill::<E>(OP, (&self.x, x), (&self.planes, planes), (start, images, channels))?;
            images::fill::<E>(OP, (&self.grad, grad), (&self.under, under), (start, images, filters))?;
            // SAFETY: so many images were just copied there, and nobody writes them until they are used.
            let filled = unsafe {
                (
                    std::slice::from_raw_parts(planes.get().cast_const(), images * channels * self.planes.channel()),
                    std::slice::from_raw_parts(under.get().cast_const(), images * filters * self.under.channel()),
                )
            };
            self.accumulate::<E>((filled.0, filled.1, out), images, start == 0)?;
        }
        Ok(())
    }

    /// Adds the products of some images to the result, or starts it with them.
    fn accumulate<E: Pixel>(
        &self,
        memory: (&[E::Sum], &[E::Sum], SharedPtr<E::Sum>),
        images: usize,
        starts: bool,
    ) -> Result<()> {
        let g = &self.g;
        let blocks = blocks(g.filters, E::Sum::loops().filters);
        let splits = ENOUGH_TASKS.div_ceil(g.groups * blocks.len()).min(g.channels.div_ceil(4));
        let per_split = g.channels.div_ceil(splits);
        let splits = g.channels.div_ceil(per_split);
        let work = images * self.span * blocks[0].1 * per_split * self.taps.len();
        parallel_for(OP, g.groups * blocks.len() * splits, GRAIN / work.max(1), |range| {
            let mut sums: Vec<E::Sum> = Vec::new();
            for index in range {
                let (split, rest) = (index % splits, index / splits);
                let (first_filter, filters) = blocks[rest % blocks.len()];
                let first_channel = split * per_split;
                let channels = per_split.min(g.channels - first_channel);
                let group = rest / blocks.len();
                let task = Task { group, first_filter, filters, first_channel, channels, images };
                // SAFETY: no other task writes these elements of the result.
                unsafe { self.task::<E>(&task, memory, starts, &mut sums) };
            }
        })
    }

    /// # Safety
    /// The elements of the result for its filters and channels may be
    /// written, and read unless the task `starts` them.
    unsafe fn task<E: Pixel>(
        &self,
        task: &Task,
        (planes, under, out): (&[E::Sum], &[E::Sum], SharedPtr<E::Sum>),
        starts: bool,
        sums: &mut Vec<E::Sum>,
    ) {
        let (g, loops) = (&self.g, E::Sum::loops());
        let (lanes, taps) = (loops.lanes, self.taps.len());
        let dots = loops.dots[task.filters.ilog2() as usize];
        let columns = task.channels * taps;
        let triple = TAPS * task.filters * lanes;
        sums.clear();
        sums.resize(columns.div_ceil(TAPS) * triple, E::Sum::ZERO);
        let vectors = self.span.div_ceil(lanes);
        let most = (SEGMENT_BYTES / (task.filters * lanes * size_of::<E::Sum>())).max(1);
        let segment = vectors.div_ceil(vectors.div_ceil(most));
        for image in 0..task.images {
            let channel = (image * g.groups + task.group) * g.channels + task.first_channel;
            let filter = (image * g.groups + task.group) * g.filters + task.first_filter;
            for first in (0..vectors).step_by(segment) {
                let count = segment.min(vectors - first);
                let grad = &under[filter * self.under.channel() + first * lanes..];
                for (i, sums) in sums.chunks_exact_mut(triple).enumerate() {
                    let mut x: [&[E::Sum]; TAPS] = [&[]; TAPS];
                    for (t, x) in x.iter_mut().enumerate() {
                        // Columns past the last repeat it.
                        let column = (i * TAPS + t).min(columns - 1);
                        let at = (channel + column / taps) * self.planes.channel() + self.taps[column % taps];
                        *x = &planes[at + first * lanes..];
                    }
                    // SAFETY: these are the loops for this processor.
                    unsafe { dots(grad, self.under.channel(), x, count, sums) };
                }
            }
        }
        for f in 0..task.filters {
            let row = ((task.group * g.filters + task.first_filter + f) * g.channels + task.first_channel) * taps;
            for column in 0..columns {
                let at = (column / TAPS) * triple + (f * TAPS + column % TAPS) * lanes;
                let sum = pairwise(&sums[at..at + lanes]);
                // SAFETY: the caller's promise.
                unsafe {
                    let to = out.get().add(row + column);
                    *to = if starts { sum } else { *to + sum };
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

/// The sum of at most 16 lanes, pairwise.
fn pairwise<S: Sum>(values: &[S]) -> S {
    let mut lanes = [S::ZERO; SLACK];
    lanes[..values.len()].copy_from_slice(values);
    let mut width = SLACK;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] = lanes[i] + lanes[i + width];
        }
    }
    lanes[0]
}
