//! Extremes with their places, order statistics, moments and running results along an axis, recorded.

use netcl::Tensor as Recorded;
use netcl::autograd::ops::statistics::Interpolation;
use netcl::autograd::ops::{reduce, scan, statistics};
use netcl::core::index::IndexTensor as Index;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::{record, run, wrap};
use crate::axis;
use crate::error::IntoPyResult;
use crate::index::Made;
use crate::list::List;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add {
        ($($function:ident),*) => {$(module.add_function(wrap_pyfunction!($function, module)?)?;)*};
    }
    add!(max_along, min_along, amax, amin, aminmax, kthvalue, median, nanmedian, mode, quantile, var_mean, std_mean);
    add!(nansum, nanmean, count_nonzero, cumprod, logcumsumexp, cummax, cummin, diff, renorm);
    module.add("ValuesAndIndices", pair_type(module.py())?)
}

/// The named pair `(values, indices)`.
fn pair_type(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static TYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = TYPE.get_or_try_init(py, || {
        let make = py.import("collections")?.getattr("namedtuple")?;
        let made = make.call1(("ValuesAndIndices", ["values", "indices"]))?;
        made.setattr("__module__", "netcl._netcl.functions")?;
        made.setattr("__doc__", "Values and where they were: ``(values, indices)``.")?;
        Ok::<_, PyErr>(made.unbind())
    })?;
    Ok(made.bind(py))
}

fn pair<'py>(
    py: Python<'py>,
    x: &Tensor,
    find: impl FnOnce(&Recorded) -> netcl::Result<(Recorded, Index)> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let x = x.inner();
    let (values, indices) = run(py, &x, || find(&x)).py()?;
    pair_type(py)?.call1((wrap(py, values)?, Made::from(indices)))
}

type Pair<'py> = PyResult<Bound<'py, PyAny>>;

/// Functions that give a value of an axis and where it was.
macro_rules! along {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (x, dim=None, keepdim=None, *, axis=None, keepdims=None),
            text_signature = "(x, dim=-1, keepdim=False, *, axis=None, keepdims=None)")]
        fn $name<'py>(
            py: Python<'py>, x: &Tensor, dim: Option<isize>, keepdim: Option<bool>, axis: Option<isize>, keepdims: Option<bool>,
        ) -> Pair<'py> {
            let op = stringify!($name);
            let (axis, kept) = (axis::one_or(op, dim, axis, -1)?, axis::kept(op, keepdim, keepdims)?);
            pair(py, x, |x| statistics::$name(x, axis, kept))
        }
    )*};
}

along! {
    /// The largest element along an axis and where it is, the first of equals, to which alone its gradient goes.
    max_along;
    /// The smallest element along an axis and where it is, the first of equals, to which alone its gradient goes.
    min_along;
    /// The most frequent value along an axis, the smallest of several, and where it is.
    mode;
}

/// The middle element along an axis (the lower of two) and where it is; without an axis, of all elements, and alone. NaN, where
/// there is one.
#[pyfunction]
#[pyo3(signature = (x, dim=None, keepdim=None, *, axis=None, keepdims=None))]
fn median<'py>(
    py: Python<'py>,
    x: &Tensor,
    dim: Option<isize>,
    keepdim: Option<bool>,
    axis: Option<isize>,
    keepdims: Option<bool>,
) -> Pair<'py> {
    let kept = axis::kept("median", keepdim, keepdims)?;
    middle(py, x, axis::maybe("median", dim, axis)?, move |x, axis| statistics::median(x, axis, kept))
}

/// The middle element of those that are not NaN: otherwise ``median``.
#[pyfunction]
#[pyo3(signature = (x, dim=None, keepdim=None, *, axis=None, keepdims=None))]
fn nanmedian<'py>(
    py: Python<'py>,
    x: &Tensor,
    dim: Option<isize>,
    keepdim: Option<bool>,
    axis: Option<isize>,
    keepdims: Option<bool>,
) -> Pair<'py> {
    let kept = axis::kept("nanmedian", keepdim, keepdims)?;
    middle(py, x, axis::maybe("nanmedian", dim, axis)?, move |x, axis| statistics::nanmedian(x, axis, kept))
}

fn middle<'py>(
    py: Python<'py>,
    x: &Tensor,
    axis: Option<isize>,
    find: impl FnOnce(&Recorded, isize) -> netcl::Result<(Recorded, Index)> + Send,
) -> Pair<'py> {
    match axis {
        Some(axis) => pair(py, x, |x| find(x, axis)),
        None => {
            let x = x.inner();
            let flat = || Ok(find(&netcl::autograd::reshape(&x, [x.size()])?, 0)?.0);
            Ok(record(py, &x, flat)?.into_pyobject(py)?.into_any())
        }
    }
}

/// The element that has ``k - 1`` smaller ones along an axis, and where it is.
#[pyfunction]
#[pyo3(signature = (x, k, dim=None, keepdim=None, *, axis=None, keepdims=None),
    text_signature = "(x, k, dim=-1, keepdim=False, *, axis=None, keepdims=None)")]
fn kthvalue<'py>(
    py: Python<'py>,
    x: &Tensor,
    k: usize,
    dim: Option<isize>,
    keepdim: Option<bool>,
    axis: Option<isize>,
    keepdims: Option<bool>,
) -> Pair<'py> {
    let (axis, kept) = (axis::one_or("kthvalue", dim, axis, -1)?, axis::kept("kthvalue", keepdim, keepdims)?);
    pair(py, x, |x| statistics::kthvalue(x, k, axis, kept))
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident = $module:ident::$function:ident;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (x, dim=None, keepdim=None, *, axis=None, keepdims=None))]
        fn $name(
            py: Python<'_>, x: &Tensor, dim: Option<&Bound<'_, PyAny>>, keepdim: Option<bool>,
            axis: Option<&Bound<'_, PyAny>>, keepdims: Option<bool>,
        ) -> PyResult<Made> {
            let op = stringify!($name);
            let (axes, kept) = (axis::several(op, dim, axis)?, axis::kept(op, keepdim, keepdims)?);
            record(py, &x.inner(), || $module::$function(&x.inner(), axes.axes(), kept))
        }
    )*};
}

reductions! {
    /// The largest value over some axes; its gradient is shared by all elements that are equal to it.
    amax = reduce::max;
    /// The smallest value over some axes; its gradient is shared by all elements that are equal to it.
    amin = reduce::min;
    /// The sum over some axes of the elements that are not NaN.
    nansum = statistics::nansum;
    /// The mean over some axes of the elements that are not NaN.
    nanmean = statistics::nanmean;
}

/// The number of elements over some axes that are not 0.
#[pyfunction]
#[pyo3(signature = (x, dim=None, *, axis=None))]
fn count_nonzero(
    py: Python<'_>,
    x: &Tensor,
    dim: Option<&Bound<'_, PyAny>>,
    axis: Option<&Bound<'_, PyAny>>,
) -> PyResult<Made> {
    let (x, axes) = (x.inner(), axis::several("count_nonzero", dim, axis)?);
    Ok(Made::from(run(py, &x, || statistics::count_nonzero(&x, axes.axes(), false)).py()?))
}

/// The smallest and the largest value over some axes.
#[pyfunction]
#[pyo3(signature = (x, *, dim=None, keepdim=None, axis=None, keepdims=None))]
fn aminmax(
    py: Python<'_>,
    x: &Tensor,
    dim: Option<&Bound<'_, PyAny>>,
    keepdim: Option<bool>,
    axis: Option<&Bound<'_, PyAny>>,
    keepdims: Option<bool>,
) -> PyResult<(Made, Made)> {
    let (axes, kept) = (axis::several("aminmax", dim, axis)?, axis::kept("aminmax", keepdim, keepdims)?);
    two(py, x, |x| statistics::aminmax(x, axes.axes(), kept))
}

fn two(
    py: Python<'_>,
    x: &Tensor,
    make: impl FnOnce(&Recorded) -> netcl::Result<(Recorded, Recorded)> + Send,
) -> PyResult<(Made, Made)> {
    let x = x.inner();
    let (first, second) = run(py, &x, || make(&x)).py()?;
    Ok((wrap(py, first)?, wrap(py, second)?))
}

macro_rules! moments {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (x, dim=None, *, correction=1.0, keepdim=None, axis=None, keepdims=None))]
        fn $name(
            py: Python<'_>, x: &Tensor, dim: Option<&Bound<'_, PyAny>>, correction: f64, keepdim: Option<bool>,
            axis: Option<&Bound<'_, PyAny>>, keepdims: Option<bool>,
        ) -> PyResult<(Made, Made)> {
            let op = stringify!($name);
            let (axes, kept) = (axis::several(op, dim, axis)?, axis::kept(op, keepdim, keepdims)?);
            two(py, x, |x| statistics::$name(x, axes.axes(), correction, kept))
        }
    )*};
}

moments! {
    /// The variance and the mean over some axes; ``correction`` is subtracted from the count.
    var_mean;
    /// The standard deviation and the mean over some axes; ``correction`` is subtracted from the count.
    std_mean;
}

/// The value that a share ``q`` of the elements is below, along an axis or, without one, of all. Several shares are a new first axis.
#[pyfunction]
#[pyo3(signature = (x, q, dim=None, keepdim=None, *, interpolation="linear", axis=None, keepdims=None))]
#[allow(clippy::too_many_arguments, reason = "the signature is the one that Python shows")]
fn quantile(
    py: Python<'_>,
    x: &Tensor,
    q: &Bound<'_, PyAny>,
    dim: Option<isize>,
    keepdim: Option<bool>,
    interpolation: &str,
    axis: Option<isize>,
    keepdims: Option<bool>,
) -> PyResult<Made> {
    let op = "quantile";
    let (axis, kept) = (axis::maybe(op, dim, axis)?, axis::kept(op, keepdim, keepdims)?);
    let how = Interpolation::parse(interpolation).py()?;
    let (shares, one) = match q.cast::<Tensor>() {
        Ok(tensor) => {
            let q = tensor.get().inner();
            (q.raw().to_f64_vec().py()?, q.ndim() == 0)
        }
        Err(_) => match q.extract::<f64>() {
            Ok(one) => (vec![one], true),
            Err(_) => {
                let several = q.extract::<List<f64>>();
                (several.map_err(|_| PyTypeError::new_err("quantile: q is a number, a list or a Tensor"))?.0, false)
            }
        },
    };
    let x = x.inner();
    record(py, &x, || {
        let (lines, axis) = match axis {
            Some(axis) => (x.as_ref().clone(), axis),
            None => (netcl::autograd::reshape(&x, [x.size()])?, 0),
        };
        let values = statistics::quantile(&lines, &shares, axis, kept, how)?;
        if one { values.squeeze(&[0]) } else { Ok(values) }
    })
}

macro_rules! running {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (x, dim=None, *, axis=None), text_signature = "(x, dim=-1, *, axis=None)")]
        fn $name(py: Python<'_>, x: &Tensor, dim: Option<isize>, axis: Option<isize>) -> PyResult<Made> {
            let axis = axis::one_or(stringify!($name), dim, axis, -1)?;
            record(py, &x.inner(), || scan::$name(&x.inner(), axis))
        }
    )*};
}

running! {
    /// The running product along an axis.
    cumprod;
    /// The running ``log(sum(exp(x)))`` along an axis, stable.
    logcumsumexp;
}

macro_rules! running_extremes {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (x, dim=None, *, axis=None), text_signature = "(x, dim=-1, *, axis=None)")]
        fn $name<'py>(py: Python<'py>, x: &Tensor, dim: Option<isize>, axis: Option<isize>) -> Pair<'py> {
            let axis = axis::one_or(stringify!($name), dim, axis, -1)?;
            pair(py, x, |x| scan::$name(x, axis))
        }
    )*};
}

running_extremes! {
    /// The largest element so far along an axis, and where it is; the last of equals.
    cummax;
    /// The smallest element so far along an axis, and where it is; the last of equals.
    cummin;
}

/// The differences of neighbours along an axis, ``n`` times.
#[pyfunction]
#[pyo3(signature = (x, n=1, dim=None, *, axis=None), text_signature = "(x, n=1, dim=-1, *, axis=None)")]
fn diff(py: Python<'_>, x: &Tensor, n: usize, dim: Option<isize>, axis: Option<isize>) -> PyResult<Made> {
    let axis = axis::one_or("diff", dim, axis, -1)?;
    record(py, &x.inner(), || scan::diff(&x.inner(), n, axis))
}

/// The slices of an axis, scaled down to a p-norm of ``maxnorm`` where theirs is larger.
#[pyfunction]
fn renorm(py: Python<'_>, x: &Tensor, p: f64, dim: isize, maxnorm: f64) -> PyResult<Made> {
    record(py, &x.inner(), || statistics::renorm(&x.inner(), p, dim, maxnorm))
}
