//! Convolutions of sequences: images of one row.

use netcl_core::shape::Shape;
use netcl_core::tensor::{Tensor, reshape};
use netcl_core::{Error, Result};

use super::{ConvOptions, Variant, conv2d_as, conv2d_backward_data, conv2d_backward_weight};
use crate::matmul::Epilogue;

/// How [`conv1d`] moves its filters along a sequence.
#[derive(Clone, Debug)]
pub struct Conv1dOptions<'e> {
    /// Steps of the filter.
    pub stride: usize,
    /// Zeros before and after the sequence.
    pub padding: [usize; 2],
    /// Distance between the taps of a filter.
    pub dilation: usize,
    /// Independent groups of channels.
    pub groups: usize,
    /// Applied to each element of the result, after the bias. Gradients ignore it.
    pub epilogue: Option<Epilogue<'e>>,
    /// How OpenCL devices compute.
    pub variant: Option<Variant>,
}

impl Default for Conv1dOptions<'_> {
    fn default() -> Self {
        Conv1dOptions { stride: 1, padding: [0, 0], dilation: 1, groups: 1, epilogue: None, variant: None }
    }
}

impl<'e> Conv1dOptions<'e> {
    /// The same for images of one row.
    fn image(&self) -> Result<ConvOptions<'e>> {
        let epilogue = match &self.epilogue {
            Some(epilogue) => {
                let inputs = epilogue.inputs.iter().map(epilogue_input).collect::<Result<_>>()?;
                Some(Epilogue { inputs, ..epilogue.clone() })
            }
            None => None,
        };
        Ok(ConvOptions {
            stride: [1, self.stride],
            padding: [0, 0, self.padding[0], self.padding[1]],
            dilation: [1, self.dilation],
            groups: self.groups,
            prologue: None,
            epilogue,
            variant: self.variant,
        })
    }
}

/// A tensor that broadcasts to `[N, F, L]`, as one that broadcasts to `[N, F, 1, L]`.
fn epilogue_input(input: &Tensor) -> Result<Tensor> {
    match **input.shape() {
        [.., channels, length] => {
            let batch: &[usize] = &input.shape()[..input.ndim() - 2];
            reshape(input, [batch, &[channels, 1, length]].concat().as_slice())
        }
        _ => Ok(input.clone()),
    }
}

/// `[a, b, length]` as `[a, b, 1, length]`.
fn row(op: &'static str, shape: &Shape, axes: &str) -> Result<Shape> {
    let [a, b, length] = **shape else {
        let why = format!("it must have three axes: {axes}");
        return Err(Error::Shape { op, shape: shape.clone(), why });
    };
    Ok([a, b, 1, length].into())
}

const SEQUENCE: &str = "(batch, channels, length)";
const FILTERS: &str = "(filters, channels / groups, length)";

fn image(op: &'static str, tensor: &Tensor, axes: &str) -> Result<Tensor> {
    reshape(tensor, row(op, tensor.shape(), axes)?)
}

fn sequence(tensor: &Tensor) -> Result<Tensor> {
    let shape = tensor.shape();
    reshape(tensor, [shape[0], shape[1], shape[3]])
}

/// The convolution of sequences `[N, C, L]` with filters `[F, C / groups, K]`, plus a bias of F elements.
///
/// ```
/// use netcl_ops::conv::{Conv1dOptions, conv1d};
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 4.0, 8.0], [1, 1, 4])?;
/// let difference = Tensor::from_host(&queue, &[-1.0f32, 1.0], [1, 1, 2])?;
/// let out = conv1d(&x, &difference, None, &Conv1dOptions::default())?;
/// assert_eq!(out.to_host::<f32>()?, [1.0, 2.0, 4.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn conv1d(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, options: &Conv1dOptions<'_>) -> Result<Tensor> {
    const OP: &str = "conv1d";
    let (x, weight) = (image(OP, x, SEQUENCE)?, image(OP, weight, FILTERS)?);
    sequence(&conv2d_as(OP, &x, &weight, bias, &options.image()?)?)
}

/// The gradient of a sum over [`conv1d`] with respect to its input, which has the shape `input_shape`.
pub fn conv1d_backward_data(
    grad: &Tensor,
    weight: &Tensor,
    input_shape: &Shape,
    options: &Conv1dOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = "conv1d_backward_data";
    let (grad, weight) = (image(OP, grad, SEQUENCE)?, image(OP, weight, FILTERS)?);
    sequence(&conv2d_backward_data(&grad, &weight, &row(OP, input_shape, SEQUENCE)?, &options.image()?)?)
}

/// The gradient of a sum over [`conv1d`] with respect to its weight, which has the shape `weight_shape`.
pub fn conv1d_backward_weight(
    grad: &Tensor,
    x: &Tensor,
    weight_shape: &Shape,
    options: &Conv1dOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = "conv1d_backward_weight";
    let (grad, x) = (image(OP, grad, SEQUENCE)?, image(OP, x, SEQUENCE)?);
    sequence(&conv2d_backward_weight(&grad, &x, &row(OP, weight_shape, FILTERS)?, &options.image()?)?)
}
