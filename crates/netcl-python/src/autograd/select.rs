//! Elements chosen, written or counted by index, mask or value, recorded where there is a gradient.

use netcl::autograd::ops::select::{self, ScatterReduction};
use netcl::core::dtype::DType;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{Given, like, record, run, wrap};
use crate::axis;
use crate::error::IntoPyResult;
use crate::index::Made;
use crate::layer_ops::indices;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add {
        ($($function:ident),*) => {$(module.add_function(wrap_pyfunction!($function, module)?)?;)*};
    }
    add!(take_along_dim, scatter, scatter_reduce, index_fill, index_copy, masked_select, masked_scatter, nonzero);
    add!(unique, searchsorted, bucketize, bincount, histc);
    Ok(())
}

/// ``gather`` with broadcasting beside the axis; without an axis, of the flattened tensors.
#[pyfunction]
#[pyo3(signature = (x, indices, dim=None, *, axis=None))]
fn take_along_dim(
    py: Python<'_>,
    x: &Tensor,
    indices: &Bound<'_, PyAny>,
    dim: Option<isize>,
    axis: Option<isize>,
) -> PyResult<Made> {
    let (x, axis) = (x.inner(), axis::maybe("take_along_dim", dim, axis)?);
    let at = self::indices(indices, x.queue())?;
    record(py, &x, || select::take_along_dim(&x, &at, axis))
}

/// ``x`` with ``out[index[i][j]][j] = src[i][j]`` along the axis 0, and likewise for others; ``src`` is a tensor or a number. Of
/// several that go to one place, the last stays.
#[pyfunction]
fn scatter(py: Python<'_>, x: &Tensor, dim: isize, index: &Bound<'_, PyAny>, src: Given) -> PyResult<Made> {
    let x = x.inner();
    let at = indices(index, x.queue())?;
    record(py, &x, || select::scatter(&x, dim, &at, src.operand()))
}

/// ``x`` with all sources of a place put together there: their ``"sum"``, ``"prod"``, ``"mean"``, ``"amax"`` or ``"amin"``. With
/// ``include_self`` the element of ``x`` is one of them.
#[pyfunction]
#[pyo3(signature = (x, dim, index, src, reduce, *, include_self=true))]
fn scatter_reduce(
    py: Python<'_>,
    x: &Tensor,
    dim: isize,
    index: &Bound<'_, PyAny>,
    src: &Tensor,
    reduce: &str,
    include_self: bool,
) -> PyResult<Made> {
    let (x, src) = (x.inner(), src.inner());
    let (at, reduction) = (indices(index, x.queue())?, ScatterReduction::parse(reduce).py()?);
    record(py, &x, || select::scatter_reduce(&x, dim, &at, &src, reduction, include_self))
}

/// ``x`` with a value at indices of an axis.
#[pyfunction]
fn index_fill(py: Python<'_>, x: &Tensor, dim: isize, index: &Bound<'_, PyAny>, value: f64) -> PyResult<Made> {
    let x = x.inner();
    let at = indices(index, x.queue())?;
    record(py, &x, || select::index_fill(&x, dim, &at, value))
}

/// ``x`` with the slices of ``source`` at indices of an axis; of several that go to one place, the last stays.
#[pyfunction]
fn index_copy(py: Python<'_>, x: &Tensor, dim: isize, index: &Bound<'_, PyAny>, source: &Tensor) -> PyResult<Made> {
    let (x, source) = (x.inner(), source.inner());
    let at = indices(index, x.queue())?;
    record(py, &x, || select::index_copy(&x, dim, &at, &source))
}

/// The elements of ``x`` where a mask is not 0, both broadcast together, as a vector. Reads the mask.
#[pyfunction]
fn masked_select(py: Python<'_>, x: &Tensor, mask: &Bound<'_, PyAny>) -> PyResult<Made> {
    let x = x.inner();
    let mask = like(mask, &x)?;
    record(py, &x, || select::masked_select(&x, &mask))
}

/// ``x`` with the elements where a mask is not 0 taken from ``source``, in order. Reads the mask.
#[pyfunction]
fn masked_scatter(py: Python<'_>, x: &Tensor, mask: &Bound<'_, PyAny>, source: &Tensor) -> PyResult<Made> {
    let (x, source) = (x.inner(), source.inner());
    let mask = like(mask, &x)?;
    record(py, &x, || select::masked_scatter(&x, &mask, &source))
}

/// The indices of the elements that are not 0: a row for each, or with ``as_tuple`` a vector for each axis.
#[pyfunction]
#[pyo3(signature = (x, *, as_tuple=false))]
fn nonzero<'py>(py: Python<'py>, x: &Tensor, as_tuple: bool) -> PyResult<Bound<'py, PyAny>> {
    let x = x.inner();
    let found = run(py, &x, || select::nonzero(&x)).py()?;
    if !as_tuple {
        return Ok(Made::from(found).into_pyobject(py)?.into_any());
    }
    let column = |axis: usize| -> PyResult<Made> {
        let column = found.tensor().select(1, axis as isize).and_then(|column| column.contiguous());
        Ok(Made::from(column.and_then(netcl::core::index::IndexTensor::from_tensor).py()?))
    };
    Ok(PyTuple::new(py, (0..x.ndim()).map(column).collect::<PyResult<Vec<_>>>()?)?.into_any())
}

/// The different elements in order, NaN last; on request with which of them each element is, and how often each occurs.
#[pyfunction]
#[pyo3(signature = (x, sorted=true, return_inverse=false, return_counts=false))]
fn unique<'py>(
    py: Python<'py>,
    x: &Tensor,
    sorted: bool,
    return_inverse: bool,
    return_counts: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let _ = sorted;
    let x = x.inner();
    let found = run(py, &x, || select::unique(&x)).py()?;
    let mut parts = vec![wrap(py, found.values)?.into_pyobject(py)?.into_any()];
    for (wanted, part) in [(return_inverse, found.inverse), (return_counts, found.counts)] {
        if wanted {
            parts.push(Made::from(part).into_pyobject(py)?.into_any());
        }
    }
    if parts.len() == 1 { Ok(parts.remove(0)) } else { Ok(PyTuple::new(py, parts)?.into_any()) }
}

/// Where values would go into a sorted last axis: before its first element that is not smaller, or with ``right`` after its last
/// one that is not larger.
#[pyfunction]
#[pyo3(signature = (sorted_sequence, values, *, right=false))]
fn searchsorted(py: Python<'_>, sorted_sequence: &Tensor, values: &Bound<'_, PyAny>, right: bool) -> PyResult<Made> {
    let sorted = sorted_sequence.inner();
    let values = like(values, &sorted)?;
    Ok(Made::from(run(py, &values, || select::searchsorted(&sorted, &values, right)).py()?))
}

/// The bin of each element between sorted boundaries; with ``right`` a boundary belongs to the bin that it starts.
#[pyfunction]
#[pyo3(signature = (x, boundaries, *, right=false))]
fn bucketize(py: Python<'_>, x: &Tensor, boundaries: &Bound<'_, PyAny>, right: bool) -> PyResult<Made> {
    let x = x.inner();
    let boundaries = like(boundaries, &x)?;
    Ok(Made::from(run(py, &x, || select::searchsorted(&boundaries, &x, right)).py()?))
}

/// How often each whole number from 0 on occurs in a vector, or the sums of its weights. Reads the vector.
#[pyfunction]
#[pyo3(signature = (x, weights=None, minlength=0))]
fn bincount<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    weights: Option<&Tensor>,
    minlength: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let weights = weights.map(Tensor::inner);
    let queue = match (&weights, x.cast::<Tensor>()) {
        (Some(weights), _) => weights.queue().clone(),
        (None, Ok(x)) => x.get().inner().queue().clone(),
        (None, Err(_)) => crate::device::resolve_queue(py, None, None)?,
    };
    let at = indices(x, &queue)?;
    let counts = select::bincount(&at, weights.as_deref(), minlength).py()?;
    if weights.is_some() {
        return Ok(wrap(py, counts)?.into_pyobject(py)?.into_any());
    }
    let counts = counts.raw().cast(DType::I64).and_then(netcl::core::index::IndexTensor::from_tensor).py()?;
    Ok(Made::from(counts).into_pyobject(py)?.into_any())
}

/// How many elements lie in each of ``bins`` parts of equal width between ``min`` and ``max``; equal bounds stand for the smallest
/// and the largest element.
#[pyfunction]
#[pyo3(signature = (x, bins=100, min=0.0, max=0.0))]
fn histc(py: Python<'_>, x: &Tensor, bins: usize, min: f64, max: f64) -> PyResult<Made> {
    record(py, &x.inner(), || select::histc(&x.inner(), bins, min, max))
}
