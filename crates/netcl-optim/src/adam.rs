//! Adam.

use netcl_autograd::{Result, Tensor};
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::Val;

use crate::base::Base;
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::rule::{Rule, Terms, Updated};
use crate::settings::{check_betas, not_negative};

/// Adam, as PyTorch defines it.
///
/// With the gradient `d` of a parameter `p` at its step `t`: `d` is negated if the loss is maximised, `weight_decay * p` is
/// added, `m` becomes `beta1 * m + (1 - beta1) * d` and `v` becomes `beta2 * v + (1 - beta2) * d * d`, and `p` becomes
/// `p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)`; with `amsgrad` the largest `v` so far takes `v`'s
/// place in that.
///
/// ```
/// use netcl_autograd::{Tensor, manager};
/// use netcl_optim::{Adam, Optimizer};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[4.0f32], [1])?.with_grad();
/// let mut opt = Adam::new([x.clone()], 0.5)?;
/// for _ in 0..100 {
///     (&x * &x)?.backward()?;
///     opt.step()?;
///     opt.zero_grad();
/// }
/// assert!(x.item()?.abs() < 0.05);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Debug)]
pub struct Adam {
    base: Base,
    options: AdamOptions,
}

/// The settings of [`Adam`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the averages of the gradients and of their squares is kept in a step.
    pub betas: (f64, f64),
    /// What is added to the root of the average square, so that it is never zero.
    pub eps: f64,
    /// The factor with which the parameters themselves are added to their gradients.
    pub weight_decay: f64,
    /// Whether to divide by the largest average square so far.
    pub amsgrad: bool,
    /// Whether to climb instead of descend.
    pub maximize: bool,
}

impl Default for AdamOptions {
    fn default() -> Self {
        AdamOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, amsgrad: false, maximize: false }
    }
}

impl Adam {
    /// Adam with a learning rate and the usual settings.
    pub fn new(params: impl IntoIterator<Item = Tensor>, lr: f64) -> Result<Adam> {
        Adam::new_with(params, AdamOptions { lr, ..Default::default() })
    }

    /// Adam with all its settings.
    ///
    /// # Errors
    /// For settings out of range, for no parameters, and for parameters that are given twice or are not leaves.
    pub fn new_with(params: impl IntoIterator<Item = Tensor>, options: AdamOptions) -> Result<Adam> {
        let base = base(AdamRule { op: "Adam", label: "adam", options, decoupled: false }, params)?;
        Ok(Adam { base, options })
    }

    /// The settings, with the learning rate, weight decay and first beta of the first group.
    pub fn options(&self) -> AdamOptions {
        current(&self.base, self.options)
    }
}

impl Optimizer for Adam {
    fn base(&self) -> &Base {
        &self.base
    }

    fn base_mut(&mut self) -> &mut Base {
        &mut self.base
    }
}

/// The base of Adam and AdamW, once the settings are found to be in range.
pub(crate) fn base(rule: AdamRule, params: impl IntoIterator<Item = Tensor>) -> Result<Base> {
    let AdamOptions { lr, betas, eps, weight_decay, .. } = rule.options;
    check_betas(rule.op, betas)?;
    not_negative(rule.op, "eps", eps)?;
    Base::new(rule, params.into_iter().collect(), lr, weight_decay)
}

/// Options with what the first group has now.
pub(crate) fn current(base: &Base, options: AdamOptions) -> AdamOptions {
    let Some(group) = base.groups().first() else { return options };
    AdamOptions {
        lr: group.learning_rate(),
        weight_decay: group.weight_decay(),
        betas: (group.momentum().unwrap_or(options.betas.0), options.betas.1),
        ..options
    }
}

/// The formula of Adam, and of AdamW where decay is decoupled.
#[derive(Debug)]
pub(crate) struct AdamRule {
    pub(crate) op: &'static str,
    pub(crate) label: &'static str,
    pub(crate) options: AdamOptions,
    pub(crate) decoupled: bool,
}

impl Rule for AdamRule {
    fn op(&self) -> &'static str {
        self.op
    }

    fn label(&self) -> &'static str {
        self.label
    }

    fn state(&self) -> &'static [&'static str] {
        if self.options.amsgrad { &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"] } else { &["exp_avg", "exp_avg_sq"] }
    }

    fn momentum(&self) -> Option<f64> {
        Some(self.options.betas.0)
    }

    fn counts(&self) -> bool {
        true
    }

    fn settings(&self, group: &ParamGroup) -> Vec<Number> {
        let beta2 = self.options.betas.1;
        vec![
            group.momentum_rest_number(),
            group.momentum_log_number(),
            Number::Value(beta2),
            // From double precision: float's 1 - 0.999 has four digits.
            Number::Value(1.0 - beta2),
            Number::Value(beta2.ln()),
            Number::Value(self.options.eps),
        ]
    }

    fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        let [rest1, log1, beta2, rest2, log2, eps] = std::array::from_fn(|i| x.settings[i]);
        let (p, d) = x.decayed(self.options.maximize, self.decoupled);
        let mean = (d - x.state[0]).fma(rest1, x.state[0]);
        let square = (d * d).fma(rest2, x.state[1] * beta2);
        // 1 - beta^t, with all digits also where beta^t is nearly one.
        let correction = |log: Val<'g>| -(x.step * log).expm1();
        let largest = self.options.amsgrad.then(|| x.state[2].max(square));
        // sqrt(v) / sqrt(1 - beta2^t) + eps: what is the same for all elements is divided once.
        let root = largest.unwrap_or(square).sqrt().fma(correction(log2).rsqrt(), eps);
        let p = (mean / root).fma(-(x.lr / correction(log1)), p);
        let mut state = vec![mean, square];
        state.extend(largest);
        Updated { p, state }
    }
}
