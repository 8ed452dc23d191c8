//! Padding, resampling, patches, grids, and channels exchanged for places.

use netcl::Tensor as Recorded;
use netcl::autograd::ops::grid::{self, GridMode, GridPadding};
use netcl::autograd::ops::pad::{self as padding, PadMode};
use netcl::autograd::ops::resample::{self, Resize};
use netcl::autograd::ops::unfold::{self as windows, Patches};
use netcl::autograd::ops::{layout, shuffle};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::arguments::{Given, count, numbers, present};
use super::{Mode, both};
use crate::index::Made;
use crate::list::List;
use crate::tensor::Tensor;

/// A list of pairs in the order of the axes, as NumPy's `pad` takes them, or a flat list that begins with the last axis, as PyTorch's.
fn pairs(given: &Bound<'_, PyAny>) -> PyResult<Vec<(isize, isize)>> {
    let wrong = |_: PyErr| {
        PyTypeError::new_err(format!(
            "pad: give a list of pairs (before, after), one for each of the last axes in the order of the axes, such as \
             [(1, 1), (2, 2)] for height and width, not {given}"
        ))
    };
    if let Ok(flat) = given.extract::<List<isize>>()
        && flat.0.len() % 2 == 0
    {
        return Ok(flat.0.chunks_exact(2).rev().map(|pair| (pair[0], pair[1])).collect());
    }
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
                .or_else(|_| by.extract::<List<f64>>().map(|list| list.0));
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

fn patches(
    op: &str,
    kernel_size: &Bound<'_, PyAny>,
    dilation: Given<'_, '_>,
    padding: Given<'_, '_>,
    stride: Given<'_, '_>,
) -> PyResult<Patches> {
    Ok(Patches {
        kernel_size: numbers(op, "kernel_size", Some(kernel_size), [1, 1])?,
        dilation: numbers(op, "dilation", dilation, [1, 1])?,
        padding: numbers(op, "padding", padding, [0, 0])?,
        stride: numbers(op, "stride", stride, [1, 1])?,
    })
}

both! {
    /// Margins around the last axes: one pair (before, after) for each, in the order of the axes, as in NumPy, or a flat list that
    /// begins with the last axis, as in PyTorch: ``pad(x, [(2, 0), (1, 1)])`` and ``pad(x, (1, 1, 2, 0))`` are the same.
    ///
    /// ``mode`` is ``"constant"`` (``value``, and negative margins cut off), ``"reflect"`` (the edge is not repeated),
    /// ``"replicate"`` (the edge is repeated) or ``"circular"`` (the other end follows).
    #[signature(x, pad, mode="constant", value=0.0)]
    #[text("(x, pad, mode='constant', value=0.0)")]
    fn pad(how, py, x: &Tensor, pad: &Bound<'_, PyAny>, mode: &str, value: f64) -> Made {
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
    /// ``mode`` is ``"nearest"``, ``"area"`` (means), ``"bilinear"`` or ``"bicubic"`` for images, or ``"linear"`` for sequences. With
    /// ``align_corners`` the corner pixels keep their values.
    #[signature(x, size=None, scale_factor=None, mode="nearest", align_corners=None)]
    #[text("(x, size=None, scale_factor=None, mode='nearest', align_corners=False)")]
    fn interpolate(
        how, py, x: &Tensor, size: Given<'_, '_>, scale_factor: Given<'_, '_>, mode: &str, align_corners: Option<bool>,
    ) -> Made {
        let (x, align_corners) = (&x.inner(), align_corners.unwrap_or(false));
        let axes = match x.ndim() {
            3 | 4 => x.ndim() - 2,
            _ => {
                let what = format!("interpolate: it takes (N, C, L) or (N, C, H, W), not shape {}", x.shape());
                return Err(PyValueError::new_err(what));
            }
        };
        let to = resize(size, scale_factor, axes)?;
        let unfit = |fits: &str| {
            let what = format!("interpolate: mode='{mode}' is for {fits}; the input has shape {}", x.shape());
            Err(PyValueError::new_err(what))
        };
        match (mode, axes) {
            ("nearest" | "area", _) if align_corners => {
                let what = "interpolate: align_corners is for mode='bilinear', 'bicubic' or 'linear' only";
                return Err(PyValueError::new_err(what));
            }
            ("nearest" | "area", _) | ("bilinear" | "bicubic", 2) | ("linear", 1) => {}
            ("bilinear" | "bicubic", _) => return unfit("(N, C, H, W), and mode='linear' for (N, C, L)"),
            ("linear", _) => return unfit("(N, C, L), and mode='bilinear' for (N, C, H, W)"),
            (other, _) => {
                let what = format!(
                    "interpolate: mode {other:?} is not one of 'nearest', 'linear', 'bilinear', 'bicubic' and 'area'"
                );
                return Err(PyValueError::new_err(what));
            }
        }
        let resample = |x: &Recorded| match mode {
            "nearest" => resample::upsample_nearest(x, to),
            "area" => resample::upsample_area(x, to),
            "bicubic" => resample::upsample_bicubic(x, to, align_corners),
            _ => resample::upsample_bilinear(x, to, align_corners),
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
    fn pixel_shuffle(how, py, x: &Tensor, upscale_factor: &Bound<'_, PyAny>) -> Made {
        let (x, factor) = (&x.inner(), count("pixel_shuffle", "upscale_factor", upscale_factor)?);
        how.tensor(py, x, || shuffle::pixel_shuffle(x, factor))
    }

    /// (..., C, H * r, W * r) to (..., C * r * r, H, W) with r = ``downscale_factor``: undoes ``pixel_shuffle``.
    #[signature(x, downscale_factor)]
    #[text("(x, downscale_factor)")]
    fn pixel_unshuffle(how, py, x: &Tensor, downscale_factor: &Bound<'_, PyAny>) -> Made {
        let (x, factor) = (&x.inner(), count("pixel_unshuffle", "downscale_factor", downscale_factor)?);
        how.tensor(py, x, || shuffle::pixel_unshuffle(x, factor))
    }

    /// The channels (axis 1) in another order: channel i of group g becomes channel g of group i.
    #[signature(x, groups)]
    #[text("(x, groups)")]
    fn channel_shuffle(how, py, x: &Tensor, groups: &Bound<'_, PyAny>) -> Made {
        let (x, groups) = (&x.inner(), count("channel_shuffle", "groups", groups)?);
        how.tensor(py, x, || shuffle::channel_shuffle(x, groups))
    }

    /// The patches of images (N, C, H, W) as columns (N, C * kernel height * kernel width, patches): im2col.
    #[signature(x, kernel_size, dilation=None, padding=None, stride=None)]
    #[text("(x, kernel_size, dilation=1, padding=0, stride=1)")]
    fn unfold(
        how, py, x: &Tensor, kernel_size: &Bound<'_, PyAny>, dilation: Given<'_, '_>, padding: Given<'_, '_>,
        stride: Given<'_, '_>,
    ) -> Made {
        let (x, patches) = (&x.inner(), patches("unfold", kernel_size, dilation, padding, stride)?);
        how.tensor(py, x, || windows::unfold(x, &patches))
    }

    /// Images (N, C, H, W) of height and width ``output_size`` from columns (N, C * kernel height * kernel width, patches): patches
    /// are added up where they overlap. The adjoint of ``unfold``.
    #[signature(x, output_size, kernel_size, dilation=None, padding=None, stride=None)]
    #[text("(x, output_size, kernel_size, dilation=1, padding=0, stride=1)")]
    fn fold(
        how, py, x: &Tensor, output_size: &Bound<'_, PyAny>, kernel_size: &Bound<'_, PyAny>, dilation: Given<'_, '_>,
        padding: Given<'_, '_>, stride: Given<'_, '_>,
    ) -> Made {
        let (x, patches) = (&x.inner(), patches("fold", kernel_size, dilation, padding, stride)?);
        let size = numbers("fold", "output_size", Some(output_size), [1, 1])?;
        how.tensor(py, x, || windows::fold(x, size, &patches))
    }

    /// The points (N, H, W, 2) of images of ``size`` (N, C, H, W) under the affine maps ``theta`` (N, 2, 3), for ``grid_sample``.
    #[signature(theta, size, align_corners=None)]
    #[text("(theta, size, align_corners=False)")]
    fn affine_grid(how, py, theta: &Tensor, size: &Bound<'_, PyAny>, align_corners: Option<bool>) -> Made {
        let theta = &theta.inner();
        let (&[images, ..], [first, _, height, width]) = (&theta.shape()[..], numbers("affine_grid", "size", Some(size), [1; 4])?)
        else {
            return Err(PyValueError::new_err("affine_grid: theta has shape (N, 2, 3)"));
        };
        if first != images {
            let what = format!("affine_grid: size {size} needs {first} maps; theta has shape {}", theta.shape());
            return Err(PyValueError::new_err(what));
        }
        how.tensor(py, theta, || grid::affine_grid(theta, [height, width], align_corners.unwrap_or(false)))
    }

    /// The values of images (N, C, H, W) at the points (N, rows, columns, 2) of a grid: x, then y, from -1 to 1.
    ///
    /// ``mode`` is ``"bilinear"``, ``"nearest"`` or ``"bicubic"``; outside lie ``"zeros"``, the ``"border"`` or the image's
    /// ``"reflection"``. With ``align_corners`` -1 and 1 are the centres of the corner pixels, else the corners themselves.
    #[signature(x, grid, mode="bilinear", padding_mode="zeros", align_corners=None)]
    #[text("(x, grid, mode='bilinear', padding_mode='zeros', align_corners=False)")]
    fn grid_sample(
        how, py, x: &Tensor, grid: &Tensor, mode: &str, padding_mode: &str, align_corners: Option<bool>,
    ) -> Made {
        let mode = match mode {
            "bilinear" => GridMode::Bilinear,
            "nearest" => GridMode::Nearest,
            "bicubic" => GridMode::Bicubic,
            other => {
                let what = format!("grid_sample: mode {other:?} is not one of 'bilinear', 'nearest' and 'bicubic'");
                return Err(PyValueError::new_err(what));
            }
        };
        let padding = match padding_mode {
            "zeros" => GridPadding::Zeros,
            "border" => GridPadding::Border,
            "reflection" => GridPadding::Reflection,
            other => {
                let what = format!("grid_sample: padding_mode {other:?} is not one of 'zeros', 'border' and 'reflection'");
                return Err(PyValueError::new_err(what));
            }
        };
        let (x, points) = (&x.inner(), &grid.inner());
        how.tensor(py, x, || grid::grid_sample(x, points, mode, padding, align_corners.unwrap_or(false)))
    }
}
