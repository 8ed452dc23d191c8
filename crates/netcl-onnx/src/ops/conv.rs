//! Convolutions of any number of axes, and their transposes; with whole numbers and deformed grids as well.

use netcl_nn::autograd::ops::conv::{ConvParams, conv_transpose2d, conv2d};
use netcl_nn::autograd::ops::layout::{cat, reshape};
use netcl_nn::autograd::ops::pad::{PadMode, pad};
use netcl_nn::autograd::{Result, Tensor};

use super::layout::lengths;
use super::{Op, Table, one};
use crate::array::{bad, count, count_of};
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[("Conv", conv as Op), ("ConvTranspose", conv_transpose)];

/// What Conv, its transposes and pools say of each axis.
#[derive(Clone, Debug)]
pub(super) struct Geometry {
    pub(super) kernel: Vec<usize>,
    pub(super) stride: Vec<usize>,
    pub(super) dilation: Vec<usize>,
    /// Before and after each axis.
    pub(super) pads: Vec<(usize, usize)>,
}

impl Geometry {
    /// Reads attributes; `kernel` is what the weight says.
    pub(super) fn of(call: &Call<'_>, lengths_of_input: &[usize], kernel: Option<&[usize]>) -> Result<Geometry> {
        let rank = lengths_of_input.len();
        let list = |name: &str, n: usize| match call.int_list(name) {
            None => Ok(None),
            Some(list) if list.len() == n => Ok(Some(lengths(list)?)),
            Some(list) => Err(bad(format!("{name} has {} numbers for {rank} axes", list.len()))),
        };
        let kernel = match (kernel, list("kernel_shape", rank)?) {
            (Some(kernel), _) => kernel.to_vec(),
            (None, Some(kernel)) => kernel,
            (None, None) => return Err(bad("kernel_shape is missing")),
        };
        let stride = list("strides", rank)?.unwrap_or_else(|| vec![1; rank]);
        let dilation = list("dilations", rank)?.unwrap_or_else(|| vec![1; rank]);
        if kernel.len() != rank || [&kernel, &stride, &dilation].iter().any(|list| list.contains(&0)) {
            return Err(bad("kernels, strides and dilations are 1 or more for each axis"));
        }
        let given = list("pads", 2 * rank)?.unwrap_or_else(|| vec![0; 2 * rank]);
        [("kernels", &kernel), ("strides", &stride), ("dilations", &dilation), ("pads", &given)]
            .into_iter()
            .try_for_each(|(name, list)| bounded(name, list, 1 << 24))?;
        bounded("the input's lengths", lengths_of_input, 1 << 32)?;
        let mut pads: Vec<(usize, usize)> = (0..rank).map(|i| (given[i], given[i + rank])).collect();
        let mode = call.text("auto_pad").unwrap_or("NOTSET");
        if mode == "VALID" {
            pads = vec![(0, 0); rank];
        } else if mode.starts_with("SAME") {
            for i in 0..rank {
                let n = lengths_of_input[i];
                let span = (kernel[i] - 1) * dilation[i] + 1;
                let all = ((n.div_ceil(stride[i]).max(1) - 1) * stride[i] + span).saturating_sub(n);
                let small = all / 2;
                pads[i] = if mode == "SAME_LOWER" { (all - small, small) } else { (small, all - small) };
            }
        }
        Ok(Geometry { kernel, stride, dilation, pads })
    }

    /// How many elements of an axis one window spans.
    pub(super) fn span(&self, axis: usize) -> usize {
        (self.kernel[axis] - 1) * self.dilation[axis] + 1
    }

    /// How many windows lie along each axis.
    pub(super) fn windows(&self, lengths_of_input: &[usize]) -> Result<Vec<usize>> {
        let windows = |(i, &n): (usize, &usize)| {
            let (before, after) = self.pads[i];
            (n + before + after).checked_sub(self.span(i)).map(|room| room / self.stride[i] + 1)
        };
        let windows = lengths_of_input.iter().enumerate().map(windows).collect::<Option<_>>();
        windows.ok_or_else(|| bad("a window is longer than the padded input"))
    }
}

/// Refuses large numbers, so that sums and products of two stay within range.
pub(super) fn bounded(name: &str, list: &[usize], most: usize) -> Result<()> {
    match list.iter().find(|&&n| n > most) {
        Some(n) => Err(bad(format!("{name} are at most {most}, got {n}"))),
        None => Ok(()),
    }
}

/// Pads the last axes of a tensor.
pub(super) fn padded(x: &Tensor, sides: &[(usize, usize)], value: f64) -> Result<Tensor> {
    if sides.iter().all(|&side| side == (0, 0)) {
        return Ok(x.clone());
    }
    let outer = x.shape().ndim() - sides.len();
    let grown =
        x.shape().iter().enumerate().map(|(i, &n)| i.checked_sub(outer).map_or(n, |i| n + sides[i].0 + sides[i].1));
    count_of(&grown.collect::<Vec<_>>(), x.size())?;
    let mut all = vec![(0, 0); outer];
    all.extend(sides.iter().map(|&(a, b)| (a as isize, b as isize)));
    pad(x, &all, PadMode::Constant(value))
}

fn groups(call: &Call<'_>) -> Result<usize> {
    usize::try_from(call.int("group", 1)).ok().filter(|&n| n > 0).ok_or_else(|| bad("group is 1 or more"))
}

/// Length 1 in front of the only axis, so that sequences are planes.
fn planes(x: &Tensor) -> Result<Tensor> {
    if x.shape().ndim() == 3 { x.unsqueeze(2) } else { Ok(x.clone()) }
}

fn conv(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, w) = (call.tensor(0)?, call.tensor(1)?);
    one(convolved(call, &x, &w, call.optional_tensor(2)?.as_ref())?)
}

/// A convolution with a node's attributes.
pub(super) fn convolved(call: &Call<'_>, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (shape, kernel) = (x.shape().to_vec(), w.shape().to_vec());
    if shape.len() < 3 || kernel.len() != shape.len() {
        return Err(bad(format!("input {shape:?} and weight {kernel:?} do not fit")));
    }
    let geometry = Geometry::of(call, &shape[2..], Some(&kernel[2..]))?;
    let groups = groups(call)?;
    // Small inputs with wide pads would make large results.
    let out = [&[shape[0], kernel[0]], &geometry.windows(&shape[2..])?[..]].concat();
    count_of(&out, x.size())?;
    if shape.len() <= 4 {
        let two = |list: &[usize], first| if list.len() == 1 { [first, list[0]] } else { [list[0], list[1]] };
        let side = |i: usize| {
            if geometry.pads.len() == 1 && i == 0 { (0, 0) } else { geometry.pads[i.min(geometry.pads.len() - 1)] }
        };
        let params = ConvParams {
            stride: two(&geometry.stride, 1),
            padding: [side(0).0, side(0).1, side(1).0, side(1).1],
            dilation: two(&geometry.dilation, 1),
            groups,
        };
        let out = conv2d(&planes(x)?, &planes(w)?, bias, &params)?;
        return if shape.len() == 3 { out.squeeze(&[2]) } else { Ok(out) };
    }
    // More axes: a sum over the places of the first one, each a convolution of one axis fewer, folded into the batch.
    let x = padded(x, &geometry.pads, 0.0)?;
    let out = deep(&x, w, &geometry, groups)?;
    match bias {
        Some(bias) => {
            let mut to = vec![1; shape.len()];
            to[1] = bias.size();
            out + reshape(bias, to)?
        }
        None => Ok(out),
    }
}

/// A convolution of three or more axes without padding.
fn deep(x: &Tensor, w: &Tensor, geometry: &Geometry, groups: usize) -> Result<Tensor> {
    if x.shape().ndim() == 4 {
        let two = |list: &[usize]| [list[0], list[1]];
        let params =
            ConvParams { stride: two(&geometry.stride), padding: [0; 4], dilation: two(&geometry.dilation), groups };
        return conv2d(x, w, None, &params);
    }
    let (step, dilation) = (geometry.stride[0], geometry.dilation[0]);
    let taps = geometry.kernel[0];
    let length = x.shape()[2].checked_sub((taps - 1) * dilation + 1).map(|rest| rest / step + 1);
    let length = length.ok_or_else(|| bad("the kernel is longer than the padded input"))?;
    let inner = Geometry {
        kernel: geometry.kernel[1..].to_vec(),
        stride: geometry.stride[1..].to_vec(),
        dilation: geometry.dilation[1..].to_vec(),
        pads: geometry.pads[1..].to_vec(),
    };
    let mut sum: Option<Tensor> = None;
    for tap in 0..taps {
        let part = super::layout::sliced(&x.clone().into(), 2, tap * dilation, step as isize, length)?;
        let part = part.to_tensor(x.queue())?.movedim(&[2], &[1])?;
        let rows = part.shape().to_vec();
        let flat = [&[rows[0] * rows[1]], &rows[2..]].concat();
        let out = deep(&reshape(&part.contiguous()?, flat)?, &w.select(2, tap as isize)?, &inner, groups)?;
        let to = [&[rows[0], length], &out.shape()[1..]].concat();
        let out = reshape(&out, to)?.movedim(&[1], &[2])?;
        sum = Some(match sum {
            Some(sum) => (sum + out)?,
            None => out,
        });
    }
    sum.ok_or_else(|| bad("a kernel without elements"))
}

fn conv_transpose(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, w) = (call.tensor(0)?, call.tensor(1)?);
    let (shape, kernel) = (x.shape().to_vec(), w.shape().to_vec());
    if shape.len() < 3 || kernel.len() != shape.len() {
        return Err(bad(format!("input {shape:?} and weight {kernel:?} do not fit")));
    }
    let rank = shape.len() - 2;
    let geometry = Geometry::of(call, &shape[2..], Some(&kernel[2..]))?;
    let mut extra = match call.int_list("output_padding") {
        Some(list) if list.len() == rank => lengths(list)?,
        _ => vec![0; rank],
    };
    bounded("output_padding", &extra, 1 << 24)?;
    let bare = |i: usize| (shape[i + 2].max(1) - 1) * geometry.stride[i] + geometry.span(i);
    let mut pads = geometry.pads.clone();
    let mode = call.text("auto_pad").unwrap_or("NOTSET");
    let wanted = match call.int_list("output_shape") {
        Some(list) if list.len() >= rank => Some(lengths(&list[list.len() - rank..])?),
        _ if mode.starts_with("SAME") => Some((0..rank).map(|i| shape[i + 2] * geometry.stride[i]).collect()),
        _ => None,
    };
    if let Some(wanted) = wanted {
        for i in 0..rank {
            let all = (bare(i) + extra[i]).saturating_sub(wanted[i]);
            extra[i] += wanted[i].saturating_sub(bare(i) + extra[i]);
            pads[i] = if mode == "SAME_UPPER" { (all / 2, all - all / 2) } else { (all - all / 2, all / 2) };
        }
    }
    // Everything first, with what a longer output adds at the end; then the edges are cut off.
    let bias = call.optional_tensor(2)?;
    let groups = groups(call)?;
    let whole: Vec<usize> = (0..rank).map(|i| bare(i) + extra[i]).collect();
    count_of(&[&[shape[0], kernel[1].saturating_mul(groups)], &whole[..]].concat(), x.size())?;
    let mut out = spread(&x, &w, &geometry, groups)?;
    let longer = (0..rank).map(|i| Some((0, whole[i].checked_sub(out.shape()[i + 2])?))).collect::<Option<Vec<_>>>();
    out = padded(&out, &longer.ok_or_else(|| bad(format!("input {shape:?} is too short")))?, 0.0)?;
    for (i, &(before, after)) in pads.iter().enumerate() {
        let length =
            out.shape()[i + 2].checked_sub(before + after).ok_or_else(|| bad("pads cut more than there is"))?;
        out = out.narrow(i as isize + 2, before as isize, length)?;
    }
    if let Some(bias) = bias {
        let mut to = vec![1; shape.len()];
        to[1] = bias.size();
        out = (out + reshape(&bias, to)?)?;
    }
    one(out)
}

/// A transposed convolution without padding.
fn spread(x: &Tensor, w: &Tensor, geometry: &Geometry, groups: usize) -> Result<Tensor> {
    let rank = geometry.kernel.len();
    if rank <= 2 {
        let two = |list: &[usize]| if rank == 1 { [1, list[0]] } else { [list[0], list[1]] };
        let params =
            ConvParams { stride: two(&geometry.stride), padding: [0; 4], dilation: two(&geometry.dilation), groups };
        let out = conv_transpose2d(&planes(x)?, &planes(w)?, None, &params, [0, 0])?;
        return if rank == 1 { out.squeeze(&[2]) } else { Ok(out) };
    }
    let inner = Geometry {
        kernel: geometry.kernel[1..].to_vec(),
        stride: geometry.stride[1..].to_vec(),
        dilation: geometry.dilation[1..].to_vec(),
        pads: geometry.pads[1..].to_vec(),
    };
    let (n, step, dilation, taps) = (x.shape()[2], geometry.stride[0], geometry.dilation[0], geometry.kernel[0]);
    let length = (n.max(1) - 1) * step + (taps - 1) * dilation + 1;
    let mut planes: Vec<Option<Tensor>> = vec![None; count(&[length])?];
    for at in 0..n {
        for tap in 0..taps {
            let part = spread(&x.select(2, at as isize)?, &w.select(2, tap as isize)?, &inner, groups)?;
            let place = &mut planes[at * step + tap * dilation];
            *place = Some(match place.take() {
                Some(sum) => (sum + part)?,
                None => part,
            });
        }
    }
    let Some(like) = planes.iter().flatten().next().cloned() else { return Err(bad("an axis without elements")) };
    let planes = planes.into_iter().map(|plane| match plane {
        Some(plane) => plane.unsqueeze(2),
        None => like.detach().zeros_like()?.unsqueeze(2),
    });
    let planes = planes.collect::<Result<Vec<_>>>()?;
    cat(&planes.iter().collect::<Vec<_>>(), 2)
}
