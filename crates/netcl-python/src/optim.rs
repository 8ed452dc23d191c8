//! `netcl.optim`: optimizers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use netcl::core::device::manager;
use netcl::optim::{self, Optimizer as _, SgdOptions, State};
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::device::queue_to_py;
use crate::error::IntoPyResult;
use crate::ndarray;
use crate::tensor::Tensor;

/// Fills the module `netcl._netcl.optim`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "optim")?;
    module.add("__doc__", "The extension's part of ``netcl.optim``.")?;
    module.add_class::<Optimizer>()?;
    module.add_class::<ParamGroup>()?;
    module.add_class::<Sgd>()?;
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.optim", &module)
}

/// Changes parameters by their gradients: what all optimizers have in common.
#[pyclass(module = "netcl.optim", frozen, subclass)]
pub(crate) struct Optimizer {
    inner: Mutex<Box<dyn optim::Optimizer>>,
}

impl Optimizer {
    fn lock(&self) -> MutexGuard<'_, Box<dyn optim::Optimizer>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Optimizer {
    /// One update of all parameters that have a gradient; the others stay as they are. Written in place, never recorded.
    fn step(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.lock().step()).py()
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

    /// Everything a run needs to go on exactly: numbers as ``"groups.0.lr"``, arrays as ``"3.momentum_buffer"``.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let State { numbers, tensors } = self.lock().state();
        let state = PyDict::new(py);
        for (name, number) in numbers {
            state.set_item(name, number)?;
        }
        for (name, tensor) in tensors {
            state.set_item(name, ndarray::copy_out(py, tensor.raw())?)?;
        }
        Ok(state)
    }

    /// Goes on from a ``state_dict`` of the same parameters.
    fn load_state_dict(&self, py: Python<'_>, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let mut parsed = State::default();
        let queue = queue_to_py(py, &manager().cpu().queue)?;
        for (name, value) in state {
            let name: String = name.extract()?;
            if name.starts_with("groups.") {
                parsed.numbers.insert(name, value.extract()?);
            } else {
                let dtype = value.getattr("dtype")?.str()?;
                let tensor = py.get_type::<Tensor>().call_method1("from_host", (&queue, value, dtype))?;
                parsed.tensors.insert(name, tensor.cast::<Tensor>()?.get().inner.clone());
            }
        }
        py.detach(|| self.lock().load_state(&parsed)).py()
    }
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

    /// The entries: ``"params"``, ``"lr"``, ``"weight_decay"``.
    fn keys(&self) -> [&'static str; 3] {
        ["params", "lr", "weight_decay"]
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        match key {
            "params" => Ok(PyList::new(py, self.params())?.into_any()),
            "lr" => Ok(self.lr().into_pyobject(py)?.into_any()),
            "weight_decay" => Ok(self.weight_decay().into_pyobject(py)?.into_any()),
            _ => Err(PyKeyError::new_err(key.to_owned())),
        }
    }

    fn __setitem__(&self, key: &str, value: f64) -> PyResult<()> {
        match key {
            "lr" => self.set_lr(value),
            "weight_decay" => self.set_weight_decay(value),
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
            Err(_) => params.try_iter()?.try_for_each(|item| items.append(item?))?,
        }
        if !items.is_empty() && items.iter().all(|item| item.is_instance_of::<PyDict>()) {
            return items.iter().map(|item| Given::parse(item.cast::<PyDict>()?, lr, weight_decay)).collect();
        }
        Ok(vec![Given { params: tensors(items.as_any())?, lr, weight_decay }])
    }
}

fn tensors(params: &Bound<'_, PyAny>) -> PyResult<Vec<netcl::Tensor>> {
    let tensor = |item: PyResult<Bound<'_, PyAny>>| -> PyResult<netcl::Tensor> {
        let item = item?;
        match item.cast::<Tensor>() {
            Ok(tensor) => Ok(tensor.get().inner.clone()),
            Err(_) => Err(PyTypeError::new_err(format!("parameters are tensors, not {}", item.get_type()))),
        }
    };
    if let Ok(one) = params.cast::<Tensor>() {
        return Ok(vec![one.get().inner.clone()]);
    }
    params.try_iter()?.map(tensor).collect()
}

/// Stochastic gradient descent with momentum, as PyTorch defines it; one launch for each parameter.
#[pyclass(module = "netcl.optim", frozen, subclass, extends = Optimizer, name = "SGD")]
pub(crate) struct Sgd(SgdOptions);

#[pymethods]
impl Sgd {
    /// ``params`` are tensors, or dicts ``{"params": [...], "lr": ..., "weight_decay": ...}``.
    #[new]
    #[pyo3(signature = (params, lr=0.01, momentum=0.0, *, dampening=0.0, weight_decay=0.0, nesterov=false, maximize=false))]
    fn new(
        params: &Bound<'_, PyAny>,
        lr: f64,
        momentum: f64,
        dampening: f64,
        weight_decay: f64,
        nesterov: bool,
        maximize: bool,
    ) -> PyResult<PyClassInitializer<Sgd>> {
        let options = SgdOptions { lr, momentum, dampening, weight_decay, nesterov, maximize };
        let mut groups = Given::all(params, lr, weight_decay)?.into_iter();
        let first = groups.next().map(|group| (group.params, group.lr, group.weight_decay));
        let (params, lr, weight_decay) = first.unwrap_or((Vec::new(), lr, weight_decay));
        let mut inner = optim::SGD::new_with(params, SgdOptions { lr, weight_decay, ..options }).py()?;
        for group in groups {
            inner.add_group(group.params, group.lr, group.weight_decay).py()?;
        }
        let base = Optimizer { inner: Mutex::new(Box::new(inner)) };
        Ok(PyClassInitializer::from(base).add_subclass(Sgd(options)))
    }

    /// How much of the last step is kept.
    #[getter]
    fn momentum(&self) -> f64 {
        self.0.momentum
    }

    fn __repr__(slf: PyRef<'_, Self>) -> String {
        let SgdOptions { momentum, dampening, nesterov, maximize, .. } = slf.0;
        let python = |flag: bool| if flag { "True" } else { "False" };
        let inner = slf.as_super().lock();
        let (lr, weight_decay) =
            inner.groups().first().map_or((0.0, 0.0), |group| (group.learning_rate(), group.weight_decay()));
        format!(
            "SGD(lr={lr}, momentum={momentum}, dampening={dampening}, weight_decay={weight_decay}, nesterov={}, maximize={})",
            python(nesterov),
            python(maximize)
        )
    }
}
