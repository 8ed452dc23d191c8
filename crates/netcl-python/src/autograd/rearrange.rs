//! Elements in another order or shape, recorded.

use std::sync::Arc;

use netcl::Tensor as Recorded;
use netcl::autograd::ops::{indexing, layout, rearrange};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{record, site, wrap};
use crate::axis;
use crate::error::IntoPyResult;
use crate::index::Made;
use crate::layer_ops::{indices, whole};
use crate::list::List;
use crate::ops::{axes, tensor_list};
use crate::tensor::{Tensor, parse_shape};

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add {
        ($($function:ident),*) => {$(module.add_function(wrap_pyfunction!($function, module)?)?;)*};
    }
    add!(unbind, narrow, movedim, moveaxis, swapaxes, swapdims, tile, roll, rot90, repeat_interleave, meshgrid);
    add!(diagonal, diag, diag_embed, trace, vstack, hstack, dstack, broadcast_to, broadcast_tensors, unflatten);
    Ok(())
}

/// The elements of a tuple of arguments: tensors one by one, or one list of them.
fn tensors<'py>(op: &str, given: &Bound<'py, PyTuple>) -> PyResult<Vec<Bound<'py, Tensor>>> {
    match given.get_item(0) {
        Ok(list) if given.len() == 1 && !list.is_instance_of::<Tensor>() => tensor_list(op, &list),
        _ => tensor_list(op, given.as_any()),
    }
}

fn all(py: Python<'_>, tensors: Vec<Recorded>) -> PyResult<Vec<Made>> {
    tensors.into_iter().map(|tensor| wrap(py, tensor)).collect()
}

/// Every index of an axis by itself, which disappears: a tuple of views.
#[pyfunction]
#[pyo3(signature = (x, dim=None, *, axis=None), text_signature = "(x, dim=0, *, axis=None)")]
fn unbind<'py>(py: Python<'py>, x: &Tensor, dim: Option<isize>, axis: Option<isize>) -> PyResult<Bound<'py, PyTuple>> {
    let axis = axis::one_or("unbind", dim, axis, 0)?;
    PyTuple::new(py, all(py, rearrange::unbind(&x.inner(), axis).py()?)?)
}

/// ``length`` elements of an axis from ``start`` on, as a view.
#[pyfunction]
fn narrow(py: Python<'_>, x: &Tensor, dim: isize, start: isize, length: usize) -> PyResult<Made> {
    record(py, &x.inner(), || rearrange::narrow(&x.inner(), dim, start, length))
}

/// Some axes at other places, as a view; the rest keep their order.
#[pyfunction]
fn movedim(py: Python<'_>, x: &Tensor, source: &Bound<'_, PyAny>, destination: &Bound<'_, PyAny>) -> PyResult<Made> {
    let (from, to) = (axes(Some(source))?, axes(Some(destination))?);
    record(py, &x.inner(), || rearrange::movedim(&x.inner(), &from, &to))
}

/// Another name of ``movedim``.
#[pyfunction]
fn moveaxis(py: Python<'_>, x: &Tensor, source: &Bound<'_, PyAny>, destination: &Bound<'_, PyAny>) -> PyResult<Made> {
    movedim(py, x, source, destination)
}

/// Two axes exchanged, as a view.
#[pyfunction]
fn swapaxes(py: Python<'_>, x: &Tensor, axis0: isize, axis1: isize) -> PyResult<Made> {
    record(py, &x.inner(), || layout::transpose(&x.inner(), axis0, axis1))
}

/// Two axes exchanged, as a view.
#[pyfunction]
fn swapdims(py: Python<'_>, x: &Tensor, dim0: isize, dim1: isize) -> PyResult<Made> {
    swapaxes(py, x, dim0, dim1)
}

/// The tensor repeated along each axis so many times; fewer numbers than axes repeat the last ones.
#[pyfunction]
fn tile(py: Python<'_>, x: &Tensor, dims: &Bound<'_, PyAny>) -> PyResult<Made> {
    let times = whole("tile", "dims", dims)?;
    record(py, &x.inner(), || rearrange::tile(&x.inner(), &times))
}

/// The elements moved along some axes, those that leave at the end coming in at the start; without axes, along the flattened
/// tensor.
#[pyfunction]
#[pyo3(signature = (x, shifts, dims=None, *, axis=None))]
fn roll(
    py: Python<'_>,
    x: &Tensor,
    shifts: &Bound<'_, PyAny>,
    dims: Option<&Bound<'_, PyAny>>,
    axis: Option<&Bound<'_, PyAny>>,
) -> PyResult<Made> {
    let over = axes(axis::either("roll", ["dims", "axis"], dims, axis)?)?;
    let mut shifts = axes(Some(shifts))?;
    if let ([one], true) = (&shifts[..], axis.is_some()) {
        // One shift for all axes, as in NumPy.
        shifts = vec![*one; over.len()];
    }
    record(py, &x.inner(), || rearrange::roll(&x.inner(), &shifts, &over))
}

/// The plane of two axes turned by 90 degrees ``k`` times, from the first axis towards the second.
#[pyfunction]
#[pyo3(signature = (x, k=1, dims=None), text_signature = "(x, k=1, dims=(0, 1))")]
fn rot90(py: Python<'_>, x: &Tensor, k: isize, dims: Option<&Bound<'_, PyAny>>) -> PyResult<Made> {
    let plane: [isize; 2] = match axes(dims)?[..] {
        [] => [0, 1],
        [first, second] => [first, second],
        _ => return Err(PyValueError::new_err("rot90: dims are the two axes of a plane")),
    };
    record(py, &x.inner(), || rearrange::rot90(&x.inner(), k, plane))
}

/// Every element ``repeats`` times in a row along an axis, without one of the flattened tensor. ``repeats`` may have a number for
/// each element of the axis.
#[pyfunction]
#[pyo3(signature = (x, repeats, dim=None, *, axis=None))]
fn repeat_interleave(
    py: Python<'_>,
    x: &Tensor,
    repeats: &Bound<'_, PyAny>,
    dim: Option<isize>,
    axis: Option<isize>,
) -> PyResult<Made> {
    let (op, x, axis) = ("repeat_interleave", &x.inner(), axis::maybe("repeat_interleave", dim, axis)?);
    if let Ok(times) = repeats.extract::<i64>() {
        let times = usize::try_from(times)
            .map_err(|_| PyValueError::new_err(format!("{op}: repeats cannot be negative, and {times} is given")))?;
        return record(py, x, || rearrange::repeat_interleave(x, times, axis));
    }
    let times = indices(repeats, x.queue())?.to_host().py()?;
    let flat = if axis.is_none() { layout::reshape(x, [x.size()]).py()? } else { x.as_ref().clone() };
    let axis = axis.unwrap_or(0);
    let length = flat.shape()[flat.shape().axis(op, axis).py()?];
    let total = times.iter().try_fold(0i64, |all, &one| if one < 0 { None } else { all.checked_add(one) });
    if times.len() != length || total.is_none() {
        let what = format!("{op}: there are {} repeats for {length} elements; none may be negative", times.len());
        return Err(PyValueError::new_err(what));
    }
    netcl::core::host::check::<i64>(op, total.unwrap_or(0) as usize).py()?;
    let at: Vec<i64> = times.iter().enumerate().flat_map(|(at, &n)| (0..n).map(move |_| at as i64)).collect();
    let at = netcl::core::index::IndexTensor::from_host(x.queue(), &at, [at.len()]).py()?;
    record(py, x, || indexing::index_select(&flat, axis, &at))
}

/// Vectors spread over a grid that has an axis for each: views of the grid's shape. ``indexing="xy"`` exchanges the first two axes.
#[pyfunction]
#[pyo3(signature = (*tensors, indexing="ij"))]
fn meshgrid<'py>(py: Python<'py>, tensors: &Bound<'py, PyTuple>, indexing: &str) -> PyResult<Bound<'py, PyTuple>> {
    let xy = match indexing {
        "ij" => false,
        "xy" => true,
        _ => return Err(PyValueError::new_err(format!("meshgrid: indexing is 'ij' or 'xy', not {indexing:?}"))),
    };
    several(py, &self::tensors("meshgrid", tensors)?, |tensors| rearrange::meshgrid(tensors, xy))
}

/// Tensors expanded to the shape that they broadcast to, as views.
#[pyfunction]
#[pyo3(signature = (*tensors))]
fn broadcast_tensors<'py>(py: Python<'py>, tensors: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyTuple>> {
    several(py, &self::tensors("broadcast_tensors", tensors)?, rearrange::broadcast_tensors)
}

fn several<'py>(
    py: Python<'py>,
    tensors: &[Bound<'py, Tensor>],
    make: impl FnOnce(&[&Recorded]) -> netcl::Result<Vec<Recorded>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let tensors: Vec<Arc<Recorded>> = tensors.iter().map(|t| t.get().inner()).collect();
    PyTuple::new(py, all(py, make(&tensors.iter().map(Arc::as_ref).collect::<Vec<_>>()).py()?)?)
}

macro_rules! stacks {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        fn $name(py: Python<'_>, tensors: &Bound<'_, PyAny>) -> PyResult<Made> {
            let tensors = tensor_list(stringify!($name), tensors)?;
            let tensors: Vec<Arc<Recorded>> = tensors.iter().map(|t| t.get().inner()).collect();
            let tensors: Vec<&Recorded> = tensors.iter().map(Arc::as_ref).collect();
            wrap(py, site::detach(py, || rearrange::$name(&tensors)).py()?)
        }
    )*};
}

stacks! {
    /// Tensors joined along their rows; numbers and vectors count as rows.
    vstack;
    /// Tensors joined along their columns, vectors and numbers along their only axis.
    hstack;
    /// Tensors joined along their third axis, which matrices and vectors get.
    dstack;
}

/// The diagonal of the matrices of two axes, ``offset`` places above the main one, as the last axis.
#[pyfunction]
#[pyo3(signature = (x, offset=0, dim1=0, dim2=1))]
fn diagonal(py: Python<'_>, x: &Tensor, offset: isize, dim1: isize, dim2: isize) -> PyResult<Made> {
    record(py, &x.inner(), || rearrange::diagonal(&x.inner(), offset, dim1, dim2))
}

/// The diagonal of a matrix, or the matrix of a diagonal.
#[pyfunction]
#[pyo3(signature = (x, diagonal=0))]
fn diag(py: Python<'_>, x: &Tensor, diagonal: isize) -> PyResult<Made> {
    record(py, &x.inner(), || rearrange::diag(&x.inner(), diagonal))
}

/// Vectors along the last axis as diagonals of matrices of two new axes, which are zero elsewhere.
#[pyfunction]
#[pyo3(signature = (x, offset=0, dim1=-2, dim2=-1), text_signature = "(x, offset=0, dim1=-2, dim2=-1)")]
fn diag_embed(py: Python<'_>, x: &Tensor, offset: isize, dim1: isize, dim2: isize) -> PyResult<Made> {
    record(py, &x.inner(), || rearrange::diag_embed(&x.inner(), offset, dim1, dim2))
}

/// The sum of a matrix' diagonal.
#[pyfunction]
fn trace(py: Python<'_>, x: &Tensor) -> PyResult<Made> {
    record(py, &x.inner(), || rearrange::trace(&x.inner()))
}

/// The elements repeated along new or length-1 axes, as a view: ``expand``.
#[pyfunction]
fn broadcast_to(py: Python<'_>, x: &Tensor, shape: &Bound<'_, PyAny>) -> PyResult<Made> {
    let shape = parse_shape(shape)?;
    record(py, &x.inner(), || layout::expand(&x.inner(), shape))
}

/// One axis as several, of lengths whose product is its own; one of them may be -1.
#[pyfunction]
fn unflatten(py: Python<'_>, x: &Tensor, dim: isize, sizes: &Bound<'_, PyAny>) -> PyResult<Made> {
    let sizes = sizes
        .extract::<List<isize>>()
        .map_err(|_| PyTypeError::new_err("unflatten: sizes are a tuple of whole numbers, of which one may be -1"))?;
    record(py, &x.inner(), || rearrange::unflatten(&x.inner(), dim, &sizes.0))
}
