//! Convolutions as a compiler that listens at the launch seam sees them.

use std::sync::Arc;

use netcl_core::Result;
use netcl_core::kernels::described::{Described, Finish, Heavy, Meaning, Prologue};
use netcl_core::kernels::launch;
use netcl_core::tensor::Tensor;
use smallvec::SmallVec;

use super::{ConvOptions, conv2d_as};
use crate::matmul::offered::Tail;

/// A convolution with the bias and the epilogue it was called with; its inputs are image, filters, bias, the epilogue's tensors.
struct Convolution {
    op: &'static str,
    options: ConvOptions<'static>,
    biased: bool,
    tail: Tail,
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
    if !launch::has_sink() {
        return Ok(false);
    }
    let epilogue = options.epilogue.as_ref();
    let mut inputs: SmallVec<[&Tensor; 4]> = [x, weight].into_iter().chain(bias).collect();
    inputs.extend(epilogue.iter().flat_map(|epilogue| &epilogue.inputs));
    let convolution = Convolution {
        op,
        options: ConvOptions {
            stride: options.stride,
            padding: options.padding,
            dilation: options.dilation,
            groups: options.groups,
            epilogue: None,
            variant: None,
        },
        biased: bias.is_some(),
        tail: Tail::new(epilogue, out),
    };
    launch::offer(&Described { inputs: &inputs, outputs: &[out], meaning: Meaning::Heavy(Arc::new(convolution)) })
}

impl Heavy for Convolution {
    fn name(&self) -> &'static str {
        self.op
    }

    fn run(&self, inputs: &[Tensor], prologue: Option<Prologue<'_>>, finish: Option<Finish<'_>>) -> Result<Tensor> {
        if prologue.is_some() {
            return Err(netcl_core::Error::argument(self.op, "a convolution reads its operands from memory"));
        }
        let [x, weight, rest @ ..] = inputs else {
            return Err(netcl_core::Error::argument(self.op, "a convolution takes an image and filters"));
        };
        let (bias, own) = if self.biased { (rest.first(), rest.get(1..).unwrap_or_default()) } else { (None, rest) };
        let tail = self.tail.with(own, finish);
        let ConvOptions { stride, padding, dilation, groups, .. } = self.options;
        let options = ConvOptions { stride, padding, dilation, groups, epilogue: tail.epilogue(), variant: None };
        conv2d_as(self.op, x, weight, bias, &options)
    }
}
