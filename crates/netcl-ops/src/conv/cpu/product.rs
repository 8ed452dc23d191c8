//! The convolution and its data gradient as a product of matrices: pixels by (channel, tap) times (channel, tap) by filters.
//!
//! ```text
//!      planes, where they lie            a panel of weights          sums of a task
//!      +-----+-----+---                  +-----+                     +-----+-----+---
//!    R | one value for                   |     |                     |     |     |     rows are pixels, columns filters:
//!      | each pixel and term     x       |     | TERMS       ->      +-----+-----+---  turned when they are complete
//!      +-----+-----+---                  |     |                     |     |     |
//!                                        +-----+                     +-----+-----+---
//!                                        P vectors of filters
//! ```
//!
//! Vectors are filters, so that planes of any size keep all lanes busy: 49 pixels are seven tiles of seven, where vectors of pixels
//! would be a quarter empty. Neither matrix of windows exists: a tile reads its pixels' values where the planes have them. Weights are packed in
//! the order in which they are read, each panel while the one before it is multiplied, so that they come from memory at its speed.
//! 512 channels and filters of 3x3 at 7x7 pixels: 95 GFLOP/s of the core's 115, without the prefetch 69.

use netcl_core::Result;
use netcl_core::backend::cpu::interrupt::checkpoint;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_for};
use netcl_core::backend::cpu::{copy, num_threads};
use netcl_core::dtype::Element;

use super::images::Pixel;
use super::lanes::{LINE, Sum, VECTORS};
use super::launch::{Memory, Piece, Problem, Roles};
use super::plan::{Part, Planes};
use super::{GRAIN, cut};

/// Terms that are added up in registers, at most: a panel and the pixels that it meets stay in the first-level cache.
const TERMS: usize = 96;
/// Pixels of a task to aim for: weights are read once for each.
pub(super) const PIXELS: usize = 256;
/// Rows of the result that are not cut further.
const SLICE: usize = 64;
/// Tasks for each thread, so that none waits long for the others.
const TASKS_PER_THREAD: usize = 4;

/// Whether this is the better way: it wastes lanes that have no filter, and turns its sums; planes that are multiplied where they lie
/// waste numbers between rows, and vectors that are not full.
pub(super) fn suits<S: Sum>(planes: &Planes, parts: &[Part], roles: Roles) -> bool {
    let lanes = S::loops().lanes;
    let wasted = parts.iter().map(|part| {
        let span = part.span(planes.pitch(), part.extent[0]);
        span.next_multiple_of(lanes) as f64 / part.extent.iter().product::<usize>() as f64
    });
    let taps = parts.iter().map(|part| part.taps.len()).max().unwrap_or(0);
    let idle = roles.rows.next_multiple_of(lanes) as f64 / roles.rows as f64;
    // Measured with AVX-512: turning costs little beside many terms, but windows of few filters are met faster where they lie.
    let turning = 1.03 + if taps == 1 { 4.0 / roles.depth.max(1) as f64 } else { 13.0 / roles.rows.max(1) as f64 };
    wasted.fold(0.0, f64::max) > idle * turning
}

/// Filters with room for whole vectors.
fn padded<S: Sum>(problem: &Problem) -> usize {
    problem.roles.rows.next_multiple_of(S::loops().lanes)
}

/// Elements of the packed weights.
pub(super) fn weights<S: Sum>(problem: &Problem) -> usize {
    problem.groups * padded::<S>(problem) * problem.roles.depth * problem.taps()
}

/// Vectors of filters in panels: (first, count).
fn panels<S: Sum>(problem: &Problem) -> Vec<(usize, usize)> {
    cut(padded::<S>(problem) / S::loops().lanes, VECTORS).collect()
}

/// Copies weights in the order in which tiles read them: for each group and part by block of terms, panel, term and filter.
pub(super) fn prepare<E: Pixel>(problem: &Problem, weight: SharedPtr<u8>, packed: SharedPtr<E::Sum>) -> Result<()> {
    let Roles { rows, depth, transposed } = problem.roles;
    let (lanes, all) = (E::Sum::loops().lanes, padded::<E::Sum>(problem));
    let panels = panels::<E::Sum>(problem);
    let [first_axis, second_axis, down, right] = problem.weight.strides;
    let (by_row, by_channel) = if transposed { (second_axis, first_axis) } else { (first_axis, second_axis) };
    let grain = (1 << 14) / (VECTORS * lanes * depth * problem.taps()).max(1);
    parallel_for(problem.op, problem.groups * panels.len(), grain, |range| {
        for index in range {
            let (group, (first, vectors)) = (index / panels.len(), panels[index % panels.len()]);
            let (first, width) = (first * lanes, vectors * lanes);
            let real = width.min(rows - first);
            let start = if transposed { group * depth } else { group * rows };
            let start = start as isize * first_axis + first as isize * by_row;
            let from = weight.get().cast::<E>().wrapping_offset(start);
            let mut before = group * all * depth * problem.taps();
            for part in &problem.parts {
                let steps = steps(depth, part, |channel, tap| {
                    let (ky, kx) = ((tap / problem.kernel[1]) as isize, (tap % problem.kernel[1]) as isize);
                    channel as isize * by_channel + ky * down + kx * right
                });
                let dense = steps.iter().zip(0..).all(|(&step, i)| step == i);
                for (first_term, terms) in cut(steps.len(), TERMS) {
                    let at = before + first_term * all + first * terms;
                    // SAFETY: the panel's own room in the packed weights, whose size was checked; weights lie inside their storage
                    // (`Place::pointer` checked the end, layouts the start).
                    unsafe {
                        let to = std::slice::from_raw_parts_mut(packed.get().add(at), terms * width);
                        if real < width {
                            to.fill(E::Sum::ZERO);
                        }
                        if dense && E::DTYPE == E::Sum::DTYPE {
                            let from = from.wrapping_add(first_term).cast::<E::Sum>();
                            copy::transpose(from, by_row, to.as_mut_ptr(), width as isize, terms, real);
                            continue;
                        }
                        for row in 0..real {
                            let from = from.wrapping_offset(row as isize * by_row);
                            let to = to[row..].iter_mut().step_by(width);
                            for (to, &step) in to.zip(&steps[first_term..]) {
                                *to = (*from.wrapping_offset(step)).wide();
                            }
                        }
                    }
                }
                before += all * steps.len();
            }
        }
    })
}

/// Where each term of a part lies: channel by channel, by tap.
fn steps<T>(depth: usize, part: &Part, at: impl Fn(usize, usize) -> T) -> Vec<T> {
    (0..depth)
        .flat_map(|channel| part.taps.iter().map(move |tap| (channel, tap.weight)))
        .map(|(c, t)| at(c, t))
        .collect()
}

/// How the sums of a part are shared out: neither cut changes a sum.
struct Tasks {
    /// Pieces of a group that a task handles, one after the other, and tasks of a group.
    pieces: usize,
    blocks: usize,
    /// Panels of a task, and how often that goes.
    panels: usize,
    slices: usize,
}

impl Tasks {
    fn new(problem: &Problem, pieces: usize, pixels: usize, panels: usize) -> Tasks {
        let per_task = PIXELS.div_ceil(pixels).min(pieces);
        let blocks = pieces.div_ceil(per_task);
        let wanted = (num_threads() * TASKS_PER_THREAD).div_ceil(blocks * problem.groups);
        let slices = wanted.min(problem.roles.rows.div_ceil(SLICE)).min(panels);
        let per_slice = panels.div_ceil(slices);
        Tasks { pieces: per_task, blocks, panels: per_slice, slices: panels.div_ceil(per_slice) }
    }
}

/// The pixels of a part.
pub(super) fn part<E: Pixel>(
    problem: &Problem,
    index: usize,
    bands: (usize, usize),
    memory: &Memory<'_, E::Sum>,
) -> Result<()> {
    let Roles { rows, depth, .. } = problem.roles;
    let (part, planes, lanes) = (&problem.parts[index], &problem.planes, E::Sum::loops().lanes);
    let all = padded::<E::Sum>(problem);
    let taps_before: usize = problem.parts[..index].iter().map(|part| part.taps.len()).sum();
    let terms: Vec<usize> = (0..depth)
        .flat_map(|channel| {
            part.taps.iter().map(move |tap| channel * problem.room.channel + tap.phase * planes.plane() + tap.at)
        })
        .collect();
    let panels = panels::<E::Sum>(problem);
    let pieces = memory.images * bands.0;
    let tasks = Tasks::new(problem, pieces, bands.1 * part.extent[1], panels.len());
    let work = tasks.pieces * bands.1 * part.extent[1] * tasks.panels * VECTORS * lanes * terms.len();
    let count = problem.groups * tasks.blocks * tasks.slices;
    parallel_for(problem.op, count, GRAIN / work.max(1), |range| {
        let (mut pixels, mut sums, mut turned) = (Vec::new(), Vec::new(), Vec::new());
        for task in range {
            checkpoint();
            let (slice, rest) = (task % tasks.slices, task / tasks.slices);
            let (block, group) = (rest % tasks.blocks, rest / tasks.blocks);
            let panels = &panels[slice * tasks.panels..panels.len().min((slice + 1) * tasks.panels)];
            let first = panels[0].0 * lanes;
            let width = panels.iter().map(|panel| panel.1 * lanes).sum::<usize>();
            let channels = width.min(rows - first);
            let first_channel = group * rows + first;
            let pieces: Vec<Piece<'_>> = (block * tasks.pieces..pieces.min((block + 1) * tasks.pieces))
                .map(|i| Piece { part, image: i / bands.0, band: i % bands.0, bands, first_channel, channels })
                .collect();
            pixels.clear();
            for piece in &pieces {
                let image = piece.image * problem.room.image;
                for row in piece.first_row()..piece.first_row() + piece.height() {
                    let start = image + row * problem.pixel[0];
                    pixels.extend((0..part.extent[1]).map(|col| start + col * problem.pixel[1]));
                }
            }
            // SAFETY: the weights were packed for these groups, parts and taps.
            let weights = unsafe {
                let start = memory.weights.add((group * problem.taps() + taps_before) * depth * all);
                std::slice::from_raw_parts(start, depth * part.taps.len() * all)
            };
            let x = &memory.planes[group * depth * problem.room.channel..];
            sums.resize(pixels.len() * width, E::Sum::ZERO);
            multiply(x, (&terms, &pixels), (weights, all), panels, &mut sums);
            let mut sums = &sums[..];
            for piece in &pieces {
                let length = piece.height() * part.extent[1];
                let (to, strides) = match problem.target(memory, piece) {
                    Some((to, strides @ [_, row, 1])) if row == part.extent[1] as isize => (to, strides),
                    _ => {
                        turned.resize(channels * length, E::Sum::ZERO);
                        (turned.as_mut_ptr(), [length as isize, part.extent[1] as isize, 1])
                    }
                };
                // SAFETY: the result's pixels of this piece and these channels belong to this task alone, and the sums have as many.
                unsafe {
                    copy::transpose(sums.as_ptr(), width as isize, to, strides[0], channels, length);
                    problem.end(memory, piece, (to.cast_const(), strides));
                }
                sums = &sums[length * width..];
            }
        }
    })
}

/// The sums of so many pixels for all filters of some panels, a row for each pixel. `weights` has rows of `all` filters.
fn multiply<S: Sum>(
    x: &[S],
    (terms, pixels): (&[usize], &[usize]),
    (weights, all): (&[S], usize),
    panels: &[(usize, usize)],
    sums: &mut [S],
) {
    let loops = S::loops();
    let first = panels[0].0 * loops.lanes;
    let width = sums.len() / pixels.len().max(1);
    if terms.is_empty() || pixels.is_empty() {
        return sums.fill(S::ZERO);
    }
    // All comparisons of what tiles read, at once.
    let furthest = terms.iter().max().unwrap_or(&0) + pixels.iter().max().unwrap_or(&0);
    let x = &x[..=furthest];
    for (first_term, count) in cut(terms.len(), TERMS) {
        let steps = &terms[first_term..first_term + count];
        for &(panel, vectors) in panels {
            let (from, length) = (panel * loops.lanes, vectors * loops.lanes * count);
            let start = first_term * all + from * count;
            let (panel, after) = weights[start..].split_at(length);
            // What follows the slice's last panel belongs to others: its first is next.
            let next = match from - first + vectors * loops.lanes < width {
                true => after.as_ptr(),
                false => weights.as_ptr().wrapping_add((first_term + count) * all + first * count),
            };
            let mut ahead = (0..length).step_by(count * LINE / size_of::<S>());
            for (at, tile) in cut(pixels.len(), loops.filters) {
                let rows: [*const S; 8] = std::array::from_fn(|i| x[pixels[at + i.min(tile - 1)]..].as_ptr());
                let ahead = next.wrapping_add(ahead.next().unwrap_or(0));
                let out = &mut sums[at * width + from - first..];
                let tile = loops.tiles[tile - 1][vectors - 1];
                // SAFETY: these are the loops for this processor, and no step leads past the furthest.
                unsafe { tile(&rows, steps, panel, out, width, first_term > 0, ahead) };
            }
        }
    }
}
