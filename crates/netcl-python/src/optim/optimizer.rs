//! What all optimizers have in common, and groups of parameters as callers write them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use netcl::optim::{self, GradScale, StepOptions};
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList};

use super::state::{from_dict, to_dict};
use crate::autograd::site;
use crate::error::{IntoPyResult, kind};
use crate::tensor::Tensor;

/// Changes parameters by their gradients: what all optimizers have in common.
#[pyclass(module = "netcl.optim", frozen, subclass)]
pub(crate) struct Optimizer {
    inner: Mutex<Box<dyn optim::Optimizer>>,
}

impl Optimizer {
    /// A new optimizer from parameters or groups of them; `make` gets the first group, the others are added.
    pub(super) fn build<O: optim::Optimizer + 'static>(
        params: &Bound<'_, PyAny>,
        lr: f64,
        weight_decay: f64,
        make: impl FnOnce(Vec<netcl::Tensor>, f64, f64) -> netcl::Result<O>,
    ) -> PyResult<Optimizer> {
        let mut groups = Given::all(params, lr, weight_decay)?.into_iter();
        let first = groups.next().unwrap_or(Given { params: Vec::new(), lr, weight_decay });
        let mut inner = make(first.params, first.lr, first.weight_decay).py()?;
        for group in groups {
            inner.add_group(group.params, group.lr, group.weight_decay).py()?;
        }
        Ok(Optimizer { inner: Mutex::new(Box::new(inner)) })
    }

    /// The momentum (or first beta) of the first group.
    pub(super) fn momentum(&self) -> Option<f64> {
        self.lock().groups().first().and_then(optim::ParamGroup::momentum)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Box<dyn optim::Optimizer>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Optimizer {
    /// One update of all parameters that have a gradient; the others stay as they are. Written in place, never recorded.
    ///
    /// Gradients can be divided by ``grad_scale`` (a number, or a float32 tensor of one element) and clipped to ``max_norm`` on
    /// the way; a ``found_inf`` tensor that is not zero, or with ``skip_non_finite`` a gradient that is not finite, leaves
    /// everything as it is. Returns the gradients' norm before clipping where it was needed: a tensor that the next such step
    /// overwrites.
    ///
    /// As in PyTorch, ``step(closure)`` first calls a function that computes the gradients and returns the loss, and returns that.
    #[pyo3(signature = (max_norm=None, *, closure=None, grad_scale=None, found_inf=None, skip_non_finite=false))]
    fn step(
        &self,
        py: Python<'_>,
        max_norm: Option<&Bound<'_, PyAny>>,
        closure: Option<&Bound<'_, PyAny>>,
        grad_scale: Option<&Bound<'_, PyAny>>,
        found_inf: Option<&Tensor>,
        skip_non_finite: bool,
    ) -> PyResult<Option<Py<PyAny>>> {
        let (max_norm, closure) = match max_norm {
            Some(function) if function.is_callable() && closure.is_none() => (None, Some(function)),
            other => (other, closure),
        };
        let max_norm = number("max_norm", max_norm)?;
        let loss = match closure {
            Some(closure) if !closure.is_callable() => {
                let what = format!("step: closure is a function that returns the loss, not {}", kind(closure));
                return Err(PyTypeError::new_err(what));
            }
            Some(closure) => {
                let _recording = netcl::autograd::enable_grad();
                Some(closure.call0()?.unbind())
            }
            None => None,
        };
        let grad_scale = match grad_scale {
            None => None,
            Some(scale) => Some(match scale.cast::<Tensor>() {
                Ok(scale) => GradScale::Device(scale.get().inner().as_ref().clone()),
                Err(_) => GradScale::Number(number("grad_scale", Some(scale))?.unwrap_or(1.0)),
            }),
        };
        let found_inf = found_inf.map(|flag| flag.inner().as_ref().clone());
        let options = StepOptions { grad_scale, max_norm, found_inf, skip_non_finite };
        let norm = site::detach(py, || self.lock().step_with(&options)).py()?;
        match (loss, norm) {
            (Some(loss), _) => Ok(Some(loss)),
            (None, Some(norm)) => Ok(Some(Py::new(py, Tensor::new(norm))?.into_any())),
            (None, None) => Ok(None),
        }
    }

    /// Counts a step without running one: for whoever replays a captured step, before each replay.
    fn advance(&self) {
        self.lock().advance();
    }

    /// Drops the gradients of all parameters, or fills them with zeros where they lie.
    #[pyo3(signature = (set_to_none=true))]
    fn zero_grad(&self, py: Python<'_>, set_to_none: bool) -> PyResult<()> {
        if set_to_none {
            py.detach(|| self.lock().zero_grad());
            return Ok(());
        }
        py.detach(|| self.lock().fill_grad_with_zeros()).py()
    }

    /// The learning rate: of the first group when read, of every group when set.
    #[getter]
    fn lr(&self) -> f64 {
        self.lock().learning_rate()
    }

    #[setter]
    fn set_lr(&self, lr: f64) {
        self.lock().set_learning_rate(lr);
    }

    /// The groups of parameters; ``group["lr"]`` and ``group["weight_decay"]`` can be changed.
    #[getter]
    fn param_groups(&self) -> Vec<ParamGroup> {
        self.lock().groups().iter().cloned().map(ParamGroup).collect()
    }

    /// Whether it updates any of these tensors.
    fn holds(&self, tensors: Vec<PyRef<'_, Tensor>>) -> bool {
        let known = self.lock();
        let mut held = known.groups().iter().flat_map(netcl::optim::ParamGroup::params);
        held.any(|held| tensors.iter().any(|tensor| tensor.inner().is(held)))
    }

    /// Adds ``{"params": [...], "lr": ..., "weight_decay": ...}``; the numbers are the first group's unless given.
    fn add_param_group(&self, group: &Bound<'_, PyDict>) -> PyResult<()> {
        let (lr, weight_decay) = {
            let inner = self.lock();
            let first = inner.groups().first().map(|group| (group.learning_rate(), group.weight_decay()));
            first.unwrap_or_default()
        };
        let group = Given::parse(group, lr, weight_decay)?;
        self.lock().add_group(group.params, group.lr, group.weight_decay).py()
    }

    /// Everything a run needs to go on exactly: numbers as ``"groups.0.lr"`` and ``"3.step"``, arrays as ``"3.exp_avg"``.
    ///
    /// Of a ``netcl.distributed.ShardedOptimizer`` it is this rank's part, or with ``gather=True``, where all ranks call it
    /// together, that of all.
    #[pyo3(signature = (*, gather=false))]
    fn state_dict<'py>(&self, py: Python<'py>, gather: bool) -> PyResult<Bound<'py, PyDict>> {
        let state = py.detach(|| match gather {
            true => self.lock().gathered_state(),
            false => Ok(self.lock().state()),
        });
        to_dict(py, state.py()?)
    }

    /// Goes on from a ``state_dict`` of the same parameters; an error names everything that does not fit.
    fn load_state_dict(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let state = from_dict(state.cast::<PyDict>().map_err(|_| {
            PyTypeError::new_err(format!(
                "load_state_dict: a dict of numbers and arrays is needed, not {}",
                kind(state)
            ))
        })?)?;
        py.detach(|| self.lock().load_state(&state)).py()
    }
}

/// A number that may be left out.
fn number(name: &str, given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<f64>> {
    let wrong =
        |given: &Bound<'_, PyAny>| PyTypeError::new_err(format!("step: {name} is a number, not {}", kind(given)));
    given.filter(|given| !given.is_none()).map(|given| given.extract().map_err(|_| wrong(given))).transpose()
}

/// Parameters with a learning rate and a weight decay of their own; reads and writes like a dict.
#[pyclass(module = "netcl.optim", frozen)]
pub(crate) struct ParamGroup(optim::ParamGroup);

#[pymethods]
impl ParamGroup {
    /// The parameters.
    #[getter]
    fn params(&self) -> Vec<Tensor> {
        self.0.params().iter().cloned().map(Tensor::new).collect()
    }

    /// The learning rate.
    #[getter]
    fn lr(&self) -> f64 {
        self.0.learning_rate()
    }

    #[setter]
    fn set_lr(&self, lr: f64) {
        self.0.set_learning_rate(lr);
    }

    /// The weight decay.
    #[getter]
    fn weight_decay(&self) -> f64 {
        self.0.weight_decay()
    }

    #[setter]
    fn set_weight_decay(&self, weight_decay: f64) {
        self.0.set_weight_decay(weight_decay);
    }

    /// The momentum, or Adam's first beta; ``None`` for an optimizer without one.
    #[getter]
    fn momentum(&self) -> Option<f64> {
        self.0.momentum()
    }

    #[setter]
    fn set_momentum(&self, momentum: f64) -> PyResult<()> {
        match self.0.momentum() {
            Some(_) => self.0.set_momentum(momentum),
            None => return Err(PyKeyError::new_err("this optimizer has no momentum")),
        }
        Ok(())
    }

    /// The learning rate before any schedule changed it.
    #[getter]
    fn initial_lr(&self) -> f64 {
        self.0.initial_learning_rate()
    }

    /// The entries: ``"params"``, ``"lr"``, ``"weight_decay"``, ``"initial_lr"`` and, where there is one, ``"momentum"``.
    fn keys(&self) -> Vec<&'static str> {
        let mut keys = vec!["params", "lr", "weight_decay", "initial_lr"];
        keys.extend(self.0.momentum().map(|_| "momentum"));
        keys
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        match (key, self.0.momentum()) {
            ("params", _) => Ok(PyList::new(py, self.params())?.into_any()),
            ("lr", _) => Ok(self.lr().into_pyobject(py)?.into_any()),
            ("weight_decay", _) => Ok(self.weight_decay().into_pyobject(py)?.into_any()),
            ("initial_lr", _) => Ok(self.initial_lr().into_pyobject(py)?.into_any()),
            ("momentum", Some(momentum)) => Ok(momentum.into_pyobject(py)?.into_any()),
            _ => Err(PyKeyError::new_err(key.to_owned())),
        }
    }

    fn __setitem__(&self, key: &str, value: f64) -> PyResult<()> {
        match key {
            "lr" => self.set_lr(value),
            "weight_decay" => self.set_weight_decay(value),
            "momentum" => return self.set_momentum(value),
            _ => return Err(PyKeyError::new_err(key.to_owned())),
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        let (n, lr, weight_decay) = (self.0.params().len(), self.lr(), self.weight_decay());
        format!("ParamGroup({n} parameters, lr={lr}, weight_decay={weight_decay})")
    }
}

/// A group of parameters as a caller writes it.
struct Given {
    params: Vec<netcl::Tensor>,
    lr: f64,
    weight_decay: f64,
}

impl Given {
    fn parse(group: &Bound<'_, PyDict>, lr: f64, weight_decay: f64) -> PyResult<Given> {
        let mut given = Given { params: Vec::new(), lr, weight_decay };
        for (key, value) in group {
            match key.extract::<&str>()? {
                "params" => given.params = tensors(&value)?,
                "lr" => given.lr = value.extract()?,
                "weight_decay" => given.weight_decay = value.extract()?,
                other => {
                    let text = format!("a group has no setting {other:?}; use \"params\", \"lr\" and \"weight_decay\"");
                    return Err(PyKeyError::new_err(text));
                }
            }
        }
        Ok(given)
    }

    /// Parameters, or dicts of them with settings of their own.
    fn all(params: &Bound<'_, PyAny>, lr: f64, weight_decay: f64) -> PyResult<Vec<Given>> {
        // A generator can be walked through once only.
        let items = PyList::empty(params.py());
        match params.cast::<Tensor>() {
            // A tensor is a sequence of its rows, which nobody means here.
            Ok(_) => {
                return Err(PyTypeError::new_err("params must be a list of tensors, not one tensor: use [tensor]"));
            }
            Err(_) => walk(params)?.try_for_each(|item| items.append(item?))?,
        }
        if !items.is_empty() && items.iter().all(|item| item.is_instance_of::<PyDict>()) {
            return items.iter().map(|item| Given::parse(item.cast::<PyDict>()?, lr, weight_decay)).collect();
        }
        Ok(vec![Given { params: tensors(items.as_any())?, lr, weight_decay }])
    }
}

/// Tensors from anything that can be walked through, or from one.
pub(crate) fn tensors(params: &Bound<'_, PyAny>) -> PyResult<Vec<netcl::Tensor>> {
    let tensor = |item: PyResult<Bound<'_, PyAny>>| -> PyResult<netcl::Tensor> {
        let item = item?;
        match item.cast::<Tensor>() {
            Ok(tensor) => Ok(tensor.get().inner().as_ref().clone()),
            Err(_) => Err(PyTypeError::new_err(format!("parameters are tensors, not {}", kind(&item)))),
        }
    };
    if let Ok(one) = params.cast::<Tensor>() {
        return Ok(vec![one.get().inner().as_ref().clone()]);
    }
    walk(params)?.map(tensor).collect()
}

fn walk<'py>(params: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyIterator>> {
    let wrong = |_| PyTypeError::new_err(format!("params must be a list of tensors, not {}", kind(params)));
    params.try_iter().map_err(wrong)
}

/// An optimizer's settings in one line, with the learning rate and weight decay of the first group.
pub(super) fn describe(name: &str, optimizer: &Optimizer, numbers: &[(&str, f64)], flags: &[(&str, bool)]) -> String {
    let inner = optimizer.lock();
    let (lr, weight_decay) =
        inner.groups().first().map_or((0.0, 0.0), |group| (group.learning_rate(), group.weight_decay()));
    let mut text = format!("{name}(lr={lr}");
    for (key, value) in numbers.iter().chain(&[("weight_decay", weight_decay)]) {
        text.push_str(&format!(", {key}={value}"));
    }
    for (key, flag) in flags {
        text.push_str(&format!(", {key}={}", if *flag { "True" } else { "False" }));
    }
    text + ")"
}

/// Settings in one line, with the learning rate and weight decay that the first group has now.
pub(super) fn describe_settings(name: &str, optimizer: &Optimizer, settings: &[(&str, String)]) -> String {
    let inner = optimizer.lock();
    let group = inner.groups().first();
    let text = |(key, text): &(&str, String)| match (*key, group) {
        ("lr", Some(group)) => format!("lr={}", group.learning_rate()),
        ("weight_decay", Some(group)) => format!("weight_decay={}", group.weight_decay()),
        _ => format!("{key}={text}"),
    };
    format!("{name}({})", settings.iter().map(text).collect::<Vec<_>>().join(", "))
}
