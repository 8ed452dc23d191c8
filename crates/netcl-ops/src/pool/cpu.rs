//! Pooling on the native CPU: planes are the tasks.
//!
//! Fixed windows go tap by tap: element (kh, kw) of all windows of a row lies at a fixed distance, which makes loops without
//! branches. Adaptive windows differ in size and go one by one.

use std::ops::Range;

use netcl_core::Result;
use netcl_core::backend::cpu::parallel_for;
use netcl_core::dtype::Element;
use netcl_core::host;
use netcl_core::kernels::expr::vecmath::Real;
use netcl_core::simd;

use super::average::Averaging;
use super::by_two;
use super::geometry::{Axis, Plane};
use crate::dense::{Job, Output, Stored, Views, with_stored};
use crate::reduce::{Lane, Sum, plain_row};

/// Elements that one task should have at least.
const TASK: usize = 1 << 14;

/// The elements of fixed windows: which rows meet, and which columns.
pub(super) struct Taps {
    /// A row of windows and a row of the input that it has, in the order of both.
    pub(super) rows: Vec<(usize, usize)>,
    pub(super) columns: Vec<Tap>,
    pub(super) stride: usize,
    /// The widths of the input and of the results.
    pub(super) width: [usize; 2],
}

/// One element of all windows of a row that have it.
#[derive(Clone, Copy)]
pub(super) struct Tap {
    /// The first window.
    pub(super) start: usize,
    pub(super) len: usize,
    /// Where the first window has it.
    pub(super) column: usize,
}

impl Taps {
    fn new(plane: Plane) -> Taps {
        let [height, width] = plane.axes;
        let columns = (0..width.kernel).map(|k| {
            let (windows, column) = width.tap(k);
            Tap { start: windows.start, len: windows.len(), column }
        });
        // By rows of windows, so that their results stay in the cache until they are done.
        let outputs = if plane.adaptive { 0 } else { height.output };
        let rows = (0..outputs).flat_map(|o| {
            (0..height.kernel).filter_map(move |k| {
                let (windows, row) = height.tap(k);
                windows.contains(&o).then(|| (o, row + (o - windows.start) * height.stride))
            })
        });
        Taps {
            rows: rows.collect(),
            columns: columns.filter(|tap| tap.len > 0).collect(),
            stride: width.stride,
            width: [width.input, width.output],
        }
    }

    /// Calls `body` with the range of the results and the first place of the input, for every row and tap.
    #[inline(always)]
    fn each(&self, mut body: impl FnMut(Range<usize>, usize)) {
        let [from, to] = self.width;
        for &(o, row) in &self.rows {
            for tap in &self.columns {
                let start = o * to + tap.start;
                body(start..start + tap.len, row * from + tap.column);
            }
        }
    }
}

/// The places of every `stride`-th element of a slice that are used by so many results.
#[inline(always)]
fn reach(first: usize, stride: usize, results: usize) -> Range<usize> {
    first..first + (results - 1) * stride + 1
}

/// Calls `body` with each result and its element, which are `S` apart (any distance: `S = 0`).
///
/// Pieces of a known length are what the compiler vectorises; the last element has no such piece behind it.
#[inline(always)]
fn pairs<T: Lane, const S: usize, R>(x: &[T], stride: usize, results: &mut [R], mut body: impl FnMut(&mut R, T)) {
    match (S, x) {
        (0, _) => results.iter_mut().zip(x.iter().step_by(stride)).for_each(|(r, &x)| body(r, x)),
        (1, _) => results.iter_mut().zip(x).for_each(|(r, &x)| body(r, x)),
        (_, [before @ .., last]) => {
            if let [first @ .., end] = results {
                first.iter_mut().zip(before.chunks_exact(S)).for_each(|(r, x)| body(r, x[0]));
                body(end, *last);
            }
        }
        _ => {}
    }
}

/// Maxima so far, and where they were found; -1 is nowhere yet. Side by side and not in pairs: that is what vectors are made of.
pub(super) struct Best<'b, T> {
    pub(super) values: &'b mut [T],
    pub(super) places: &'b mut [i32],
}

impl<T: Lane> Best<'_, T> {
    fn clear(&mut self) {
        self.values.fill(<T as Real>::from_f64(f64::NEG_INFINITY));
        self.places.fill(-1);
    }

    /// Takes elements `S` apart (any distance: `S = 0`) into account, one for each maximum: the first lies at a place, and the
    /// others `stride` from one to the next.
    #[inline(always)]
    fn offer_run<const S: usize>(&mut self, x: &[T], first: i32, stride: usize) {
        let (values, places, mut at) = (&mut *self.values, &mut *self.places, first);
        let by = stride as i32;
        if S == 1 {
            for ((value, place), &x) in values.iter_mut().zip(places).zip(x) {
                offer((value, place), x, at);
                at = at.wrapping_add(1);
            }
        } else {
            for ((value, place), &x) in values.iter_mut().zip(places).zip(x.iter().step_by(stride)) {
                offer((value, place), x, at);
                at = at.wrapping_add(by);
            }
        }
    }
}

/// Takes a later element into account: the first of equals wins, and a NaN over everything.
#[inline(always)]
pub(super) fn offer<T: Lane>((value, place): (&mut T, &mut i32), x: T, at: i32) {
    #[allow(clippy::eq_op, reason = "x != x is the test for NaN that vectorises")]
    let better = (x > *value) | (x != x) | (*place < 0);
    *value = if better { x } else { *value };
    *place = if better { at } else { *place };
}

/// The sum of a few elements, or of many in lanes.
#[inline(always)]
fn run_sum<T: Lane>(x: &[T]) -> f64 {
    const LANES: usize = 8;
    if x.len() > 256 {
        return plain_row::<T, Sum>(x);
    }
    let mut lanes = [T::ZERO; LANES];
    let (parts, rest) = x.as_chunks::<LANES>();
    for part in parts {
        lanes.iter_mut().zip(part).for_each(|(lane, &x)| *lane = *lane + x);
    }
    let mut width = LANES / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        low.iter_mut().zip(&*high).for_each(|(low, &high)| *low = *low + high);
        width /= 2;
    }
    // One after the other: a loop over lanes costs more than these few additions.
    Element::to_f64(rest.iter().fold(lanes[0], |sum, &x| sum + x))
}

simd! {
    fn max_fixed<T: Lane>(taps: &Taps, x: &[T], best: &mut Best<'_, T>) {
        let (stride, [from, to]) = (taps.stride, taps.width);
        // Loops and not `each`: a closure as large as this is compiled on its own, for the baseline.
        for &(o, row) in &taps.rows {
            for tap in &taps.columns {
                let (first, results) = (row * from + tap.column, o * to + tap.start);
                let x = &x[reach(first, stride, tap.len)];
                let results = results..results + tap.len;
                let mut best = Best { values: &mut best.values[results.clone()], places: &mut best.places[results] };
                match stride {
                    1 => best.offer_run::<1>(x, first as i32, 1),
                    _ => best.offer_run::<0>(x, first as i32, stride),
                }
            }
        }
    }

    fn sum_fixed<T: Lane>(taps: &Taps, x: &[T], sums: &mut [T]) {
        let stride = taps.stride;
        taps.each(|to, first| {
            let (x, sums) = (&x[reach(first, stride, to.len())], &mut sums[to]);
            let add = |sum: &mut T, x: T| *sum = *sum + x;
            match stride {
                1 => pairs::<T, 1, _>(x, 1, sums, add),
                2 => pairs::<T, 2, _>(x, 2, sums, add),
                _ => pairs::<T, 0, _>(x, stride, sums, add),
            }
        });
    }

    /// The means of planes of `size` elements.
    fn means<T: Lane>(x: &[T], size: usize, by: T, y: &mut [T]) {
        for (x, y) in x.chunks_exact(size).zip(y) {
            *y = <T as Real>::from_f64(run_sum(x)) * by;
        }
    }

    /// The reverse of `sum_fixed`.
    fn spread_fixed<T: Lane>(taps: &Taps, shares: &[T], to: &mut [T]) {
        let stride = taps.stride;
        taps.each(|from, first| {
            let (shares, to) = (&shares[from.clone()], &mut to[reach(first, stride, from.len())]);
            let add = |to: &mut T, x: T| *to = *to + x;
            match (stride, to) {
                (1, to) => to.iter_mut().zip(shares).for_each(|(to, &x)| add(to, x)),
                // Pieces of a known length are what the compiler vectorises; the last element has none behind it.
                (2, [before @ .., last]) => {
                    before.chunks_exact_mut(2).zip(shares).for_each(|(to, &x)| add(&mut to[0], x));
                    add(last, shares[shares.len() - 1]);
                }
                (_, to) => to.iter_mut().step_by(stride).zip(shares).for_each(|(to, &x)| add(to, x)),
            }
        });
    }

    /// `y = x * by`, element by element.
    fn multiply<T: Lane>(x: &[T], by: &[T], y: &mut [T]) {
        for ((y, &x), &by) in y.iter_mut().zip(x).zip(by) {
            *y = x * by;
        }
    }

    /// The sums of rectangles; `rows` and `columns` say which.
    fn sum_adaptive<T: Lane>(
        rows: &[Range<usize>],
        columns: &[Range<usize>],
        width: usize,
        x: &[T],
        by: &[T],
        y: &mut [T],
    ) {
        for (i, (y, &by)) in y.iter_mut().zip(by).enumerate() {
            let (rows, columns) = (rows[i / columns.len()].clone(), columns[i % columns.len()].clone());
            let total = if columns.len() == width {
                run_sum(&x[rows.start * width..rows.end * width])
            } else {
                rows.map(|row| run_sum(&x[row * width..][columns.clone()])).sum()
            };
            *y = <T as Real>::from_f64(total) * by;
        }
    }
}

/// Runs a body for each plane, with the memory a task keeps.
fn each_plane<S: Default>(
    op: &'static str,
    plane: Plane,
    count: usize,
    body: impl Fn(usize, &mut S) + Sync,
) -> Result<()> {
    let [height, width] = plane.axes;
    let size = (height.input * width.input).max(height.output * width.output);
    parallel_for(op, count, (TASK / size).max(1), |range| {
        let mut memory = S::default();
        range.for_each(|i| body(i, &mut memory));
    })
}

/// The sizes of an input plane and of a result.
fn sizes(plane: Plane) -> (usize, usize) {
    let [height, width] = plane.axes;
    (height.input * width.input, height.output * width.output)
}

/// The elements of adaptive windows along both axes; fixed windows have [`Taps`].
fn ranges(plane: Plane) -> [Vec<Range<usize>>; 2] {
    let one = |axis: Axis| (0..if plane.adaptive { axis.output } else { 0 }).map(|o| axis.covered(o, true)).collect();
    plane.axes.map(one)
}

/// An error unless the tables of [`ranges`], [`shares`] and [`reciprocals`] fit the host's memory, together: outputs may be of any
/// length.
fn check_tables<T>(op: &'static str, plane: Plane) -> Result<()> {
    let [rows, columns] = plane.outputs();
    let lines = rows.saturating_add(columns).saturating_mul(size_of::<(Range<usize>, f64)>());
    host::check::<u8>(op, rows.saturating_mul(columns).saturating_mul(size_of::<T>()).saturating_add(lines))
}

/// Tensors: x, output, places.
pub(super) fn max(job: Job, plane: Plane, count: usize) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| with_stored!(dtype, E => max_of::<E>(op, views, plane, count)))
}

/// The memory of a task.
#[derive(Default)]
struct MaxScratch<T> {
    from: Vec<T>,
    to: Vec<T>,
}

fn max_of<E: Stored>(op: &'static str, views: &Views<'_, '_>, plane: Plane, count: usize) -> Result<()> {
    let (x, y, places) = (views.input::<E>(0)?, views.output::<E>(1)?, views.output::<i32>(2)?);
    check_tables::<()>(op, plane)?;
    let ((size, results), taps) = (sizes(plane), Taps::new(plane));
    let [rows, columns] = ranges(plane);
    let width = plane.axes[1].input;
    each_plane(op, plane, count, |i, MaxScratch { from, to }: &mut MaxScratch<E::Lane>| {
        let x = E::widen(&x[i * size..][..size], from);
        // SAFETY: every plane belongs to one task.
        let (y, places) = unsafe { (y.part(i * results, results), places.part(i * results, results)) };
        E::fill(y, to, |values| {
            let mut best = Best { values, places };
            best.clear();
            match plane.adaptive {
                false if taps.stride == 2 => return by_two::max_by_two(&taps, x, &mut best),
                false => return max_fixed(&taps, x, &mut best),
                true => {}
            }
            for (to, best) in best.values.iter_mut().zip(best.places.iter_mut()).enumerate() {
                let (value, place) = best;
                for row in rows[to / columns.len()].clone() {
                    let (column, at) = (columns[to % columns.len()].clone(), row * width);
                    let elements = x[at..][column.clone()].iter().zip(at + column.start..);
                    elements.for_each(|(&x, at)| offer((&mut *value, &mut *place), x, at as i32));
                }
            }
        });
    })
}

/// Tensors: gradient, places, input gradient.
pub(super) fn max_backward(job: Job, plane: Plane, count: usize) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| with_stored!(dtype, E => max_backward_of::<E>(op, views, plane, count)))
}

fn max_backward_of<E: Stored>(op: &'static str, views: &Views<'_, '_>, plane: Plane, count: usize) -> Result<()> {
    let (grad, places, to) = (views.input::<E>(0)?, views.input::<i32>(1)?, views.output::<E>(2)?);
    let (size, results) = sizes(plane);
    each_plane(op, plane, count, |i, (from, own): &mut (Vec<E::Lane>, Vec<E::Lane>)| {
        let grad = E::widen(&grad[i * results..][..results], from);
        // SAFETY: every plane belongs to one task.
        E::fill(unsafe { to.part(i * size, size) }, own, |to| {
            to.fill(E::Lane::ZERO);
            for (&g, &place) in grad.iter().zip(&places[i * results..][..results]) {
                // Places outside the plane, also -1, are nobody's.
                if let Some(to) = usize::try_from(place).ok().and_then(|place| to.get_mut(place)) {
                    *to = *to + g;
                }
            }
        });
    })
}

/// What each window's sum is divided by: the factors of rows of windows, and of columns.
fn shares(plane: Plane, averaging: Averaging) -> [Vec<f64>; 2] {
    let [height, width] = plane.axes;
    let one = |axis: Axis| -> Vec<f64> {
        let count = |o| axis.counted(o, plane.adaptive, averaging.count_include_pad) as f64;
        (0..axis.output).map(|o| if averaging.divisor.is_some() { 1.0 } else { count(o) }).collect()
    };
    let rows = one(height).into_iter().map(|n| n * averaging.divisor.unwrap_or(1) as f64).collect();
    [rows, one(width)]
}

/// Tensors: x, output.
pub(super) fn average(job: Job, plane: Plane, averaging: Averaging, count: usize) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| {
        with_stored!(dtype, E => {
            let (x, y) = (views.input::<E>(0)?, views.output::<E>(1)?);
            average_of(op, x, y, plane, averaging, count)
        })
    })
}

fn average_of<E: Stored>(
    op: &'static str,
    x: &[E],
    y: Output<'_, E>,
    plane: Plane,
    averaging: Averaging,
    count: usize,
) -> Result<()> {
    check_tables::<E::Lane>(op, plane)?;
    let by = reciprocals::<E::Lane>(plane, averaging);
    let ((size, results), taps) = (sizes(plane), Taps::new(plane));
    let [rows, columns] = ranges(plane);
    let width = plane.axes[1].input;
    if plane.adaptive && results == 1 {
        return parallel_for(op, count, (TASK / size).max(1), |range| {
            let (mut from, mut to) = (Vec::new(), Vec::new());
            let x = E::widen(&x[range.start * size..range.end * size], &mut from);
            // SAFETY: ranges are disjoint.
            E::fill(unsafe { y.part(range.start, range.len()) }, &mut to, |y| means(x, size, by[0], y));
        });
    }
    each_plane(op, plane, count, |i, [from, to, sums]: &mut [Vec<E::Lane>; 3]| {
        let x = E::widen(&x[i * size..][..size], from);
        // SAFETY: every plane belongs to one task.
        E::fill(unsafe { y.part(i * results, results) }, to, |y| {
            if plane.adaptive {
                return sum_adaptive(&rows, &columns, width, x, &by, y);
            }
            sums.clear();
            sums.resize(results, E::Lane::ZERO);
            sum_fixed(&taps, x, sums);
            multiply(sums, &by, y);
        });
    })
}

/// One divided by each window's divisor.
fn reciprocals<T: Lane>(plane: Plane, averaging: Averaging) -> Vec<T> {
    let [rows, columns] = shares(plane, averaging);
    rows.iter().flat_map(|r| columns.iter().map(move |c| <T as Real>::from_f64((r * c).recip()))).collect()
}

/// Tensors: gradient, input gradient.
pub(super) fn average_backward(job: Job, plane: Plane, averaging: Averaging, count: usize) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| {
        with_stored!(dtype, E => {
            let (grad, to) = (views.input::<E>(0)?, views.output::<E>(1)?);
            average_backward_of(op, grad, to, plane, averaging, count)
        })
    })
}

fn average_backward_of<E: Stored>(
    op: &'static str,
    grad: &[E],
    to: Output<'_, E>,
    plane: Plane,
    averaging: Averaging,
    count: usize,
) -> Result<()> {
    check_tables::<E::Lane>(op, plane)?;
    let by = reciprocals::<E::Lane>(plane, averaging);
    let ((size, results), taps) = (sizes(plane), Taps::new(plane));
    let [height, width] = plane.axes;
    if plane.adaptive && results == 1 {
        return parallel_for(op, count, (TASK / size).max(1), |range| {
            let (mut from, mut own) = (Vec::new(), Vec::new());
            let grad = E::widen(&grad[range.clone()], &mut from);
            // SAFETY: ranges are disjoint.
            let to = unsafe { to.part(range.start * size, range.len() * size) };
            E::fill(to, &mut own, |to| {
                to.chunks_exact_mut(size).zip(grad).for_each(|(to, &g)| to.fill(g * by[0]));
            });
        });
    }
    each_plane(op, plane, count, |i, [from, own, shared]: &mut [Vec<E::Lane>; 3]| {
        shared.resize(results, E::Lane::ZERO);
        multiply(E::widen(&grad[i * results..][..results], from), &by, shared);
        // SAFETY: every plane belongs to one task.
        E::fill(unsafe { to.part(i * size, size) }, own, |to| {
            to.fill(E::Lane::ZERO);
            if plane.adaptive {
                for (i, &g) in shared.iter().enumerate() {
                    let columns = width.covered(i % width.output, true);
                    for row in height.covered(i / width.output, true) {
                        to[row * width.input..][columns.clone()].iter_mut().for_each(|to| *to = *to + g);
                    }
                }
            } else {
                spread_fixed(&taps, shared, to);
            }
        });
    })
}
