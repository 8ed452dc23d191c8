//! Operations that move or view elements without computing with them. Views share memory; the rest are copies.

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::host;
use netcl_core::shape::{Layout, Shape, Slice};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use crate::elementwise::{le, sub, where_};

pub use netcl_core::tensor::reshape;

/// The axes in another order, as a view.
pub fn permute(x: &Tensor, axes: &[isize]) -> Result<Tensor> {
    x.permute(axes)
}

/// Two axes exchanged, as a view.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::layout::transpose;
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
/// assert_eq!(transpose(&x, 0, 1)?.to_host::<f32>()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn transpose(x: &Tensor, first: isize, second: isize) -> Result<Tensor> {
    let (a, b) = (x.shape().axis("transpose", first)?, x.shape().axis("transpose", second)?);
    let mut axes: Vec<isize> = (0..x.ndim() as isize).collect();
    axes.swap(a, b);
    x.permute(&axes)
}

/// The elements repeated along new or length-1 axes, as a view.
pub fn expand(x: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    x.expand(shape)
}

/// Without axes of length 1: the given ones, or all of them where none is given. A view.
pub fn squeeze(x: &Tensor, axes: &[isize]) -> Result<Tensor> {
    let all: Vec<isize> = (0..x.ndim()).filter(|&a| x.shape()[a] == 1).map(|a| a as isize).collect();
    x.with_layout(x.layout().squeeze("squeeze", if axes.is_empty() { &all } else { axes })?)
}

/// With a new axis of length 1, as a view.
pub fn unsqueeze(x: &Tensor, axis: isize) -> Result<Tensor> {
    x.with_layout(x.layout().unsqueeze("unsqueeze", axis)?)
}

/// A part of one axis with Python's meaning of start, stop and step, as a view.
pub fn slice(x: &Tensor, axis: isize, start: Option<isize>, stop: Option<isize>, step: isize) -> Result<Tensor> {
    x.slice(axis, Slice::new(start, stop, step))
}

/// The elements in reverse order along some axes, as a view.
pub fn flip(x: &Tensor, axes: &[isize]) -> Result<Tensor> {
    let mut out = x.clone();
    for &axis in axes {
        out = out.slice(axis, Slice::new(None, None, -1))?;
    }
    Ok(out)
}

/// The tensor itself if its elements lie densely in row-major order, else a copy in which they do.
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    x.contiguous()
}

/// Tensors joined along an existing axis.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::layout::{cat, split};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let wide = cat(&[&x, &x], 1)?;
/// assert_eq!(wide.to_host::<f32>()?, [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
/// assert_eq!(split(&wide, &[1, 3], 1)?[1].shape().to_vec(), [2, 3]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn cat(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
    let Some(first) = tensors.first() else { return Err(Error::argument("cat", "there is nothing to join")) };
    let axis = first.shape().axis("cat", axis)?;
    let mut dims = first.shape().to_vec();
    dims[axis] = 0;
    for tensor in tensors {
        first.queue().check_same_device("cat", tensor.queue())?;
        if tensor.dtype() != first.dtype() {
            return Err(Error::DtypeMismatch { op: "cat", lhs: first.dtype(), rhs: tensor.dtype() });
        }
        let others = |t: &Tensor| [&t.shape()[..axis], &t.shape()[axis + 1..]].concat();
        if tensor.ndim() != first.ndim() || others(tensor) != others(first) {
            let why = format!("the first tensor has shape {}; only axis {axis} may differ", first.shape());
            return Err(Error::Shape { op: "cat", shape: tensor.shape().clone(), why });
        }
        dims[axis] += tensor.shape()[axis];
    }
    let out = Tensor::uninit(first.queue(), dims, first.dtype())?;
    let mut at = 0isize;
    for tensor in tensors {
        let next = at + tensor.shape()[axis] as isize;
        out.slice(axis as isize, Slice::new(Some(at), Some(next), 1))?.assign(tensor)?;
        at = next;
    }
    Ok(out)
}

/// Tensors of one shape joined along a new axis.
pub fn stack(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
    if let [first, rest @ ..] = tensors
        && let Some(other) = rest.iter().find(|t| t.shape() != first.shape())
    {
        let why = format!("the first tensor has shape {}; all must be equal", first.shape());
        return Err(Error::Shape { op: "stack", shape: other.shape().clone(), why });
    }
    let raised: Vec<Tensor> = tensors.iter().map(|t| unsqueeze(t, axis)).collect::<Result<_>>()?;
    cat(&raised.iter().collect::<Vec<_>>(), axis)
}

/// Views of consecutive parts with the given lengths, which must add up to the axis.
pub fn split(x: &Tensor, lengths: &[usize], axis: isize) -> Result<Vec<Tensor>> {
    let at = x.shape().axis("split", axis)?;
    host::check::<Tensor>("split", lengths.len())?;
    if lengths.iter().copied().fold(0, usize::saturating_add) != x.shape()[at] {
        let what = format!("the parts {lengths:?} do not add up to axis {axis} of shape {}", x.shape());
        return Err(Error::argument("split", what));
    }
    let mut start = 0isize;
    lengths
        .iter()
        .map(|&n| {
            let part = Slice::new(Some(start), Some(start + n as isize), 1);
            start += n as isize;
            x.slice(axis, part)
        })
        .collect()
}

/// Views of at most `n` parts of equal length; the last may be shorter.
pub fn chunk(x: &Tensor, n: usize, axis: isize) -> Result<Vec<Tensor>> {
    let length = x.shape()[x.shape().axis("chunk", axis)?];
    if n == 0 {
        return Err(Error::argument("chunk", "at least one part is needed"));
    }
    let size = length.div_ceil(n).max(1);
    let mut lengths = host::filled("chunk", length / size, size)?;
    if !length.is_multiple_of(size) || lengths.is_empty() {
        lengths.push(length % size);
    }
    split(x, &lengths, axis)
}

/// The tensor repeated along each axis so many times; new axes come first.
pub fn repeat(x: &Tensor, times: &[usize]) -> Result<Tensor> {
    if times.len() < x.ndim() {
        let what = format!("{} repeat counts for {} axes; give one per axis", times.len(), x.ndim());
        return Err(Error::argument("repeat", what));
    }
    let new = times.len() - x.ndim();
    // Each axis becomes a pair (repeats, length): expand the pairs, copy, and merge them.
    let lengths: Vec<usize> = (0..times.len()).map(|i| if i < new { 1 } else { x.shape()[i - new] }).collect();
    let raised: Vec<usize> = lengths.iter().flat_map(|&n| [1, n]).collect();
    let pairs: Vec<usize> = times.iter().zip(&lengths).flat_map(|(&t, &n)| [t, n]).collect();
    let out: Vec<usize> = times.iter().zip(&lengths).map(|(&t, &n)| t.saturating_mul(n)).collect();
    reshape(&reshape(x, raised)?.expand(pairs)?.contiguous()?, out)
}

/// Windows along an axis: how many elements each has, how far one begins after the other, how far its elements lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Elements of a window.
    pub size: usize,
    /// From the beginning of a window to that of the next.
    pub step: usize,
    /// From an element of a window to the next; 1 for neighbours.
    pub dilation: usize,
}

impl Windows {
    /// How many fit into so many elements.
    pub fn count(&self, op: &'static str, length: usize) -> Result<usize> {
        let span = self.size.checked_sub(1).and_then(|gaps| gaps.checked_mul(self.dilation)?.checked_add(1));
        match span {
            Some(span) if span <= length && self.step > 0 && self.dilation > 0 => Ok((length - span) / self.step + 1),
            _ => {
                let what = format!(
                    "windows of {} elements, {} apart, every {} do not fit into {length} elements; all must be at least 1",
                    self.size, self.dilation, self.step
                );
                Err(Error::argument(op, what))
            }
        }
    }
}

/// Windows along an axis, as a view: the axis counts them, a new last axis their elements.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::layout::{Windows, unfold};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0, 3.0, 4.0, 5.0], [5])?;
/// let pairs = unfold(&x, 0, Windows { size: 2, step: 3, dilation: 1 })?;
/// assert_eq!(pairs.to_host::<f32>()?, [1.0, 2.0, 4.0, 5.0]);
/// assert!(pairs.shares_storage(&x));
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn unfold(x: &Tensor, axis: isize, windows: Windows) -> Result<Tensor> {
    let at = x.shape().axis("unfold", axis)?;
    let (mut shape, mut strides) = (x.shape().to_vec(), x.layout().strides().to_vec());
    shape[at] = windows.count("unfold", shape[at])?;
    shape.push(windows.size);
    strides.push(strides[at].saturating_mul(windows.dilation as isize));
    strides[at] = strides[at].saturating_mul(windows.step as isize);
    x.with_layout(Layout::strided(shape.into(), &strides, x.layout().offset())?)
}

/// The gradient of the input of [`unfold`], whose axis has so many elements: each is the sum of its places in windows, in a
/// fixed order.
pub fn unfold_backward(grad: &Tensor, axis: isize, windows: Windows, length: usize) -> Result<Tensor> {
    let op = "unfold_backward";
    let mut shape = grad.shape().to_vec();
    let (last, count) = (shape.pop(), windows.count(op, length)?);
    let at = Shape::from(shape.clone()).axis(op, axis)?;
    if last != Some(windows.size) || shape[at] != count {
        let why = format!("axis {axis} and the last must have lengths {count} and {}", windows.size);
        return Err(Error::Shape { op, shape: grad.shape().clone(), why });
    }
    shape[at] = length;
    let axis = at as isize;
    if windows.step > (windows.size - 1).saturating_mul(windows.dilation) {
        // Nothing overlaps.
        let out = Tensor::from_shape(grad.queue(), shape, grad.dtype())?;
        unfold(&out, axis, windows)?.assign(grad)?;
        return Ok(out);
    }
    let out = Tensor::from_shape(grad.queue(), shape, grad.dtype().accumulator())?;
    for i in 0..windows.size {
        let first = i * windows.dilation;
        let end = first + (count - 1) * windows.step + 1;
        let part = out.slice(axis, Slice::new(Some(first as isize), Some(end as isize), windows.step as isize))?;
        let share = grad.select(-1, i as isize)?.cast(out.dtype())?;
        crate::elementwise::apply("add", &[(&part).into(), (&share).into()], &[], Some(&part))?;
    }
    out.cast(grad.dtype())
}

/// The lower triangle of the last two axes, up to and including a diagonal; zero elsewhere.
pub fn tril(x: &Tensor, diagonal: isize) -> Result<Tensor> {
    triangle("tril", x, diagonal, true)
}

/// The upper triangle of the last two axes, from a diagonal on; zero elsewhere.
pub fn triu(x: &Tensor, diagonal: isize) -> Result<Tensor> {
    triangle("triu", x, diagonal, false)
}

fn triangle(op: &'static str, x: &Tensor, diagonal: isize, lower: bool) -> Result<Tensor> {
    let &[.., rows, columns] = &x.shape()[..] else {
        let why = "at least two axes are needed".to_owned();
        return Err(Error::Shape { op, shape: x.shape().clone(), why });
    };
    // column - row, compared in f32: exact up to 2^24 rows.
    let column = arange(x.queue(), 0.0, columns as f64, 1.0, DType::F32)?;
    let row = reshape(&arange(x.queue(), 0.0, rows as f64, 1.0, DType::F32)?, [rows, 1])?;
    let distance = sub(&column, &row)?;
    if lower {
        where_(&le(&distance, diagonal as f64)?, x, 0.0)
    } else {
        where_(&le(&distance, diagonal as f64 - 1.0)?, 0.0, x)
    }
}

/// `start`, `start + step`, ... up to but not including `stop`.
pub fn arange(queue: &Queue, start: f64, stop: f64, step: f64, dtype: DType) -> Result<Tensor> {
    if step == 0.0 || !start.is_finite() || !stop.is_finite() || !step.is_finite() {
        let what = format!("from {start} to {stop} by {step}: the numbers must be finite and the step not zero");
        return Err(Error::argument("arange", what));
    }
    let n = ((stop - start) / step).ceil().max(0.0) as usize;
    let values = host::collect("arange", (0..n).map(|i| start + i as f64 * step))?;
    let options = netcl_core::tensor::HostOptions { dtype: Some(dtype), ..Default::default() };
    Tensor::from_host_with(queue, &values, [n], options)
}

/// A tensor filled with a value.
pub fn full(queue: &Queue, shape: impl Into<Shape>, value: f64, dtype: DType) -> Result<Tensor> {
    Tensor::full(queue, shape, dtype, value)
}
