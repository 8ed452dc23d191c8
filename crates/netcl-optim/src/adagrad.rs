//! Adagrad.

use netcl_autograd::{Result, Tensor};
use netcl_core::kernels::elementwise::Number;

use crate::base::Base;
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::rule::{Rule, Terms, Updated};
use crate::settings::not_negative;

const OP: &str = "Adagrad";

/// Adagrad, as PyTorch defines it.
///
/// With the gradient `d` of a parameter `p` at its step `t`: `d` is negated if the loss is maximised, `weight_decay * p` is
/// added, `s` becomes `s + d * d`, and `p` becomes `p - lr / (1 + (t - 1) * lr_decay) * d / (sqrt(s) + eps)`.
///
/// ```
/// use netcl_autograd::{Tensor, manager};
/// use netcl_optim::{Adagrad, Optimizer};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[2.0f32], [1])?.with_grad();
/// let mut opt = Adagrad::new([x.clone()], 0.5)?;
/// (&x * &x)?.backward()?;
/// opt.step()?;
/// assert_eq!(x.item()?, 1.5); // the first step is the learning rate, whatever the gradient
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Debug)]
pub struct Adagrad {
    base: Base,
    options: AdagradOptions,
}

/// The settings of [`Adagrad`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdagradOptions {
    /// The learning rate.
    pub lr: f64,
    /// How fast the learning rate falls with the steps.
    pub lr_decay: f64,
    /// The factor with which the parameters themselves are added to their gradients.
    pub weight_decay: f64,
    /// What the sums of squares start from.
    pub initial_accumulator_value: f64,
    /// What is added to the root of the sum of squares, so that it is never zero.
    pub eps: f64,
    /// Whether to climb instead of descend.
    pub maximize: bool,
}

impl Default for AdagradOptions {
    fn default() -> Self {
        AdagradOptions {
            lr: 1e-2,
            lr_decay: 0.0,
            weight_decay: 0.0,
            initial_accumulator_value: 0.0,
            eps: 1e-10,
            maximize: false,
        }
    }
}

impl Adagrad {
    /// Adagrad with a learning rate and the usual settings.
    pub fn new(params: impl IntoIterator<Item = Tensor>, lr: f64) -> Result<Adagrad> {
        Adagrad::new_with(params, AdagradOptions { lr, ..Default::default() })
    }

    /// Adagrad with all its settings.
    ///
    /// # Errors
    /// For settings out of range, for no parameters, and for parameters that are given twice or are not leaves.
    pub fn new_with(params: impl IntoIterator<Item = Tensor>, options: AdagradOptions) -> Result<Adagrad> {
        not_negative(OP, "lr_decay", options.lr_decay)?;
        not_negative(OP, "initial_accumulator_value", options.initial_accumulator_value)?;
        not_negative(OP, "eps", options.eps)?;
        let params = params.into_iter().collect();
        Ok(Adagrad { base: Base::new(AdagradRule(options), params, options.lr, options.weight_decay)?, options })
    }

    /// The settings, with the learning rate and weight decay of the first group.
    pub fn options(&self) -> AdagradOptions {
        let Some(group) = self.base.groups().first() else { return self.options };
        AdagradOptions { lr: group.learning_rate(), weight_decay: group.weight_decay(), ..self.options }
    }
}

impl Optimizer for Adagrad {
    fn base(&self) -> &Base {
        &self.base
    }

    fn base_mut(&mut self) -> &mut Base {
        &mut self.base
    }
}

#[derive(Debug)]
struct AdagradRule(AdagradOptions);

impl Rule for AdagradRule {
    fn op(&self) -> &'static str {
        OP
    }

    fn label(&self) -> &'static str {
        "adagrad"
    }

    fn state(&self) -> &'static [&'static str] {
        &["sum"]
    }

    fn initial(&self) -> f64 {
        self.0.initial_accumulator_value
    }

    fn counts(&self) -> bool {
        self.0.lr_decay != 0.0
    }

    fn settings(&self, _group: &ParamGroup) -> Vec<Number> {
        [self.0.lr_decay, self.0.eps].map(Number::Value).to_vec()
    }

    fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        let d = if self.0.maximize { -x.grad } else { x.grad };
        let d = x.weight_decay.map_or(d, |decay| d + x.p * decay);
        let lr = if self.counts() { x.lr / (1.0 + (x.step - 1.0) * x.settings[0]) } else { x.lr };
        let sum = x.state[0] + d * d;
        Updated { p: x.p - lr * d / (sum.sqrt() + x.settings[1]), state: vec![sum] }
    }
}
