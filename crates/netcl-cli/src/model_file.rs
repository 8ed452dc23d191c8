//! The model file that a path names.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use netcl::trainer::run::{CHECKPOINT, MODEL};

/// A file itself, and the trained model of a run's folder.
pub(crate) fn model_file(path: &Path) -> Result<PathBuf> {
    let file = if path.is_dir() { path.join(MODEL) } else { path.to_owned() };
    let checkpoint = file.with_file_name(CHECKPOINT);
    if file.exists() {
        return Ok(file);
    }
    if file.ends_with(MODEL) && checkpoint.exists() {
        bail!("{} cannot be read, the run was stopped: resume it, or use {}", file.display(), checkpoint.display());
    }
    if path.is_dir() {
        bail!("{} holds no run: there is no {MODEL} in it", path.display());
    }
    Ok(file)
}
