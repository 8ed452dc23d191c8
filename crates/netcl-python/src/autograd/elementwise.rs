//! Elementwise operations, recorded.

use std::sync::Arc;

use netcl::Tensor as Recorded;
use netcl::autograd::ops::elementwise::{self, Operand};
use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyTuple};
use smallvec::SmallVec;

use super::{like, record};
use crate::error::kind;
use crate::index::Made;
use crate::list::List;
use crate::tensor::{Tensor, parse_any_dtype};

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(where_, module)?)?;
    module.add_function(wrap_pyfunction!(cast, module)?)
}

/// An operand as Python gives it.
pub(crate) enum Given {
    Tensor(Arc<Recorded>),
    Number(f64),
    Whole(i64),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Given {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Given::new(&object).ok_or_else(|| PyTypeError::new_err("a tensor or a number is needed"))
    }
}

impl Given {
    /// A tensor or a number; `None` for anything else.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> Option<Self> {
        if let Ok(tensor) = object.cast::<Tensor>() {
            return Some(Given::Tensor(tensor.get().inner()));
        }
        let number = object.is_instance_of::<PyFloat>() || object.is_instance_of::<PyInt>();
        if !number && !is_real(object) {
            return None;
        }
        // A whole number beside tensors of whole numbers; of floats it becomes one.
        if (object.is_instance_of::<PyInt>() || whole_kind(object))
            && let Ok(number) = object.extract::<i64>()
        {
            return Some(Given::Whole(number));
        }
        object.extract::<f64>().ok().map(Given::Number)
    }

    /// As the operations take it.
    pub(crate) fn operand(&self) -> Operand<'_> {
        match self {
            Given::Tensor(tensor) => Operand::Tensor(tensor),
            Given::Number(number) => Operand::Number(*number),
            Given::Whole(number) => Operand::Whole(*number),
        }
    }
}

/// Whether this is a whole number of NumPy's.
fn whole_kind(object: &Bound<'_, PyAny>) -> bool {
    let kind = || object.getattr(intern!(object.py(), "dtype"))?.getattr("kind")?.extract::<char>();
    !object.is_instance_of::<PyFloat>() && kind().is_ok_and(|kind| matches!(kind, 'i' | 'u' | 'b'))
}

/// Whether what NumPy would make a number of is one: arrays of one element, texts and the real part of complex numbers are not.
fn is_real(object: &Bound<'_, PyAny>) -> bool {
    if object.cast::<PyUntypedArray>().is_ok_and(|array| array.ndim() > 0) {
        return false;
    }
    match object.getattr(intern!(object.py(), "dtype")).and_then(|dtype| dtype.getattr("kind")?.extract::<char>()) {
        Ok(kind) => matches!(kind, 'f' | 'i' | 'u' | 'b'),
        Err(_) => true,
    }
}

/// Applies an operation of the elementwise table by name and records it; operands are tensors and numbers.
#[pyfunction]
#[pyo3(name = "elementwise", signature = (name, *operands, params=None))]
pub(super) fn elementwise_(
    py: Python<'_>,
    name: &str,
    operands: &Bound<'_, PyTuple>,
    params: Option<List<f64>>,
) -> PyResult<Made> {
    let objects: SmallVec<[Bound<'_, PyAny>; 3]> = operands.iter().collect();
    let given = objects.iter().map(|object| {
        Given::new(object).ok_or_else(|| {
            let kind = kind(object);
            PyTypeError::new_err(format!(
                "{name}: operands are tensors and numbers, not {kind}; see netcl.autograd.tensor"
            ))
        })
    });
    let given: SmallVec<[Given; 3]> = given.collect::<PyResult<_>>()?;
    let tensor = given.iter().find_map(|given| match given {
        Given::Tensor(tensor) => Some(tensor),
        Given::Number(_) | Given::Whole(_) => None,
    });
    let Some(tensor) = tensor else {
        return Err(PyTypeError::new_err(format!("{name}: at least one operand must be a tensor")));
    };
    let operands: SmallVec<[Operand<'_>; 3]> = given.iter().map(Given::operand).collect();
    let params = params.map_or_else(Vec::new, |list| list.0);
    record(py, tensor, || elementwise::apply(name, &operands, &params))
}

/// ``x`` where the condition (a tensor or an array) is not 0, else ``y``. No gradient flows to the condition.
#[pyfunction]
#[pyo3(name = "where")]
fn where_(py: Python<'_>, condition: &Bound<'_, PyAny>, x: &Bound<'_, PyAny>, y: &Bound<'_, PyAny>) -> PyResult<Made> {
    let wrong = |object: &Bound<'_, PyAny>| {
        PyTypeError::new_err(format!("where: x and y are tensors and numbers, not {}", kind(object)))
    };
    let (x, y) = (Given::new(x).ok_or_else(|| wrong(x))?, Given::new(y).ok_or_else(|| wrong(y))?);
    let condition = match (&x, &y) {
        (Given::Tensor(near), _) | (_, Given::Tensor(near)) => like(condition, near)?,
        _ => {
            let given = condition
                .cast::<Tensor>()
                .map_err(|_| PyTypeError::new_err("where: of the condition, x and y at least one must be a tensor"))?;
            given.get().inner().as_ref().clone()
        }
    };
    record(py, &condition, || elementwise::where_(&condition, x.operand(), y.operand()))
}

/// The values in another dtype; the gradient comes back in the tensor's own.
#[pyfunction]
fn cast(py: Python<'_>, x: &Tensor, dtype: &Bound<'_, PyAny>) -> PyResult<Made> {
    let dtype = parse_any_dtype(dtype)?;
    record(py, &x.inner(), || elementwise::cast(&x.inner(), dtype))
}
