//! Padding and resampling.

use netcl::autograd::ops::pad::{self as padding, PadMode};
use netcl::autograd::ops::resample::{self, Resize};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::arguments::{Given, numbers, present};
use super::{Mode, both};
use crate::tensor::Tensor;

/// A list of pairs, as NumPy's `pad` takes them.
fn pairs(given: &Bound<'_, PyAny>) -> PyResult<Vec<(isize, isize)>> {
    let wrong = |_: PyErr| {
        PyTypeError::new_err(format!(
            "pad: give a list of pairs (before, after), one for each of the last axes in the order of the axes, such as \
             [(1, 1), (2, 2)] for height and width, not {given}"
        ))
    };
    let pair = |item: PyResult<Bound<'_, PyAny>>| {
        let list: Vec<isize> = item?.try_iter()?.map(|n| n?.extract()).collect::<PyResult<_>>()?;
        <[isize; 2]>::try_from(list).map_err(|_| PyTypeError::new_err("no pair"))
    };
    let list = given.try_iter().and_then(|items| items.map(pair).collect::<PyResult<Vec<_>>>()).map_err(wrong)?;
    Ok(list.into_iter().map(|[before, after]| (before, after)).collect())
}

/// A size or a factor, exactly one of them.
fn resize(size: Given<'_, '_>, scale_factor: Given<'_, '_>) -> PyResult<Resize> {
    match (present(size), present(scale_factor)) {
        (Some(size), None) => Ok(Resize::Size(numbers("interpolate", "size", Some(size), [1, 1])?)),
        (None, Some(by)) => match by.extract::<f64>() {
            Ok(one) => Ok(Resize::Scale([one; 2])),
            Err(_) => by.extract::<[f64; 2]>().map(Resize::Scale).map_err(|_| {
                PyTypeError::new_err(format!("interpolate: scale_factor is a number or a pair of them, not {by}"))
            }),
        },
        _ => Err(PyValueError::new_err("interpolate: give either size or scale_factor")),
    }
}

both! {
    /// Margins around the last axes: one pair (before, after) for each, in the order of the axes, as in NumPy (PyTorch's flat list
    /// begins with the last axis instead).
    ///
    /// ``mode`` is ``"constant"`` (``value``, and negative margins cut off), ``"reflect"`` (the edge is not repeated) or
    /// ``"replicate"`` (the edge is repeated).
    #[signature(x, pad, mode="constant", value=0.0)]
    #[text("(x, pad, mode='constant', value=0.0)")]
    fn pad(how, py, x: &Tensor, pad: &Bound<'_, PyAny>, mode: &str, value: f64) -> Tensor {
        let filling = match mode {
            "constant" => PadMode::Constant(value),
            "reflect" => PadMode::Reflect,
            "replicate" => PadMode::Replicate,
            other => {
                let what = format!("pad: mode {other:?} is not one of 'constant', 'reflect' and 'replicate'");
                return Err(PyValueError::new_err(what));
            }
        };
        let (x, pads) = (&x.inner, pairs(pad)?);
        how.tensor(py, x, || padding::pad(x, &pads, filling))
    }

    /// The last two axes (height and width) in another size: ``size`` (a number or a pair), or so many times their own
    /// (``scale_factor``, rounded down).
    ///
    /// ``mode`` is ``"nearest"`` or ``"bilinear"``. With ``align_corners`` the corner pixels keep their values.
    #[signature(x, size=None, scale_factor=None, mode="nearest", align_corners=None)]
    #[text("(x, size=None, scale_factor=None, mode='nearest', align_corners=False)")]
    fn interpolate(
        how, py, x: &Tensor, size: Given<'_, '_>, scale_factor: Given<'_, '_>, mode: &str, align_corners: Option<bool>,
    ) -> Tensor {
        let (x, to) = (&x.inner, resize(size, scale_factor)?);
        let align_corners = align_corners.unwrap_or(false);
        match mode {
            "nearest" if align_corners => {
                Err(PyValueError::new_err("interpolate: align_corners is for mode='bilinear' only"))
            }
            "nearest" => how.tensor(py, x, || resample::upsample_nearest(x, to)),
            "bilinear" => how.tensor(py, x, || resample::upsample_bilinear(x, to, align_corners)),
            other => {
                let what = format!("interpolate: mode {other:?} is not one of 'nearest' and 'bilinear'");
                Err(PyValueError::new_err(what))
            }
        }
    }
}
