//! NAdam.

use netcl_autograd::{Result, Tensor};
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::Val;

use crate::declare::optimizer;
use crate::group::ParamGroup;
use crate::rule::{Rule, Terms, Updated};
use crate::settings::{check_betas, not_negative};

const OP: &str = "NAdam";

optimizer! {
    /// Adam with Nesterov momentum, as PyTorch defines it.
    ///
    /// With Adam's averages `m` and `v` of the gradient `d` at step `t`: `u(t)` is `beta1 * (1 - 0.96^(t * momentum_decay) / 2)`, `U(t)`
    /// the product of all `u` up to `t`, `r` is `sqrt(v / (1 - beta2^t)) + eps`, and `p` becomes
    /// `p - lr * ((1 - u(t)) / (1 - U(t)) * d + u(t + 1) / (1 - U(t + 1)) * m) / r`.
    ///
    /// ```
    /// use netcl_autograd::{Tensor, manager};
    /// use netcl_optim::{NAdam, Optimizer};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[4.0f32], [1])?.with_grad();
    /// let mut opt = NAdam::new([x.clone()], 0.5)?;
    /// for _ in 0..100 {
    ///     (&x * &x)?.backward()?;
    ///     opt.step()?;
    ///     opt.zero_grad();
    /// }
    /// assert!(x.item()?.abs() < 0.05);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    NAdam, NAdamOptions, NAdamRule, decay: weight_decay, momentum: betas.0
}

/// The settings of [`NAdam`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NAdamOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the averages of the gradients and of their squares is kept in a step.
    pub betas: (f64, f64),
    /// What is added to the root of the average square, so that it is never zero.
    pub eps: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// How fast the momentum rises to `betas.0`.
    pub momentum_decay: f64,
    /// Whether weight decay acts on the parameters directly, as in AdamW.
    pub decoupled_weight_decay: bool,
    /// Whether to climb instead of descend.
    pub maximize: bool,
}

impl Default for NAdamOptions {
    fn default() -> Self {
        NAdamOptions {
            lr: 2e-3,
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 0.0,
            momentum_decay: 4e-3,
            decoupled_weight_decay: false,
            maximize: false,
        }
    }
}

impl NAdamOptions {
    fn check(&self) -> Result<()> {
        check_betas(OP, self.betas)?;
        not_negative(OP, "eps", self.eps)?;
        not_negative(OP, "momentum_decay", self.momentum_decay)
    }
}

#[derive(Debug)]
struct NAdamRule(NAdamOptions);

impl Rule for NAdamRule {
    fn op(&self) -> &'static str {
        OP
    }

    fn label(&self) -> &'static str {
        "nadam"
    }

    /// The product of the momenta is a number in PyTorch. A row keeps it on the device, where skipped steps are known.
    fn state(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq", "mu_product"]
    }

    fn momentum(&self) -> Option<f64> {
        Some(self.0.betas.0)
    }

    fn counts(&self) -> bool {
        true
    }

    fn settings(&self, group: &ParamGroup) -> Vec<Number> {
        let beta2 = self.0.betas.1;
        let fixed = [beta2, 1.0 - beta2, beta2.ln(), self.0.eps, self.0.momentum_decay * 0.96f64.ln()];
        let momentum = [group.momentum_number(), group.momentum_rest_number()];
        momentum.into_iter().chain(fixed.map(Number::Value)).collect()
    }

    fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        let [beta1, rest1, beta2, rest2, log2, eps, decay] = std::array::from_fn(|i| x.settings[i]);
        let (p, d) = x.decayed(self.0.maximize, self.0.decoupled_weight_decay);
        let mean = (d - x.state[0]).fma(rest1, x.state[0]);
        let square = (d * d).fma(rest2, x.state[1] * beta2);
        let momentum = |step: Val<'g>| beta1 * (1.0 - (step * decay).exp() * 0.5);
        let (now, next) = (momentum(x.step), momentum(x.step + 1.0));
        let product = x.step.le(1.0).select(1.0, x.state[2]) * now;
        let root = (square / -(x.step * log2).expm1()).sqrt() + eps;
        let step = d * ((1.0 - now) / (1.0 - product)) + mean * (next / (1.0 - product * next));
        Updated { p: p - step / root * x.lr, state: vec![mean, square, product] }
    }
}
