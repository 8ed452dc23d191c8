//! Padding, resampling, and channels exchanged for places.

use netcl::Tensor as Recorded;
use netcl::autograd::ops::pad::{self as padding, PadMode};
use netcl::autograd::ops::resample::{self, Resize};
use netcl::autograd::ops::{layout, shuffle};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::arguments::{Given, count, numbers, present};
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

/// A size or a factor, exactly one of them, of so many axes: one number stands for all. A missing height stays as it is.
fn resize(size: Given<'_, '_>, scale_factor: Given<'_, '_>, axes: usize) -> PyResult<Resize> {
    let op = "interpolate";
    match (present(size), present(scale_factor), axes) {
        (Some(size), None, 1) => numbers(op, "size", Some(size), [1]).map(|[length]| Resize::Size([1, length])),
        (Some(size), None, _) => numbers(op, "size", Some(size), [1, 1]).map(Resize::Size),
        (None, Some(by), _) => {
            let given = by
                .extract::<f64>()
                .map(|one| vec![one; axes])
                .or_else(|_| by.extract::<crate::list::List<f64>>().map(|list| list.0));
            match given.as_deref() {
                Ok(&[length]) if axes == 1 => Ok(Resize::Scale([1.0, length])),
                Ok(&[height, width]) if axes == 2 => Ok(Resize::Scale([height, width])),
                _ => {
                    let wanted = if axes == 1 { "a number" } else { "a number or a pair of them" };
                    Err(PyTypeError::new_err(format!("{op}: scale_factor is {wanted}, not {by}")))
                }
            }
        }
        _ => Err(PyValueError::new_err("interpolate: give either size or scale_factor")),
    }
}

both! {
    /// Margins around the last axes: one pair (before, after) for each, in the order of the axes, as in NumPy (PyTorch's flat list
    /// begins with the last axis instead).
    ///
    /// ``mode`` is ``"constant"`` (``value``, and negative margins cut off), ``"reflect"`` (the edge is not repeated),
    /// ``"replicate"`` (the edge is repeated) or ``"circular"`` (the other end follows).
    #[signature(x, pad, mode="constant", value=0.0)]
    #[text("(x, pad, mode='constant', value=0.0)")]
    fn pad(how, py, x: &Tensor, pad: &Bound<'_, PyAny>, mode: &str, value: f64) -> Tensor {
        let filling = match mode {
            "constant" => PadMode::Constant(value),
            "reflect" => PadMode::Reflect,
            "replicate" => PadMode::Replicate,
            "circular" => PadMode::Circular,
            other => {
                let what = format!("pad: mode {other:?} is not one of 'constant', 'reflect', 'replicate' and 'circular'");
                return Err(PyValueError::new_err(what));
            }
        };
        let (x, pads) = (&x.inner(), pairs(pad)?);
        how.tensor(py, x, || padding::pad(x, &pads, filling))
    }

    /// Images (N, C, H, W) or sequences (N, C, L) in another size: ``size`` (a number, or one for each axis after the channels), or
    /// so many times their own (``scale_factor``, rounded down).
    ///
    /// ``mode`` is ``"nearest"``, ``"bilinear"`` for images or ``"linear"`` for sequences. With ``align_corners`` the corner pixels
    /// keep their values.
    #[signature(x, size=None, scale_factor=None, mode="nearest", align_corners=None)]
    #[text("(x, size=None, scale_factor=None, mode='nearest', align_corners=False)")]
    fn interpolate(
        how, py, x: &Tensor, size: Given<'_, '_>, scale_factor: Given<'_, '_>, mode: &str, align_corners: Option<bool>,
    ) -> Tensor {
        let (x, align_corners) = (&x.inner(), align_corners.unwrap_or(false));
        let axes = match x.ndim() {
            3 | 4 => x.ndim() - 2,
            _ => {
                let what = format!("interpolate: it takes (N, C, L) or (N, C, H, W), not shape {}", x.shape());
                return Err(PyValueError::new_err(what));
            }
        };
        let to = resize(size, scale_factor, axes)?;
        let linear = match (mode, axes) {
            ("nearest", _) if align_corners => {
                return Err(PyValueError::new_err("interpolate: align_corners is for mode='bilinear' or 'linear' only"));
            }
            ("nearest", _) => false,
            ("bilinear", 2) | ("linear", 1) => true,
            ("bilinear" | "linear", _) => {
                let what = format!(
                    "interpolate: mode='linear' is for (N, C, L) and mode='bilinear' for (N, C, H, W); the input has shape {}",
                    x.shape()
                );
                return Err(PyValueError::new_err(what));
            }
            (other, _) => {
                let what = format!("interpolate: mode {other:?} is not one of 'nearest', 'linear' and 'bilinear'");
                return Err(PyValueError::new_err(what));
            }
        };
        let resample = |x: &Recorded| match linear {
            true => resample::upsample_bilinear(x, to, align_corners),
            false => resample::upsample_nearest(x, to),
        };
        if axes == 2 {
            return how.tensor(py, x, || resample(x));
        }
        how.tensor(py, x, || layout::squeeze(&resample(&layout::unsqueeze(x, 2)?)?, &[2]))
    }

    /// (..., C * r * r, H, W) to (..., C, H * r, W * r) with r = ``upscale_factor``: each group of r * r channels becomes a block of
    /// pixels.
    #[signature(x, upscale_factor)]
    #[text("(x, upscale_factor)")]
    fn pixel_shuffle(how, py, x: &Tensor, upscale_factor: &Bound<'_, PyAny>) -> Tensor {
        let (x, factor) = (&x.inner(), count("pixel_shuffle", "upscale_factor", upscale_factor)?);
        how.tensor(py, x, || shuffle::pixel_shuffle(x, factor))
    }

    /// (..., C, H * r, W * r) to (..., C * r * r, H, W) with r = ``downscale_factor``: undoes ``pixel_shuffle``.
    #[signature(x, downscale_factor)]
    #[text("(x, downscale_factor)")]
    fn pixel_unshuffle(how, py, x: &Tensor, downscale_factor: &Bound<'_, PyAny>) -> Tensor {
        let (x, factor) = (&x.inner(), count("pixel_unshuffle", "downscale_factor", downscale_factor)?);
        how.tensor(py, x, || shuffle::pixel_unshuffle(x, factor))
    }

    /// The channels (axis 1) in another order: channel i of group g becomes channel g of group i.
    #[signature(x, groups)]
    #[text("(x, groups)")]
    fn channel_shuffle(how, py, x: &Tensor, groups: &Bound<'_, PyAny>) -> Tensor {
        let (x, groups) = (&x.inner(), count("channel_shuffle", "groups", groups)?);
        how.tensor(py, x, || shuffle::channel_shuffle(x, groups))
    }
}
