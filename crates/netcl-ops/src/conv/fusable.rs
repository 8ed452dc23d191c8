//! Convolutions as a compiler that listens at the launch seam sees them.

use std::sync::Arc;

use netcl_core::Result;
use netcl_core::conv::ConvGeometry;
use netcl_core::kernels::described::{CanFuse, Described, Epilogue, Fusable, Meaning, Prologue};
use netcl_core::kernels::launch;
use netcl_core::tensor::Tensor;
use smallvec::SmallVec;

use super::epilogue::ConvEpilogue;
use super::{ConvOptions, ConvParams, conv2d_as, data_gradient, prologue};
use crate::epilogue::OwnedEpilogue;
use crate::prologue::CheckedPrologue;

/// A convolution with the bias and the epilogue it was called with; its inputs are image, filters, bias, the epilogue's tensors.
struct FusableConv {
    op: &'static str,
    params: ConvParams,
    biased: bool,
    epilogue: OwnedEpilogue,
}

/// Offers a checked convolution.
pub(super) fn offer(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvOptions<'_>,
    out: &Tensor,
) -> Result<bool> {
    let epilogue = options.epilogue.as_ref();
    let mut inputs: SmallVec<[&Tensor; 4]> = [x, weight].into_iter().chain(bias).collect();
    inputs.extend(epilogue.iter().flat_map(|epilogue| &epilogue.inputs));
    let convolution = FusableConv {
        op,
        params: options.params,
        biased: bias.is_some(),
        epilogue: OwnedEpilogue::new(epilogue, out.dtype()),
    };
    launch::offer(&Described { inputs: &inputs, outputs: &[out], meaning: Meaning::Fusable(Arc::new(convolution)) })
}

impl Fusable for FusableConv {
    fn name(&self) -> &'static str {
        self.op
    }

    fn can_fuse(&self, prologue: &Prologue<'_>, inputs: &[Tensor], out: &Tensor) -> Result<CanFuse> {
        let Prologue { operand, expr, inputs: further, scalars } = prologue;
        match inputs {
            [x, weight, ..] if *operand == 0 => {
                let g = ConvGeometry::new(self.op, x.shape(), weight.shape(), &self.params)?;
                prologue::can_fuse(
                    self.op,
                    &g,
                    [x, weight, out],
                    None,
                    &CheckedPrologue::new(self.op, x, expr, further, scalars)?,
                )
            }
            [_, _, ..] if *operand == 1 => Ok(CanFuse::No("filters are read as they lie in memory")),
            _ => Ok(CanFuse::No("it belongs to the epilogue")),
        }
    }

    fn run(&self, inputs: &[Tensor], prologue: Option<Prologue<'_>>, epilogue: Option<Epilogue<'_>>) -> Result<Tensor> {
        let [x, weight, rest @ ..] = inputs else {
            return Err(netcl_core::Error::argument(self.op, "a convolution takes an image and filters"));
        };
        let (bias, own) = if self.biased { (rest.first(), rest.get(1..).unwrap_or_default()) } else { (None, rest) };
        let epilogue = self.epilogue.then(own, epilogue);
        let epilogue = epilogue.epilogue();
        conv2d_as(self.op, x, weight, bias, &ConvOptions { params: self.params, prologue, epilogue, variant: None })
    }
}

/// The gradient of a convolution's images; its inputs are the result's gradient and the filters.
struct FusableDataGradient {
    op: &'static str,
    geometry: ConvGeometry,
}

/// Offers the gradient of the images of a checked convolution.
pub(super) fn offer_data_gradient(
    op: &'static str,
    geometry: &ConvGeometry,
    inputs: [&Tensor; 2],
    out: &Tensor,
) -> Result<bool> {
    let gradient = FusableDataGradient { op, geometry: *geometry };
    launch::offer(&Described { inputs: &inputs, outputs: &[out], meaning: Meaning::Fusable(Arc::new(gradient)) })
}

impl Fusable for FusableDataGradient {
    fn name(&self) -> &'static str {
        self.op
    }

    fn run(&self, inputs: &[Tensor], _: Option<Prologue<'_>>, epilogue: Option<Epilogue<'_>>) -> Result<Tensor> {
        let [grad, weight] = inputs else {
            return Err(netcl_core::Error::argument(self.op, "it takes the gradient of a result, and filters"));
        };
        let epilogue = ConvEpilogue::new(self.op, grad, None, epilogue.as_ref(), &self.geometry.input_shape())?;
        data_gradient(self.op, &self.geometry, grad, weight, &epilogue, None)
    }
}
