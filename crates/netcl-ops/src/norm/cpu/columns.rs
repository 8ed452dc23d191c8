//! Batch normalisation where a channel has few neighbouring elements: a sample is a row of columns, and loops run across a
//! block of columns.

use std::ops::Range;

use netcl_core::Result;
use netcl_core::backend::cpu::parallel_for;
use netcl_core::dtype::Element;
use netcl_core::kernels::expr::vecmath::Real;
use netcl_core::simd;

use super::TASK;
use super::batch::{Backward, Channel, Results};
use super::moments::{Moments, drain, real};

use crate::norm::batch::Planes;
use crate::norm::dense::{Output, Stored};
use crate::reduce::Lane;

/// Columns of a block: a few cache lines.
const COLUMNS: usize = 128;
/// Rows that are added up in the type of the computation.
const RUN_ROWS: usize = 16;

/// A few rows, `step` apart.
#[derive(Clone, Copy)]
struct Tile<'t, T> {
    values: &'t [T],
    step: usize,
}

impl<'t, T> Tile<'t, T> {
    /// Its rows, of so many columns each.
    #[inline(always)]
    fn rows(self, columns: usize) -> impl Iterator<Item = &'t [T]> {
        self.values.chunks(self.step).map(move |row| &row[..columns])
    }
}

simd! {
    /// Merges the moments of a few rows into those of the rows before: `before` rows, `means` and `m2` for each column.
    fn merge<T: Lane>(x: Tile<'_, T>, before: f64, scratch: &mut [Vec<T>; 2], means: &mut [f64], m2: &mut [f64]) {
        let [centres, squares] = scratch;
        let columns = means.len();
        let n = x.values.len().div_ceil(x.step) as f64;
        let by = real::<T>(n.recip());
        centres.fill(T::ZERO);
        for x in x.rows(columns) {
            for (sum, &x) in centres.iter_mut().zip(x) {
                *sum = *sum + x;
            }
        }
        for centre in centres.iter_mut() {
            *centre = *centre * by;
        }
        // The mean as computed is rounded; the sum of what is left of it.
        squares.fill(T::ZERO);
        let mut rest = [T::ZERO; COLUMNS];
        let rest = &mut rest[..columns];
        for x in x.rows(columns) {
            for (((square, rest), &x), &centre) in squares.iter_mut().zip(&mut *rest).zip(x).zip(&*centres) {
                let d = x - centre;
                *square = *square + d * d;
                *rest = *rest + d;
            }
        }
        let share = n / (before + n);
        let parts = centres.iter().zip(&*squares).zip(&*rest);
        for ((mean, m2), ((&centre, &square), &rest)) in means.iter_mut().zip(m2).zip(parts) {
            let off = Element::to_f64(rest) / n;
            let step = Element::to_f64(centre) + off - *mean;
            *mean += step * share;
            *m2 += Element::to_f64(square) - off * off * n + step * step * before * share;
        }
    }

    fn add_products<T: Lane>(g: Tile<'_, T>, x: Tile<'_, T>, means: &[T], plain: &mut [T], mixed: &mut [T]) {
        for (g, x) in g.rows(means.len()).zip(x.rows(means.len())) {
            for ((((plain, mixed), &g), &x), &mean) in plain.iter_mut().zip(&mut *mixed).zip(g).zip(x).zip(means) {
                *plain = *plain + g;
                *mixed = *mixed + g * (x - mean);
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

/// Runs a body for each block of whole channels.
fn blocks(op: &'static str, planes: Planes, body: impl Fn(Block) + Sync) -> Result<()> {
    let Planes { samples, channels, span } = planes;
    let per = (COLUMNS / span).max(1);
    let tasks = (TASK / (samples * per * span)).max(1);
    parallel_for(op, channels.div_ceil(per), tasks, |range| {
        for block in range {
            body(Block { planes, channels: block * per..channels.min((block + 1) * per) });
        }
    })
}

/// Some channels of every sample.
struct Block {
    planes: Planes,
    channels: Range<usize>,
}

impl Block {
    /// The columns of the block in each row, in order.
    fn rows(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Planes { samples, channels, span } = self.planes;
        let (start, end) = (self.channels.start * span, self.channels.end * span);
        (0..samples).map(move |sample| sample * channels * span + start..sample * channels * span + end)
    }

    fn width(&self) -> usize {
        self.channels.len() * self.planes.span
    }

    /// A value per channel as one per column.
    fn spread<T: Copy>(&self, of: impl Fn(usize) -> T) -> Vec<T> {
        let span = self.planes.span;
        (0..self.width()).map(|column| of(self.channels.start + column / span)).collect()
    }

    /// A few rows of a tensor at a time: from the first one's first column to the last one's last.
    fn runs(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Planes { samples, channels, span } = self.planes;
        let (start, end) = (self.channels.start * span, self.channels.end * span);
        let row = move |sample: usize| sample * channels * span;
        (0..samples).step_by(RUN_ROWS).map(move |first| {
            let last = samples.min(first + RUN_ROWS) - 1;
            row(first) + start..row(last) + end
        })
    }

    /// Rows of a tensor that [`Block::runs`] gave.
    fn tile<'a, E: Stored>(&self, x: &'a [E], run: Range<usize>, scratch: &'a mut Vec<E::Lane>) -> Tile<'a, E::Lane> {
        let Planes { channels, span, .. } = self.planes;
        let (values, step) = E::widen_rows(&x[run], channels * span, self.width(), scratch);
        Tile { values, step }
    }

    /// Sums over the rows, one per channel: `run` adds the values of a few rows to `K` lists of columns.
    fn sums<T: Lane, const K: usize>(&self, mut run: impl FnMut(Range<usize>, &mut [Vec<T>; K])) -> [Vec<f64>; K] {
        let mut lanes = [(); K].map(|()| vec![T::ZERO; self.width()]);
        let mut totals = [(); K].map(|()| vec![0.0; self.width()]);
        for rows in self.runs() {
            run(rows, &mut lanes);
            lanes.iter_mut().zip(&mut totals).for_each(|(lanes, total)| drain(lanes, total));
        }
        totals.map(|total| total.chunks_exact(self.planes.span).map(|channel| channel.iter().sum()).collect())
    }
}

pub(super) fn forward<E: Stored>(
    op: &'static str,
    planes: Planes,
    x: &[E],
    y: Output<'_, E>,
    results: &Results<'_, E>,
) -> Result<()> {
    blocks(op, planes, |block| {
        let mut from = Vec::new();
        let mut scratch = [(); 2].map(|()| vec![E::Lane::ZERO; block.width()]);
        let (mut means, mut m2) = (vec![0.0; block.width()], vec![0.0; block.width()]);
        for (i, run) in block.runs().enumerate() {
            let before = (i * RUN_ROWS) as f64;
            merge(block.tile(x, run, &mut from), before, &mut scratch, &mut means, &mut m2);
        }
        let columns = means.iter().zip(&m2).map(|(&mean, &m2)| Moments::around(planes.samples as f64, mean, m2, 0.0));
        let columns: Vec<Moments> = columns.collect();
        let channels: Vec<Channel<_>> = block
            .channels
            .clone()
            .zip(columns.chunks_exact(planes.span))
            .map(|(c, columns)| results.finish(c, columns.iter().fold(Moments::default(), |all, &one| all.merge(one))))
            .collect();
        map_block(&block, x, y, &channels);
    })
}

pub(super) fn apply<E: Stored>(
    op: &'static str,
    planes: Planes,
    x: &[E],
    y: Output<'_, E>,
    channels: &[Channel<E::Lane>],
) -> Result<()> {
    blocks(op, planes, |block| map_block(&block, x, y, &channels[block.channels.clone()]))
}

/// `channels` are the block's.
fn map_block<E: Stored>(block: &Block, x: &[E], y: Output<'_, E>, channels: &[Channel<E::Lane>]) {
    let (mut from, mut to) = (Vec::new(), Vec::new());
    let of = |c: usize| channels[c - block.channels.start];
    let (means, scales) = (block.spread(|c| of(c).mean), block.spread(|c| of(c).scale));
    let shifts = block.spread(|c| of(c).shift);
    for columns in block.rows() {
        // SAFETY: every column belongs to one task.
        let y = unsafe { y.part(columns.start, columns.len()) };
        let x = E::widen(&x[columns], &mut from);
        E::fill(y, &mut to, |y| map(x, y, &means, &scales, &shifts));
    }
}

pub(super) fn backward<E: Stored>(op: &'static str, of: &Backward<'_, E>) -> Result<()> {
    blocks(op, of.planes, |block| {
        let (mut first, mut second, mut third) = (Vec::new(), Vec::new(), Vec::new());
        let means = block.spread(|c| of.mean[c]);
        let [plain, mixed] = block.sums::<E::Lane, 2>(|run, [plain, mixed]| {
            let grad = block.tile(of.grad, run.clone(), &mut first);
            add_products(grad, block.tile(of.x, run, &mut second), &means, plain, mixed);
        });
        let start = block.channels.start;
        let slopes: Vec<_> =
            block.channels.clone().map(|c| of.finish(c, [plain[c - start], mixed[c - start]])).collect();
        let scales = block.spread(|c| slopes[c - start].scale);
        let tilts = block.spread(|c| slopes[c - start].slope);
        let shifts = block.spread(|c| slopes[c - start].shift);
        for columns in block.rows() {
            let grad = E::widen(&of.grad[columns.clone()], &mut first);
            let x = E::widen(&of.x[columns.clone()], &mut second);
            // SAFETY: every column belongs to one task.
            let to = unsafe { of.input.part(columns.start, columns.len()) };
            E::fill(to, &mut third, |to| map_gradient(grad, x, to, &means, &scales, &tilts, &shifts));
        }
    })
}
