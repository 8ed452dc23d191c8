//! Filters: conversions of arrays that inputs of networks need.

use netcl::core::host;
use netcl::data::filters::{self, Side};
use netcl::data::{Array, DType};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::IntoPy;
use super::sample::{array_from_py, array_to_py};
use crate::error::IntoPyResult;
use crate::list::List;

/// Numbers as float32; bytes are divided by 255, everything else keeps its value.
#[pyfunction]
fn to_float<'py>(py: Python<'py>, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let array = array_from_py("to_float", array)?;
    array_to_py(py, py.detach(|| filters::to_float(&array)))
}

/// ``(x - mean) / std`` with a mean and deviation for each channel of images or batches of images.
#[pyfunction]
fn normalize<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
    mean: List<f32>,
    std: List<f32>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut array = array_from_py("normalize", array)?;
    if array.dtype() != DType::F32 {
        array = filters::to_float(&array);
    }
    let array = py.detach(|| filters::normalize(array, &mean, &std)).data(py)?;
    array_to_py(py, array)
}

/// Labels as rows of 0 with a 1 in the place of the class: float32 with one more axis.
#[pyfunction]
fn one_hot<'py>(py: Python<'py>, labels: &Bound<'py, PyAny>, num_classes: usize) -> PyResult<Bound<'py, PyAny>> {
    let labels = array_from_py("one_hot", labels)?;
    host::check::<f32>("one_hot", labels.len().saturating_mul(num_classes)).py()?;
    let rows = py.detach(|| filters::one_hot(&labels, num_classes)).data(py)?;
    array_to_py(py, rows)
}

/// A sequence (the first axis) of a length: what is missing is ``value``, what is too much is cut off.
#[pyfunction]
#[pyo3(signature = (array, length, value=0.0, side="right"))]
fn fit<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
    length: usize,
    value: f64,
    side: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let side = match side {
        "left" => Side::Left,
        "right" => Side::Right,
        _ => return Err(PyValueError::new_err(format!("fit: the side {side:?} is neither left nor right"))),
    };
    let array = array_from_py("fit", array)?;
    let item: usize = array.shape().iter().skip(1).product();
    host::check::<f64>("fit", length.saturating_mul(item)).py()?;
    let fitted = py.detach(|| filters::fit_number(&array, length, value, side)).data(py)?;
    array_to_py(py, fitted)
}

/// Sequences of different lengths as one array, padded on the right to the longest, and their lengths.
#[pyfunction]
#[pyo3(signature = (sequences, value=0.0))]
fn pad_sequences<'py>(
    py: Python<'py>,
    sequences: List<Bound<'py, PyAny>>,
    value: f64,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let arrays =
        sequences.iter().map(|array| array_from_py("pad_sequences", array)).collect::<PyResult<Vec<Array>>>()?;
    let longest = arrays.iter().map(Array::len).max().unwrap_or(0);
    host::check::<f64>("pad_sequences", longest.saturating_mul(arrays.len())).py()?;
    let (array, lengths) = py.detach(|| filters::pad_stack(&arrays, value)).data(py)?;
    Ok((array_to_py(py, array)?, array_to_py(py, lengths)?))
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(to_float, module)?)?;
    module.add_function(wrap_pyfunction!(normalize, module)?)?;
    module.add_function(wrap_pyfunction!(one_hot, module)?)?;
    module.add_function(wrap_pyfunction!(fit, module)?)?;
    module.add_function(wrap_pyfunction!(pad_sequences, module)?)
}
