//! Callbacks: what a run does beside training.
//!
//! | file | callback |
//! |---|---|
//! | `early_stopping.rs` | [`EarlyStopping`] |
//! | `checkpoint.rs` | [`Checkpoint`]: which checkpoints are kept |
//! | `learning_rate_log.rs` | [`LearningRateLog`] |
//! | `tensorboard/` | [`TensorBoard`], and [`EventFile`] to write by hand |
//! | `csv_log.rs` | [`CsvLog`] |
//! | `json_lines.rs` | [`JsonLines`] |
//! | `progress.rs` | [`Progress`]: the line that is shown, on a [`Screen`] |
//! | `profiled.rs` | [`Profiled`]: a profile of some updates |
//! | `function.rs` | [`Function`]: a closure |
//! | `monitor.rs` | [`Monitor`]: which of two values is better |

mod checkpoint;
mod csv_log;
mod early_stopping;
mod function;
mod json_lines;
mod learning_rate_log;
mod monitor;
mod profiled;
mod progress;
mod tensorboard;

pub use checkpoint::Checkpoint;
pub use csv_log::CsvLog;
pub use early_stopping::EarlyStopping;
pub use function::{Event, Function};
pub use json_lines::JsonLines;
pub use learning_rate_log::LearningRateLog;
pub use monitor::{Mode, Monitor};
pub use profiled::Profiled;
pub use progress::{Progress, Screen};
pub use tensorboard::{EventFile, Image, TensorBoard};

use std::fs::{self, File};
use std::path::Path;

use crate::error::{Error, Result};

/// A new file, with the folders that it needs.
fn create(path: &Path) -> Result<File> {
    let failed = |reason| Error::from(netcl_io::Error::Write { path: path.to_owned(), reason });
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    File::create(path).map_err(failed)
}

#[cfg(test)]
mod tests;
