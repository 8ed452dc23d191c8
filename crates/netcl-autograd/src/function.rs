//! Operations of the user's own.

use std::sync::Arc;

use netcl_core::tensor::Tensor as Raw;
use smallvec::SmallVec;

use crate::error::Result;
use crate::graph::{Gradients, RuleContext, Save, record};
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
