//! Convolutions.

use netcl::autograd::ops::conv::{self, ConvParams};
use pyo3::prelude::*;

use super::arguments::{Given, inner, margins_by_name, margins1, margins2, numbers};
use super::{Mode, both};
use crate::index::Made;
use crate::tensor::Tensor;

both! {
    /// The convolution of images ``(N, C, H, W)``, or one image ``(C, H, W)``, with filters ``(F, C / groups, KH, KW)``, plus a bias
    /// of F elements.
    ///
    /// ``stride`` and ``dilation`` are a number or a pair (down, right); ``pad`` (or ``padding``) is a number, a pair (rows, columns)
    /// or four numbers (top, bottom, left, right), ``"same"`` or ``"valid"``.
    #[signature(x, weight, bias=None, stride=None, pad=None, dilation=None, groups=None, *, padding=None)]
    #[text("(x, weight, bias=None, stride=1, pad=0, dilation=1, groups=1, *, padding=None)")]
    fn conv2d(
        mode, py, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, stride: Given<'_, '_>, pad: Given<'_, '_>,
        dilation: Given<'_, '_>, groups: Given<'_, '_>, padding: Given<'_, '_>,
    ) -> Made {
        let [groups] = numbers("conv2d", "groups", groups, [1])?;
        let stride = numbers("conv2d", "stride", stride, [1, 1])?;
        let dilation = numbers("conv2d", "dilation", dilation, [1, 1])?;
        let padding = match margins_by_name("conv2d", [pad, padding], weight, stride, dilation)? {
            Some([[top, bottom], [left, right]]) => [top, bottom, left, right],
            None => margins2("conv2d", pad, padding)?,
        };
        let params = ConvParams { stride, padding, dilation, groups };
        let (x, weight, bias) = (&x.inner(), &weight.inner(), &inner(bias));
        let bias = bias.as_deref();
        mode.tensor(py, x, || conv::conv2d(x, weight, bias, &params))
    }

    /// The convolution of sequences ``(N, C, L)``, or one sequence ``(C, L)``, with filters ``(F, C / groups, K)``, plus a bias of F
    /// elements.
    ///
    /// ``pad`` (or ``padding``) is a number, a pair (before, after), ``"same"`` or ``"valid"``.
    #[signature(x, weight, bias=None, stride=None, pad=None, dilation=None, groups=None, *, padding=None)]
    #[text("(x, weight, bias=None, stride=1, pad=0, dilation=1, groups=1, *, padding=None)")]
    fn conv1d(
        mode, py, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, stride: Given<'_, '_>, pad: Given<'_, '_>,
        dilation: Given<'_, '_>, groups: Given<'_, '_>, padding: Given<'_, '_>,
    ) -> Made {
        let [groups] = numbers("conv1d", "groups", groups, [1])?;
        let [stride] = numbers("conv1d", "stride", stride, [1])?;
        let [dilation] = numbers("conv1d", "dilation", dilation, [1])?;
        let [before, after] = match margins_by_name("conv1d", [pad, padding], weight, [stride], [dilation])? {
            Some([sides]) => sides,
            None => margins1("conv1d", pad, padding)?,
        };
        let params =
            ConvParams { stride: [1, stride], padding: [0, 0, before, after], dilation: [1, dilation], groups };
        let (x, weight, bias) = (&x.inner(), &weight.inner(), &inner(bias));
        let bias = bias.as_deref();
        mode.tensor(py, x, || conv::conv1d(x, weight, bias, &params))
    }

    /// The transposed convolution of ``(N, C, H, W)`` or ``(C, H, W)`` with ``(C, F / groups, KH, KW)``, plus a bias of F elements: each
    /// pixel adds a scaled filter to the result, ``stride`` apart. ``pad`` cuts off margins; ``output_padding`` adds rows and columns at the bottom
    /// and the right, fewer than the stride.
    #[signature(
        x, weight, bias=None, stride=None, pad=None, output_padding=None, groups=None, dilation=None, *, padding=None
    )]
    #[text("(x, weight, bias=None, stride=1, pad=0, output_padding=0, groups=1, dilation=1, *, padding=None)")]
    fn conv_transpose2d(
        mode, py, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, stride: Given<'_, '_>, pad: Given<'_, '_>,
        output_padding: Given<'_, '_>, groups: Given<'_, '_>, dilation: Given<'_, '_>, padding: Given<'_, '_>,
    ) -> Made {
        let op = "conv_transpose2d";
        let [groups] = numbers(op, "groups", groups, [1])?;
        let params = ConvParams {
            stride: numbers(op, "stride", stride, [1, 1])?,
            padding: margins2(op, pad, padding)?,
            dilation: numbers(op, "dilation", dilation, [1, 1])?,
            groups,
        };
        let extra = numbers(op, "output_padding", output_padding, [0, 0])?;
        let (x, weight, bias) = (&x.inner(), &weight.inner(), &inner(bias));
        let bias = bias.as_deref();
        mode.tensor(py, x, || conv::conv_transpose2d(x, weight, bias, &params, extra))
    }

    /// The transposed convolution of sequences ``(N, C, L)`` or ``(C, L)`` with ``(C, F / groups, K)``, plus a bias of F elements.
    #[signature(
        x, weight, bias=None, stride=None, pad=None, output_padding=None, groups=None, dilation=None, *, padding=None
    )]
    #[text("(x, weight, bias=None, stride=1, pad=0, output_padding=0, groups=1, dilation=1, *, padding=None)")]
    fn conv_transpose1d(
        mode, py, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, stride: Given<'_, '_>, pad: Given<'_, '_>,
        output_padding: Given<'_, '_>, groups: Given<'_, '_>, dilation: Given<'_, '_>, padding: Given<'_, '_>,
    ) -> Made {
        let op = "conv_transpose1d";
        let [groups] = numbers(op, "groups", groups, [1])?;
        let [stride] = numbers(op, "stride", stride, [1])?;
        let [dilation] = numbers(op, "dilation", dilation, [1])?;
        let [extra] = numbers(op, "output_padding", output_padding, [0])?;
        let [before, after] = margins1(op, pad, padding)?;
        let params =
            ConvParams { stride: [1, stride], padding: [0, 0, before, after], dilation: [1, dilation], groups };
        let (x, weight, bias) = (&x.inner(), &weight.inner(), &inner(bias));
        let bias = bias.as_deref();
        mode.tensor(py, x, || conv::conv_transpose1d(x, weight, bias, &params, extra))
    }
}
