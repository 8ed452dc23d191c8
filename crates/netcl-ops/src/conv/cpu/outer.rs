//! The weight gradient as a product of matrices: windows, (channel, tap) by pixels, times gradients, pixels by filters.
//!
//! ```text
//!      planes, where they lie            gradients, turned           sums of a task
//!      +---------------------+           +-----+                     +-----+
//!    R | (channel, tap) ...  |           |     |                     |     |     written to the weight's gradient
//!      +---------------------+     x     |     | pixels      ->      +-----+     the other way round
//!      | TERMS at a time     |           |     |                     |     |
//!      +---------------------+           +-----+                     +-----+
//!                                        P vectors of filters
//! ```
//!
//! Neither width nor stride of the planes matters: a vector is filters, and windows are read one pixel at a time.

use netcl_core::Result;
use netcl_core::backend::cpu::interrupt::checkpoint;
use netcl_core::backend::cpu::num_threads;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_for};
use netcl_core::backend::cpu::{CpuArgs, CpuKernel};
use netcl_core::conv::ConvGeometry;
use netcl_core::kernels::launch::{self, Access, Arg, Launch, Work};
use netcl_core::tensor::Tensor;
use smallvec::smallvec;

use super::images::{self, Pixel, Place, Room};
use super::lanes::{Sum, VECTORS};
use super::plan::{self, Part, Planes};
use super::{GRAIN, chunk, cut, scratch, with_pixel};

const OP: &str = "conv2d_backward_weight";
/// Bytes of planes and turned gradients that are filled before they are used.
const CHUNK_BYTES: usize = 4 << 20;
/// Pixels that are added up in registers, at most: a panel of three of the widest vectors stays in the first-level cache.
const TERMS: usize = 192;
/// Filters from which on vectors of them are full enough, and columns that make the turning of gradients worth it.
const FILTERS: usize = 16;
const COLUMNS: usize = 64;
/// Columns of the result that are not cut further.
const SPLIT: usize = 72;
/// Tasks for each thread, so that none waits long for the others.
const TASKS_PER_THREAD: usize = 4;

/// Whether this is the better way.
pub(super) fn suits(g: &ConvGeometry) -> bool {
    g.filters >= FILTERS && g.channels * g.taps() >= COLUMNS
}

/// Everything about a launch but its memory.
struct Problem {
    g: ConvGeometry,
    planes: Planes,
    part: Part,
    chunk: usize,
    grad: Place,
    x: Place,
}

/// Writes the gradient of the weight to a dense tensor of the type of the sums.
pub(super) fn run(g: &ConvGeometry, grad: &Tensor, x: &Tensor, out: &Tensor) -> Result<()> {
    let (planes, part) = plan::forward(g);
    let filters = with_pixel!(out.dtype(), E => padded::<E>(g.filters));
    let per_image = [g.groups * g.channels * planes.channel(), g.groups * filters * g.pixels()];
    let chunk = chunk(g.n, (per_image[0] + per_image[1]) * out.dtype().size(), CHUNK_BYTES);
    let [x_memory, grad_memory] = per_image.map(|elements| scratch(out, chunk * elements, out.dtype()));
    let args = smallvec![
        Arg::Buffer(grad.storage().clone(), Access::Read),
        Arg::Buffer(x.storage().clone(), Access::Read),
        Arg::Buffer(out.storage().clone(), Access::Write),
        Arg::Buffer(x_memory?.storage().clone(), Access::Write),
        Arg::Buffer(grad_memory?.storage().clone(), Access::Write),
    ];
    let problem = Problem { g: *g, planes, part, chunk, grad: Place::new(grad), x: Place::new(x) };
    let kernel = CpuKernel::new(move |args| with_pixel!(problem.x.dtype, E => problem.run::<E>(args)));
    let (queue, cost) = (out.queue().clone(), g.cost(&[grad, x, out]));
    launch::submit(Launch { name: OP.into(), queue, work: Work::Cpu(kernel), args, cost })
}

/// Filters in whole vectors.
fn padded<E: Pixel>(filters: usize) -> usize {
    filters.next_multiple_of(E::Sum::loops().lanes)
}

/// The memory of a round: planes, turned gradients, and the result.
struct Memory<'m, S> {
    planes: &'m [S],
    turned: &'m [S],
    out: SharedPtr<S>,
    images: usize,
    /// Whether the result is still empty.
    starts: bool,
}

/// Filters, in vectors, and columns of one task.
struct Task {
    group: usize,
    first_vector: usize,
    vectors: usize,
    first_column: usize,
    columns: usize,
}

impl Problem {
    fn run<E: Pixel>(&self, args: &CpuArgs<'_>) -> Result<()> {
        let g = &self.g;
        let memory = |at: usize, elements: usize| {
            let bytes = elements * size_of::<E::Sum>();
            args.checked_memory(at, bytes).map(|memory| SharedPtr::new(memory.cast::<E::Sum>()))
        };
        let (grad, x) = (self.grad.pointer(args, 0)?, self.x.pointer(args, 1)?);
        let out = memory(2, g.groups * g.filters * g.channels * g.taps())?;
        let (channels, channel, used) = (g.groups * g.channels, self.planes.channel(), self.planes.used());
        let turned_image = g.groups * padded::<E>(g.filters) * g.pixels();
        let planes = memory(3, self.chunk * channels * channel)?;
        let turned = memory(4, self.chunk * turned_image)?;
        for start in (0..g.n).step_by(self.chunk) {
            let images = self.chunk.min(g.n - start);
            let room = Room { image: channels * channel, channel, phase: self.planes.plane(), after: channel - used };
            // SAFETY: planes and turned gradients are this launch's own, and their sizes were checked. Nobody writes them once
            // they are filled.
            let (planes, turned) = unsafe {
                images::fill::<E>(OP, (&self.x, x), (&self.planes, room, planes), (start, images, channels))?;
                self.turn::<E>(grad, turned, (start, images))?;
                (
                    std::slice::from_raw_parts(planes.get().cast_const(), images * room.image),
                    std::slice::from_raw_parts(turned.get().cast_const(), images * turned_image),
                )
            };
            self.accumulate::<E>(&Memory { planes, turned, out, images, starts: start == 0 })?;
        }
        Ok(())
    }

    /// Copies gradients so that filters lie side by side: for each group and panel of vectors, pixels of all images.
    ///
    /// # Safety
    /// Nobody else uses the memory from `to` on, as far as the turned gradients of the images go.
    unsafe fn turn<E: Pixel>(
        &self,
        grad: SharedPtr<u8>,
        to: SharedPtr<E::Sum>,
        (start, images): (usize, usize),
    ) -> Result<()> {
        let g = &self.g;
        let (pixels, lanes) = (g.pixels(), E::Sum::loops().lanes);
        let panels: Vec<_> = cut(g.filters.div_ceil(lanes), VECTORS).collect();
        let [_, by_filter, by_row, by_col] = self.grad.strides;
        let [height, width] = g.output;
        parallel_for(OP, images * g.groups * panels.len(), (1 << 14) / (pixels * VECTORS * lanes), |range| {
            for index in range {
                let (image, rest) = (index % images, index / images);
                let (first, vectors) = panels[rest % panels.len()];
                let group = rest / panels.len();
                let (first, columns) = (first * lanes, vectors * lanes);
                let count = columns.min(g.filters - first);
                let at = [start + image, group * g.filters + first, 0, 0];
                let group_start = group * padded::<E>(g.filters) * images * pixels;
                // SAFETY: the panel's own pixels of this image; gradients lie inside their storage.
                unsafe {
                    let from = grad.get().offset(self.grad.bytes(at)).cast::<E>();
                    let to = to.get().add(group_start + first * images * pixels + image * pixels * columns);
                    let to = std::slice::from_raw_parts_mut(to, pixels * columns);
                    for y in 0..height {
                        let from = from.offset(y as isize * by_row);
                        let to = &mut to[y * width * columns..(y + 1) * width * columns];
                        turn_row(from, [by_filter, by_col], to, [count, columns]);
                    }
                }
            }
        })
    }

    /// Adds the products of some images to the result, or starts it with them.
    fn accumulate<E: Pixel>(&self, memory: &Memory<'_, E::Sum>) -> Result<()> {
        let g = &self.g;
        let lanes = E::Sum::loops().lanes;
        let panels: Vec<_> = cut(g.filters.div_ceil(lanes), VECTORS).collect();
        let columns = g.channels * g.taps();
        let wanted = (num_threads() * TASKS_PER_THREAD).div_ceil(g.groups * panels.len());
        let splits: Vec<_> = cut(columns, columns.div_ceil(wanted).max(SPLIT)).collect();
        let work = memory.images * g.pixels() * panels[0].1 * lanes * splits[0].1;
        parallel_for(OP, g.groups * panels.len() * splits.len(), GRAIN / work.max(1), |range| {
            let (mut sums, mut steps) = (Vec::new(), Vec::new());
            for index in range {
                checkpoint();
                let (first_column, columns) = splits[index % splits.len()];
                let rest = index / splits.len();
                let (first_vector, vectors) = panels[rest % panels.len()];
                let group = rest / panels.len();
                let task = Task { group, first_vector, vectors, first_column, columns };
                // SAFETY: no other task writes these elements of the result.
                unsafe { self.task::<E>(&task, memory, &mut sums, &mut steps) };
            }
        })
    }

    /// # Safety
    /// The elements of the result for the task's filters and columns may be written, and read unless they are `starts`.
    unsafe fn task<E: Pixel>(
        &self,
        task: &Task,
        memory: &Memory<'_, E::Sum>,
        sums: &mut Vec<E::Sum>,
        steps: &mut Vec<usize>,
    ) {
        let (g, loops, planes) = (&self.g, E::Sum::loops(), &self.planes);
        let (pixels, taps) = (g.pixels(), g.taps());
        let all = memory.images * pixels;
        let width = task.vectors * loops.lanes;
        let first_filter = task.first_vector * loops.lanes;
        let turned = &memory.turned[(task.group * padded::<E>(g.filters) + first_filter) * all..][..all * width];
        let image = g.groups * g.channels * planes.channel();
        let x = &memory.planes[task.group * g.channels * planes.channel()..];
        sums.resize(task.columns * width, E::Sum::ZERO);
        for (first, terms) in cut(all, TERMS) {
            steps.clear();
            steps.extend((first..first + terms).map(|i| {
                let (y, col) = (i % pixels / g.output[1], i % g.output[1]);
                i / pixels * image + y * planes.pitch() + col
            }));
            let panel = &turned[first * width..(first + terms) * width];
            for (at, count) in cut(task.columns, loops.filters) {
                let rows: [*const E::Sum; 8] = std::array::from_fn(|i| {
                    let column = task.first_column + at + i.min(count - 1);
                    let tap = self.part.taps[column % taps];
                    x[column / taps * planes.channel() + tap.phase * planes.plane() + tap.at..].as_ptr()
                });
                let tile = loops.tiles[count - 1][task.vectors - 1];
                // SAFETY: these are the loops for this processor; every pixel's window lies inside the planes.
                unsafe {
                    tile(&rows, steps, panel, &mut sums[at * width..], width, first > 0, panel.as_ptr_range().end);
                }
            }
        }
        // Few columns at a time, which stay in the first-level cache while the filters pass by.
        for (i, sums) in sums[..task.columns * width].chunks(16 * width).enumerate() {
            for f in 0..width.min(g.filters - first_filter) {
                let row = (task.group * g.filters + first_filter + f) * g.channels * taps + task.first_column + 16 * i;
                for (column, sums) in sums.chunks_exact(width).enumerate() {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let to = memory.out.get().add(row + column);
                        *to = if memory.starts { sums[f] } else { *to + sums[f] };
                    }
                }
            }
        }
    }
}

/// Copies a row of pixels so that filters, `by[0]` apart, lie side by side, and zeros after them.
///
/// # Safety
/// All pixels of all filters may be read, `by[1]` apart.
#[inline(always)]
unsafe fn turn_row<E: Pixel>(from: *const E, by: [isize; 2], to: &mut [E::Sum], [filters, columns]: [usize; 2]) {
    for (x, to) in to.chunks_exact_mut(columns).enumerate() {
        for (f, to) in to[..filters].iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *to = unsafe { *from.offset(f as isize * by[0] + x as isize * by[1]) }.wide();
        }
        to[filters..].fill(E::Sum::ZERO);
    }
}
