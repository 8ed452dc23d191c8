//! Dtypes and shapes as Python writes them.

use netcl::core::dtype::DType;
use netcl::core::shape::Shape;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::error::IntoPyResult;

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
        let n: i64 = match n.extract() {
            Ok(n) => n,
            Err(_) => n
                .call_method0("__int__")
                .and_then(|n| n.extract())
                .map_err(|_| PyTypeError::new_err(format!("a shape is made of whole numbers, not {}", n.get_type())))?,
        };
        usize::try_from(n).map_err(|_| PyValueError::new_err(format!("a shape cannot hold the negative length {n}")))
    };
    if let Ok(items) = shape.try_iter() {
        return items.map(|n| one(&n?)).collect();
    }
    Ok(Shape::from([one(shape)?]))
}
