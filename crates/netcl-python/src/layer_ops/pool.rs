//! Pooling.

use netcl::autograd::ops::pool::{self, Averaging, Window};
use pyo3::prelude::*;

use super::arguments::{Given, lengths, numbers};
use super::{Mode, both};
use crate::index::Made;
use crate::tensor::Tensor;

/// Windows side by side unless a stride is given.
fn window<const N: usize>(
    op: &str,
    kernel: &Bound<'_, PyAny>,
    stride: Given<'_, '_>,
    padding: Given<'_, '_>,
    dilation: Given<'_, '_>,
    ceil_mode: bool,
) -> PyResult<Window<N>> {
    let kernel = numbers(op, "kernel_size", Some(kernel), [1; N])?;
    Ok(Window {
        kernel,
        stride: numbers(op, "stride", stride, kernel)?,
        padding: numbers(op, "padding", padding, [0; N])?,
        dilation: numbers(op, "dilation", dilation, [1; N])?,
        ceil_mode,
    })
}

both! {
    /// The largest element of each window of the last two axes. Windows lie side by side unless ``stride`` is given; ``ceil_mode``
    /// counts a last one that reaches beyond the end.
    #[signature(x, kernel_size, stride=None, padding=None, dilation=None, ceil_mode=false)]
    #[text("(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False)")]
    fn max_pool2d(
        mode, py, x: &Tensor, kernel_size: &Bound<'_, PyAny>, stride: Given<'_, '_>, padding: Given<'_, '_>,
        dilation: Given<'_, '_>, ceil_mode: bool,
    ) -> Made {
        let (x, window) = (&x.inner(), window("max_pool2d", kernel_size, stride, padding, dilation, ceil_mode)?);
        mode.tensor(py, x, || pool::max_pool2d(x, &window))
    }

    /// The largest element of each window of the last axis.
    #[signature(x, kernel_size, stride=None, padding=None, dilation=None, ceil_mode=false)]
    #[text("(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False)")]
    fn max_pool1d(
        mode, py, x: &Tensor, kernel_size: &Bound<'_, PyAny>, stride: Given<'_, '_>, padding: Given<'_, '_>,
        dilation: Given<'_, '_>, ceil_mode: bool,
    ) -> Made {
        let (x, window) = (&x.inner(), window("max_pool1d", kernel_size, stride, padding, dilation, ceil_mode)?);
        mode.tensor(py, x, || pool::max_pool1d(x, &window))
    }

    /// The mean of each window of the last two axes. Zeros of the padding count as elements unless ``count_include_pad`` is false;
    /// ``divisor_override`` divides by another number.
    #[signature(
        x, kernel_size, stride=None, padding=None, ceil_mode=false, count_include_pad=true, divisor_override=None
    )]
    #[text("(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None)")]
    fn avg_pool2d(
        mode, py, x: &Tensor, kernel_size: &Bound<'_, PyAny>, stride: Given<'_, '_>, padding: Given<'_, '_>,
        ceil_mode: bool, count_include_pad: bool, divisor_override: Option<usize>,
    ) -> Made {
        let (x, window) = (&x.inner(), window("avg_pool2d", kernel_size, stride, padding, None, ceil_mode)?);
        let averaging = Averaging { count_include_pad, divisor: divisor_override };
        mode.tensor(py, x, || pool::avg_pool2d(x, &window, averaging))
    }

    /// The mean of each window of the last axis.
    #[signature(
        x, kernel_size, stride=None, padding=None, ceil_mode=false, count_include_pad=true, divisor_override=None
    )]
    #[text("(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None)")]
    fn avg_pool1d(
        mode, py, x: &Tensor, kernel_size: &Bound<'_, PyAny>, stride: Given<'_, '_>, padding: Given<'_, '_>,
        ceil_mode: bool, count_include_pad: bool, divisor_override: Option<usize>,
    ) -> Made {
        let (x, window) = (&x.inner(), window("avg_pool1d", kernel_size, stride, padding, None, ceil_mode)?);
        let averaging = Averaging { count_include_pad, divisor: divisor_override };
        mode.tensor(py, x, || pool::avg_pool1d(x, &window, averaging))
    }

    /// The largest element of each of ``output_size`` windows (a number, or (height, width)) that cover the last two axes evenly;
    /// ``None`` keeps a length.
    #[signature(x, output_size)]
    #[text("(x, output_size)")]
    fn adaptive_max_pool2d(mode, py, x: &Tensor, output_size: &Bound<'_, PyAny>) -> Made {
        let (x, output) = (&x.inner(), lengths("adaptive_max_pool2d", output_size, x.inner().shape())?);
        mode.tensor(py, x, || pool::adaptive_max_pool2d(x, output))
    }

    /// The largest element of each of ``output_size`` windows that cover the last axis evenly.
    #[signature(x, output_size)]
    #[text("(x, output_size)")]
    fn adaptive_max_pool1d(mode, py, x: &Tensor, output_size: &Bound<'_, PyAny>) -> Made {
        let (x, [output]) = (&x.inner(), lengths("adaptive_max_pool1d", output_size, x.inner().shape())?);
        mode.tensor(py, x, || pool::adaptive_max_pool1d(x, output))
    }

    /// The mean of each of ``output_size`` windows (a number, or (height, width)) that cover the last two axes evenly; ``None`` keeps
    /// a length.
    #[signature(x, output_size)]
    #[text("(x, output_size)")]
    fn adaptive_avg_pool2d(mode, py, x: &Tensor, output_size: &Bound<'_, PyAny>) -> Made {
        let (x, output) = (&x.inner(), lengths("adaptive_avg_pool2d", output_size, x.inner().shape())?);
        mode.tensor(py, x, || pool::adaptive_avg_pool2d(x, output))
    }

    /// The mean of each of ``output_size`` windows that cover the last axis evenly.
    #[signature(x, output_size)]
    #[text("(x, output_size)")]
    fn adaptive_avg_pool1d(mode, py, x: &Tensor, output_size: &Bound<'_, PyAny>) -> Made {
        let (x, [output]) = (&x.inner(), lengths("adaptive_avg_pool1d", output_size, x.inner().shape())?);
        mode.tensor(py, x, || pool::adaptive_avg_pool1d(x, output))
    }

    /// The p-norm of each window of the last two axes, ``(sum of x ** p) ** (1 / p)`` with p = ``norm_type``. Windows lie side by
    /// side unless ``stride`` is given.
    #[signature(x, norm_type, kernel_size, stride=None, ceil_mode=false)]
    #[text("(x, norm_type, kernel_size, stride=None, ceil_mode=False)")]
    fn lp_pool2d(
        mode, py, x: &Tensor, norm_type: f64, kernel_size: &Bound<'_, PyAny>, stride: Given<'_, '_>, ceil_mode: bool,
    ) -> Made {
        let (x, window) = (&x.inner(), window("lp_pool2d", kernel_size, stride, None, None, ceil_mode)?);
        mode.tensor(py, x, || pool::lp_pool2d(x, norm_type, &window))
    }

    /// The p-norm of each window of the last axis.
    #[signature(x, norm_type, kernel_size, stride=None, ceil_mode=false)]
    #[text("(x, norm_type, kernel_size, stride=None, ceil_mode=False)")]
    fn lp_pool1d(
        mode, py, x: &Tensor, norm_type: f64, kernel_size: &Bound<'_, PyAny>, stride: Given<'_, '_>, ceil_mode: bool,
    ) -> Made {
        let (x, window) = (&x.inner(), window("lp_pool1d", kernel_size, stride, None, None, ceil_mode)?);
        mode.tensor(py, x, || pool::lp_pool1d(x, norm_type, &window))
    }
}
