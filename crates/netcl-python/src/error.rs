//! Errors of the Rust layers as Python exceptions.

use netcl::{Error, ErrorKind};
use pyo3::create_exception;
use pyo3::exceptions::{
    PyFileNotFoundError, PyIndexError, PyKeyboardInterrupt, PyMemoryError, PyOSError, PyRuntimeError, PyTypeError,
    PyValueError,
};
use pyo3::panic::PanicException;
use pyo3::prelude::*;

use crate::autograd::site;
use crate::data;
use crate::shutdown;

create_exception!(
    netcl,
    BuildError,
    PyRuntimeError,
    "A kernel did not compile; the text holds the compiler's log and the numbered source."
);

/// Makes a panic, which is a bug of ours, a `RuntimeError` with the panic's text. PyO3 catches panics at every entry from Python and
/// raises its `PanicException`, which derives from `BaseException`, so that no `except Exception` would see it. There is no hook to
/// choose another exception; the class is this module's own (PyO3 is linked statically) and takes another base.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let panicked = py.get_type::<PanicException>();
    panicked.setattr("__bases__", (py.get_type::<PyRuntimeError>(),))?;
    panicked.setattr("__doc__", "A bug in netcl: please report the text, and the lines that led to it.")?;
    module.add_function(wrap_pyfunction!(panic, module)?)?;
    module.add("BuildError", py.get_type::<BuildError>())
}

/// Panics, so that tests see what becomes of it.
#[pyfunction]
#[pyo3(name = "_panic")]
#[expect(clippy::panic, reason = "the purpose")]
fn panic(text: String) {
    panic!("{text}");
}

/// The exception an error becomes.
pub(crate) fn to_py(error: Error) -> PyErr {
    let error = match error {
        Error::Custom(custom) => match custom.downcast::<PyErr>() {
            // It has been an exception before, whose type and traceback the caller is to see.
            Ok(raised) => return *raised,
            Err(other) => Error::Custom(other),
        },
        other => other,
    };
    raised(error.kind(), text(&error))
}

/// The exception that reading or writing a file ends with.
pub(crate) fn io_to_py(error: netcl::io::Error) -> PyErr {
    match error {
        netcl::io::Error::Tensor(error) => to_py(error),
        other => raised(other.kind(), other.to_string()),
    }
}

/// The exception that a run, a metric or a callback ends with. One in a callback gets a note with the callback's name.
pub(crate) fn trainer_to_py(error: netcl::trainer::Error) -> PyErr {
    use netcl::trainer::Error;
    match error {
        Error::Tensor(error) => to_py(error),
        Error::Io(error) => io_to_py(error),
        Error::Data(error) => Python::attach(|py| data::raised(py, error)),
        Error::Callback { name, source } => {
            let error = trainer_to_py(*source);
            Python::attach(|py| data::noted(py, error, format!("netcl.trainer: in the callback {name}")))
        }
        Error::Ranks(error) => distributed_to_py(error),
        Error::NotFinite { .. } => PyRuntimeError::new_err(error.to_string()),
        Error::Memory { .. } => PyMemoryError::new_err(error.to_string()),
        other => PyValueError::new_err(other.to_string()),
    }
}

fn raised(kind: ErrorKind, text: String) -> PyErr {
    match kind {
        ErrorKind::Value => PyValueError::new_err(text),
        ErrorKind::Type => PyTypeError::new_err(text),
        ErrorKind::Index => PyIndexError::new_err(text),
        ErrorKind::Memory => PyMemoryError::new_err(text),
        ErrorKind::NotFound => PyFileNotFoundError::new_err(text),
        ErrorKind::Io => PyOSError::new_err(text),
        ErrorKind::Build => BuildError::new_err(text),
        ErrorKind::Interrupted => shutdown::raised().unwrap_or_else(|| PyKeyboardInterrupt::new_err(())),
        ErrorKind::Runtime => PyRuntimeError::new_err(text),
    }
}

/// The text of an error. Where an operation was called is a line of Python, not the line of this crate that the error knows.
fn text(error: &Error) -> String {
    let site = site::current();
    let called = site.as_ref().map_or_else(String::new, |site| format!(" (called at {site})"));
    let hint = match site {
        Some(_) => "",
        None => "; run it under netcl.autograd.detect_anomaly() to see where the operation was called",
    };
    match error {
        Error::NotDifferentiable { op, .. } => {
            format!("{op}{called} has no gradient; use detach() on its input if none is wanted{hint}")
        }
        Error::Overwritten { op, which, .. } => format!(
            "backward of {op}{called} needs {which} that was overwritten in place since; write to a copy instead{hint}"
        ),
        Error::Freed { op, .. } => format!(
            "backward of {op}{called} ran before and freed its saved values; pass retain_graph=True the first time{hint}"
        ),
        Error::Anomaly { op, pass: "forward", at, .. } => {
            format!("anomaly: {op} gave a value that is not finite at element {at}")
        }
        Error::Anomaly { op, pass, at, .. } => {
            format!("anomaly: the {pass} pass of {op}{called} gave a value that is not finite at element {at}")
        }
        other => other.to_string(),
    }
}

/// The name of an object's type, as messages show it.
pub(crate) fn kind(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string())
}

/// An exception on its way through the Rust layers.
pub(crate) fn carry(raised: PyErr) -> Error {
    Error::Custom(Box::new(raised))
}

/// `result.py()?` in a function that returns a `PyResult`.
pub(crate) trait IntoPyResult<T> {
    fn py(self) -> PyResult<T>;
}

impl<T, E: Into<Error>> IntoPyResult<T> for Result<T, E> {
    fn py(self) -> PyResult<T> {
        self.map_err(|error| to_py(error.into()))
    }
}

/// The exception that a call over devices or ranks ends with.
pub(crate) fn distributed_to_py(error: netcl::distributed::Error) -> PyErr {
    match error {
        netcl::distributed::Error::Device(error) => to_py(error),
        netcl::distributed::Error::Io(error) => io_to_py(error),
        other => raised(other.kind(), other.to_string()),
    }
}
