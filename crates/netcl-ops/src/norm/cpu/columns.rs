//! Batch normalisation where a channel has few neighbouring elements: a sample is a row of columns.
//!
//! Sums run down strips of columns, which registers hold; tasks are blocks of rows and columns. The passes that write run along
//! the rows, as memory does.

use std::ops::Range;

use netcl_core::Result;
use netcl_core::backend::cpu::parallel_for;
use netcl_core::backend::cpu::threads::parallel_chunks_mut;
use netcl_core::dtype::Element;
use netcl_core::simd;

use super::TASK;
use super::batch::{Backward, Channel, Results};
use super::moments::{LINE, Moments, Slopes, prefetch, real};

use crate::dense::{Output, Stored};
use crate::norm::batch::Planes;
use crate::reduce::Lane;

/// Columns of a strip.
const STRIP: usize = 2 * LINE;
/// Columns of a block, and those whose parameters stay in the first-level cache.
const COLUMNS: usize = 512;
/// Elements of a block: enough to make its sums in f64 small beside it.
const BLOCK: usize = 4 * TASK;
/// Rows that are added up in the type of the computation.
const RUN_ROWS: usize = 16;
/// Channels whose statistics are one task at least.
const CHANNELS: usize = 128;

/// A few rows, `step` apart.
#[derive(Clone, Copy)]
struct Tile<'t, T> {
    values: &'t [T],
    step: usize,
}

impl<'t, T> Tile<'t, T> {
    /// Its rows, from a column on. Meanwhile the same strips of the rows that follow the tile move into the cache.
    #[inline(always)]
    fn rows(self, column: usize) -> impl Iterator<Item = &'t [T]> {
        let ahead = RUN_ROWS * self.step;
        self.values.chunks(self.step).map(move |row| {
            let row = &row[column..];
            let below = row.as_ptr().wrapping_add(ahead);
            prefetch(below);
            prefetch(below.wrapping_add(LINE));
            row
        })
    }
}

/// The first columns of a row: `spare` has zeros behind a row that ends before.
#[inline(always)]
fn strip<'t, T: Lane>(row: &'t [T], spare: &'t mut [T; STRIP]) -> &'t [T; STRIP] {
    row.first_chunk().unwrap_or_else(|| {
        spare[..row.len()].copy_from_slice(row);
        spare
    })
}

simd! {
    /// Merges the moments of a run of rows into those of the `before` rows: `means` and `m2` of each column.
    fn merge<T: Lane>(x: Tile<'_, T>, before: f64, means: &mut [f64], m2: &mut [f64]) {
        let n = x.values.len().div_ceil(x.step);
        let by = real::<T>((n as f64).recip());
        // Rows often lie at distances that share few sets of a cache: a copy stays in it.
        let (mut copies, mut spare) = ([[T::ZERO; STRIP]; RUN_ROWS], [T::ZERO; STRIP]);
        for (i, (means, m2)) in means.chunks_mut(STRIP).zip(m2.chunks_mut(STRIP)).enumerate() {
            let mut centres = [T::ZERO; STRIP];
            for (row, copy) in x.rows(i * STRIP).zip(&mut copies) {
                *copy = *strip(row, &mut spare);
                for (sum, &x) in centres.iter_mut().zip(&*copy) {
                    *sum = *sum + x;
                }
            }
            for centre in &mut centres {
                *centre = *centre * by;
            }
            // The mean as computed is rounded; the sum of what is left of it.
            let (mut squares, mut rest) = ([T::ZERO; STRIP], [T::ZERO; STRIP]);
            for copy in &copies[..n] {
                for (((square, rest), &x), &centre) in squares.iter_mut().zip(&mut rest).zip(copy).zip(&centres) {
                    let d = x - centre;
                    *square = *square + d * d;
                    *rest = *rest + d;
                }
            }
            let n = n as f64;
            let share = n / (before + n);
            let parts = centres.iter().zip(&squares).zip(&rest);
            for ((mean, m2), ((&centre, &square), &rest)) in means.iter_mut().zip(m2).zip(parts) {
                let off = Element::to_f64(rest) / n;
                let step = Element::to_f64(centre) + off - *mean;
                *mean += step * share;
                *m2 += Element::to_f64(square) - off * off * n + step * step * before * share;
            }
        }
    }

    /// Merges the moments of `n` further rows: those in `from` into those in `to`, means before squared deviations.
    fn merge_parts(to: [&mut [f64]; 2], from: [&[f64]; 2], before: f64, n: f64) {
        let ([to_means, to_m2], [means, m2], share) = (to, from, n / (before + n));
        for (((to_mean, to_m2), &mean), &m2) in to_means.iter_mut().zip(to_m2).zip(means).zip(m2) {
            let step = mean - *to_mean;
            *to_mean += step * share;
            *to_m2 += m2 + step * step * before * share;
        }
    }

    /// Adds the sums of `g` and of `g * (x - mean)` over a run of rows.
    fn add_products<T: Lane>(g: Tile<'_, T>, x: Tile<'_, T>, means: &[T], plain: &mut [f64], mixed: &mut [f64]) {
        let [mut spare_mean, mut spare_g, mut spare_x] = [[T::ZERO; STRIP]; 3];
        for (i, (plain, mixed)) in plain.chunks_mut(STRIP).zip(mixed.chunks_mut(STRIP)).enumerate() {
            let means = strip(&means[i * STRIP..], &mut spare_mean);
            let (mut plain_lanes, mut mixed_lanes) = ([T::ZERO; STRIP], [T::ZERO; STRIP]);
            for (g, x) in g.rows(i * STRIP).zip(x.rows(i * STRIP)) {
                let (g, x) = (strip(g, &mut spare_g), strip(x, &mut spare_x));
                let sums = plain_lanes.iter_mut().zip(&mut mixed_lanes);
                for ((((plain, mixed), &g), &x), &mean) in sums.zip(g).zip(x).zip(means) {
                    *plain = *plain + g;
                    *mixed = *mixed + g * (x - mean);
                }
            }
            let lanes = plain_lanes.iter().zip(&mixed_lanes);
            for ((plain, mixed), (&more_plain, &more_mixed)) in plain.iter_mut().zip(mixed).zip(lanes) {
                *plain += Element::to_f64(more_plain);
                *mixed += Element::to_f64(more_mixed);
            }
        }
    }

    fn map<T: Lane>(x: &[T], y: &mut [T], means: &[T], scales: &[T], shifts: &[T]) {
        for ((((y, &x), &mean), &scale), &shift) in y.iter_mut().zip(x).zip(means).zip(scales).zip(shifts) {
            *y = (x - mean) * scale + shift;
        }
    }

    fn map_gradient<T: Lane>(
        g: &[T],
        x: &[T],
        to: &mut [T],
        means: &[T],
        scales: &[T],
        slopes: &[T],
        shifts: &[T],
    ) {
        let values = g.iter().zip(x).zip(means).zip(scales).zip(slopes).zip(shifts);
        for (to, (((((&g, &x), &mean), &scale), &slope), &shift)) in to.iter_mut().zip(values) {
            *to = g * scale - (x - mean) * slope - shift;
        }
    }
}

/// The blocks that sums are made of. They follow from the shape alone.
#[derive(Clone, Copy)]
struct Blocks {
    planes: Planes,
    /// Columns of all rows, and of a block.
    width: usize,
    columns: usize,
    /// Rows of a block.
    rows: usize,
}

/// One block.
struct Block {
    rows: Range<usize>,
    columns: Range<usize>,
    width: usize,
}

impl Blocks {
    fn new(planes: Planes) -> Blocks {
        let width = planes.channels * planes.span;
        let columns = width.min(COLUMNS);
        Blocks { planes, width, columns, rows: (BLOCK / columns).next_multiple_of(RUN_ROWS) }
    }

    /// Two sums for each column of each block, by blocks of rows, and in these by blocks of columns.
    fn sums(self, op: &'static str, body: impl Fn(&Block, &mut [f64], &mut [f64]) + Sync) -> Result<Vec<f64>> {
        let across = self.width.div_ceil(self.columns);
        let slot = 2 * self.columns;
        let mut sums = vec![0.0; self.planes.samples.div_ceil(self.rows) * across * slot];
        parallel_chunks_mut(op, &mut sums, slot, |start, slots| {
            for (i, slot) in (start / slot..).zip(slots.chunks_exact_mut(slot)) {
                let (row, column) = (i / across * self.rows, i % across * self.columns);
                let rows = row..self.planes.samples.min(row + self.rows);
                let block = Block { rows, columns: column..self.width.min(column + self.columns), width: self.width };
                let (first, second) = slot.split_at_mut(self.columns);
                let columns = block.columns.len();
                body(&block, &mut first[..columns], &mut second[..columns]);
            }
        })?;
        Ok(sums)
    }

    /// For each channel something made of its two sums, by columns; `join` adds the sums of later rows, `n` after `before`.
    fn channels<C: Copy + Default + Send>(
        self,
        op: &'static str,
        sums: &[f64],
        join: impl Fn([&mut [f64]; 2], [&[f64]; 2], f64, f64) + Sync,
        finish: impl Fn(usize, &[f64], &[f64]) -> C + Sync,
    ) -> Result<Vec<C>> {
        let Planes { samples, channels, span } = self.planes;
        let across = self.width.div_ceil(self.columns);
        let mut list = vec![C::default(); channels];
        parallel_chunks_mut(op, &mut list, CHANNELS, |start, list| {
            let (first, end) = (start * span, (start + list.len()) * span);
            let [mut one, mut two] = [vec![0.0; end - first], vec![0.0; end - first]];
            for (i, slot) in sums.chunks_exact(2 * self.columns).enumerate() {
                let (row, column) = (i / across * self.rows, i % across * self.columns);
                let (from, to) = (first.max(column), end.min(column + self.columns));
                if from < to {
                    let (part, own) = (from - column..to - column, from - first..to - first);
                    let slot = [&slot[part.clone()], &slot[self.columns..][part]];
                    let n = self.rows.min(samples - row);
                    join([&mut one[own.clone()], &mut two[own]], slot, row as f64, n as f64);
                }
            }
            let columns = one.chunks_exact(span).zip(two.chunks_exact(span));
            for ((c, to), (one, two)) in (start..).zip(list).zip(columns) {
                *to = finish(c, one, two);
            }
        })?;
        Ok(list)
    }
}

impl Block {
    /// A few rows at a time: those before in this block, and where they lie in a tensor, from the first one's first column to
    /// the last one's last.
    fn runs(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.rows.clone().step_by(RUN_ROWS).map(|first| {
            let last = self.rows.end.min(first + RUN_ROWS) - 1;
            let range = first * self.width + self.columns.start..last * self.width + self.columns.end;
            (first - self.rows.start, range)
        })
    }

    /// Rows of a tensor that [`Block::runs`] gave.
    fn tile<'a, E: Stored>(&self, x: &'a [E], run: Range<usize>, scratch: &'a mut Vec<E::Lane>) -> Tile<'a, E::Lane> {
        let (values, step) = E::widen_rows(&x[run], self.width, self.columns.len(), scratch);
        Tile { values, step }
    }
}

/// Runs a body for pieces of rows, by where they lie in a tensor and which columns they are, with the memory of a task.
fn pieces<T>(
    op: &'static str,
    planes: Planes,
    body: impl Fn(Range<usize>, Range<usize>, &mut [Vec<T>; 3]) + Sync,
) -> Result<()> {
    let width = planes.channels * planes.span;
    parallel_for(op, planes.samples, (TASK / width).max(1), |rows| {
        let mut memory = [Vec::new(), Vec::new(), Vec::new()];
        for column in (0..width).step_by(COLUMNS) {
            let columns = column..width.min(column + COLUMNS);
            for at in rows.clone().map(|row| row * width) {
                body(at + columns.start..at + columns.end, columns.clone(), &mut memory);
            }
        }
    })
}

/// A value per channel as one per column.
fn spread<C, T: Copy>(channels: &[C], span: usize, of: impl Fn(&C) -> T) -> Vec<T> {
    let mut columns = Vec::with_capacity(channels.len() * span);
    channels.iter().for_each(|channel| columns.extend(std::iter::repeat_n(of(channel), span)));
    columns
}

pub(super) fn forward<E: Stored>(
    op: &'static str,
    planes: Planes,
    x: &[E],
    y: Output<'_, E>,
    results: &Results<'_, E>,
) -> Result<()> {
    let blocks = Blocks::new(planes);
    let sums = blocks.sums(op, |block, means, m2| {
        let mut from = Vec::new();
        for (before, run) in block.runs() {
            merge(block.tile(x, run, &mut from), before as f64, means, m2);
        }
    })?;
    let n = planes.samples as f64;
    let channels = blocks.channels(op, &sums, merge_parts, |c, means, m2| {
        // Columns of equal counts.
        let mean = means.iter().sum::<f64>() / planes.span as f64;
        let between: f64 = means.iter().map(|m| (m - mean) * (m - mean)).sum();
        results.finish(c, Moments::around(n * planes.span as f64, mean, m2.iter().sum::<f64>() + n * between, 0.0))
    })?;
    apply(op, planes, x, y, &channels)
}

pub(super) fn apply<E: Stored>(
    op: &'static str,
    planes: Planes,
    x: &[E],
    y: Output<'_, E>,
    channels: &[Channel<E::Lane>],
) -> Result<()> {
    let means = spread(channels, planes.span, |c| c.mean);
    let scales = spread(channels, planes.span, |c| c.scale);
    let shifts = spread(channels, planes.span, |c| c.shift);
    pieces(op, planes, |at, columns, [from, to, _]| {
        // SAFETY: every row belongs to one task.
        let y = unsafe { y.part(at.start, at.len()) };
        let x = E::widen(&x[at], from);
        E::fill(y, to, |y| map(x, y, &means[columns.clone()], &scales[columns.clone()], &shifts[columns]));
    })
}

pub(super) fn backward<E: Stored>(op: &'static str, of: &Backward<'_, E>) -> Result<()> {
    let (planes, blocks) = (of.planes, Blocks::new(of.planes));
    let means = spread(of.mean, planes.span, |&mean| mean);
    let sums = blocks.sums(op, |block, plain, mixed| {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for (_, run) in block.runs() {
            let grad = block.tile(of.grad, run.clone(), &mut first);
            let x = block.tile(of.x, run, &mut second);
            add_products(grad, x, &means[block.columns.clone()], plain, mixed);
        }
    })?;
    let add = |to: [&mut [f64]; 2], from: [&[f64]; 2], _: f64, _: f64| {
        for (to, from) in to.into_iter().zip(from) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
    };
    let finish = |c, plain: &[f64], mixed: &[f64]| of.finish(c, [plain.iter().sum(), mixed.iter().sum()]);
    let channels: Vec<Slopes<E::Lane>> = blocks.channels(op, &sums, add, finish)?;
    let scales = spread(&channels, planes.span, |c| c.scale);
    let slopes = spread(&channels, planes.span, |c| c.slope);
    let shifts = spread(&channels, planes.span, |c| c.shift);
    pieces(op, planes, |at, columns, [first, second, third]| {
        // SAFETY: every row belongs to one task.
        let to = unsafe { of.input.part(at.start, at.len()) };
        let (grad, x) = (E::widen(&of.grad[at.clone()], first), E::widen(&of.x[at], second));
        let c = || columns.clone();
        E::fill(to, third, |to| {
            map_gradient(grad, x, to, &means[c()], &scales[c()], &slopes[c()], &shifts[c()]);
        });
    })
}
