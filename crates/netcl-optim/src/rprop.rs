//! Rprop.

use netcl_autograd::{Error, Result, Tensor};
use netcl_core::kernels::elementwise::Number;

use crate::declare::optimizer;
use crate::group::ParamGroup;
use crate::rule::{Rule, Terms, Updated};

const OP: &str = "Rprop";

optimizer! {
    /// Resilient backpropagation, as PyTorch defines it: for whole data sets, not for batches.
    ///
    /// Each element has a step size, `lr` at first. It is multiplied by `etas.1` while the gradient keeps its sign and by `etas.0` where the
    /// sign has changed (that gradient counts as 0), within `step_sizes`; then `p` becomes `p - sign(d) * step_size`.
    ///
    /// ```
    /// use netcl_autograd::{Tensor, manager};
    /// use netcl_optim::{Optimizer, Rprop};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[2.0f32], [1])?.with_grad();
    /// let mut opt = Rprop::new([x.clone()], 0.25)?;
    /// (&x * &x)?.backward()?;
    /// opt.step()?;
    /// assert_eq!(x.item()?, 1.75);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    Rprop, RpropOptions, RpropRule
}

/// The settings of [`Rprop`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RpropOptions {
    /// The step size at first.
    pub lr: f64,
    /// By what step sizes fall and rise.
    pub etas: (f64, f64),
    /// The smallest and the largest step size.
    pub step_sizes: (f64, f64),
    /// Whether to climb instead of descend.
    pub maximize: bool,
}

impl Default for RpropOptions {
    fn default() -> Self {
        RpropOptions { lr: 1e-2, etas: (0.5, 1.2), step_sizes: (1e-6, 50.0), maximize: false }
    }
}

impl RpropOptions {
    fn check(&self) -> Result<()> {
        let (down, up) = self.etas;
        if !(0.0 < down && down < 1.0 && 1.0 < up && up.is_finite()) {
            return Err(Error::argument(OP, format!("etas are {:?}; use 0 < etas[0] < 1 < etas[1]", self.etas)));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct RpropRule(RpropOptions);

impl Rule for RpropRule {
    fn op(&self) -> &'static str {
        OP
    }

    fn label(&self) -> &'static str {
        "rprop"
    }

    fn state(&self) -> &'static [&'static str] {
        &["prev", "step_size"]
    }

    fn counts(&self) -> bool {
        true
    }

    fn settings(&self, _group: &ParamGroup) -> Vec<Number> {
        let RpropOptions { etas, step_sizes, .. } = self.0;
        [etas.0, etas.1, step_sizes.0, step_sizes.1].map(Number::Value).to_vec()
    }

    fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        let [down, up, smallest, largest] = std::array::from_fn(|i| x.settings[i]);
        let d = if self.0.maximize { -x.grad } else { x.grad };
        let turned = d * x.state[0];
        let factor = turned.gt(0.0).select(up, turned.lt(0.0).select(down, 1.0));
        let size = (x.step.le(1.0).select(x.lr, x.state[1]) * factor).max(smallest).min(largest);
        let d = turned.lt(0.0).select(0.0, d);
        Updated { p: x.p - d.sign() * size, state: vec![d, size] }
    }
}
