//! Settings of layers as Python writes them.

use netcl::nn::settings::Value;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

/// What a setting may be; anything else is a text that no setting takes, for the layer's own error.
pub(super) fn from_py(given: &Bound<'_, PyAny>) -> PyResult<Value> {
    if given.is_none() {
        return Ok(Value::None);
    }
    if let Ok(truth) = given.cast::<PyBool>() {
        return Ok(Value::Bool(truth.is_true()));
    }
    if let Ok(text) = given.cast::<PyString>() {
        return Ok(Value::Text(text.to_string_lossy().into_owned()));
    }
    if given.is_instance_of::<PyFloat>() {
        return Ok(Value::Float(given.extract()?));
    }
    if given.is_instance_of::<PyInt>() || given.hasattr("__index__")? && !given.hasattr("shape")? {
        return Ok(given.extract().map_or_else(|_| Value::Text(shown(given)), Value::Int));
    }
    if given.is_instance_of::<PyTuple>() || given.is_instance_of::<PyList>() {
        let values = given.try_iter()?.map(|item| from_py(&item?)).collect::<PyResult<_>>()?;
        return Ok(Value::List(values));
    }
    if let Ok(entries) = given.cast::<PyDict>() {
        let named = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| Ok((name.extract()?, from_py(&value)?));
        return Ok(Value::Map(entries.iter().map(named).collect::<PyResult<_>>()?));
    }
    // NumPy's numbers and one-dimensional arrays of them. A tensor is no setting, and may be a view of more than there is memory.
    if given.hasattr("dtype")? && given.hasattr("tolist")? && !given.hasattr("queue")? {
        let plain = given.call_method0("tolist")?;
        if !plain.hasattr("dtype")? {
            return from_py(&plain);
        }
    }
    Ok(Value::Text(shown(given)))
}

fn shown(given: &Bound<'_, PyAny>) -> String {
    given.repr().map_or_else(|_| "an object without repr".to_owned(), |text| text.to_string())
}

/// The keyword arguments of a constructor.
pub(super) fn named(given: &Bound<'_, PyDict>) -> PyResult<Vec<(String, Value)>> {
    match from_py(given)? {
        Value::Map(entries) => Ok(entries),
        _ => Err(PyTypeError::new_err("settings are a dictionary")),
    }
}

/// A setting as an attribute: lists are tuples.
pub(super) fn to_py<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::None => Ok(py.None().into_bound(py)),
        Value::Bool(value) => value.into_bound_py_any(py),
        Value::Int(number) => number.into_bound_py_any(py),
        Value::Float(number) => number.into_bound_py_any(py),
        Value::Text(text) => text.into_bound_py_any(py),
        Value::List(values) => {
            let items = values.iter().map(|value| to_py(py, value)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyTuple::new(py, items)?.into_any())
        }
        Value::Map(entries) => {
            let dict = PyDict::new(py);
            for (name, value) in entries {
                dict.set_item(name, to_py(py, value)?)?;
            }
            Ok(dict.into_any())
        }
    }
}
