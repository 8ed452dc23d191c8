//! Reading and adding at indices: [`index_select`], [`gather`], [`embedding`] and their adjoints, [`one_hot`], [`masked_fill`].
//!
//! Every tensor is seen as `[outer, axis, inner]`. Indices lie in `0..length`; negative ones are refused, as in PyTorch, because
//! an ignore mark such as -1 or -100 that silently meant "from the end" would be a bug nobody sees. An index outside its range
//! is an error that names its position and value. While launches for an OpenCL device are only being recorded there are no
//! values to look at: a read at a wrong index then gives NaN, an addition at one is left out, and memory outside the tensor is
//! never touched.
//!
//! Additions at indices are deterministic and need no atomics: sources are sorted by their destination, stably, and whoever owns a
//! destination sums its sources in the order of the indices, rounding once.
//!
//! | file | subject |
//! |---|---|
//! | `problem.rs` | shapes, strides and checks shared by both backends |
//! | `order.rs` | sources sorted by destination |
//! | `cpu.rs` | the native loops |
//! | `opencl.rs`, `take.cl`, `add_rows.cl` | the kernels and how they are launched |
//! | `put.rs`, `put.cl` | writing at indices, on both backends |
//! | `sum.rs`, `take_sum.cl` | rows of two tables added |

mod cpu;
pub(crate) mod opencl;
mod order;
mod problem;
mod put;
mod sum;

use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::shape::Shape;
use netcl_core::tensor::{Tensor, reshape};
use netcl_core::{Error, Result};

use crate::elementwise::where_;
use problem::{Rows, cut};
pub use put::{index_put, positions};
pub use sum::embedding_sum;

/// The slices of a tensor at some indices along an axis, in their order: NumPy's `take`, PyTorch's `index_select`.
///
/// Its adjoint is [`index_select_backward`].
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
/// let columns = IndexTensor::from_host(&queue, &[2i64, 0, 2], [3])?;
/// assert_eq!(netcl_ops::index_select(&x, 1, &columns)?.to_host::<f32>()?, [3.0, 1.0, 3.0, 6.0, 4.0, 6.0]);
///
/// let wrong = IndexTensor::from_host(&queue, &[0i64, 3], [2])?;
/// let error = netcl_ops::index_select(&x, 1, &wrong).unwrap_err();
/// assert!(error.to_string().starts_with("index_select: indices[1] is 3, but must lie in 0..3"));
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn index_select(x: &Tensor, axis: isize, indices: &IndexTensor) -> Result<Tensor> {
    const OP: &str = "index_select";
    let axis = check_axis(OP, x.shape(), axis)?;
    let k = check_vector(OP, indices)?;
    let rows = Rows::new(OP, x.shape(), axis, k);
    rows.take(x, indices, rows.with_length(x.shape(), k))
}

/// [`index_select`] at indices that are known to be in range: they are not read back from a device to be checked. A wrong one
/// is an error on the native CPU and reads NaN (or 0) elsewhere.
pub fn index_select_checked(x: &Tensor, axis: isize, indices: &IndexTensor) -> Result<Tensor> {
    const OP: &str = "index_select";
    let axis = check_axis(OP, x.shape(), axis)?;
    let k = check_vector(OP, indices)?;
    let rows = Rows::new(OP, x.shape(), axis, k);
    rows.take_checked(x, indices, rows.with_length(x.shape(), k))
}

/// The gradient of [`index_select`] for its tensor, whose axis had `length` elements: gradients are summed at their indices.
pub fn index_select_backward(grad: &Tensor, axis: isize, indices: &IndexTensor, length: usize) -> Result<Tensor> {
    const OP: &str = "index_select_backward";
    grad.check_float(OP)?;
    let axis = check_axis(OP, grad.shape(), axis)?;
    let k = check_vector(OP, indices)?;
    if grad.shape()[axis] != k {
        let why = format!("axis {axis} must be as long as the indices, which are {k}");
        return Err(Error::Shape { op: OP, shape: grad.shape().clone(), why });
    }
    let mut shape = grad.shape().to_vec();
    shape[axis] = length;
    let shape = Shape::from(shape);
    Rows::new(OP, &shape, axis, k).add(None, indices, grad, shape)
}

/// `x` with the slices of `source` added at some indices along an axis; an index may occur several times.
///
/// The gradient for `x` is the gradient itself, for `source` it is [`index_select`] of it.
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0], [3])?;
/// let source = Tensor::from_host(&queue, &[10.0f32, 20.0, 30.0], [3])?;
/// let at = IndexTensor::from_host(&queue, &[0i32, 2, 0], [3])?;
/// assert_eq!(netcl_ops::index_add(&x, 0, &at, &source)?.to_host::<f32>()?, [41.0, 2.0, 23.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn index_add(x: &Tensor, axis: isize, indices: &IndexTensor, source: &Tensor) -> Result<Tensor> {
    const OP: &str = "index_add";
    x.check_float(OP)?;
    let axis = check_axis(OP, x.shape(), axis)?;
    let k = check_vector(OP, indices)?;
    check_same(OP, x, source)?;
    let rows = Rows::new(OP, x.shape(), axis, k);
    let expected = rows.with_length(x.shape(), k);
    if source.shape() != &expected {
        let why = format!("the source must have shape {expected} to be added to {} at {k} indices", x.shape());
        return Err(Error::Shape { op: OP, shape: source.shape().clone(), why });
    }
    rows.add(Some(x), indices, source, x.shape().clone())
}

/// `out[i][j][k] = x[index[i][j][k]][j][k]` for axis 0, and likewise for others: PyTorch's `gather`, NumPy's `take_along_axis`.
///
/// The indices have as many axes as `x`; beside the given axis they may be shorter, never longer.
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let at = IndexTensor::from_host(&queue, &[0i64, 0, 1, 0], [2, 2])?;
/// assert_eq!(netcl_ops::gather(&x, 1, &at)?.to_host::<f32>()?, [1.0, 1.0, 4.0, 3.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn gather(x: &Tensor, axis: isize, indices: &IndexTensor) -> Result<Tensor> {
    const OP: &str = "gather";
    let axis = check_axis(OP, x.shape(), axis)?;
    let shape = indices.tensor().shape().clone();
    check_inside(OP, x.shape(), axis, &shape)?;
    let x = cut(x, &shape, Some(axis))?;
    Rows::along(OP, x.shape(), axis, shape[axis]).take(&x, indices, shape)
}

/// The gradient of [`gather`] for its tensor, which had this shape: gradients are summed at their indices.
pub fn gather_backward(grad: &Tensor, axis: isize, indices: &IndexTensor, shape: impl Into<Shape>) -> Result<Tensor> {
    scatter("gather_backward", None, shape.into(), grad, axis, indices)
}

/// `x` with `out[index[i][j][k]][j][k] += source[i][j][k]` for axis 0, and likewise for others: the adjoint of [`gather`].
///
/// The source may be longer than the indices along any axis; the rest is not read. The gradient for `x` is the gradient itself,
/// for the (cut) source it is [`gather`] of it.
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[0.0f32, 0.0, 0.0], [1, 3])?;
/// let source = Tensor::from_host(&queue, &[1.0f32, 2.0, 4.0], [1, 3])?;
/// let at = IndexTensor::from_host(&queue, &[1i64, 1, 0], [1, 3])?;
/// assert_eq!(netcl_ops::scatter_add(&x, 1, &at, &source)?.to_host::<f32>()?, [4.0, 3.0, 0.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn scatter_add(x: &Tensor, axis: isize, indices: &IndexTensor, source: &Tensor) -> Result<Tensor> {
    check_same("scatter_add", x, source)?;
    scatter("scatter_add", Some(x), x.shape().clone(), source, axis, indices)
}

fn scatter(
    op: &'static str,
    x: Option<&Tensor>,
    shape: Shape,
    source: &Tensor,
    axis: isize,
    indices: &IndexTensor,
) -> Result<Tensor> {
    source.check_float(op)?;
    let axis = check_axis(op, &shape, axis)?;
    let at = indices.tensor().shape();
    check_inside(op, &shape, axis, at)?;
    if source.ndim() != at.ndim() || source.shape().iter().zip(at.iter()).any(|(s, i)| s < i) {
        let why = format!("the source must reach over the indices, which have shape {at}");
        return Err(Error::Shape { op, shape: source.shape().clone(), why });
    }
    let source = cut(source, at, None)?;
    let region: Shape = (0..shape.ndim()).map(|a| if a == axis { shape[a] } else { at[a] }).collect();
    let rows = Rows::along(op, &region, axis, at[axis]);
    if region == shape {
        return rows.add(x, indices, &source, shape);
    }
    // The indices reach over a part of the tensor only: that part is computed by itself and put back.
    let out = match x {
        Some(x) => x.duplicate()?,
        None => Tensor::full(source.queue(), shape, source.dtype(), 0.0)?,
    };
    let part = cut(&out, at, Some(axis))?;
    part.assign(&rows.add(x.map(|_| &part), indices, &source, region)?)?;
    Ok(out)
}

/// The rows of a `[count, width]` table at indices of any shape: the result has the indices' shape and an axis of the width.
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let table = Tensor::from_host(&queue, &[0.0f32, 0.5, 1.0, 1.5, 2.0, 2.5], [3, 2])?;
/// let words = IndexTensor::from_host(&queue, &[2i64, 0], [1, 2])?;
/// let vectors = netcl_ops::embedding(&table, &words)?;
/// assert_eq!(vectors.shape().to_vec(), [1, 2, 2]);
/// assert_eq!(vectors.to_host::<f32>()?, [2.0, 2.5, 0.0, 0.5]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn embedding(weight: &Tensor, indices: &IndexTensor) -> Result<Tensor> {
    const OP: &str = "embedding";
    let &[_, width] = &weight.shape()[..] else {
        let why = "the table must have two axes: the number of rows and their width".to_owned();
        return Err(Error::Shape { op: OP, shape: weight.shape().clone(), why });
    };
    let shape: Shape = indices.tensor().shape().iter().copied().chain([width]).collect();
    Rows::new(OP, weight.shape(), 0, indices.tensor().size()).take(weight, indices, shape)
}

/// The gradient of [`embedding`] for its table of `count` rows.
///
/// Rows that no index names have gradient zero, and so has the row `padding`, if there is one.
pub fn embedding_backward(
    grad: &Tensor,
    indices: &IndexTensor,
    count: usize,
    padding: Option<usize>,
) -> Result<Tensor> {
    const OP: &str = "embedding_backward";
    grad.check_float(OP)?;
    let at = indices.tensor().shape();
    let width = match grad.shape().split_last() {
        Some((&width, rest)) if rest == &at[..] => width,
        _ => {
            let why = format!("it must have the shape of the indices, {at}, and an axis of the width");
            return Err(Error::Shape { op: OP, shape: grad.shape().clone(), why });
        }
    };
    if let Some(row) = padding.filter(|&row| row >= count) {
        return Err(Error::argument(OP, format!("the padding row {row} is not one of the {count} rows of the table")));
    }
    let grad = reshape(grad, [at.size(), width])?;
    let out =
        Rows::new(OP, &Shape::from([count, width]), 0, at.size()).add(None, indices, &grad, [count, width].into())?;
    if let Some(row) = padding {
        out.select(0, row as isize)?.fill(0.0)?;
    }
    Ok(out)
}

/// 1 at each index along a new last axis of `classes` elements, 0 elsewhere.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, index::IndexTensor};
///
/// let labels = IndexTensor::from_host(&manager().cpu().queue, &[1i64, 0], [2])?;
/// assert_eq!(netcl_ops::one_hot(&labels, 3, DType::F32)?.to_host::<f32>()?, [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn one_hot(indices: &IndexTensor, classes: usize, dtype: DType) -> Result<Tensor> {
    problem::one_hot(indices, classes, dtype)
}

/// A value where a mask is not 0, else `x`. The mask may be of any dtype and is broadcast to the shape of `x`.
///
/// The gradient for `x` is `masked_fill(grad, mask, 0)`.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let mask = Tensor::from_host(&queue, &[0u8, 1], [2])?;
/// assert_eq!(netcl_ops::masked_fill(&x, &mask, -1.0)?.to_host::<f32>()?, [1.0, -1.0, 3.0, -1.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn masked_fill(x: &Tensor, mask: &Tensor, value: f64) -> Result<Tensor> {
    const OP: &str = "masked_fill";
    x.check_float(OP)?;
    x.queue().check_same_device(OP, mask.queue())?;
    if &mask.shape().broadcast(OP, x.shape())? != x.shape() {
        let why = format!("the mask must broadcast to the tensor's shape {}, not the other way round", x.shape());
        return Err(Error::Shape { op: OP, shape: mask.shape().clone(), why });
    }
    where_(mask, value, x)
}

/// The axis as a number; a scalar has none.
fn check_axis(op: &'static str, shape: &Shape, axis: isize) -> Result<usize> {
    if shape.ndim() == 0 {
        let why = "a scalar has no axis to index; reshape it to (1,) first".to_owned();
        return Err(Error::Shape { op, shape: shape.clone(), why });
    }
    shape.axis(op, axis)
}

/// The number of indices that must be a row.
fn check_vector(op: &'static str, indices: &IndexTensor) -> Result<usize> {
    match indices.tensor().shape()[..] {
        [k] => Ok(k),
        _ => {
            let why = "the indices must have one axis; gather takes a table of them".to_owned();
            Err(Error::Shape { op, shape: indices.tensor().shape().clone(), why })
        }
    }
}

/// Indices along an axis of a tensor: as many axes, nowhere longer but along it.
fn check_inside(op: &'static str, shape: &Shape, axis: usize, indices: &Shape) -> Result<()> {
    let fits = |a: usize| a == axis || indices[a] <= shape[a];
    if indices.ndim() == shape.ndim() && (0..shape.ndim()).all(fits) {
        return Ok(());
    }
    let why =
        format!("the indices must have the axes of the tensor's shape {shape} and be no longer except along {axis}");
    Err(Error::Shape { op, shape: indices.clone(), why })
}

fn check_same(op: &'static str, x: &Tensor, source: &Tensor) -> Result<()> {
    x.queue().check_same_device(op, source.queue())?;
    if x.dtype() != source.dtype() {
        return Err(Error::DtypeMismatch { op, lhs: x.dtype(), rhs: source.dtype() });
    }
    Ok(())
}
