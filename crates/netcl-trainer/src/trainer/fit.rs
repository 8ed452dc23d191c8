//! The loop: batches become updates, updates become epochs, and everything is kept that a resumed run needs.

mod together;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netcl_amp::GradScaler;
use netcl_distributed::Group;
use netcl_io::Checkpoint;
use netcl_nn::Module;
use netcl_nn::autograd::{Queue, Tensor};
use netcl_optim::{Ema, Optimizer, ParamGroup};
use serde_json::{Map, Value};

use super::callback::{Callback, Context};
use super::history::{Epoch, Step};
use super::loader::{Loader, Sharing};
use super::losses::CAPACITY;
use super::progress::Progress;
use super::ranks;
use super::schedule::{ScheduleEvery, Scheduled};
use super::session::Session;
use super::trouble;
use crate::error::{Error, Result};
use together::Agreed;

/// After this time losses are read even if there is room for more: whoever watches a slow run wants to see it move.
const READ_AFTER: Duration = Duration::from_millis(200);
/// Batches are kept until their losses are known, but not more than these bytes of them.
const KEPT_BYTES: usize = 256 << 20;

/// How an update was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// The launches of a captured step.
    Replayed,
    /// As it was written; the reason is one to tell where capturing was tried in vain.
    Eager(Option<String>),
}

/// How the batches of a model in some language are run. Everything else of a run is the same for all.
pub trait Stepper {
    /// What a step takes.
    type Batch;

    /// The samples of a batch.
    ///
    /// # Errors
    /// For a batch that has none.
    fn samples(&self, batch: &Self::Batch) -> Result<usize>;

    /// The bytes of a batch.
    fn bytes(&self, batch: &Self::Batch) -> usize;

    /// A number that is equal for batches of equal shapes and dtypes, on every rank; `None` where their update is not to be captured.
    ///
    /// # Errors
    /// For batches that cannot be read.
    fn kind(&self, group: &[Self::Batch]) -> Result<Option<u64>>;

    /// One update from the batches of `group`, whose samples are counted in `samples`, as a captured step where `capture` says so. Calls
    /// [`Session::backward`] for each and [`Session::apply`] once, also for no batches: other ranks may have some.
    ///
    /// # Errors
    /// Those of the model.
    fn update(&mut self, group: &[Self::Batch], samples: &[usize], capture: bool) -> Result<Way>;

    /// Runs a batch without gradients and hands it to [`Session::validated`].
    ///
    /// # Errors
    /// Those of the model.
    fn validate(&mut self, batch: &Self::Batch, samples: usize) -> Result<()>;

    /// Forward, loss and backward of a batch in anomaly mode; gives the words of the first operation with a result that is not
    /// finite.
    fn diagnose(&mut self, batch: &Self::Batch) -> Option<String>;

    /// Switches between training and evaluation.
    ///
    /// # Errors
    /// If the model refuses.
    fn set_training(&mut self, training: bool) -> Result<()>;

    /// Whether the model is in training mode.
    fn is_training(&self) -> Result<bool>;

    /// The learning rate of the first group of parameters.
    fn learning_rate(&self) -> f64;

    /// Forgets captured steps.
    fn recapture(&mut self);

    /// What is shared by all models. As in [`Stepper::wait`], other threads of the model's language go on meanwhile.
    ///
    /// # Errors
    /// Those of `f`.
    fn session<R: Send>(&mut self, f: impl FnOnce(&mut Session) -> Result<R> + Send) -> Result<R>;

    /// Waits for other ranks; threads of the model's language go on meanwhile.
    fn wait<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        f()
    }

    /// The model, where it lies and the optimizer's groups, for callbacks.
    ///
    /// # Errors
    /// Those of `f`.
    fn show<R>(&mut self, f: impl FnOnce(&mut dyn Module, &Queue, &[ParamGroup]) -> Result<R>) -> Result<R>;

    /// The schedule, where there is one.
    ///
    /// # Errors
    /// Those of `f`.
    fn schedule<R>(&mut self, f: impl FnOnce(&mut dyn Scheduled) -> Result<R>) -> Result<Option<R>>;

    /// Everything else that has a state. No callback is called while it is held, and other threads of the model's language go on.
    ///
    /// # Errors
    /// Those of `f`.
    fn held<R: Send>(&mut self, f: impl FnOnce(Held<'_>) -> Result<R> + Send) -> Result<R>;
}

/// What has a state in a run.
pub struct Held<'h> {
    /// The model.
    pub model: &'h mut dyn Module,
    /// The optimizer.
    pub optimizer: &'h mut dyn Optimizer,
    /// The loss scale.
    pub scaler: Option<&'h mut GradScaler>,
    /// The average of the parameters.
    pub ema: Option<&'h mut Ema>,
}

/// What decides how [`run`] goes about it.
pub struct LoopOptions<'o> {
    /// Epochs in all, those before a resume included.
    pub epochs: usize,
    /// Batches of one update.
    pub accumulation_steps: usize,
    /// When the schedule moves on.
    pub schedule_every: ScheduleEvery,
    /// Validation after every so many epochs, and after the last.
    pub validate_every: usize,
    /// Where `last.netcl` is kept after each epoch and when the run is stopped.
    pub folder: Option<PathBuf>,
    /// What checkpoints say besides, such as how to build the model.
    pub metadata: Map<String, Value>,
    /// Asked before every update: whether to stop here. What was done is kept.
    pub stop: &'o dyn Fn() -> bool,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// All epochs are done.
    Finished,
    /// A callback ended it, for this reason.
    Ended(String),
    /// It was asked to stop; the checkpoint, where there is a folder.
    Stopped(Option<PathBuf>),
}

/// The file of a run's newest checkpoint.
pub const LAST: &str = "last.netcl";

/// An update that is on the device.
struct Pending<B> {
    step: usize,
    lr: f64,
    samples: usize,
    batches: (usize, usize),
    group: Vec<B>,
}

/// Trains until all epochs are done, a callback ends the run, or it is asked to stop.
///
/// With a [group](Session::over) of ranks, all call it together. Rank 0 writes the checkpoints, and what its callbacks ask for holds for
/// all: other ranks need callbacks only to watch. Before an update ranks agree on the number of its samples, and on whether to stop after
/// it, so that all end at the same one. An error on one rank ends all of them. They record, replay or run a step as it is written alike: a
/// step is captured where the shapes of all ranks' batches repeat.
///
/// # Errors
/// For a loss that is not finite ([`Error::NotFinite`]), memory that does not suffice, errors of the model, the data, a
/// callback, and a checkpoint that cannot be written.
pub fn run<S: Stepper>(
    stepper: &mut S,
    train: &mut dyn Loader<Batch = S::Batch>,
    mut valid: Option<&mut dyn Loader<Batch = S::Batch>>,
    options: &LoopOptions<'_>,
    callbacks: &mut [Box<dyn Callback>],
    progress: &mut Progress,
) -> Result<Outcome> {
    let group = stepper.session(|session| Ok(session.group.clone()))?;
    let together = match (&group, train.sharing()) {
        (Some(group), Sharing::Turns) => group.size(),
        _ => 1,
    };
    let per_update = options.accumulation_steps.max(1).saturating_mul(together);
    let per_epoch = train.batches().map(|batches| batches.div_ceil(per_update));
    let stop = false;
    let (end, keep, forget) = (None, Vec::new(), false);
    let mut run = Run { stepper, options, callbacks, progress, group, per_epoch, stop, end, keep, forget };
    let outcome = run.all(train, &mut valid);
    if let (Err(error), Some(group)) = (&outcome, &run.group)
        && !error.is_of_all_ranks()
    {
        group.abort(&error.to_string());
    }
    outcome
}

struct Run<'r, S: Stepper> {
    stepper: &'r mut S,
    options: &'r LoopOptions<'r>,
    callbacks: &'r mut [Box<dyn Callback>],
    progress: &'r mut Progress,
    /// The other ranks, if there are any.
    group: Option<Group>,
    /// Updates in an epoch.
    per_epoch: Option<usize>,
    /// Whether ranks have agreed to stop.
    stop: bool,
    /// Why a callback wants the run to end.
    end: Option<String>,
    /// Names of checkpoints that callbacks want.
    keep: Vec<String>,
    /// Whether a callback has changed what captured steps use: they are forgotten before the next update, on all ranks.
    forget: bool,
}

type Validation<'v, B> = Option<&'v mut dyn Loader<Batch = B>>;

impl<S: Stepper> Run<'_, S> {
    /// Calls every callback, and takes over what it asks for.
    fn call(&mut self, mut f: impl FnMut(&mut dyn Callback, &mut Context<'_>) -> Result<()>) -> Result<()> {
        if self.callbacks.is_empty() {
            return Ok(());
        }
        let Run { stepper, options, callbacks, progress, per_epoch, end, keep, .. } = self;
        self.forget |= stepper.show(|model, queue, groups| {
            let mut context = Context {
                model,
                groups,
                queue,
                history: &progress.history,
                epochs: options.epochs,
                steps_per_epoch: *per_epoch,
                stop: None,
                keep: Vec::new(),
                recapture: false,
            };
            for callback in callbacks.iter_mut() {
                f(&mut **callback, &mut context).map_err(|error| error.in_callback(callback.name()))?;
                keep.append(&mut context.keep);
                if let Some(why) = context.stop.take() {
                    end.get_or_insert(why);
                }
            }
            Ok(context.recapture)
        })?;
        Ok(())
    }

    fn all(
        &mut self,
        train: &mut dyn Loader<Batch = S::Batch>,
        valid: &mut Validation<'_, S::Batch>,
    ) -> Result<Outcome> {
        self.meet()?;
        self.call(|callback, context| callback.fit_begins(context))?;
        let ended = self.epochs(train, valid);
        // Also after an error: files are closed, bars are cleared.
        let closed = self.call(|callback, context| callback.fit_ends(context));
        let outcome = ended?;
        closed?;
        Ok(outcome)
    }

    fn epochs(
        &mut self,
        train: &mut dyn Loader<Batch = S::Batch>,
        valid: &mut Validation<'_, S::Batch>,
    ) -> Result<Outcome> {
        self.stepper.set_training(true)?;
        while self.progress.epochs < self.options.epochs {
            if let Some(stopped) = self.epoch(train, valid)? {
                return Ok(stopped);
            }
            if let Some(why) = self.end.take() {
                return Ok(Outcome::Ended(why));
            }
        }
        Ok(Outcome::Finished)
    }

    /// One epoch, or the rest of it.
    fn epoch(
        &mut self,
        train: &mut dyn Loader<Batch = S::Batch>,
        valid: &mut Validation<'_, S::Batch>,
    ) -> Result<Option<Outcome>> {
        let (start, before, epoch) = (Instant::now(), self.progress.seconds, self.progress.epochs + 1);
        let size = self.group.as_ref().map_or(1, Group::size);
        let own = train.sharing() == Sharing::Own;
        // A loader with samples of one rank stands elsewhere where there are more ranks, or fewer.
        let moved = own && self.progress.generators.len().max(1) != size;
        match std::mem::take(&mut self.progress.loader) {
            state if !moved && !state.is_null() => {
                train.load_state(&state)?;
                train.begin(epoch, 0)?;
            }
            _ => train.begin(epoch, if own { self.progress.batches / size } else { self.progress.batches })?,
        }
        let batches = match (&self.group, train.batches()) {
            (Some(group), Some(batches)) if own => {
                let [all] = self.stepper.wait(|| ranks::sum(group, [batches as f64]))?;
                Some(all as usize)
            }
            (_, batches) => batches,
        };
        self.call(|callback, context| callback.epoch_begins(context, epoch))?;
        self.settle()?;
        if self.progress.history.steps.is_empty() {
            self.call(|callback, context| callback.phase(context, "first step"))?;
        }
        let mut pending: Vec<Pending<S::Batch>> = Vec::new();
        let (mut kept, mut read) = (0, Instant::now());
        loop {
            // After the last batch nothing is left to stop: a resumed epoch without a batch would have no figures.
            if batches.is_some_and(|all| self.progress.batches >= all) {
                break;
            }
            let stop = if self.group.is_some() { self.stop } else { (self.options.stop)() };
            if stop {
                self.read(&mut pending)?;
                self.progress.seconds = before + start.elapsed().as_secs_f64();
                self.progress.loader = train.state()?;
                let kept = self.options.folder.as_deref().map(|folder| self.write(folder, "last")).transpose()?;
                return Ok(Some(Outcome::Stopped(kept)));
            }
            let count = self.options.accumulation_steps.max(1);
            let taken = ranks::take(train, count, self.progress.batches, self.group.as_ref())?;
            kept += taken.group.iter().map(|batch| self.stepper.bytes(batch)).sum::<usize>();
            let due = kept > KEPT_BYTES || read.elapsed() > READ_AFTER;
            let samples = taken.group.iter().map(|batch| self.stepper.samples(batch)).collect::<Result<Vec<_>>>()?;
            let step = self.progress.history.steps.len() + pending.len() + 1;
            self.note_gradients(step)?;
            let agreed = self.agree(&taken, &samples, own, due)?;
            if agreed.moved == 0 {
                break;
            }
            self.update(step, taken.group, &samples, &agreed, &mut pending)?;
            let first = self.progress.history.steps.is_empty();
            if first || pending.len() == CAPACITY || agreed.read {
                self.read(&mut pending)?;
                (kept, read) = (0, Instant::now());
            }
            if let Some(why) = self.end.take_if(|_| pending.is_empty()) {
                // In the middle of an epoch: it can be resumed from here.
                self.progress.seconds = before + start.elapsed().as_secs_f64();
                self.progress.loader = train.state()?;
                if let Some(folder) = &self.options.folder {
                    self.write(folder, "last")?;
                }
                return Ok(Some(Outcome::Ended(why)));
            }
        }
        self.read(&mut pending)?;
        if let Some(group) = &self.group {
            // Each rank has statistics of its own batches.
            let buffers = self.stepper.show(|model, _, _| Ok(ranks::buffers(model)))?;
            self.stepper.wait(|| ranks::broadcast(group, &buffers))?;
        }
        let mut values = self.stepper.session(Session::training_values)?;
        let (loss, samples) = self.mean_loss(epoch);
        values.insert("loss".to_owned(), loss);
        let trained = before + start.elapsed().as_secs_f64();
        let due = epoch.is_multiple_of(self.options.validate_every.max(1)) || epoch == self.options.epochs;
        if let Some(valid) = valid.as_mut().filter(|_| due) {
            self.call(|callback, context| callback.phase(context, "validation"))?;
            let found = validate(self.stepper, &mut **valid, epoch)?;
            values.extend(found.into_iter().map(|(name, value)| (format!("val_{name}"), value)));
        }
        self.schedule(ScheduleEvery::Epoch, values.get("val_loss").copied().unwrap_or(loss))?;
        values.insert("lr".to_owned(), self.stepper.learning_rate());
        let steps = self.progress.history.steps.len();
        let seconds = before + start.elapsed().as_secs_f64();
        let mut done = Epoch { epoch, steps, samples, seconds, values };
        self.stepper.show(|_, queue, _| {
            done.note_device(queue, trained);
            Ok(())
        })?;
        self.progress.history.epochs.push(done.clone());
        self.progress.epochs = epoch;
        (self.progress.batches, self.progress.seconds) = (0, 0.0);
        self.call(|callback, context| callback.epoch_ends(context, &done))?;
        self.settle()?;
        self.keep_asked()?;
        if let Some(folder) = &self.options.folder {
            self.write(folder, "last")?;
        }
        Ok(None)
    }

    /// Notes whether callbacks look at the gradients of an update, which is then not captured.
    fn note_gradients(&mut self, step: usize) -> Result<()> {
        let wanted = self.callbacks.iter().map(|callback| callback.wants_gradients());
        let keep = wanted.filter(|&every| every > 0).any(|every| step.is_multiple_of(every));
        self.stepper.session(|session| {
            session.keep_gradients = keep;
            Ok(())
        })
    }

    /// Puts one update on the device.
    fn update(
        &mut self,
        step: usize,
        group: Vec<S::Batch>,
        samples: &[usize],
        agreed: &Agreed,
        pending: &mut Vec<Pending<S::Batch>>,
    ) -> Result<()> {
        let lr = self.stepper.learning_rate();
        let ran = self.stepper.update(&group, samples, agreed.capture);
        let way = ran.map_err(|error| trouble::explain(error, self.stepper, samples))?;
        self.stepper.session(Session::add_resumed)?;
        if let Way::Eager(Some(why)) = way {
            self.call(|callback, context| callback.phase(context, &format!("step by step, not captured: {why}")))?;
        }
        if self.stepper.session(|session| Ok(session.keep_gradients))? {
            self.gradients(step)?;
        }
        self.schedule(ScheduleEvery::Step, f64::NAN)?;
        let first = self.progress.batches;
        self.progress.batches += agreed.moved;
        let batches = (first + 1, self.progress.batches);
        pending.push(Pending { step, lr, samples: agreed.samples, batches, group });
        Ok(())
    }

    /// Shows the gradients of an update to the callbacks that asked, and drops them.
    fn gradients(&mut self, step: usize) -> Result<()> {
        let scale = self.stepper.session(|session| {
            session.keep_gradients = false;
            Ok(session.scale)
        })?;
        let mut gradients: Vec<(String, Tensor)> = Vec::new();
        self.stepper.show(|model, _, _| {
            for (name, parameter) in model.named_parameters() {
                if let Some(gradient) = parameter.grad() {
                    gradients.push((name, if scale == 1.0 { gradient } else { (&gradient * scale)? }));
                }
            }
            Ok(())
        })?;
        self.call(|callback, context| match callback.wants_gradients() {
            every if every > 0 && step.is_multiple_of(every) => callback.gradients(context, step, &gradients),
            _ => Ok(()),
        })?;
        self.stepper.held(|held| {
            held.optimizer.zero_grad();
            Ok(())
        })
    }

    /// Reads the losses that are on the device and passes them on.
    fn read(&mut self, pending: &mut Vec<Pending<S::Batch>>) -> Result<()> {
        let losses = self.stepper.session(|session| session.losses.take())?;
        for (at, loss) in losses.into_iter().enumerate() {
            let Some(Pending { step, lr, samples, batches, .. }) = pending.get(at) else { break };
            if !loss.is_finite() {
                let operation = self.first_operation(&pending[at].group)?;
                let epoch = self.progress.epochs + 1;
                self.stepper.session(|session| {
                    session.losses.clear();
                    Ok(())
                })?;
                // Captured steps write to the memory of the losses that were just dropped.
                self.stepper.recapture();
                return Err(Error::NotFinite { loss, step: *step, epoch, batches: *batches, lr: *lr, operation });
            }
            let epoch = self.progress.epochs + 1;
            let step = Step { step: *step, epoch, loss, lr: *lr, samples: *samples };
            self.progress.history.steps.push(step);
            self.call(|callback, context| callback.step(context, &step))?;
        }
        pending.clear();
        self.settle()?;
        self.keep_asked()
    }

    /// The mean over an epoch's samples, and how many there were.
    fn mean_loss(&self, epoch: usize) -> (f64, usize) {
        let steps = self.progress.history.steps.iter().rev().take_while(|step| step.epoch == epoch);
        let (sum, count) =
            steps.fold((0.0, 0), |(sum, count), step| (sum + step.loss * step.samples as f64, count + step.samples));
        (sum / count.max(1) as f64, count)
    }

    fn schedule(&mut self, now: ScheduleEvery, value: f64) -> Result<()> {
        if self.options.schedule_every != now {
            return Ok(());
        }
        self.stepper.schedule(|schedule| schedule.advance(value)).map(drop)
    }

    /// Writes the checkpoints that callbacks have asked for.
    fn keep_asked(&mut self) -> Result<()> {
        for name in std::mem::take(&mut self.keep) {
            let Some(folder) = &self.options.folder else {
                let what = format!(
                    "a callback wants to keep {name}.netcl, but the trainer has no folder; give it one: folder=\"runs/mine\""
                );
                return Err(Error::setting(what));
            };
            self.write(folder, &name)?;
        }
        Ok(())
    }

    fn write(&mut self, folder: &Path, name: &str) -> Result<PathBuf> {
        self.progress.callbacks = self
            .callbacks
            .iter()
            .map(|callback| (callback.name(), callback.state()))
            .filter(|(_, state)| !state.is_null())
            .collect();
        let path = folder.join(format!("{name}.netcl"));
        self.progress.generators.clear();
        if let Some(group) = &self.group {
            self.progress.generators = self.stepper.wait(|| ranks::generators(group))?;
            self.stepper.session(Session::collect)?;
        }
        if self.group.as_ref().is_none_or(|group| group.rank() == 0) {
            std::fs::create_dir_all(folder)
                .map_err(|reason| netcl_io::Error::Write { path: folder.to_owned(), reason })?;
        }
        write_checkpoint(self.stepper, self.progress, &self.options.metadata, &path)?;
        Ok(path)
    }
}

/// Writes everything that a run needs to go on. Of several ranks rank 0 writes; the others must call it too where an optimizer's state is
/// divided among them.
///
/// # Errors
/// If the file cannot be written, and what the device says.
pub fn write_checkpoint<S: Stepper>(
    stepper: &mut S,
    progress: &Progress,
    metadata: &Map<String, Value>,
    path: &Path,
) -> Result<()> {
    let sums = stepper.session(|session| Ok(session.sums()))?;
    let optimizer = stepper.held(|held| Ok(held.optimizer.gathered_state()?))?;
    if stepper.session(|session| Ok(session.group.as_ref().is_some_and(|group| group.rank() != 0)))? {
        return Ok(());
    }
    let schedule = stepper.schedule(|schedule| schedule.state())?;
    let state = serde_json::to_value(progress)
        .map_err(|error| Error::setting(format!("the progress cannot be written as JSON: {error}")))?;
    stepper.held(|held| {
        let mut checkpoint = Checkpoint::new(held.model, metadata.clone())?;
        checkpoint.put("optimizer", optimizer)?;
        if let Some(schedule) = schedule {
            checkpoint.put("schedule", schedule)?;
        }
        if let Some(scaler) = held.scaler {
            checkpoint.put("scaler", scaler.state()?)?;
        }
        if let Some(ema) = held.ema {
            checkpoint.put("ema", ema.state()?)?;
        }
        checkpoint.put("sums", sums)?;
        checkpoint.set_progress(state);
        Ok(checkpoint.write(path)?)
    })
}

/// Puts a run back to where its checkpoint was written. The model is written last: a state that its part refuses leaves it as
/// it is.
///
/// # Errors
/// If the file is damaged or does not fit the model or what trains it.
pub fn resume<S: Stepper>(stepper: &mut S, callbacks: &mut [Box<dyn Callback>], path: &Path) -> Result<Progress> {
    let checkpoint = Checkpoint::read(path)?;
    let progress = Progress::of(&checkpoint)?;
    stepper.held(|held| Ok(checkpoint.check(held.model)?))?;
    stepper.schedule(|schedule| schedule.load_state(&checkpoint.state("schedule")?))?;
    stepper.held(|held| {
        held.optimizer.load_state(&checkpoint.state("optimizer")?)?;
        if let Some(scaler) = held.scaler {
            scaler.load_state(&checkpoint.state("scaler")?)?;
        }
        if let Some(ema) = held.ema {
            ema.load_state(&checkpoint.state("ema")?)?;
        }
        Ok(checkpoint.restore(held.model)?)
    })?;
    let rank = stepper.session(|session| Ok(session.group.as_ref().map_or(0, Group::rank)))?;
    ranks::set_generator(rank, &progress.generators);
    for callback in callbacks {
        if let Some(state) = progress.callbacks.get(&callback.name()) {
            callback.load_state(state).map_err(|error| error.in_callback(callback.name()))?;
        }
    }
    if checkpoint.parts().contains(&"sums") {
        let sums = checkpoint.state("sums")?;
        stepper.session(|session| {
            session.resume_sums(sums);
            Ok(())
        })?;
    }
    Ok(progress)
}

/// Runs all batches without gradients; the model is left in the mode in which it was, with the weights that it had. Where an average of
/// the weights is kept, it is the average that is looked at.
///
/// # Errors
/// Those of the model, the data and the metrics.
pub fn validate<S: Stepper>(
    stepper: &mut S,
    loader: &mut dyn Loader<Batch = S::Batch>,
    epoch: usize,
) -> Result<BTreeMap<String, f64>> {
    let training = stepper.is_training()?;
    let group = stepper.session(|session| Ok(session.group.clone()))?;
    stepper.set_training(false)?;
    let swapped = swap(stepper);
    let result = swapped.and_then(|()| {
        loader.begin(epoch, 0)?;
        let mut at = 0;
        loop {
            let taken = ranks::take(loader, 1, at, group.as_ref())?;
            if taken.moved == 0 {
                break;
            }
            at += taken.moved;
            for batch in taken.group {
                let samples = stepper.samples(&batch)?;
                stepper.validate(&batch, samples).map_err(|error| trouble::explain(error, stepper, &[samples]))?;
            }
        }
        stepper.session(Session::validation_values)
    });
    swap(stepper)?;
    stepper.set_training(training)?;
    result
}

/// Exchanges the weights and their average.
pub(crate) fn swap<S: Stepper>(stepper: &mut S) -> Result<()> {
    stepper.held(|held| match held.ema {
        Some(ema) => Ok(ema.swap()?),
        None => Ok(()),
    })
}
