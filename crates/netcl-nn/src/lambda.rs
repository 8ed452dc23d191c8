//! A function as a module.

use netcl_autograd::{Result, Tensor};

use crate::module::{Module, print_as_module};

type Function = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

/// A function of a tensor as a module without parameters, for a place in a [`Sequential`](crate::Sequential).
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Lambda, Linear, Module, functional as F, sequential};
///
/// let queue = manager().cpu().queue;
/// let model = sequential![Lambda::new("square", |x| F::mul(x, x)), Linear::new(&queue, 2, 1)?];
/// assert_eq!(model.get(0).unwrap().to_string(), "Lambda(square)");
/// assert_eq!(model.forward(&Tensor::from_host(&queue, &[1.0f32, 2.0], [1, 2])?)?.shape()[..], [1, 1]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
pub struct Lambda {
    name: String,
    function: Function,
}

impl Lambda {
    /// A function under the name that print-outs show.
    pub fn new(
        name: impl Into<String>,
        function: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Lambda {
        Lambda { name: name.into(), function: Box::new(function) }
    }
}

impl Module for Lambda {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        (self.function)(input)
    }

    fn arguments(&self) -> String {
        self.name.clone()
    }
}

print_as_module!(Lambda);
