//! The log of a run: one line of JSON for every step and epoch.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use crate::error::Result;
use crate::fit::Observer;
use crate::history::{Epoch, History, Step};

/// Writes what happens to a file, and passes it on.
pub(crate) struct Metrics<'o> {
    path: PathBuf,
    file: BufWriter<File>,
    observer: &'o mut dyn Observer,
    /// The first thing that could not be written; the run goes on.
    problem: Option<std::io::Error>,
}

impl<'o> Metrics<'o> {
    /// Starts the file with what happened before.
    pub(crate) fn start(path: &Path, history: &History, observer: &'o mut dyn Observer) -> Result<Metrics<'o>> {
        let file = File::create(path).map_err(|reason| netcl_io::Error::Write { path: path.to_owned(), reason })?;
        let mut metrics = Metrics { path: path.to_owned(), file: BufWriter::new(file), observer, problem: None };
        let mut epochs = history.epochs.iter().peekable();
        for step in &history.steps {
            while let Some(epoch) = epochs.next_if(|epoch| epoch.epoch < step.epoch) {
                metrics.write("epoch", epoch);
            }
            metrics.write("step", step);
        }
        for epoch in epochs {
            metrics.write("epoch", epoch);
        }
        Ok(metrics)
    }

    fn write(&mut self, kind: &str, record: &impl Serialize) {
        let mut line = json!(record);
        if let Some(fields) = line.as_object_mut() {
            fields.insert("kind".to_owned(), kind.into());
        }
        let written = writeln!(self.file, "{line}");
        let written = if kind == "epoch" { written.and_then(|()| self.file.flush()) } else { written };
        if let Err(error) = written {
            self.problem.get_or_insert(error);
        }
    }

    /// Ends the file; an error if something could not be written.
    pub(crate) fn finish(mut self) -> Result<()> {
        let flushed = self.file.flush();
        match self.problem.take().map_or(flushed, Err) {
            Ok(()) => Ok(()),
            Err(reason) => Err(netcl_io::Error::Write { path: self.path, reason }.into()),
        }
    }
}

impl Observer for Metrics<'_> {
    fn phase(&mut self, name: &str) {
        self.observer.phase(name);
    }

    fn epoch_begins(&mut self, epoch: usize, steps: usize, images: usize) {
        self.observer.epoch_begins(epoch, steps, images);
    }

    fn step(&mut self, step: &Step) {
        self.write("step", step);
        self.observer.step(step);
    }

    fn epoch_ends(&mut self, epoch: &Epoch) {
        self.write("epoch", epoch);
        self.observer.epoch_ends(epoch);
    }
}
