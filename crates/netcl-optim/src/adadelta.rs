//! Adadelta.

use netcl_autograd::{Error, Result, Tensor};
use netcl_core::kernels::elementwise::Number;

use crate::declare::optimizer;
use crate::group::ParamGroup;
use crate::rule::{Rule, Terms, Updated};
use crate::settings::not_negative;

const OP: &str = "Adadelta";

optimizer! {
    /// Adadelta, as PyTorch defines it.
    ///
    /// With the gradient `d` of a parameter `p`: `weight_decay * p` is added to `d`, `v` becomes `rho * v + (1 - rho) * d * d`, the step
    /// `s` is `sqrt(a + eps) / sqrt(v + eps) * d`, `a` becomes `rho * a + (1 - rho) * s * s`, and `p` becomes `p - lr * s`.
    ///
    /// ```
    /// use netcl_autograd::{Tensor, manager};
    /// use netcl_optim::{Adadelta, AdadeltaOptions, Optimizer};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32], [1])?.with_grad();
    /// let mut opt = Adadelta::new_with([x.clone()], AdadeltaOptions { rho: 0.0, eps: 0.25, ..Default::default() })?;
    /// (&x * &x)?.backward()?;
    /// opt.step()?;
    /// assert!((x.item()? - (1.0 - (0.25f64 / 4.25).sqrt() * 2.0)).abs() < 1e-6);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    Adadelta, AdadeltaOptions, AdadeltaRule, decay: weight_decay
}

/// The settings of [`Adadelta`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdadeltaOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the average squares is kept in a step.
    pub rho: f64,
    /// What is added to the average squares, so that they are never zero.
    pub eps: f64,
    /// The factor with which the parameters themselves are added to their gradients.
    pub weight_decay: f64,
    /// Whether to climb instead of descend.
    pub maximize: bool,
}

impl Default for AdadeltaOptions {
    fn default() -> Self {
        AdadeltaOptions { lr: 1.0, rho: 0.9, eps: 1e-6, weight_decay: 0.0, maximize: false }
    }
}

impl AdadeltaOptions {
    fn check(&self) -> Result<()> {
        if !(0.0..=1.0).contains(&self.rho) {
            return Err(Error::argument(OP, format!("rho is {}; use a number from 0 to 1", self.rho)));
        }
        not_negative(OP, "eps", self.eps)
    }
}

#[derive(Debug)]
struct AdadeltaRule(AdadeltaOptions);

impl Rule for AdadeltaRule {
    fn op(&self) -> &'static str {
        OP
    }

    fn label(&self) -> &'static str {
        "adadelta"
    }

    fn state(&self) -> &'static [&'static str] {
        &["square_avg", "acc_delta"]
    }

    fn settings(&self, _group: &ParamGroup) -> Vec<Number> {
        [self.0.rho, 1.0 - self.0.rho, self.0.eps].map(Number::Value).to_vec()
    }

    fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        let [rho, rest, eps] = std::array::from_fn(|i| x.settings[i]);
        let (p, d) = x.decayed(self.0.maximize, false);
        let square = x.state[0] * rho + d * d * rest;
        let step = (x.state[1] + eps).sqrt() / (square + eps).sqrt() * d;
        Updated { p: p - step * x.lr, state: vec![square, x.state[1] * rho + step * step * rest] }
    }
}
