//! A checkpoint in memory.

use std::path::PathBuf;

use netcl::io::{self, Rotation, newest, write_rotating};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::parse;
use crate::error::io_to_py;
use crate::nn::PythonModule;
use crate::optim::state::{from_dict, to_dict};

/// What a run needs to go on: the model, the random generator, states of other parts, and JSON of the loop's own.
#[pyclass(module = "netcl._netcl.io")]
pub(super) struct Checkpoint(io::Checkpoint);

#[pymethods]
impl Checkpoint {
    /// The model and the random generator as they are now; ``metadata`` is JSON that says how to build the model again.
    #[new]
    fn new(model: &Bound<'_, PyAny>, metadata: &str) -> PyResult<Checkpoint> {
        let checkpoint = io::Checkpoint::new(&PythonModule::new(model)?, parse(metadata)?);
        checkpoint.map(Checkpoint).map_err(io_to_py)
    }

    /// Reads a file, or the last one that ``write`` numbered under this name.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Checkpoint> {
        py.detach(|| io::Checkpoint::read(&newest(&path))).map(Checkpoint).map_err(io_to_py)
    }

    /// Adds the state of a part: numbers and arrays by name.
    fn put(&mut self, part: &str, state: &Bound<'_, PyDict>) -> PyResult<()> {
        self.0.put(part, from_dict(state)?).map_err(io_to_py)
    }

    /// The state of a part: numbers and arrays by name.
    fn state<'py>(&self, py: Python<'py>, part: &str) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, self.0.state(part).map_err(io_to_py)?)
    }

    /// The names of the parts.
    #[getter]
    fn parts(&self) -> Vec<&str> {
        self.0.parts()
    }

    /// JSON of the training loop's own.
    #[getter]
    fn progress(&self) -> String {
        self.0.progress().to_string()
    }

    #[setter]
    fn set_progress(&mut self, json: &str) -> PyResult<()> {
        self.0.set_progress(parse(json)?);
        Ok(())
    }

    /// Writes the file as a whole or not at all; with ``keep`` a numbered one beside it, of which so many stay.
    #[pyo3(signature = (path, keep=None, step=None, best=false))]
    fn write(
        &self,
        py: Python<'_>,
        path: PathBuf,
        keep: Option<usize>,
        step: Option<u64>,
        best: bool,
    ) -> PyResult<PathBuf> {
        let written = py.detach(|| match keep {
            Some(keep) => write_rotating(&self.0, &path, Rotation { keep, step, best }),
            None => self.0.write(&path).map(|()| path),
        });
        written.map_err(io_to_py)
    }

    /// Raises what ``restore`` would raise; the model stays as it is.
    fn check(&self, model: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.check(&PythonModule::new(model)?).map_err(io_to_py)
    }

    /// Puts the model and the random generator back to where they were.
    fn restore(&self, model: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut module = PythonModule::new(model)?;
        self.0.restore(&mut module).map_err(io_to_py)?;
        module.bring_back(model.py())
    }
}
