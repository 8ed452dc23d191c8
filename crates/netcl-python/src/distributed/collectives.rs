//! Collectives over tensors of several devices of this process.

use netcl::autograd::RawTensor;
use netcl::core::index::IndexTensor as Labels;
use netcl::distributed::{Reduce, collectives};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::autograd::site;
use crate::device::queue_from_py;
use crate::error::{IntoPyResult, distributed_to_py};
use crate::list::List;
use crate::runtime::Value;

/// More parts of one tensor than this are a typing error.
const MAX_CHUNKS: usize = 1 << 16;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(all_reduce, module)?)?;
    module.add_function(wrap_pyfunction!(reduce, module)?)?;
    module.add_function(wrap_pyfunction!(broadcast, module)?)?;
    module.add_function(wrap_pyfunction!(gather, module)?)?;
    module.add_function(wrap_pyfunction!(scatter, module)?)?;
    module.add_function(wrap_pyfunction!(all_gather, module)?)?;
    module.add_function(wrap_pyfunction!(reduce_scatter, module)?)?;
    module.add_function(wrap_pyfunction!(all_to_all, module)?)
}

/// The values of a `Tensor` or `IndexTensor`.
fn raw(object: &Bound<'_, PyAny>) -> PyResult<RawTensor> {
    Ok(match Value::from_py(object)? {
        Value::Float(tensor) => tensor.raw().clone(),
        Value::Whole(labels) => labels.tensor().clone(),
    })
}

fn raws(tensors: &[Bound<'_, PyAny>]) -> PyResult<Vec<RawTensor>> {
    tensors.iter().map(raw).collect()
}

fn object(py: Python<'_>, tensor: RawTensor) -> PyResult<Bound<'_, PyAny>> {
    if tensor.dtype().is_float() {
        return Value::Float(netcl::Tensor::from(tensor).into()).into_py(py);
    }
    Value::Whole(Labels::from_tensor(tensor).py()?).into_py(py)
}

fn objects(py: Python<'_>, tensors: Vec<RawTensor>) -> PyResult<Bound<'_, PyList>> {
    PyList::new(py, tensors.into_iter().map(|tensor| object(py, tensor)).collect::<PyResult<Vec<_>>>()?)
}

/// Runs a collective without the interpreter.
fn run<T: Send>(py: Python<'_>, work: impl FnOnce() -> netcl::distributed::Result<T> + Send) -> PyResult<T> {
    site::detach(py, work).map_err(distributed_to_py)
}

fn parse(call: &'static str, op: &str) -> PyResult<Reduce> {
    Reduce::parse(call, op).map_err(distributed_to_py)
}

fn place(call: &str, root: isize) -> PyResult<usize> {
    usize::try_from(root).map_err(|_| PyIndexError::new_err(format!("{call}: root {root} is not a place in a list")))
}

#[pyfunction]
fn all_reduce(py: Python<'_>, tensors: List<Bound<'_, PyAny>>, op: &str) -> PyResult<()> {
    let (tensors, op) = (raws(&tensors)?, parse("all_reduce", op)?);
    run(py, || collectives::all_reduce(&tensors, op))
}

#[pyfunction]
fn reduce(py: Python<'_>, tensors: List<Bound<'_, PyAny>>, op: &str, root: isize) -> PyResult<()> {
    let (tensors, op, root) = (raws(&tensors)?, parse("reduce", op)?, place("reduce", root)?);
    run(py, || collectives::reduce(&tensors, op, root))
}

#[pyfunction]
fn broadcast(py: Python<'_>, tensors: List<Bound<'_, PyAny>>, root: isize) -> PyResult<()> {
    let (tensors, root) = (raws(&tensors)?, place("broadcast", root)?);
    run(py, || collectives::broadcast(&tensors, root))
}

#[pyfunction]
#[pyo3(signature = (tensors, queue=None))]
fn gather<'py>(
    py: Python<'py>,
    tensors: List<Bound<'py, PyAny>>,
    queue: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let tensors = raws(&tensors)?;
    let wanted = queue.map(|queue| named("gather", queue)).transpose()?;
    let Some(queue) = wanted.or_else(|| tensors.first().map(|first| first.queue().clone())) else {
        return Err(PyValueError::new_err("gather: the list is empty: there is no dtype to give"));
    };
    object(py, run(py, || collectives::gather(&tensors, &queue))?)
}

/// The queue that an object is or has.
fn named(call: &str, object: &Bound<'_, PyAny>) -> PyResult<netcl::core::backend::Queue> {
    queue_from_py(object)?.ok_or_else(|| {
        PyTypeError::new_err(format!("{call}: a queue or a device handle is needed, not {}", object.get_type()))
    })
}

#[pyfunction]
fn scatter<'py>(
    py: Python<'py>,
    tensor: &Bound<'py, PyAny>,
    chunks: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    let tensor = raw(tensor)?;
    let queues = match chunks.extract::<isize>() {
        Ok(count) => match usize::try_from(count) {
            Ok(count @ 1..=MAX_CHUNKS) => vec![tensor.queue().clone(); count],
            _ => {
                let text = format!("scatter: chunks={count}, but a tensor is cut into 1 to {MAX_CHUNKS} parts");
                return Err(PyValueError::new_err(text));
            }
        },
        Err(_) => {
            let places: List<Bound<'_, PyAny>> = chunks.extract()?;
            places.iter().map(|place| named("scatter", place)).collect::<PyResult<Vec<_>>>()?
        }
    };
    objects(py, run(py, || collectives::scatter(&tensor, &queues))?)
}

#[pyfunction]
fn all_gather<'py>(py: Python<'py>, tensors: List<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyList>> {
    let tensors = raws(&tensors)?;
    objects(py, run(py, || collectives::all_gather(&tensors))?)
}

#[pyfunction]
fn reduce_scatter<'py>(py: Python<'py>, tensors: List<Bound<'py, PyAny>>, op: &str) -> PyResult<Bound<'py, PyList>> {
    let (tensors, op) = (raws(&tensors)?, parse("reduce_scatter", op)?);
    objects(py, run(py, || collectives::reduce_scatter(&tensors, op))?)
}

#[pyfunction]
fn all_to_all<'py>(py: Python<'py>, tensors: List<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyList>> {
    let tensors = raws(&tensors)?;
    objects(py, run(py, || collectives::all_to_all(&tensors))?)
}
