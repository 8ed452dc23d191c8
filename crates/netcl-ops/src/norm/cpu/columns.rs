//! Batch normalisation where a channel has few neighbouring elements: a sample is a row of columns, and loops run across a
//! block of columns.

use std::ops::Range;

use netcl_core::Result;
use netcl_core::backend::cpu::parallel_for;
use netcl_core::dtype::Element;
use netcl_core::simd;

use super::TASK;
use super::batch::{Backward, Channel, Results};
use super::moments::{Moments, drain, real};
use crate::norm::batch::Planes;
use crate::norm::dense::{Output, Stored};
use crate::reduce::Lane;

/// Columns of a block: a few cache lines.
const COLUMNS: usize = 64;
/// Rows that are added up in the type of the computation.
const RUN_ROWS: usize = 16;

simd! {
    fn add<T: Lane>(x: &[T], sums: &mut [T]) {
        for (sum, &x) in sums.iter_mut().zip(x) {
            *sum = *sum + x;
        }
    }

    fn add_squares<T: Lane>(x: &[T], means: &[T], sums: &mut [T]) {
        for ((sum, &x), &mean) in sums.iter_mut().zip(x).zip(means) {
            *sum = *sum + (x - mean) * (x - mean);
        }
    }

    fn add_products<T: Lane>(g: &[T], x: &[T], means: &[T], plain: &mut [T], mixed: &mut [T]) {
        for ((((plain, mixed), &g), &x), &mean) in plain.iter_mut().zip(mixed).zip(g).zip(x).zip(means) {
            *plain = *plain + g;
            *mixed = *mixed + g * (x - mean);
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

    /// Sums over the rows, one per channel: `row` adds a row's values to `K` lists of columns.
    fn sums<T: Lane, const K: usize>(&self, mut row: impl FnMut(Range<usize>, &mut [Vec<T>; K])) -> [Vec<f64>; K] {
        let (mut runs, mut totals) =
            ([(); K].map(|()| vec![T::ZERO; self.width()]), [(); K].map(|()| vec![0.0; self.width()]));
        let mut flush = |runs: &mut [Vec<T>; K]| {
            runs.iter_mut().zip(&mut totals).for_each(|(run, total)| drain(run, total));
        };
        for (i, columns) in self.rows().enumerate() {
            row(columns, &mut runs);
            if (i + 1).is_multiple_of(RUN_ROWS) {
                flush(&mut runs);
            }
        }
        flush(&mut runs);
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
        let (mut from, n) = (Vec::new(), planes.count() as f64);
        let [means] = block.sums::<E::Lane, 1>(|columns, [sums]| add(E::widen(&x[columns], &mut from), sums));
        let first = block.channels.start;
        let rounded: Vec<E::Lane> = block.spread(|c| real(means[c - first] / n));
        let [squares] = block.sums::<E::Lane, 1>(|columns, [sums]| {
            add_squares(E::widen(&x[columns], &mut from), &rounded, sums);
        });
        let channels: Vec<Channel<_>> = block
            .channels
            .clone()
            .map(|c| {
                let mean = means[c - first] / n;
                let off = mean - Element::to_f64(real::<E::Lane>(mean));
                results.finish(c, Moments::around(n, mean, squares[c - first], off))
            })
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
        let [plain, mixed] = block.sums::<E::Lane, 2>(|columns, [plain, mixed]| {
            let grad = E::widen(&of.grad[columns.clone()], &mut first);
            add_products(grad, E::widen(&of.x[columns], &mut second), &means, plain, mixed);
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
