//! Operations that move or view elements, recorded.

use std::sync::Arc;

use netcl::Tensor as Recorded;
use netcl::autograd::ops::layout;
use netcl::core::shape::{Shape, Slice};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::{record, site, wrap};
use crate::axis;
use crate::error::IntoPyResult;
use crate::index::Made;
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

/// An argument that must be given under one of its two names.
fn given<'a, 'py>(
    op: &str,
    names: [&str; 2],
    first: Option<&'a Bound<'py, PyAny>>,
    second: Option<&'a Bound<'py, PyAny>>,
) -> PyResult<&'a Bound<'py, PyAny>> {
    axis::either(op, names, first, second)?
        .ok_or_else(|| PyTypeError::new_err(format!("{op}: {} is not given", names.join(" (or ") + ")")))
}

/// The axes in another order, as a view.
#[pyfunction]
#[pyo3(signature = (x, axes=None, *, dims=None))]
fn permute(
    py: Python<'_>,
    x: &Tensor,
    axes: Option<&Bound<'_, PyAny>>,
    dims: Option<&Bound<'_, PyAny>>,
) -> PyResult<Made> {
    let axes = crate::ops::axes(Some(given("permute", ["dims", "axes"], dims, axes)?))?;
    record(py, &x.inner(), || layout::permute(&x.inner(), &axes))
}

/// Two axes exchanged, as a view; the last two unless named.
#[pyfunction]
#[pyo3(
    signature = (x, axis0=-2, axis1=-1, *, dim0=None, dim1=None),
    text_signature = "(x, axis0=-2, axis1=-1, *, dim0=None, dim1=None)"
)]
fn transpose(
    py: Python<'_>,
    x: &Tensor,
    axis0: isize,
    axis1: isize,
    dim0: Option<isize>,
    dim1: Option<isize>,
) -> PyResult<Made> {
    let (axis0, axis1) = (dim0.unwrap_or(axis0), dim1.unwrap_or(axis1));
    record(py, &x.inner(), || layout::transpose(&x.inner(), axis0, axis1))
}

/// The elements repeated along new or length-1 axes, as a view; a length of -1 is the axis's own.
#[pyfunction]
fn expand(py: Python<'_>, x: &Tensor, shape: &Bound<'_, PyAny>) -> PyResult<Made> {
    let shape = parse_expanded(&x.inner(), shape)?;
    record(py, &x.inner(), || layout::expand(&x.inner(), shape))
}

/// A shape to expand to, in which -1 stands for a length of the tensor's own.
fn parse_expanded(x: &Recorded, shape: &Bound<'_, PyAny>) -> PyResult<Shape> {
    let Ok(items) = shape.try_iter() else { return parse_shape(shape) };
    let mut lengths: Vec<Bound<'_, PyAny>> = items.collect::<PyResult<_>>()?;
    let own = x.shape().iter().rev();
    for (length, &own) in lengths.iter_mut().rev().zip(own) {
        if length.extract::<i64>().is_ok_and(|n| n == -1) {
            *length = own.into_pyobject(shape.py())?.into_any();
        }
    }
    parse_shape(PyList::new(shape.py(), lengths)?.as_any())
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
) -> PyResult<Made> {
    record(py, &x.inner(), || layout::slice(&x.inner(), axis, Slice::new(start, stop, step)))
}

/// Without axes of length 1: the given one(s), or all of them. A view.
#[pyfunction]
#[pyo3(signature = (x, axis=None, *, dim=None))]
fn squeeze(
    py: Python<'_>,
    x: &Tensor,
    axis: Option<&Bound<'_, PyAny>>,
    dim: Option<&Bound<'_, PyAny>>,
) -> PyResult<Made> {
    let axes = axes(axis::either("squeeze", ["dim", "axis"], dim, axis)?)?;
    record(py, &x.inner(), || layout::squeeze(&x.inner(), &axes))
}

/// With a new axis of length 1, as a view.
#[pyfunction]
#[pyo3(signature = (x, axis=None, *, dim=None))]
fn unsqueeze(py: Python<'_>, x: &Tensor, axis: Option<isize>, dim: Option<isize>) -> PyResult<Made> {
    let axis = axis::one("unsqueeze", dim, axis)?;
    record(py, &x.inner(), || layout::unsqueeze(&x.inner(), axis))
}

/// All axes from ``start`` to ``end``, both included, as one.
#[pyfunction]
#[pyo3(
    signature = (x, start=0, end=-1, *, start_dim=None, end_dim=None),
    text_signature = "(x, start=0, end=-1, *, start_dim=None, end_dim=None)"
)]
fn flatten(
    py: Python<'_>,
    x: &Tensor,
    start: isize,
    end: isize,
    start_dim: Option<isize>,
    end_dim: Option<isize>,
) -> PyResult<Made> {
    let (start, end) = (start_dim.unwrap_or(start), end_dim.unwrap_or(end));
    record(py, &x.inner(), || layout::flatten(&x.inner(), start, end))
}

/// The elements in reverse order along some axes, as a view.
#[pyfunction]
#[pyo3(signature = (x, axis=None, *, dims=None))]
fn flip(
    py: Python<'_>,
    x: &Tensor,
    axis: Option<&Bound<'_, PyAny>>,
    dims: Option<&Bound<'_, PyAny>>,
) -> PyResult<Made> {
    let axes = axes(Some(given("flip", ["dims", "axis"], dims, axis)?))?;
    record(py, &x.inner(), || layout::flip(&x.inner(), &axes))
}

/// The tensor itself if its elements lie densely in row-major order, else a copy in which they do.
#[pyfunction]
fn contiguous(py: Python<'_>, x: &Tensor) -> PyResult<Made> {
    record(py, &x.inner(), || layout::contiguous(&x.inner()))
}

/// A dense copy with memory of its own, to which gradients flow through.
#[pyfunction]
fn clone(py: Python<'_>, x: &Tensor) -> PyResult<Made> {
    record(py, &x.inner(), || layout::duplicate(&x.inner()))
}

/// Tensors joined along an existing axis.
#[pyfunction]
#[pyo3(signature = (tensors, axis=None, *, dim=None), text_signature = "(tensors, axis=0, *, dim=None)")]
fn cat(py: Python<'_>, tensors: &Bound<'_, PyAny>, axis: Option<isize>, dim: Option<isize>) -> PyResult<Made> {
    let axis = axis::one_or("cat", dim, axis, 0)?;
    join(py, &tensor_list("cat", tensors)?, |tensors| layout::cat(tensors, axis))
}

/// Tensors of one shape joined along a new axis.
#[pyfunction]
#[pyo3(signature = (tensors, axis=None, *, dim=None), text_signature = "(tensors, axis=0, *, dim=None)")]
fn stack(py: Python<'_>, tensors: &Bound<'_, PyAny>, axis: Option<isize>, dim: Option<isize>) -> PyResult<Made> {
    let axis = axis::one_or("stack", dim, axis, 0)?;
    join(py, &tensor_list("stack", tensors)?, |tensors| layout::stack(tensors, axis))
}

fn join(
    py: Python<'_>,
    tensors: &[Bound<'_, Tensor>],
    join: impl FnOnce(&[&Recorded]) -> netcl::Result<Recorded> + Send,
) -> PyResult<Made> {
    let tensors: Vec<Arc<Recorded>> = tensors.iter().map(|t| t.get().inner()).collect();
    let tensors: Vec<&Recorded> = tensors.iter().map(Arc::as_ref).collect();
    wrap(py, site::detach(py, || join(&tensors)).py()?)
}

/// Views of consecutive parts: of the given lengths, or all of one length (the last may be shorter).
#[pyfunction]
#[pyo3(signature = (x, lengths, axis=None, *, dim=None), text_signature = "(x, lengths, axis=0, *, dim=None)")]
fn split(
    py: Python<'_>,
    x: &Tensor,
    lengths: &Bound<'_, PyAny>,
    axis: Option<isize>,
    dim: Option<isize>,
) -> PyResult<Vec<Made>> {
    let axis = axis::one_or("split", dim, axis, 0)?;
    let lengths = split_lengths(x.inner().raw(), lengths, axis)?;
    layout::split(&x.inner(), &lengths, axis).py()?.into_iter().map(|part| wrap(py, part)).collect()
}

/// Views of at most ``n`` parts of equal length; the last may be shorter.
#[pyfunction]
#[pyo3(signature = (x, n, axis=None, *, dim=None), text_signature = "(x, n, axis=0, *, dim=None)")]
fn chunk(py: Python<'_>, x: &Tensor, n: usize, axis: Option<isize>, dim: Option<isize>) -> PyResult<Vec<Made>> {
    let axis = axis::one_or("chunk", dim, axis, 0)?;
    layout::chunk(&x.inner(), n, axis).py()?.into_iter().map(|part| wrap(py, part)).collect()
}

/// The tensor repeated along each axis so many times; new axes come first.
#[pyfunction]
fn repeat(py: Python<'_>, x: &Tensor, times: &Bound<'_, PyAny>) -> PyResult<Made> {
    let times = whole("repeat", "times", times)?;
    record(py, &x.inner(), || layout::repeat(&x.inner(), &times))
}

/// The lower triangle of the last two axes; zero elsewhere.
#[pyfunction]
#[pyo3(signature = (x, diagonal=0))]
fn tril(py: Python<'_>, x: &Tensor, diagonal: isize) -> PyResult<Made> {
    record(py, &x.inner(), || layout::tril(&x.inner(), diagonal))
}

/// The upper triangle of the last two axes; zero elsewhere.
#[pyfunction]
#[pyo3(signature = (x, diagonal=0))]
fn triu(py: Python<'_>, x: &Tensor, diagonal: isize) -> PyResult<Made> {
    record(py, &x.inner(), || layout::triu(&x.inner(), diagonal))
}
