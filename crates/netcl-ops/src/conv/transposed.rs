//! The transposed convolution: the data gradient of a convolution, used forwards.

use netcl_core::conv::ConvGeometry;
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::epilogue::ConvEpilogue;
use super::{ConvOptions, ConvParams, check_operands, conv2d_as, data_gradient, weight_gradient};

const OP: &str = "conv_transpose2d";

/// The shape of the result.
fn output(x: &Shape, weight: &Shape, params: &ConvParams, output_padding: [usize; 2]) -> Result<Shape> {
    let wrong = |shape: &Shape, why: &str| Err(Error::Shape { op: OP, shape: shape.clone(), why: why.to_owned() });
    let [n, channels, h, w] = **x else {
        return wrong(x, "the input must have four axes: (batch, channels, height, width)");
    };
    let [filters, per_group, kh, kw] = **weight else {
        return wrong(weight, "the weight must have four axes: (channels, output channels / groups, height, width)");
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
        let (stride, extra) = (params.stride[axis], output_padding[axis]);
        if extra >= stride {
            let what = format!("output_padding {extra} must be less than the stride {stride} of its axis");
            return Err(Error::argument(OP, what));
        }
        let (length, kernel) = ([h, w][axis], [kh, kw][axis]);
        let cut = params.padding[2 * axis].checked_add(params.padding[2 * axis + 1]);
        let full = (length - 1)
            .checked_mul(stride)
            .zip((kernel - 1).checked_mul(params.dilation[axis]))
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
    let Some(out) = per_group.checked_mul(params.groups) else {
        return Err(Error::argument(OP, "more output channels than can be addressed"));
    };
    Ok([n, out, lengths[0], lengths[1]].into())
}

/// The transposed convolution of `[N, C, H, W]` with `[C, F / groups, KH, KW]`, plus a bias of F elements: what upsampling layers
/// use. Each input pixel adds a scaled filter to the result, `stride` apart; the padding cuts rows and columns off.
///
/// `output_padding` is added at the bottom and the right: a convolution with this stride maps several lengths to the input's, and
/// it says which is meant. It is less than the stride. A prologue is ignored.
///
/// ```
/// use netcl_ops::conv::{ConvParams, conv_transpose2d};
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0], [1, 1, 1, 2])?;
/// let weight = Tensor::full(&queue, [1, 1, 2, 2], DType::F32, 1.0)?;
/// let params = ConvParams { stride: [2, 2], ..Default::default() };
/// let out = conv_transpose2d(&x, &weight, None, &params.into(), [0, 0])?;
/// assert_eq!(out.shape().to_vec(), [1, 1, 2, 4]);
/// assert_eq!(out.to_host::<f32>()?, [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn conv_transpose2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvOptions<'_>,
    output_padding: [usize; 2],
) -> Result<Tensor> {
    check_operands(OP, x, weight)?;
    let out = output(x.shape(), weight.shape(), &options.params, output_padding)?;
    let g = ConvGeometry::new(OP, &out, weight.shape(), &options.params)?;
    let epilogue = ConvEpilogue::new(OP, x, bias, options.epilogue.as_ref(), &out)?;
    data_gradient(OP, &g, x, weight, &epilogue, options.variant)
}

/// The gradient of a sum over [`conv_transpose2d`] with respect to its input: a convolution.
pub fn conv_transpose2d_backward_data(
    grad: &Tensor,
    weight: &Tensor,
    input_shape: &Shape,
    options: &ConvOptions<'_>,
    output_padding: [usize; 2],
) -> Result<Tensor> {
    const OP: &str = "conv_transpose2d_backward_data";
    check_output(OP, grad, &output(input_shape, weight.shape(), &options.params, output_padding)?)?;
    // A variant that cannot do this convolution was chosen for the operation, not for its gradient.
    conv2d_as(OP, grad, weight, None, &options.params.into())
}

/// The gradient of a sum over [`conv_transpose2d`] with respect to its weight.
pub fn conv_transpose2d_backward_weight(
    grad: &Tensor,
    x: &Tensor,
    weight_shape: &Shape,
    options: &ConvOptions<'_>,
    output_padding: [usize; 2],
) -> Result<Tensor> {
    const OP: &str = "conv_transpose2d_backward_weight";
    check_output(OP, grad, &output(x.shape(), weight_shape, &options.params, output_padding)?)?;
    weight_gradient(OP, x, grad, weight_shape, options)
}

fn check_output(op: &'static str, grad: &Tensor, out: &Shape) -> Result<()> {
    if grad.shape() == out {
        return Ok(());
    }
    let why = format!("the gradient of the output must have the output's shape, {out}");
    Err(Error::Shape { op, shape: grad.shape().clone(), why })
}
