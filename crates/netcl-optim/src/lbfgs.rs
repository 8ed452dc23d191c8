//! L-BFGS.

mod search;

use std::sync::{Arc, Mutex, PoisonError};

use netcl_autograd::ops::elementwise::cast;
use netcl_autograd::ops::layout::{cat, reshape, slice};
use netcl_autograd::{DType, Error, Result, Slice, Tensor, enable_grad, no_grad};
use netcl_core::Error as CoreError;
use netcl_core::kernels::elementwise::Number;

use crate::base::Base;
use crate::group::ParamGroup;
use crate::optimizer::{Optimizer, StepOptions};
use crate::rule::{Rule, Terms, Updated};
use crate::settings::{at_least_one, not_negative};
use crate::state::State;
use search::{Point, strong_wolfe};

const OP: &str = "LBFGS";

/// L-BFGS, as PyTorch defines it: for whole data sets and smooth losses, not for batches.
///
/// A step evaluates the loss several times by a function that it is given, see [`LBFGS::step_closure`]; [`Optimizer::step`] is an error.
/// There is one group. Vectors as long as all parameters together are kept on their device, two for each step of the history.
///
/// ```
/// use netcl_autograd::{Tensor, manager};
/// use netcl_optim::{LBFGS, LbfgsOptions, LineSearch};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[4.0f64, -3.0], [2])?.with_grad();
/// let options = LbfgsOptions { line_search: LineSearch::StrongWolfe, ..Default::default() };
/// let mut opt = LBFGS::new_with([x.clone()], options)?;
/// opt.step_closure(|| {
///     let loss = (&x * &x)?.sum(None, false)?;
///     loss.backward()?;
///     Ok(loss.item()?)
/// })?;
/// assert!(x.to_f64_vec()?.iter().all(|x| x.abs() < 1e-6));
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Debug)]
pub struct LBFGS {
    base: Base,
    options: LbfgsOptions,
    memory: Arc<Mutex<Memory>>,
}

/// The settings of [`LBFGS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LbfgsOptions {
    /// The learning rate: the step that is tried first.
    pub lr: f64,
    /// The most iterations of a step.
    pub max_iter: u64,
    /// The most evaluations of a step; `None` is a quarter more than the iterations.
    pub max_eval: Option<u64>,
    /// A step ends when no element of the gradient is larger.
    pub tolerance_grad: f64,
    /// A step ends when loss or parameters change by less.
    pub tolerance_change: f64,
    /// How many steps are remembered.
    pub history_size: usize,
    /// How the length of a step is found.
    pub line_search: LineSearch,
    /// Whether to climb instead of descend.
    pub maximize: bool,
}

/// How [`LBFGS`] finds the length of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineSearch {
    /// The learning rate is the length.
    #[default]
    Fixed,
    /// By the strong Wolfe conditions.
    StrongWolfe,
}

impl Default for LbfgsOptions {
    fn default() -> Self {
        LbfgsOptions {
            lr: 1.0,
            max_iter: 20,
            max_eval: None,
            tolerance_grad: 1e-7,
            tolerance_change: 1e-9,
            history_size: 100,
            line_search: LineSearch::Fixed,
            maximize: false,
        }
    }
}

/// What is kept from step to step. Tensors are never written to, so that a clone is cheap.
#[derive(Clone, Debug, Default)]
struct Memory {
    func_evals: u64,
    n_iter: u64,
    t: f64,
    h_diag: f64,
    /// The last direction and the gradient before it.
    last: Option<(Tensor, Tensor)>,
    /// Changes of the gradient and of the parameters, and one over their product.
    history: Vec<(Tensor, Tensor, f64)>,
}

/// A group without formula: parameters and a learning rate.
#[derive(Debug)]
struct LbfgsRule;

impl Rule for LbfgsRule {
    fn op(&self) -> &'static str {
        OP
    }

    fn label(&self) -> &'static str {
        "lbfgs"
    }

    fn settings(&self, _group: &ParamGroup) -> Vec<Number> {
        Vec::new()
    }

    fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        Updated { p: x.p, state: Vec::new() }
    }
}

impl LBFGS {
    /// L-BFGS with a learning rate and the usual settings.
    pub fn new(params: impl IntoIterator<Item = Tensor>, lr: f64) -> Result<LBFGS> {
        LBFGS::new_with(params, LbfgsOptions { lr, ..Default::default() })
    }

    /// L-BFGS with all its settings.
    ///
    /// # Errors
    /// For settings out of range, for no parameters, and for parameters that are given twice or are not leaves.
    pub fn new_with(params: impl IntoIterator<Item = Tensor>, options: LbfgsOptions) -> Result<LBFGS> {
        not_negative(OP, "tolerance_grad", options.tolerance_grad)?;
        not_negative(OP, "tolerance_change", options.tolerance_change)?;
        at_least_one(OP, "history_size", options.history_size as u64)?;
        let base = Base::new(LbfgsRule, params.into_iter().collect(), options.lr, 0.0)?;
        Ok(LBFGS { base, options, memory: Arc::default() })
    }

    /// The settings, with the learning rate of the group.
    pub fn options(&self) -> LbfgsOptions {
        LbfgsOptions { lr: self.learning_rate(), ..self.options }
    }

    /// A step: up to `max_iter` iterations with a function that computes the gradients and gives the loss. The gradients are dropped
    /// before each call. Gives the loss before the step.
    ///
    /// # Errors
    /// What the function says.
    pub fn step_closure(&mut self, mut closure: impl FnMut() -> Result<f64>) -> Result<f64> {
        let stepper = self.stepper();
        stepper.step(|| {
            self.zero_grad();
            closure()
        })
    }

    /// What takes steps without holding on to the optimizer, which the function may use then.
    pub fn stepper(&self) -> LbfgsStepper {
        let group = self.base.groups().first().cloned();
        LbfgsStepper { group, options: self.options, memory: self.memory.clone() }
    }
}

impl Optimizer for LBFGS {
    fn base(&self) -> &Base {
        &self.base
    }

    fn base_mut(&mut self) -> &mut Base {
        &mut self.base
    }

    fn step(&mut self) -> Result<()> {
        Err(Error::argument(
            OP,
            "a step needs a function that computes the gradients and gives the loss; pass a closure",
        ))
    }

    fn step_with(&mut self, _options: &StepOptions) -> Result<Option<Tensor>> {
        self.step().map(|()| None)
    }

    fn add_group(&mut self, _params: Vec<Tensor>, _learning_rate: f64, _weight_decay: f64) -> Result<()> {
        Err(Error::argument(OP, "there is one group only; give all parameters at once"))
    }

    fn state(&self) -> State {
        let mut state = self.base.state();
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let Memory { func_evals, n_iter, t, h_diag, last, history } = &*memory;
        let numbers = [("func_evals", *func_evals as f64), ("n_iter", *n_iter as f64), ("t", *t), ("H_diag", *h_diag)];
        state.numbers.extend(numbers.map(|(name, value)| (name.to_owned(), value)));
        if let Some((d, gradient)) = last {
            state.tensors.insert("d".to_owned(), d.clone());
            state.tensors.insert("prev_flat_grad".to_owned(), gradient.clone());
        }
        for (i, (y, s, ro)) in history.iter().enumerate() {
            state.tensors.insert(format!("old_dirs.{i}"), y.clone());
            state.tensors.insert(format!("old_stps.{i}"), s.clone());
            state.numbers.insert(format!("ro.{i}"), *ro);
        }
        state
    }

    fn load_state(&mut self, state: &State) -> Result<()> {
        let (mut rest, mut memory) = (state.clone(), Memory::default());
        let stepper = self.stepper();
        let (size, dtype, queue) = stepper.layout()?;
        let missing = |name: &str| Error::argument(OP, format!("the state has no {name:?}"));
        let mut number = |name: &str| rest.numbers.remove(name).ok_or_else(|| missing(name));
        memory.func_evals = number("func_evals")? as u64;
        memory.n_iter = number("n_iter")? as u64;
        memory.t = number("t")?;
        memory.h_diag = number("H_diag")?;
        let mut tensor = |name: &str| -> Result<Tensor> {
            let tensor = rest.tensors.remove(name).ok_or_else(|| missing(name))?;
            if tensor.size() != size {
                let what = format!("the state has {name:?} of {} elements, the parameters have {size}", tensor.size());
                return Err(Error::argument(OP, what));
            }
            cast(&Tensor::from(tensor.raw().to(&queue)?), dtype)
        };
        if memory.n_iter > 0 {
            memory.last = Some((tensor("d")?, tensor("prev_flat_grad")?));
        }
        for i in 0..self.options.history_size {
            let Some(ro) = rest.numbers.remove(&format!("ro.{i}")) else { break };
            memory.history.push((tensor(&format!("old_dirs.{i}"))?, tensor(&format!("old_stps.{i}"))?, ro));
        }
        // What is left must be the group's own.
        self.base.load_state(&rest)?;
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory;
        Ok(())
    }
}

/// Takes the steps of an [`LBFGS`].
#[derive(Clone, Debug)]
pub struct LbfgsStepper {
    group: Option<ParamGroup>,
    options: LbfgsOptions,
    memory: Arc<Mutex<Memory>>,
}

impl LbfgsStepper {
    /// A step as [`LBFGS::step_closure`]; dropping the gradients is left to the function.
    ///
    /// # Errors
    /// What the function says.
    pub fn step(&self, mut closure: impl FnMut() -> Result<f64>) -> Result<f64> {
        netcl_autograd::jit::refuse_tracing("step")?;
        let _pause = no_grad();
        let LbfgsOptions { max_iter, tolerance_grad, tolerance_change, history_size, .. } = self.options;
        let max_eval = self.options.max_eval.unwrap_or(max_iter.saturating_mul(5) / 4);
        let lr = self.group.as_ref().map_or(0.0, ParamGroup::learning_rate);
        let sign = if self.options.maximize { -1.0 } else { 1.0 };
        let mut evaluate = || -> Result<Point> {
            let loss = {
                let _recording = enable_grad();
                closure()?
            };
            Ok(Point { loss: sign * loss, gradient: self.gradient(sign)? })
        };
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut now = evaluate()?;
        let first = sign * now.loss;
        memory.func_evals += 1;
        let (mut evaluations, mut iterations) = (1, 0);
        let mut is_done = largest(&now.gradient)? <= tolerance_grad;
        while !is_done && iterations < max_iter {
            iterations += 1;
            memory.n_iter += 1;
            let d = memory.direction(&now.gradient, history_size)?;
            memory.last = Some((d.clone(), now.gradient.clone()));
            let before = now.loss;
            memory.t = match memory.n_iter {
                1 => (1.0 / now.gradient.abs()?.sum(None, false)?.item()?).min(1.0) * lr,
                _ => lr,
            };
            let slope = dot(&now.gradient, &d)?;
            if slope > -tolerance_change {
                break;
            }
            let mut used = 0;
            if self.options.line_search == LineSearch::StrongWolfe {
                let start = self.copies()?;
                let mut at = |t: f64| {
                    self.advance(t, &d)?;
                    let point = evaluate()?;
                    self.restore(&start)?;
                    Ok(point)
                };
                let most = max_eval.saturating_sub(evaluations);
                let found = strong_wolfe(&mut at, memory.t, &d, now, slope, most)?;
                (memory.t, now, used) = (found.t, found.point, found.evaluations);
                self.advance(memory.t, &d)?;
            } else {
                self.advance(memory.t, &d)?;
                // Nobody asks for the loss after the last iteration.
                if iterations != max_iter {
                    now = evaluate()?;
                    used = 1;
                }
            }
            evaluations += used;
            memory.func_evals += used;
            is_done = evaluations >= max_eval
                || largest(&now.gradient)? <= tolerance_grad
                || largest(&d)? * memory.t.abs() <= tolerance_change
                || (now.loss - before).abs() < tolerance_change;
        }
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory;
        Ok(first)
    }

    /// The parameters where they are now.
    fn params(&self) -> Vec<Tensor> {
        self.group.iter().flat_map(ParamGroup::params).map(Tensor::latest).collect()
    }

    /// The number of elements, the type and the device of all parameters together.
    fn layout(&self) -> Result<(usize, DType, netcl_autograd::Queue)> {
        let params = self.params();
        let Some(first) = params.first() else {
            return Err(CoreError::State { op: OP, what: "there are no parameters".to_owned() }.into());
        };
        for other in &params {
            first.queue().check_same_device(OP, other.queue())?;
        }
        let is_double = params.iter().any(|p| p.dtype() == DType::F64);
        let dtype = if is_double { DType::F64 } else { DType::F32 };
        Ok((params.iter().map(|p| p.size()).sum(), dtype, first.queue().clone()))
    }

    /// All gradients as one vector; zeros for parameters without.
    fn gradient(&self, sign: f64) -> Result<Tensor> {
        let (_, dtype, queue) = self.layout()?;
        let flat = |p: &Tensor| -> Result<Tensor> {
            match p.grad() {
                Some(grad) => cast(&reshape(&grad, [p.size()])?, dtype),
                None => Ok(Tensor::from_shape(&queue, [p.size()], dtype)?),
            }
        };
        let parts = self.params().iter().map(flat).collect::<Result<Vec<_>>>()?;
        // A copy in any case: the next evaluation overwrites gradients.
        &cat(&parts.iter().collect::<Vec<_>>(), 0)? * sign
    }

    /// Moves the parameters along a direction.
    fn advance(&self, t: f64, d: &Tensor) -> Result<()> {
        let step = (d * t)?;
        let mut at = 0;
        for p in self.params() {
            let part = Slice::new(Some(at as isize), Some((at + p.size()) as isize), 1);
            let part = reshape(&slice(&step, 0, part)?, p.shape().clone())?;
            let moved = (&cast(&p.detach(), part.dtype())? + &part)?;
            p.assign(cast(&moved, p.dtype())?.raw())?;
            at += p.size();
        }
        Ok(())
    }

    fn copies(&self) -> Result<Vec<Tensor>> {
        self.params().iter().map(|p| Ok(Tensor::from(p.raw().duplicate()?))).collect()
    }

    fn restore(&self, copies: &[Tensor]) -> Result<()> {
        self.params().iter().zip(copies).try_for_each(|(p, copy)| Ok(p.assign(copy.raw())?))
    }
}

impl Memory {
    /// The direction by the gradient and what is remembered, which is brought up to date.
    fn direction(&mut self, gradient: &Tensor, history_size: usize) -> Result<Tensor> {
        let Some((d, before)) = &self.last else {
            self.h_diag = 1.0;
            return -gradient;
        };
        let (y, s) = ((gradient - before)?, (d * self.t)?);
        let ys = dot(&y, &s)?;
        if ys > 1e-10 {
            if self.history.len() >= history_size {
                self.history.remove(0);
            }
            self.h_diag = ys / dot(&y, &y)?;
            self.history.push((y, s, 1.0 / ys));
        }
        let mut d = (-gradient)?;
        let mut taken = Vec::with_capacity(self.history.len());
        for (y, s, ro) in self.history.iter().rev() {
            let a = dot(s, &d)? * ro;
            d = (&d - &(y * a)?)?;
            taken.push(a);
        }
        d = (&d * self.h_diag)?;
        for ((y, s, ro), a) in self.history.iter().zip(taken.into_iter().rev()) {
            let b = dot(y, &d)? * ro;
            d = (&d + &(s * (a - b))?)?;
        }
        Ok(d)
    }
}

/// The product of two vectors.
fn dot(a: &Tensor, b: &Tensor) -> Result<f64> {
    Ok((a * b)?.sum(None, false)?.item()?)
}

/// The largest size of an element.
fn largest(x: &Tensor) -> Result<f64> {
    Ok(x.abs()?.max(None, false)?.item()?)
}
