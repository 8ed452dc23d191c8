//! Ops whose gradient is one hand-written kernel. A gradient that is to be differentiated again comes from the same op written
//! with small recordable ones instead.

use netcl_core::tensor::Tensor as Raw;
use smallvec::SmallVec;

use crate::error::Result;
use crate::graph::{BackwardOptions, Edge, Gradients, RuleContext, Save, grad_enabled, grad_up_to, record};
use crate::tensor::Tensor;

/// Records a fused op: `fast` gives the gradients of the inputs, `composite` is the op in recordable pieces.
#[track_caller]
pub(crate) fn record_fused(
    op: &'static str,
    inputs: &[&Tensor],
    output: Raw,
    fast: impl Fn(&[Tensor], &Tensor) -> Result<Gradients> + Send + Sync + 'static,
    composite: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    let n = inputs.len();
    record(op, inputs, output, Save::INPUTS, || {
        Box::new(move |context, upstream| {
            let inputs = (0..n).map(|i| context.input(i)).collect::<Result<SmallVec<[Tensor; 3]>>>()?;
            if grad_enabled() { through(context, &inputs, upstream, &composite) } else { fast(&inputs, upstream) }
        })
    })
}

/// The wanted gradients of a fused op's inputs as a graph of their own, through the op in recordable pieces.
pub(crate) fn through(
    context: &RuleContext<'_>,
    inputs: &[Tensor],
    upstream: &Tensor,
    composite: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<Gradients> {
    let places: SmallVec<[Edge; 3]> =
        inputs.iter().enumerate().map(|(i, t)| if context.wants(i) { t.edge() } else { Edge::None }).collect();
    let options = BackwardOptions { create_graph: true, ..Default::default() };
    grad_up_to(&composite(inputs)?, upstream, &places, options)
}
