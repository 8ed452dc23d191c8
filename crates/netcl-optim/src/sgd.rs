//! Stochastic gradient descent.

use netcl_autograd::{Error, Result, Tensor};
use netcl_core::kernels::elementwise::Number;

use crate::base::Base;
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::rule::{Rule, Terms, Updated};
use crate::settings::not_negative;

const OP: &str = "SGD";

/// Stochastic gradient descent with momentum, as PyTorch defines it.
///
/// With the gradient `d` of a parameter `p`: `d` is negated if the loss is maximised, `weight_decay * p` is added, the
/// buffer becomes `d` at the first step and `momentum * buffer + (1 - dampening) * d` later, `d` becomes the buffer (with
/// Nesterov `d + momentum * buffer`), and `p` becomes `p - lr * d`.
///
/// ```
/// use netcl_autograd::{Tensor, manager};
/// use netcl_optim::{Optimizer, SGD, SgdOptions};
///
/// let queue = manager().cpu().queue;
/// let p = Tensor::from_host(&queue, &[1.0f32, 2.0], [2])?.with_grad();
/// let options = SgdOptions { lr: 0.5, momentum: 0.5, ..Default::default() };
/// let mut opt = SGD::new_with([p.clone()], options)?;
/// p.set_grad(Some(Tensor::from_host(&queue, &[1.0f32, -2.0], [2])?));
/// opt.step()?;
/// assert_eq!(p.to_host::<f32>()?, [0.5, 3.0]);
/// opt.step()?;
/// assert_eq!(p.to_host::<f32>()?, [-0.25, 4.5]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Debug)]
pub struct SGD {
    base: Base,
    options: SgdOptions,
}

/// The settings of [`SGD`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the last step is kept.
    pub momentum: f64,
    /// How much of the gradient is kept out of the momentum buffer.
    pub dampening: f64,
    /// The factor with which the parameters themselves are added to their gradients.
    pub weight_decay: f64,
    /// Whether to look ahead by the momentum; needs momentum and no dampening.
    pub nesterov: bool,
    /// Whether to climb instead of descend.
    pub maximize: bool,
}

impl Default for SgdOptions {
    fn default() -> Self {
        SgdOptions { lr: 1e-3, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false, maximize: false }
    }
}

impl SGD {
    /// Plain descent with a learning rate.
    pub fn new(params: impl IntoIterator<Item = Tensor>, lr: f64) -> Result<SGD> {
        SGD::new_with(params, SgdOptions { lr, ..Default::default() })
    }

    /// Descent with momentum and the rest.
    ///
    /// # Errors
    /// For settings out of range, for no parameters, and for parameters that are given twice or are not leaves.
    pub fn new_with(params: impl IntoIterator<Item = Tensor>, options: SgdOptions) -> Result<SGD> {
        let base = base(OP, params, options)?;
        Ok(SGD { base, options })
    }

    /// The settings, with the learning rate, weight decay and momentum of the first group.
    pub fn options(&self) -> SgdOptions {
        current(&self.base, self.options)
    }
}

impl Optimizer for SGD {
    fn base(&self) -> &Base {
        &self.base
    }

    fn base_mut(&mut self) -> &mut Base {
        &mut self.base
    }
}

/// The base of [`SGD`] and [`Momentum`](crate::Momentum), which differ in name and defaults only.
pub(crate) fn base(op: &'static str, params: impl IntoIterator<Item = Tensor>, options: SgdOptions) -> Result<Base> {
    let SgdOptions { lr, momentum, dampening, weight_decay, nesterov, .. } = options;
    not_negative(op, "momentum", momentum)?;
    if !dampening.is_finite() {
        return Err(Error::argument(op, format!("the dampening is {dampening}; use a finite number")));
    }
    if nesterov && (momentum == 0.0 || dampening != 0.0) {
        let what = format!(
            "nesterov needs a momentum above 0 and no dampening; momentum is {momentum}, dampening {dampening}"
        );
        return Err(Error::argument(op, what));
    }
    Base::new(SgdRule { op, options }, params.into_iter().collect(), lr, weight_decay)
}

/// Options with what the first group has now.
pub(crate) fn current(base: &Base, options: SgdOptions) -> SgdOptions {
    let Some(group) = base.groups().first() else { return options };
    SgdOptions {
        lr: group.learning_rate(),
        weight_decay: group.weight_decay(),
        momentum: group.momentum().unwrap_or(options.momentum),
        ..options
    }
}

#[derive(Debug)]
struct SgdRule {
    op: &'static str,
    options: SgdOptions,
}

impl Rule for SgdRule {
    fn op(&self) -> &'static str {
        self.op
    }

    fn label(&self) -> &'static str {
        "sgd"
    }

    fn state(&self) -> &'static [&'static str] {
        if self.options.momentum == 0.0 { &[] } else { &["momentum_buffer"] }
    }

    fn momentum(&self) -> Option<f64> {
        (self.options.momentum != 0.0).then_some(self.options.momentum)
    }

    fn counts(&self) -> bool {
        self.options.momentum != 0.0 && self.options.dampening != 0.0
    }

    fn settings(&self, group: &ParamGroup) -> Vec<Number> {
        vec![group.momentum_number(), Number::Value(1.0 - self.options.dampening)]
    }

    fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        let d = if self.options.maximize { -x.grad } else { x.grad };
        let d = x.weight_decay.map_or(d, |decay| d + x.p * decay);
        let Some(&before) = x.state.first() else { return Updated { p: x.p - d * x.lr, state: Vec::new() } };
        let (momentum, intake) = (x.settings[0], x.settings[1]);
        // The first gradient enters the (still empty) buffer whole.
        let taken = if self.counts() { d * x.step.le(1.0).select(1.0, intake) } else { d };
        let buffer = before * momentum + taken;
        let d = if self.options.nesterov { d + buffer * momentum } else { buffer };
        Updated { p: x.p - d * x.lr, state: vec![buffer] }
    }
}
