//! The folder of a run: who may write there, and what it holds.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use netcl_io::{Tensors, open, remove_leftovers};
use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::trainer::Progress;
use crate::trainer::fit::LAST;

/// The trained weights, in the run's folder.
pub const MODEL: &str = "model.netcl";
/// What a run goes on from.
pub const CHECKPOINT: &str = LAST;
/// One line of JSON for each step and epoch.
pub const METRICS: &str = "metrics.jsonl";
/// The report with curves.
pub const REPORT: &str = "report.html";

const LOCK: &str = ".lock";

/// The right to write into a folder: only one run has it at a time, whatever process it is in. The system takes it back from a
/// process that is killed.
pub(crate) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Takes the right, and removes what killed processes left behind.
    pub(crate) fn of(folder: &Path) -> Result<Lock> {
        let path = folder.join(LOCK);
        let failed = |reason| netcl_io::Error::Write { path: path.clone(), reason };
        let lock = loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let what = "is in use by another run; wait for its end or choose another --out".to_owned();
                    return Err(Error::File { path: folder.to_owned(), what });
                }
                // A file system without locks.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(failed(error).into()),
            }
            // The last owner removes the file: a lock on one that has no name any more keeps nobody away.
            if is_at(&file, &path) {
                break Lock { path, _file: file };
            }
        };
        remove_leftovers(folder)?;
        Ok(lock)
    }
}

impl Drop for Lock {
    /// Before the lock itself goes with the file.
    fn drop(&mut self) {
        // Elsewhere nobody notices that the file was replaced, so it stays.
        if cfg!(unix) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether a path still leads to an open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (open, named) = (file.metadata().map(identity), fs::metadata(path).map(identity));
    matches!((open, named), (Ok(open), Ok(named)) if open == named)
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

/// What a folder holds of a run.
#[derive(Debug, PartialEq)]
pub(crate) enum Held {
    /// Nothing that could be lost.
    Nothing,
    /// A run that did not arrive at its end, after so many epochs.
    Stopped(usize),
    /// A run that did; it goes on from its checkpoint, if that is still there, after so many epochs.
    Finished(Option<usize>),
    /// A checkpoint that cannot be read, and why.
    Unreadable(String),
}

impl Held {
    /// Looks into a folder.
    pub(crate) fn by(folder: &Path) -> Held {
        let exists = |name: &str| folder.join(name).symlink_metadata().is_ok();
        if !exists(CHECKPOINT) {
            return if exists(MODEL) || exists(REPORT) { Held::Finished(None) } else { Held::Nothing };
        }
        let checkpoint = match open(&folder.join(CHECKPOINT)) {
            Ok(checkpoint) => checkpoint,
            Err(error) => return Held::Unreadable(error.to_string()),
        };
        let (settings, progress) = (checkpoint.metadata().get("settings"), checkpoint.metadata().get("progress"));
        let done = match Progress::deserialize(progress.unwrap_or(&Value::Null)) {
            Ok(progress) => progress.epochs,
            Err(error) => return Held::Unreadable(format!("its progress cannot be read: {error}")),
        };
        if is_final(folder, settings, done) { Held::Finished(Some(done)) } else { Held::Stopped(done) }
    }

    /// What to tell someone who wants to begin a run in a folder; `None` where nothing is in the way.
    pub(crate) fn refusal(&self, folder: &Path) -> Option<Error> {
        let shown = folder.display();
        let other = "start over with --overwrite, or choose another --out";
        let what = match self {
            Held::Nothing => return None,
            Held::Stopped(epochs) => {
                format!(
                    "holds a run that was stopped after {}; continue it with --resume {shown}, {other}",
                    counted(*epochs)
                )
            }
            Held::Finished(Some(epochs)) => format!(
                "holds a finished run of {}; go on to N epochs with --resume {shown} --epochs N, {other}",
                counted(*epochs)
            ),
            Held::Finished(None) => format!("holds a finished run; {other}"),
            Held::Unreadable(reason) => format!("holds a checkpoint that cannot be used ({reason}); {other}"),
        };
        Some(Error::File { path: folder.to_owned(), what })
    }
}

/// `1 epoch` or `3 epochs`.
pub(crate) fn counted(epochs: usize) -> String {
    format!("{epochs} epoch{}", if epochs == 1 { "" } else { "s" })
}

/// Whether the model in a folder is that of a run with these settings after all its epochs: it is written last.
fn is_final(folder: &Path, settings: Option<&Value>, done: usize) -> bool {
    let wanted = settings.and_then(|settings| settings.get("epochs")).and_then(Value::as_u64);
    wanted.is_some_and(|wanted| done as u64 >= wanted)
        && open(&folder.join(MODEL)).is_ok_and(|model| model.metadata().get("settings") == settings)
}

/// The folder of a new run where nobody named one: this, or the first of `NAME-2`, `NAME-3`, ... that holds no finished run.
pub fn numbered(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let further = (2u32..).map(|number| folder.with_file_name(format!("{name}-{number}")));
    let mut folders = std::iter::once(folder.to_owned()).chain(further);
    folders.find(|folder| !matches!(Held::by(folder), Held::Finished(_))).unwrap_or_else(|| folder.to_owned())
}

/// Removes everything a run leaves in a folder.
pub(crate) fn clear(folder: &Path) -> Result<()> {
    for name in [CHECKPOINT, MODEL, REPORT, METRICS] {
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Err(reason) if reason.kind() != ErrorKind::NotFound => {
                return Err(netcl_io::Error::Write { path, reason }.into());
            }
            _ => {}
        }
    }
    Ok(())
}
