//! The training loop.

use std::path::PathBuf;
use std::time::Instant;

use netcl_data::transforms::Transform;
use netcl_data::{ImageSplits, Normalization};
use netcl_io::Checkpoint;
use netcl_nn::autograd::{IndexTensor, Queue, Tape, Tensor};
use netcl_nn::{Module, functional as F};
use netcl_optim::{Optimizer, Schedule};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::batches::{Batch, BatchOptions, batches};
use crate::error::{Error, Result};
use crate::evaluate::evaluate;
use crate::history::{Epoch, History, Step};

/// How [`fit`] goes about it.
pub struct FitOptions<'o> {
    /// How often to go over the training images.
    pub epochs: usize,
    /// How many images make one step.
    pub batch_size: usize,
    /// What decides the order of the images and their changes.
    pub seed: u64,
    /// How pixels become inputs.
    pub normalization: Normalization,
    /// How training images are changed, before their pixels become inputs.
    pub transforms: Vec<Transform>,
    /// The part of each target that is spread over all classes.
    pub label_smoothing: f64,
    /// Where to keep a checkpoint: after every epoch, and when the run is stopped.
    pub checkpoint: Option<PathBuf>,
    /// What the checkpoint says besides, such as how to build the model.
    pub metadata: Map<String, Value>,
    /// Asked before every step: whether to stop here. What was done so far is kept.
    pub stop: &'o dyn Fn() -> bool,
}

impl Default for FitOptions<'_> {
    fn default() -> Self {
        FitOptions {
            epochs: 10,
            batch_size: 64,
            seed: 0,
            normalization: Normalization::default(),
            transforms: Vec::new(),
            label_smoothing: 0.0,
            checkpoint: None,
            metadata: Map::new(),
            stop: &|| false,
        }
    }
}

/// Is told what happens, for progress bars and log files. All methods do nothing unless written.
pub trait Observer {
    /// A phase begins that may take a while before the first step.
    fn phase(&mut self, _name: &str) {}
    /// An epoch begins (from 1), with this many steps left to do and images in all.
    fn epoch_begins(&mut self, _epoch: usize, _steps: usize, _images: usize) {}
    /// A step is done.
    fn step(&mut self, _step: &Step) {}
    /// An epoch is done, test included.
    fn epoch_ends(&mut self, _epoch: &Epoch) {}
}

/// Watches nothing.
impl Observer for () {}

/// How far a run is: what a checkpoint adds to weights and optimizer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Finished epochs.
    pub epochs: usize,
    /// Finished steps of the epoch under way.
    pub batches: usize,
    /// What happened so far.
    pub history: History,
    /// The time spent on the epoch under way, in seconds.
    pub seconds: f64,
}

impl Progress {
    /// Reads what a checkpoint says.
    ///
    /// # Errors
    /// If another program wrote it.
    pub fn of(checkpoint: &Checkpoint) -> Result<Progress> {
        Progress::deserialize(checkpoint.progress())
            .map_err(|error| Error::setting(format!("the checkpoint's progress cannot be read: {error}")))
    }
}

impl Progress {
    /// Whether it can be that of a run of so many epochs with so many steps each.
    pub(crate) fn fits(&self, per_epoch: usize, epochs: usize) -> bool {
        let steps = self.epochs.checked_mul(per_epoch).and_then(|steps| steps.checked_add(self.batches));
        self.epochs <= epochs
            && self.batches < per_epoch
            && steps == Some(self.history.steps.len())
            && self.history.epochs.len() == self.epochs
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All epochs are done.
    Finished,
    /// It was asked to stop; a checkpoint was kept where one was wanted.
    Stopped,
}

/// Trains a model to classify images, and tests it after every epoch. A schedule is moved on after every step.
///
/// The same model, data, optimizer state and options give the same bits on the native CPU, however often the run was
/// stopped and continued from its [`Progress`] in between.
///
/// ```
/// use netcl_data::ImageSplits;
/// use netcl_nn::{Flatten, Linear, Module, autograd::manager, sequential};
/// use netcl_optim::SGD;
/// use netcl_trainer::{FitOptions, Outcome, Progress, fit};
///
/// let queue = manager().cpu().queue;
/// let digits = ImageSplits::digits()?;
/// let mut model = sequential![Flatten::default(), Linear::new(&queue, 64, 10)?];
/// let mut opt = SGD::new(model.parameters(), 0.5)?;
/// let mut progress = Progress::default();
/// let options = FitOptions { epochs: 3, batch_size: 32, ..Default::default() };
/// let outcome = fit(&mut model, &queue, &digits, &mut opt, None, &options, &mut progress, &mut ())?;
/// assert_eq!(outcome, Outcome::Finished);
/// assert!(progress.history.epochs[2].test_accuracy > 0.85);
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
///
/// # Errors
/// If the loss is not finite ([`Error::Diverged`]), a checkpoint cannot be written, or the device fails.
#[expect(clippy::too_many_arguments, reason = "each is a part that the caller owns and may choose freely")]
pub fn fit(
    model: &mut dyn Module,
    queue: &Queue,
    data: &ImageSplits,
    optimizer: &mut dyn Optimizer,
    mut schedule: Option<&mut dyn Schedule>,
    options: &FitOptions<'_>,
    progress: &mut Progress,
    observer: &mut dyn Observer,
) -> Result<Outcome> {
    model.train();
    let per_epoch = data.train.len().div_ceil(options.batch_size.max(1));
    while progress.epochs < options.epochs {
        let start = Instant::now();
        let before = progress.seconds;
        let epoch = progress.epochs + 1;
        let normalize = options.normalization.transform(data.train.shape()[0]);
        let batch_options = BatchOptions {
            batch_size: options.batch_size,
            shuffle: true,
            transforms: options.transforms.iter().cloned().chain([normalize]).collect(),
            seed: options.seed,
            epoch: epoch as u64,
            skipped: progress.batches,
        };
        let batches = batches(&data.train, queue, batch_options)?;
        observer.epoch_begins(epoch, per_epoch.saturating_sub(progress.batches), data.train.len());
        // The numbers of a step are read while the device works on the next one.
        let mut pending: Option<Pending> = None;
        for batch in batches {
            if (options.stop)() {
                finish_step(&mut pending, progress, observer)?;
                progress.seconds = before + start.elapsed().as_secs_f64();
                keep(model, optimizer, schedule.as_deref(), options, progress)?;
                return Ok(Outcome::Stopped);
            }
            let number = progress.epochs * per_epoch + progress.batches + 1;
            let next = train_step(model, optimizer, options, batch?, number, epoch)?;
            if let Some(schedule) = &mut schedule {
                schedule.step()?;
            }
            finish_step(&mut pending, progress, observer)?;
            pending = Some(next);
            progress.batches += 1;
        }
        finish_step(&mut pending, progress, observer)?;
        observer.phase("testing");
        let classes = data.classes.len();
        let test = evaluate(model, queue, &data.test, classes, options.normalization, TEST_BATCH)?;
        let (loss, accuracy) = progress.history.means(epoch);
        let memory = netcl_profiling::gauges::memory(queue);
        let done = Epoch {
            epoch,
            steps: epoch * per_epoch,
            loss,
            accuracy,
            test_loss: test.loss,
            test_accuracy: test.accuracy(),
            seconds: before + start.elapsed().as_secs_f64(),
            memory: Some((memory.in_use, memory.peak)),
        };
        progress.history.epochs.push(done);
        progress.epochs = epoch;
        (progress.batches, progress.seconds) = (0, 0.0);
        keep(model, optimizer, schedule.as_deref(), options, progress)?;
        observer.epoch_ends(&done);
    }
    Ok(Outcome::Finished)
}

/// Writes a checkpoint where one is wanted.
fn keep(
    model: &dyn Module,
    optimizer: &dyn Optimizer,
    schedule: Option<&dyn Schedule>,
    options: &FitOptions<'_>,
    progress: &Progress,
) -> Result<()> {
    let Some(path) = &options.checkpoint else { return Ok(()) };
    let state = serde_json::to_value(progress)
        .map_err(|error| Error::setting(format!("the progress cannot be written as JSON: {error}")))?;
    let mut checkpoint = Checkpoint::new(model, options.metadata.clone())?;
    checkpoint.put("optimizer", optimizer.state())?;
    if let Some(schedule) = schedule {
        checkpoint.put("schedule", schedule.state())?;
    }
    checkpoint.set_progress(state);
    Ok(checkpoint.write(path)?)
}

/// Without gradients to keep, larger batches use a device better.
const TEST_BATCH: usize = 256;

/// A step whose numbers are still on the device.
struct Pending {
    number: usize,
    epoch: usize,
    lr: f64,
    loss: Tensor,
    guesses: IndexTensor,
    labels: Vec<i64>,
}

fn train_step(
    model: &dyn Module,
    optimizer: &mut dyn Optimizer,
    options: &FitOptions<'_>,
    batch: Batch,
    number: usize,
    epoch: usize,
) -> Result<Pending> {
    let tape = Tape::new();
    let logits = model.forward(&batch.images)?;
    let how = F::CrossEntropyOptions { label_smoothing: options.label_smoothing, ..Default::default() };
    let loss = F::cross_entropy(&logits, &batch.classes, &how)?;
    tape.backward(&loss)?;
    optimizer.step()?;
    optimizer.zero_grad();
    let guesses = F::argmax(&logits.detach(), Some(1), false)?;
    Ok(Pending { number, epoch, lr: optimizer.learning_rate(), loss: loss.detach(), guesses, labels: batch.labels })
}

/// Reads the numbers of a step and passes them on.
fn finish_step(pending: &mut Option<Pending>, progress: &mut Progress, observer: &mut dyn Observer) -> Result<()> {
    let Some(Pending { number, epoch, lr, loss, guesses, labels }) = pending.take() else { return Ok(()) };
    let loss = loss.item()?;
    if !loss.is_finite() {
        return Err(Error::Diverged { step: number, epoch, lr, loss });
    }
    let right = guesses.to_host()?.iter().zip(&labels).filter(|(guess, label)| guess == label).count();
    let accuracy = right as f64 / labels.len() as f64;
    let step = Step { step: number, epoch, loss, accuracy, lr, images: labels.len() };
    progress.history.steps.push(step);
    observer.step(&step);
    Ok(())
}
