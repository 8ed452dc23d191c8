//! Dtypes and shapes as Python writes them.

use netcl::core::dtype::DType;
use netcl::core::shape::Shape;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::error::{IntoPyResult, kind};

/// Reads a dtype argument: one of the table's names, or the default.
pub(crate) fn parse_dtype(dtype: Option<&Bound<'_, PyAny>>) -> PyResult<DType> {
    let Some(given) = dtype.filter(|d| !d.is_none()) else { return Ok(DType::F32) };
    match given.extract::<&str>() {
        Ok(name) => DType::parse(name).py(),
        Err(_) => DType::parse(&given.repr()?.to_string()).py(),
    }
}

pub(crate) fn parse_shape(shape: &Bound<'_, PyAny>) -> PyResult<Shape> {
    let one = |n: &Bound<'_, PyAny>| -> PyResult<usize> {
        let number: i64 = match n.extract() {
            Ok(number) => number,
            Err(error) if error.is_instance_of::<PyOverflowError>(n.py()) => {
                return Err(PyValueError::new_err(format!(
                    "a shape cannot hold the length {n}: it must be below 2**63"
                )));
            }
            // NumPy's floats and numbers of other libraries, where they are whole.
            Err(_) => match n.extract::<f64>() {
                Ok(real) if real.fract() == 0.0 && real.abs() < 2f64.powi(63) => real as i64,
                Ok(real) => return Err(PyTypeError::new_err(format!("a shape is made of whole numbers, not {real}"))),
                Err(_) => {
                    return Err(PyTypeError::new_err(format!("a shape is made of whole numbers, not {}", kind(n))));
                }
            },
        };
        usize::try_from(number)
            .map_err(|_| PyValueError::new_err(format!("a shape cannot hold the negative length {number}")))
    };
    if let Ok(items) = shape.try_iter() {
        return items.map(|n| one(&n?)).collect();
    }
    Ok(Shape::from([one(shape)?]))
}
