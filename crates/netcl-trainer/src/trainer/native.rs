//! The trainer for models written in Rust.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use netcl_amp::{DType, GradScaler, GradScalerOptions, autocast};
use netcl_distributed::Group;
use netcl_nn::Module;
use netcl_nn::autograd::{Queue, Tensor, detect_anomaly, enable_grad, no_grad};
use netcl_optim::schedule::Schedule;
use netcl_optim::{Ema, EmaOptions, Optimizer, ParamGroup};
use netcl_runtime::capture::{Captured, Tensors, capture};
use serde_json::{Map, Value};

use super::callback::Callback;
use super::find_lr::LrCurve;
use super::fit::{self, Held, LAST, LoopOptions, Outcome, Stepper, Way};
use super::history::History;
use super::loader::Loader;
use super::metric::Metric;
use super::progress::Progress;
use super::schedule::{ScheduleEvery, Scheduled};
use super::session::{Output, Parts, Session};
use super::trouble;
use crate::error::{Error, Result};

/// What a [`Trainer`] does besides the update itself.
#[derive(Clone, Debug)]
pub struct TrainerOptions {
    /// Products in 16 bits: `float16` with a scaled loss, or `bfloat16`.
    pub mixed_precision: Option<DType>,
    /// The largest norm of all gradients together.
    pub grad_clip: Option<f64>,
    /// Batches whose gradients make one update.
    pub accumulation_steps: usize,
    /// The decay of an average of the weights, which validation and checkpoints then use.
    pub ema: Option<EmaOptions>,
    /// Whether steps are captured where their shapes repeat.
    pub capture: bool,
    /// When the schedule moves on.
    pub schedule_every: ScheduleEvery,
    /// Validation after every so many epochs, and after the last.
    pub validate_every: usize,
    /// Where checkpoints are kept.
    pub folder: Option<PathBuf>,
    /// What checkpoints say besides, such as how to build the model.
    pub metadata: Map<String, Value>,
    /// The ranks that train together. `None` is that of the process, [`netcl_distributed::init`]: all that `netcl launch` or `mpirun` have
    /// started, and no other otherwise. [`Group::alone`] trains alone wherever it runs.
    pub group: Option<Group>,
}

impl Default for TrainerOptions {
    fn default() -> TrainerOptions {
        TrainerOptions {
            mixed_precision: None,
            grad_clip: None,
            accumulation_steps: 1,
            ema: None,
            capture: true,
            schedule_every: ScheduleEvery::Step,
            validate_every: 1,
            folder: None,
            metadata: Map::new(),
            group: None,
        }
    }
}

/// What a batch gives: the loss, and what metrics compare.
type Task<M, B> = dyn Fn(&M, &B) -> Result<Output>;
/// One update from a group of batches.
type Update<B> = Box<dyn FnMut(&Vec<B>) -> Result<()>>;
type Step<B> = Captured<Vec<B>, (), Error, Update<B>>;

/// Trains a model: any task whose batch gives a loss.
///
/// ```
/// use netcl_nn::autograd::{IndexTensor, Tensor, manager};
/// use netcl_nn::{Linear, functional as F};
/// use netcl_nn::Module;
/// use netcl_optim::SGD;
/// use netcl_trainer::trainer::{Batches, Outcome, Output, Trainer, TrainerOptions, Truth};
///
/// let queue = manager().cpu().queue;
/// let model = Linear::new(&queue, 2, 2)?;
/// let opt = SGD::new(model.parameters(), 0.5)?;
/// let mut trainer = Trainer::new(model, opt, TrainerOptions::default(), |model, (x, y): &(Tensor, IndexTensor)| {
///     let logits = model.forward(x)?;
///     let loss = F::cross_entropy(&logits, y)?;
///     Ok(Output { loss, predictions: Some((logits, Truth::Index(y.clone()))) })
/// })?;
/// let x = Tensor::from_host(&queue, &[1.0f32, 0.0, 0.0, 1.0], [2, 2])?;
/// let y = IndexTensor::from_host(&queue, &[0i64, 1], [2])?;
/// let mut loader = Batches::new(vec![(x, y); 10]);
/// assert_eq!(trainer.fit(&mut loader, None, 5)?, Outcome::Finished);
/// assert!(trainer.evaluate(&mut loader)?["loss"] < 0.2);
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
pub struct Trainer<M, B> {
    stepper: Native<M, B>,
    options: TrainerOptions,
    callbacks: Vec<Box<dyn Callback>>,
    progress: Progress,
}

impl<M: Module, B: Tensors + Batch + 'static> Trainer<M, B> {
    /// A trainer of a model with an optimizer of its parameters; `task` gives the loss of a batch.
    ///
    /// # Errors
    /// For options out of range.
    pub fn new(
        model: M,
        optimizer: impl Optimizer + 'static,
        options: TrainerOptions,
        task: impl Fn(&M, &B) -> Result<Output> + 'static,
    ) -> Result<Trainer<M, B>> {
        if options.accumulation_steps == 0 {
            return Err(Error::setting("accumulation_steps is 0; an update needs at least 1 batch"));
        }
        if let Some(clip) = options.grad_clip.filter(|clip| !(clip.is_finite() && *clip > 0.0)) {
            return Err(Error::setting(format!("grad_clip is {clip}; use a norm above 0, such as 1.0")));
        }
        let scaler = match options.mixed_precision {
            Some(DType::F16) => Some(GradScaler::new(&GradScalerOptions::default())?),
            _ => None,
        };
        let ema = options.ema.map(|ema| Ema::new(model.parameters(), ema)).transpose()?;
        let groups = optimizer.groups().to_vec();
        let queue = model.parameters().first().map(|parameter| parameter.queue().clone());
        let queue = queue.ok_or_else(|| Error::setting("the model has no parameters to train"))?;
        let group = options.group.clone().map_or_else(netcl_distributed::init, Ok)?;
        let session = Session::new(options.grad_clip).over(group);
        let inner = Inner { model, optimizer: Box::new(optimizer), scaler, ema, session, task: Rc::new(task) };
        let inner = Rc::new(RefCell::new(inner));
        let recorded = inner.clone();
        let precision = options.mixed_precision;
        let step: Update<B> = Box::new(move |group| recorded.borrow_mut().step(group, precision));
        let stepper =
            Native { inner, step: options.capture.then(|| capture(step)), schedule: None, groups, queue, precision };
        Ok(Trainer { stepper, options, callbacks: Vec::new(), progress: Progress::default() })
    }

    /// With a learning rate that changes.
    pub fn schedule(mut self, schedule: impl Schedule + 'static) -> Self {
        let schedule: Box<dyn Schedule> = Box::new(schedule);
        self.stepper.schedule = Some(Box::new(schedule));
        self
    }

    /// With another callback.
    pub fn callback(mut self, callback: impl Callback + 'static) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// With a figure that is gathered over training batches, and one over those of the validation.
    pub fn metric(self, training: impl Metric + 'static, validation: impl Metric + 'static) -> Self {
        {
            let session = &mut self.stepper.inner.borrow_mut().session;
            session.training.push(Box::new(training));
            session.validation.push(Box::new(validation));
        }
        self
    }

    /// Adds a callback, in the place of one of the same name.
    pub fn add_callback(&mut self, callback: Box<dyn Callback>) {
        self.callbacks.retain(|other| other.name() != callback.name());
        self.callbacks.push(callback);
    }

    /// Trains up to so many epochs in all, on from where the trainer is. Ranks call it together; callbacks are called on rank 0 alone,
    /// which writes all files. A loader's [`sharing`](Loader::sharing) says which batches are a rank's.
    ///
    /// # Errors
    /// As [`fit::run`].
    pub fn fit(
        &mut self,
        train: &mut dyn Loader<Batch = B>,
        valid: Option<&mut dyn Loader<Batch = B>>,
        epochs: usize,
    ) -> Result<Outcome> {
        self.fit_until(train, valid, epochs, &|| false)
    }

    /// [`Trainer::fit`] until `stop` says so before an update.
    ///
    /// # Errors
    /// As [`fit::run`].
    pub fn fit_until(
        &mut self,
        train: &mut dyn Loader<Batch = B>,
        valid: Option<&mut dyn Loader<Batch = B>>,
        epochs: usize,
        stop: &dyn Fn() -> bool,
    ) -> Result<Outcome> {
        let options = LoopOptions {
            epochs,
            accumulation_steps: self.options.accumulation_steps,
            schedule_every: self.options.schedule_every,
            validate_every: self.options.validate_every,
            folder: self.options.folder.clone(),
            metadata: self.options.metadata.clone(),
            stop,
        };
        let rank = self.stepper.inner.borrow().session.group().map_or(0, Group::rank);
        let callbacks = if rank == 0 { &mut self.callbacks[..] } else { &mut [] };
        fit::run(&mut self.stepper, train, valid, &options, callbacks, &mut self.progress)
    }

    /// Goes on from a checkpoint: a file, or a folder with `last.netcl`.
    ///
    /// # Errors
    /// If it is damaged or does not fit.
    pub fn resume(&mut self, place: impl AsRef<Path>) -> Result<()> {
        let place = place.as_ref();
        let path = if place.is_dir() { place.join(LAST) } else { place.to_owned() };
        self.progress = fit::resume(&mut self.stepper, &mut self.callbacks, &path)?;
        Ok(())
    }

    /// Writes a checkpoint.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn checkpoint(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        fit::write_checkpoint(&mut self.stepper, &self.progress, &self.options.metadata, path)
    }

    /// The mean loss and all metrics over a loader's batches. Ranks call it together.
    ///
    /// # Errors
    /// Those of the model, the data and the metrics.
    pub fn evaluate(&mut self, loader: &mut dyn Loader<Batch = B>) -> Result<BTreeMap<String, f64>> {
        fit::validate(&mut self.stepper, loader, 1)
    }

    /// Which learning rate to begin with; everything is as before afterwards.
    ///
    /// # Errors
    /// As [`find_lr`](super::find_lr::find_lr).
    pub fn find_lr(
        &mut self,
        loader: &mut dyn Loader<Batch = B>,
        start: f64,
        end: f64,
        updates: usize,
    ) -> Result<LrCurve> {
        super::find_lr::find_lr(&mut self.stepper, loader, start, end, updates)
    }

    /// What happened so far.
    pub fn history(&self) -> &History {
        &self.progress.history
    }

    /// How far the run is.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Looks at the model.
    pub fn with_model<R>(&self, f: impl FnOnce(&mut M) -> R) -> R {
        f(&mut self.stepper.inner.borrow_mut().model)
    }

    /// Looks at the model with the average of its weights, where one is kept.
    ///
    /// # Errors
    /// What the device says.
    pub fn with_averages<R>(&mut self, f: impl FnOnce(&mut M) -> R) -> Result<R> {
        fit::swap(&mut self.stepper)?;
        let result = self.with_model(f);
        fit::swap(&mut self.stepper)?;
        Ok(result)
    }

    /// The model, and an end to the trainer.
    ///
    /// # Errors
    /// Never in practice: the trainer is the only one that holds it.
    pub fn into_model(self) -> Result<M> {
        let Native { inner, step, .. } = self.stepper;
        drop(step);
        match Rc::try_unwrap(inner) {
            Ok(inner) => Ok(inner.into_inner().model),
            Err(_) => Err(Error::setting("the model is in use")),
        }
    }
}

/// What a batch of a [`Trainer`] is: tensors whose first axis counts samples.
pub trait Batch {
    /// The number of samples.
    fn samples(&self) -> usize;
}

impl<A: Tensors, T> Batch for (A, T) {
    /// The length of the first tensor's first axis.
    fn samples(&self) -> usize {
        let mut first = None;
        self.0.visit(&mut |tensor| {
            first.get_or_insert(tensor.shape().first().copied().unwrap_or(1));
        });
        first.unwrap_or(1)
    }
}

impl Batch for Tensor {
    fn samples(&self) -> usize {
        self.shape().first().copied().unwrap_or(1)
    }
}

struct Inner<M, B> {
    model: M,
    optimizer: Box<dyn Optimizer>,
    scaler: Option<GradScaler>,
    ema: Option<Ema>,
    session: Session,
    task: Rc<Task<M, B>>,
}

impl<M: Module, B: Batch> Inner<M, B> {
    fn step(&mut self, group: &[B], precision: Option<DType>) -> Result<()> {
        let _recording = enable_grad();
        let all: usize = group.iter().map(Batch::samples).sum();
        let mut parts = Parts { optimizer: &mut *self.optimizer, scaler: self.scaler.as_mut(), ema: self.ema.as_mut() };
        for batch in group {
            let output = forward(&*self.task, &self.model, batch, precision)?;
            self.session.backward(&output, batch.samples() as f64 / all as f64, &mut parts)?;
            if let Some((predictions, truth)) = output.predictions.filter(|_| self.session.observes()) {
                self.session.observe(&predictions.detach(), &truth)?;
            }
        }
        self.session.apply(&mut parts)
    }
}

fn forward<M, B>(task: &Task<M, B>, model: &M, batch: &B, precision: Option<DType>) -> Result<Output> {
    let _scope = precision.map(autocast).transpose()?;
    task(model, batch)
}

struct Native<M, B> {
    inner: Rc<RefCell<Inner<M, B>>>,
    /// `None` once capturing has failed.
    step: Option<Step<B>>,
    schedule: Option<Box<dyn Scheduled>>,
    groups: Vec<ParamGroup>,
    queue: Queue,
    precision: Option<DType>,
}

impl<M: Module, B: Tensors + Batch + 'static> Native<M, B> {
    fn eager(&mut self, group: &[B]) -> Result<()> {
        let precision = self.precision;
        let inner = &mut *self.inner.borrow_mut();
        let done = inner.step(group, precision);
        if done.is_err() {
            inner.session.abandon(&*inner.optimizer);
        }
        done
    }
}

impl<M: Module, B: Tensors + Batch + 'static> Stepper for Native<M, B> {
    type Batch = B;

    fn samples(&self, batch: &B) -> Result<usize> {
        Ok(batch.samples())
    }

    fn bytes(&self, batch: &B) -> usize {
        let mut bytes = 0;
        batch.visit(&mut |tensor| bytes += tensor.size() * tensor.dtype().size());
        bytes
    }

    fn kind(&self, group: &[B]) -> Result<Option<u64>> {
        let session = &self.inner.borrow().session;
        if self.step.is_none() || session.keep_gradients || session.observes() {
            return Ok(None);
        }
        let mut kind = DefaultHasher::new();
        for batch in group {
            batch.visit(&mut |tensor| (&tensor.shape()[..], tensor.dtype().name()).hash(&mut kind));
        }
        Ok(Some(kind.finish()))
    }

    fn update(&mut self, group: &[B], _samples: &[usize], capture: bool) -> Result<Way> {
        let Some(step) = self.step.as_mut().filter(|_| capture) else {
            return self.eager(group).map(|()| Way::Eager(None));
        };
        let group =
            group.iter().map(|batch| batch.replace(&mut |tensor| Ok(tensor.clone()))).collect::<Result<Vec<B>, _>>()?;
        match step.call(&group) {
            Ok(_) => Ok(Way::Replayed),
            Err(error) if trouble::is_of_capture(&error) => {
                self.step = None;
                {
                    let inner = &mut *self.inner.borrow_mut();
                    inner.session.abandon(&*inner.optimizer);
                }
                self.eager(&group)?;
                Ok(Way::Eager(Some(error.to_string())))
            }
            Err(error) => Err(error),
        }
    }

    fn validate(&mut self, batch: &B, samples: usize) -> Result<()> {
        let _scope = no_grad();
        let inner = &mut *self.inner.borrow_mut();
        let output = forward(&*inner.task, &inner.model, batch, self.precision)?;
        inner.session.validated(&output, samples)
    }

    fn diagnose(&mut self, batch: &B) -> Option<String> {
        let inner = &mut *self.inner.borrow_mut();
        let _recording = enable_grad();
        let _scope = detect_anomaly();
        let found = forward(&*inner.task, &inner.model, batch, self.precision)
            .and_then(|output| Ok(output.loss.backward()?))
            .err();
        inner.optimizer.zero_grad();
        found.and_then(|error| trouble::words(&error))
    }

    fn set_training(&mut self, training: bool) -> Result<()> {
        let model = &mut self.inner.borrow_mut().model;
        if training {
            model.train()
        } else {
            model.eval()
        }
        Ok(())
    }

    fn is_training(&self) -> Result<bool> {
        Ok(self.inner.borrow().model.training())
    }

    fn learning_rate(&self) -> f64 {
        self.groups.first().map_or(0.0, ParamGroup::learning_rate)
    }

    fn recapture(&mut self) {
        if let Some(step) = &mut self.step {
            step.clear();
        }
        self.inner.borrow_mut().session.forget();
    }

    fn session<R: Send>(&mut self, f: impl FnOnce(&mut Session) -> Result<R> + Send) -> Result<R> {
        f(&mut self.inner.borrow_mut().session)
    }

    fn show<R>(&mut self, f: impl FnOnce(&mut dyn Module, &Queue, &[ParamGroup]) -> Result<R>) -> Result<R> {
        f(&mut self.inner.borrow_mut().model, &self.queue, &self.groups)
    }

    fn schedule<R>(&mut self, f: impl FnOnce(&mut dyn Scheduled) -> Result<R>) -> Result<Option<R>> {
        self.schedule.as_mut().map(|schedule| f(&mut **schedule)).transpose()
    }

    fn held<R: Send>(&mut self, f: impl FnOnce(Held<'_>) -> Result<R> + Send) -> Result<R> {
        let inner = &mut *self.inner.borrow_mut();
        f(Held {
            model: &mut inner.model,
            optimizer: &mut *inner.optimizer,
            scaler: inner.scaler.as_mut(),
            ema: inner.ema.as_mut(),
        })
    }
}
