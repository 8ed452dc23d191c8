//! `netcl profile`: where the time and the memory of a training step go, as tables and as a page.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use netcl::core::device::manager;
use netcl::profiling::profile::{ProfileOptions, Profiler};

use crate::Verdict;
use crate::output::print;
use crate::workload::{Mode, Model};

pub(crate) const AFTER_HELP: &str = "\
The page is one file that loads nothing from elsewhere: a flame graph of the modules, a timeline, a roofline with a dot per kernel that \
leads to its source, tables, and memory over time. Weights and data are random. In Python, netcl.profiling.profile does the same for any \
code.";

#[derive(Args)]
pub(crate) struct Arguments {
    /// The model
    #[arg(long, value_enum, default_value = "cnn")]
    model: Model,
    /// What is run
    #[arg(long, value_enum, default_value = "train")]
    mode: Mode,
    /// Examples of a step [default: suits the model]
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,
    /// How many steps are profiled, after some that compile
    #[arg(long, value_name = "N", default_value_t = 5)]
    steps: usize,
    /// cpu (native), gpu, opencl, an index of `netcl devices`, or part of a name
    #[arg(long, value_name = "SELECTOR", default_value = "auto")]
    device: String,
    /// Where the page goes
    #[arg(long, value_name = "FILE", default_value = "profile.html")]
    html: PathBuf,
    /// Write a trace for https://ui.perfetto.dev as well
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let Arguments { model, mode, steps, .. } = *arguments;
    let batch = arguments.batch_size.unwrap_or(model.default_batch());
    if batch == 0 || batch > 1 << 16 || steps == 0 || steps > 10_000 {
        bail!("--batch-size is a number from 1 to 65536 and --steps one from 1 to 10000, got {batch} and {steps}");
    }
    let queue = manager().get(&arguments.device).context("--device")?.queue;
    let mut step = model.step(&queue, batch, mode)?;
    // Compiles, and fills the pools: a profile of that says nothing of the steps after it.
    step()?;
    step()?;
    queue.finish()?;
    let profiler = Profiler::start(ProfileOptions::default());
    (0..steps).try_for_each(|_| step())?;
    let profile = profiler.stop()?;
    print(&format!("{steps} steps of {}, {batch} examples each\n{profile}", model.name()))?;
    profile.html(&arguments.html)?;
    print(&format!("The page: {}", arguments.html.display()))?;
    if let Some(path) = &arguments.trace {
        profile.trace(path)?;
        print(&format!("The trace: {} (open it at https://ui.perfetto.dev)", path.display()))?;
    }
    Ok(Verdict::Good)
}
