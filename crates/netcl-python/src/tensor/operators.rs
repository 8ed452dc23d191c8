//! Operators. They record, as the functions of `netcl.autograd` do; `netcl.ops` has those that never do.

use netcl::autograd::ops::elementwise::{self, Operand};
use netcl::autograd::ops::matmul;
use pyo3::basic::CompareOp;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;

use super::Tensor;
use crate::autograd::{Given, record};

/// An elementwise operator between a tensor and something else; `NotImplemented` where that is no operand.
fn apply(
    py: Python<'_>,
    name: &'static str,
    tensor: &Tensor,
    other: &Bound<'_, PyAny>,
    reflected: bool,
) -> PyResult<Py<PyAny>> {
    let tensor = &tensor.inner;
    let Some(given) = Given::new(other) else {
        if other.hasattr(intern!(py, "__array__"))? {
            // NumPy would make an array of both, which nothing is recorded of.
            let text = format!(
                "{name}: a tensor and {} do not mix; make a tensor of it with Tensor.from_host",
                other.get_type()
            );
            return Err(PyTypeError::new_err(text));
        }
        return Ok(py.NotImplemented());
    };
    let (own, other) = (Operand::Tensor(tensor), given.operand());
    let operands = if reflected { [other, own] } else { [own, other] };
    Ok(Py::new(py, record(py, tensor, || elementwise::apply(name, &operands, &[]))?)?.into_any())
}

#[pymethods]
impl Tensor {
    /// NumPy's arrays and numbers leave operators to the tensor.
    #[classattr]
    fn __array_priority__() -> f64 {
        1000.0
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

    fn __matmul__(&self, py: Python<'_>, other: &Tensor) -> PyResult<Tensor> {
        record(py, &self.inner, || matmul::matmul(&self.inner, &other.inner))
    }

    fn __neg__(&self, py: Python<'_>) -> PyResult<Tensor> {
        record(py, &self.inner, || elementwise::neg(&self.inner))
    }

    fn __abs__(&self, py: Python<'_>) -> PyResult<Tensor> {
        record(py, &self.inner, || elementwise::abs(&self.inner))
    }

    fn __richcmp__(&self, py: Python<'_>, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let name = match op {
            CompareOp::Lt => "lt",
            CompareOp::Le => "le",
            CompareOp::Eq => "eq",
            CompareOp::Ne => "ne",
            CompareOp::Gt => "gt",
            CompareOp::Ge => "ge",
        };
        apply(py, name, self, other, false)
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
