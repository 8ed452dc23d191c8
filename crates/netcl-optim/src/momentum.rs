//! Descent with momentum under its own name.

use netcl_autograd::{Result, Tensor};

use crate::base::Base;
use crate::optimizer::Optimizer;
use crate::sgd::{SgdOptions, base, current};

/// [`SGD`](crate::SGD) whose momentum is on unless told otherwise.
///
/// ```
/// use netcl_autograd::{Tensor, manager};
/// use netcl_optim::{Momentum, Optimizer};
///
/// let queue = manager().cpu().queue;
/// let p = Tensor::from_host(&queue, &[1.0f32], [1])?.with_grad();
/// let mut opt = Momentum::new([p.clone()], 0.1)?;
/// assert_eq!(opt.options().momentum, 0.9);
/// p.set_grad(Some(Tensor::from_host(&queue, &[1.0f32], [1])?));
/// opt.step()?;
/// opt.step()?;
/// assert!((p.item()? - (1.0 - 0.1 - 0.19)).abs() < 1e-6);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Debug)]
pub struct Momentum {
    base: Base,
    options: SgdOptions,
}

/// The settings of [`Momentum`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MomentumOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the last step is kept.
    pub momentum: f64,
    /// Whether to look ahead by the momentum.
    pub nesterov: bool,
    /// The factor with which the parameters themselves are added to their gradients.
    pub weight_decay: f64,
}

impl Default for MomentumOptions {
    fn default() -> Self {
        MomentumOptions { lr: 1e-2, momentum: 0.9, nesterov: false, weight_decay: 0.0 }
    }
}

impl Momentum {
    /// Descent with a learning rate and a momentum of 0.9.
    pub fn new(params: impl IntoIterator<Item = Tensor>, lr: f64) -> Result<Momentum> {
        Momentum::new_with(params, MomentumOptions { lr, ..Default::default() })
    }

    /// Descent with all settings.
    ///
    /// # Errors
    /// For settings out of range, for no parameters, and for parameters that are given twice or are not leaves.
    pub fn new_with(params: impl IntoIterator<Item = Tensor>, options: MomentumOptions) -> Result<Momentum> {
        let MomentumOptions { lr, momentum, nesterov, weight_decay } = options;
        let options = SgdOptions { lr, momentum, nesterov, weight_decay, ..Default::default() };
        Ok(Momentum { base: base("Momentum", params, options)?, options })
    }

    /// The settings, with the learning rate, weight decay and momentum of the first group.
    pub fn options(&self) -> MomentumOptions {
        let SgdOptions { lr, momentum, nesterov, weight_decay, .. } = current(&self.base, self.options);
        MomentumOptions { lr, momentum, nesterov, weight_decay }
    }
}

impl Optimizer for Momentum {
    fn base(&self) -> &Base {
        &self.base
    }

    fn base_mut(&mut self) -> &mut Base {
        &mut self.base
    }
}
