//! Lion.

use netcl_autograd::{Result, Tensor};
use netcl_core::kernels::elementwise::Number;

use crate::declare::optimizer;
use crate::group::ParamGroup;
use crate::rule::{Rule, Terms, Updated};
use crate::settings::check_betas;

const OP: &str = "Lion";

optimizer! {
    /// Lion: steps of one size, by the sign of an average of gradients (Chen et al., "Symbolic Discovery of Optimization Algorithms").
    ///
    /// With the gradient `d` of a parameter `p`: `p` becomes `p - lr * weight_decay * p - lr * sign(beta1 * m + (1 - beta1) * d)`, then `m`
    /// becomes `beta2 * m + (1 - beta2) * d`. It keeps half of what Adam keeps; use a learning rate 3 to 10 times smaller than Adam's and
    /// a weight decay as much larger.
    ///
    /// ```
    /// use netcl_autograd::{Tensor, manager};
    /// use netcl_optim::{Lion, Optimizer};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[2.0f32], [1])?.with_grad();
    /// let mut opt = Lion::new([x.clone()], 0.25)?;
    /// (&x * &x)?.backward()?;
    /// opt.step()?;
    /// assert_eq!(x.item()?, 1.75);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    Lion, LionOptions, LionRule, decay: weight_decay, momentum: betas.0
}

/// The settings of [`Lion`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LionOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the average gradient enters a step, and how much of it is kept after the step.
    pub betas: (f64, f64),
    /// The weight decay, which acts on the parameters directly, as in AdamW.
    pub weight_decay: f64,
    /// Whether to climb instead of descend.
    pub maximize: bool,
}

impl Default for LionOptions {
    fn default() -> Self {
        LionOptions { lr: 1e-4, betas: (0.9, 0.99), weight_decay: 0.0, maximize: false }
    }
}

impl LionOptions {
    fn check(&self) -> Result<()> {
        check_betas(OP, self.betas)
    }
}

#[derive(Debug)]
struct LionRule(LionOptions);

impl Rule for LionRule {
    fn op(&self) -> &'static str {
        OP
    }

    fn label(&self) -> &'static str {
        "lion"
    }

    fn state(&self) -> &'static [&'static str] {
        &["exp_avg"]
    }

    fn momentum(&self) -> Option<f64> {
        Some(self.0.betas.0)
    }

    fn settings(&self, group: &ParamGroup) -> Vec<Number> {
        vec![group.momentum_rest_number(), Number::Value(1.0 - self.0.betas.1)]
    }

    fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        let (p, d) = x.decayed(self.0.maximize, true);
        let mixed = |rest| (d - x.state[0]).fma(rest, x.state[0]);
        Updated { p: p - mixed(x.settings[0]).sign() * x.lr, state: vec![mixed(x.settings[1])] }
    }
}
