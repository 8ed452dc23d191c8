//! AdamW.

use netcl_autograd::{Result, Tensor};

use crate::adam::{AdamOptions, AdamRule, base, current};
use crate::base::Base;
use crate::optimizer::Optimizer;

/// Adam whose weight decay acts on the parameters directly, as PyTorch defines it.
///
/// `p` becomes `p * (1 - lr * weight_decay)` before the step of [`Adam`](crate::Adam) without weight decay.
///
/// ```
/// use netcl_autograd::{Tensor, manager};
/// use netcl_optim::{AdamW, AdamWOptions, Optimizer};
///
/// let queue = manager().cpu().queue;
/// let p = Tensor::from_host(&queue, &[2.0f32], [1])?.with_grad();
/// let mut opt = AdamW::new_with([p.clone()], AdamWOptions { lr: 0.5, weight_decay: 0.5, ..Default::default() })?;
/// p.set_grad(Some(Tensor::from_host(&queue, &[3.0f32], [1])?));
/// opt.step()?;
/// assert_eq!(p.item()?, 1.0); // 2 * (1 - 0.25) - 0.5
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Debug)]
pub struct AdamW {
    base: Base,
    options: AdamOptions,
}

/// The settings of [`AdamW`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the averages of the gradients and of their squares is kept in a step.
    pub betas: (f64, f64),
    /// What is added to the root of the average square, so that it is never zero.
    pub eps: f64,
    /// What parameters lose in a step, times the learning rate.
    pub weight_decay: f64,
    /// Whether to divide by the largest average square so far.
    pub amsgrad: bool,
    /// Whether to climb instead of descend.
    pub maximize: bool,
}

impl Default for AdamWOptions {
    fn default() -> Self {
        AdamWOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 1e-2, amsgrad: false, maximize: false }
    }
}

impl AdamW {
    /// AdamW with a learning rate and the usual settings.
    pub fn new(params: impl IntoIterator<Item = Tensor>, lr: f64) -> Result<AdamW> {
        AdamW::new_with(params, AdamWOptions { lr, ..Default::default() })
    }

    /// AdamW with all its settings.
    ///
    /// # Errors
    /// For settings out of range, for no parameters, and for parameters that are given twice or are not leaves.
    pub fn new_with(params: impl IntoIterator<Item = Tensor>, options: AdamWOptions) -> Result<AdamW> {
        let AdamWOptions { lr, betas, eps, weight_decay, amsgrad, maximize } = options;
        let options = AdamOptions { lr, betas, eps, weight_decay, amsgrad, maximize };
        let base = base(AdamRule { op: "AdamW", label: "adamw", options, decoupled: true }, params)?;
        Ok(AdamW { base, options })
    }

    /// The settings, with the learning rate, weight decay and first beta of the first group.
    pub fn options(&self) -> AdamWOptions {
        let AdamOptions { lr, betas, eps, weight_decay, amsgrad, maximize } = current(&self.base, self.options);
        AdamWOptions { lr, betas, eps, weight_decay, amsgrad, maximize }
    }
}

impl Optimizer for AdamW {
    fn base(&self) -> &Base {
        &self.base
    }

    fn base_mut(&mut self) -> &mut Base {
        &mut self.base
    }
}
