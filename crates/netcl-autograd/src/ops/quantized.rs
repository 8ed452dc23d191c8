//! Products with weights of 8 or 4 bits, which are frozen: gradients flow to the input and the bias.

use netcl_ops as ops;
pub use netcl_ops::quantized::{Packing, QuantizedWeight};
use smallvec::smallvec;

use super::layout::sum_to;
use super::matmul::matmul;
use crate::autocast;
use crate::error::{Error, Result};
use crate::graph::{Gradients, Save, record};
use crate::tensor::Tensor;

const OP: &str = "quantized_linear";

/// `x` times the transposed weight plus `bias`: `weight` and `scale` are what [`QuantizedWeight`] calls packed values and scale.
///
/// ```
/// use netcl_autograd::ops::quantized::{Packing, QuantizedWeight, quantized_linear};
/// use netcl_autograd::{Tensor, manager};
///
/// let queue = manager().cpu().queue;
/// let packing = Packing::new(4, 64)?;
/// let weight = Tensor::from_host(&queue, &[7.0f32, -3.0], [1, 2])?;
/// let weight = QuantizedWeight::quantize(weight.raw(), packing)?;
/// let (packed, scale) = (weight.packed().clone().into(), weight.scale().clone().into());
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0], [1, 2])?.with_grad();
/// let y = quantized_linear(&x, &packed, &scale, None, packing)?;
/// assert_eq!(y.to_host::<f32>()?, [1.0]);
/// y.sum((), false)?.backward()?;
/// assert_eq!(x.grad().map(|grad| grad.to_host::<f32>()).transpose()?, Some(vec![7.0, -3.0]));
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
///
/// # Errors
/// For shapes and dtypes that do not fit; in the backward pass, if the scale wants a gradient.
#[track_caller]
pub fn quantized_linear(
    x: &Tensor,
    weight: &Tensor,
    scale: &Tensor,
    bias: Option<&Tensor>,
    packing: Packing,
) -> Result<Tensor> {
    if let Some(casts) = autocast::enter(OP, [x, scale].into_iter().chain(bias)) {
        return quantized_linear(&casts.of(x)?, weight, &casts.of(scale)?, casts.given(bias)?.as_ref(), packing);
    }
    let features = x.shape().last().copied().unwrap_or(0);
    let quantized = QuantizedWeight::from_parts(weight.raw(), scale.raw(), packing, features)?;
    let out = ops::quantized_linear(x.raw(), &quantized, bias.map(Tensor::raw))?;
    let inputs: Vec<&Tensor> = [x, weight, scale].into_iter().chain(bias).collect();
    let biased = bias.map(|bias| bias.size());
    record(OP, &inputs, out, Save { inputs: 0b0110, output: false }, || {
        Box::new(move |context, upstream| {
            if context.wants(2) {
                return Err(Error::argument(OP, "the scale has no gradient; give it as scale.detach()"));
            }
            let of_x = context.if_wanted(0, || {
                let (weight, scale) = (context.input(1)?, context.input(2)?);
                let quantized = QuantizedWeight::from_parts(weight.raw(), scale.raw(), packing, features)?;
                matmul(upstream, &quantized.dequantize()?.into())
            })?;
            let mut gradients: Gradients = smallvec![of_x, None, None];
            if let Some(outputs) = biased {
                gradients.push(context.if_wanted(3, || sum_to(upstream, &[outputs].into()))?);
            }
            Ok(gradients)
        })
    })
}
