//! RAdam.

use netcl_autograd::{Result, Tensor};
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::Val;

use crate::declare::optimizer;
use crate::group::ParamGroup;
use crate::rule::{Rule, Terms, Updated};
use crate::settings::{check_betas, not_negative};

const OP: &str = "RAdam";

optimizer! {
    /// Adam whose first steps are rectified, as PyTorch defines it.
    ///
    /// With Adam's averages `m` and `v` at step `t`, `R = 2 / (1 - beta2) - 1` and `r = R - 2 * t * beta2^t / (1 - beta2^t)`: while `r` is
    /// at most 5, `p` becomes `p - lr * m / (1 - beta1^t)`; then it is
    /// `p - lr * m / (1 - beta1^t) * sqrt(1 - beta2^t) / (sqrt(v) + eps) * sqrt((r - 4) * (r - 2) * R / ((R - 4) * (R - 2) * r))`.
    ///
    /// ```
    /// use netcl_autograd::{Tensor, manager};
    /// use netcl_optim::{Optimizer, RAdam};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[2.0f32], [1])?.with_grad();
    /// let mut opt = RAdam::new([x.clone()], 0.25)?;
    /// (&x * &x)?.backward()?;
    /// opt.step()?;
    /// assert!((x.item()? - 1.0).abs() < 1e-5); // the first steps are plain descent: 2 - 0.25 * 4
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    RAdam, RAdamOptions, RAdamRule, decay: weight_decay, momentum: betas.0
}

/// The settings of [`RAdam`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RAdamOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the averages of the gradients and of their squares is kept in a step.
    pub betas: (f64, f64),
    /// What is added to the root of the average square, so that it is never zero.
    pub eps: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// Whether weight decay acts on the parameters directly, as in AdamW.
    pub decoupled_weight_decay: bool,
    /// Whether to climb instead of descend.
    pub maximize: bool,
}

impl Default for RAdamOptions {
    fn default() -> Self {
        RAdamOptions {
            lr: 1e-3,
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 0.0,
            decoupled_weight_decay: false,
            maximize: false,
        }
    }
}

impl RAdamOptions {
    fn check(&self) -> Result<()> {
        check_betas(OP, self.betas)?;
        not_negative(OP, "eps", self.eps)
    }
}

#[derive(Debug)]
struct RAdamRule(RAdamOptions);

impl Rule for RAdamRule {
    fn op(&self) -> &'static str {
        OP
    }

    fn label(&self) -> &'static str {
        "radam"
    }

    fn state(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn momentum(&self) -> Option<f64> {
        Some(self.0.betas.0)
    }

    fn counts(&self) -> bool {
        true
    }

    fn settings(&self, group: &ParamGroup) -> Vec<Number> {
        let beta2 = self.0.betas.1;
        let longest = 2.0 / (1.0 - beta2) - 1.0;
        let scale = longest / ((longest - 4.0) * (longest - 2.0));
        let fixed = [beta2, 1.0 - beta2, beta2.ln(), self.0.eps, longest, scale, 1.0 / beta2.ln()];
        let momentum = [group.momentum_rest_number(), group.momentum_log_number()];
        momentum.into_iter().chain(fixed.map(Number::Value)).collect()
    }

    fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        let [rest1, log1, beta2, rest2, log2, eps, longest, scale, per_log] = std::array::from_fn(|i| x.settings[i]);
        let (p, d) = x.decayed(self.0.maximize, self.0.decoupled_weight_decay);
        let mean = (d - x.state[0]).fma(rest1, x.state[0]);
        let square = (d * d).fma(rest2, x.state[1] * beta2);
        let correction = |log: Val<'g>| -(x.step * log).expm1();
        // r is a small difference of large numbers in the first steps, where all depends on it being above 5 or not: there it is
        // the series of that difference in u = -t * ln(beta2), of which the next term is below 1e-14 for u < 0.2.
        let u = -(x.step * log2);
        let bernoulli = |u: Val<'g>| {
            let s = u * u;
            s * (1.0 / 12.0 - s * (1.0 / 720.0 - s * (1.0 / 30240.0 - s * (1.0 / 1_209_600.0))))
        };
        let series = x.step + (bernoulli(u) - bernoulli(-log2)) * per_log * 2.0;
        let direct = longest - x.step * 2.0 * (1.0 - correction(log2)) / correction(log2);
        let r = u.lt(0.2).select(series, direct);
        let rectified = ((r - 4.0) * (r - 2.0) * scale / r * correction(log2)).sqrt() / (square.sqrt() + eps);
        let step = mean * (x.lr / correction(log1)) * r.gt(5.0).select(rectified, 1.0);
        Updated { p: p - step, state: vec![mean, square] }
    }
}
