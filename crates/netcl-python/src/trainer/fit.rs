//! The loop over a model of Python's: forward and loss are called back, everything else is Rust's.

use std::collections::BTreeMap;
use std::path::PathBuf;

use netcl::nn::Module;
use netcl::optim::{ParamGroup, State};
use netcl::trainer::callbacks::{Progress, Screen};
use netcl::trainer::trainer::fit::{self, Held, LoopOptions};
use netcl::trainer::trainer::{
    self, Callback, Context, Epoch, Loader, Outcome, ScheduleEvery, Scheduled, Session as Shared, Sharing, Step,
    Stepper, Way, find_lr,
};
use netcl::trainer::{Error, Result, report};
use pyo3::exceptions::{PyKeyboardInterrupt, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList};
use serde_json::{Map, Value};

use super::batch::Look;
use super::session::{Session, output};
use crate::device::queue_from_py;
use crate::error::{carry, kind, trainer_to_py};
use crate::nn::PythonModule;
use crate::optim::{from_dict, to_dict};
use crate::tensor::Tensor;

/// An exception on its way through the trainer.
pub(super) fn thrown(raised: PyErr) -> Error {
    Error::Tensor(carry(raised))
}

/// A run of a trainer of Python's.
#[pyclass(module = "netcl._netcl.trainer")]
pub(super) struct Loop {
    progress: trainer::Progress,
    /// Why steps are not captured.
    eager: Option<String>,
}

#[pymethods]
impl Loop {
    #[new]
    fn new() -> Loop {
        Loop { progress: trainer::Progress::default(), eager: None }
    }

    /// Finished epochs.
    #[getter]
    fn epochs(&self) -> usize {
        self.progress.epochs
    }

    /// Why steps are not captured; ``None`` where they are, or where nothing has run.
    #[getter]
    fn eager(&self) -> Option<&str> {
        self.eager.as_deref()
    }

    /// Trains ``trainer``'s model up to so many epochs in all; gives how it ended, and the checkpoint or the reason.
    #[pyo3(signature = (trainer, train, valid, epochs, settings, stop))]
    fn fit(
        slf: &Bound<'_, Self>,
        trainer: &Bound<'_, PyAny>,
        train: &Bound<'_, PyAny>,
        valid: Option<&Bound<'_, PyAny>>,
        epochs: usize,
        settings: Settings,
        stop: &Bound<'_, PyAny>,
    ) -> PyResult<(&'static str, Option<String>)> {
        let metadata: Map<String, Value> = crate::io::parse(&settings.metadata)?;
        let stopped = || stop.call0().and_then(|stop| stop.is_truthy()).unwrap_or(true);
        let options = LoopOptions {
            epochs,
            accumulation_steps: settings.accumulation_steps,
            schedule_every: settings.every()?,
            validate_every: settings.validate_every,
            folder: settings.folder,
            metadata,
            stop: &stopped,
        };
        let mut callbacks = callbacks(trainer)?;
        let mut stepper = PythonStepper::new(slf, trainer, settings.capture)?;
        let mut train = PythonLoader::new(train, trainer);
        let mut valid = valid.map(|valid| PythonLoader::new(valid, trainer));
        let valid = valid.as_mut().map(|valid| valid as &mut dyn Loader<Batch = Bound<'_, PyAny>>);
        // Not borrowed while Python code runs, which may look at the run.
        let mut progress = std::mem::take(&mut slf.borrow_mut().progress);
        let outcome = fit::run(&mut stepper, &mut train, valid, &options, &mut callbacks, &mut progress);
        slf.borrow_mut().progress = progress;
        let path = |path: Option<PathBuf>| path.map(|path| path.display().to_string());
        match outcome.map_err(trainer_to_py)? {
            Outcome::Finished => Ok(("finished", None)),
            Outcome::Ended(why) => Ok(("ended", Some(why))),
            Outcome::Stopped(kept) => Ok(("stopped", path(kept))),
        }
    }

    /// The mean loss and all metrics over a loader's batches.
    fn evaluate<'py>(
        slf: &Bound<'py, Self>,
        trainer: &Bound<'py, PyAny>,
        loader: &Bound<'py, PyAny>,
    ) -> PyResult<BTreeMap<String, f64>> {
        let mut stepper = PythonStepper::new(slf, trainer, false)?;
        let mut loader = PythonLoader::new(loader, trainer);
        fit::validate(&mut stepper, &mut loader, 1).map_err(trainer_to_py)
    }

    /// Learning rates with their smoothed losses, and the one to begin with.
    fn find_lr<'py>(
        slf: &Bound<'py, Self>,
        trainer: &Bound<'py, PyAny>,
        loader: &Bound<'py, PyAny>,
        start: f64,
        end: f64,
        updates: usize,
    ) -> PyResult<(Vec<(f64, f64)>, f64)> {
        let mut stepper = PythonStepper::new(slf, trainer, false)?;
        let mut loader = PythonLoader::new(loader, trainer);
        let found = find_lr::find_lr(&mut stepper, &mut loader, start, end, updates);
        let found = found.map_err(trainer_to_py)?;
        Ok((found.points, found.suggestion))
    }

    /// Goes on from a checkpoint; gives the run's history as JSON.
    fn resume(slf: &Bound<'_, Self>, trainer: &Bound<'_, PyAny>, path: PathBuf) -> PyResult<String> {
        let mut callbacks = callbacks(trainer)?;
        let mut stepper = PythonStepper::new(slf, trainer, false)?;
        let progress = fit::resume(&mut stepper, &mut callbacks, &path).map_err(trainer_to_py)?;
        let history = serde_json::to_string(&progress.history)
            .map_err(|error| PyValueError::new_err(format!("the history cannot be written as JSON: {error}")))?;
        slf.borrow_mut().progress = progress;
        Ok(history)
    }

    /// Writes the report of the run so far: curves, settings and the model's layers.
    fn report(
        &self,
        model: &Bound<'_, PyAny>,
        title: String,
        settings: Vec<(String, String)>,
        path: PathBuf,
    ) -> PyResult<()> {
        let module = PythonModule::new(model)?;
        let device = module.parameters().first().map_or_else(String::new, |p| p.queue().device_name());
        let layers = report::layers::list(&module);
        let history = self.progress.history.clone();
        let content = report::RunContent { title, device, settings, history, layers, ..Default::default() };
        report::write(&path, &[content]).map_err(trainer_to_py)
    }

    /// Writes a checkpoint.
    fn checkpoint(slf: &Bound<'_, Self>, trainer: &Bound<'_, PyAny>, metadata: &str, path: PathBuf) -> PyResult<()> {
        let metadata = crate::io::parse(metadata)?;
        let mut stepper = PythonStepper::new(slf, trainer, false)?;
        let progress = slf.borrow().progress.clone();
        let written = fit::write_checkpoint(&mut stepper, &progress, &metadata, &path);
        written.map_err(trainer_to_py)
    }
}

/// What a run is told, from Python's trainer.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Settings {
    accumulation_steps: usize,
    schedule_every: String,
    validate_every: usize,
    folder: Option<PathBuf>,
    metadata: String,
    capture: bool,
}

impl Settings {
    fn every(&self) -> PyResult<ScheduleEvery> {
        match &*self.schedule_every {
            "step" => Ok(ScheduleEvery::Step),
            "epoch" => Ok(ScheduleEvery::Epoch),
            other => {
                let what = format!("Trainer: schedule_every is {other:?}; use \"step\" or \"epoch\"");
                Err(PyValueError::new_err(what))
            }
        }
    }
}

/// The callbacks of a run, after the one that keeps the trainer's history.
fn callbacks(trainer: &Bound<'_, PyAny>) -> PyResult<Vec<Box<dyn Callback>>> {
    let mut all: Vec<Box<dyn Callback>> = vec![Box::new(Keeper(trainer.clone().unbind()))];
    let session = trainer.getattr("_session")?.cast_into::<Session>()?;
    if session.get().lock().group().is_some_and(|group| group.rank() != 0) {
        return Ok(all);
    }
    if trainer.getattr("progress")?.is_truthy()? {
        let terminal = trainer.call_method0("_has_terminal")?.is_truthy()?;
        let progress =
            if terminal { Progress::default() } else { Progress::on(PythonScreen(trainer.clone().unbind())) };
        all.push(Box::new(progress));
    }
    for callback in trainer.getattr("callbacks")?.try_iter()? {
        all.push(super::callbacks::callback_of(&callback?, trainer)?);
    }
    Ok(all)
}

/// Python's standard error: a notebook's cell, a file, whatever stands there.
struct PythonScreen(Py<PyAny>);

impl PythonScreen {
    fn say(&self, method: &str, text: &str) {
        // A line that nobody sees is no reason to stop a training.
        let _ = Python::attach(|py| self.0.bind(py).call_method1(method, (text,)).map(drop));
    }
}

impl Screen for PythonScreen {
    fn line(&mut self, text: &str) {
        self.say("_say", text);
    }

    fn status(&mut self, text: &str) {
        self.say("_status", text);
    }
}

/// Tells Python's trainer what happens.
struct Keeper(Py<PyAny>);

impl Keeper {
    fn tell(&self, name: &str, fields: impl for<'py> FnOnce(&Bound<'py, PyDict>) -> PyResult<()>) -> Result<()> {
        Python::attach(|py| {
            let record = PyDict::new(py);
            fields(&record)?;
            self.0.bind(py).call_method1(name, (record,)).map(drop)
        })
        .map_err(thrown)
    }
}

impl Callback for Keeper {
    fn name(&self) -> String {
        "history".to_owned()
    }

    fn step(&mut self, _run: &mut Context<'_>, step: &Step) -> Result<()> {
        self.tell("_step_done", |record| {
            record.set_item("step", step.step)?;
            record.set_item("epoch", step.epoch)?;
            record.set_item("loss", step.loss)?;
            record.set_item("lr", step.lr)?;
            record.set_item("samples", step.samples)
        })
    }

    fn epoch_ends(&mut self, _run: &mut Context<'_>, epoch: &Epoch) -> Result<()> {
        self.tell("_epoch_done", |record| {
            record.set_item("epoch", epoch.epoch)?;
            record.set_item("steps", epoch.steps)?;
            record.set_item("samples", epoch.samples)?;
            record.set_item("seconds", epoch.seconds)?;
            epoch.values.iter().try_for_each(|(name, value)| record.set_item(name, value))
        })
    }

    /// How a model over several devices divides batches, where that was measured.
    fn state(&self) -> Value {
        let weights = Python::attach(|py| self.0.bind(py).call_method0("_weights")?.extract::<Option<Vec<f64>>>());
        weights.ok().flatten().map_or(Value::Null, Value::from)
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        let weights: Vec<f64> = state.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        Python::attach(|py| self.0.bind(py).call_method1("_set_weights", (weights,)).map(drop)).map_err(thrown)
    }
}

/// An iterable of Python's.
struct PythonLoader<'py> {
    loader: Bound<'py, PyAny>,
    trainer: Bound<'py, PyAny>,
    epoch: Option<Bound<'py, PyIterator>>,
    /// Whether the next epoch goes on where a state was loaded.
    placed: bool,
    sharing: Sharing,
}

impl<'py> PythonLoader<'py> {
    fn new(loader: &Bound<'py, PyAny>, trainer: &Bound<'py, PyAny>) -> PythonLoader<'py> {
        let sharing = if is_sharded(loader) { Sharing::Own } else { Sharing::Turns };
        PythonLoader { loader: loader.clone(), trainer: trainer.clone(), epoch: None, placed: false, sharing }
    }

    fn take(&mut self) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(epoch) = &mut self.epoch else { return Ok(None) };
        let Some(batch) = epoch.next().transpose()? else { return Ok(None) };
        if Look::at(&batch)?.ready {
            return Ok(Some(batch));
        }
        self.trainer.call_method1(intern!(batch.py(), "_upload"), (batch,)).map(Some)
    }
}

/// Whether a loader has only samples of this rank: it says so itself, or one of its samplers does.
fn is_sharded(loader: &Bound<'_, PyAny>) -> bool {
    let sharded = |object: &Bound<'_, PyAny>| {
        object.getattr("sharded").and_then(|sharded| sharded.is_truthy()).unwrap_or(false)
            || object.get_type().name().is_ok_and(|name| name == "DistributedSampler")
    };
    let samplers = ["sampler", "batch_sampler"].into_iter().filter_map(|name| loader.getattr(name).ok());
    let mut all = samplers.flat_map(|sampler| [sampler.getattr("sampler").ok(), Some(sampler)]).flatten();
    sharded(loader) || all.any(|sampler| sharded(&sampler))
}

impl<'py> Loader for PythonLoader<'py> {
    type Batch = Bound<'py, PyAny>;

    fn batches(&self) -> Option<usize> {
        self.loader.len().ok()
    }

    fn begin(&mut self, epoch: usize, skipped: usize) -> Result<()> {
        let begin = |loader: &mut Self| -> PyResult<()> {
            loader.epoch = None;
            if !std::mem::take(&mut loader.placed) && loader.loader.hasattr("set_epoch")? {
                // Epochs are counted from 0 there.
                loader.loader.call_method1("set_epoch", (epoch - 1,))?;
            }
            loader.epoch = Some(loader.loader.try_iter().map_err(|_| {
                let what = format!("fit: a loader is an iterable of batches, not a {}", kind(&loader.loader));
                PyTypeError::new_err(what)
            })?);
            for _ in 0..skipped {
                if let Some(epoch) = &mut loader.epoch {
                    epoch.next().transpose()?;
                }
            }
            Ok(())
        };
        begin(self).map_err(thrown)
    }

    fn next_batch(&mut self) -> Result<Option<Self::Batch>> {
        self.take().map_err(thrown)
    }

    fn skip_batch(&mut self) -> Result<bool> {
        let Some(epoch) = &mut self.epoch else { return Ok(false) };
        Ok(epoch.next().transpose().map_err(thrown)?.is_some())
    }

    fn sharing(&self) -> Sharing {
        self.sharing
    }

    fn state(&mut self) -> Result<Value> {
        let state = || -> PyResult<Value> {
            if !self.loader.hasattr("state_dict")? || !self.loader.hasattr("load_state_dict")? {
                return Ok(Value::Null);
            }
            let json = self.loader.py().import("json")?;
            let state = json.call_method1("dumps", (self.loader.call_method0("state_dict")?,))?;
            let text: String = state.extract()?;
            serde_json::from_str(&text).map_err(|error| PyValueError::new_err(error.to_string()))
        };
        state().map_err(thrown)
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        let load = || -> PyResult<()> {
            let json = self.loader.py().import("json")?;
            let state = json.call_method1("loads", (state.to_string(),))?;
            self.loader.call_method1("load_state_dict", (state,)).map(drop)
        };
        load().map_err(thrown)?;
        self.placed = true;
        Ok(())
    }
}

/// A schedule of Python's: ours, or any object with `step`.
struct PythonSchedule<'py>(Bound<'py, PyAny>);

impl Scheduled for PythonSchedule<'_> {
    fn advance(&mut self, value: f64) -> Result<()> {
        let step = || -> PyResult<()> {
            let takes_value = self.0.get_type().name()? == "ReduceLROnPlateau";
            let step = intern!(self.0.py(), "step");
            if takes_value {
                self.0.call_method1(step, (value,))?
            } else {
                self.0.call_method0(step)?
            };
            Ok(())
        };
        step().map_err(thrown)
    }

    fn state(&self) -> Result<State> {
        let state = || -> PyResult<State> {
            match self.0.hasattr("state_dict")? {
                true => from_dict(&self.0.call_method0("state_dict")?.cast_into::<PyDict>()?),
                false => Ok(State::default()),
            }
        };
        state().map_err(thrown)
    }

    fn load_state(&mut self, state: &State) -> Result<()> {
        let load = || -> PyResult<()> {
            if self.0.hasattr("load_state_dict")? {
                self.0.call_method1("load_state_dict", (to_dict(self.0.py(), state.clone())?,))?;
            }
            Ok(())
        };
        load().map_err(thrown)
    }
}

/// Runs what may wait for other ranks detached from the interpreter; without them it stays attached, which other threads might take away.
fn away<T: Send>(py: Python<'_>, ranks: bool, run: impl FnOnce() -> T + Send) -> T {
    if ranks { py.detach(run) } else { run() }
}

/// A model of Python's under the loop.
struct PythonStepper<'py> {
    run: Bound<'py, Loop>,
    trainer: Bound<'py, PyAny>,
    session: Bound<'py, Session>,
    /// As it was when the mode was set last: callbacks read its parameters.
    model: PythonModule,
    queue: netcl::autograd::Queue,
    groups: Vec<ParamGroup>,
    schedule: Option<PythonSchedule<'py>>,
    capture: bool,
    /// Whether there are other ranks, which may be threads of this process: nobody waits for them with the interpreter in his hands.
    ranks: bool,
    /// Captured updates so far.
    replays: usize,
}

impl<'py> PythonStepper<'py> {
    fn new(run: &Bound<'py, Loop>, trainer: &Bound<'py, PyAny>, capture: bool) -> PyResult<PythonStepper<'py>> {
        let session = trainer.getattr("_session")?.cast_into::<Session>()?;
        let schedule = trainer.getattr("schedule")?;
        let queue = trainer.getattr("queue")?;
        let queue = queue_from_py(&queue)?
            .ok_or_else(|| PyTypeError::new_err(format!("Trainer: device_queue is a {}, no queue", kind(&queue))))?;
        let groups = session.get().optimizer.get().lock().groups().to_vec();
        let ranks = session.get().lock().group().is_some();
        Ok(PythonStepper {
            run: run.clone(),
            trainer: trainer.clone(),
            model: PythonModule::new(&trainer.getattr("model")?)?,
            queue,
            groups,
            schedule: (!schedule.is_none()).then_some(PythonSchedule(schedule)),
            session,
            capture,
            ranks,
            replays: 0,
        })
    }

    fn call(&self, group: &[Bound<'py, PyAny>], samples: &[usize], captured: bool) -> PyResult<()> {
        let py = self.trainer.py();
        let all: usize = samples.iter().sum();
        let shares: Vec<f64> = samples.iter().map(|&samples| samples as f64 / all as f64).collect();
        let group = PyList::new(py, group)?;
        self.trainer.call_method1(intern!(py, "_update"), (group, shares, captured)).map(drop)
    }

    fn abandon(&self) {
        let session = self.session.get();
        session.lock().abandon(session.optimizer.get().lock().as_ref());
    }
}

impl<'py> Stepper for PythonStepper<'py> {
    type Batch = Bound<'py, PyAny>;

    fn samples(&self, batch: &Self::Batch) -> Result<usize> {
        let look = Look::at(batch).map_err(thrown)?;
        look.samples.ok_or_else(|| {
            let what =
                "fit: a batch has no tensors; a loader gives tuples such as (inputs, targets) of arrays or tensors";
            thrown(PyTypeError::new_err(what))
        })
    }

    fn bytes(&self, batch: &Self::Batch) -> usize {
        Look::at(batch).map_or(0, |look| look.bytes)
    }

    fn kind(&self, group: &[Self::Batch]) -> Result<Option<u64>> {
        if !self.capture || self.run.borrow().eager.is_some() || self.session.get().lock().keep_gradients {
            return Ok(None);
        }
        let mut kind = 0u64;
        for batch in group {
            kind = kind.rotate_left(7) ^ Look::at(batch).map_err(thrown)?.kind();
        }
        Ok(Some(kind))
    }

    fn update(&mut self, group: &[Self::Batch], samples: &[usize], captured: bool) -> Result<Way> {
        let py = self.trainer.py();
        let done = self.call(group, samples, captured);
        let Err(error) = done else {
            // Recordings are counted in Python; now and then is often enough.
            self.replays += usize::from(captured);
            let given_up: Option<String> = match captured && self.replays.is_multiple_of(16) {
                true => {
                    self.trainer.call_method0(intern!(py, "_given_up")).and_then(|why| why.extract()).map_err(thrown)?
                }
                false => None,
            };
            if let Some(why) = given_up {
                self.run.borrow_mut().eager = Some(why.clone());
                return Ok(Way::Eager(Some(why)));
            }
            return Ok(if captured { Way::Replayed } else { Way::Eager(None) });
        };
        self.abandon();
        if !captured || error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return Err(thrown(error));
        }
        // Where the same step works as it is written, only the recording was refused.
        self.call(group, samples, false).map_err(|error| {
            self.abandon();
            thrown(error)
        })?;
        let why = error.value(py).to_string();
        self.run.borrow_mut().eager = Some(why.clone());
        Ok(Way::Eager(Some(why)))
    }

    fn validate(&mut self, batch: &Self::Batch, samples: usize) -> Result<()> {
        let py = batch.py();
        let run = || -> PyResult<_> {
            let result = self.trainer.call_method1(intern!(py, "_validate"), (batch,))?;
            type Given<'a> = (Bound<'a, Tensor>, Option<Bound<'a, Tensor>>, Option<Bound<'a, PyAny>>);
            let (loss, predictions, target): Given<'_> = result.extract()?;
            output(loss.get(), predictions.as_ref().map(Bound::get), target.as_ref())
        };
        let output = run().map_err(thrown)?;
        self.session.get().lock().validated(&output, samples)
    }

    fn diagnose(&mut self, batch: &Self::Batch) -> Option<String> {
        let found = self.trainer.call_method1("_diagnose", (batch,)).and_then(|found| found.extract());
        self.abandon();
        found.unwrap_or_else(|error: PyErr| Some(error.value(batch.py()).to_string()))
    }

    fn set_training(&mut self, training: bool) -> Result<()> {
        let set = || -> PyResult<PythonModule> {
            let model = self.trainer.getattr("model")?;
            model.call_method1("train", (training,))?;
            PythonModule::new(&model)
        };
        self.model = set().map_err(thrown)?;
        Ok(())
    }

    fn is_training(&self) -> Result<bool> {
        let mode = || self.trainer.getattr("model")?.getattr("training")?.is_truthy();
        mode().map_err(thrown)
    }

    fn learning_rate(&self) -> f64 {
        self.groups.first().map_or(0.0, ParamGroup::learning_rate)
    }

    fn recapture(&mut self) {
        // A failure leaves programs that are checked against the model at each call.
        let _ = self.trainer.call_method0("_forget");
        self.session.get().lock().forget();
    }

    fn session<R: Send>(&mut self, f: impl FnOnce(&mut Shared) -> Result<R> + Send) -> Result<R> {
        let session = self.session.get();
        away(self.trainer.py(), self.ranks, || f(&mut session.lock()))
    }

    fn wait<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        away(self.trainer.py(), self.ranks, f)
    }

    fn show<R>(
        &mut self,
        f: impl FnOnce(&mut dyn Module, &netcl::autograd::Queue, &[ParamGroup]) -> Result<R>,
    ) -> Result<R> {
        f(&mut self.model, &self.queue, &self.groups)
    }

    fn schedule<R>(&mut self, f: impl FnOnce(&mut dyn Scheduled) -> Result<R>) -> Result<Option<R>> {
        self.schedule.as_mut().map(|schedule| f(schedule)).transpose()
    }

    fn held<R: Send>(&mut self, f: impl FnOnce(Held<'_>) -> Result<R> + Send) -> Result<R> {
        let (session, model) = (self.session.get(), &mut self.model);
        let result = away(self.trainer.py(), self.ranks, || {
            let mut optimizer = session.optimizer.get().lock();
            let mut scaler = session.scaler.as_ref().map(|scaler| scaler.get().lock());
            let mut ema = session.ema.as_ref().map(|ema| ema.get().lock());
            let (scaler, ema) = (scaler.as_deref_mut(), ema.as_deref_mut());
            f(Held { model, optimizer: optimizer.as_mut(), scaler, ema })
        });
        self.model.bring_back(self.trainer.py()).map_err(thrown)?;
        result
    }
}
