//! A profile of some updates in the middle of a run.

use std::path::PathBuf;

use netcl_profiling::profile::{ProfileOptions, Profiler};

use crate::error::Result;
use crate::trainer::{Callback, Context, Step};

/// The first updates compile, and are captured: they say nothing about the others.
const FIRST: usize = 5;
/// Enough for means; a trace of more is hard to read.
const UPDATES: usize = 20;

/// Profiles about twenty updates of a run and writes them as a page, and as a trace for Perfetto beside it.
///
/// Losses are read in blocks, so that the scope begins and ends with one.
///
/// ```
/// use netcl_trainer::callbacks::Profiled;
///
/// let profiled = Profiled::new("runs/mine/profile.html");
/// ```
pub struct Profiled {
    page: PathBuf,
    seen: usize,
    running: Option<Profiler>,
    /// The first update under the scope.
    began: usize,
    done: bool,
}

impl Profiled {
    /// A profile whose page is written here; the trace has the same name and ends in `.json`.
    pub fn new(page: impl Into<PathBuf>) -> Profiled {
        Profiled { page: page.into(), seen: 0, running: None, began: 0, done: false }
    }

    fn finish(&mut self) -> Result<()> {
        let Some(profiler) = self.running.take() else { return Ok(()) };
        self.done = true;
        let profile = profiler.stop()?;
        profile.html(&self.page)?;
        profile.trace(self.page.with_extension("json"))?;
        Ok(())
    }
}

impl Callback for Profiled {
    fn name(&self) -> String {
        "Profiled".to_owned()
    }

    fn step(&mut self, _run: &mut Context<'_>, _step: &Step) -> Result<()> {
        self.seen += 1;
        if !self.done && self.running.is_none() && self.seen >= FIRST {
            self.running = Some(Profiler::start(ProfileOptions::default()));
            self.began = self.seen;
        }
        if self.seen >= self.began + UPDATES { self.finish() } else { Ok(()) }
    }

    fn fit_ends(&mut self, _run: &mut Context<'_>) -> Result<()> {
        self.finish()
    }
}
