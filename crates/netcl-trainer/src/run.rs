//! A training run in a folder: started, stopped, continued, finished.

use std::path::{Path, PathBuf};

use netcl_distributed::data_parallel::convert_sync_batchnorm;
use netcl_distributed::{Group, init};
use netcl_io::{Checkpoint, open, save_model};
use netcl_nn::autograd::{Generator, Queue, manual_seed};
use netcl_nn::{Module, Sampling};
use netcl_optim::schedule::{OneCycleLR, OneCycleOptions};
use netcl_optim::{AdamW, AdamWOptions, EmaOptions, Schedule};
use serde_json::{Map, Value, json};

use crate::batches::Batch;
use crate::callbacks::JsonLines;
use crate::error::{Error, Result};
use crate::evaluate::{Evaluation, evaluate};
use crate::folder::{self, Held, Lock, counted};
use crate::language::{self, Prompt};
use crate::metric::{Accuracy, MeanError, Perplexity};
use crate::report;
use crate::settings::Settings;
use crate::task::{Data, Task, TextDescription, entry};
use crate::trainer::{Callback, Outcome, Progress, Trainer, TrainerOptions, ranks};

pub use crate::folder::{CHECKPOINT, METRICS, MODEL, REPORT, numbered};

/// A training run: data, model, what trains it, how far it is, and the folder where everything is kept.
pub struct Run {
    settings: Settings,
    data: Data,
    task: Task,
    queue: Queue,
    folder: PathBuf,
    trainer: Trainer<Box<dyn Module>, Batch>,
    /// Shares its state with the trainer's.
    schedule: OneCycleLR,
    data_folder: Option<PathBuf>,
    /// Held while the run may write into its folder: from its start until it is stopped or finished. Only by rank 0.
    lock: Option<Lock>,
    /// The processes that train together: each has its part of every batch.
    group: Group,
}

/// What a finished run left behind.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The test of the final weights.
    pub evaluation: Evaluation,
    /// What a language model writes.
    pub sample: Option<String>,
    /// The file with the weights.
    pub model: PathBuf,
    /// The file with the report.
    pub report: PathBuf,
}

/// The characters of a language model's sample in summary and report.
const SAMPLE: usize = 400;

impl Run {
    /// Begins a run. `data_folder` is where to look for the data set, `folder` where the results go.
    ///
    /// Under `netcl launch` or `mpirun` all ranks call it together and train with the same batches as one would, each with its part of
    /// every batch. Only rank 0 writes files, into its own `folder`.
    ///
    /// # Errors
    /// For settings out of range, data that is not there, and a folder that cannot be written, is in use by another run, or
    /// holds one: finished, stopped, or with a checkpoint that cannot be read.
    pub fn start(settings: Settings, data_folder: Option<&Path>, queue: &Queue, folder: &Path) -> Result<Run> {
        Run::begin(settings, data_folder, queue, folder, |folder| Held::by(folder).refusal(folder).map_or(Ok(()), Err))
    }

    /// [`Run::start`] in a folder that may hold a run, which is lost.
    pub fn start_over(settings: Settings, data_folder: Option<&Path>, queue: &Queue, folder: &Path) -> Result<Run> {
        Run::begin(settings, data_folder, queue, folder, folder::clear)
    }

    /// Begins a run in a folder once `prepare`, called when nobody else may write there, has found it or made it free.
    fn begin(
        settings: Settings,
        data_folder: Option<&Path>,
        queue: &Queue,
        folder: &Path,
        prepare: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Run> {
        together(|group| {
            let mut run = Run::new(settings, data_folder, queue, folder, group)?;
            if group.rank() == 0 {
                // A folder that cannot be written is better known now than after the training.
                std::fs::create_dir_all(folder)
                    .map_err(|reason| netcl_io::Error::Write { path: folder.to_owned(), reason })?;
                run.lock = Some(Lock::of(folder)?);
                prepare(folder)?;
            }
            // Also so that no rank goes on before rank 0 has found the folder free.
            run.folder = ranks::first(group, &run.folder)?;
            Ok(run)
        })
    }

    fn new(settings: Settings, data_folder: Option<&Path>, queue: &Queue, folder: &Path, group: &Group) -> Result<Run> {
        settings.check()?;
        let (data, task) = Data::open(&settings, data_folder)?;
        let batches = data.training(&task, &settings, queue)?.len();
        let steps = batches.div_ceil(settings.accumulate).max(1).checked_mul(settings.epochs);
        let steps = steps.ok_or_else(|| Error::setting(format!("{} epochs are too many to count", settings.epochs)))?;
        // Weights from a generator of their own, so that they do not depend on what the process drew before; what layers draw
        // while they train comes from the process-wide one.
        let mut model = task.architecture().build(queue, &mut Generator::new(settings.seed))?;
        if group.size() > 1 && settings.sync_norm {
            convert_sync_batchnorm(&mut *model, group)?;
        }
        manual_seed(settings.seed.wrapping_add(1));
        let options = AdamWOptions { lr: settings.lr, weight_decay: settings.weight_decay, ..Default::default() };
        let optimizer = AdamW::new_with(model.parameters(), options)?;
        let schedule = OneCycleLR::new(&optimizer, OneCycleOptions::new(settings.lr, steps as u64))?;
        let mut metadata = task.to_metadata();
        metadata.insert("settings".to_owned(), json!(settings));
        metadata.insert("data_folder".to_owned(), json!(data_folder));
        let options = TrainerOptions {
            mixed_precision: settings.amp.map(crate::settings::Precision::dtype),
            grad_clip: settings.clip,
            accumulation_steps: settings.accumulate,
            ema: settings.ema.map(|decay| EmaOptions { decay, ..EmaOptions::default() }),
            folder: Some(folder.to_owned()),
            metadata,
            group: Some(group.clone()),
            ..TrainerOptions::default()
        };
        let goal = task.goal(settings.label_smoothing);
        let trainer = Trainer::new(model, optimizer, options, move |model, batch| goal.output(&**model, batch))?;
        let trainer = trainer.schedule(schedule.clone());
        let trainer = match &task {
            Task::Text(_) => trainer.metric(Perplexity::default(), Perplexity::default()),
            Task::Table(table) if table.classes.is_empty() => {
                trainer.metric(MeanError::default(), MeanError::default())
            }
            _ => trainer.metric(Accuracy::default(), Accuracy::default()),
        };
        Ok(Run {
            settings,
            data,
            task,
            queue: queue.clone(),
            folder: folder.to_owned(),
            trainer,
            schedule,
            data_folder: data_folder.map(Path::to_owned),
            lock: None,
            group: group.clone(),
        })
    }

    /// Goes on with a run that was stopped: `place` is its folder or its checkpoint.
    ///
    /// # Errors
    /// If there is no checkpoint, it does not fit the data, or another run uses the folder.
    pub fn resume(place: &Path, data_folder: Option<&Path>, queue: &Queue) -> Result<Run> {
        Run::resume_to(place, None, data_folder, queue)
    }

    /// [`Run::resume`] up to another number of epochs, also with a run that is finished. The learning rate goes on where a cycle
    /// of that many epochs stands after those that are done.
    ///
    /// # Errors
    /// As [`Run::resume`], and if as many epochs are done already.
    pub fn resume_to(place: &Path, epochs: Option<usize>, data_folder: Option<&Path>, queue: &Queue) -> Result<Run> {
        together(|group| Run::resumed(place, epochs, data_folder, queue, group))
    }

    fn resumed(
        place: &Path,
        epochs: Option<usize>,
        data_folder: Option<&Path>,
        queue: &Queue,
        group: &Group,
    ) -> Result<Run> {
        let path = if place.is_dir() { place.join(CHECKPOINT) } else { place.to_owned() };
        // The empty parent of a bare name is the current folder.
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let refused = |what: String| Err(Error::File { path: folder.to_owned(), what });
        if !path.exists() && Held::by(folder) == Held::Finished(None) {
            return refused("holds a finished run without a checkpoint: there is nothing to resume".to_owned());
        }
        if place.is_dir() && Held::by(folder) == Held::Nothing {
            return refused(format!("holds no run: there is no {CHECKPOINT} in it"));
        }
        // What is no checkpoint needs no lock beside it.
        open(&path)?;
        let lock = if group.rank() == 0 { Some(Lock::of(folder)?) } else { None };
        let checkpoint = Checkpoint::read(&path)?;
        let mut settings: Settings = entry(&path, checkpoint.metadata(), "settings")?;
        let progress = Progress::of(&checkpoint)?;
        let (done, planned) = (progress.epochs, settings.epochs);
        let finished = matches!(Held::by(folder), Held::Finished(_));
        settings.epochs = match epochs {
            None if finished => {
                return refused(format!(
                    "holds a finished run of {}; go on with --epochs N, where N is above {done}",
                    counted(done)
                ));
            }
            Some(epochs) if epochs <= done && (finished || epochs != planned) => {
                return refused(format!("holds a run that has done {}; --epochs {epochs} must be more", counted(done)));
            }
            wanted => wanted.unwrap_or(planned),
        };
        let kept: Option<PathBuf> = entry(&path, checkpoint.metadata(), "data_folder")?;
        let mut run = Run::new(settings, data_folder.or(kept.as_deref()), queue, folder, group)?;
        if Task::from_metadata(&path, checkpoint.metadata())? != run.task {
            let what = format!("was written with other data than what {:?} is now", run.settings.data);
            return Err(Error::File { path, what });
        }
        let per_epoch = run.data.training(&run.task, &run.settings, queue)?.len();
        run.trainer.resume(&path)?;
        let accumulate = run.settings.accumulate;
        let steps = progress.epochs * per_epoch.div_ceil(accumulate) + progress.batches.div_ceil(accumulate);
        if progress.epochs > run.settings.epochs
            || progress.batches >= per_epoch
            || [steps as u64, run.schedule.epoch()] != [progress.history.steps.len() as u64; 2]
        {
            let what = "has a progress that does not fit its settings: the file is damaged".to_owned();
            return Err(Error::File { path, what });
        }
        if run.settings.epochs != planned {
            run.schedule.arrive(run.schedule.epoch())?;
        }
        run.lock = lock;
        Ok(run)
    }

    /// What the run is made of.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What is learned.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// What the model's file says of it.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// The number of the model's parameters.
    pub fn parameters(&self) -> usize {
        self.trainer.with_model(|model| model.num_parameters())
    }

    /// The numbers of samples to train and to test with.
    ///
    /// # Errors
    /// What the data says.
    pub fn samples(&self) -> Result<(usize, usize)> {
        let train = self.data.training(&self.task, &self.settings, &self.queue)?.samples();
        Ok((train, self.data.testing(&self.task, self.settings.limit, &self.queue)?.samples()))
    }

    /// How far it is.
    pub fn progress(&self) -> &Progress {
        self.trainer.progress()
    }

    /// Where everything is kept.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds a callback.
    pub fn watch(&mut self, callback: impl Callback + 'static) {
        self.trainer.add_callback(Box::new(callback));
    }

    /// The processes that train together. Rank 0 finishes the run, and prints.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The right to write into the folder, which a run that was stopped has given up.
    fn relock(&mut self) -> Result<()> {
        if self.lock.is_none() && self.group.rank() == 0 {
            self.lock = Some(Lock::of(&self.folder)?);
        }
        Ok(())
    }

    /// Trains until all epochs are done, a callback ends the run, or `stop` says so before a step, on whichever rank.
    ///
    /// # Errors
    /// As [`Trainer::fit`].
    pub fn train(&mut self, stop: &dyn Fn() -> bool) -> Result<Outcome> {
        self.relock()?;
        self.trainer.add_callback(Box::new(JsonLines::new(self.folder.join(METRICS))));
        let (rank, ranks) = (self.group.rank(), self.group.size());
        let mut train = self.data.training(&self.task, &self.settings, &self.queue)?.part(rank, ranks).loader();
        let mut test = self.data.testing(&self.task, self.settings.limit, &self.queue)?.part(rank, ranks).loader();
        let outcome = self.trainer.fit_until(&mut train, Some(&mut test), self.settings.epochs, stop)?;
        if matches!(outcome, Outcome::Stopped(_)) {
            self.lock = None;
        }
        Ok(outcome)
    }

    /// Tests the final weights, writes the report and them; called by rank 0 alone. `device` is what the report calls it. The checkpoint stays:
    /// [`Run::resume_to`] goes on from it.
    ///
    /// # Errors
    /// If a file cannot be written, and what the device says.
    pub fn finish(&mut self, device: &str) -> Result<Summary> {
        self.relock()?;
        let (model, report) = (self.folder.join(MODEL), self.folder.join(REPORT));
        let samples = self.samples()?;
        let Run { settings, data, task, queue, trainer, data_folder, .. } = self;
        let mut metadata: Map<String, Value> = task.to_metadata();
        metadata.insert("settings".to_owned(), json!(settings));
        metadata.insert("data_folder".to_owned(), json!(data_folder));
        let (evaluation, sample) = trainer.with_averages(|model| {
            let evaluation = evaluate(model, task, data, settings.limit, queue)?;
            let sample = match task {
                Task::Text(task) => Some(sample(model, task, settings.seed)?),
                _ => None,
            };
            Ok::<_, Error>((evaluation, sample))
        })??;
        metadata.insert("test_loss".to_owned(), json!(evaluation.loss));
        for (name, value) in &evaluation.values {
            metadata.insert(format!("test_{name}"), json!(value));
        }
        let mut content = report::content(&report::Finished {
            settings,
            data,
            task,
            samples,
            device,
            history: trainer.history(),
            evaluation: &evaluation,
            sample: sample.as_deref(),
        })?;
        let (goal, batch) =
            (task.goal(0.0), data.training(task, settings, queue)?.epoch(0, 0)?.next().transpose()?.flatten());
        (content.layers, content.layer_batch) = trainer.with_model(|model| {
            let measured = match &batch {
                Some(batch) => report::layers::measure(model, &mut |model| goal.output(model, batch).map(drop)),
                None => Ok(report::layers::list(model)),
            };
            // A report without figures of layers is better than none.
            let layers = measured.unwrap_or_else(|error| {
                content.notes.push(format!("The layers could not be timed: {error}"));
                report::layers::list(model)
            });
            (layers, settings.batch_size)
        });
        report::write(&report, &[content])?;
        // Last: with this file the run is finished.
        self.trainer.with_averages(|trained| save_model(&model, &**trained, metadata))??;
        self.lock = None;
        Ok(Summary { evaluation, sample, model, report })
    }
}

/// Calls a function with the processes that train together. Where it fails on one, the others learn it and do not wait.
fn together<T>(work: impl FnOnce(&Group) -> Result<T>) -> Result<T> {
    let group = init()?;
    work(&group).inspect_err(|error| {
        if group.size() > 1 && !error.is_of_all_ranks() {
            group.abort(&error.to_string());
        }
    })
}

/// What a language model writes by itself.
fn sample(model: &mut Box<dyn Module>, task: &TextDescription, seed: u64) -> Result<String> {
    let training = model.training();
    model.eval();
    let (mut text, prompt) = (String::new(), Prompt { text: "", tokens: SAMPLE });
    let sampling = Sampling { temperature: 0.8, seed: Some(seed), ..Sampling::default() };
    let written = language::generate(&**model, &task.tokenizer(), prompt, sampling, &mut |part| {
        text.push_str(part);
        true
    });
    if training {
        model.train();
    }
    written.map(|()| text)
}
