//! A table of the epochs.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use netcl_io::write_atomically;

use crate::error::Result;
use crate::trainer::{Callback, Context, Epoch, History};

/// Writes a CSV file with a row per epoch: its number, updates, samples and seconds, then its figures.
///
/// ```
/// use netcl_trainer::callbacks::CsvLog;
/// use netcl_trainer::trainer::Callback;
///
/// assert_eq!(CsvLog::new("runs/1/log.csv").name(), "CsvLog");
/// ```
#[derive(Clone, Debug)]
pub struct CsvLog {
    path: PathBuf,
}

impl CsvLog {
    /// A table at a path, whose folders are made.
    pub fn new(path: impl Into<PathBuf>) -> CsvLog {
        CsvLog { path: path.into() }
    }

    /// The whole table every time: a figure that only later epochs have gets its column, and a resumed run its past.
    fn write(&self, history: &History) -> Result<()> {
        let names: BTreeSet<&String> = history.epochs.iter().flat_map(|epoch| epoch.values.keys()).collect();
        // Names are those of metrics, of which a user may call one as they like.
        let quoted = |name: &str| match name.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", name.replace('"', "\"\"")),
            false => name.to_owned(),
        };
        write_atomically(&self.path, |out| {
            write!(out, "epoch,steps,samples,seconds")?;
            names.iter().try_for_each(|name| write!(out, ",{}", quoted(name)))?;
            writeln!(out)?;
            for epoch in &history.epochs {
                write!(out, "{},{},{},{}", epoch.epoch, epoch.steps, epoch.samples, epoch.seconds)?;
                for name in &names {
                    let value = epoch.values.get(*name);
                    write!(out, ",{}", value.map_or_else(String::new, f64::to_string))?;
                }
                writeln!(out)?;
            }
            Ok(())
        })?;
        Ok(())
    }
}

impl Callback for CsvLog {
    fn name(&self) -> String {
        "CsvLog".to_owned()
    }

    fn fit_begins(&mut self, run: &mut Context<'_>) -> Result<()> {
        self.write(run.history)
    }

    fn epoch_ends(&mut self, run: &mut Context<'_>, _epoch: &Epoch) -> Result<()> {
        self.write(run.history)
    }
}
