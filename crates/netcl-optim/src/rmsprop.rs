//! RMSprop.

use netcl_autograd::{Result, Tensor};
use netcl_core::kernels::elementwise::Number;

use crate::base::Base;
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::rule::{Rule, Terms, Updated};
use crate::settings::{not_negative, rate};

const OP: &str = "RMSProp";

/// RMSprop, as PyTorch defines it.
///
/// With the gradient `d` of a parameter `p`: `d` is negated if the loss is maximised, `weight_decay * p` is added, `v` becomes
/// `alpha * v + (1 - alpha) * d * d`; `r` is `sqrt(v) + eps`, or centered `sqrt(v - m * m) + eps` with the average `m` of the
/// gradients; and `p` becomes `p - lr * d / r`, or with momentum `p - lr * b` where `b` becomes `momentum * b + d / r`.
///
/// ```
/// use netcl_autograd::{Tensor, manager};
/// use netcl_optim::{Optimizer, RMSProp};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32], [1])?.with_grad();
/// let mut opt = RMSProp::new([x.clone()], 0.01)?;
/// (&x * &x)?.backward()?;
/// opt.step()?;
/// assert!((x.item()? - 0.9).abs() < 1e-6); // 1 - 0.01 * 2 / sqrt(0.01 * 4)
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Debug)]
pub struct RMSProp {
    base: Base,
    options: RmsPropOptions,
}

/// The settings of [`RMSProp`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPropOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the average square is kept in a step.
    pub alpha: f64,
    /// What is added to the root of the average square, so that it is never zero.
    pub eps: f64,
    /// The factor with which the parameters themselves are added to their gradients.
    pub weight_decay: f64,
    /// How much of the last step is kept.
    pub momentum: f64,
    /// Whether to divide by the gradients' deviation from their average.
    pub centered: bool,
    /// Whether to climb instead of descend.
    pub maximize: bool,
}

impl Default for RmsPropOptions {
    fn default() -> Self {
        RmsPropOptions {
            lr: 1e-2,
            alpha: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
            momentum: 0.0,
            centered: false,
            maximize: false,
        }
    }
}

impl RMSProp {
    /// RMSprop with a learning rate and the usual settings.
    pub fn new(params: impl IntoIterator<Item = Tensor>, lr: f64) -> Result<RMSProp> {
        RMSProp::new_with(params, RmsPropOptions { lr, ..Default::default() })
    }

    /// RMSprop with all its settings.
    ///
    /// # Errors
    /// For settings out of range, for no parameters, and for parameters that are given twice or are not leaves.
    pub fn new_with(params: impl IntoIterator<Item = Tensor>, options: RmsPropOptions) -> Result<RMSProp> {
        rate(OP, "alpha", options.alpha)?;
        not_negative(OP, "eps", options.eps)?;
        not_negative(OP, "momentum", options.momentum)?;
        let params = params.into_iter().collect();
        Ok(RMSProp { base: Base::new(RmsPropRule(options), params, options.lr, options.weight_decay)?, options })
    }

    /// The settings, with the learning rate, weight decay and momentum of the first group.
    pub fn options(&self) -> RmsPropOptions {
        let Some(group) = self.base.groups().first() else { return self.options };
        RmsPropOptions {
            lr: group.learning_rate(),
            weight_decay: group.weight_decay(),
            momentum: group.momentum().unwrap_or(self.options.momentum),
            ..self.options
        }
    }
}

impl Optimizer for RMSProp {
    fn base(&self) -> &Base {
        &self.base
    }

    fn base_mut(&mut self) -> &mut Base {
        &mut self.base
    }
}

#[derive(Debug)]
struct RmsPropRule(RmsPropOptions);

impl Rule for RmsPropRule {
    fn op(&self) -> &'static str {
        OP
    }

    fn label(&self) -> &'static str {
        "rmsprop"
    }

    fn state(&self) -> &'static [&'static str] {
        match (self.0.momentum != 0.0, self.0.centered) {
            (false, false) => &["square_avg"],
            (true, false) => &["square_avg", "momentum_buffer"],
            (false, true) => &["square_avg", "grad_avg"],
            (true, true) => &["square_avg", "momentum_buffer", "grad_avg"],
        }
    }

    fn momentum(&self) -> Option<f64> {
        (self.0.momentum != 0.0).then_some(self.0.momentum)
    }

    fn settings(&self, group: &ParamGroup) -> Vec<Number> {
        let fixed = [self.0.alpha, 1.0 - self.0.alpha, self.0.eps].map(Number::Value);
        std::iter::once(group.momentum_number()).chain(fixed).collect()
    }

    fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        let [momentum, alpha, rest, eps] = std::array::from_fn(|i| x.settings[i]);
        let d = if self.0.maximize { -x.grad } else { x.grad };
        let d = x.weight_decay.map_or(d, |decay| d + x.p * decay);
        let square = x.state[0] * alpha + d * d * rest;
        let mean = x.state.last().filter(|_| self.0.centered).map(|&mean| mean + (d - mean) * rest);
        let root = mean.map_or(square, |mean| square - mean * mean).sqrt() + eps;
        let mut state = vec![square];
        let p = if self.0.momentum == 0.0 {
            x.p - x.lr * d / root
        } else {
            let buffer = x.state[1] * momentum + d / root;
            state.push(buffer);
            x.p - buffer * x.lr
        };
        state.extend(mean);
        Updated { p, state }
    }
}
