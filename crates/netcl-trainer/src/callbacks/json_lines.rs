//! The log of a run: one line of JSON for every update and epoch.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::json;

use super::create;
use crate::error::Result;
use crate::trainer::{Callback, Context, Epoch, Step};

/// Writes a line of JSON for every update and epoch, with its `kind`. A resumed run starts the file with what happened before.
///
/// What cannot be written does not end the run, but is an error at its end.
///
/// ```
/// use netcl_trainer::callbacks::JsonLines;
/// use netcl_trainer::trainer::Callback;
///
/// assert_eq!(JsonLines::new("runs/1/metrics.jsonl").name(), "JsonLines");
/// ```
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    /// The first thing that could not be written.
    problem: Option<std::io::Error>,
}

impl JsonLines {
    /// A log at a path, whose folders are made.
    pub fn new(path: impl Into<PathBuf>) -> JsonLines {
        JsonLines { path: path.into(), file: None, problem: None }
    }

    fn write(&mut self, kind: &str, record: &impl Serialize) {
        let Some(file) = &mut self.file else { return };
        let mut line = json!(record);
        if let Some(fields) = line.as_object_mut() {
            fields.insert("kind".to_owned(), kind.into());
        }
        let written = writeln!(file, "{line}");
        let written = if kind == "epoch" { written.and_then(|()| file.flush()) } else { written };
        if let Err(error) = written {
            self.problem.get_or_insert(error);
        }
    }
}

impl Callback for JsonLines {
    fn name(&self) -> String {
        "JsonLines".to_owned()
    }

    fn fit_begins(&mut self, run: &mut Context<'_>) -> Result<()> {
        self.file = Some(BufWriter::new(create(&self.path)?));
        let mut epochs = run.history.epochs.iter().peekable();
        for step in &run.history.steps {
            while let Some(epoch) = epochs.next_if(|epoch| epoch.epoch < step.epoch) {
                self.write("epoch", epoch);
            }
            self.write("step", step);
        }
        epochs.for_each(|epoch| self.write("epoch", epoch));
        Ok(())
    }

    fn step(&mut self, _run: &mut Context<'_>, step: &Step) -> Result<()> {
        self.write("step", step);
        Ok(())
    }

    fn epoch_ends(&mut self, _run: &mut Context<'_>, epoch: &Epoch) -> Result<()> {
        self.write("epoch", epoch);
        Ok(())
    }

    fn fit_ends(&mut self, _run: &mut Context<'_>) -> Result<()> {
        let flushed = self.file.take().map_or(Ok(()), |mut file| file.flush());
        match self.problem.take().map_or(flushed, Err) {
            Ok(()) => Ok(()),
            Err(reason) => Err(netcl_io::Error::Write { path: self.path.clone(), reason }.into()),
        }
    }
}
