//! Reductions, scans and softmax, recorded.

use netcl::autograd::ops::{reduce, softmax as soft};
use netcl::raw_ops::Axes;
use pyo3::prelude::*;

use super::record;
use crate::axis;
use crate::index::Made;
use crate::ops::axes;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add {
        ($($function:ident),*) => {$(module.add_function(wrap_pyfunction!($function, module)?)?;)*};
    }
    add!(sum, mean, prod, max, min, any, all, logsumexp, var, std_, norm, cumsum, softmax, log_softmax);
    Ok(())
}

/// Axes as Python gives them: none means all.
pub(crate) struct OwnAxes(Option<Vec<isize>>);

impl OwnAxes {
    pub(crate) fn new(axis: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        axis.filter(|axis| !axis.is_none()).map(|axis| axes(Some(axis))).transpose().map(OwnAxes)
    }

    pub(crate) fn axes(&self) -> Axes<'_> {
        self.0.as_deref().map_or(Axes::All, Axes::Several)
    }
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (x, axis=None, keepdims=false, *, dim=None, keepdim=false))]
        fn $name(
            py: Python<'_>,
            x: &Tensor,
            axis: Option<&Bound<'_, PyAny>>,
            keepdims: bool,
            dim: Option<&Bound<'_, PyAny>>,
            keepdim: bool,
        ) -> PyResult<Made> {
            let axes = axis::several(stringify!($name), dim, axis)?;
            record(py, &x.inner(), || reduce::$name(&x.inner(), axes.axes(), keepdims || keepdim))
        }
    )*};
}

reductions! {
    /// The sum over some axes, or over all of them.
    sum;
    /// The mean over some axes, or over all of them.
    mean;
    /// The product over some axes, or over all of them.
    prod;
    /// The largest value; its gradient is shared by all elements that are equal to it.
    max;
    /// The smallest value; its gradient is shared by all elements that are equal to it.
    min;
    /// 1 where any value is not 0, else 0. Has no gradient.
    any;
    /// 1 where no value is 0, else 0. Has no gradient.
    all;
    /// ``log(sum(exp(x)))``, stable.
    logsumexp;
}

/// The variance over some axes; ``correction=1`` (``unbiased=True``) divides by one less than the count.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "arguments under both of their names")]
#[pyo3(signature = (x, axis=None, correction=1.0, keepdims=false, *, dim=None, keepdim=false, unbiased=None))]
fn var(
    py: Python<'_>,
    x: &Tensor,
    axis: Option<&Bound<'_, PyAny>>,
    correction: f64,
    keepdims: bool,
    dim: Option<&Bound<'_, PyAny>>,
    keepdim: bool,
    unbiased: Option<bool>,
) -> PyResult<Made> {
    let axes = axis::several("var", dim, axis)?;
    let correction = unbiased.map_or(correction, f64::from);
    record(py, &x.inner(), || reduce::var(&x.inner(), axes.axes(), correction, keepdims || keepdim))
}

/// The standard deviation over some axes; ``correction=1`` (``unbiased=True``) divides by one less than the count.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "arguments under both of their names")]
#[pyo3(name = "std", signature = (x, axis=None, correction=1.0, keepdims=false, *, dim=None, keepdim=false, unbiased=None))]
fn std_(
    py: Python<'_>,
    x: &Tensor,
    axis: Option<&Bound<'_, PyAny>>,
    correction: f64,
    keepdims: bool,
    dim: Option<&Bound<'_, PyAny>>,
    keepdim: bool,
    unbiased: Option<bool>,
) -> PyResult<Made> {
    let axes = axis::several("std", dim, axis)?;
    let correction = unbiased.map_or(correction, f64::from);
    record(py, &x.inner(), || reduce::std(&x.inner(), axes.axes(), correction, keepdims || keepdim))
}

/// The p-norm over some axes.
#[pyfunction]
#[pyo3(signature = (x, p=2.0, axis=None, keepdims=false, *, dim=None, keepdim=false))]
fn norm(
    py: Python<'_>,
    x: &Tensor,
    p: f64,
    axis: Option<&Bound<'_, PyAny>>,
    keepdims: bool,
    dim: Option<&Bound<'_, PyAny>>,
    keepdim: bool,
) -> PyResult<Made> {
    let axes = axis::several("norm", dim, axis)?;
    record(py, &x.inner(), || reduce::norm(&x.inner(), p, axes.axes(), keepdims || keepdim))
}

macro_rules! along_an_axis {
    ($($(#[$doc:meta])* $module:ident $name:ident;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (x, axis=None, *, dim=None), text_signature = "(x, axis=-1, *, dim=None)")]
        fn $name(py: Python<'_>, x: &Tensor, axis: Option<isize>, dim: Option<isize>) -> PyResult<Made> {
            let axis = axis::one_or(stringify!($name), dim, axis, -1)?;
            record(py, &x.inner(), || $module::$name(&x.inner(), axis))
        }
    )*};
}

along_an_axis! {
    /// The running sum along an axis.
    reduce cumsum;
    /// ``exp(x) / sum(exp(x))`` along an axis, stable.
    soft softmax;
    /// ``log(softmax(x))`` along an axis, stable.
    soft log_softmax;
}
