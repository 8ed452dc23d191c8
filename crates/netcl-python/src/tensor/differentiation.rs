//! A tensor's place in autograd.

use std::sync::PoisonError;

use netcl::autograd::graph::{self, BackwardOptions};
use netcl::autograd::ops::reduce;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::Tensor;
use crate::autograd::{HookHandle, Node, record, seed, walk};
use crate::axis;
use crate::error::{IntoPyResult, carry};
use crate::index::Made;

#[pymethods]
impl Tensor {
    /// If true, operations that consume this tensor are recorded.
    #[getter]
    fn requires_grad(&self) -> bool {
        self.inner().requires_grad()
    }

    #[setter]
    fn set_requires_grad(&self, requires_grad: bool) -> PyResult<()> {
        self.inner().set_requires_grad(requires_grad).py()
    }

    /// Sets ``requires_grad`` and returns the tensor.
    #[pyo3(signature = (requires_grad=true))]
    fn requires_grad_<'py>(slf: &Bound<'py, Self>, requires_grad: bool) -> PyResult<Bound<'py, Self>> {
        slf.get().set_requires_grad(requires_grad)?;
        Ok(slf.clone())
    }

    /// Whether the tensor was made by the user rather than by a recorded operation.
    #[getter]
    fn is_leaf(&self) -> bool {
        self.inner().is_leaf()
    }

    /// The accumulated gradient.
    #[getter]
    fn grad(&self) -> Option<Tensor> {
        self.inner().grad().map(Tensor::new)
    }

    #[setter]
    fn set_grad(&self, grad: Option<Bound<'_, Tensor>>) -> PyResult<()> {
        let grad = grad.map(|grad| grad.get().inner().as_ref().clone());
        if let Some(grad) =
            grad.as_ref().filter(|g| g.shape() != self.inner().shape() || g.dtype() != self.inner().dtype())
        {
            let text = format!(
                "the gradient has shape {} and dtype {}, the tensor {} and {}",
                grad.shape(),
                grad.dtype(),
                self.inner().shape(),
                self.inner().dtype()
            );
            return Err(PyValueError::new_err(text));
        }
        self.inner().set_grad(grad);
        Ok(())
    }

    /// The local-gradient callback: the recorded operation that made the tensor, or what was assigned. Called with the gradient of
    /// the tensor it gives a tuple of the gradients of the operation's inputs.
    #[getter]
    fn grad_fn(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let assigned = self.grad_fn.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|f| f.clone_ref(py));
        match (assigned, self.inner().grad_fn()) {
            (Some(assigned), _) => Ok(Some(assigned)),
            (None, Some(node)) => Ok(Some(Py::new(py, Node(node.clone()))?.into_any())),
            (None, None) => Ok(None),
        }
    }

    #[setter]
    fn set_grad_fn(&self, grad_fn: Option<Py<PyAny>>) {
        let _old = std::mem::replace(&mut *self.grad_fn.lock().unwrap_or_else(PoisonError::into_inner), grad_fn);
    }

    /// Computes the gradients of the leaves that this tensor depends on and adds them to their ``grad``. A tensor of other than one
    /// element needs the ``gradient`` of itself.
    #[pyo3(signature = (gradient=None, retain_graph=false, create_graph=false))]
    fn backward(
        &self,
        py: Python<'_>,
        gradient: Option<&Bound<'_, PyAny>>,
        retain_graph: bool,
        create_graph: bool,
    ) -> PyResult<()> {
        let gradient = seed(gradient, &self.inner())?;
        let options = BackwardOptions { retain_graph, create_graph };
        walk(py, || graph::backward(&self.inner(), gradient.as_ref(), options))
    }

    /// Registers a function that sees this tensor's gradient once it is complete, and may return another in its place. The handle's
    /// ``remove()`` takes it away again.
    fn register_hook(&self, hook: Py<PyAny>) -> PyResult<HookHandle> {
        let run = move |gradient: &netcl::Tensor| {
            Python::attach(|py| {
                let given = hook.bind(py).call1((Tensor::new(gradient.clone()),))?;
                if given.is_none() {
                    return Ok(None);
                }
                match given.cast::<Tensor>() {
                    Ok(tensor) => Ok(Some(tensor.get().inner().as_ref().clone())),
                    Err(_) => {
                        let text = format!("a hook returns a Tensor or None, not {}", given.get_type());
                        Err(PyTypeError::new_err(text))
                    }
                }
            })
            .map_err(carry)
        };
        Ok(HookHandle(self.inner().register_hook(run).py()?))
    }

    /// The same values, cut off from autograd; the memory is shared.
    fn detach(slf: &Bound<'_, Self>) -> Made {
        Made(Tensor::view(slf.get().inner().detach(), slf, None))
    }

    /// The sum over some axes, or over all of them.
    #[pyo3(signature = (axis=None, keepdims=false, *, dim=None, keepdim=false, dtype=None, out=None))]
    #[expect(clippy::too_many_arguments, reason = "arguments under both of their names")]
    fn sum(
        &self,
        py: Python<'_>,
        axis: Option<&Bound<'_, PyAny>>,
        keepdims: bool,
        dim: Option<&Bound<'_, PyAny>>,
        keepdim: bool,
        dtype: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Made> {
        numpys_own(dtype, out)?;
        let axes = axis::several("sum", dim, axis)?;
        record(py, &self.inner(), || reduce::sum(&self.inner(), axes.axes(), keepdims || keepdim))
    }

    /// The mean over some axes, or over all of them.
    #[pyo3(signature = (axis=None, keepdims=false, *, dim=None, keepdim=false, dtype=None, out=None))]
    #[expect(clippy::too_many_arguments, reason = "arguments under both of their names")]
    fn mean(
        &self,
        py: Python<'_>,
        axis: Option<&Bound<'_, PyAny>>,
        keepdims: bool,
        dim: Option<&Bound<'_, PyAny>>,
        keepdim: bool,
        dtype: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Made> {
        numpys_own(dtype, out)?;
        let axes = axis::several("mean", dim, axis)?;
        record(py, &self.inner(), || reduce::mean(&self.inner(), axes.axes(), keepdims || keepdim))
    }
}

/// `np.sum(tensor)` calls the method with these keywords, which are accepted as long as they say nothing.
fn numpys_own(dtype: Option<&Bound<'_, PyAny>>, out: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    match dtype.filter(|d| !d.is_none()).or(out.filter(|out| !out.is_none())) {
        None => Ok(()),
        Some(_) => Err(PyTypeError::new_err("a tensor's reductions take neither dtype nor out; see Tensor.to")),
    }
}
