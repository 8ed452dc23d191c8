//! NumPy's ufuncs called with tensors: what `array + tensor` and `np.exp(tensor)` mean.

use netcl::autograd::graph::grad_enabled;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use super::Tensor;

/// The ufuncs that an array's operators call: the tensor's method with the tensor on the left, and with it on the right.
const OPERATORS: [(&str, &str, &str); 20] = [
    ("add", "__add__", "__radd__"),
    ("subtract", "__sub__", "__rsub__"),
    ("multiply", "__mul__", "__rmul__"),
    ("divide", "__truediv__", "__rtruediv__"),
    ("power", "__pow__", "__rpow__"),
    ("matmul", "__matmul__", "__rmatmul__"),
    ("equal", "__eq__", "__eq__"),
    ("not_equal", "__ne__", "__ne__"),
    ("less", "__lt__", "__gt__"),
    ("less_equal", "__le__", "__ge__"),
    ("greater", "__gt__", "__lt__"),
    ("greater_equal", "__ge__", "__le__"),
    ("floor_divide", "__floordiv__", "__rfloordiv__"),
    ("remainder", "__mod__", "__rmod__"),
    ("divmod", "__divmod__", "__rdivmod__"),
    ("left_shift", "__lshift__", "__rlshift__"),
    ("right_shift", "__rshift__", "__rrshift__"),
    ("bitwise_and", "__and__", "__rand__"),
    ("bitwise_or", "__or__", "__ror__"),
    ("bitwise_xor", "__xor__", "__rxor__"),
];

/// NumPy's names of operations that have another one here.
const ALIASES: [(&str, &str); 3] = [("absolute", "abs"), ("negative", "neg"), ("rint", "round")];

/// The `__array_ufunc__` of both kinds of tensors. Operators are the tensor's; any other ufunc computes on the host and gives an
/// array, unless a gradient would be lost.
pub(crate) fn apply<'py>(
    ufunc: &Bound<'py, PyAny>,
    method: &Bound<'py, PyString>,
    inputs: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let name: String = ufunc.getattr("__name__")?.extract()?;
    let (called, plain) = (method == "__call__", kwargs.is_none_or(|kwargs| kwargs.is_empty()));
    if let Some(operator) = OPERATORS.iter().find(|(ufunc, ..)| *ufunc == name && called && plain) {
        return operate(operator, &inputs.get_item(0)?, &inputs.get_item(1)?);
    }
    let shown = if called { format!("np.{name}") } else { format!("np.{name}.{method}") };
    let target = kwargs.map(|kwargs| kwargs.get_item("out")).transpose()?.flatten();
    let targets = target.as_ref().and_then(|out| out.cast::<PyTuple>().ok()).map(|out| out.iter().any(|t| is_ours(&t)));
    if targets == Some(true) || method == "at" && is_ours(&inputs.get_item(0)?) {
        return Err(PyTypeError::new_err(format!("{shown}: NumPy cannot write into a tensor; give an array")));
    }
    if grad_enabled()
        && inputs.iter().any(|input| input.cast::<Tensor>().is_ok_and(|t| t.get().inner().requires_grad()))
    {
        return Err(lost(ufunc.py(), &shown, &name)?);
    }
    let host = |input: Bound<'py, PyAny>| if is_ours(&input) { input.call_method0("to_host") } else { Ok(input) };
    let inputs = PyTuple::new(ufunc.py(), inputs.iter().map(host).collect::<PyResult<Vec<_>>>()?)?;
    ufunc.getattr(method)?.call(inputs, kwargs)
}

fn is_ours(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<Tensor>()
}

fn operate<'py>(
    (name, left, right): &(&str, &str, &str),
    x: &Bound<'py, PyAny>,
    y: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let (tensor, other, method) = if is_ours(x) { (x, y, left) } else { (y, x, right) };
    let result = match tensor.getattr_opt(*method)? {
        Some(method) => Some(method.call1((other,))?),
        None => None,
    };
    result.filter(|result| !result.is(x.py().NotImplemented())).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{name}: no such operation of {} and {}; compute it of arrays (numpy()), or with netcl.autograd",
            x.get_type(),
            y.get_type()
        ))
    })
}

/// The error for a ufunc that would lose a gradient; it names the operation that does not.
fn lost(py: Python<'_>, shown: &str, ufunc: &str) -> PyResult<PyErr> {
    let name = ALIASES.iter().find(|(numpy, _)| *numpy == ufunc).map_or(ufunc, |(_, ours)| ours);
    let instead = match py.import("netcl.autograd")?.hasattr(name)? {
        true => format!("netcl.autograd.{name}"),
        false => "the operations of netcl.autograd".to_owned(),
    };
    let text = format!(
        "{shown}: NumPy does not record, and the tensor requires a gradient; use {instead}, or detach() (or no_grad) if no gradient \
         is meant"
    );
    Ok(PyTypeError::new_err(text))
}
