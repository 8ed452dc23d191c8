//! Batch normalisation over the parts of a batch that run on several devices of one process.
//!
//! No part can go past such a layer before all have come to it. Each part has a thread for that, but only one runs at a time, in the
//! order of devices: what is drawn at random is the same from run to run. The last part to come normalises all of them with recorded
//! operations, so a walk backwards needs no threads.
//!
//! ```text
//!   part 0   ---- norm .            . ---- norm .
//!   part 1              ---- norm .              . ---- ...
//!                            ^ computes both
//! ```

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use netcl_core::kernels::launch::is_repeating;
use netcl_nn::Module;
use netcl_nn::autograd::graph::grad_enabled;
use netcl_nn::autograd::ops::elementwise::{add, cast, mul, rsqrt, sub};
use netcl_nn::autograd::ops::layout::{reshape, to};
use netcl_nn::autograd::ops::norm::{Running, batch_norm};
use netcl_nn::autograd::ops::reduce::sum;
use netcl_nn::autograd::{CoreError, DType, Error as AutogradError, RawTensor, Result as AutogradResult, Tensor};
use netcl_nn::autograd::{autocast, no_grad};

use super::sync_batch_norm::{Statistics, average, set_training_norm};
use crate::error::Result;

const CALL: &str = "DataParallel";

/// A part of a batch at a layer.
pub struct Part {
    /// The input of the layer.
    pub x: Tensor,
    /// The scales of the device's copy of the layer.
    pub weight: Option<Tensor>,
    /// The shifts.
    pub bias: Option<Tensor>,
}

/// Running averages that outlive a call.
struct Averages {
    mean: RawTensor,
    var: RawTensor,
    batches: Option<RawTensor>,
    momentum: Option<f64>,
}

/// Normalises every channel (axis 1) of all parts by the statistics of all, and updates the running averages. The parts may lie on
/// different devices; each result lies where its part does.
///
/// ```
/// use netcl_distributed::data_parallel::{joint_batch_norm, joint_norm::Part};
/// use netcl_nn::autograd::{Tensor, manager};
///
/// let part = |value: f32| Tensor::from_host(&manager().cpu().queue, &[value], [1, 1]);
/// let parts = [Part { x: part(1.0)?, weight: None, bias: None }, Part { x: part(3.0)?, weight: None, bias: None }];
/// let normalised = joint_batch_norm(&parts, None, 0.0)?;
/// assert_eq!([normalised[0].item()?, normalised[1].item()?], [-1.0, 1.0]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
///
/// # Errors
/// For parts without channels or with other channels; what the devices say.
pub fn joint_batch_norm(parts: &[Part], running: Option<Running<'_>>, eps: f64) -> AutogradResult<Vec<Tensor>> {
    let _plain = autocast::suspend();
    let channels = parts.iter().map(|part| part.x.shape().get(1).copied()).collect::<Vec<_>>();
    let Some(&Some(channels)) = channels.first().filter(|first| channels.iter().all(|other| other == *first)) else {
        let shapes: Vec<String> = parts.iter().map(|part| part.x.shape().to_string()).collect();
        let what = format!("parts of shapes {} do not have the same channels: (N, C, ...)", shapes.join(", "));
        return Err(AutogradError::argument("batch_norm", what));
    };
    let (ndim, home) = (parts[0].x.ndim(), parts[0].x.queue());
    let axes: Vec<isize> = (0..ndim as isize).filter(|&axis| axis != 1).collect();
    let shape: Vec<usize> = (0..ndim).map(|axis| if axis == 1 { channels } else { 1 }).collect();
    let dtype = if parts[0].x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let count = parts.iter().map(|part| part.x.size() / channels.max(1)).sum::<usize>() as f64;
    let mean_of = |values: &[Tensor]| {
        let mut sums = values.iter().map(|values| to(&sum(values, &axes[..], true)?, home));
        let first = sums.next().unwrap_or_else(|| Tensor::from_shape(home, shape.as_slice(), dtype))?;
        mul(&sums.try_fold(first, |all, own| add(&all, &own?))?, 1.0 / count)
    };
    let wide = parts.iter().map(|part| cast(&part.x, dtype)).collect::<AutogradResult<Vec<_>>>()?;
    let mean = mean_of(&wide)?;
    let apart = wide.iter().map(|x| sub(x, &to(&mean, x.queue())?)).collect::<AutogradResult<Vec<_>>>()?;
    let squares = apart.iter().map(|apart| mul(apart, apart)).collect::<AutogradResult<Vec<_>>>()?;
    let variance = mean_of(&squares)?;
    if let Some(running) = running {
        let squares = variance.to_f64_vec()?.into_iter().map(|variance| variance * count).collect();
        average(&running, &Statistics { count, means: mean.to_f64_vec()?, squares })
            .map_err(crate::Error::into_autograd)?;
    }
    let scale = rsqrt(&add(&variance, eps)?)?;
    let per_channel = |values: &Tensor| cast(&reshape(values, shape.as_slice())?, dtype);
    let finish = |(part, apart): (&Part, &Tensor)| {
        let mut y = mul(apart, &to(&scale, apart.queue())?)?;
        if let Some(weight) = &part.weight {
            y = mul(&y, &per_channel(weight)?)?;
        }
        if let Some(bias) = &part.bias {
            y = add(&y, &per_channel(bias)?)?;
        }
        cast(&y, part.x.dtype())
    };
    parts.iter().zip(&apart).map(finish).collect()
}

/// An error while a step is being captured.
///
/// # Errors
/// See above.
pub fn refuse_recording(what: &str) -> AutogradResult<()> {
    if !is_repeating() {
        return Ok(());
    }
    Err(CoreError::State { op: CALL, what: what.to_owned() }.into())
}

/// Why norm over devices is no part of a captured step.
pub const IN_THREADS: &str = "batch norm over several devices runs in a thread for each, which a captured step cannot record: run this \
                              step as it is written (capture=False), or train with a rank for each device";

/// Where the parts of a batch wait for each other.
#[derive(Default)]
pub(super) struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The devices whose parts have not ended, in order; the first runs.
    running: Vec<usize>,
    /// The parts that have come to the layer.
    arrived: Vec<Part>,
    averages: Option<Averages>,
    /// What the layer gave, for those that have not taken it.
    results: Vec<(usize, Tensor)>,
    /// Whether a part has failed, and the others give up.
    failed: bool,
}

impl Meeting {
    /// Makes the batch norm of a device's model meet here.
    pub(super) fn invite(self: &Arc<Self>, model: &mut dyn Module, device: usize) -> Result<()> {
        let meeting = self.clone();
        set_training_norm(
            model,
            Arc::new(move |x, weight, bias, running, eps| meeting.normalise(device, x, weight, bias, running, eps)),
        )
    }

    /// Runs the parts of a batch, each given by its device: what they give, in order.
    pub(super) fn run<F>(&self, parts: Vec<(usize, F)>) -> AutogradResult<Vec<Tensor>>
    where
        F: FnOnce() -> AutogradResult<Tensor> + Send,
    {
        refuse_recording(IN_THREADS)?;
        *self.lock() = State { running: parts.iter().map(|(device, _)| *device).collect(), ..State::default() };
        let (recording, precision) = (grad_enabled(), autocast::autocast_dtype());
        let of_part = |(device, part): (usize, F)| {
            let mut turn = Turn { meeting: self, device, done: false };
            drop(self.await_turn(device)?);
            let result = part();
            turn.done = result.is_ok();
            result
        };
        let in_thread = |part: (usize, F)| {
            // As the caller's thread is.
            let _recording = (!recording).then(no_grad);
            let _precision = precision.map(autocast::autocast).transpose()?;
            of_part(part)
        };
        let mut parts = parts.into_iter();
        let results: Vec<AutogradResult<Tensor>> = std::thread::scope(|scope| {
            let first = parts.next();
            let others: Vec<_> = parts.map(|part| scope.spawn(|| in_thread(part))).collect();
            let first = first.map(of_part);
            let gone = || AutogradError::argument(CALL, "a part of the batch has ended: see its message above");
            let others = others.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(gone())));
            first.into_iter().chain(others.collect::<Vec<_>>()).collect()
        });
        // The reason first, then those that gave up for it.
        let (good, mut bad): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        bad.sort_by_key(|result| matches!(result, Err(AutogradError::Core(CoreError::State { op: CALL, .. }))));
        bad.into_iter().chain(good).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn await_turn(&self, device: usize) -> AutogradResult<MutexGuard<'_, State>> {
        let waits = |state: &mut State| !state.failed && state.running.first() != Some(&device);
        let state = self.changed.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        if state.failed {
            let what = "another part of the batch has failed".to_owned();
            return Err(CoreError::State { op: CALL, what }.into());
        }
        Ok(state)
    }

    fn normalise(
        &self,
        device: usize,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        running: Option<Running<'_>>,
        eps: f64,
    ) -> AutogradResult<Tensor> {
        let mut state = self.lock();
        // Called by someone else than `run`.
        if !state.running.contains(&device) {
            drop(state);
            return batch_norm(x, weight, bias, running, eps);
        }
        if state.arrived.is_empty() {
            // Those of the first device are the model's own.
            state.averages = running.map(|running| Averages {
                mean: running.mean.clone(),
                var: running.var.clone(),
                batches: running.batches.cloned(),
                momentum: running.momentum,
            });
        }
        state.arrived.push(Part { x: x.clone(), weight: weight.cloned(), bias: bias.cloned() });
        // The next part runs up to here, and after the last one the first goes on.
        state.running.rotate_left(1);
        if state.arrived.len() == state.running.len() {
            let (parts, averages) = (std::mem::take(&mut state.arrived), state.averages.take());
            let running = averages.as_ref().map(|averages| Running {
                mean: &averages.mean,
                var: &averages.var,
                batches: averages.batches.as_ref(),
                momentum: averages.momentum,
            });
            let results = joint_batch_norm(&parts, running, eps)?;
            state.results = state.running.iter().copied().zip(results).collect();
        }
        self.changed.notify_all();
        drop(state);
        let mut state = self.await_turn(device)?;
        let at = state.results.iter().position(|(owner, _)| *owner == device);
        at.map(|at| state.results.swap_remove(at).1)
            .ok_or_else(|| AutogradError::argument(CALL, "the parts of a batch came to different layers of batch norm"))
    }
}

/// A part that runs; its end, whichever it is, lets the others go on.
struct Turn<'m> {
    meeting: &'m Meeting,
    device: usize,
    done: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.meeting.lock();
        state.running.retain(|device| *device != self.device);
        // Who ends while others wait at a layer has not come to it.
        state.failed |= !self.done || !state.arrived.is_empty();
        self.meeting.changed.notify_all();
    }
}
