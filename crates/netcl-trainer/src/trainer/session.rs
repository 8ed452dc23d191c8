//! What every step of a run does after forward and loss, and what is gathered from it: the same for models of either language.

use std::collections::{BTreeMap, HashMap, HashSet};

use netcl_amp::GradScaler;
use netcl_distributed::Group;
use netcl_nn::autograd::ops::layout::reshape;
use netcl_nn::autograd::ops::loss::Target;
use netcl_nn::autograd::{DType, IndexTensor, Tensor, manager};
use netcl_optim::{Ema, Optimizer, ParamGroup, State, StepOptions};

use super::losses::Losses;
use super::metric::Metric;
use super::ranks;
use crate::error::Result;

/// What a model's output is compared with.
#[derive(Clone, Debug)]
pub enum Truth {
    /// Classes.
    Index(IndexTensor),
    /// Values, probabilities, or classes as whole numbers.
    Values(Tensor),
}

impl Truth {
    /// As losses and metrics take it.
    pub fn target(&self) -> Target<'_> {
        match self {
            Truth::Index(index) => index.into(),
            Truth::Values(values) => values.into(),
        }
    }
}

/// What a batch gave.
#[derive(Clone, Debug)]
pub struct Output {
    /// The mean loss of the batch, of one element.
    pub loss: Tensor,
    /// What metrics look at: the model's output, and what it should have been.
    pub predictions: Option<(Tensor, Truth)>,
}

impl From<Tensor> for Output {
    fn from(loss: Tensor) -> Output {
        Output { loss, predictions: None }
    }
}

/// What an update changes.
pub struct Parts<'p> {
    /// Changes the parameters.
    pub optimizer: &'p mut dyn Optimizer,
    /// Scales the loss, in float16.
    pub scaler: Option<&'p mut GradScaler>,
    /// Averages the parameters.
    pub ema: Option<&'p mut Ema>,
}

/// The part of a step that does not depend on the model: gradients, their exchange between ranks, clipping, update, average, losses and
/// metrics. Nothing of it reads values, so all of it can be a part of a captured step.
#[derive(Default)]
pub struct Session {
    /// The largest norm of all gradients together.
    pub grad_clip: Option<f64>,
    /// The losses that are still on the device.
    pub losses: Losses,
    /// Gathered over the epoch's training batches.
    pub training: Vec<Box<dyn Metric>>,
    /// Gathered over the validation batches.
    pub validation: Vec<Box<dyn Metric>>,
    /// Whether gradients stay after the update, for callbacks that look at them.
    pub keep_gradients: bool,
    /// What the kept gradients are multiplied by.
    pub(crate) scale: f64,
    /// The ranks that train together, if there are others.
    pub(crate) group: Option<Group>,
    /// The part of an update's samples that this rank has.
    pub(crate) share: f64,
    /// The kinds of batches that updates have seen, one for each rank, and whether their update is a captured step.
    seen: HashMap<Vec<u64>, bool>,
    /// The ranks and their kinds of batches for which there is a captured step.
    captured: HashSet<(usize, u64)>,
    /// The loss of the batches of this update so far.
    total: Option<Tensor>,
    /// Validation losses with the number of their samples.
    validated: Vec<(Tensor, usize)>,
    /// Sums of an epoch's metrics from before a resume, which are added once the metrics have their tensors.
    resumed: BTreeMap<String, Tensor>,
    /// The sums of all ranks, for the checkpoint that is being written.
    collected: Option<State>,
}

impl Session {
    /// A session that clips gradients to a norm.
    pub fn new(grad_clip: Option<f64>) -> Session {
        Session { grad_clip, ..Session::default() }
    }

    /// A session whose gradients, losses and metrics are those of all ranks.
    pub fn over(self, group: Group) -> Session {
        let share = 1.0 / group.size() as f64;
        Session { group: (group.size() > 1).then_some(group), share, ..self }
    }

    /// The ranks that train together, if there are others.
    pub fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    /// Whether the update is a captured step whose batches are of these kinds, one for each rank; all ranks decide alike. The first update
    /// is not, since it makes what steps keep. Neither is one for which a rank would replay a step that was captured beside other batches
    /// of other ranks: it had another share of the samples there, and they had nothing to replay.
    pub(crate) fn captures(&mut self, kinds: &[u64]) -> bool {
        let Some(captured) = self.seen.get_mut(kinds) else {
            self.seen.insert(kinds.to_vec(), false);
            return false;
        };
        if !*captured {
            let places = || kinds.iter().copied().enumerate();
            *captured = !places().any(|place| self.captured.contains(&place));
            if *captured {
                self.captured.extend(places());
            }
        }
        *captured
    }

    /// Forgets which batches were seen: steps were captured for none.
    pub fn forget(&mut self) {
        self.seen.clear();
        self.captured.clear();
    }

    /// The gradients of a part of an update: `share` is the part of the update's samples that are in this batch.
    ///
    /// # Errors
    /// For a loss of more than one element, and what the backward pass says.
    pub fn backward(&mut self, output: &Output, share: f64, parts: &mut Parts<'_>) -> Result<()> {
        let loss = if share == 1.0 { output.loss.clone() } else { (&output.loss * share)? };
        let scaled = match &mut parts.scaler {
            Some(scaler) => scaler.scale(&loss)?,
            None => loss.clone(),
        };
        scaled.backward()?;
        let loss = loss.detach();
        self.total = Some(match self.total.take() {
            Some(total) => (&total + &loss)?,
            None => loss,
        });
        if let Some((predictions, truth)) = &output.predictions {
            let predictions = predictions.detach();
            for metric in self.training.iter_mut().filter(|metric| metric.can_capture()) {
                metric.update(&predictions, truth.target())?;
            }
        }
        Ok(())
    }

    /// The metrics that cannot be a part of a captured step.
    ///
    /// # Errors
    /// Those of the metrics.
    pub fn observe(&mut self, predictions: &Tensor, truth: &Truth) -> Result<()> {
        for metric in self.training.iter_mut().filter(|metric| !metric.can_capture()) {
            metric.update(predictions, truth.target())?;
        }
        Ok(())
    }

    /// Whether predictions are wanted after a captured step.
    pub fn observes(&self) -> bool {
        self.training.iter().any(|metric| !metric.can_capture())
    }

    /// The update. Once a loss is not finite, the device leaves everything as it is, in this update and all that follow: the
    /// weights are then those that gave this loss.
    ///
    /// # Errors
    /// What optimizer, scaler and average say.
    pub fn apply(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        self.exchange(&*parts.optimizer)?;
        if let Some(total) = self.total.take() {
            self.losses.put(&total)?;
        }
        let options = StepOptions { max_norm: self.grad_clip, found_inf: self.losses.bad(), ..StepOptions::default() };
        self.scale = 1.0;
        match &mut parts.scaler {
            Some(scaler) => {
                if self.keep_gradients {
                    self.scale = 1.0 / scaler.get_scale()?;
                }
                scaler.step_with(parts.optimizer, options)?;
                scaler.update()?;
            }
            None => drop(parts.optimizer.step_with(&options)?),
        }
        if !self.keep_gradients {
            parts.optimizer.zero_grad();
        }
        if let Some(ema) = &mut parts.ema {
            ema.update()?;
        }
        Ok(())
    }

    /// Loss and gradients become those of all ranks' samples, the same on every rank, in one exchange: the loss travels as the gradient of
    /// one more parameter. A loss that is not finite on one rank is so on all, and none changes its weights.
    fn exchange(&mut self, optimizer: &dyn Optimizer) -> Result<()> {
        let Some(group) = &self.group else { return Ok(()) };
        let mut tensors: Vec<Tensor> = optimizer.groups().iter().flat_map(ParamGroup::params).cloned().collect();
        let Some(first) = tensors.first() else { return Ok(()) };
        // Not the loss's own dtype and device: a rank without a batch has none, and all must say the same.
        let dtype = if first.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let loss = Tensor::from_shape(first.queue(), (), dtype)?;
        if let Some(total) = self.total.take() {
            if total.size() != 1 {
                // The message about its shape comes from where all losses go.
                return self.losses.put(&total);
            }
            loss.set_grad(Some(reshape(&total.cast(dtype)?, ())?.to(first.queue())?));
        }
        tensors.push(loss.clone());
        group.sync_grads(&tensors, self.share)?;
        self.total = loss.grad();
        Ok(())
    }

    /// After a step that failed half-way: nothing of it is left for the next one.
    pub fn abandon(&mut self, optimizer: &dyn Optimizer) {
        self.total = None;
        optimizer.zero_grad();
    }

    /// A validation batch.
    ///
    /// # Errors
    /// Those of the metrics.
    pub fn validated(&mut self, output: &Output, samples: usize) -> Result<()> {
        self.validated.push((output.loss.detach(), samples));
        if let Some((predictions, truth)) = &output.predictions {
            for metric in &mut self.validation {
                metric.update(predictions, truth.target())?;
            }
        }
        Ok(())
    }

    /// The mean validation loss and the metrics by name. This waits for the device, and starts over.
    ///
    /// # Errors
    /// What the device says.
    pub fn validation_values(&mut self) -> Result<BTreeMap<String, f64>> {
        let (mut sum, mut count) = (0.0, 0);
        for (loss, samples) in self.validated.drain(..) {
            sum += loss.item()? * samples as f64;
            count += samples;
        }
        if let Some(group) = &self.group {
            let [sums, counts] = ranks::sum(group, [sum, count as f64])?;
            (sum, count) = (sums, counts as usize);
        }
        let mut values = BTreeMap::from([("loss".to_owned(), if count == 0 { f64::NAN } else { sum / count as f64 })]);
        if count > 0 {
            values.extend(values_of(&mut self.validation, self.group.as_ref())?);
        }
        Ok(values)
    }

    /// The metrics over the epoch's training batches. This waits for the device, and starts over.
    ///
    /// # Errors
    /// What the device says.
    pub fn training_values(&mut self) -> Result<BTreeMap<String, f64>> {
        values_of(&mut self.training, self.group.as_ref())
    }

    /// The metrics as they stand on this rank, for a progress line.
    ///
    /// # Errors
    /// What the device says.
    pub fn running_values(&mut self) -> Result<BTreeMap<String, f64>> {
        self.training.iter().map(|metric| Ok((metric.name(), metric.compute()?))).collect()
    }

    /// What an epoch's metrics have gathered so far, for a checkpoint in the middle of it.
    pub(crate) fn sums(&mut self) -> State {
        if let Some(collected) = self.collected.take() {
            return collected;
        }
        let mut state = State::default();
        for metric in &self.training {
            for (i, sum) in metric.sums().into_iter().enumerate() {
                state.tensors.insert(format!("{}.{i}", metric.name()), sum);
            }
        }
        state
    }

    /// Adds up what all ranks have gathered so far, for the checkpoint that rank 0 writes.
    pub(crate) fn collect(&mut self) -> Result<()> {
        let Some(group) = &self.group else { return Ok(()) };
        let mut state = State::default();
        for metric in &self.training {
            let sums = metric.sums();
            let Some(totals) = ranks::total(&metric.name(), &sums, group)? else { continue };
            let mut totals = &totals[..];
            for (i, sum) in sums.iter().enumerate() {
                let (own, rest) = totals.split_at(sum.size());
                let own = Tensor::from_host(&manager().cpu().queue, own, sum.shape().clone())?;
                state.tensors.insert(format!("{}.{i}", metric.name()), own.cast(sum.dtype())?);
                totals = rest;
            }
        }
        self.collected = Some(state);
        Ok(())
    }

    /// Goes on with what metrics had gathered: rank 0 has the sums of all.
    pub(crate) fn resume_sums(&mut self, state: State) {
        if self.group.as_ref().is_none_or(|group| group.rank() == 0) {
            self.resumed = state.tensors;
        }
    }

    /// Adds them after the first batch, when metrics have their tensors: the sums are then those of a run that was never stopped.
    pub(crate) fn add_resumed(&mut self) -> Result<()> {
        if self.resumed.is_empty() {
            return Ok(());
        }
        let resumed = std::mem::take(&mut self.resumed);
        for metric in &self.training {
            for (i, sum) in metric.sums().into_iter().enumerate() {
                if let Some(before) = resumed.get(&format!("{}.{i}", metric.name())) {
                    let host = manager().cpu().queue;
                    let both = (&sum.to(&host)? + before)?;
                    sum.assign(both.to(sum.queue())?.raw())?;
                }
            }
        }
        Ok(())
    }
}

fn values_of(metrics: &mut [Box<dyn Metric>], group: Option<&Group>) -> Result<BTreeMap<String, f64>> {
    let mut values = BTreeMap::new();
    for metric in metrics {
        let value = match group {
            Some(group) => value_over_ranks(&mut **metric, group)?,
            None => metric.compute()?,
        };
        values.insert(metric.name(), value);
        metric.reset()?;
    }
    Ok(values)
}

/// The figure of all ranks' samples, the same on every rank.
fn value_over_ranks(metric: &mut dyn Metric, group: &Group) -> Result<f64> {
    let merged = metric.merge(group)?;
    let own = metric.compute();
    // A rank that saw no batch takes the figure of one that did.
    let all = ranks::numbers(group, own.as_ref().map_or(&[][..], std::slice::from_ref))?.concat();
    match all.first() {
        None => own,
        Some(first) if merged => Ok(*first),
        Some(_) => Ok(all.iter().sum::<f64>() / all.len() as f64),
    }
}
