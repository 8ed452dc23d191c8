//! A module with a way around it.

use netcl_autograd::ops::elementwise::add;
use netcl_autograd::{Result, Tensor};

use crate::Module;
use crate::module::print_as_module;

/// `activation(inner(x) + shortcut(x))`.
///
/// Without a shortcut it is `x` itself, so `inner` must keep the shape; without an activation the sum is the result.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Linear, Module, ReLU, Residual, sequential};
///
/// let queue = manager().cpu().queue;
/// let inner = sequential![Linear::new(&queue, 4, 8)?, ReLU, Linear::new(&queue, 8, 6)?];
/// let block = Residual::new(inner).with_shortcut(Linear::new(&queue, 4, 6)?).with_activation(ReLU);
/// let y = block.forward(&Tensor::from_host(&queue, &[0.5f32; 8], [2, 4])?)?;
/// assert_eq!(y.shape()[..], [2, 6]);
/// assert_eq!(block.named_parameters()[4].0, "shortcut.weight");
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Module)]
#[module(no_display)]
pub struct Residual {
    inner: Box<dyn Module>,
    shortcut: Option<Box<dyn Module>>,
    activation: Option<Box<dyn Module>>,
}

impl Residual {
    /// `inner(x) + x`.
    pub fn new(inner: impl Module) -> Residual {
        Residual { inner: Box::new(inner), shortcut: None, activation: None }
    }

    /// With a projection of the input, where `inner` changes the shape.
    pub fn with_shortcut(mut self, shortcut: impl Module) -> Residual {
        self.shortcut = Some(Box::new(shortcut));
        self
    }

    /// With an activation after the sum.
    pub fn with_activation(mut self, activation: impl Module) -> Residual {
        self.activation = Some(Box::new(activation));
        self
    }

    /// The module that the way around passes by.
    pub fn inner(&self) -> &dyn Module {
        &*self.inner
    }

    /// The projection of the input.
    pub fn shortcut(&self) -> Option<&dyn Module> {
        self.shortcut.as_deref()
    }

    /// The activation after the sum.
    pub fn activation(&self) -> Option<&dyn Module> {
        self.activation.as_deref()
    }

    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let inner = self.inner.forward(input)?;
            let sum = match &self.shortcut {
                Some(shortcut) => add(&inner, &shortcut.forward(input)?)?,
                None => add(&inner, input)?,
            };
            match &self.activation {
                Some(activation) => activation.forward(&sum),
                None => Ok(sum),
            }
        })
    }
}

print_as_module!(Residual);
