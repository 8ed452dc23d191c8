//! What a run says when it cannot go on.

use netcl_nn::autograd::{CoreError, ErrorKind};

use super::fit::Stepper;
use crate::error::{Error, Result};

/// Adds to an out-of-memory error what the run could do with less, in numbers.
pub(super) fn explain<S: Stepper>(error: Error, stepper: &mut S, samples: &[usize]) -> Error {
    let Error::Tensor(inner) = error else { return error };
    if inner.kind() != ErrorKind::Memory {
        return Error::Tensor(inner);
    }
    let numbers: Result<(usize, usize)> = stepper.held(|held| {
        let parameters = held.model.parameters().iter().map(|p| p.size() * p.dtype().size()).sum();
        let state = held.optimizer.state().tensors.values().map(|t| t.size() * t.dtype().size()).sum();
        Ok((parameters, state))
    });
    let (parameters, state) = numbers.unwrap_or_default();
    Error::Memory {
        samples: samples.iter().copied().max().unwrap_or(0),
        parts: samples.len(),
        parameters,
        state,
        inner,
    }
}

/// What to change when memory does not suffice.
pub(crate) fn advice(samples: usize, parts: usize, parameters: usize, state: usize) -> String {
    let half = samples.div_ceil(2).max(1);
    let mega = |bytes: usize| format!("{:.1} MB", bytes as f64 / 1e6);
    let batch = match samples {
        0 | 1 => String::new(),
        _ => format!("batches of {half} samples with accumulation_steps={} (the same updates), ", 2 * parts),
    };
    format!(
        "The step has a batch of {samples} samples; parameters take {}, the optimizer's state {}, gradients {} besides, the rest are \
         activations, which shrink with the batch. Try {batch}mixed_precision=True (half of the activations), or \
         netcl.autograd.checkpoint around parts of the model (activations are computed again)",
        mega(parameters),
        mega(state),
        mega(parameters)
    )
}

/// What is said where no operation is found.
pub(super) const FINITE: &str = "the same batch gives finite values when it is run again: a random layer such as dropout, or mixed \
     precision, decides";

/// Which operation gives the first value that is not finite in these batches, in words. The weights are those before the update that
/// failed: the device has skipped it.
pub(super) fn first_operation<S: Stepper>(stepper: &mut S, group: &[S::Batch]) -> String {
    let mut weights = None;
    let _ = stepper.show(|model, _, _| {
        for (name, parameter) in model.named_parameters() {
            let sum = parameter.detach().sum((), false)?.item()?;
            if !sum.is_finite() {
                weights.get_or_insert(name);
            }
        }
        Ok(())
    });
    if let Some(name) = weights {
        return format!(
            "the parameter {name} is not finite: an earlier update has spoilt it. Use grad_clip=1.0, a smaller learning rate, or \
             resume from the checkpoint before"
        );
    }
    for batch in group {
        if let Some(found) = stepper.diagnose(batch) {
            return found;
        }
    }
    FINITE.to_owned()
}

/// The words of an anomaly.
pub(super) fn words(error: &Error) -> Option<String> {
    match error {
        Error::Tensor(netcl_nn::autograd::Error::Anomaly { .. }) => Some(error.to_string()),
        _ => None,
    }
}

/// Whether a step failed only because it was being captured.
pub(super) fn is_of_capture(error: &Error) -> bool {
    matches!(
        error,
        Error::Tensor(netcl_nn::autograd::Error::Core(CoreError::State { .. } | CoreError::Unsupported { .. }))
    )
}
