//! Dtypes and shapes as Python writes them.

use netcl::core::dtype::DType;
use netcl::core::shape::Shape;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::error::{IntoPyResult, kind};

/// Reads a dtype argument: one of the table's names, or the default.
pub(crate) fn parse_dtype(dtype: Option<&Bound<'_, PyAny>>) -> PyResult<DType> {
    let Some(given) = dtype.filter(|d| !d.is_none()) else { return Ok(DType::F32) };
    match given.extract::<&str>() {
        Ok(name) => DType::parse(name).py(),
        Err(_) => DType::parse(&given.repr()?.to_string()).py(),
    }
}

/// As [`parse_dtype`], with the names of whole numbers and truth values.
pub(crate) fn parse_any_dtype(dtype: &Bound<'_, PyAny>) -> PyResult<DType> {
    match dtype.extract::<&str>() {
        Ok(name) => DType::parse_any(name).py(),
        Err(_) => parse_dtype(Some(dtype)),
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

/// A shape given as numbers or as one sequence of them, of which one may be -1: what the others leave of `size` elements.
pub(crate) fn inferred_shape(op: &str, given: &Bound<'_, PyTuple>, size: usize) -> PyResult<Shape> {
    // Not any sequence: a tensor is one as well, and may have more elements than there is memory.
    let mut lengths: Vec<i64> = match given.get_item(0) {
        Ok(only) if given.len() == 1 && (only.is_instance_of::<PyTuple>() || only.is_instance_of::<PyList>()) => {
            only.extract()?
        }
        _ => given.extract()?,
    };
    let known = lengths.iter().filter(|&&n| n >= 0).try_fold(1usize, |all, &n| all.checked_mul(n as usize));
    let unknown: Vec<usize> = (0..lengths.len()).filter(|&axis| lengths[axis] < 0).collect();
    match (&unknown[..], known) {
        ([], _) => {}
        (&[axis], Some(known)) if lengths[axis] == -1 && known > 0 && size.is_multiple_of(known) => {
            lengths[axis] = (size / known) as i64;
        }
        _ => return Err(PyValueError::new_err(format!("{op}: {lengths:?} is no shape for {size} elements"))),
    }
    Ok(lengths.into_iter().map(|length| length as usize).collect())
}
