//! What `NETCL_DEBUG` prints to standard error while a program runs.
//!
//! | level | adds |
//! |---|---|
//! | 1 | one line per program that is compiled, or loaded from the cache |
//! | 2 | one line per launch: microseconds, GFLOP/s and GB/s. Every launch is waited for, so nothing overlaps any more |
//! | 3 | what the JIT compiler fused, and what it did not and why |
//! | 4 | the source of every program |
//!
//! Lines start with `netcl:`, so that they can be told from a program's own.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::backend::opencl::Source;
use crate::env;
use crate::error::Result;
use crate::kernels::launch::{Launch, Work};
use crate::observe;

/// What is printed; a level includes the ones below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    Off,
    /// Programs that are compiled.
    Compiles,
    /// Launches with their times.
    Launches,
    /// Decisions of the JIT compiler.
    Fusion,
    /// Sources.
    Sources,
}

const LEVELS: [Level; 5] = [Level::Off, Level::Compiles, Level::Launches, Level::Fusion, Level::Sources];

/// The level that the environment asks for; read once.
fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| env::DEBUG.whole().and_then(|level| LEVELS.get(level)).copied().unwrap_or(Level::Off))
}

/// Whether a level's lines are wanted: asked before a costly text is written.
pub fn wants(wanted: Level) -> bool {
    level() >= wanted
}

/// Prints a text, each line with the mark, in one piece: threads do not cut each other's lines.
pub fn print(text: fmt::Arguments<'_>) {
    let marked: String = text.to_string().lines().map(|line| format!("netcl: {line}\n")).collect();
    // Somebody who closed standard error does not want to read this.
    let _ = std::io::stderr().lock().write_all(marked.as_bytes());
}

/// Runs a launch, shows it to observers and, from [`Level::Launches`] on, waits for it and prints what it took.
pub(crate) fn watch(launch: &Launch, run: impl FnOnce() -> Result<()>) -> Result<()> {
    if observe::is_active() {
        return observe::launch(launch, || print_time(launch, run));
    }
    print_time(launch, run)
}

fn print_time(launch: &Launch, run: impl FnOnce() -> Result<()>) -> Result<()> {
    if !wants(Level::Launches) {
        return run();
    }
    launch.queue.finish()?;
    let start = Instant::now();
    run()?;
    launch.queue.finish()?;
    print(format_args!("{}", line(launch, start.elapsed())));
    Ok(())
}

/// `softmax              65.3 us     12.1 GFLOP/s      8.0 GB/s  native CPU`
fn line(launch: &Launch, time: Duration) -> String {
    let seconds = time.as_secs_f64().max(1e-9);
    let rate = |amount: f64| amount / seconds * 1e-9;
    let place = match &launch.work {
        Work::Cpu(_) => "native CPU".to_owned(),
        Work::Host(_) => "host".to_owned(),
        Work::OpenCl(_, grid) => format!("{grid}"),
    };
    format!(
        "{:<28} {:>10.1} us {:>9.1} GFLOP/s {:>8.1} GB/s  {place}",
        launch.name,
        seconds * 1e6,
        rate(launch.cost.flops),
        rate(launch.cost.bytes)
    )
}

/// How a program came to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    Compiled,
    Cached,
}

/// Tells of a program that was built, from [`Level::Compiles`] on, and shows its source at [`Level::Sources`].
pub(crate) fn built(kernels: &[String], device: &str, origin: Origin, time: Duration, source: &Source) {
    if !wants(Level::Compiles) {
        return;
    }
    let how = match origin {
        Origin::Compiled => "compiled",
        Origin::Cached => "loaded",
    };
    print(format_args!("{how} {} for {device} in {:.0} ms", kernels.join(", "), time.as_secs_f64() * 1e3));
    if wants(Level::Sources) {
        if !source.options.is_empty() {
            print(format_args!("options {}", source.options));
        }
        print(format_args!("{}", source.text));
    }
}
