//! Axis arguments, which have two names each: `dim` and `keepdim` as PyTorch writes them, `axis` and `keepdims` as NumPy does.
//!
//! A function declares both, `#[pyo3(signature = (x, dim=None, keepdim=None, *, axis=None, keepdims=None))]`, and asks here which
//! one was given. Giving both is an error.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::autograd::OwnAxes;

/// An argument under whichever of its two names it was given.
pub(crate) fn either<T>(op: &str, names: [&str; 2], first: Option<T>, second: Option<T>) -> PyResult<Option<T>> {
    let [one, other] = names;
    match (first, second) {
        (Some(_), Some(_)) => Err(PyTypeError::new_err(format!(
            "{op}: {one} and {other} are two names of one argument; give one of them"
        ))),
        (given, None) | (None, given) => Ok(given),
    }
}

/// One axis that must be given.
pub(crate) fn one(op: &str, dim: Option<isize>, axis: Option<isize>) -> PyResult<isize> {
    maybe(op, dim, axis)?.ok_or_else(|| PyTypeError::new_err(format!("{op}: dim (or axis) is not given")))
}

/// One axis, or a default where none is given.
pub(crate) fn one_or(op: &str, dim: Option<isize>, axis: Option<isize>, default: isize) -> PyResult<isize> {
    Ok(maybe(op, dim, axis)?.unwrap_or(default))
}

/// One axis, if one is given.
pub(crate) fn maybe(op: &str, dim: Option<isize>, axis: Option<isize>) -> PyResult<Option<isize>> {
    either(op, ["dim", "axis"], dim, axis)
}

/// Some axes as one number or several; all of them where none is given.
pub(crate) fn several(op: &str, dim: Option<&Bound<'_, PyAny>>, axis: Option<&Bound<'_, PyAny>>) -> PyResult<OwnAxes> {
    let [dim, axis] = [dim, axis].map(|given| given.filter(|given| !given.is_none()));
    OwnAxes::new(either(op, ["dim", "axis"], dim, axis)?)
}

/// Whether reduced axes stay with length 1; they do not where nothing is given.
pub(crate) fn kept(op: &str, keepdim: Option<bool>, keepdims: Option<bool>) -> PyResult<bool> {
    Ok(either(op, ["keepdim", "keepdims"], keepdim, keepdims)?.unwrap_or(false))
}
