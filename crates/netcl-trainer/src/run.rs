//! A training run in a folder: started, stopped, continued, finished.

use std::path::{Path, PathBuf};

use netcl_data::{Dataset, Normalization, catalog};
use netcl_io::nn::Module;
use netcl_io::nn::autograd::core::backend::Queue;
use netcl_io::nn::autograd::core::random::{Generator, manual_seed};
use netcl_io::optim::schedule::{OneCycleLR, OneCycleOptions};
use netcl_io::optim::{AdamW, AdamWOptions};
use netcl_io::{Checkpoint, save_model};
use serde_json::{Map, Value, json};

use crate::architecture::Architecture;
use crate::classifier::{Description, entry};
use crate::error::{Error, Result};
use crate::evaluate::{Evaluation, evaluate};
use crate::fit::{FitOptions, Observer, Outcome, Progress, fit};
use crate::metrics::Metrics;
use crate::report;
use crate::settings::Settings;

/// The trained weights, in the run's folder.
pub const MODEL: &str = "model.netcl";
/// What an unfinished run goes on from.
pub const CHECKPOINT: &str = "checkpoint.netcl";
/// One line of JSON for each step and epoch.
pub const METRICS: &str = "metrics.jsonl";
/// The report with curves.
pub const REPORT: &str = "report.html";

/// A training run: data, model, optimizer, how far it is, and the folder where everything is kept.
pub struct Run {
    settings: Settings,
    data: Dataset,
    queue: Queue,
    folder: PathBuf,
    description: Description,
    model: Box<dyn Module>,
    optimizer: AdamW,
    schedule: OneCycleLR,
    progress: Progress,
    data_folder: Option<PathBuf>,
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
    /// For settings out of range, data that is not there, and a folder that cannot be written or holds a run that was stopped.
    pub fn start(settings: Settings, data_folder: Option<&Path>, queue: &Queue, folder: &Path) -> Result<Run> {
        if let Ok(stopped) = Checkpoint::read(&folder.join(CHECKPOINT)) {
            let done = Progress::of(&stopped).map_or(0, |progress| progress.epochs);
            let what = format!(
                "holds a run that was stopped after {done} epochs; continue it with --resume, start over with --overwrite, \
                 or choose another --out"
            );
            return Err(Error::File { path: folder.to_owned(), what });
        }
        Run::new(settings, data_folder, queue, folder)
    }

    /// [`Run::start`] in a folder that may hold a stopped run, which is lost.
    pub fn start_over(settings: Settings, data_folder: Option<&Path>, queue: &Queue, folder: &Path) -> Result<Run> {
        let old = folder.join(CHECKPOINT);
        match std::fs::remove_file(&old) {
            Err(reason) if reason.kind() != std::io::ErrorKind::NotFound && folder.is_dir() => {
                Err(netcl_io::Error::Write { path: old, reason }.into())
            }
            _ => Run::new(settings, data_folder, queue, folder),
        }
    }

    fn new(settings: Settings, data_folder: Option<&Path>, queue: &Queue, folder: &Path) -> Result<Run> {
        settings.check()?;
        let mut data = catalog::load(&settings.data, data_folder)?;
        if let Some(limit) = settings.limit {
            data = data.truncated(limit, limit);
        }
        // A folder that cannot be written is better known now than after the training.
        std::fs::create_dir_all(folder).map_err(|reason| netcl_io::Error::Write { path: folder.to_owned(), reason })?;
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
        // Weights from a generator of their own, so that they do not depend on what the process drew before; what layers draw
        // while they train comes from the process-wide one.
        let model = architecture.build(queue, &mut Generator::new(settings.seed))?;
        manual_seed(settings.seed.wrapping_add(1));
        let options = AdamWOptions { lr: settings.lr, weight_decay: settings.weight_decay, ..Default::default() };
        let optimizer = AdamW::new_with(model.parameters(), options)?;
        let steps = data.train.len().div_ceil(settings.batch_size) * settings.epochs;
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
        })
    }

    /// Goes on with a run that was stopped: `place` is its folder or its checkpoint.
    ///
    /// # Errors
    /// If there is no checkpoint, or it does not fit the data.
    pub fn resume(place: &Path, data_folder: Option<&Path>, queue: &Queue) -> Result<Run> {
        let path = if place.is_dir() { place.join(CHECKPOINT) } else { place.to_owned() };
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        if !path.exists() && folder.join(MODEL).exists() {
            let what = "holds a finished run: there is nothing to resume".to_owned();
            return Err(Error::File { path: folder, what });
        }
        let checkpoint = Checkpoint::read(&path)?;
        let settings: Settings = entry(&path, checkpoint.metadata(), "settings")?;
        let kept: Option<PathBuf> = entry(&path, checkpoint.metadata(), "data_folder")?;
        let mut run = Run::new(settings, data_folder.or(kept.as_deref()), queue, &folder)?;
        let description = Description::from_metadata(&path, checkpoint.metadata())?;
        if description != run.description {
            let what = format!("was written with other data than what {:?} is now", run.settings.data);
            return Err(Error::File { path, what });
        }
        checkpoint.restore(&mut *run.model, &mut run.optimizer, Some(&mut run.schedule))?;
        run.progress = Progress::of(&checkpoint)?;
        Ok(run)
    }

    /// What the run is made of.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The images.
    pub fn data(&self) -> &Dataset {
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

    /// Trains until all epochs are done, or `stop` says so before a step.
    pub fn train(&mut self, stop: &dyn Fn() -> bool, observer: &mut dyn Observer) -> Result<Outcome> {
        let metadata = self.metadata();
        let options = FitOptions {
            epochs: self.settings.epochs,
            batch_size: self.settings.batch_size,
            seed: self.settings.seed,
            normalization: self.description.normalization(),
            augment: self.settings.changes(),
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
        Ok(outcome)
    }

    fn metadata(&self) -> Map<String, Value> {
        let mut metadata = self.description.to_metadata();
        metadata.insert("settings".to_owned(), json!(self.settings));
        metadata.insert("data_folder".to_owned(), json!(self.data_folder));
        metadata
    }

    /// Tests the final weights, writes them and the report, and removes the checkpoint. `device` is what the report calls it.
    pub fn finish(&mut self, device: &str) -> Result<Summary> {
        let classes = self.data.classes.len();
        let normalization = self.description.normalization();
        let evaluation = evaluate(&mut *self.model, &self.queue, &self.data.test, classes, normalization, 256)?;
        let (model, report) = (self.folder.join(MODEL), self.folder.join(REPORT));
        let mut metadata = self.metadata();
        metadata.insert("test_accuracy".to_owned(), json!(evaluation.accuracy()));
        save_model(&model, &*self.model, metadata)?;
        let page = report::html(&report::Content {
            settings: &self.settings,
            data: &self.data,
            model: &*self.model,
            parameters: self.model.num_parameters(),
            device,
            history: &self.progress.history,
            evaluation: &evaluation,
        })?;
        netcl_io::write_atomically(&report, |out| std::io::Write::write_all(out, page.as_bytes()))?;
        let _ = std::fs::remove_file(self.folder.join(CHECKPOINT));
        Ok(Summary { evaluation, model, report })
    }
}
