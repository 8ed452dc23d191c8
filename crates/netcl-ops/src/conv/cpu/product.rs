//! The convolution and its data gradient as a product of matrices: filters by (channel, tap) times (channel, tap) by pixels.
//!
//! ```text
//!      weights, where they lie           a panel of windows          sums of a task
//!      +---------------------+           +-----+                     +-----+-----+---
//!    R | row | row           |           |     |                     |     |     |
//!      +---------------------+     x     |     | terms       ->      +-----+-----+---
//!      | TERMS at a time     |           |     |                     |     |     |
//!      +---------------------+           +-----+                     +-----+-----+---
//!                                        P vectors of pixels
//! ```
//!
//! The second matrix never exists: a panel of it, small enough for the first-level cache, is copied from the planes, serves all
//! filters and is forgotten. Its columns run over the ends of rows and images, so that narrow planes fill vectors as well.

use netcl_core::Result;
use netcl_core::backend::cpu::interrupt::checkpoint;
use netcl_core::backend::cpu::num_threads;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_for};
use netcl_core::dtype::Element;
use netcl_core::simd;

use super::images::Pixel;
use super::lanes::{Sum, VECTORS, prefetch};
use super::launch::{Memory, Piece, Problem, Roles};
use super::plan::{Part, Planes, SLACK};
use super::{GRAIN, cut};

/// Terms that are added up in registers, at most: a panel of three of the widest vectors stays in the first-level cache.
const TERMS: usize = 192;
/// Filters and terms from which on a panel is used often enough to be worth packing.
const FILTERS: usize = 16;
const LEAST_TERMS: usize = 64;
/// Pixels of a task to aim for: weights are read once for each.
pub(super) const PIXELS: usize = 256;
/// Rows of the result that are not cut further, since each cut packs panels once more.
const SLICE: usize = 64;
/// Tasks for each thread, so that none waits long for the others.
const TASKS_PER_THREAD: usize = 4;

/// Pixels that are copied at once.
const LONGEST: usize = 16;

/// Whether this is the better way: planes that are multiplied where they lie compute numbers between rows that mean nothing, and
/// vectors that are not full; panels must be packed, which takes the longer the fewer filters use them.
pub(super) fn suits<S: Sum>(planes: &Planes, parts: &[Part], roles: Roles) -> bool {
    let taps = parts.iter().map(|part| part.taps.len()).max().unwrap_or(0);
    let lanes = S::loops().lanes;
    let wasted = parts.iter().map(|part| {
        let span = part.span(planes.pitch(), part.extent[0]);
        span.next_multiple_of(lanes) as f64 / part.extent.iter().product::<usize>() as f64
    });
    // Measured with AVX-512, from 16 to 512 filters.
    let packing = 1.03 + 13.0 / roles.rows as f64;
    roles.rows >= FILTERS && roles.depth * taps >= LEAST_TERMS && wasted.fold(0.0, f64::max) > packing
}

/// Elements of the weights in the type of the sums, where they have another.
pub(super) fn weights(problem: &Problem) -> usize {
    if problem.weight.dtype == problem.weight.dtype.accumulator() {
        return 0;
    }
    let Roles { rows, depth, .. } = problem.roles;
    problem.groups * rows * depth * problem.kernel[0] * problem.kernel[1]
}

/// The shape of the weight.
fn shape(problem: &Problem) -> [usize; 4] {
    let Roles { rows, depth, transposed } = problem.roles;
    let [first, second] = if transposed { [depth, rows] } else { [rows, depth] };
    [problem.groups * first, second, problem.kernel[0], problem.kernel[1]]
}

/// The distances of the weights' elements.
fn strides(problem: &Problem) -> [isize; 4] {
    if weights(problem) == 0 {
        return problem.weight.strides;
    }
    let [_, second, down, right] = shape(problem).map(|length| length as isize);
    [second * down * right, down * right, right, 1]
}

/// The weights in the type of the sums.
pub(super) fn prepare<E: Pixel>(
    problem: &Problem,
    weight: SharedPtr<u8>,
    packed: SharedPtr<E::Sum>,
) -> Result<*const E::Sum> {
    if weights(problem) == 0 {
        return Ok(weight.get().cast_const().cast());
    }
    let [first, second, down, right] = shape(problem);
    let each = second * down * right;
    parallel_for(problem.op, first, (1 << 14) / each, |range| {
        for i in range {
            for at in 0..each {
                let index = [i, at / (down * right), at / right % down, at % right];
                // SAFETY: an element of the weight, and its own place in the copy, whose size was checked.
                unsafe {
                    let value = *weight.get().offset(problem.weight.bytes(index)).cast::<E>();
                    *packed.get().add(i * each + at) = value.wide();
                }
            }
        }
    })?;
    Ok(packed.get().cast_const())
}

/// How the sums of a part are shared out: neither cut changes a sum.
struct Tasks {
    /// Pieces of a group that a task handles, one after the other, and tasks of a group.
    pieces: usize,
    blocks: usize,
    /// Rows of the result of a task, and how often that goes.
    rows: usize,
    slices: usize,
}

impl Tasks {
    fn new(problem: &Problem, pieces: usize, pixels: usize) -> Tasks {
        let per_task = PIXELS.div_ceil(pixels).min(pieces);
        let blocks = pieces.div_ceil(per_task);
        let rows = problem.roles.rows;
        let wanted = (num_threads() * TASKS_PER_THREAD).div_ceil(blocks * problem.groups);
        let slices = wanted.min(rows.div_ceil(SLICE));
        let per_slice = rows.div_ceil(slices).next_multiple_of(8);
        Tasks { pieces: per_task, blocks, rows: per_slice, slices: rows.div_ceil(per_slice) }
    }
}

/// A run of neighbouring pixels inside a panel, at most [`LONGEST`]: where it starts there, in the planes of the first channel, and
/// its length.
struct Run {
    to: usize,
    from: usize,
    length: usize,
}

/// The pixels of a part.
pub(super) fn part<E: Pixel>(
    problem: &Problem,
    part: &Part,
    bands: (usize, usize),
    memory: &Memory<'_, E::Sum>,
) -> Result<()> {
    let Roles { rows, depth, transposed } = problem.roles;
    let planes = &problem.planes;
    let [first_axis, second_axis, down, right] = strides(problem);
    let (by_row, by_channel) = if transposed { (second_axis, first_axis) } else { (first_axis, second_axis) };
    // Where each term finds its weight, and its pixels.
    let mut steps: Vec<isize> = Vec::with_capacity(depth * part.taps.len());
    let mut offsets: Vec<usize> = Vec::with_capacity(steps.capacity());
    for channel in 0..depth {
        for tap in &part.taps {
            let (ky, kx) = ((tap.weight / problem.kernel[1]) as isize, (tap.weight % problem.kernel[1]) as isize);
            steps.push(channel as isize * by_channel + ky * down + kx * right);
            offsets.push(channel * planes.channel() + tap.phase * planes.plane() + tap.at);
        }
    }
    let pieces = memory.images * bands.0;
    let tasks = Tasks::new(problem, pieces, bands.1 * part.extent[1]);
    let work = tasks.pieces * bands.1 * part.extent[1] * tasks.rows * steps.len();
    let count = problem.groups * tasks.blocks * tasks.slices;
    parallel_for(problem.op, count, GRAIN / work.max(1), |range| {
        let mut room = Room::<E::Sum>::default();
        for task in range {
            checkpoint();
            let (slice, rest) = (task % tasks.slices, task / tasks.slices);
            let (block, group) = (rest % tasks.blocks, rest / tasks.blocks);
            let first = slice * tasks.rows;
            let channels = tasks.rows.min(rows - first);
            let first_channel = group * rows + first;
            let pieces: Vec<Piece<'_>> = (block * tasks.pieces..pieces.min((block + 1) * tasks.pieces))
                .map(|i| Piece { part, image: i / bands.0, band: i % bands.0, bands, first_channel, channels })
                .collect();
            let start = if transposed { group * depth } else { group * rows };
            let start = start as isize * first_axis + first as isize * by_row;
            let weights = Weights {
                first: memory.weights.wrapping_offset(start),
                by_row,
                steps: &steps,
                taps: part.taps.len(),
                rows: channels,
            };
            let x = &memory.planes[group * depth * planes.channel()..];
            let pitch = room.runs(problem, &pieces, E::Sum::loops().lanes);
            // SAFETY: every term of these rows has a weight.
            unsafe { room.multiply(&weights, x, &offsets, pitch) };
            let mut before = 0;
            for piece in &pieces {
                let strides = [pitch as isize, part.extent[1] as isize, 1];
                // SAFETY: the result's pixels of these pieces and channels belong to this task alone.
                unsafe { problem.end(memory, piece, (room.sums.as_ptr().add(before), strides)) };
                before += piece.height() * part.extent[1];
            }
        }
    })
}

/// The weights of a task: `steps` from the first of each row.
struct Weights<'w, S> {
    first: *const S,
    by_row: isize,
    steps: &'w [isize],
    taps: usize,
    rows: usize,
}

impl<S> Weights<'_, S> {
    /// Asks for the weights of so many terms and rows, which are at most a few steps apart in one of the two directions.
    fn prefetch(&self, first_term: usize, terms: usize, row: usize, rows: usize) {
        const LINE: usize = 64;
        let line = LINE / size_of::<S>();
        let steps = &self.steps[first_term.min(self.steps.len())..(first_term + terms).min(self.steps.len())];
        let first = self.first.wrapping_offset(row as isize * self.by_row);
        if self.by_row.unsigned_abs() >= line {
            for row in 0..rows as isize {
                for &step in steps.iter().step_by(line) {
                    prefetch(first.wrapping_offset(row * self.by_row + step));
                }
            }
        } else {
            let reach = rows as isize * self.by_row;
            for &step in steps.iter().step_by(self.taps) {
                for at in (0..reach).step_by(line) {
                    prefetch(first.wrapping_offset(step + at));
                }
            }
        }
    }
}

/// Memory of a task.
#[derive(Default)]
struct Room<S> {
    panel: Vec<S>,
    sums: Vec<S>,
    runs: Vec<Run>,
    /// The first vector of each panel, how many it has, and where its runs end.
    panels: Vec<(usize, usize, usize)>,
}

impl<S: Sum> Room<S> {
    /// Finds the runs of all panels, and says how many pixels there are in whole vectors.
    fn runs(&mut self, problem: &Problem, pieces: &[Piece<'_>], lanes: usize) -> usize {
        let planes = &problem.planes;
        let rows = pieces.iter().flat_map(|piece| {
            let image = piece.image * problem.channels() * planes.channel();
            let cols = piece.part.extent[1];
            (0..piece.height()).map(move |y| (image + (piece.first_row() + y) * planes.pitch(), cols))
        });
        let pixels: usize = pieces.iter().map(|piece| piece.height() * piece.part.extent[1]).sum();
        let vectors = pixels.div_ceil(lanes);
        self.runs.clear();
        self.panels.clear();
        let mut panels = cut(vectors, VECTORS).map(|(first, count)| (first, count, (first + count) * lanes));
        let mut panel = panels.next();
        let mut at = 0;
        for (mut from, mut length) in rows {
            while let Some((first, count, end)) = panel.filter(|_| length > 0) {
                let here = length.min(end - at).min(LONGEST);
                self.runs.push(Run { to: at - first * lanes, from, length: here });
                (at, from, length) = (at + here, from + here, length - here);
                if at == end {
                    self.panels.push((first, count, self.runs.len()));
                    panel = panels.next();
                }
            }
        }
        if let Some((first, count, end)) = panel
            && at < end
        {
            self.panels.push((first, count, self.runs.len()));
        }
        vectors * lanes
    }

    /// Adds up all sums, rows of which lie `pitch` apart.
    ///
    /// # Safety
    /// Every step from every row of the weights is one.
    unsafe fn multiply(&mut self, weights: &Weights<'_, S>, x: &[S], offsets: &[usize], pitch: usize) {
        let loops = S::loops();
        let Room { panel, sums, runs, panels } = self;
        sums.resize(weights.rows * pitch, S::ZERO);
        if offsets.is_empty() {
            sums.fill(S::ZERO);
        }
        panel.resize(TERMS * VECTORS * loops.lanes + SLACK, S::ZERO);
        for (first_term, terms) in cut(offsets.len(), TERMS) {
            let steps = &weights.steps[first_term..first_term + terms];
            let offsets = &offsets[first_term..first_term + terms];
            let mut runs_before = 0;
            for (i, &(first, vectors, runs_end)) in panels.iter().enumerate() {
                pack(x, offsets, &runs[runs_before..runs_end], panel, vectors * loops.lanes);
                runs_before = runs_end;
                for (row, count) in cut(weights.rows, loops.filters) {
                    let row_of = |i: usize| weights.first.wrapping_offset((row + i) as isize * weights.by_row);
                    let rows: [*const S; 8] = std::array::from_fn(|i| row_of(i.min(count - 1)));
                    let out = &mut sums[row * pitch + first * loops.lanes..];
                    let tile = loops.tiles[count - 1][vectors - 1];
                    if i == 0 {
                        // The first panel meets weights that no cache may have; the next block's are on their way meanwhile.
                        weights.prefetch(first_term + terms, terms, row, count);
                    }
                    // SAFETY: these are the loops for this processor, and the caller's promise.
                    unsafe { tile(&rows, steps, &panel[..terms * vectors * loops.lanes], out, pitch, first_term > 0) };
                }
            }
        }
    }
}

/// Copies runs of pixels to a panel, a row of it for each offset. The longest runs decide how much is copied at a time; what is
/// copied too much, the next run or row overwrites.
fn pack<S: Sum>(x: &[S], offsets: &[usize], runs: &[Run], panel: &mut [S], width: usize) {
    match runs.iter().map(|run| run.length).max() {
        Some(..=4) => pack_by_4(x, offsets, runs, panel, width),
        Some(..=8) => pack_by_8(x, offsets, runs, panel, width),
        _ => pack_by_16(x, offsets, runs, panel, width),
    }
}

#[inline(always)]
fn pack_by<S: Copy, const N: usize>(x: &[S], offsets: &[usize], runs: &[Run], panel: &mut [S], width: usize) {
    // All comparisons at once.
    let furthest = runs.iter().map(|run| run.from).max().unwrap_or(0) + N;
    let x = &x[..offsets.iter().max().unwrap_or(&0) + furthest];
    let last = runs.iter().map(|run| run.to).max().unwrap_or(0) + N;
    let panel = &mut panel[..offsets.len().saturating_sub(1) * width + last];
    for (i, &offset) in offsets.iter().enumerate() {
        for run in runs {
            // SAFETY: compared above; arrays are aligned as their elements.
            unsafe {
                let from = x.as_ptr().add(offset + run.from).cast::<[S; N]>();
                *panel.as_mut_ptr().add(i * width + run.to).cast::<[S; N]>() = *from;
            }
        }
    }
}

simd! {
    fn pack_by_4<S: Element>(x: &[S], offsets: &[usize], runs: &[Run], panel: &mut [S], width: usize) {
        pack_by::<S, 4>(x, offsets, runs, panel, width);
    }

    fn pack_by_8<S: Element>(x: &[S], offsets: &[usize], runs: &[Run], panel: &mut [S], width: usize) {
        pack_by::<S, 8>(x, offsets, runs, panel, width);
    }

    fn pack_by_16<S: Element>(x: &[S], offsets: &[usize], runs: &[Run], panel: &mut [S], width: usize) {
        pack_by::<S, LONGEST>(x, offsets, runs, panel, width);
    }
}
