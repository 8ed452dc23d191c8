//! Operations of the user's own.

use std::sync::Arc;

use netcl_core::tensor::Tensor as Raw;
use smallvec::SmallVec;

use crate::error::Result;
use crate::graph::{Gradients, RuleContext, Save, grad_enabled, record, record_joint};
use crate::tensor::Tensor;

/// An operation with a gradient of its own: the way to put a hand-written kernel into a network.
///
/// `forward` sees raw tensors and may do anything with them, such as launching an OpenCL kernel. `backward` is written with
/// recordable ops if it is to be differentiated again. [`gradcheck`](crate::gradcheck::gradcheck) holds the one against the other.
///
/// ```
/// use netcl_autograd::{RawTensor, Result, Tensor, manager};
/// use netcl_autograd::function::{Function, call};
/// use netcl_autograd::graph::{Gradients, RuleContext};
/// use netcl_autograd::gradcheck::{Tolerance, gradcheck};
/// use netcl_autograd::ops::elementwise::{cos, mul};
///
/// struct Sine;
///
/// impl Function for Sine {
///     fn name(&self) -> &'static str {
///         "sine"
///     }
///     fn forward(&self, inputs: &[&RawTensor]) -> Result<RawTensor> {
///         let values: Vec<f64> = inputs[0].to_f64_vec()?.iter().map(|v| v.sin()).collect();
///         Ok(RawTensor::from_host(inputs[0].queue(), &values, inputs[0].shape().clone())?)
///     }
///     fn backward(&self, context: &RuleContext<'_>, upstream: &Tensor) -> Result<Gradients> {
///         Ok([Some(mul(upstream, &cos(&context.input(0)?)?)?)].into_iter().collect())
///     }
/// }
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[0.3f64, -1.1], [2])?.with_grad();
/// gradcheck(|inputs| call(Sine, inputs), &[&x], Tolerance::default())?;
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
pub trait Function: Send + Sync {
    /// The name that errors use.
    fn name(&self) -> &'static str;

    /// The result.
    fn forward(&self, inputs: &[&Raw]) -> Result<Raw>;

    /// The gradient of each input from the gradient of the output, in order; `None` where there is none.
    fn backward(&self, context: &RuleContext<'_>, upstream: &Tensor) -> Result<Gradients>;

    /// What `backward` asks its context for: the inputs, unless told otherwise.
    fn saves(&self) -> Save {
        Save::INPUTS
    }
}

/// Records an operation with several results that were computed already, as one node. `backward` makes the gradients of the inputs
/// from those of the results, in order: `None`, or nothing at the end, for a result that no gradient arrived at.
///
/// Each result comes with the number of the input that it was made of: where that needs no gradient, the result has none, either.
///
/// ```
/// use netcl_autograd::{Tensor, function::call_several, manager, ops::elementwise::{add, mul}};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[3.0f32], [1])?.with_grad();
/// let twins = call_several("twins", &[&x], vec![(x.raw().duplicate()?, 0), (x.raw().duplicate()?, 0)], |gradients| {
///     let mut sum: Option<Tensor> = None;
///     for gradient in gradients.iter().flatten() {
///         sum = Some(sum.map_or(Ok(gradient.clone()), |sum| add(&sum, gradient))?);
///     }
///     Ok([sum].into_iter().collect())
/// });
/// mul(&twins[0], &twins[1])?.backward()?;
/// assert_eq!(x.grad().unwrap().item()?, 6.0);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn call_several(
    name: &'static str,
    inputs: &[&Tensor],
    outputs: Vec<(Raw, usize)>,
    backward: impl Fn(&[Option<Tensor>]) -> Result<Gradients> + Send + Sync + 'static,
) -> Vec<Tensor> {
    if !grad_enabled() || !inputs.iter().any(|input| input.needs_grad()) {
        return outputs.into_iter().map(|(raw, _)| raw.into()).collect();
    }
    let edges = inputs.iter().map(|input| input.edge()).collect();
    let outputs = outputs.into_iter().map(|(raw, source)| (raw, inputs[source].needs_grad())).collect();
    record_joint(name, edges, outputs, Box::new(move |_, gradients| backward(gradients)))
}

/// Applies a function and records it.
#[track_caller]
pub fn call(function: impl Function + 'static, inputs: &[&Tensor]) -> Result<Tensor> {
    let raw: SmallVec<[&Raw; 4]> = inputs.iter().map(|t| t.raw()).collect();
    let output = function.forward(&raw)?;
    let (name, save) = (function.name(), function.saves());
    record(name, inputs, output, save, || {
        let function = Arc::new(function);
        Box::new(move |context, upstream| function.backward(context, upstream))
    })
}
