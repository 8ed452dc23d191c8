//! What every optimizer is: groups of parameters and a step.

use netcl_autograd::{Result, Tensor};

use crate::base::Base;
use crate::group::ParamGroup;
use crate::state::State;

/// Changes parameters by their gradients.
///
/// An optimizer holds clones of the parameters: the same tensors as the model's. A step is one launch for all parameters of
/// a dtype. Updates are written in place and never recorded; a graph that was recorded before a step and still needs the old
/// values refuses its backward pass by name.
pub trait Optimizer: Send {
    /// What all optimizers have in common.
    fn base(&self) -> &Base;

    /// What all optimizers have in common, to change it.
    fn base_mut(&mut self) -> &mut Base;

    /// One update of all parameters that have a gradient; the others, and their state, stay as they are.
    fn step(&mut self) -> Result<()> {
        self.base_mut().step(&StepOptions::default()).map(|_| ())
    }

    /// A step that unscales and clips the gradients on the way, or leaves everything as it is, without asking the host.
    ///
    /// Gives the gradients' norm after unscaling and before clipping where one was needed, as a tensor without axes that the
    /// next such step overwrites. The gradients themselves stay as they are.
    fn step_with(&mut self, options: &StepOptions) -> Result<Option<Tensor>> {
        self.base_mut().step(options)
    }

    /// Counts a step without running one: for whoever replays a captured step, before each replay.
    ///
    /// ```
    /// use std::rc::Rc;
    /// use netcl_autograd::Tensor;
    /// use netcl_core::{device::manager, kernels::launch::{Recorder, with_sink}};
    /// use netcl_optim::{Adam, Optimizer};
    ///
    /// let queue = manager().cpu().queue;
    /// let p = Tensor::from_host(&queue, &[1.0f32], [1])?.with_grad();
    /// p.set_grad(Some(Tensor::from_host(&queue, &[0.5f32], [1])?));
    /// let mut opt = Adam::new([p.clone()], 0.25)?;
    /// opt.step()?; // the first step makes the state
    ///
    /// let recorder = Rc::new(Recorder::default());
    /// with_sink(recorder.clone(), || opt.step())?; // counted, not yet run
    /// recorder.replay()?;
    /// opt.set_learning_rate(0.5); // seen by the next replay
    /// opt.advance();
    /// recorder.replay()?;
    /// // A constant gradient moves Adam by its learning rate each time.
    /// assert!((p.item()? - (1.0 - 0.25 - 0.25 - 0.5)).abs() < 1e-6);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    fn advance(&mut self) {
        self.base_mut().advance();
    }

    /// The groups of parameters.
    fn groups(&self) -> &[ParamGroup] {
        self.base().groups()
    }

    /// Adds parameters with a learning rate and a weight decay of their own.
    ///
    /// # Errors
    /// For no parameters, for parameters that are given twice or are not leaves, and for settings out of range.
    fn add_group(&mut self, params: Vec<Tensor>, learning_rate: f64, weight_decay: f64) -> Result<()> {
        self.base_mut().add_group(params, learning_rate, weight_decay)
    }

    /// Everything a run needs to go on exactly where this one stands, apart from the parameters themselves.
    fn state(&self) -> State {
        self.base().state()
    }

    /// [`Optimizer::state`] of all ranks where they have [divided](Base::shard) it among them; they call this together.
    ///
    /// # Errors
    /// If a rank is lost.
    fn gathered_state(&self) -> Result<State> {
        self.base().gathered_state()
    }

    /// Goes on from a state that [`Optimizer::state`] gave for the same parameters.
    ///
    /// # Errors
    /// Names every entry that is missing, unknown or of the wrong shape; nothing has changed then.
    fn load_state(&mut self, state: &State) -> Result<()> {
        self.base_mut().load_state(state)
    }

    /// Drops the gradients of all parameters.
    fn zero_grad(&self) {
        for parameter in self.groups().iter().flat_map(ParamGroup::params) {
            parameter.set_grad(None);
        }
    }

    /// Fills the gradients of all parameters with zeros where they lie, for those who hold on to them.
    fn fill_grad_with_zeros(&self) -> Result<()> {
        for parameter in self.groups().iter().flat_map(ParamGroup::params) {
            match parameter.grad() {
                Some(grad) if grad.layout().is_contiguous() => grad.fill(0.0)?,
                // A view (the gradient of a sum repeats one element) is not to be written to.
                Some(grad) => {
                    let zeros = Tensor::from_shape(grad.queue(), grad.shape().clone(), grad.dtype())?;
                    parameter.set_grad(Some(zeros));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// The learning rate of the first group.
    fn learning_rate(&self) -> f64 {
        self.groups().first().map_or(0.0, ParamGroup::learning_rate)
    }

    /// Sets the learning rate of every group.
    fn set_learning_rate(&self, learning_rate: f64) {
        for group in self.groups() {
            group.set_learning_rate(learning_rate);
        }
    }
}

/// What a step does to gradients on the way; see [`Optimizer::step_with`].
///
/// ```
/// use netcl_autograd::{Tensor, manager};
/// use netcl_optim::{GradScale, Optimizer, SGD, StepOptions};
///
/// let queue = manager().cpu().queue;
/// let p = Tensor::from_host(&queue, &[0.0f32, 0.0], [2])?.with_grad();
/// let mut opt = SGD::new([p.clone()], 1.0)?;
/// p.set_grad(Some(Tensor::from_host(&queue, &[48.0f32, 64.0], [2])?)); // of a loss that was multiplied by 16
/// let options = StepOptions { grad_scale: Some(GradScale::Number(16.0)), max_norm: Some(1.0), ..Default::default() };
/// let norm = opt.step_with(&options)?.map(|norm| norm.item()).transpose()?;
/// assert_eq!(norm, Some(5.0));
/// assert!((p.to_f64_vec()?[0] + 0.6).abs() < 1e-6); // (3, 4) / 5
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StepOptions {
    /// What the loss was multiplied by: gradients are divided by it.
    pub grad_scale: Option<GradScale>,
    /// The largest norm of all gradients together, after unscaling; larger ones are scaled down to it.
    pub max_norm: Option<f64>,
    /// One float32 number on the parameters' device: anything but zero skips the update.
    pub found_inf: Option<Tensor>,
    /// Whether gradients that are not all finite skip the update.
    pub skip_non_finite: bool,
}

impl StepOptions {
    /// Whether anything is asked for.
    pub(crate) fn controls(&self) -> bool {
        self.grad_scale.is_some() || self.may_skip() || self.max_norm.is_some()
    }

    /// Whether the gradients' norm is needed.
    pub(crate) fn needs_norm(&self) -> bool {
        self.max_norm.is_some() || self.skip_non_finite
    }

    /// Whether the update may be skipped.
    pub(crate) fn may_skip(&self) -> bool {
        self.found_inf.is_some() || self.skip_non_finite
    }
}

/// What a loss was multiplied by.
#[derive(Clone, Debug)]
pub enum GradScale {
    /// A number.
    Number(f64),
    /// One float32 number on the parameters' device.
    Device(Tensor),
}
