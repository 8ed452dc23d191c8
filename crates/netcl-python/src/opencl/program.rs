//! Programs and kernels: what a built kernel is called and how others get at it.

use netcl::core::backend::opencl as cl;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::queue::Context;
use super::{context_from_py, same_object};
use crate::error::IntoPyResult;

/// A program built for the first device of a context, from the cache where it was built before.
#[pyclass(module = "netcl.core.backend.opencl", frozen, eq, hash)]
pub(crate) struct Program(pub(crate) cl::Program);
same_object!(Program, |program| program.0.int_ptr());

#[pymethods]
impl Program {
    /// Builds a source. A mistake in it is a ``BuildError`` with the compiler's log and the numbered source.
    #[new]
    #[pyo3(signature = (context, source, options=""))]
    fn new(py: Python<'_>, context: &Bound<'_, PyAny>, source: &str, options: &str) -> PyResult<Self> {
        let context = context_from_py(context)?;
        let source = cl::Source::new(source, options);
        let device = match context.devices().first() {
            Some(device) => device.clone(),
            None => return Err(PyValueError::new_err("Program: the context has no device")),
        };
        let build = || cl::Builder::global().build(&context, &device, &source);
        py.detach(build).map(Program).py()
    }

    /// The ``cl_program`` as a number, for ``pyopencl.Program.from_int_ptr``.
    #[getter]
    fn int_ptr(&self) -> usize {
        self.pointer()
    }

    /// Its context.
    #[getter]
    fn context(&self) -> Context {
        Context(self.0.context().clone())
    }

    /// The names of its kernels.
    #[getter]
    fn kernel_names(&self) -> Vec<String> {
        self.0.kernel_names().to_vec()
    }

    /// The kernel of this name.
    fn kernel(&self, name: &str) -> PyResult<Kernel> {
        self.0.kernel(name).map(Kernel).py()
    }

    fn __repr__(&self) -> String {
        format!("<Program with {}>", self.0.kernel_names().join(", "))
    }
}

/// A kernel of a program.
#[pyclass(module = "netcl.core.backend.opencl", frozen, eq, hash)]
pub(crate) struct Kernel(pub(crate) cl::Kernel);
same_object!(Kernel, |kernel| kernel.0.int_ptr().unwrap_or(0));

#[pymethods]
impl Kernel {
    /// The ``cl_kernel`` as a number, for ``pyopencl.Kernel.from_int_ptr``.
    #[getter]
    fn int_ptr(&self) -> usize {
        self.pointer()
    }

    /// The kernel function's name.
    #[getter]
    fn function_name(&self) -> &str {
        self.0.name()
    }

    /// How many arguments it takes.
    #[getter]
    fn num_args(&self) -> PyResult<usize> {
        self.0.arg_count().py()
    }

    /// The program it belongs to.
    #[getter]
    fn program(&self) -> PyResult<Program> {
        self.0.program().cloned().map(Program).py()
    }

    fn __repr__(&self) -> String {
        format!("<Kernel {}>", self.0.name())
    }
}
