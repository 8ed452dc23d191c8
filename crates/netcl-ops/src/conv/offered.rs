//! Convolutions as a compiler that listens at the launch seam sees them.

use std::sync::Arc;

use netcl_core::Result;
use netcl_core::kernels::described::{self, Described, Finish, Heavy, Meaning, Taken};
use netcl_core::kernels::launch;
use netcl_core::tensor::Tensor;
use smallvec::SmallVec;

use super::geometry::Geometry;
use super::{ConvOptions, Prologue, conv2d_as, lead};
use crate::lead::Lead;
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
            prologue: None,
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

    fn takes(&self, prologue: &described::Prologue<'_>, inputs: &[Tensor], out: &Tensor) -> Result<Taken> {
        let described::Prologue { operand, expr, inputs: further, scalars } = prologue;
        match inputs {
            [x, weight, ..] if *operand == 0 => {
                let g = Geometry::new(self.op, x.shape(), weight.shape(), &self.options)?;
                lead::takes(self.op, &g, [x, weight, out], None, &Lead::new(self.op, x, expr, further, scalars)?)
            }
            [_, _, ..] if *operand == 1 => Ok(Taken::No("filters are read as they lie in memory")),
            _ => Ok(Taken::No("it belongs to the epilogue")),
        }
    }

    fn run(
        &self,
        inputs: &[Tensor],
        prologue: Option<described::Prologue<'_>>,
        finish: Option<Finish<'_>>,
    ) -> Result<Tensor> {
        let [x, weight, rest @ ..] = inputs else {
            return Err(netcl_core::Error::argument(self.op, "a convolution takes an image and filters"));
        };
        let (bias, own) = if self.biased { (rest.first(), rest.get(1..).unwrap_or_default()) } else { (None, rest) };
        let tail = self.tail.with(own, finish);
        let ConvOptions { stride, padding, dilation, groups, .. } = self.options;
        let prologue =
            prologue.map(|described::Prologue { expr, inputs, scalars, .. }| Prologue { expr, inputs, scalars });
        let epilogue = tail.epilogue();
        let options = ConvOptions { stride, padding, dilation, groups, prologue, epilogue, variant: None };
        conv2d_as(self.op, x, weight, bias, &options)
    }
}
