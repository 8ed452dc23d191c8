//! Functions of Python that autograd calls: checkpoints and gradient checks.

use netcl::Tensor as Recorded;
use netcl::autograd::gradcheck::{self as check, Tolerance};
use netcl::core::dtype::DType;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::wrap;
use crate::error::{IntoPyResult, carry, kind};
use crate::index::Made;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(checkpoint, module)?)?;
    module.add_function(wrap_pyfunction!(gradcheck, module)?)?;
    module.add_function(wrap_pyfunction!(gradgradcheck, module)?)
}

/// A function and its arguments, of which the tensors are to be filled in.
struct Callable {
    function: Py<PyAny>,
    /// Arguments that are no tensors; `None` where one goes.
    others: Vec<Option<Py<PyAny>>>,
}

impl Callable {
    /// The callable, and the tensors among the arguments.
    fn new(function: &Bound<'_, PyAny>, arguments: &[Bound<'_, PyAny>]) -> (Self, Vec<Recorded>) {
        let mut tensors = Vec::new();
        let others = arguments.iter().map(|argument| match argument.cast::<Tensor>() {
            Ok(tensor) => {
                tensors.push(tensor.get().inner().as_ref().clone());
                None
            }
            Err(_) => Some(argument.clone().unbind()),
        });
        let others = others.collect();
        (Callable { function: function.clone().unbind(), others }, tensors)
    }

    fn call(&self, tensors: &[&Recorded]) -> netcl::Result<Recorded> {
        Python::attach(|py| {
            let mut tensors = tensors.iter().map(|tensor| Py::new(py, Tensor::new((*tensor).clone())));
            let arguments = self.others.iter().map(|other| match other {
                Some(other) => Ok(other.clone_ref(py)),
                None => tensors.next().map_or_else(|| Ok(py.None()), |tensor| tensor.map(Py::into_any)),
            });
            let arguments = arguments.collect::<PyResult<Vec<_>>>()?;
            let result = self.function.bind(py).call1(PyTuple::new(py, arguments)?)?;
            match result.cast::<Tensor>() {
                Ok(tensor) => Ok(tensor.get().inner().as_ref().clone()),
                Err(_) => {
                    let text = format!("the function must return one Tensor, not {}", kind(&result));
                    Err(PyTypeError::new_err(text))
                }
            }
        })
        .map_err(carry)
    }
}

/// Runs a part of a network without keeping what its backward pass needs: that is computed again when the walk gets there.
///
/// The function takes the given arguments and returns one tensor. It must compute the same both times; random numbers are drawn
/// again from where they were.
#[pyfunction]
#[pyo3(signature = (function, *inputs))]
fn checkpoint(py: Python<'_>, function: &Bound<'_, PyAny>, inputs: &Bound<'_, PyTuple>) -> PyResult<Made> {
    let (callable, tensors) = Callable::new(function, &inputs.iter().collect::<Vec<_>>());
    let result =
        netcl::autograd::checkpoint(move |tensors| callable.call(tensors), &tensors.iter().collect::<Vec<_>>());
    wrap(py, result.py()?)
}

/// Compares the gradients of a function of float64 tensors with finite differences, for every element of every input that requires
/// a gradient. True, or a ValueError that names the first element that differs.
#[pyfunction]
#[pyo3(signature = (function, inputs, eps=1e-6, atol=1e-5, rtol=1e-3))]
fn gradcheck(function: &Bound<'_, PyAny>, inputs: &Bound<'_, PyAny>, eps: f64, atol: f64, rtol: f64) -> PyResult<bool> {
    let (callable, tensors) = Callable::new(function, &arguments(inputs)?);
    let tensors = double(&tensors)?;
    check::gradcheck(|tensors| callable.call(tensors), &tensors, Tolerance { eps, atol, rtol }).py()?;
    Ok(true)
}

/// ``gradcheck`` of the gradient itself: checks second derivatives.
#[pyfunction]
#[pyo3(signature = (function, inputs, eps=1e-6, atol=1e-5, rtol=1e-3))]
fn gradgradcheck(
    function: &Bound<'_, PyAny>,
    inputs: &Bound<'_, PyAny>,
    eps: f64,
    atol: f64,
    rtol: f64,
) -> PyResult<bool> {
    let (callable, tensors) = Callable::new(function, &arguments(inputs)?);
    let tensors = double(&tensors)?;
    check::gradgradcheck(|tensors| callable.call(tensors), &tensors, Tolerance { eps, atol, rtol }).py()?;
    Ok(true)
}

/// One tensor, or a sequence of arguments.
fn arguments<'py>(inputs: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if inputs.is_instance_of::<Tensor>() { Ok(vec![inputs.clone()]) } else { inputs.try_iter()?.collect() }
}

/// Inputs of a check: differences of fewer bits than float64 has say nothing.
fn double(tensors: &[Recorded]) -> PyResult<Vec<&Recorded>> {
    if let Some((i, other)) = tensors.iter().enumerate().find(|(_, t)| t.requires_grad() && t.dtype() != DType::F64) {
        let text = format!("input {i} is {}; differences need float64", other.dtype());
        return Err(PyValueError::new_err(text));
    }
    Ok(tensors.iter().collect())
}
