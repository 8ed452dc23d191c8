//! Pools over any number of axes: windows are views, so that their gradients are those of reductions.

use netcl_nn::autograd::ops::pool as ours;
use netcl_nn::autograd::ops::unfold::{Windows, windows};
use netcl_nn::autograd::{Result, Tensor};

use super::conv::{Geometry, padded};
use super::{Op, Table, one};
use crate::array::{Array, bad, count, count_of, product, strides};
use crate::kind::Kind;
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("AveragePool", average as Op),
    ("GlobalAveragePool", global),
    ("GlobalLpPool", global),
    ("GlobalMaxPool", global),
    ("LpPool", lp),
    ("MaxPool", max),
    ("MaxUnpool", unpool),
];

/// The geometry with as much padding after each axis as the last window needs.
fn geometry(call: &Call<'_>, shape: &[usize]) -> Result<(Geometry, Vec<usize>)> {
    let inside = shape.get(2..).ok_or_else(|| bad(format!("expected (N, C, ...), got {shape:?}")))?;
    let mut geometry = Geometry::of(call, inside, None)?;
    let mut counts = geometry.windows(inside)?;
    for (i, &n) in inside.iter().enumerate() {
        let ((before, after), step) = (geometry.pads[i], geometry.stride[i]);
        let left = (n + before + after - geometry.span(i)) % step;
        // A window that begins behind the input does not count.
        if call.flag("ceil_mode") && left != 0 && counts[i] * step < n + before {
            counts[i] += 1;
        }
        let needed = (counts[i] - 1) * step + geometry.span(i);
        geometry.pads[i].1 = after.max(needed.saturating_sub(n + before));
    }
    count_of(&[&shape[..2], &counts].concat(), product(shape))?;
    Ok((geometry, counts))
}

/// The windows of a padded tensor: their elements are the last axes.
fn views(x: &Tensor, geometry: &Geometry, counts: &[usize], fill: f64) -> Result<Tensor> {
    let mut x = padded(x, &geometry.pads, fill)?;
    for (i, &count) in counts.iter().enumerate() {
        let at = i as isize + 2;
        let length = (count - 1) * geometry.stride[i] + (geometry.kernel[i] - 1) * geometry.dilation[i] + 1;
        x = x.narrow(at, 0, length)?;
        x = windows(
            &x,
            at,
            Windows { size: geometry.kernel[i], step: geometry.stride[i], dilation: geometry.dilation[i] },
        )?;
    }
    Ok(x)
}

/// The axes that hold the elements of windows.
fn window_axes(rank: usize) -> Vec<isize> {
    (1..=rank as isize).map(|i| -i).collect()
}

fn max(call: &Call<'_>) -> Result<Vec<Value>> {
    if call.node.outputs.len() > 1 || !call.kind()?.is_float() {
        return max_on_host(call);
    }
    let x = call.tensor(0)?;
    let (geometry, counts) = geometry(call, x.shape())?;
    let symmetric = geometry.pads.iter().zip(&geometry.kernel).all(|(&(a, b), &k)| a == b && a <= k / 2);
    if let ([h, w], true) = (&geometry.kernel[..], symmetric) {
        let window = ours::Window {
            kernel: [*h, *w],
            stride: [geometry.stride[0], geometry.stride[1]],
            padding: [geometry.pads[0].0, geometry.pads[1].0],
            dilation: [geometry.dilation[0], geometry.dilation[1]],
            ceil_mode: false,
        };
        return one(ours::max_pool2d(&x, &window)?);
    }
    let rank = counts.len();
    one(views(&x, &geometry, &counts, f64::NEG_INFINITY)?.max(&window_axes(rank)[..], false)?)
}

/// Where the elements of windows lie.
struct Places<'g> {
    shape: &'g [usize],
    geometry: &'g Geometry,
    counts: &'g [usize],
    steps: Vec<usize>,
    own: Vec<usize>,
    taps: Vec<usize>,
}

impl<'g> Places<'g> {
    fn new(shape: &'g [usize], geometry: &'g Geometry, counts: &'g [usize]) -> Result<Places<'g>> {
        // Each element is looked at, those in the padding as well.
        count(&[product(counts), product(&geometry.kernel)])?;
        let (steps, own, taps) = (strides(shape), strides(counts), strides(&geometry.kernel));
        Ok(Places { shape, geometry, counts, steps, own, taps })
    }

    /// The places of a window's elements that lie inside the input.
    fn of(&self, window: usize) -> impl Iterator<Item = usize> + '_ {
        (0..product(&self.geometry.kernel)).filter_map(move |tap| {
            (0..self.counts.len()).try_fold(0, |at, d| {
                let start = window / self.own[d] % self.counts[d] * self.geometry.stride[d];
                let i = start + tap / self.taps[d] % self.geometry.kernel[d] * self.geometry.dilation[d];
                let inside = i.checked_sub(self.geometry.pads[d].0).filter(|&i| i < self.shape[d]);
                inside.map(|i| at + i * self.steps[d])
            })
        })
    }
}

/// With the places of the largest elements, or of whole numbers.
fn max_on_host(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let (geometry, counts) = geometry(call, &x.shape)?;
    let windows = Places::new(&x.shape[2..], &geometry, &counts)?;
    let values = x.to_floats()?;
    let plane = product(&x.shape[2..]);
    let column_major = call.int("storage_order", 0) == 1;
    let (mut places, mut indices) = (Vec::new(), Vec::new());
    for image in 0..count(&x.shape[..2])? {
        for window in 0..product(&counts) {
            let larger = |best: usize, at: usize| {
                if values[image * plane + at] > values[image * plane + best] { at } else { best }
            };
            let best = windows.of(window).reduce(larger);
            let best = best.ok_or_else(|| bad("a window lies outside of the input"))?;
            places.push(image * plane + best);
            indices.push((image * plane + if column_major { transposed(best, &x.shape[2..]) } else { best }) as i64);
        }
    }
    let shape = [&x.shape[..2], &counts].concat();
    Ok(vec![
        super::select::taken(call, call.value(0)?, &places, shape.clone())?,
        Array::ints(Kind::I64, shape, indices).into(),
    ])
}

/// The number of a place when the first axis runs fastest.
fn transposed(at: usize, shape: &[usize]) -> usize {
    let mut step = 1;
    strides(shape).iter().zip(shape).fold(0, |sum, (&own, &n)| {
        let sum = sum + at / own % n * step;
        step *= n;
        sum
    })
}

fn average(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let (geometry, counts) = geometry(call, x.shape())?;
    let rank = counts.len();
    let sums = views(&x, &geometry, &counts, 0.0)?.sum(&window_axes(rank)[..], false)?;
    // How many elements of each window count: those of the input, or of its stated padding too.
    let stated = Geometry::of(call, &x.shape()[2..], None)?.pads;
    let mut sizes = vec![1.0];
    for (d, &n) in x.shape()[2..].iter().enumerate() {
        let before = geometry.pads[d].0;
        let (first, last) =
            if call.flag("count_include_pad") { (0, before + n + stated[d].1) } else { (before, before + n) };
        let counted = |window: usize| {
            let start = window * geometry.stride[d];
            let taps_below =
                |end: usize| end.saturating_sub(start).div_ceil(geometry.dilation[d]).min(geometry.kernel[d]);
            (taps_below(last) - taps_below(first)) as f64
        };
        let along: Vec<f64> = (0..counts[d]).map(counted).collect();
        sizes = sizes.iter().flat_map(|size| along.iter().map(move |n| size * n)).collect();
    }
    let sizes = Array::floats(call.kind()?, [&[1, 1], &counts[..]].concat(), sizes).to_tensor(call.queue)?;
    one((sums / sizes)?)
}

fn lp(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let (geometry, counts) = geometry(call, x.shape())?;
    let p = call.int("p", 2) as f64;
    let powers = x.abs()?.pow(p)?;
    let rank = counts.len();
    one(views(&powers, &geometry, &counts, 0.0)?.sum(&window_axes(rank)[..], false)?.pow(1.0 / p)?)
}

fn global(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let axes: Vec<isize> = (2..x.shape().ndim() as isize).collect();
    one(match call.node.operator.as_str() {
        "GlobalMaxPool" => x.max(&axes[..], true)?,
        "GlobalLpPool" => {
            let p = call.int("p", 2) as f64;
            x.abs()?.pow(p)?.sum(&axes[..], true)?.pow(1.0 / p)?
        }
        _ => x.mean(&axes[..], true)?,
    })
}

fn unpool(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, indices) = (call.array(0)?, call.ints(1)?);
    let natural = |i: usize| -> Result<usize> {
        let geometry = Geometry::of(call, &x.shape[2..], None)?;
        let (before, after) = geometry.pads[i];
        Ok(((x.shape[i + 2].max(1) - 1) * geometry.stride[i] + geometry.kernel[i]).saturating_sub(before + after))
    };
    let mut shape = x.shape.clone();
    for i in 0..shape.len().saturating_sub(2) {
        shape[i + 2] = natural(i)?;
    }
    count(&shape)?;
    let wanted = match call.optional_ints(2)? {
        Some(wanted) => super::layout::lengths(&wanted)?,
        None => shape.clone(),
    };
    if wanted.len() != shape.len() || indices.len() != x.len() {
        return Err(bad(format!("shape {:?}, {} indices and output {wanted:?} do not fit", x.shape, indices.len())));
    }
    // Indices count in the natural size.
    let (own, to) = (strides(&shape), strides(&wanted));
    let mut out = Array::full(x.kind, wanted.clone(), 0.0)?;
    let place = |&at: &i64| {
        let at = usize::try_from(at).map_err(|_| bad("an index is negative"))?;
        let at = (0..own.len()).map(|d| at / own[d] % shape[d].max(1) * to[d]).sum();
        if at < out.len() { Ok(at) } else { Err(bad("an index is outside of the output")) }
    };
    let places = indices.iter().map(place).collect::<Result<Vec<_>>>()?;
    out.put(&places, &x)?;
    one(out)
}
