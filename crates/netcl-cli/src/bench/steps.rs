//! The rows of whole training steps: forward, loss, backward and update, launch by launch and captured.

use anyhow::Result;
use netcl::core::backend::Queue;
use netcl::profiling::timing::{Effort, Timing, time};
use serde_json::{Value, json};

use crate::output::{print, print_table, table};
use crate::workload::{Mode, Model};

/// A step that was timed both ways.
pub(crate) struct TimedStep {
    pub(crate) model: Model,
    pub(crate) batch: usize,
    pub(crate) outcome: std::result::Result<(Timing, Timing), String>,
}

/// What `--rows` calls a model's step.
pub(crate) fn id(model: Model) -> String {
    format!("step_{}", model.name())
}

/// Times a model's step with as many examples as suit the device.
pub(crate) fn measure(model: Model, queue: &Queue, full: bool, effort: Effort) -> TimedStep {
    let batch = model.default_batch() * if full { 16 } else { 1 };
    let one = |mode: Mode| -> Result<Timing> {
        let mut step = model.step(queue, batch, mode)?;
        let call = || step().map_err(|error| netcl::core::Error::argument("step", error.to_string()));
        Ok(time(queue, effort, call)?)
    };
    let both = || -> Result<(Timing, Timing)> { Ok((one(Mode::Train)?, one(Mode::Captured)?)) };
    TimedStep { model, batch, outcome: both().map_err(|error| format!("{error:#}")) }
}

pub(crate) fn print_steps(steps: &[TimedStep]) -> Result<()> {
    if steps.is_empty() {
        return Ok(());
    }
    print("\nTraining steps: forward, loss, backward, update (Adam)\n")?;
    let header = ["step", "batch", "eager", "captured", "examples/s"].map(str::to_owned).to_vec();
    let mut rows = table(&header);
    for TimedStep { model, batch, outcome } in steps {
        let mut cells = vec![model.name().to_owned(), batch.to_string()];
        match outcome {
            Err(problem) => cells.push(format!("FAILED: {problem}")),
            Ok((eager, captured)) => cells.extend([
                super::milliseconds(eager.median),
                super::milliseconds(captured.median),
                format!("{:.0}", *batch as f64 / captured.median),
            ]),
        }
        rows.add_row(cells);
    }
    print_table(&rows)
}

pub(crate) fn to_json(steps: &[TimedStep]) -> Value {
    let one = |step: &TimedStep| {
        let (eager, captured) = match &step.outcome {
            Ok((eager, captured)) => (Some(eager.median * 1e3), Some(captured.median * 1e3)),
            Err(_) => (None, None),
        };
        json!({
            "id": id(step.model), "batch": step.batch, "eager_ms": eager, "captured_ms": captured,
            "failed": step.outcome.as_ref().err(),
        })
    };
    steps.iter().map(one).collect()
}
