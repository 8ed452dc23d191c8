//! The process-wide random generator.

use pyo3::prelude::*;

/// Seeds the process-wide random generator, so that what follows can be repeated.
#[pyfunction]
pub(crate) fn manual_seed(seed: u64) {
    netcl::core::random::manual_seed(seed);
}
