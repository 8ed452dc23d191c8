//! Every change of the learning rate.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use super::create;
use crate::error::Result;
use crate::trainer::{Callback, Context, Step};

/// Remembers the learning rate whenever it is another one, and writes it to a CSV file if there is a path.
///
/// ```
/// use netcl_trainer::callbacks::LearningRateLog;
///
/// assert!(LearningRateLog::new(None).rates().is_empty());
/// ```
#[derive(Debug, Default)]
pub struct LearningRateLog {
    path: Option<PathBuf>,
    file: Option<File>,
    rates: Vec<(usize, f64)>,
}

impl LearningRateLog {
    /// A log that is kept in memory and, with a path, as a file of `step,epoch,lr`.
    pub fn new(path: Option<PathBuf>) -> LearningRateLog {
        LearningRateLog { path, ..LearningRateLog::default() }
    }

    /// The update from which on a learning rate was used, and that rate.
    pub fn rates(&self) -> &[(usize, f64)] {
        &self.rates
    }

    fn add(&mut self, step: &Step) -> Result<()> {
        if self.rates.last().is_some_and(|(_, rate)| *rate == step.lr) {
            return Ok(());
        }
        self.rates.push((step.step, step.lr));
        let (Some(file), Some(path)) = (&mut self.file, &self.path) else { return Ok(()) };
        writeln!(file, "{},{},{}", step.step, step.epoch, step.lr)
            .map_err(|reason| netcl_io::Error::Write { path: path.clone(), reason }.into())
    }
}

impl Callback for LearningRateLog {
    fn name(&self) -> String {
        "LearningRateLog".to_owned()
    }

    fn fit_begins(&mut self, run: &mut Context<'_>) -> Result<()> {
        self.rates.clear();
        if let Some(path) = &self.path {
            let mut file = create(path)?;
            writeln!(file, "step,epoch,lr").map_err(|reason| netcl_io::Error::Write { path: path.clone(), reason })?;
            self.file = Some(file);
        }
        run.history.steps.iter().try_for_each(|step| self.add(step))
    }

    fn step(&mut self, _run: &mut Context<'_>, step: &Step) -> Result<()> {
        self.add(step)
    }
}
