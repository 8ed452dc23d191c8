//! The walk backwards and what Python sees of the graph.

use std::sync::Arc;

use netcl::Tensor as Recorded;
use netcl::autograd::graph::{self, BackwardOptions, Edge};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{like, site};
use crate::error::IntoPyResult;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Node>()?;
    module.add_class::<HookHandle>()?;
    module.add_function(wrap_pyfunction!(backward, module)?)?;
    module.add_function(wrap_pyfunction!(grad, module)?)
}

/// The gradient of a result as Python gives it: a tensor, an array or a number.
pub(crate) fn seed(given: Option<&Bound<'_, PyAny>>, of: &Recorded) -> PyResult<Option<Recorded>> {
    given.filter(|given| !given.is_none()).map(|given| like(given, of)).transpose()
}

/// A walk backwards: other Python threads go on meanwhile, and rules and hooks written in Python attach themselves.
pub(crate) fn walk<T: Send>(py: Python<'_>, walk: impl FnOnce() -> netcl::Result<T> + Send) -> PyResult<T> {
    site::forget();
    site::detach(py, walk).py()
}

/// Computes the gradients of one or several tensors and accumulates them on the leaves.
///
/// A tensor of one element needs no gradient of its own.
#[pyfunction]
#[pyo3(signature = (tensors, grad_tensors=None, retain_graph=false, create_graph=false))]
fn backward(
    py: Python<'_>,
    tensors: &Bound<'_, PyAny>,
    grad_tensors: Option<&Bound<'_, PyAny>>,
    retain_graph: bool,
    create_graph: bool,
) -> PyResult<()> {
    let (roots, gradients) = roots(tensors, grad_tensors)?;
    let walks = roots.len();
    walk(py, || {
        for (i, (root, gradient)) in roots.iter().zip(&gradients).enumerate() {
            // What several tensors share is freed by the last walk.
            let options = BackwardOptions { retain_graph: retain_graph || i + 1 < walks, create_graph };
            graph::backward(root, gradient.as_ref(), options)?;
        }
        Ok(())
    })
}

/// The gradients of outputs with respect to inputs, as a tuple; no ``grad`` is touched.
///
/// An input that no output depends on is an error, or None with ``allow_unused=True``.
#[pyfunction]
#[pyo3(signature = (outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=false, allow_unused=false, only_inputs=true))]
#[expect(clippy::too_many_arguments, reason = "PyTorch's signature")]
fn grad<'py>(
    py: Python<'py>,
    outputs: &Bound<'py, PyAny>,
    inputs: &Bound<'py, PyAny>,
    grad_outputs: Option<&Bound<'py, PyAny>>,
    retain_graph: Option<bool>,
    create_graph: bool,
    allow_unused: bool,
    only_inputs: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    // PyTorch's programs give it; there is nothing else than the inputs' gradients.
    let _ = only_inputs;
    let (roots, gradients) = roots(outputs, grad_outputs)?;
    let inputs = several(inputs)?;
    let options = BackwardOptions { retain_graph: retain_graph.unwrap_or(create_graph), create_graph };
    let found = walk(py, || {
        let (roots, inputs): (Vec<&Recorded>, Vec<&Recorded>) = (roots.iter().collect(), inputs.iter().collect());
        graph::grad(&roots, &inputs, &gradients.iter().map(Option::as_ref).collect::<Vec<_>>(), options)
    })?;
    if let Some(unused) = found.iter().position(Option::is_none).filter(|_| !allow_unused) {
        let text = format!("grad: no output depends on input {unused}; allow_unused=True gives None for it");
        return Err(PyValueError::new_err(text));
    }
    tuple(py, found)
}

/// Results and the gradients they start with.
fn roots(
    tensors: &Bound<'_, PyAny>,
    gradients: Option<&Bound<'_, PyAny>>,
) -> PyResult<(Vec<Recorded>, Vec<Option<Recorded>>)> {
    let roots = several(tensors)?;
    let Some(gradients) = gradients.filter(|given| !given.is_none()) else {
        let none = vec![None; roots.len()];
        return Ok((roots, none));
    };
    if tensors.is_instance_of::<Tensor>() && !gradients.is_instance_of::<PyTuple>() {
        let one = seed(Some(gradients), &roots[0])?;
        return Ok((roots, vec![one]));
    }
    let given: Vec<Bound<'_, PyAny>> = gradients.try_iter()?.collect::<PyResult<_>>()?;
    if given.len() != roots.len() {
        let text = format!("{} gradients are given for {} tensors", given.len(), roots.len());
        return Err(PyValueError::new_err(text));
    }
    let seeds = given.iter().zip(&roots).map(|(given, root)| seed(Some(given), root)).collect::<PyResult<_>>()?;
    Ok((roots, seeds))
}

/// One tensor or a sequence of them.
fn several(tensors: &Bound<'_, PyAny>) -> PyResult<Vec<Recorded>> {
    if let Ok(one) = tensors.cast::<Tensor>() {
        return Ok(vec![one.get().inner().as_ref().clone()]);
    }
    tensors.try_iter()?.map(|tensor| Ok(tensor?.cast::<Tensor>()?.get().inner().as_ref().clone())).collect()
}

fn tuple<'py>(
    py: Python<'py>,
    gradients: impl IntoIterator<Item = Option<Recorded>, IntoIter: ExactSizeIterator>,
) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, gradients.into_iter().map(|gradient| gradient.map(Tensor::new)))
}

/// One recorded operation. Calling it with the gradient of its result gives a tuple of the gradients of its inputs.
#[pyclass(module = "netcl.autograd", frozen, weakref)]
pub(crate) struct Node(pub(crate) Arc<graph::Node>);

#[pymethods]
impl Node {
    /// The operation's name.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.op()
    }

    /// The operations that made the inputs; None for an input that is a leaf or needs no gradient.
    #[getter]
    fn next_functions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let before = self.0.edges().iter().map(|edge| match edge {
            Edge::Node(node) | Edge::Output(node, _) => Some(Node(node.clone())),
            Edge::Leaf(_) | Edge::Unrecorded(_) | Edge::None => None,
        });
        PyTuple::new(py, before.collect::<Vec<_>>())
    }

    fn __call__<'py>(&self, py: Python<'py>, gradient: &Tensor) -> PyResult<Bound<'py, PyTuple>> {
        let gradients = walk(py, || self.0.gradients(&gradient.inner()))?;
        tuple(py, gradients)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Node>().is_ok_and(|other| Arc::ptr_eq(&self.0, &other.get().0))
    }

    fn __hash__(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    fn __repr__(&self) -> String {
        format!("<Node {}>", self.0.op())
    }
}

/// Takes a hook away again.
#[pyclass(module = "netcl.autograd", frozen)]
pub(crate) struct HookHandle(pub(crate) graph::HookHandle);

#[pymethods]
impl HookHandle {
    /// Takes the hook away; nothing happens if it is gone already.
    fn remove(&self) {
        self.0.remove();
    }
}
