//! The schedules, one class each.
#![expect(non_snake_case, reason = "T_max, T_0 and T_mult are the keywords of PyTorch and of the published package")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use netcl::optim::schedule::{
    self, Anneal, Better, Cycle, CycleScale, CyclicOptions, Factor, OneCycleOptions, PerGroup, PlateauOptions,
    Threshold,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::optimizer::Optimizer;
use super::schedule::{LRScheduler, Target};
use super::state::{from_dict, to_dict};
use crate::error::{IntoPyResult, carry, kind};
use crate::list::List;

/// One number, or one for each group.
fn per_group(value: &Bound<'_, PyAny>) -> PyResult<PerGroup> {
    match value.extract::<f64>() {
        Ok(one) => Ok(one.into()),
        Err(_) => Ok(value.extract::<List<f64>>()?.0.into()),
    }
}

/// The functions of the epoch that a caller gives: one for all groups, or a list with one for each.
fn factors(op: &str, lr_lambda: &Bound<'_, PyAny>) -> PyResult<Vec<Factor>> {
    let wrong = |got: &Bound<'_, PyAny>| {
        let what = format!("{op}: lr_lambda is a function of the epoch or a list of them, not {}", kind(got));
        PyTypeError::new_err(what)
    };
    let factor = |function: Bound<'_, PyAny>| -> PyResult<Factor> {
        if !function.is_callable() {
            return Err(wrong(&function));
        }
        let function = function.unbind();
        Ok(Box::new(move |epoch| {
            let call = |py: Python<'_>| function.call1(py, (epoch,))?.extract::<f64>(py);
            Python::attach(call).map_err(carry)
        }))
    };
    if lr_lambda.is_callable() {
        return Ok(vec![factor(lr_lambda.clone())?]);
    }
    lr_lambda.try_iter().map_err(|_| wrong(lr_lambda))?.map(|function| factor(function?)).collect()
}

/// One class for each schedule: its arguments after the optimizer, the signature with their defaults, and how it is made of groups.
macro_rules! schedules {
    ($(
        $(#[$doc:meta])*
        $name:ident, $signature:tt, {$($arg:ident: $kind:ty),*}, |$groups:ident| $make:expr;
    )*) => {$(
        $(#[$doc])*
        #[pyclass(module = "netcl.optim", frozen, extends = LRScheduler)]
        pub(crate) struct $name;

        #[pymethods]
        impl $name {
            #[new]
            #[pyo3(signature = $signature)]
            fn new(optimizer: &Bound<'_, PyAny>, $($arg: $kind),*) -> PyResult<PyClassInitializer<$name>> {
                let make = |$groups| Ok(Box::new($make?) as _);
                Ok(PyClassInitializer::from(LRScheduler::of(optimizer, make)?).add_subclass($name))
            }
        }
    )*};
}

schedules! {
    /// Multiplies the learning rate by ``gamma`` after every ``step_size`` epochs.
    StepLR, (optimizer, step_size, gamma=0.1), {step_size: u64, gamma: f64},
    |groups| schedule::StepLR::of_groups(groups, step_size, gamma);

    /// Multiplies the learning rate by ``gamma`` at each of some epochs.
    MultiStepLR, (optimizer, milestones, gamma=0.1), {milestones: List<u64>, gamma: f64},
    |groups| schedule::MultiStepLR::of_groups(groups, milestones.0, gamma);

    /// Multiplies the learning rate by ``gamma`` after every epoch.
    ExponentialLR, (optimizer, gamma), {gamma: f64},
    |groups| schedule::ExponentialLR::of_groups(groups, gamma);

    /// The learning rate times ``factor`` for the first ``total_iters`` epochs.
    ConstantLR, (optimizer, factor=1.0/3.0, total_iters=5), {factor: f64, total_iters: u64},
    |groups| schedule::ConstantLR::of_groups(groups, factor, total_iters);

    /// The learning rate times a factor that goes in a straight line from ``start_factor`` to ``end_factor`` in ``total_iters`` epochs.
    LinearLR, (optimizer, start_factor=1.0/3.0, end_factor=1.0, total_iters=5),
    {start_factor: f64, end_factor: f64, total_iters: u64},
    |groups| schedule::LinearLR::of_groups(groups, start_factor, end_factor, total_iters);

    /// The learning rate times ``(1 - epoch / total_iters) ** power``.
    PolynomialLR, (optimizer, total_iters=5, power=1.0), {total_iters: u64, power: f64},
    |groups| schedule::PolynomialLR::of_groups(groups, total_iters, power);

    /// Half a cosine from the learning rate down to ``eta_min`` in ``T_max`` epochs, and ``eta_min`` from then on.
    CosineAnnealingLR, (optimizer, T_max, eta_min=0.0), {T_max: u64, eta_min: f64},
    |groups| schedule::CosineAnnealingLR::of_groups(groups, T_max, eta_min);

    /// Half a cosine down to ``eta_min`` in ``T_0`` epochs, then again, each time ``T_mult`` times as long.
    CosineAnnealingWarmRestarts, (optimizer, T_0, T_mult=1, eta_min=0.0), {T_0: u64, T_mult: u64, eta_min: f64},
    |groups| schedule::CosineAnnealingWarmRestarts::of_groups(groups, T_0, T_mult, eta_min);

    /// The learning rate times a function of the epoch: one for all groups, or a list with one for each.
    LambdaLR, (optimizer, lr_lambda), {lr_lambda: &Bound<'_, PyAny>},
    |groups| schedule::LambdaLR::of_groups(groups, factors("LambdaLR", lr_lambda).map_err(carry)?);

    /// Multiplies the learning rate, as it stands, by a function of the epoch: one for all groups, or a list with one for each.
    MultiplicativeLR, (optimizer, lr_lambda), {lr_lambda: &Bound<'_, PyAny>},
    |groups| schedule::MultiplicativeLR::of_groups(groups, factors("MultiplicativeLR", lr_lambda).map_err(carry)?);
}

/// A straight line up to the learning rate, then half a cosine down to ``min_lr``; the first epoch is not at zero.
#[pyclass(module = "netcl.optim", frozen, extends = LRScheduler)]
pub(crate) struct WarmupCosine {
    schedule: schedule::WarmupCosine,
    base_lr: f64,
}

#[pymethods]
impl WarmupCosine {
    /// ``optimizer`` may be a learning rate, for a schedule that is only asked: ``WarmupCosine(0.1, 90).lr(epoch)``. Steps
    /// are epochs by another name: ``total_steps`` and ``warmup_steps``.
    #[new]
    #[pyo3(signature = (optimizer, max_epochs=None, warmup_epochs=None, min_lr=0.0, *, total_steps=None, warmup_steps=None))]
    fn new(
        optimizer: &Bound<'_, PyAny>,
        max_epochs: Option<u64>,
        warmup_epochs: Option<u64>,
        min_lr: f64,
        total_steps: Option<u64>,
        warmup_steps: Option<u64>,
    ) -> PyResult<PyClassInitializer<WarmupCosine>> {
        let twice = |name: &str| PyTypeError::new_err(format!("give {name} as epochs or as steps, not both"));
        let total = match (max_epochs, total_steps) {
            (Some(n), None) | (None, Some(n)) => n,
            (Some(_), Some(_)) => return Err(twice("the length")),
            (None, None) => return Err(PyTypeError::new_err("max_epochs (or total_steps) is missing")),
        };
        let warmup = match (warmup_epochs, warmup_steps) {
            (Some(n), None) | (None, Some(n)) => n,
            (Some(_), Some(_)) => return Err(twice("the warm-up")),
            (None, None) => 5.min(total.saturating_sub(1)),
        };
        let target = Target::of(optimizer)?;
        let base_lr = target.groups.first().map_or(0.0, |group| group.initial_learning_rate());
        let schedule = schedule::WarmupCosine::of_groups(target.groups, total, warmup, min_lr).py()?;
        let copy = schedule.clone();
        let base = LRScheduler::of(optimizer, |_| Ok(Box::new(copy) as _))?;
        Ok(PyClassInitializer::from(base).add_subclass(WarmupCosine { schedule, base_lr }))
    }

    /// The first group's learning rate at an epoch, counted from 0; changes nothing.
    fn lr(&self, epoch: u64) -> f64 {
        self.schedule.lr(self.base_lr, epoch)
    }
}

/// Cycles of straight lines between two learning rates, as PyTorch defines them; it counts steps, not epochs.
#[pyclass(module = "netcl.optim", frozen, extends = LRScheduler)]
pub(crate) struct CyclicLR;

#[pymethods]
impl CyclicLR {
    /// ``mode`` is ``"triangular"``, ``"triangular2"`` or ``"exp_range"``; a ``scale_fn`` of the cycle or of the step (``scale_mode``
    /// ``"cycle"`` or ``"iterations"``) takes its place.
    #[new]
    #[pyo3(signature = (
        optimizer, base_lr, max_lr, step_size_up=2000, step_size_down=None, mode="triangular", gamma=1.0, scale_fn=None,
        scale_mode="cycle", cycle_momentum=true, base_momentum=0.8, max_momentum=0.9
    ))]
    #[expect(clippy::too_many_arguments, reason = "the settings of the schedule")]
    fn new(
        optimizer: &Bound<'_, PyAny>,
        base_lr: &Bound<'_, PyAny>,
        max_lr: &Bound<'_, PyAny>,
        step_size_up: u64,
        step_size_down: Option<u64>,
        mode: &str,
        gamma: f64,
        scale_fn: Option<Py<PyAny>>,
        scale_mode: &str,
        cycle_momentum: bool,
        base_momentum: f64,
        max_momentum: f64,
    ) -> PyResult<PyClassInitializer<CyclicLR>> {
        let scale = scale_fn.map(|function| {
            CycleScale::new(move |x| Python::attach(|py| function.call1(py, (x,))?.extract::<f64>(py)).map_err(carry))
        });
        let cycle = match (scale, scale_mode, mode) {
            (Some(scale), "cycle", _) => Cycle::ByCycle(scale),
            (Some(scale), "iterations", _) => Cycle::ByStep(scale),
            (Some(_), other, _) => {
                let what = format!("CyclicLR: scale_mode is {other:?}; use 'cycle' or 'iterations'");
                return Err(PyValueError::new_err(what));
            }
            (None, _, "triangular") => Cycle::Same,
            (None, _, "triangular2") => Cycle::Halving,
            (None, _, "exp_range") => Cycle::Power(gamma),
            (None, _, other) => {
                let what =
                    format!("CyclicLR: mode is {other:?}; use 'triangular', 'triangular2', 'exp_range' or a scale_fn");
                return Err(PyValueError::new_err(what));
            }
        };
        let options = CyclicOptions {
            base_lr: per_group(base_lr)?,
            max_lr: per_group(max_lr)?,
            step_size_up,
            step_size_down: step_size_down.unwrap_or(step_size_up),
            cycle,
            cycle_momentum,
            base_momentum,
            max_momentum,
        };
        let make = |groups| Ok(Box::new(schedule::CyclicLR::of_groups(groups, options)?) as _);
        Ok(PyClassInitializer::from(LRScheduler::of(optimizer, make)?).add_subclass(CyclicLR))
    }
}

/// The 1cycle policy, as PyTorch defines it; it counts steps, not epochs.
#[pyclass(module = "netcl.optim", frozen, extends = LRScheduler)]
pub(crate) struct OneCycleLR;

#[pymethods]
impl OneCycleLR {
    /// The length is ``total_steps``, or ``epochs * steps_per_epoch``.
    #[new]
    #[pyo3(signature = (
        optimizer, max_lr, total_steps=None, epochs=None, steps_per_epoch=None, pct_start=0.3, anneal_strategy="cos",
        cycle_momentum=true, base_momentum=0.85, max_momentum=0.95, div_factor=25.0, final_div_factor=1e4, three_phase=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "the settings of the schedule")]
    fn new(
        optimizer: &Bound<'_, PyAny>,
        max_lr: &Bound<'_, PyAny>,
        total_steps: Option<u64>,
        epochs: Option<u64>,
        steps_per_epoch: Option<u64>,
        pct_start: f64,
        anneal_strategy: &str,
        cycle_momentum: bool,
        base_momentum: f64,
        max_momentum: f64,
        div_factor: f64,
        final_div_factor: f64,
        three_phase: bool,
    ) -> PyResult<PyClassInitializer<OneCycleLR>> {
        let product = epochs.zip(steps_per_epoch).map(|(epochs, steps)| epochs.saturating_mul(steps));
        let Some(total_steps) = total_steps.or(product) else {
            return Err(PyTypeError::new_err("give total_steps, or epochs and steps_per_epoch"));
        };
        let anneal = match anneal_strategy {
            "cos" => Anneal::Cos,
            "linear" => Anneal::Linear,
            other => return Err(PyValueError::new_err(format!("anneal_strategy is {other:?}; use 'cos' or 'linear'"))),
        };
        let max_lr = per_group(max_lr)?;
        let options = OneCycleOptions {
            max_lr,
            total_steps,
            pct_start,
            anneal,
            cycle_momentum,
            base_momentum,
            max_momentum,
            div_factor,
            final_div_factor,
            three_phase,
        };
        let make = |groups| Ok(Box::new(schedule::OneCycleLR::of_groups(groups, options)?) as _);
        Ok(PyClassInitializer::from(LRScheduler::of(optimizer, make)?).add_subclass(OneCycleLR))
    }
}

/// Several schedules of one optimizer that step together, each changing the rate that the one before left.
#[pyclass(module = "netcl.optim", frozen, extends = LRScheduler)]
pub(crate) struct ChainedScheduler;

#[pymethods]
impl ChainedScheduler {
    #[new]
    fn new(schedulers: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<ChainedScheduler>> {
        let make = |parts| Ok(Box::new(schedule::ChainedScheduler::new(parts)?) as _);
        Ok(PyClassInitializer::from(LRScheduler::from_parts(schedulers, make)?).add_subclass(ChainedScheduler))
    }
}

/// Schedules of one optimizer that take turns: each begins when a milestone is reached.
#[pyclass(module = "netcl.optim", frozen, extends = LRScheduler)]
pub(crate) struct SequentialLR;

#[pymethods]
impl SequentialLR {
    #[new]
    fn new(
        optimizer: &Bound<'_, PyAny>,
        schedulers: &Bound<'_, PyAny>,
        milestones: List<u64>,
    ) -> PyResult<PyClassInitializer<SequentialLR>> {
        // The parts know their groups; this is what tells a forgotten argument from a right call.
        Target::of(optimizer)?;
        let make = |parts| Ok(Box::new(schedule::SequentialLR::new(parts, milestones.0)?) as _);
        Ok(PyClassInitializer::from(LRScheduler::from_parts(schedulers, make)?).add_subclass(SequentialLR))
    }
}

/// Multiplies the learning rate by ``factor`` when a metric has not improved for more than ``patience`` epochs.
#[pyclass(module = "netcl.optim", frozen, name = "ReduceLROnPlateau")]
pub(crate) struct ReduceLROnPlateau {
    inner: Mutex<schedule::ReduceLROnPlateau>,
    optimizer: Option<Py<Optimizer>>,
}

impl ReduceLROnPlateau {
    fn lock(&self) -> MutexGuard<'_, schedule::ReduceLROnPlateau> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl ReduceLROnPlateau {
    /// ``mode`` is ``"min"`` or ``"max"``, ``threshold_mode`` ``"rel"`` or ``"abs"``.
    #[new]
    #[pyo3(signature = (
        optimizer, mode="min", factor=0.1, patience=10, threshold=1e-4, threshold_mode="rel", cooldown=0, min_lr=None, eps=1e-8
    ))]
    #[expect(clippy::too_many_arguments, reason = "the settings of the schedule")]
    fn new(
        optimizer: &Bound<'_, PyAny>,
        mode: &str,
        factor: f64,
        patience: u64,
        threshold: f64,
        threshold_mode: &str,
        cooldown: u64,
        min_lr: Option<&Bound<'_, PyAny>>,
        eps: f64,
    ) -> PyResult<ReduceLROnPlateau> {
        let unknown = |name: &str, got: &str, one: &str, other: &str| {
            PyValueError::new_err(format!("{name} is {got:?}; use {one:?} or {other:?}"))
        };
        let mode = match mode {
            "min" => Better::Smaller,
            "max" => Better::Larger,
            other => return Err(unknown("mode", other, "min", "max")),
        };
        let threshold_mode = match threshold_mode {
            "rel" => Threshold::Relative,
            "abs" => Threshold::Absolute,
            other => return Err(unknown("threshold_mode", other, "rel", "abs")),
        };
        let min_lr = min_lr.map_or(Ok(PerGroup::from(0.0)), per_group)?;
        let options = PlateauOptions { mode, factor, patience, threshold, threshold_mode, cooldown, min_lr, eps };
        let Target { groups, optimizer } = Target::of(optimizer)?;
        let inner = Mutex::new(schedule::ReduceLROnPlateau::of_groups(groups, options).py()?);
        Ok(ReduceLROnPlateau { inner, optimizer })
    }

    /// Ends an epoch with its metric, which may be a tensor of one element. Returns the first group's learning rate.
    fn step(&self, metric: &Bound<'_, PyAny>) -> PyResult<f64> {
        let metric: f64 = match metric.extract() {
            Ok(number) => number,
            Err(_) => metric.call_method0("item")?.extract()?,
        };
        let mut inner = self.lock();
        inner.step(metric);
        Ok(inner.last_lr().first().copied().unwrap_or_default())
    }

    /// The learning rate of each group.
    fn get_last_lr(&self) -> Vec<f64> {
        self.lock().last_lr()
    }

    /// The best metric so far.
    #[getter]
    fn best(&self) -> f64 {
        self.lock().best()
    }

    /// How many epochs are over.
    #[getter]
    fn last_epoch(&self) -> u64 {
        self.lock().epoch()
    }

    /// The optimizer; ``None`` where a bare learning rate was given.
    #[getter]
    fn optimizer(&self, py: Python<'_>) -> Option<Py<Optimizer>> {
        self.optimizer.as_ref().map(|optimizer| optimizer.clone_ref(py))
    }

    /// Everything a schedule with the same settings needs to go on exactly.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.lock().state();
        to_dict(py, state)
    }

    /// Goes on from a ``state_dict``; the learning rate itself is part of the optimizer's.
    fn load_state_dict(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let state = from_dict(state)?;
        self.lock().load_state(&state).py()
    }
}
