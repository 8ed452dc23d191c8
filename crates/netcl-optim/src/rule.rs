//! An update as an expression: what tells one optimizer from another.

use std::fmt;

use netcl_autograd::{RawTensor, Result, Tensor};
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::Val;

use crate::group::ParamGroup;

/// The formula of an optimizer, from which its kernels are made.
///
/// An optimizer of your own is a rule, a struct that holds a [`Base`](crate::Base) and two methods:
///
/// ```
/// use netcl_autograd::{Result, Tensor};
/// use netcl_core::{device::manager, kernels::elementwise::Number};
/// use netcl_optim::{Base, Optimizer, ParamGroup};
/// use netcl_optim::rule::{Rule, Terms, Updated};
///
/// #[derive(Debug)]
/// struct SignRule;
///
/// impl Rule for SignRule {
///     fn op(&self) -> &'static str {
///         "SignDescent"
///     }
///     fn label(&self) -> &'static str {
///         "sign_descent"
///     }
///     fn settings(&self, _group: &ParamGroup) -> Vec<Number> {
///         Vec::new()
///     }
///     fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
///         Updated { p: x.p - x.grad.sign() * x.lr, state: Vec::new() }
///     }
/// }
///
/// struct SignDescent(Base);
///
/// impl Optimizer for SignDescent {
///     fn base(&self) -> &Base {
///         &self.0
///     }
///     fn base_mut(&mut self) -> &mut Base {
///         &mut self.0
///     }
/// }
///
/// let queue = manager().cpu().queue;
/// let p = Tensor::from_host(&queue, &[1.0f32, 1.0], [2])?.with_grad();
/// let mut opt = SignDescent(Base::new(SignRule, vec![p.clone()], 0.25, 0.0)?);
/// p.set_grad(Some(Tensor::from_host(&queue, &[3.0f32, -0.1], [2])?));
/// opt.step()?;
/// assert_eq!(p.to_host::<f32>()?, [0.75, 1.25]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
pub trait Rule: fmt::Debug + Send + Sync + 'static {
    /// What errors call the optimizer: `"Adam"`.
    fn op(&self) -> &'static str;

    /// What launches are called: `"adam"`.
    fn label(&self) -> &'static str;

    /// The names of the tensors that are kept for each parameter.
    fn state(&self) -> &'static [&'static str] {
        &[]
    }

    /// What the tensors that are kept start from.
    fn initial(&self) -> f64 {
        0.0
    }

    /// The momentum (or first beta) of new groups, where there is one that a schedule may change.
    fn momentum(&self) -> Option<f64> {
        None
    }

    /// Whether parameters with different numbers of steps behind them need different numbers.
    fn counts(&self) -> bool {
        false
    }

    /// The numbers of the formula beside learning rate, weight decay and step, for a group.
    fn settings(&self, group: &ParamGroup) -> Vec<Number>;

    /// An error for a parameter that it cannot update.
    fn check(&self, _parameter: &Tensor) -> Result<()> {
        Ok(())
    }

    /// The formula.
    fn update<'g>(&self, terms: &Terms<'g>) -> Updated<'g>;

    /// Whether [`Rule::direction`] and [`Rule::transform`] come before [`Rule::update`], which then changes the parameter alone.
    fn is_staged(&self) -> bool {
        false
    }

    /// A formula for what takes the gradient's place (as `p`), and for all that is kept: a launch of its own.
    fn direction<'g>(&self, terms: &Terms<'g>) -> Updated<'g> {
        Updated { p: terms.grad, state: terms.state.clone() }
    }

    /// What cannot be written as a formula for each element, as Muon's products of matrices: from the direction of one parameter to the
    /// gradient that the update gets, dense and of the same shape.
    ///
    /// # Errors
    /// What the operations say.
    fn transform(&self, direction: &RawTensor) -> Result<RawTensor> {
        Ok(direction.clone())
    }
}

/// What a [`Rule`]'s formula is made of.
#[derive(Clone, Debug)]
pub struct Terms<'g> {
    /// The parameter.
    pub p: Val<'g>,
    /// Its gradient, unscaled and clipped.
    pub grad: Val<'g>,
    /// What is kept for it, in the order of [`Rule::state`].
    pub state: Vec<Val<'g>>,
    /// The learning rate.
    pub lr: Val<'g>,
    /// The weight decay; `None` while it is zero in all groups.
    pub weight_decay: Option<Val<'g>>,
    /// Which step this is for the parameter, from 1 on.
    pub step: Val<'g>,
    /// The numbers of [`Rule::settings`].
    pub settings: Vec<Val<'g>>,
}

impl<'g> Terms<'g> {
    /// Parameter and gradient once weight decay is counted in (`decoupled`: in the parameter, as AdamW does it); the gradient is negated
    /// to `maximize`.
    pub fn decayed(&self, maximize: bool, decoupled: bool) -> (Val<'g>, Val<'g>) {
        let d = if maximize { -self.grad } else { self.grad };
        match self.weight_decay {
            Some(decay) if decoupled => (self.p * (1.0 - self.lr * decay), d),
            Some(decay) => (self.p, d + self.p * decay),
            None => (self.p, d),
        }
    }
}

/// What a [`Rule`]'s formula gives.
#[derive(Clone, Debug)]
pub struct Updated<'g> {
    /// The parameter.
    pub p: Val<'g>,
    /// What is kept for it.
    pub state: Vec<Val<'g>>,
}
