//! Stochastic gradient descent.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use netcl_autograd::core::Error as CoreError;
use netcl_autograd::core::kernels::elementwise::{Elementwise, Number};
use netcl_autograd::core::kernels::expr::{Expr, Graph};
use netcl_autograd::core::tensor::Tensor as Raw;
use netcl_autograd::{Result, Tensor};

use crate::optimizer::{Optimizer, ParamGroup, State, check_not_negative};

const OP: &str = "SGD";
const BUFFER: &str = "momentum_buffer";

/// Stochastic gradient descent with momentum, as PyTorch defines it.
///
/// With the gradient `d` of a parameter `p`: `d` is negated if the loss is maximised, `weight_decay * p` is added, the
/// buffer becomes `d` at the first step and `momentum * buffer + (1 - dampening) * d` later, `d` becomes the buffer (with
/// Nesterov `d + momentum * buffer`), and `p` becomes `p - lr * d`. All of it is one launch for each parameter.
///
/// ```
/// use netcl_optim::autograd::{Tensor, core::device::manager};
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
/// # Ok::<(), netcl_optim::autograd::Error>(())
/// ```
#[derive(Debug)]
pub struct SGD {
    groups: Vec<ParamGroup>,
    /// For each parameter of each group; made by the first step that needs it.
    buffers: Vec<Vec<Option<Raw>>>,
    momentum: f64,
    dampening: f64,
    nesterov: bool,
    maximize: bool,
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
        let SgdOptions { lr, momentum, dampening, weight_decay, nesterov, maximize } = options;
        check_not_negative(OP, "momentum", momentum)?;
        if !dampening.is_finite() {
            return Err(CoreError::argument(OP, format!("the dampening is {dampening}; use a finite number")).into());
        }
        if nesterov && (momentum == 0.0 || dampening != 0.0) {
            let what = format!(
                "nesterov needs a momentum above 0 and no dampening; momentum is {momentum}, dampening {dampening}"
            );
            return Err(CoreError::argument(OP, what).into());
        }
        let mut sgd = SGD { groups: Vec::new(), buffers: Vec::new(), momentum, dampening, nesterov, maximize };
        sgd.add_group(params.into_iter().collect(), lr, weight_decay)?;
        Ok(sgd)
    }

    /// The settings, with the learning rate and weight decay of the first group.
    pub fn options(&self) -> SgdOptions {
        SgdOptions {
            lr: self.learning_rate(),
            momentum: self.momentum,
            dampening: self.dampening,
            weight_decay: self.groups.first().map_or(0.0, ParamGroup::weight_decay),
            nesterov: self.nesterov,
            maximize: self.maximize,
        }
    }
}

impl Optimizer for SGD {
    fn step(&mut self) -> Result<()> {
        for (group, buffers) in self.groups.iter().zip(&mut self.buffers) {
            let numbers = [
                group.learning_rate_number(),
                group.weight_decay_number(),
                Number::Value(self.momentum),
                Number::Value(1.0 - self.dampening),
                Number::Value(if self.maximize { -1.0 } else { 1.0 }),
            ];
            let decay = group.weight_decay() != 0.0;
            let mut form = Form { momentum: Momentum::Off, decay, nesterov: self.nesterov };
            for (parameter, buffer) in group.params().iter().zip(buffers) {
                let Some(grad) = parameter.grad() else { continue };
                let (p, d) = (parameter.raw(), grad.raw());
                if self.momentum == 0.0 {
                    compiled(form).run(&[p, d], &numbers, &[p])?;
                    continue;
                }
                match buffer {
                    Some(buffer) => {
                        form.momentum = Momentum::Later;
                        compiled(form).run(&[p, d, buffer], &numbers, &[p, buffer])?;
                    }
                    None => {
                        form.momentum = Momentum::First;
                        let first = Raw::uninit(p.queue(), p.shape().clone(), p.dtype())?;
                        compiled(form).run(&[p, d], &numbers, &[p, &first])?;
                        *buffer = Some(first);
                    }
                }
            }
        }
        Ok(())
    }

    fn groups(&self) -> &[ParamGroup] {
        &self.groups
    }

    fn add_group(&mut self, params: Vec<Tensor>, learning_rate: f64, weight_decay: f64) -> Result<()> {
        let group = ParamGroup::new(OP, params, learning_rate, weight_decay, &self.groups)?;
        self.buffers.push(vec![None; group.params().len()]);
        self.groups.push(group);
        Ok(())
    }

    fn state(&self) -> State {
        let mut state = State::of_groups(&self.groups);
        for (i, buffer) in self.buffers.iter().flatten().enumerate() {
            if let Some(buffer) = buffer {
                state.tensors.insert(format!("{i}.{BUFFER}"), buffer.clone().into());
            }
        }
        state
    }

    fn load_state(&mut self, state: &State) -> Result<()> {
        state.check_groups(OP, &self.groups)?;
        let mut unknown: Vec<&String> = state.tensors.keys().collect();
        let mut restored = Vec::new();
        for (i, parameter) in self.groups.iter().flat_map(ParamGroup::params).enumerate() {
            let name = format!("{i}.{BUFFER}");
            unknown.retain(|key| **key != name);
            let Some(tensor) = state.tensors.get(&name) else {
                restored.push(None);
                continue;
            };
            if tensor.shape() != parameter.shape() {
                let (got, expected) = (tensor.shape(), parameter.shape());
                let what = format!("the state's {name:?} has shape {got}, its parameter has shape {expected}");
                return Err(CoreError::argument(OP, what).into());
            }
            // A copy of its own: steps write to it.
            restored.push(Some(tensor.raw().to(parameter.queue())?.cast(parameter.dtype())?.duplicate()?));
        }
        if let Some(name) = unknown.first() {
            return Err(CoreError::argument(OP, format!("the state has an unknown tensor {name:?}")).into());
        }
        let mut restored = restored.into_iter();
        for buffer in self.buffers.iter_mut().flatten() {
            *buffer = restored.next().flatten();
        }
        state.restore_groups(&self.groups);
        Ok(())
    }
}

/// Which of the update's formulas holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Form {
    momentum: Momentum,
    decay: bool,
    nesterov: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Momentum {
    Off,
    /// The buffer is made from the first gradient.
    First,
    Later,
}

impl Form {
    /// (p, d[, buffer]) -> (p[, buffer]) with the scalars lr, weight decay, momentum, 1 - dampening, and -1 to climb.
    fn expr(self) -> Expr {
        let g = Graph::new();
        let (p, grad) = (g.input(0), g.input(1));
        let [lr, decay, momentum, intake, sign] = std::array::from_fn(|i| g.scalar(i));
        let d = grad * sign;
        let d = if self.decay { d + p * decay } else { d };
        let buffer = match self.momentum {
            Momentum::Off => return g.finish_with(&[p - d * lr], 2, 5),
            Momentum::First => d,
            Momentum::Later => g.input(2) * momentum + d * intake,
        };
        let d = if self.nesterov { d + buffer * momentum } else { buffer };
        g.finish_with(&[p - d * lr, buffer], 2, 5)
    }
}

/// The update of a form; made once per process.
fn compiled(form: Form) -> Arc<Elementwise> {
    static UPDATES: LazyLock<RwLock<HashMap<Form, Arc<Elementwise>>>> = LazyLock::new(RwLock::default);
    if let Some(update) = UPDATES.read().unwrap_or_else(PoisonError::into_inner).get(&form) {
        return update.clone();
    }
    let mut updates = UPDATES.write().unwrap_or_else(PoisonError::into_inner);
    updates.entry(form).or_insert_with(|| Elementwise::new("sgd", form.expr())).clone()
}
