//! Writing to tensors in place: operators, methods and assignment to a subscript.

use std::sync::Arc;

use netcl::autograd::ops::elementwise::Operand;
use netcl::core::dtype::DType;
use netcl::core::tensor::{HostOptions, Tensor as Raw};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::Tensor;
use super::indexing::subscript;
use crate::autograd::{Given, like, run};
use crate::error::IntoPyResult;
use crate::ndarray::HostData;

type Method = fn(&mut netcl::Tensor, Operand<'_>) -> netcl::Result<()>;

const ADD: (&str, Method) = ("add_", |x, y| x.add_(y));
const SUB: (&str, Method) = ("sub_", |x, y| x.sub_(y));
const MUL: (&str, Method) = ("mul_", |x, y| x.mul_(y));
const DIV: (&str, Method) = ("div_", |x, y| x.div_(y));
const POW: (&str, Method) = ("pow_", |x, y| x.pow_(y));

/// Writes to a tensor in place. The object continues as what the write makes of it, and so does the tensor it is a view of.
fn write(
    slf: &Bound<'_, Tensor>,
    op: &'static str,
    update: impl FnOnce(&mut netcl::Tensor) -> netcl::Result<()> + Send,
) -> PyResult<()> {
    let py = slf.py();
    let object = slf.get();
    let Some((root, view)) = object.root(py) else {
        let mut tensor = object.inner().as_ref().clone();
        run(py, &object.inner(), || update(&mut tensor)).py()?;
        object.hold(tensor);
        return Ok(());
    };
    let mut whole = root.get().inner().as_ref().clone();
    let part = run(py, &object.inner(), || whole.update_at(op, &view, update)).py()?;
    root.get().hold(whole);
    object.hold(part);
    Ok(())
}

/// A method in place, which gives the tensor back.
fn method<'py>(
    slf: Bound<'py, Tensor>,
    (name, method): (&'static str, Method),
    other: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, Tensor>> {
    let Some(given) = Given::new(other) else {
        let text = format!("{name}: the operand is a tensor or a number, not {}", other.get_type());
        return Err(PyTypeError::new_err(text));
    };
    operator(&slf, (name, method), &given)?;
    Ok(slf)
}

/// An operator in place. What is no operand never gets here: Python then tries the operator that is not in place, which says so.
fn operator(slf: &Bound<'_, Tensor>, (name, method): (&'static str, Method), given: &Given) -> PyResult<()> {
    write(slf, name, |tensor| method(tensor, given.operand()))
}

/// A number, a tensor, or data that a tensor like this one can be made of.
fn source(value: &Bound<'_, PyAny>, tensor: &netcl::Tensor) -> PyResult<Given> {
    if let Some(given) = Given::new(value) {
        return Ok(given);
    }
    if tensor.dtype().is_float() || value.is_none() {
        return like(value, tensor).map(|made| Given::Tensor(made.into()));
    }
    let host = HostData::new(value, DType::F64)?;
    let made =
        Raw::from_host_bytes(tensor.queue(), host.bytes(), host.dtype, host.shape.clone(), HostOptions::default());
    Ok(Given::Tensor(Arc::new(made.py()?.into())))
}

#[pymethods]
impl Tensor {
    fn __iadd__(slf: &Bound<'_, Self>, other: Given) -> PyResult<()> {
        operator(slf, ADD, &other)
    }

    fn __isub__(slf: &Bound<'_, Self>, other: Given) -> PyResult<()> {
        operator(slf, SUB, &other)
    }

    fn __imul__(slf: &Bound<'_, Self>, other: Given) -> PyResult<()> {
        operator(slf, MUL, &other)
    }

    fn __itruediv__(slf: &Bound<'_, Self>, other: Given) -> PyResult<()> {
        operator(slf, DIV, &other)
    }

    fn __ipow__(slf: &Bound<'_, Self>, other: Given, _modulo: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        operator(slf, POW, &other)
    }

    /// ``x += other``: written in place, as everyone sees who looks at the same memory. The other operand is broadcast and cast to
    /// this tensor's shape and dtype. A leaf that requires grad is written to under ``no_grad()`` only; the result of a recorded
    /// operation goes on as the result of a new one.
    fn add_<'py>(slf: Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        method(slf, ADD, other)
    }

    /// ``x -= other``; see ``add_``.
    fn sub_<'py>(slf: Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        method(slf, SUB, other)
    }

    /// ``x *= other``; see ``add_``.
    fn mul_<'py>(slf: Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        method(slf, MUL, other)
    }

    /// ``x /= other``; see ``add_``.
    fn div_<'py>(slf: Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        method(slf, DIV, other)
    }

    /// ``x **= other``; see ``add_``.
    fn pow_<'py>(slf: Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        method(slf, POW, other)
    }

    /// Limits every element to [min, max], in place; ``None`` is no limit. See ``add_``.
    #[pyo3(signature = (min=None, max=None))]
    fn clamp_(slf: Bound<'_, Self>, min: Option<f64>, max: Option<f64>) -> PyResult<Bound<'_, Self>> {
        let (min, max) = (min.unwrap_or(f64::NEG_INFINITY), max.unwrap_or(f64::INFINITY));
        write(&slf, "clamp_", |tensor| tensor.clamp_(min, max))?;
        Ok(slf)
    }

    /// Overwrites the elements with those of a tensor or an array, broadcast and cast as needed. See ``add_``.
    fn copy_<'py>(slf: Bound<'py, Self>, source: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let source = like(source, &slf.get().inner())?;
        write(&slf, "copy_", |tensor| tensor.copy_(&source))?;
        Ok(slf)
    }

    /// Overwrites every element with a value. See ``add_``.
    fn fill_(slf: Bound<'_, Self>, value: f64) -> PyResult<Bound<'_, Self>> {
        write(&slf, "fill_", |tensor| tensor.fill_(value))?;
        Ok(slf)
    }

    /// Overwrites every element with zero. See ``add_``.
    fn zero_(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        write(&slf, "zero_", netcl::Tensor::zero_)?;
        Ok(slf)
    }

    /// Overwrites what a subscript names with a number, a tensor or an array, by NumPy's rules: where indices name an element
    /// several times, the last one counts. See ``add_``.
    fn __setitem__(slf: &Bound<'_, Self>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let tensor = slf.get().inner();
        let subscript = subscript(&tensor, key)?;
        let given = source(value, &tensor)?;
        // `x[key] += y` has written to a view already, and assigns it once more.
        if let Given::Tensor(given) = &given
            && subscript.is_view()
            && given.shares_storage(&tensor)
            && *given.layout() == subscript.view()(tensor.layout()).py()?
        {
            return Ok(());
        }
        write(slf, "assignment", |tensor| subscript.write(tensor, given.operand(), false))
    }

    /// ``x[indices] = values`` in place, or with ``accumulate`` ``x[indices] += values`` in which every occurrence of an index counts.
    /// ``indices`` is any subscript. See ``add_``.
    #[pyo3(signature = (indices, values, accumulate=false))]
    fn index_put_<'py>(
        slf: Bound<'py, Self>,
        indices: &Bound<'py, PyAny>,
        values: &Bound<'py, PyAny>,
        accumulate: bool,
    ) -> PyResult<Bound<'py, Self>> {
        let tensor = slf.get().inner();
        let (subscript, given) = (subscript(&tensor, indices)?, source(values, &tensor)?);
        write(&slf, "index_put_", |tensor| subscript.write(tensor, given.operand(), accumulate))?;
        Ok(slf)
    }

    /// Takes the values of another tensor of the same shape, which may be on another device or of another dtype. It stays the same
    /// tensor for whoever holds it; the gradient goes along.
    fn _move_to(&self, values: &Tensor) -> PyResult<()> {
        let mut moved = self.inner().as_ref().clone();
        moved.move_to(values.inner().raw().clone()).py()?;
        self.hold(moved);
        Ok(())
    }
}
