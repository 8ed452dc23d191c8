//! The `netcl` command, for `netcl.__main__`.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command with `arguments` and returns its exit code; `again` is the command line that starts it in a new process, and
/// `python` the interpreter for scripts.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>, again: Vec<OsString>, python: OsString) -> u8 {
    py.detach(|| netcl_cli::execute_in(again, python, arguments))
}
