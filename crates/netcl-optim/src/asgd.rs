//! Averaged stochastic gradient descent.

use netcl_autograd::{Error, Result, Tensor};
use netcl_core::kernels::elementwise::Number;

use crate::declare::optimizer;
use crate::group::ParamGroup;
use crate::rule::{Rule, Terms, Updated};
use crate::settings::not_negative;

const OP: &str = "ASGD";

optimizer! {
    /// Averaged stochastic gradient descent, as PyTorch defines it; the averages are `ax` of the state.
    ///
    /// With the gradient `d` of a parameter `p` at its step `t` and `eta = lr / (1 + lambd * lr * (t - 1))^alpha`: `weight_decay * p` is
    /// added to `d`, `p` becomes `p - lambd * eta * p - eta * d`, and `ax` becomes `ax + (p - ax) / max(1, t - 1 - t0)`. A schedule's new
    /// learning rate holds at once; in PyTorch one step later.
    ///
    /// ```
    /// use netcl_autograd::{Tensor, manager};
    /// use netcl_optim::{ASGD, AsgdOptions, Optimizer};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[2.0f32], [1])?.with_grad();
    /// let mut opt = ASGD::new_with([x.clone()], AsgdOptions { lr: 0.25, t0: 0.0, lambd: 0.0, ..Default::default() })?;
    /// for _ in 0..3 {
    ///     (&x * &x)?.backward()?;
    ///     opt.step()?;
    ///     opt.zero_grad();
    /// }
    /// assert_eq!(x.item()?, 0.25);
    /// assert_eq!(opt.state().tensors["0.ax"].item()?, (0.5 + 0.25) / 2.0);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    ASGD, AsgdOptions, AsgdRule, decay: weight_decay
}

/// The settings of [`ASGD`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AsgdOptions {
    /// The learning rate.
    pub lr: f64,
    /// How fast parameters and steps decay.
    pub lambd: f64,
    /// The power with which steps decay.
    pub alpha: f64,
    /// The step at which averaging starts.
    pub t0: f64,
    /// The factor with which the parameters themselves are added to their gradients.
    pub weight_decay: f64,
    /// Whether to climb instead of descend.
    pub maximize: bool,
}

impl Default for AsgdOptions {
    fn default() -> Self {
        AsgdOptions { lr: 1e-2, lambd: 1e-4, alpha: 0.75, t0: 1e6, weight_decay: 0.0, maximize: false }
    }
}

impl AsgdOptions {
    fn check(&self) -> Result<()> {
        if self.t0.is_nan() {
            return Err(Error::argument(OP, "t0 is not a number; use the step at which averaging starts"));
        }
        not_negative(OP, "lambd", self.lambd)?;
        not_negative(OP, "alpha", self.alpha)
    }
}

#[derive(Debug)]
struct AsgdRule(AsgdOptions);

impl Rule for AsgdRule {
    fn op(&self) -> &'static str {
        OP
    }

    fn label(&self) -> &'static str {
        "asgd"
    }

    fn state(&self) -> &'static [&'static str] {
        &["ax"]
    }

    fn counts(&self) -> bool {
        true
    }

    fn settings(&self, _group: &ParamGroup) -> Vec<Number> {
        [self.0.lambd, self.0.alpha, self.0.t0].map(Number::Value).to_vec()
    }

    fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        let [lambd, alpha, t0] = std::array::from_fn(|i| x.settings[i]);
        let (p, d) = x.decayed(self.0.maximize, false);
        let before = x.step - 1.0;
        let eta = x.lr / (1.0 + lambd * x.lr * before).pow(alpha);
        let p = p * (1.0 - lambd * eta) - d * eta;
        let share = (before - t0).max(1.0);
        // Without averaging the average is the parameter itself, to the bit.
        let average = share.gt(1.0).select(x.state[0] + (p - x.state[0]) / share, p);
        Updated { p, state: vec![average] }
    }
}
