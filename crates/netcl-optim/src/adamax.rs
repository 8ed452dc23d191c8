//! Adamax.

use netcl_autograd::{Result, Tensor};
use netcl_core::kernels::elementwise::Number;

use crate::declare::optimizer;
use crate::group::ParamGroup;
use crate::rule::{Rule, Terms, Updated};
use crate::settings::{check_betas, not_negative};

const OP: &str = "Adamax";

optimizer! {
    /// Adam with the largest gradient instead of the average square, as PyTorch defines it.
    ///
    /// With the gradient `d` of a parameter `p` at its step `t`: `weight_decay * p` is added to `d`, `m` becomes
    /// `beta1 * m + (1 - beta1) * d` and `u` the larger of `beta2 * u` and `|d| + eps`, and `p` becomes
    /// `p - lr / (1 - beta1^t) * m / u`.
    ///
    /// ```
    /// use netcl_autograd::{Tensor, manager};
    /// use netcl_optim::{Adamax, Optimizer};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[2.0f32], [1])?.with_grad();
    /// let mut opt = Adamax::new([x.clone()], 0.5)?;
    /// (&x * &x)?.backward()?;
    /// opt.step()?;
    /// assert!((x.item()? - 1.5).abs() < 1e-6); // the first step is the learning rate, whatever the gradient
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    Adamax, AdamaxOptions, AdamaxRule, decay: weight_decay, momentum: betas.0
}

/// The settings of [`Adamax`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamaxOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the average gradient and of the largest one is kept in a step.
    pub betas: (f64, f64),
    /// What is added to the size of a gradient, so that it is never zero.
    pub eps: f64,
    /// The factor with which the parameters themselves are added to their gradients.
    pub weight_decay: f64,
    /// Whether to climb instead of descend.
    pub maximize: bool,
}

impl Default for AdamaxOptions {
    fn default() -> Self {
        AdamaxOptions { lr: 2e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, maximize: false }
    }
}

impl AdamaxOptions {
    fn check(&self) -> Result<()> {
        check_betas(OP, self.betas)?;
        not_negative(OP, "eps", self.eps)
    }
}

#[derive(Debug)]
struct AdamaxRule(AdamaxOptions);

impl Rule for AdamaxRule {
    fn op(&self) -> &'static str {
        OP
    }

    fn label(&self) -> &'static str {
        "adamax"
    }

    fn state(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_inf"]
    }

    fn momentum(&self) -> Option<f64> {
        Some(self.0.betas.0)
    }

    fn counts(&self) -> bool {
        true
    }

    fn settings(&self, group: &ParamGroup) -> Vec<Number> {
        let (rest1, log1) = (group.momentum_rest_number(), group.momentum_log_number());
        vec![rest1, log1, Number::Value(self.0.betas.1), Number::Value(self.0.eps)]
    }

    fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        let [rest1, log1, beta2, eps] = std::array::from_fn(|i| x.settings[i]);
        let (p, d) = x.decayed(self.0.maximize, false);
        let mean = (d - x.state[0]).fma(rest1, x.state[0]);
        let largest = (x.state[1] * beta2).max(d.abs() + eps);
        let correction = -(x.step * log1).expm1();
        Updated { p: p - mean / largest * (x.lr / correction), state: vec![mean, largest] }
    }
}
