//! The schedules, one class each.

use std::sync::{Mutex, MutexGuard, PoisonError};

use netcl::optim::schedule::{self, Anneal, Better, Factor, OneCycleOptions, PerGroup, PlateauOptions, Threshold};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::optimizer::Optimizer;
use super::schedule::{LRScheduler, Target};
use super::state::{from_dict, to_dict};
use crate::error::{IntoPyResult, carry};
use crate::list::List;

/// One number, or one for each group.
fn per_group(value: &Bound<'_, PyAny>) -> PyResult<PerGroup> {
    match value.extract::<f64>() {
        Ok(one) => Ok(one.into()),
        Err(_) => Ok(value.extract::<List<f64>>()?.0.into()),
    }
}

/// Multiplies the learning rate by ``gamma`` after every ``step_size`` epochs.
#[pyclass(module = "netcl.optim", frozen, extends = LRScheduler)]
pub(crate) struct StepLR;

#[pymethods]
impl StepLR {
    #[new]
    #[pyo3(signature = (optimizer, step_size, gamma=0.1))]
    fn new(optimizer: &Bound<'_, PyAny>, step_size: u64, gamma: f64) -> PyResult<PyClassInitializer<StepLR>> {
        let make = |groups| Ok(Box::new(schedule::StepLR::of_groups(groups, step_size, gamma)?) as _);
        Ok(PyClassInitializer::from(LRScheduler::of(optimizer, make)?).add_subclass(StepLR))
    }
}

/// Multiplies the learning rate by ``gamma`` at each of some epochs.
#[pyclass(module = "netcl.optim", frozen, extends = LRScheduler)]
pub(crate) struct MultiStepLR;

#[pymethods]
impl MultiStepLR {
    #[new]
    #[pyo3(signature = (optimizer, milestones, gamma=0.1))]
    fn new(
        optimizer: &Bound<'_, PyAny>,
        milestones: List<u64>,
        gamma: f64,
    ) -> PyResult<PyClassInitializer<MultiStepLR>> {
        let make = |groups| Ok(Box::new(schedule::MultiStepLR::of_groups(groups, milestones.0, gamma)?) as _);
        Ok(PyClassInitializer::from(LRScheduler::of(optimizer, make)?).add_subclass(MultiStepLR))
    }
}

/// Multiplies the learning rate by ``gamma`` after every epoch.
#[pyclass(module = "netcl.optim", frozen, extends = LRScheduler)]
pub(crate) struct ExponentialLR;

#[pymethods]
impl ExponentialLR {
    #[new]
    fn new(optimizer: &Bound<'_, PyAny>, gamma: f64) -> PyResult<PyClassInitializer<ExponentialLR>> {
        let make = |groups| Ok(Box::new(schedule::ExponentialLR::of_groups(groups, gamma)?) as _);
        Ok(PyClassInitializer::from(LRScheduler::of(optimizer, make)?).add_subclass(ExponentialLR))
    }
}

/// Half a cosine from the learning rate down to ``eta_min`` in ``T_max`` epochs, and ``eta_min`` from then on.
#[pyclass(module = "netcl.optim", frozen, extends = LRScheduler)]
pub(crate) struct CosineAnnealingLR;

#[pymethods]
impl CosineAnnealingLR {
    #[new]
    #[pyo3(signature = (optimizer, T_max, eta_min=0.0))]
    #[expect(non_snake_case, reason = "the keyword's name in PyTorch and in the published package")]
    fn new(optimizer: &Bound<'_, PyAny>, T_max: u64, eta_min: f64) -> PyResult<PyClassInitializer<CosineAnnealingLR>> {
        let make = |groups| Ok(Box::new(schedule::CosineAnnealingLR::of_groups(groups, T_max, eta_min)?) as _);
        Ok(PyClassInitializer::from(LRScheduler::of(optimizer, make)?).add_subclass(CosineAnnealingLR))
    }
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

/// The learning rate times a function of the epoch: one for all groups, or a list with one for each.
#[pyclass(module = "netcl.optim", frozen, extends = LRScheduler)]
pub(crate) struct LambdaLR;

#[pymethods]
impl LambdaLR {
    #[new]
    fn new(optimizer: &Bound<'_, PyAny>, lr_lambda: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<LambdaLR>> {
        let functions: Vec<Py<PyAny>> = if lr_lambda.is_callable() {
            vec![lr_lambda.clone().unbind()]
        } else {
            let one = |function: PyResult<Bound<'_, PyAny>>| match function? {
                function if function.is_callable() => Ok(function.unbind()),
                other => Err(PyTypeError::new_err(format!(
                    "LambdaLR: lr_lambda is a function of the epoch or a list of them, not of {}",
                    other.get_type()
                ))),
            };
            lr_lambda.try_iter()?.map(one).collect::<PyResult<_>>()?
        };
        let factor = |function: Py<PyAny>| -> Factor {
            Box::new(move |epoch| {
                let call = |py: Python<'_>| function.call1(py, (epoch,))?.extract::<f64>(py);
                Python::attach(call).map_err(carry)
            })
        };
        let factors = functions.into_iter().map(factor).collect();
        let make = |groups| Ok(Box::new(schedule::LambdaLR::of_groups(groups, factors)?) as _);
        Ok(PyClassInitializer::from(LRScheduler::of(optimizer, make)?).add_subclass(LambdaLR))
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
