//! Operations that move or view elements, recorded.

use std::sync::Arc;

use netcl::Tensor as Recorded;
use netcl::autograd::ops::layout;
use netcl::core::shape::Slice;
use pyo3::prelude::*;

use super::{record, site, wrap};
use crate::error::IntoPyResult;
use crate::layer_ops::whole;
use crate::ops::{axes, split_lengths, tensor_list};
use crate::tensor::{Tensor, parse_shape};

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add {
        ($($function:ident),*) => {$(module.add_function(wrap_pyfunction!($function, module)?)?;)*};
    }
    add!(permute, transpose, expand, slice, squeeze, unsqueeze, flatten, flip, contiguous, clone);
    add!(cat, stack, split, chunk, repeat, tril, triu);
    Ok(())
}

/// The axes in another order, as a view.
#[pyfunction]
fn permute(py: Python<'_>, x: &Tensor, axes: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let axes = crate::ops::axes(Some(axes))?;
    record(py, &x.inner(), || layout::permute(&x.inner(), &axes))
}

/// Two axes exchanged, as a view; the last two unless named.
#[pyfunction]
#[pyo3(signature = (x, axis0=-2, axis1=-1), text_signature = "(x, axis0=-2, axis1=-1)")]
fn transpose(py: Python<'_>, x: &Tensor, axis0: isize, axis1: isize) -> PyResult<Tensor> {
    record(py, &x.inner(), || layout::transpose(&x.inner(), axis0, axis1))
}

/// The elements repeated along new or length-1 axes, as a view.
#[pyfunction]
fn expand(py: Python<'_>, x: &Tensor, shape: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let shape = parse_shape(shape)?;
    record(py, &x.inner(), || layout::expand(&x.inner(), shape))
}

/// A part of one axis, as a view: ``x[start:stop:step]`` along ``axis``.
#[pyfunction]
#[pyo3(signature = (x, axis, start=None, stop=None, step=1))]
fn slice(
    py: Python<'_>,
    x: &Tensor,
    axis: isize,
    start: Option<isize>,
    stop: Option<isize>,
    step: isize,
) -> PyResult<Tensor> {
    record(py, &x.inner(), || layout::slice(&x.inner(), axis, Slice::new(start, stop, step)))
}

/// Without axes of length 1: the given one(s), or all of them. A view.
#[pyfunction]
#[pyo3(signature = (x, axis=None))]
fn squeeze(py: Python<'_>, x: &Tensor, axis: Option<&Bound<'_, PyAny>>) -> PyResult<Tensor> {
    let axes = axes(axis)?;
    record(py, &x.inner(), || layout::squeeze(&x.inner(), &axes))
}

/// With a new axis of length 1, as a view.
#[pyfunction]
fn unsqueeze(py: Python<'_>, x: &Tensor, axis: isize) -> PyResult<Tensor> {
    record(py, &x.inner(), || layout::unsqueeze(&x.inner(), axis))
}

/// All axes from ``start`` to ``end``, both included, as one.
#[pyfunction]
#[pyo3(signature = (x, start=0, end=-1), text_signature = "(x, start=0, end=-1)")]
fn flatten(py: Python<'_>, x: &Tensor, start: isize, end: isize) -> PyResult<Tensor> {
    record(py, &x.inner(), || layout::flatten(&x.inner(), start, end))
}

/// The elements in reverse order along some axes, as a view.
#[pyfunction]
fn flip(py: Python<'_>, x: &Tensor, axis: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let axes = axes(Some(axis))?;
    record(py, &x.inner(), || layout::flip(&x.inner(), &axes))
}

/// The tensor itself if its elements lie densely in row-major order, else a copy in which they do.
#[pyfunction]
fn contiguous(py: Python<'_>, x: &Tensor) -> PyResult<Tensor> {
    record(py, &x.inner(), || layout::contiguous(&x.inner()))
}

/// A dense copy with memory of its own, to which gradients flow through.
#[pyfunction]
fn clone(py: Python<'_>, x: &Tensor) -> PyResult<Tensor> {
    record(py, &x.inner(), || layout::duplicate(&x.inner()))
}

/// Tensors joined along an existing axis.
#[pyfunction]
#[pyo3(signature = (tensors, axis=0))]
fn cat(py: Python<'_>, tensors: &Bound<'_, PyAny>, axis: isize) -> PyResult<Tensor> {
    join(py, &tensor_list("cat", tensors)?, |tensors| layout::cat(tensors, axis))
}

/// Tensors of one shape joined along a new axis.
#[pyfunction]
#[pyo3(signature = (tensors, axis=0))]
fn stack(py: Python<'_>, tensors: &Bound<'_, PyAny>, axis: isize) -> PyResult<Tensor> {
    join(py, &tensor_list("stack", tensors)?, |tensors| layout::stack(tensors, axis))
}

fn join(
    py: Python<'_>,
    tensors: &[Bound<'_, Tensor>],
    join: impl FnOnce(&[&Recorded]) -> netcl::Result<Recorded> + Send,
) -> PyResult<Tensor> {
    let tensors: Vec<Arc<Recorded>> = tensors.iter().map(|t| t.get().inner()).collect();
    let tensors: Vec<&Recorded> = tensors.iter().map(Arc::as_ref).collect();
    wrap(py, site::detach(py, || join(&tensors)).py()?)
}

/// Views of consecutive parts: of the given lengths, or all of one length (the last may be shorter).
#[pyfunction]
#[pyo3(signature = (x, lengths, axis=0))]
fn split(py: Python<'_>, x: &Tensor, lengths: &Bound<'_, PyAny>, axis: isize) -> PyResult<Vec<Tensor>> {
    let lengths = split_lengths(x.inner().raw(), lengths, axis)?;
    layout::split(&x.inner(), &lengths, axis).py()?.into_iter().map(|part| wrap(py, part)).collect()
}

/// Views of at most ``n`` parts of equal length; the last may be shorter.
#[pyfunction]
#[pyo3(signature = (x, n, axis=0))]
fn chunk(py: Python<'_>, x: &Tensor, n: usize, axis: isize) -> PyResult<Vec<Tensor>> {
    layout::chunk(&x.inner(), n, axis).py()?.into_iter().map(|part| wrap(py, part)).collect()
}

/// The tensor repeated along each axis so many times; new axes come first.
#[pyfunction]
fn repeat(py: Python<'_>, x: &Tensor, times: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let times = whole("repeat", "times", times)?;
    record(py, &x.inner(), || layout::repeat(&x.inner(), &times))
}

/// The lower triangle of the last two axes; zero elsewhere.
#[pyfunction]
#[pyo3(signature = (x, diagonal=0))]
fn tril(py: Python<'_>, x: &Tensor, diagonal: isize) -> PyResult<Tensor> {
    record(py, &x.inner(), || layout::tril(&x.inner(), diagonal))
}

/// The upper triangle of the last two axes; zero elsewhere.
#[pyfunction]
#[pyo3(signature = (x, diagonal=0))]
fn triu(py: Python<'_>, x: &Tensor, diagonal: isize) -> PyResult<Tensor> {
    record(py, &x.inner(), || layout::triu(&x.inner(), diagonal))
}
