//! What all schedules have in common.

use std::sync::{Mutex, MutexGuard, PoisonError};

use netcl::optim::schedule::Schedule;
use netcl::optim::{ParamGroup, State};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::optimizer::Optimizer;
use super::state::{from_dict, to_dict};
use crate::error::IntoPyResult;

/// A learning rate that changes from epoch to epoch (or from step to step).
#[pyclass(module = "netcl.optim", frozen, subclass)]
pub(crate) struct LRScheduler {
    /// Nothing once it is a part of another schedule.
    inner: Mutex<Option<Box<dyn Schedule>>>,
    optimizer: Option<Py<Optimizer>>,
}

impl LRScheduler {
    /// A schedule of the optimizer (or of the bare learning rate) that the caller has named.
    pub(super) fn of(
        optimizer: &Bound<'_, PyAny>,
        make: impl FnOnce(Vec<ParamGroup>) -> netcl::Result<Box<dyn Schedule>>,
    ) -> PyResult<LRScheduler> {
        let optimizer = Target::of(optimizer)?;
        Ok(LRScheduler { inner: Mutex::new(Some(make(optimizer.groups).py()?)), optimizer: optimizer.optimizer })
    }

    /// A schedule made of others.
    pub(super) fn from_parts(
        parts: &Bound<'_, PyAny>,
        make: impl FnOnce(Vec<Box<dyn Schedule>>) -> netcl::Result<Box<dyn Schedule>>,
    ) -> PyResult<LRScheduler> {
        let parts: Vec<Bound<'_, LRScheduler>> =
            parts.try_iter()?.map(|part| Ok(part?.cast_into::<LRScheduler>()?)).collect::<PyResult<_>>()?;
        let optimizer = parts.first().and_then(|part| part.get().optimizer.as_ref().map(|o| o.clone_ref(part.py())));
        let taken = parts.iter().map(|part| part.get().take()).collect::<PyResult<Vec<_>>>()?;
        Ok(LRScheduler { inner: Mutex::new(Some(make(taken).py()?)), optimizer })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn Schedule>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> PyResult<Box<dyn Schedule>> {
        self.lock().take().ok_or_else(part_of_another)
    }

    fn with<R>(&self, f: impl FnOnce(&mut dyn Schedule) -> R) -> PyResult<R> {
        match self.lock().as_mut() {
            Some(schedule) => Ok(f(&mut **schedule)),
            None => Err(part_of_another()),
        }
    }
}

fn part_of_another() -> PyErr {
    PyRuntimeError::new_err("this schedule is a part of another one now; step and ask that one")
}

/// What a schedule drives: an optimizer's groups, or a learning rate that belongs to none.
pub(super) struct Target {
    pub(super) groups: Vec<ParamGroup>,
    pub(super) optimizer: Option<Py<Optimizer>>,
}

impl Target {
    pub(super) fn of(given: &Bound<'_, PyAny>) -> PyResult<Target> {
        match given.cast::<Optimizer>() {
            Ok(optimizer) => Ok(Target {
                groups: optimizer.get().lock().groups().to_vec(),
                optimizer: Some(optimizer.clone().unbind()),
            }),
            Err(_) => Ok(Target { groups: vec![ParamGroup::free(given.extract()?)], optimizer: None }),
        }
    }
}

#[pymethods]
impl LRScheduler {
    /// Ends an epoch: sets the learning rates of the next one. Returns the first group's.
    fn step(&self) -> PyResult<f64> {
        self.with(|schedule| {
            schedule.step()?;
            Ok::<f64, netcl::Error>(schedule.last_lr().first().copied().unwrap_or_default())
        })?
        .py()
    }

    /// The learning rate of each group.
    fn get_last_lr(&self) -> PyResult<Vec<f64>> {
        self.with(|schedule| schedule.last_lr())
    }

    /// How many epochs are over.
    #[getter]
    fn last_epoch(&self) -> PyResult<u64> {
        self.with(|schedule| schedule.epoch())
    }

    /// The optimizer; ``None`` where a bare learning rate was given.
    #[getter]
    fn optimizer(&self, py: Python<'_>) -> Option<Py<Optimizer>> {
        self.optimizer.as_ref().map(|optimizer| optimizer.clone_ref(py))
    }

    /// Everything a schedule with the same settings needs to go on exactly.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state: State = self.with(|schedule| schedule.state())?;
        to_dict(py, state)
    }

    /// Goes on from a ``state_dict``; the learning rate itself is part of the optimizer's.
    fn load_state_dict(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let state = from_dict(state)?;
        self.with(|schedule| schedule.load_state(&state))?.py()
    }
}
