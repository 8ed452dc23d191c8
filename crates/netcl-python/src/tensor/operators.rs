//! Operators. They record, as the functions of `netcl.autograd` do; `netcl.ops` has those that never do.

use std::sync::Arc;

use netcl::autograd::ops::elementwise::{self, Operand};
use netcl::autograd::ops::matmul;
use netcl::ops::compare::Comparison;
use numpy::PyUntypedArray;
use pyo3::basic::CompareOp;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use super::{Tensor, ufunc};
use crate::autograd::{Given, like, record};

/// An elementwise operator between a tensor and something else; `NotImplemented` where that is no operand.
fn apply(
    py: Python<'_>,
    name: &'static str,
    tensor: &Tensor,
    other: &Bound<'_, PyAny>,
    reflected: bool,
) -> PyResult<Py<PyAny>> {
    let tensor = &tensor.inner();
    let given = match Given::new(other) {
        Some(given) => given,
        None => match of_array(name, other, tensor)? {
            Some(made) => Given::Tensor(Arc::new(made)),
            None => return Ok(py.NotImplemented()),
        },
    };
    let (own, other) = (Operand::Tensor(tensor), given.operand());
    let operands = if reflected { [other, own] } else { [own, other] };
    Ok(Py::new(py, record(py, tensor, || elementwise::apply(name, &operands, &[]))?)?.into_any())
}

/// The matrix product of a tensor and something else, as [`apply`].
fn product(py: Python<'_>, tensor: &Tensor, other: &Bound<'_, PyAny>, reflected: bool) -> PyResult<Py<PyAny>> {
    let tensor = &tensor.inner();
    let other = match other.cast::<Tensor>() {
        Ok(other) => other.get().inner(),
        Err(_) => match of_array("matmul", other, tensor)? {
            Some(made) => Arc::new(made),
            None => return Ok(py.NotImplemented()),
        },
    };
    let (a, b) = if reflected { (&other, tensor) } else { (tensor, &other) };
    Ok(Py::new(py, record(py, tensor, || matmul::matmul(a, b))?)?.into_any())
}

/// A NumPy array as a tensor of the other operand's device and dtype; `None` for what is no array.
fn of_array(name: &str, object: &Bound<'_, PyAny>, near: &netcl::Tensor) -> PyResult<Option<netcl::Tensor>> {
    if object.cast::<PyUntypedArray>().is_ok() {
        return like(object, near).map(Some);
    }
    if object.hasattr(intern!(object.py(), "__array__"))? {
        let kind = object.get_type();
        let text = format!("{name}: a tensor and {kind} do not mix; make a tensor of it with Tensor.from_host");
        return Err(PyTypeError::new_err(text));
    }
    Ok(None)
}

/// The operation of the elementwise table that an operator stands for.
pub(crate) fn comparison(op: CompareOp) -> Comparison {
    match op {
        CompareOp::Lt => Comparison::Lt,
        CompareOp::Le => Comparison::Le,
        CompareOp::Eq => Comparison::Eq,
        CompareOp::Ne => Comparison::Ne,
        CompareOp::Gt => Comparison::Gt,
        CompareOp::Ge => Comparison::Ge,
    }
}

#[pymethods]
impl Tensor {
    /// NumPy's arrays and numbers leave operators to the tensor.
    #[classattr]
    fn __array_priority__() -> f64 {
        1000.0
    }

    /// What NumPy's ufuncs do with tensors: those that an array's operators call are the tensor's operators, and record; any other
    /// gives an array of the values. A tensor that requires a gradient is refused there with the name of the operation to use.
    #[pyo3(signature = (ufunc, method, *inputs, **kwargs))]
    fn __array_ufunc__<'py>(
        &self,
        ufunc: &Bound<'py, PyAny>,
        method: &Bound<'py, PyString>,
        inputs: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        ufunc::apply(ufunc, method, inputs, kwargs)
    }

    fn __add__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        apply(py, "add", self, other, false)
    }

    fn __radd__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        apply(py, "add", self, other, true)
    }

    fn __sub__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        apply(py, "sub", self, other, false)
    }

    fn __rsub__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        apply(py, "sub", self, other, true)
    }

    fn __mul__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        apply(py, "mul", self, other, false)
    }

    fn __rmul__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        apply(py, "mul", self, other, true)
    }

    fn __truediv__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        apply(py, "div", self, other, false)
    }

    fn __rtruediv__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        apply(py, "div", self, other, true)
    }

    fn __pow__(
        &self,
        py: Python<'_>,
        other: &Bound<'_, PyAny>,
        modulo: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        no_modulo(modulo)?;
        apply(py, "pow", self, other, false)
    }

    fn __rpow__(
        &self,
        py: Python<'_>,
        other: &Bound<'_, PyAny>,
        modulo: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        no_modulo(modulo)?;
        apply(py, "pow", self, other, true)
    }

    fn __matmul__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        product(py, self, other, false)
    }

    fn __rmatmul__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        product(py, self, other, true)
    }

    fn __neg__(&self, py: Python<'_>) -> PyResult<Tensor> {
        record(py, &self.inner(), || elementwise::neg(&self.inner()))
    }

    fn __abs__(&self, py: Python<'_>) -> PyResult<Tensor> {
        record(py, &self.inner(), || elementwise::abs(&self.inner()))
    }

    fn __richcmp__(&self, py: Python<'_>, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        apply(py, comparison(op).name(), self, other, false)
    }

    /// By identity: equality is elementwise.
    fn __hash__(slf: &Bound<'_, Self>) -> usize {
        slf.as_ptr() as usize >> 4
    }
}

fn no_modulo(modulo: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    match modulo.filter(|modulo| !modulo.is_none()) {
        Some(_) => Err(PyTypeError::new_err("pow: tensors have no third argument")),
        None => Ok(()),
    }
}
