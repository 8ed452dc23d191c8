//! Operators. They record, as the functions of `netcl.autograd` do; `netcl.ops` has those that never do.

use std::sync::Arc;

use netcl::autograd::ops::elementwise::{self, Operand};
use netcl::autograd::ops::matmul;
use netcl::core::dtype::DType;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use super::{Tensor, ufunc};
use crate::autograd::{Given, like, record};
use crate::error::IntoPyResult;
use crate::index::{Made, index_from_host};
use crate::ndarray;

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
        // A whole number that does not fit is no number beside whole ones.
        Some(Given::Number(_)) if !tensor.dtype().is_float() && other.is_instance_of::<PyInt>() => {
            of_array(name, other, tensor).map(|_| Given::Whole(0))?
        }
        Some(given) => given,
        None => match of_array(name, other, tensor)? {
            Some(made) => Given::Tensor(Arc::new(made)),
            None => return Ok(py.NotImplemented()),
        },
    };
    let (own, other) = (Operand::Tensor(tensor), given.operand());
    let operands = if reflected { [other, own] } else { [own, other] };
    Ok(record(py, tensor, || elementwise::apply(name, &operands, &[]))?.into_pyobject(py)?.into_any().unbind())
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
    Ok(record(py, tensor, || matmul::matmul(a, b))?.into_pyobject(py)?.into_any().unbind())
}

/// A NumPy array as a tensor of the other operand's device; beside floats in their dtype. `None` for what is no array.
fn of_array(name: &str, object: &Bound<'_, PyAny>, near: &netcl::Tensor) -> PyResult<Option<netcl::Tensor>> {
    let whole = !near.dtype().is_float();
    if whole && object.is_instance_of::<PyInt>() {
        return Err(PyValueError::new_err(format!("{name}: {object} does not fit into int64")));
    }
    if whole && (object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()) {
        return of_array(name, &ndarray::numpy(object.py())?.call_method1("asarray", (object,))?, near);
    }
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return match array.dtype().kind() {
            b'i' | b'u' | b'b' if whole => {
                let index: netcl::Tensor = index_from_host(near.queue(), array, DType::I64)?.tensor().clone().into();
                let dtype = if array.dtype().kind() == b'b' { DType::U8 } else { DType::I64 };
                index.cast(dtype).py().map(Some)
            }
            _ if whole => {
                let float = netcl::Tensor::full(near.queue(), (), DType::F32, 0.0).py()?;
                like(object, &float).map(Some)
            }
            _ => like(object, near).map(Some),
        };
    }
    if object.hasattr(intern!(object.py(), "__array__"))? {
        let kind = object.get_type();
        let text = format!("{name}: a tensor and {kind} do not mix; make a tensor of it with Tensor.from_host");
        return Err(PyTypeError::new_err(text));
    }
    Ok(None)
}

/// The operation of the elementwise table that an operator stands for.
fn comparison(op: CompareOp) -> &'static str {
    match op {
        CompareOp::Lt => "lt",
        CompareOp::Le => "le",
        CompareOp::Eq => "eq",
        CompareOp::Ne => "ne",
        CompareOp::Gt => "gt",
        CompareOp::Ge => "ge",
    }
}

/// An operator on bits, which floats have none of.
fn bitwise(
    py: Python<'_>,
    name: &'static str,
    tensor: &Tensor,
    other: &Bound<'_, PyAny>,
    reflected: bool,
) -> PyResult<Py<PyAny>> {
    let inner = tensor.inner();
    let float = other.is_instance_of::<PyFloat>()
        || other.cast::<Tensor>().is_ok_and(|other| other.get().inner().dtype().is_float());
    if inner.dtype().is_float() || float {
        let text =
            format!("{name}: it takes whole numbers and truth values, not {}; compare first (x > 0)", inner.dtype());
        return Err(PyTypeError::new_err(text));
    }
    apply(py, name, tensor, other, reflected)
}

/// Pairs of operators: `x op y` and, for what is no tensor on the left, `y op x`.
macro_rules! operators {
    ($($apply:ident $name:literal: $left:ident $right:ident;)*) => {
        #[pymethods]
        impl Tensor {$(
            fn $left(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
                $apply(py, $name, self, other, false)
            }

            fn $right(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
                $apply(py, $name, self, other, true)
            }
        )*}
    };
}

operators! {
    apply "add": __add__ __radd__;
    apply "sub": __sub__ __rsub__;
    apply "mul": __mul__ __rmul__;
    apply "div": __truediv__ __rtruediv__;
    apply "floor_divide": __floordiv__ __rfloordiv__;
    apply "remainder": __mod__ __rmod__;
    bitwise "bitwise_and": __and__ __rand__;
    bitwise "bitwise_or": __or__ __ror__;
    bitwise "bitwise_xor": __xor__ __rxor__;
    bitwise "bitwise_left_shift": __lshift__ __rlshift__;
    bitwise "bitwise_right_shift": __rshift__ __rrshift__;
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

    fn __neg__(&self, py: Python<'_>) -> PyResult<Made> {
        record(py, &self.inner(), || elementwise::neg(&self.inner()))
    }

    fn __pos__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        slf.clone()
    }

    fn __invert__(&self, py: Python<'_>) -> PyResult<Made> {
        let tensor = self.inner();
        tensor.check_whole("bitwise_not").py()?;
        record(py, &tensor, || elementwise::apply("bitwise_not", &[Operand::Tensor(&tensor)], &[]))
    }

    fn __abs__(&self, py: Python<'_>) -> PyResult<Made> {
        record(py, &self.inner(), || elementwise::abs(&self.inner()))
    }

    fn __richcmp__(&self, py: Python<'_>, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        apply(py, comparison(op), self, other, false)
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
