//! `netcl.profiling`: the autotuner, profiles and timers.

mod autotuner;
mod profile;

use pyo3::prelude::*;

/// Adds this folder's names to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    autotuner::register(module)?;
    profile::register(module)
}
