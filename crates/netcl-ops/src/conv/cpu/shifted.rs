//! The convolution and its data gradient with planes where they lie: for every tap, filters times a shifted plane. Nothing is
//! packed but weights, which suits few filters and few channels.

use netcl_core::Result;
use netcl_core::backend::cpu::interrupt::checkpoint;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_for};
use smallvec::SmallVec;

use super::images::{self, Pixel};
use super::lanes::{Sum, VECTORS};
use super::launch::{Memory, Piece, Problem, Roles};
use super::plan::Part;
use super::{ENOUGH_TASKS, GRAIN, with_pixel};

/// Channels whose pixels stay in the first-level cache while all filters pass by (with larger bands: 3.3 ms instead of 3.6 for 64
/// channels and filters, 56 x 56, on one core).
const DEPTH: usize = 16;
/// Blocks of filters of a task that make that worth while.
const BLOCKS: usize = 4;
/// Sums that groups of few channels share an epilogue for: what its interpreter sets up costs as much as a small plane.
const RUN: usize = 1 << 14;

/// Elements of the packed weights.
pub(super) fn weights(problem: &Problem) -> usize {
    let rows = padded(problem.roles.rows, with_pixel!(problem.weight.dtype, E => width::<E>()));
    problem.groups * rows * problem.roles.depth * problem.taps()
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

/// Memory of a task.
struct Room<S> {
    segments: Vec<Segment>,
    /// The sums of a block of pixels, for all channels.
    tile: Vec<S>,
}

/// A part of a row of the result inside a block of pixels.
struct Segment {
    /// Where it starts in the block.
    from: usize,
    row: usize,
    col: usize,
    length: usize,
}

/// Copies weights in the order in which blocks read them: for each group, part and block of rows, by channel, tap and row.
pub(super) fn prepare<E: Pixel>(problem: &Problem, weight: SharedPtr<u8>, packed: SharedPtr<E::Sum>) -> Result<()> {
    let Roles { rows, depth, transposed } = problem.roles;
    let (width, all) = (width::<E>(), padded(rows, width::<E>()));
    let taps = problem.taps();
    let blocks = rows.div_ceil(width);
    let grain = (1 << 14) / (width * depth * taps).max(1);
    parallel_for(problem.op, problem.groups * blocks, grain, |range| {
        for index in range {
            let (group, first) = (index / blocks, index % blocks * width);
            let block = (rows - first).min(width).next_power_of_two();
            let mut before = group * all * depth * taps;
            let [first_axis, second_axis, down, right] = problem.weight.strides;
            let (by_row, by_channel, start) = match transposed {
                false => (first_axis, second_axis, group * rows),
                true => (second_axis, first_axis, group * depth),
            };
            let start = start as isize * first_axis + first as isize * by_row;
            let real = block.min(rows - first);
            for part in &problem.parts {
                // SAFETY: the block's own room in the packed weights, whose size was checked; weights lie inside their
                // storage (`Place::pointer` checked the end, layouts the start).
                let to = unsafe {
                    let to = packed.get().add(before + first * depth * part.taps.len());
                    std::slice::from_raw_parts_mut(to, depth * part.taps.len() * block)
                };
                let taps: SmallVec<[isize; 16]> = (part.taps.iter())
                    .map(|tap| {
                        (tap.weight / problem.kernel[1]) as isize * down
                            + (tap.weight % problem.kernel[1]) as isize * right
                    })
                    .collect();
                if real < block {
                    to.fill(E::Sum::ZERO);
                }
                // Row by row: a filter's weights lie side by side, and the block stays in a cache.
                for row in 0..real {
                    let mut to = to.get_mut(row..).unwrap_or_default().iter_mut().step_by(block);
                    for channel in 0..depth {
                        let at = start + row as isize * by_row + channel as isize * by_channel;
                        let from = weight.get().cast::<E>().wrapping_offset(at);
                        for (&tap, to) in taps.iter().zip(&mut to) {
                            // SAFETY: an element of the weight.
                            *to = unsafe { *from.wrapping_offset(tap) }.wide();
                        }
                    }
                }
                before += all * depth * part.taps.len();
            }
        }
    })
}

/// The pixels of a part, in bands of rows.
pub(super) fn part<E: Pixel>(
    problem: &Problem,
    index: usize,
    bands: (usize, usize),
    memory: &Memory<'_, E::Sum>,
) -> Result<()> {
    let Roles { rows, depth, .. } = problem.roles;
    let (loops, planes) = (E::Sum::loops(), &problem.planes);
    let all = padded(rows, loops.filters);
    let taps_before: usize = problem.parts[..index].iter().map(|part| part.taps.len()).sum();
    let part = &problem.parts[index];
    let taps: Vec<usize> = part.taps.iter().map(|tap| tap.phase * planes.plane() + tap.at).collect();
    let pieces = memory.images * problem.groups * bands.0;
    // Slices of channels, so that there is enough to share out.
    let blocks = rows.div_ceil(loops.filters);
    let least = if pieces >= BLOCKS { BLOCKS } else { 1 };
    let per_slice = blocks.div_ceil(ENOUGH_TASKS.div_ceil(pieces * problem.parts.len())).max(least) * loops.filters;
    let slices = rows.div_ceil(per_slice);
    let work = bands.1 * part.extent[1] * per_slice * depth * taps.len();
    let sums_of_group = rows * bands.1 * part.extent[1];
    parallel_for(problem.op, pieces * slices, GRAIN / work.max(1), |range| {
        let mut sums: Vec<E::Sum> = Vec::new();
        let mut room = Room { segments: Vec::new(), tile: Vec::new() };
        let mut task = range.start;
        while task < range.end {
            checkpoint();
            let (slice, rest) = (task % slices, task / slices);
            let (group, rest) = (rest % problem.groups, rest / problem.groups);
            let (band, image) = (rest % bands.0, rest / bands.0);
            // Whole groups that follow each other have one epilogue.
            let groups = match slices {
                1 => (RUN / sums_of_group.max(1)).clamp(1, (range.end - task).min(problem.groups - group)),
                _ => 1,
            };
            task += groups;
            let first = slice * per_slice;
            let channels = first..rows.min(first + per_slice);
            let first_channel = group * rows + first;
            let piece = Piece { part, image, band, bands, first_channel, channels: groups * channels.len() };
            let height = piece.height();
            let (to, strides) = problem.target(memory, &piece).unwrap_or_else(|| {
                sums.resize(piece.channels * height * part.extent[1], E::Sum::ZERO);
                (sums.as_mut_ptr(), [(height * part.extent[1]) as isize, part.extent[1] as isize, 1])
            });
            for (i, group) in (group..group + groups).enumerate() {
                let start = image * problem.room.image + group * depth * problem.room.channel;
                let x = &memory.planes[start + piece.first_row() * planes.pitch()..];
                // SAFETY: the result's pixels of this piece belong to no other, and the weights were packed for these groups, parts
                // and taps.
                unsafe {
                    let weights = memory.weights.add((group * problem.taps() + taps_before) * all * depth);
                    let weights = std::slice::from_raw_parts(weights, all * depth * taps.len());
                    let to = (to.offset((i * channels.len()) as isize * strides[0]), strides);
                    run_band::<E>(problem, part, &taps, (x, weights), channels.clone(), height, to, &mut room);
                }
            }
            // SAFETY: as above.
            unsafe { problem.end(memory, &piece, (to.cast_const(), strides)) };
        }
    })
}

/// The sums of so many rows of pixels, for some channels of the result. `x` starts at the first pixel in the planes of the
/// first channel, `weights` are the packed ones of the group and part.
///
/// # Safety
/// Sums of all channels, rows and columns may be written, their `strides` apart from `to` on.
#[expect(clippy::too_many_arguments, reason = "each is one thing that a band consists of")]
unsafe fn run_band<E: Pixel>(
    problem: &Problem,
    part: &Part,
    taps: &[usize],
    (x, weights): (&[E::Sum], &[E::Sum]),
    channels: std::ops::Range<usize>,
    height: usize,
    (to, strides): (*mut E::Sum, [isize; 3]),
    room: &mut Room<E::Sum>,
) {
    let Room { segments, tile } = room;
    let loops = E::Sum::loops();
    let (lanes, width) = (loops.lanes, loops.filters);
    let pitch = problem.planes.pitch();
    let span = part.span(pitch, height);
    // What keeps segments, and so everything that is written, inside the rows of the part.
    debug_assert!(
        pitch >= part.extent[1],
        "rows of {} pixels run into each other at a pitch of {pitch}",
        part.extent[1]
    );
    // Without taps there is nothing to add.
    let depth = if taps.is_empty() { 0 } else { problem.roles.depth };
    if channels.len() == 1 {
        // One line of sums, from which rows are taken: a depthwise convolution is as much about writing as about adding.
        tile.resize(span.next_multiple_of(lanes), E::Sum::ZERO);
        let weights = &weights[channels.start * depth * taps.len()..];
        for at in (0..span).step_by(VECTORS * lanes) {
            let block = loops.blocks[0][(span - at).div_ceil(lanes).min(VECTORS) - 1];
            // SAFETY: these are the loops for this processor.
            unsafe { block(&x[at..], problem.room.channel, depth, taps, weights, &mut tile[at..], false) };
        }
        for (row, sums) in tile.chunks(pitch).take(height).enumerate() {
            // SAFETY: a row of the result.
            unsafe { store(&sums[..part.extent[1]], to.offset(row as isize * strides[1]), strides[2]) };
        }
        return;
    }
    tile.resize(channels.len().next_multiple_of(width) * VECTORS * lanes, E::Sum::ZERO);
    let mut at = 0;
    while at < span {
        let vectors = (span - at).div_ceil(lanes).min(VECTORS);
        let end = span.min(at + vectors * lanes);
        split(segments, at..end, pitch, part.extent[1]);
        for start in (0..depth.max(1)).step_by(DEPTH) {
            let x = &x[start * problem.room.channel + at..];
            for first in channels.clone().step_by(width) {
                let rows = width.min(channels.end - first).next_power_of_two();
                let block = loops.blocks[rows.ilog2() as usize][vectors - 1];
                let weights = &weights[(first * depth + start * rows) * taps.len()..];
                let sums = &mut tile[(first - channels.start) * vectors * lanes..];
                let depth = DEPTH.min(depth - start);
                // SAFETY: these are the loops for this processor.
                unsafe { block(x, problem.room.channel, depth, taps, weights, sums, start > 0) };
            }
        }
        for (channel, sums) in tile.chunks_exact(vectors * lanes).take(channels.len()).enumerate() {
            for segment in segments.iter() {
                let at = [channel, segment.row, segment.col];
                let offset: isize = at.iter().zip(strides).map(|(&i, by)| i as isize * by).sum();
                // SAFETY: a part of a row of the result.
                unsafe { store(&sums[segment.from..segment.from + segment.length], to.offset(offset), strides[2]) };
            }
        }
        at += vectors * lanes;
    }
}

/// Writes sums a step apart.
///
/// # Safety
/// All of them may be written.
#[inline(always)]
unsafe fn store<S: Copy>(sums: &[S], to: *mut S, step: isize) {
    // SAFETY: the caller's promise.
    unsafe {
        if step == 1 {
            images::copy_row(sums, std::slice::from_raw_parts_mut(to, sums.len()));
        } else {
            for (i, &sum) in sums.iter().enumerate() {
                *to.offset(i as isize * step) = sum;
            }
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
