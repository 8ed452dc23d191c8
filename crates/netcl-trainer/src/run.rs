//! A training run in a folder: started, stopped, continued, finished.

use std::path::{Path, PathBuf};

use netcl_data::{ImageSplits, Normalization, catalog};
use netcl_io::{Checkpoint, open, save_model};
use netcl_nn::Module;
use netcl_nn::autograd::{Generator, Queue, manual_seed};
use netcl_optim::schedule::{OneCycleLR, OneCycleOptions};
use netcl_optim::{AdamW, AdamWOptions, Optimizer, Schedule};
use serde_json::{Map, Value, json};

use crate::architecture::Architecture;
use crate::batches::{BatchOptions, batches};
use crate::classifier::{Description, entry};
use crate::error::{Error, Result};
use crate::evaluate::{Evaluation, evaluate};
use crate::fit::{FitOptions, Observer, Outcome, Progress, fit};
use crate::folder::{self, Held, Lock};
use crate::metrics::Metrics;
use crate::report;
use crate::settings::Settings;

pub use crate::folder::{CHECKPOINT, METRICS, MODEL, REPORT, numbered};

/// A training run: data, model, optimizer, how far it is, and the folder where everything is kept.
pub struct Run {
    settings: Settings,
    data: ImageSplits,
    queue: Queue,
    folder: PathBuf,
    description: Description,
    model: Box<dyn Module>,
    optimizer: AdamW,
    schedule: OneCycleLR,
    progress: Progress,
    data_folder: Option<PathBuf>,
    /// Held while the run may write into its folder: from its start until it is stopped or finished.
    lock: Option<Lock>,
}

/// What a finished run left behind.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The test of the final weights.
    pub evaluation: Evaluation,
    /// The file with the weights.
    pub model: PathBuf,
    /// The file with the report.
    pub report: PathBuf,
}

impl Run {
    /// Begins a run. `data_folder` is where to look for the data set, `folder` where the results go.
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
        let mut run = Run::new(settings, data_folder, queue, folder)?;
        // A folder that cannot be written is better known now than after the training.
        std::fs::create_dir_all(folder).map_err(|reason| netcl_io::Error::Write { path: folder.to_owned(), reason })?;
        run.lock = Some(Lock::of(folder)?);
        prepare(folder)?;
        Ok(run)
    }

    fn new(settings: Settings, data_folder: Option<&Path>, queue: &Queue, folder: &Path) -> Result<Run> {
        settings.check()?;
        let mut data = catalog::load(&settings.data, data_folder)?;
        if let Some(limit) = settings.limit {
            data = data.truncated(limit, limit);
        }
        let architecture =
            Architecture { network: settings.network, input: data.train.shape(), classes: data.classes.len() };
        let normalization = Normalization::of(&data.train);
        let description = Description {
            architecture,
            data: settings.data.clone(),
            classes: data.classes.clone(),
            mean: normalization.mean,
            deviation: normalization.deviation,
        };
        let steps = data.train.len().div_ceil(settings.batch_size).checked_mul(settings.epochs);
        let steps = steps.ok_or_else(|| Error::setting(format!("{} epochs are too many to count", settings.epochs)))?;
        // Weights from a generator of their own, so that they do not depend on what the process drew before; what layers draw
        // while they train comes from the process-wide one.
        let model = architecture.build(queue, &mut Generator::new(settings.seed))?;
        manual_seed(settings.seed.wrapping_add(1));
        let options = AdamWOptions { lr: settings.lr, weight_decay: settings.weight_decay, ..Default::default() };
        let optimizer = AdamW::new_with(model.parameters(), options)?;
        let schedule = OneCycleLR::new(&optimizer, OneCycleOptions::new(settings.lr, steps as u64))?;
        Ok(Run {
            settings,
            data,
            queue: queue.clone(),
            folder: folder.to_owned(),
            description,
            model,
            optimizer,
            schedule,
            progress: Progress::default(),
            data_folder: data_folder.map(Path::to_owned),
            lock: None,
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
        let path = if place.is_dir() { place.join(CHECKPOINT) } else { place.to_owned() };
        // The empty parent of a bare name is the current folder.
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let refused = |what: String| Err(Error::File { path: folder.to_owned(), what });
        if !path.exists() && Held::by(folder) == Held::Finished(None) {
            return refused("holds a finished run without a checkpoint: there is nothing to resume".to_owned());
        }
        // What is no checkpoint needs no lock beside it.
        open(&path)?;
        let lock = Lock::of(folder)?;
        let checkpoint = Checkpoint::read(&path)?;
        let mut settings: Settings = entry(&path, checkpoint.metadata(), "settings")?;
        let progress = Progress::of(&checkpoint)?;
        let (done, planned) = (progress.epochs, settings.epochs);
        let finished = matches!(Held::by(folder), Held::Finished(_));
        settings.epochs = match epochs {
            None if finished => {
                return refused(format!(
                    "holds a finished run of {done} epochs; go on with --epochs N, where N is above {done}"
                ));
            }
            Some(epochs) if epochs <= done && (finished || epochs != planned) => {
                return refused(format!("holds a run that has done {done} epochs; --epochs {epochs} must be more"));
            }
            wanted => wanted.unwrap_or(planned),
        };
        let kept: Option<PathBuf> = entry(&path, checkpoint.metadata(), "data_folder")?;
        let mut run = Run::new(settings, data_folder.or(kept.as_deref()), queue, folder)?;
        let description = Description::from_metadata(&path, checkpoint.metadata())?;
        if description != run.description {
            let what = format!("was written with other data than what {:?} is now", run.settings.data);
            return Err(Error::File { path, what });
        }
        checkpoint.restore(&mut *run.model)?;
        run.optimizer.load_state(&checkpoint.state("optimizer")?)?;
        run.schedule.load_state(&checkpoint.state("schedule")?)?;
        if !progress.fits(run.data.train.len().div_ceil(run.settings.batch_size), run.settings.epochs)
            || run.schedule.epoch() != progress.history.steps.len() as u64
        {
            let what = "has a progress that does not fit its settings: the file is damaged".to_owned();
            return Err(Error::File { path, what });
        }
        if run.settings.epochs != planned {
            run.schedule.arrive(run.schedule.epoch())?;
        }
        (run.progress, run.lock) = (progress, Some(lock));
        Ok(run)
    }

    /// What the run is made of.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The images.
    pub fn data(&self) -> &ImageSplits {
        &self.data
    }

    /// The model.
    pub fn model(&self) -> &dyn Module {
        &*self.model
    }

    /// How far it is.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Where everything is kept.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The right to write into the folder, which a run that was stopped has given up.
    fn relock(&mut self) -> Result<()> {
        if self.lock.is_none() {
            self.lock = Some(Lock::of(&self.folder)?);
        }
        Ok(())
    }

    /// Trains until all epochs are done, or `stop` says so before a step.
    pub fn train(&mut self, stop: &dyn Fn() -> bool, observer: &mut dyn Observer) -> Result<Outcome> {
        self.relock()?;
        let metadata = self.metadata();
        let options = FitOptions {
            epochs: self.settings.epochs,
            batch_size: self.settings.batch_size,
            seed: self.settings.seed,
            normalization: self.description.normalization(),
            transforms: self.settings.changes(self.data.train.shape()),
            label_smoothing: self.settings.label_smoothing,
            checkpoint: Some(self.folder.join(CHECKPOINT)),
            metadata,
            stop,
        };
        let mut metrics = Metrics::start(&self.folder.join(METRICS), &self.progress.history, observer)?;
        let outcome = fit(
            &mut *self.model,
            &self.queue,
            &self.data,
            &mut self.optimizer,
            Some(&mut self.schedule),
            &options,
            &mut self.progress,
            &mut metrics,
        );
        // What stopped the training is the more important problem.
        let written = metrics.finish();
        let outcome = outcome?;
        written?;
        if outcome == Outcome::Stopped {
            self.lock = None;
        }
        Ok(outcome)
    }

    fn metadata(&self) -> Map<String, Value> {
        let mut metadata = self.description.to_metadata();
        metadata.insert("settings".to_owned(), json!(self.settings));
        metadata.insert("data_folder".to_owned(), json!(self.data_folder));
        metadata
    }

    /// Tests the final weights, writes the report and them. `device` is what the report calls it. The checkpoint stays:
    /// [`Run::resume_to`] goes on from it.
    pub fn finish(&mut self, device: &str) -> Result<Summary> {
        self.relock()?;
        let classes = self.data.classes.len();
        let normalization = self.description.normalization();
        let evaluation = evaluate(&mut *self.model, &self.queue, &self.data.test, classes, normalization, 256)?;
        let (model, report) = (self.folder.join(MODEL), self.folder.join(REPORT));
        let mut metadata = self.metadata();
        metadata.insert("test_accuracy".to_owned(), json!(evaluation.accuracy()));
        let mut content = report::image_run(&report::ImageRun {
            settings: &self.settings,
            data: &self.data,
            device,
            history: &self.progress.history,
            evaluation: &evaluation,
        })?;
        (content.layers, content.layer_batch) = self.layers(&mut content.notes);
        report::write(&report, &[content])?;
        // Last: with this file the run is finished.
        save_model(&model, &*self.model, metadata)?;
        self.lock = None;
        Ok(Summary { evaluation, model, report })
    }

    /// The layers with the figures of a batch of test images, and its size. A report without them is better than none.
    fn layers(&mut self, notes: &mut Vec<String>) -> (Vec<report::Layer>, usize) {
        let (test, normalization) = (&self.data.test, self.description.normalization());
        let samples = self.settings.batch_size.min(test.len());
        let options = BatchOptions {
            batch_size: samples,
            shuffle: false,
            transforms: vec![normalization.transform(test.shape()[0])],
            seed: 0,
            epoch: 0,
            skipped: 0,
        };
        let measured = batches(test, &self.queue, options).and_then(|mut batches| {
            let Some(batch) = batches.next().transpose()? else { return Ok(report::layers::list(&*self.model)) };
            report::layers::measure(&mut *self.model, &mut |model| Ok(model.forward(&batch.images).map(drop)?))
        });
        let layers = measured.unwrap_or_else(|error| {
            notes.push(format!("The layers could not be timed: {error}"));
            report::layers::list(&*self.model)
        });
        (layers, samples)
    }
}
