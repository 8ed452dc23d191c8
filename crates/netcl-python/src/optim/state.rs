//! Stored state as a dict of numbers and arrays.

use netcl::core::device::manager;
use netcl::optim::State;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt};

use crate::device::queue_to_py;
use crate::error::kind;
use crate::ndarray;
use crate::tensor::Tensor;

/// Numbers as floats, tensors as arrays of their own.
pub(crate) fn to_dict(py: Python<'_>, state: State) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for (name, number) in state.numbers {
        dict.set_item(name, number)?;
    }
    for (name, tensor) in state.tensors {
        dict.set_item(name, ndarray::copy_out(py, tensor.raw())?)?;
    }
    Ok(dict)
}

/// The way back: floats and ints are numbers, anything else is an array.
pub(crate) fn from_dict(dict: &Bound<'_, PyDict>) -> PyResult<State> {
    let py = dict.py();
    if dict.contains("state")? && dict.contains("param_groups")? {
        return Err(PyValueError::new_err(
            "load_state_dict: this is the state_dict of an optimizer of PyTorch (\"state\" and \"param_groups\"), which cannot be \
             loaded; netcl's has names such as \"groups.0.lr\", \"0.step\" and \"0.exp_avg\"",
        ));
    }
    let mut state = State::default();
    let queue = queue_to_py(py, &manager().cpu().queue)?;
    for (name, value) in dict {
        let name: String = name.extract().map_err(|_| {
            PyTypeError::new_err(format!("load_state_dict: names are texts such as \"groups.0.lr\", not {name}"))
        })?;
        if value.is_instance_of::<PyFloat>() || value.is_instance_of::<PyInt>() {
            state.numbers.insert(name, value.extract()?);
        } else {
            let wrong = |_| {
                let kind = kind(&value);
                PyTypeError::new_err(format!("load_state_dict: {name:?} holds a {kind}; it takes numbers and arrays"))
            };
            let dtype = value.getattr("dtype").map_err(wrong)?.str()?;
            let tensor = py.get_type::<Tensor>().call_method1("from_host", (&queue, value, dtype))?;
            state.tensors.insert(name, tensor.cast::<Tensor>()?.get().inner().as_ref().clone());
        }
    }
    Ok(state)
}
