//! `netcl.amp`: autocast scopes and loss scaling.

use std::sync::{Mutex, MutexGuard, PoisonError};

use netcl::amp::{self, GradScalerOptions};
use netcl::optim::StepOptions;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::autograd::{Scope, record};
use crate::error::{IntoPyResult, kind};
use crate::optim::{Optimizer, from_dict, tensors, to_dict};
use crate::tensor::{Tensor, parse_dtype};

/// Fills the module `netcl._netcl.amp`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "amp")?;
    module.add("__doc__", "The extension's part of ``netcl.amp``.")?;
    module.add_class::<GradScaler>()?;
    module.add_function(wrap_pyfunction!(enter_autocast, &module)?)?;
    module.add_function(wrap_pyfunction!(autocast_dtype, &module)?)?;
    module.add_function(wrap_pyfunction!(autocast_policies, &module)?)?;
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.amp", &module)
}

/// Enters a scope on this thread, which ``netcl._netcl.autograd.leave_scope`` leaves; ``None`` turns autocast off in it.
#[pyfunction]
#[pyo3(signature = (dtype))]
fn enter_autocast(dtype: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let scope = match dtype {
        Some(dtype) => amp::autocast(parse_dtype(Some(dtype))?).py()?,
        None => amp::autocast_off(),
    };
    Scope::Autocast(scope).enter();
    Ok(())
}

/// The dtype that products run in on this thread; ``None`` where autocast is off.
#[pyfunction]
fn autocast_dtype() -> Option<&'static str> {
    amp::autocast_dtype().map(|dtype| dtype.name())
}

/// What autocast does with the inputs of each operation, by name: ``"16-bit"``, ``"float32"``, ``"widest input"``,
/// ``"first input"`` or ``"input's dtype"``, which is that of all operations that are not listed.
#[pyfunction]
fn autocast_policies(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let table = PyDict::new(py);
    for (op, policy) in amp::policies() {
        table.set_item(op, policy.to_string())?;
    }
    Ok(table)
}

/// Scales losses so that small gradients survive float16, skips steps whose gradients are not finite, and looks for the largest
/// scale that works. All of it happens on the device, also in captured steps.
#[pyclass(module = "netcl.amp", frozen)]
pub(crate) struct GradScaler(Mutex<amp::GradScaler>);

impl GradScaler {
    pub(crate) fn lock(&self) -> MutexGuard<'_, amp::GradScaler> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl GradScaler {
    /// The scale starts at ``init_scale``, is multiplied by ``growth_factor`` after ``growth_interval`` steps in a row that went
    /// well, and by ``backoff_factor`` after one that was skipped. With ``enabled=False`` everything runs as if it were not there.
    #[new]
    #[pyo3(signature = (*settings, device=None, **named),
        text_signature = "(init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True, *, device=None)")]
    fn new(
        settings: &Bound<'_, PyTuple>,
        device: Option<&str>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<GradScaler> {
        const NAMES: [&str; 5] = ["init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"];
        // PyTorch names a device, in the first place: one scaler serves all.
        let _ = device;
        let all = PyDict::new(settings.py());
        let placed = settings.iter().skip_while(|first| first.is_instance_of::<PyString>());
        for (at, value) in placed.enumerate() {
            let name = NAMES.get(at).ok_or_else(|| PyTypeError::new_err("GradScaler takes at most 5 settings"))?;
            all.set_item(name, value)?;
        }
        for (name, value) in named.into_iter().flatten() {
            let known = NAMES.iter().any(|known| name.eq(known).unwrap_or(false));
            if !known || all.contains(&name)? {
                let problem = if known { "got two values for" } else { "has no setting" };
                return Err(PyTypeError::new_err(format!("GradScaler {problem} {name}")));
            }
            all.set_item(name, value)?;
        }
        let number = |name: &str, default: f64| {
            all.get_item(name)?.filter(|given| !given.is_none()).map_or(Ok(default), |given| given.extract())
        };
        let (init_scale, growth_factor, backoff_factor) =
            (number(NAMES[0], 65536.0)?, number(NAMES[1], 2.0)?, number(NAMES[2], 0.5)?);
        let growth_interval = all.get_item(NAMES[3])?.map_or(Ok(2000), |given| given.extract())?;
        let enabled = all.get_item(NAMES[4])?.map_or(Ok(true), |given| given.extract())?;
        let options = GradScalerOptions { init_scale, growth_factor, backoff_factor, growth_interval, enabled };
        Ok(GradScaler(Mutex::new(amp::GradScaler::new(&options).py()?)))
    }

    /// A loss times the scale; a list or tuple of losses gives one of scaled losses.
    fn scale<'py>(&self, py: Python<'py>, loss: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(tensor) = loss.cast::<Tensor>() {
            let tensor = tensor.get().inner();
            let scaled = record(py, &tensor, || self.lock().scale(&tensor))?;
            return Ok(scaled.into_pyobject(py)?.into_any());
        }
        if !(loss.is_instance_of::<PyList>() || loss.is_instance_of::<PyTuple>()) {
            let text = format!("scale: a loss is a tensor, or a list or tuple of tensors, not {}", kind(loss));
            return Err(PyTypeError::new_err(text));
        }
        let scaled = loss.try_iter()?.map(|loss| self.scale(py, &loss?)).collect::<PyResult<Vec<_>>>()?;
        match loss.is_instance_of::<PyList>() {
            true => Ok(PyList::new(py, scaled)?.into_any()),
            false => Ok(PyTuple::new(py, scaled)?.into_any()),
        }
    }

    /// ``scale`` under another name: ``scaler.scale_loss(loss).backward()``.
    fn scale_loss<'py>(&self, py: Python<'py>, loss: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.scale(py, loss)
    }

    /// Divides the gradients of an optimizer's parameters by the scale, in place: before anything that reads them, such as
    /// ``clip_grad_norm``. The step does not divide again.
    fn unscale_(&self, py: Python<'_>, optimizer: &Optimizer) -> PyResult<()> {
        py.detach(|| self.lock().unscale(optimizer.lock().as_ref())).py()
    }

    /// ``unscale_`` under another name.
    fn unscale_grads(&self, py: Python<'_>, optimizer: &Optimizer) -> PyResult<()> {
        self.unscale_(py, optimizer)
    }

    /// A step of the optimizer with unscaled gradients, which the device skips where they are not all finite.
    ///
    /// ``max_norm`` clips them on the way. ``params`` may name the model's parameters; those of the optimizer count. Returns the
    /// norm of the gradients before clipping, where it was needed: a tensor that the next step overwrites.
    #[pyo3(signature = (optimizer, params=None, max_norm=None))]
    fn step(
        &self,
        py: Python<'_>,
        optimizer: &Optimizer,
        params: Option<&Bound<'_, PyAny>>,
        max_norm: Option<f64>,
    ) -> PyResult<Option<Tensor>> {
        params.map(tensors).transpose()?;
        let options = StepOptions { max_norm, ..StepOptions::default() };
        let norm = py.detach(|| self.lock().step_with(optimizer.lock().as_mut(), options)).py()?;
        Ok(norm.map(Tensor::new))
    }

    /// Moves the scale after the steps of all optimizers; with ``new_scale`` it is set.
    #[pyo3(signature = (new_scale=None))]
    fn update(&self, py: Python<'_>, new_scale: Option<f64>) -> PyResult<()> {
        py.detach(|| match new_scale {
            Some(scale) => self.lock().set_scale(scale),
            None => self.lock().update(),
        })
        .py()
    }

    /// The scale, which waits for the device; 1.0 where the scaler is off.
    fn get_scale(&self, py: Python<'_>) -> PyResult<f64> {
        py.detach(|| self.lock().get_scale()).py()
    }

    /// Whether it does anything.
    fn is_enabled(&self) -> bool {
        self.lock().is_enabled()
    }

    /// What the scale is multiplied by when it grows.
    fn get_growth_factor(&self) -> f64 {
        self.lock().growth_factor()
    }

    /// Sets what the scale is multiplied by when it grows.
    fn set_growth_factor(&self, new_factor: f64) -> PyResult<()> {
        self.lock().set_growth(Some(new_factor), None, None).py()
    }

    /// What the scale is multiplied by after a skipped step.
    fn get_backoff_factor(&self) -> f64 {
        self.lock().backoff_factor()
    }

    /// Sets what the scale is multiplied by after a skipped step.
    fn set_backoff_factor(&self, new_factor: f64) -> PyResult<()> {
        self.lock().set_growth(None, Some(new_factor), None).py()
    }

    /// How many steps must go well before the scale grows.
    fn get_growth_interval(&self) -> u64 {
        self.lock().growth_interval()
    }

    /// Sets how many steps must go well before the scale grows.
    fn set_growth_interval(&self, new_interval: u64) -> PyResult<()> {
        self.lock().set_growth(None, None, Some(new_interval)).py()
    }

    /// Everything a run needs to go on, under PyTorch's names; empty where the scaler is off.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = py.detach(|| self.lock().state()).py()?;
        to_dict(py, state)
    }

    /// Goes on from a ``state_dict``, of this class or of PyTorch's scaler.
    fn load_state_dict(&self, py: Python<'_>, state_dict: &Bound<'_, PyDict>) -> PyResult<()> {
        let state = from_dict(state_dict)?;
        py.detach(|| self.lock().load_state(&state)).py()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        if !self.is_enabled() {
            return Ok("GradScaler(enabled=False)".to_owned());
        }
        let (growth, backoff, interval) =
            (self.get_growth_factor(), self.get_backoff_factor(), self.get_growth_interval());
        let scale = self.get_scale(py)?;
        Ok(format!(
            "GradScaler(scale={scale}, growth_factor={growth}, backoff_factor={backoff}, growth_interval={interval})"
        ))
    }
}
