//! `netcl.trainer.callbacks`: callbacks of Rust, and callbacks that users write in Python.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netcl::Tensor as Recorded;
use netcl::nn::Module;
use netcl::trainer::callbacks::{self as core, Image, Mode};
use netcl::trainer::trainer::{Callback as Core, Context, Epoch, History, Step};
use netcl::trainer::{Error, Result};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use super::metrics::attached;
use crate::error::{IntoPyResult, kind, trainer_to_py};

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Callback>()?;
    module.add_class::<EarlyStopping>()?;
    module.add_class::<Checkpoint>()?;
    module.add_class::<LearningRateLog>()?;
    module.add_class::<TensorBoard>()?;
    module.add_class::<CsvLogger>()?;
    module.add_class::<JsonLines>()?;
    module.add_function(wrap_pyfunction!(rehearse, module)?)
}

/// Calls a callback as a run with these figures would, two updates an epoch; gives the reason to stop and the names of checkpoints.
/// Tests of callbacks need no training.
#[pyfunction]
#[pyo3(name = "_rehearse")]
fn rehearse(
    callback: &Bound<'_, PyAny>,
    trainer: &Bound<'_, PyAny>,
    epochs: Vec<BTreeMap<String, f64>>,
) -> PyResult<(Option<String>, Vec<String>)> {
    let mut callback = callback_of(callback, trainer)?;
    let queue = netcl::core::device::manager().cpu().queue;
    let mut model = netcl::nn::Linear::new(&queue, 3, 2).py()?;
    let optimizer = netcl::optim::SGD::new(model.parameters(), 0.1).py()?;
    let gradients: Vec<(String, Recorded)> = model.named_parameters();
    let (mut history, mut stop, mut keep) = (History::default(), None, Vec::new());
    let mut call = |history: &History, call: &mut dyn FnMut(&mut dyn Core, &mut Context<'_>) -> Result<()>| {
        let mut run = Context {
            model: &mut model,
            groups: netcl::optim::Optimizer::groups(&optimizer),
            queue: &queue,
            history,
            epochs: epochs.len(),
            steps_per_epoch: Some(2),
            stop: None,
            keep: Vec::new(),
            recapture: false,
        };
        let called = call(&mut *callback, &mut run).map_err(|error| error.in_callback(callback.name()));
        stop = stop.take().or(run.stop);
        keep.append(&mut run.keep);
        called.map_err(trainer_to_py)
    };
    call(&history, &mut |callback, run| callback.fit_begins(run))?;
    for (number, values) in (1..).zip(&epochs) {
        call(&history, &mut |callback, run| callback.epoch_begins(run, number))?;
        for step in [2 * number - 1, 2 * number] {
            let step = Step { step, epoch: number, loss: 1.0 / step as f64, lr: 0.1 / number as f64, samples: 4 };
            history.steps.push(step);
            call(&history, &mut |callback, run| match callback.wants_gradients() {
                n if n > 0 && step.step.is_multiple_of(n) => callback.gradients(run, step.step, &gradients),
                _ => Ok(()),
            })?;
            call(&history, &mut |callback, run| callback.step(run, &step))?;
        }
        let values = values.clone();
        let epoch = Epoch { epoch: number, steps: 2 * number, samples: 8, seconds: 0.5, values };
        history.epochs.push(epoch.clone());
        call(&history, &mut |callback, run| callback.epoch_ends(run, &epoch))?;
        // As a resumed run does it.
        call(&history, &mut |callback, _| callback.load_state(&callback.state()))?;
    }
    call(&history, &mut |callback, run| callback.fit_ends(run))?;
    Ok((stop, keep))
}

type Shared<C> = Arc<Mutex<C>>;

fn lock<C: ?Sized>(shared: &Mutex<C>) -> MutexGuard<'_, C> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The hooks of users' callbacks.
const HOOKS: [&str; 5] = ["on_fit_begin", "on_epoch_begin", "on_step_end", "on_epoch_end", "on_fit_end"];

/// Is called while a run goes on: derive from it and write the methods that you need.
///
/// A method that returns a text ends the run after this update or epoch; the text is the reason that is shown.
#[pyclass(module = "netcl.trainer.callbacks", frozen, subclass)]
pub(crate) struct Callback {
    /// The callback of Rust; none in classes of users.
    inner: Option<Shared<dyn Core + Send>>,
}

impl Callback {
    fn of(inner: Shared<dyn Core + Send>) -> PyClassInitializer<Callback> {
        PyClassInitializer::from(Callback { inner: Some(inner) })
    }
}

#[pymethods]
impl Callback {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Callback {
        // Those of a subclass's __init__.
        let _ = (args, kwargs);
        Callback { inner: None }
    }

    /// The run begins, or goes on.
    fn on_fit_begin(&self, trainer: &Bound<'_, PyAny>) -> Option<String> {
        let _ = trainer;
        None
    }

    /// An epoch begins, counted from 1.
    fn on_epoch_begin(&self, trainer: &Bound<'_, PyAny>, epoch: usize) -> Option<String> {
        let _ = (trainer, epoch);
        None
    }

    /// An update is known on the host, some updates after it was put on the device: a dict of ``step``, ``epoch``, ``loss``, ``lr``
    /// and ``samples``.
    fn on_step_end(&self, trainer: &Bound<'_, PyAny>, step: &Bound<'_, PyAny>) -> Option<String> {
        let _ = (trainer, step);
        None
    }

    /// An epoch has ended, validation included: a dict of ``epoch``, ``steps``, ``samples``, ``seconds`` and all figures.
    fn on_epoch_end(&self, trainer: &Bound<'_, PyAny>, epoch: &Bound<'_, PyAny>) -> Option<String> {
        let _ = (trainer, epoch);
        None
    }

    /// The run ends: all epochs are done, or it was stopped.
    fn on_fit_end(&self, trainer: &Bound<'_, PyAny>) -> Option<String> {
        let _ = trainer;
        None
    }

    /// What must be known to go on after a resume: what JSON can hold. ``None`` where nothing.
    fn state_dict(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let state = self.inner.as_ref().map(|inner| lock(inner).state());
        Ok(from_json(py, &state.unwrap_or_default())?.unbind())
    }

    /// Goes on from a state.
    fn load_state_dict(&self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let Some(inner) = &self.inner else { return Ok(()) };
        lock(inner).load_state(&to_json(state)?).map_err(trainer_to_py)
    }
}

/// Stops when a figure of the epochs has not improved for ``patience`` epochs. A resumed run goes on counting.
#[pyclass(module = "netcl.trainer.callbacks", frozen, subclass, extends = Callback)]
pub(crate) struct EarlyStopping(Shared<core::EarlyStopping>);

#[pymethods]
impl EarlyStopping {
    /// ``mode`` is ``"min"``, ``"max"`` or ``"auto"``: losses, errors and perplexity small, everything else large.
    #[new]
    #[pyo3(signature = (monitor="val_loss", patience=3, min_delta=0.0, mode="auto"))]
    fn new(monitor: &str, patience: usize, min_delta: f64, mode: &str) -> PyResult<PyClassInitializer<EarlyStopping>> {
        let made = Mode::parse(mode).and_then(|mode| core::EarlyStopping::new(monitor, patience, min_delta, mode));
        let inner = Arc::new(Mutex::new(made.map_err(trainer_to_py)?));
        Ok(Callback::of(inner.clone()).add_subclass(EarlyStopping(inner)))
    }

    /// The best value so far, or None.
    #[getter]
    fn best(&self) -> Option<f64> {
        lock(&self.0).monitor().best().map(|(_, value)| value)
    }

    /// The epoch of the best value, or None.
    #[getter]
    fn best_epoch(&self) -> Option<usize> {
        lock(&self.0).monitor().best().map(|(epoch, _)| epoch)
    }

    /// The epoch after which it stopped the run, or None.
    #[getter]
    fn stopped_epoch(&self) -> Option<usize> {
        lock(&self.0).stopped()
    }
}

/// Keeps checkpoints in the run's folder: ``best`` by a figure, ``last``, and with ``every`` one for good every so many epochs.
#[pyclass(module = "netcl.trainer.callbacks", frozen, subclass, extends = Callback)]
pub(crate) struct Checkpoint(Shared<core::Checkpoint>);

#[pymethods]
impl Checkpoint {
    #[new]
    #[pyo3(signature = (monitor="val_loss", mode="auto", *, best=true, last=true, every=0))]
    fn new(
        monitor: &str,
        mode: &str,
        best: bool,
        last: bool,
        every: usize,
    ) -> PyResult<PyClassInitializer<Checkpoint>> {
        let made = Mode::parse(mode).and_then(|mode| core::Checkpoint::new(monitor, mode)).map_err(trainer_to_py)?;
        let inner = Arc::new(Mutex::new(made.with_best(best).with_last(last).with_every(every)));
        Ok(Callback::of(inner.clone()).add_subclass(Checkpoint(inner)))
    }

    /// The best value so far, or None.
    #[getter]
    fn best(&self) -> Option<f64> {
        lock(&self.0).monitor().best().map(|(_, value)| value)
    }

    /// The epoch of the best value, or None.
    #[getter]
    fn best_epoch(&self) -> Option<usize> {
        lock(&self.0).monitor().best().map(|(epoch, _)| epoch)
    }
}

/// Remembers every change of the learning rate; with ``path`` also as a CSV file.
#[pyclass(module = "netcl.trainer.callbacks", frozen, subclass, extends = Callback)]
pub(crate) struct LearningRateLog(Shared<core::LearningRateLog>);

#[pymethods]
impl LearningRateLog {
    #[new]
    #[pyo3(signature = (path=None))]
    fn new(path: Option<PathBuf>) -> PyClassInitializer<LearningRateLog> {
        let inner = Arc::new(Mutex::new(core::LearningRateLog::new(path)));
        Callback::of(inner.clone()).add_subclass(LearningRateLog(inner))
    }

    /// The update from which on a learning rate was used, and that rate.
    #[getter]
    fn rates(&self) -> Vec<(usize, f64)> {
        lock(&self.0).rates().to_vec()
    }
}

/// Writes a CSV file with a row per epoch.
#[pyclass(module = "netcl.trainer.callbacks", frozen, subclass, extends = Callback, name = "CSVLogger")]
pub(crate) struct CsvLogger;

#[pymethods]
impl CsvLogger {
    #[new]
    fn new(path: PathBuf) -> PyClassInitializer<CsvLogger> {
        Callback::of(Arc::new(Mutex::new(core::CsvLog::new(path)))).add_subclass(CsvLogger)
    }
}

/// Writes a line of JSON for every update and epoch. A resumed run starts the file with what happened before.
#[pyclass(module = "netcl.trainer.callbacks", frozen, subclass, extends = Callback, name = "JSONLines")]
pub(crate) struct JsonLines;

#[pymethods]
impl JsonLines {
    #[new]
    fn new(path: PathBuf) -> PyClassInitializer<JsonLines> {
        Callback::of(Arc::new(Mutex::new(core::JsonLines::new(path)))).add_subclass(JsonLines)
    }
}

/// The extension's part of ``netcl.trainer.callbacks.TensorBoard``.
#[pyclass(module = "netcl.trainer.callbacks", frozen, subclass, extends = Callback)]
pub(crate) struct TensorBoard(Shared<core::TensorBoard>);

impl TensorBoard {
    fn with_file(&self, py: Python<'_>, write: impl FnOnce(&mut core::EventFile) -> Result<()> + Send) -> PyResult<()> {
        py.detach(|| lock(&self.0).file().and_then(write)).map_err(trainer_to_py)
    }
}

#[pymethods]
impl TensorBoard {
    #[new]
    #[pyo3(signature = (log_dir=PathBuf::from("runs"), *, weights=0, gradients=0),
        text_signature = "(log_dir='runs', *, weights=0, gradients=0)")]
    fn new(log_dir: PathBuf, weights: usize, gradients: usize) -> PyClassInitializer<TensorBoard> {
        let made = core::TensorBoard::new(log_dir).with_weights(weights).with_gradients(gradients);
        let inner = Arc::new(Mutex::new(made));
        Callback::of(inner.clone()).add_subclass(TensorBoard(inner))
    }

    /// A point of a curve.
    #[pyo3(signature = (tag, scalar_value, global_step=0))]
    fn add_scalar(&self, py: Python<'_>, tag: &str, scalar_value: f64, global_step: i64) -> PyResult<()> {
        self.with_file(py, |file| file.scalars(global_step, [(tag, scalar_value)]))
    }

    /// A text, which TensorBoard shows as Markdown.
    #[pyo3(signature = (tag, text_string, global_step=0))]
    fn add_text(&self, py: Python<'_>, tag: &str, text_string: &str, global_step: i64) -> PyResult<()> {
        self.with_file(py, |file| file.text(tag, global_step, text_string))
    }

    /// A histogram of float64 numbers in a row.
    fn _add_histogram(&self, py: Python<'_>, tag: &str, values: &[u8], step: i64) -> PyResult<()> {
        let values: Vec<f64> = values.as_chunks().0.iter().map(|bytes| f64::from_ne_bytes(*bytes)).collect();
        self.with_file(py, |file| file.histogram(tag, step, &values))
    }

    /// An image of bytes, of shape (height, width, channels).
    fn _add_image(
        &self,
        py: Python<'_>,
        tag: &str,
        pixels: &[u8],
        shape: (usize, usize, usize),
        step: i64,
    ) -> PyResult<()> {
        let (height, width, channels) = shape;
        self.with_file(py, |file| file.image(tag, step, Image { height, width, channels, pixels }))
    }

    /// Ends the file; a later write begins another one.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| lock(&self.0).close()).map_err(trainer_to_py)
    }
}

/// A callback for Rust from what users give: one of ours, an object of a class of their own, or a function that is called as
/// ``function(trainer, event, value)``.
///
/// Events of functions are ``"fit_begin"``, ``"epoch_begin"`` (the number of the epoch), ``"step_end"``, ``"epoch_end"`` (the dicts of
/// the methods) and ``"fit_end"``.
pub(crate) fn callback_of(object: &Bound<'_, PyAny>, trainer: &Bound<'_, PyAny>) -> PyResult<Box<dyn Core>> {
    let py = object.py();
    let ours = object.cast::<Callback>().ok();
    let inner = ours.and_then(|callback| callback.get().inner.clone());
    let (class, base) = (object.get_type(), py.get_type::<Callback>());
    let mut hooks = [false; HOOKS.len()];
    for (written, hook) in hooks.iter_mut().zip(HOOKS) {
        *written = class.getattr_opt(hook)?.is_some_and(|own| base.getattr(hook).is_ok_and(|none| !own.is(&none)));
    }
    let any = hooks.contains(&true);
    match inner {
        Some(inner) if !any => return Ok(Box::new(Held(inner))),
        None if ours.is_none() && !any && !object.is_callable() => {
            return Err(PyTypeError::new_err(format!(
                "a callback is an object with methods such as on_epoch_end(trainer, epoch), or a function that is called as \
                 function(trainer, event, value); {} is neither",
                kind(object)
            )));
        }
        _ => {}
    }
    let function = ours.is_none() && !any;
    let name = match object.getattr_opt(intern!(py, "__qualname__"))? {
        Some(name) if function => name.str()?.to_string(),
        _ => kind(object),
    };
    let (object, trainer) = (object.clone().unbind(), trainer.clone().unbind());
    Ok(Box::new(OfPython { object, trainer, name, hooks, function, inner: inner.map(Held) }))
}

/// Calls a callback that Python holds as well.
struct Held(Shared<dyn Core + Send>);

impl Core for Held {
    fn name(&self) -> String {
        lock(&self.0).name()
    }

    fn fit_begins(&mut self, run: &mut Context<'_>) -> Result<()> {
        lock(&self.0).fit_begins(run)
    }

    fn epoch_begins(&mut self, run: &mut Context<'_>, epoch: usize) -> Result<()> {
        lock(&self.0).epoch_begins(run, epoch)
    }

    fn step(&mut self, run: &mut Context<'_>, step: &Step) -> Result<()> {
        lock(&self.0).step(run, step)
    }

    fn phase(&mut self, run: &mut Context<'_>, name: &str) -> Result<()> {
        lock(&self.0).phase(run, name)
    }

    fn epoch_ends(&mut self, run: &mut Context<'_>, epoch: &Epoch) -> Result<()> {
        lock(&self.0).epoch_ends(run, epoch)
    }

    fn fit_ends(&mut self, run: &mut Context<'_>) -> Result<()> {
        lock(&self.0).fit_ends(run)
    }

    fn wants_gradients(&self) -> usize {
        lock(&self.0).wants_gradients()
    }

    fn gradients(&mut self, run: &mut Context<'_>, step: usize, gradients: &[(String, Recorded)]) -> Result<()> {
        lock(&self.0).gradients(run, step, gradients)
    }

    fn state(&self) -> serde_json::Value {
        lock(&self.0).state()
    }

    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        lock(&self.0).load_state(state)
    }
}

/// A callback that a user wrote in Python: an object with methods, or a function.
struct OfPython {
    object: Py<PyAny>,
    trainer: Py<PyAny>,
    name: String,
    /// Which of [`HOOKS`] the class has written.
    hooks: [bool; HOOKS.len()],
    function: bool,
    /// Where the class derives from one of ours, that one, which is called first.
    inner: Option<Held>,
}

impl OfPython {
    /// Calls a hook with the trainer and, if there is one, a value.
    fn call<'v>(
        &self,
        run: &mut Context<'_>,
        hook: usize,
        value: impl FnOnce(Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> + 'v,
    ) -> Result<()> {
        if !self.function && !self.hooks[hook] {
            return Ok(());
        }
        let stop = attached(|py| {
            let (object, value) = (self.object.bind(py), value(py)?);
            let answer = match (self.function, value) {
                (true, value) => {
                    let event = HOOKS[hook].trim_start_matches("on_");
                    object.call1((&self.trainer, event, value))?
                }
                (false, Some(value)) => object.call_method1(HOOKS[hook], (&self.trainer, value))?,
                (false, None) => object.call_method1(HOOKS[hook], (&self.trainer,))?,
            };
            match answer.cast::<PyString>() {
                Ok(reason) => Ok(Some(reason.to_str()?.to_owned())),
                Err(_) => Ok(None),
            }
        })?;
        if stop.is_some() {
            run.stop = stop;
        }
        Ok(())
    }
}

impl Core for OfPython {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn fit_begins(&mut self, run: &mut Context<'_>) -> Result<()> {
        self.inner.as_mut().map_or(Ok(()), |inner| inner.fit_begins(run))?;
        self.call(run, 0, |_| Ok(None))
    }

    fn epoch_begins(&mut self, run: &mut Context<'_>, epoch: usize) -> Result<()> {
        self.inner.as_mut().map_or(Ok(()), |inner| inner.epoch_begins(run, epoch))?;
        self.call(run, 1, |py| Ok(Some(epoch.into_pyobject(py)?.into_any())))
    }

    fn step(&mut self, run: &mut Context<'_>, step: &Step) -> Result<()> {
        self.inner.as_mut().map_or(Ok(()), |inner| inner.step(run, step))?;
        self.call(run, 2, |py| {
            let dict = PyDict::new(py);
            dict.set_item(intern!(py, "step"), step.step)?;
            dict.set_item(intern!(py, "epoch"), step.epoch)?;
            dict.set_item(intern!(py, "loss"), step.loss)?;
            dict.set_item(intern!(py, "lr"), step.lr)?;
            dict.set_item(intern!(py, "samples"), step.samples)?;
            Ok(Some(dict.into_any()))
        })
    }

    fn phase(&mut self, run: &mut Context<'_>, name: &str) -> Result<()> {
        self.inner.as_mut().map_or(Ok(()), |inner| inner.phase(run, name))
    }

    fn epoch_ends(&mut self, run: &mut Context<'_>, epoch: &Epoch) -> Result<()> {
        self.inner.as_mut().map_or(Ok(()), |inner| inner.epoch_ends(run, epoch))?;
        self.call(run, 3, |py| {
            let dict = PyDict::new(py);
            for (name, value) in &epoch.values {
                dict.set_item(name, value)?;
            }
            dict.set_item(intern!(py, "epoch"), epoch.epoch)?;
            dict.set_item(intern!(py, "steps"), epoch.steps)?;
            dict.set_item(intern!(py, "samples"), epoch.samples)?;
            dict.set_item(intern!(py, "seconds"), epoch.seconds)?;
            Ok(Some(dict.into_any()))
        })
    }

    fn fit_ends(&mut self, run: &mut Context<'_>) -> Result<()> {
        self.inner.as_mut().map_or(Ok(()), |inner| inner.fit_ends(run))?;
        self.call(run, 4, |_| Ok(None))
    }

    fn wants_gradients(&self) -> usize {
        self.inner.as_ref().map_or(0, Core::wants_gradients)
    }

    fn gradients(&mut self, run: &mut Context<'_>, step: usize, gradients: &[(String, Recorded)]) -> Result<()> {
        self.inner.as_mut().map_or(Ok(()), |inner| inner.gradients(run, step, gradients))
    }

    /// What Python's `state_dict` gives; what it raises is shown, since a run must not end when it is to be saved.
    fn state(&self) -> serde_json::Value {
        Python::attach(|py| {
            let object = self.object.bind(py);
            let state = match object.getattr_opt(intern!(py, "state_dict")) {
                Ok(Some(method)) => method.call0().and_then(|state| to_json(&state)),
                Ok(None) => Ok(serde_json::Value::Null),
                Err(error) => Err(error),
            };
            state.unwrap_or_else(|error| {
                error.write_unraisable(py, Some(object));
                serde_json::Value::Null
            })
        })
    }

    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        if state.is_null() {
            return Ok(());
        }
        attached(|py| {
            let state = from_json(py, state)?;
            self.object.call_method1(py, intern!(py, "load_state_dict"), (state,)).map(drop)
        })
    }
}

fn from_json<'py>(py: Python<'py>, value: &serde_json::Value) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (value.to_string(),))
}

fn to_json(value: &Bound<'_, PyAny>) -> PyResult<serde_json::Value> {
    let text: String = value.py().import("json")?.call_method1("dumps", (value,))?.extract()?;
    serde_json::from_str(&text).map_err(|error| {
        trainer_to_py(Error::Setting { what: format!("a state must be what JSON can hold: {error}; it is {text}") })
    })
}
