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
use std::time::Duration;

use crate::env;

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

/// How a program came to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    Compiled,
    Cached,
}

/// Tells of a program that was built, from [`Level::Compiles`] on, and shows its source at [`Level::Sources`].
pub(crate) fn built(kernels: &[String], device: &str, origin: Origin, time: Duration, options: &str, source: &str) {
    if !wants(Level::Compiles) {
        return;
    }
    let how = match origin {
        Origin::Compiled => "compiled",
        Origin::Cached => "loaded",
    };
    print(format_args!("{how} {} for {device} in {:.0} ms", kernels.join(", "), time.as_secs_f64() * 1e3));
    if wants(Level::Sources) {
        if !options.is_empty() {
            print(format_args!("options {options}"));
        }
        print(format_args!("{source}"));
    }
}
