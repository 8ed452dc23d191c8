//! What is called while a run goes on.

use netcl_nn::Module;
use netcl_nn::autograd::{Queue, Tensor};
use netcl_optim::ParamGroup;
use serde_json::Value;

use super::history::{Epoch, History, Step};
use crate::error::Result;

/// What a callback sees of the run, and may change.
pub struct Context<'c> {
    /// The model.
    pub model: &'c mut dyn Module,
    /// The optimizer's groups of parameters: their learning rates may be set.
    pub groups: &'c [ParamGroup],
    /// Where the model lies.
    pub queue: &'c Queue,
    /// What happened so far.
    pub history: &'c History,
    /// Epochs that the run shall have.
    pub epochs: usize,
    /// Updates in an epoch, where the loader knows its length.
    pub steps_per_epoch: Option<usize>,
    /// Set by a callback that wants the run to end after this update or epoch: the reason, which is printed.
    pub stop: Option<String>,
    /// Set by a callback that has changed the model's settings (frozen a layer, another rate of dropout): the step is captured
    /// again. Python's trainer notices by itself.
    pub recapture: bool,
    /// Filled by callbacks that want a checkpoint now: its names without their ending, in the run's folder (`best`, `last`).
    pub keep: Vec<String>,
}

/// Is called while a run goes on. All methods do nothing unless written; an error ends the run and names the callback.
pub trait Callback {
    /// What errors call it.
    fn name(&self) -> String;

    /// The run begins, or goes on.
    fn fit_begins(&mut self, _run: &mut Context<'_>) -> Result<()> {
        Ok(())
    }

    /// An epoch begins (from 1).
    fn epoch_begins(&mut self, _run: &mut Context<'_>, _epoch: usize) -> Result<()> {
        Ok(())
    }

    /// An update is known on the host: some updates after it was put on the device, and in order.
    fn step(&mut self, _run: &mut Context<'_>, _step: &Step) -> Result<()> {
        Ok(())
    }

    /// Something that takes a while begins: `"validation"`, `"checkpoint"`, `"first step"`.
    fn phase(&mut self, _run: &mut Context<'_>, _name: &str) -> Result<()> {
        Ok(())
    }

    /// An epoch has ended, validation included. It is the last of `run.history` already.
    fn epoch_ends(&mut self, _run: &mut Context<'_>, _epoch: &Epoch) -> Result<()> {
        Ok(())
    }

    /// The run ends: all epochs are done, or it was stopped.
    fn fit_ends(&mut self, _run: &mut Context<'_>) -> Result<()> {
        Ok(())
    }

    /// Every how many updates it wants to see gradients, in [`Callback::gradients`]; 0 for never.
    fn wants_gradients(&self) -> usize {
        0
    }

    /// The gradients of an update by the parameters' names, where it asked for them.
    fn gradients(&mut self, _run: &mut Context<'_>, _step: usize, _gradients: &[(String, Tensor)]) -> Result<()> {
        Ok(())
    }

    /// What must be known to go on after a resume: `null` where nothing.
    fn state(&self) -> Value {
        Value::Null
    }

    /// Goes on from a state.
    fn load_state(&mut self, _state: &Value) -> Result<()> {
        Ok(())
    }
}
