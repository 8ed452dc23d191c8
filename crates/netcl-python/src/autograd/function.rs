//! Operations of the user's own, written in Python.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use netcl::Tensor as Recorded;
use netcl::autograd::graph::{Gradients, RuleContext, Save, grad_enabled, no_grad};
use netcl::autograd::{Function, call};
use netcl::core::dtype::DType;
use netcl::core::shape::Shape;
use netcl::core::tensor::Tensor as Raw;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use super::wrap;
use crate::error::{IntoPyResult, carry};
use crate::index::Made;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FunctionContext>()?;
    module.add_function(wrap_pyfunction!(apply_function, module)?)
}

/// What ``forward`` hands on to ``backward``. Any attribute can be set on it; tensors go through ``save_for_backward``, which sees
/// when they are overwritten and keeps gradients of gradients right.
#[pyclass(module = "netcl.autograd", frozen, weakref, dict)]
struct FunctionContext {
    needs_input_grad: Py<PyTuple>,
    tensors: Mutex<Tensors>,
}

enum Tensors {
    /// In `forward`: what is to be saved.
    Given(Vec<Option<Py<Tensor>>>),
    /// Recorded: the operation has them.
    Recorded,
    /// In `backward`: what was saved.
    Saved(Py<PyTuple>),
}

#[pymethods]
impl FunctionContext {
    /// Keeps tensors for ``backward``: inputs, the output, or others made on the way. Call it once, in ``forward``.
    #[pyo3(signature = (*tensors))]
    fn save_for_backward(&self, tensors: Vec<Option<Py<Tensor>>>) -> PyResult<()> {
        match &mut *self.lock() {
            Tensors::Given(given) => {
                *given = tensors;
                Ok(())
            }
            _ => Err(PyRuntimeError::new_err("save_for_backward works in forward only")),
        }
    }

    /// In ``backward``: the tensors that ``forward`` saved, as a tuple.
    #[getter]
    fn saved_tensors(&self, py: Python<'_>) -> PyResult<Py<PyTuple>> {
        match &*self.lock() {
            Tensors::Saved(saved) => Ok(saved.clone_ref(py)),
            _ => Err(PyRuntimeError::new_err("saved_tensors can be read in backward, from the context it is given")),
        }
    }

    /// Which arguments of ``forward`` need a gradient; ``backward`` can save itself the others.
    #[getter]
    fn needs_input_grad(&self, py: Python<'_>) -> Py<PyTuple> {
        self.needs_input_grad.clone_ref(py)
    }
}

impl FunctionContext {
    fn lock(&self) -> std::sync::MutexGuard<'_, Tensors> {
        self.tensors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A saved tensor. Inputs and the output are not held here but by the graph, which knows where their gradients go.
enum Saved {
    Nothing,
    Input(usize),
    Output,
    Other { raw: Raw, version: u64 },
}

/// A class's `forward` that has run, and its `backward`.
struct PythonFunction {
    name: &'static str,
    backward: Py<PyAny>,
    context: Py<FunctionContext>,
    output: Raw,
    saved: Vec<Saved>,
    /// For each argument of `forward` which of the tensors it is.
    arguments: Vec<Option<usize>>,
    /// What the gradients of the tensors must look like.
    expected: Vec<(Shape, DType)>,
}

impl Function for PythonFunction {
    fn name(&self) -> &'static str {
        self.name
    }

    fn forward(&self, _: &[&Raw]) -> netcl::Result<Raw> {
        Ok(self.output.clone())
    }

    fn saves(&self) -> Save {
        self.saved.iter().fold(Save::NOTHING, |save, saved| match saved {
            Saved::Input(at) => Save { inputs: save.inputs | 1 << at.min(&31), ..save },
            Saved::Output => Save { output: true, ..save },
            Saved::Nothing | Saved::Other { .. } => save,
        })
    }

    fn backward(&self, context: &RuleContext<'_>, upstream: &Recorded) -> netcl::Result<Gradients> {
        let saved = self.saved.iter().map(|saved| self.unpack(saved, context)).collect::<netcl::Result<Vec<_>>>()?;
        let wanted: Vec<bool> = self.arguments.iter().map(|at| at.is_some_and(|at| context.wants(at))).collect();
        let run = |py: Python<'_>| -> PyResult<Gradients> {
            let saved = PyTuple::new(py, saved.into_iter().map(|tensor| tensor.map(Tensor::new)))?;
            // A context of its own for each walk: what it unpacks must not outlive the walk.
            let own = FunctionContext {
                needs_input_grad: PyTuple::new(py, wanted)?.unbind(),
                tensors: Mutex::new(Tensors::Saved(saved.unbind())),
            };
            let own = Bound::new(py, own)?;
            own.setattr("__dict__", self.context.bind(py).getattr("__dict__")?)?;
            let given = self.backward.bind(py).call1((own, Tensor::new(upstream.clone())))?;
            self.gradients(&given)
        };
        Python::attach(run).map_err(carry)
    }
}

impl PythonFunction {
    fn unpack(&self, saved: &Saved, context: &RuleContext<'_>) -> netcl::Result<Option<Recorded>> {
        match saved {
            Saved::Nothing => Ok(None),
            Saved::Input(at) => context.input(*at).map(Some),
            Saved::Output => context.output().map(Some),
            Saved::Other { raw, version } if raw.version() == *version => Ok(Some(raw.clone().into())),
            Saved::Other { .. } => {
                let text = format!(
                    "backward of {} needs a saved tensor that was overwritten in place since; write to a copy instead",
                    self.name
                );
                Err(carry(PyRuntimeError::new_err(text)))
            }
        }
    }

    /// What `backward` returned, as one gradient per tensor.
    fn gradients(&self, given: &Bound<'_, PyAny>) -> PyResult<Gradients> {
        let name = self.name;
        let given: Vec<Bound<'_, PyAny>> = match given.cast::<PyTuple>() {
            Ok(several) => several.iter().collect(),
            Err(_) => vec![given.clone()],
        };
        if given.len() != self.arguments.len() {
            let (got, wanted) = (given.len(), self.arguments.len());
            let text = format!(
                "{name}.backward returned {got} gradient(s), but forward takes {wanted} argument(s) beside the context: \
                 return one for each, None where there is none"
            );
            return Err(PyValueError::new_err(text));
        }
        let mut gradients = Gradients::from_elem(None, self.expected.len());
        for (position, (given, at)) in given.iter().zip(&self.arguments).enumerate() {
            if given.is_none() {
                continue;
            }
            let Some(at) = *at else {
                let text = format!(
                    "{name}.backward returned a gradient for argument {position}, which is no tensor: return None for it"
                );
                return Err(PyTypeError::new_err(text));
            };
            let Ok(gradient) = given.cast::<Tensor>() else {
                let kind = given.get_type();
                let text =
                    format!("{name}.backward returned {kind} for argument {position}: gradients are tensors or None");
                return Err(PyTypeError::new_err(text));
            };
            let (gradient, (shape, dtype)) = (&gradient.get().inner(), &self.expected[at]);
            if gradient.shape() != shape || gradient.dtype() != *dtype {
                let text = format!(
                    "{name}.backward returned a gradient of shape {} and dtype {} for argument {position}, which has shape \
                     {shape} and dtype {dtype}",
                    gradient.shape(),
                    gradient.dtype()
                );
                return Err(PyValueError::new_err(text));
            }
            gradients[at] = Some(gradient.as_ref().clone());
        }
        Ok(gradients)
    }
}

/// Runs a class's ``forward`` without recording and records the whole as one operation.
#[pyfunction]
#[pyo3(signature = (function, *args))]
fn apply_function(py: Python<'_>, function: &Bound<'_, PyType>, args: &Bound<'_, PyTuple>) -> PyResult<Made> {
    let name = function.name()?;
    let name = name.to_string_lossy();
    let mut inputs: Vec<&Bound<'_, Tensor>> = Vec::new();
    let mut arguments = Vec::with_capacity(args.len());
    let objects: Vec<Bound<'_, PyAny>> = args.iter().collect();
    for argument in &objects {
        let tensor = argument.cast::<Tensor>().ok();
        arguments.push(tensor.map(|_| inputs.len()));
        inputs.extend(tensor);
    }
    let recording = grad_enabled();
    let needs = arguments.iter().map(|at| recording && at.is_some_and(|at| inputs[at].get().inner().requires_grad()));
    let context = FunctionContext {
        needs_input_grad: PyTuple::new(py, needs.collect::<Vec<_>>())?.unbind(),
        tensors: Mutex::new(Tensors::Given(Vec::new())),
    };
    let context = Bound::new(py, context)?;
    let result = {
        // What forward chooses its backward must find again: it runs in the dtypes it is given.
        let _scopes = (no_grad(), netcl::autograd::autocast::suspend());
        let all = std::iter::once(context.clone().into_any()).chain(args.iter());
        function.getattr("forward")?.call1(PyTuple::new(py, all.collect::<Vec<_>>())?)?
    };
    let Ok(output) = result.cast::<Tensor>() else {
        let text = format!("{name}.forward must return one Tensor, not {}", result.get_type());
        return Err(PyTypeError::new_err(text));
    };
    let given = match std::mem::replace(&mut *context.get().lock(), Tensors::Recorded) {
        Tensors::Given(given) => given,
        Tensors::Recorded | Tensors::Saved(_) => Vec::new(),
    };
    let saved = given.iter().map(|given| match given.as_ref().map(|tensor| tensor.bind(py)) {
        None => Saved::Nothing,
        Some(tensor) => match inputs.iter().position(|input| input.is(tensor)) {
            Some(at) => Saved::Input(at),
            None if tensor.is(output) => Saved::Output,
            None => {
                let raw = tensor.get().inner().raw().clone();
                let version = raw.version();
                Saved::Other { raw, version }
            }
        },
    });
    let saved = saved.collect();
    let inputs: Vec<Arc<Recorded>> = inputs.iter().map(|input| input.get().inner()).collect();
    let inputs: Vec<&Recorded> = inputs.iter().map(Arc::as_ref).collect();
    let function = PythonFunction {
        name: interned(&name),
        backward: function.getattr("backward")?.unbind(),
        context: context.unbind(),
        output: output.get().inner().raw().clone(),
        saved,
        arguments,
        expected: inputs.iter().map(|input| (input.shape().clone(), input.dtype())).collect(),
    };
    wrap(py, call(function, &inputs).py()?)
}

/// A name that lives as long as the process: there are as many as classes.
fn interned(name: &str) -> &'static str {
    static NAMES: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = names.get(name) {
        return found;
    }
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(name);
    name
}
