//! TensorBoard: curves of every update and epoch, histograms of weights and gradients.

mod event_file;
mod proto;

pub use event_file::{EventFile, Image};

use std::path::PathBuf;

use netcl_nn::autograd::Tensor;

use crate::error::{Error, Result};
use crate::trainer::{Callback, Context, Epoch, Step};

/// Writes event files that `tensorboard --logdir` shows. All curves have updates on their axis, so that a resumed run replaces what
/// it repeats.
///
/// | tag | what | when |
/// |---|---|---|
/// | `step/loss`, `step/lr` | curves | every update |
/// | `epoch/...` | curves of all figures of an epoch | every epoch |
/// | `weights/...` | histograms of parameters | every `weights` epochs |
/// | `gradients/...` | histograms of gradients | every `gradients` updates |
/// | `model`, `run` | texts: the model's layers, how it is trained | once |
///
/// ```
/// use netcl_trainer::callbacks::TensorBoard;
///
/// let board = TensorBoard::new("runs/1").with_weights(1).with_gradients(100);
/// ```
#[derive(Debug)]
pub struct TensorBoard {
    folder: PathBuf,
    weights: usize,
    gradients: usize,
    file: Option<EventFile>,
}

impl TensorBoard {
    /// Writes into a folder, which is made.
    pub fn new(folder: impl Into<PathBuf>) -> TensorBoard {
        TensorBoard { folder: folder.into(), weights: 0, gradients: 0, file: None }
    }

    /// Writes histograms of the weights every `weights` epochs; 0 for never.
    pub fn with_weights(self, weights: usize) -> TensorBoard {
        TensorBoard { weights, ..self }
    }

    /// Writes histograms of the gradients every `gradients` updates; 0 for never.
    pub fn with_gradients(self, gradients: usize) -> TensorBoard {
        TensorBoard { gradients, ..self }
    }

    /// The event file, to write to by hand; it is made at first use.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn file(&mut self) -> Result<&mut EventFile> {
        let made = match self.file.take() {
            Some(file) => file,
            None => EventFile::create(&self.folder)?,
        };
        Ok(self.file.insert(made))
    }

    /// Ends the file; a later write begins another one.
    ///
    /// # Errors
    /// If what was written cannot be brought to the disk.
    pub fn close(&mut self) -> Result<()> {
        self.file.take().map_or(Ok(()), EventFile::close)
    }

    fn histograms(&mut self, kind: &str, step: usize, tensors: &[(String, Tensor)]) -> Result<()> {
        for (name, tensor) in tensors {
            let values = tensor.to_f64_vec()?;
            self.file()?.histogram(&format!("{kind}/{name}"), step as i64, &values)?;
        }
        Ok(())
    }
}

impl Callback for TensorBoard {
    fn name(&self) -> String {
        "TensorBoard".to_owned()
    }

    fn fit_begins(&mut self, run: &mut Context<'_>) -> Result<()> {
        let done = run.history.steps.last().map_or(0, |step| step.step);
        let groups: Vec<String> = (run.groups.iter())
            .map(|group| format!("learning rate {}, weight decay {}", group.learning_rate(), group.weight_decay()))
            .collect();
        let about = format!(
            "epochs: {}\n\ndevice: {}\n\noptimizer: {}",
            run.epochs,
            run.queue.device_name(),
            groups.join("; ")
        );
        // TensorBoard reads Markdown; four spaces keep the table of layers as it is.
        let model: String = run.model.summary().to_string().lines().map(|line| format!("    {line}\n")).collect();
        let file = self.file()?;
        if done > 0 {
            file.restart(done as i64 + 1)?;
            return Ok(());
        }
        file.text("model", 0, &model)?;
        file.text("run", 0, &about)
    }

    fn step(&mut self, _run: &mut Context<'_>, step: &Step) -> Result<()> {
        self.file()?.scalars(step.step as i64, [("step/loss", step.loss), ("step/lr", step.lr)])
    }

    fn epoch_ends(&mut self, run: &mut Context<'_>, epoch: &Epoch) -> Result<()> {
        let names: Vec<(String, f64)> =
            epoch.values.iter().map(|(name, value)| (format!("epoch/{name}"), *value)).collect();
        self.file()?.scalars(epoch.steps as i64, names.iter().map(|(name, value)| (name.as_str(), *value)))?;
        if self.weights > 0 && epoch.epoch.is_multiple_of(self.weights) {
            self.histograms("weights", epoch.steps, &run.model.named_parameters())?;
        }
        Ok(())
    }

    fn fit_ends(&mut self, _run: &mut Context<'_>) -> Result<()> {
        self.close()
    }

    fn wants_gradients(&self) -> usize {
        self.gradients
    }

    fn gradients(&mut self, _run: &mut Context<'_>, step: usize, gradients: &[(String, Tensor)]) -> Result<()> {
        self.histograms("gradients", step, gradients)
    }
}

/// The error of an image that cannot be shown.
fn wrong_image(what: String) -> Error {
    Error::setting(format!("TensorBoard: {what}"))
}
