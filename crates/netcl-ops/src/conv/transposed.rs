//! The transposed convolution: the data gradient of a convolution, used forwards.

use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::finish::Finish;
use super::geometry::Geometry;
use super::{ConvOptions, Variant, check_operands, conv2d_as, data_gradient, weight_gradient};
use crate::matmul::Epilogue;

const OP: &str = "conv_transpose2d";

/// How [`conv_transpose2d`] spreads its input.
#[derive(Clone, Debug)]
pub struct ConvTransposeOptions<'e> {
    /// The distance between the places that neighbouring inputs are spread to.
    pub stride: [usize; 2],
    /// Rows and columns cut off at the top, bottom, left and right.
    pub padding: [usize; 4],
    /// Rows and columns added at the bottom and the right: of the several lengths that a convolution with this stride maps to the
    /// input's, the one that is meant. Less than the stride.
    pub output_padding: [usize; 2],
    /// Distance between the taps of a filter.
    pub dilation: [usize; 2],
    /// Independent groups of channels.
    pub groups: usize,
    /// Applied to each element of the result, after the bias.
    pub epilogue: Option<Epilogue<'e>>,
    /// How OpenCL devices compute.
    pub variant: Option<Variant>,
}

impl Default for ConvTransposeOptions<'_> {
    fn default() -> Self {
        ConvTransposeOptions {
            stride: [1, 1],
            padding: [0; 4],
            output_padding: [0, 0],
            dilation: [1, 1],
            groups: 1,
            epilogue: None,
            variant: None,
        }
    }
}

impl ConvTransposeOptions<'_> {
    /// The convolution that this operation transposes.
    fn convolution(&self) -> ConvOptions<'static> {
        ConvOptions {
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
            groups: self.groups,
            prologue: None,
            epilogue: None,
            variant: self.variant,
        }
    }

    /// The shape of the result.
    fn output(&self, x: &Shape, weight: &Shape) -> Result<Shape> {
        let wrong = |shape: &Shape, why: &str| Err(Error::Shape { op: OP, shape: shape.clone(), why: why.to_owned() });
        let [n, channels, h, w] = **x else {
            return wrong(x, "the input must have four axes: (batch, channels, height, width)");
        };
        let [filters, per_group, kh, kw] = **weight else {
            return wrong(
                weight,
                "the weight must have four axes: (channels, output channels / groups, height, width)",
            );
        };
        if filters != channels {
            let why =
                format!("an input of {channels} channels needs a weight with as many filters, this one has {filters}");
            return Err(Error::Shape { op: OP, shape: weight.clone(), why });
        }
        if h == 0 || w == 0 || kh == 0 || kw == 0 {
            return wrong(if h == 0 || w == 0 { x } else { weight }, "height and width must be at least 1");
        }
        let mut lengths = [0; 2];
        for axis in 0..2 {
            let (stride, extra) = (self.stride[axis], self.output_padding[axis]);
            if extra >= stride {
                let what = format!("output_padding {extra} must be less than the stride {stride} of its axis");
                return Err(Error::argument(OP, what));
            }
            let (length, kernel) = ([h, w][axis], [kh, kw][axis]);
            let cut = self.padding[2 * axis].checked_add(self.padding[2 * axis + 1]);
            let full = (length - 1)
                .checked_mul(stride)
                .zip((kernel - 1).checked_mul(self.dilation[axis]))
                .and_then(|(spread, reach)| spread.checked_add(reach)?.checked_add(1 + extra))
                .filter(|&full| isize::try_from(full).is_ok());
            let (Some(cut), Some(full)) = (cut, full) else {
                return Err(Error::argument(OP, "stride, padding or dilation is larger than can be addressed"));
            };
            let Some(left) = full.checked_sub(cut).filter(|&left| left > 0) else {
                let why = format!(
                    "axis {} of the result would have {full} elements, of which the padding cuts off {cut}; pad less",
                    axis + 2
                );
                return Err(Error::Shape { op: OP, shape: x.clone(), why });
            };
            lengths[axis] = left;
        }
        let Some(out) = per_group.checked_mul(self.groups) else {
            return Err(Error::argument(OP, "more output channels than can be addressed"));
        };
        Ok([n, out, lengths[0], lengths[1]].into())
    }
}

/// The transposed convolution of `[N, C, H, W]` with `[C, F / groups, KH, KW]`, plus a bias of F elements: what upsampling layers
/// use. Each input pixel adds a scaled filter to the result, `stride` apart.
///
/// ```
/// use netcl_ops::conv::{ConvTransposeOptions, conv_transpose2d};
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0], [1, 1, 1, 2])?;
/// let weight = Tensor::full(&queue, [1, 1, 2, 2], DType::F32, 1.0)?;
/// let options = ConvTransposeOptions { stride: [2, 2], ..Default::default() };
/// let out = conv_transpose2d(&x, &weight, None, &options)?;
/// assert_eq!(out.shape().to_vec(), [1, 1, 2, 4]);
/// assert_eq!(out.to_host::<f32>()?, [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn conv_transpose2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvTransposeOptions<'_>,
) -> Result<Tensor> {
    check_operands(OP, x, weight)?;
    let out = options.output(x.shape(), weight.shape())?;
    let g = Geometry::new(OP, &out, weight.shape(), &options.convolution())?;
    let finish = Finish::new(OP, x, bias, options.epilogue.as_ref(), &out)?;
    data_gradient(&g, x, weight, &finish, options.variant)
}

/// The gradient of a sum over [`conv_transpose2d`] with respect to its input: a convolution.
pub fn conv_transpose2d_backward_data(
    grad: &Tensor,
    weight: &Tensor,
    input_shape: &Shape,
    options: &ConvTransposeOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = "conv_transpose2d_backward_data";
    check_output(OP, grad, &options.output(input_shape, weight.shape())?)?;
    // A variant that cannot do this convolution was chosen for the operation, not for its gradient.
    conv2d_as(OP, grad, weight, None, &ConvOptions { variant: None, ..options.convolution() })
}

/// The gradient of a sum over [`conv_transpose2d`] with respect to its weight.
pub fn conv_transpose2d_backward_weight(
    grad: &Tensor,
    x: &Tensor,
    weight_shape: &Shape,
    options: &ConvTransposeOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = "conv_transpose2d_backward_weight";
    check_output(OP, grad, &options.output(x.shape(), weight_shape)?)?;
    weight_gradient(OP, x, grad, weight_shape, &options.convolution())
}

fn check_output(op: &'static str, grad: &Tensor, out: &Shape) -> Result<()> {
    if grad.shape() == out {
        return Ok(());
    }
    let why = format!("the gradient of the output must have the output's shape, {out}");
    Err(Error::Shape { op, shape: grad.shape().clone(), why })
}
