//! `netcl.onnx`: models from ONNX files, and modules as ONNX files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use netcl::nn::Role;
use netcl::onnx::{self, Array, DynamicAxis, Kind, OnnxModule, Port, SaveOptions, Value};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyTuple};

use crate::device::queue_from_py;
use crate::error::{carry, to_py};
use crate::nn::{PythonModule, held, object};

/// A model that runs; `netcl.onnx.OnnxModule` holds it.
#[pyclass(module = "netcl._netcl.onnx", frozen)]
pub(crate) struct Model(OnnxModule);

/// A stored tensor: its name, what it is, the tensor.
type Stored<'py> = (String, &'static str, Bound<'py, PyAny>);
/// Name, element type, shape.
type Described = (String, Option<&'static str>, Option<Vec<String>>);

fn described(ports: &[Port]) -> Vec<Described> {
    ports.iter().map(|port| (port.name.clone(), port.kind.map(|kind| kind.name()), port.shape.clone())).collect()
}

fn result(py: Python<'_>, queue: &netcl::core::backend::Queue, value: &Value) -> PyResult<Py<PyAny>> {
    match value {
        Value::None => Ok(py.None()),
        Value::Sequence(values) => {
            let values = values.iter().map(|value| result(py, queue, value)).collect::<PyResult<Vec<_>>>()?;
            Ok(values.into_pyobject(py)?.into_any().unbind())
        }
        value => Ok(object(py, value.to_tensor(queue).map_err(to_py)?)?.unbind()),
    }
}

/// An input: a tensor, or one number, which stays on the host.
fn given(input: &Bound<'_, PyAny>, kind: Option<Kind>) -> PyResult<Value> {
    if input.is_instance_of::<PyInt>() {
        let kind = kind.filter(|kind| !kind.is_float());
        return Ok(Array::ints(kind.unwrap_or(Kind::I64), vec![], vec![input.extract()?]).into());
    }
    if input.is_instance_of::<PyFloat>() {
        let kind = kind.filter(|kind| kind.is_float());
        return Ok(Array::floats(kind.unwrap_or(Kind::F32), vec![], vec![input.extract()?]).into());
    }
    Ok(Value::Tensor(held(input, "an input")?.as_ref().clone()))
}

#[pymethods]
impl Model {
    /// Reads a file onto a queue's device.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, queue: &Bound<'_, PyAny>) -> PyResult<Model> {
        let queue = queue_from_py(queue)?.ok_or_else(|| PyTypeError::new_err("onnx.load: expected a queue"))?;
        py.detach(|| onnx::load(path, &queue)).map(Model).map_err(|error| to_py(error.into()))
    }

    fn stored<'py>(&self, py: Python<'py>) -> PyResult<Vec<Stored<'py>>> {
        let role = |role| match role {
            Role::Parameter => "parameter",
            Role::Buffer => "buffer",
            Role::Constant => "constant",
        };
        self.0
            .stored()
            .map(|(name, kind, tensor)| Ok((name.to_owned(), role(kind), object(py, tensor.clone())?)))
            .collect()
    }

    #[getter]
    fn inputs(&self) -> Vec<Described> {
        described(self.0.inputs())
    }

    #[getter]
    fn outputs(&self) -> Vec<Described> {
        described(self.0.outputs())
    }

    fn run(&self, py: Python<'_>, inputs: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Py<PyAny>>> {
        let ports = self.0.inputs();
        let value = |(at, input): (usize, &Bound<'_, PyAny>)| given(input, ports.get(at).and_then(|port| port.kind));
        let values = inputs.iter().enumerate().map(value).collect::<PyResult<Vec<Value>>>()?;
        let queue = values.iter().find_map(|value| match value {
            Value::Tensor(tensor) => Some(tensor.queue().clone()),
            _ => None,
        });
        let queue = queue.unwrap_or_else(|| netcl::manager().cpu().queue);
        let outputs = py.detach(|| self.0.run(values)).map_err(to_py)?;
        outputs.iter().map(|value| result(py, &queue, value)).collect()
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }
}

/// How often each operator occurs, and the nodes of those that are not supported.
type Operators = (BTreeMap<String, usize>, BTreeMap<String, Vec<String>>);

/// How often each operator of a file occurs, and the nodes of those that are not supported.
#[pyfunction]
fn check(py: Python<'_>, path: PathBuf) -> PyResult<Operators> {
    let report = py.detach(|| onnx::inspect(path)).map_err(|error| to_py(error.into()))?;
    Ok((report.operators, report.missing))
}

/// The tensors of a result, in order: of a tuple, a list, or a dictionary's values.
fn flattened(result: &Bound<'_, PyAny>, into: &mut Vec<netcl::Tensor>) -> PyResult<()> {
    if let Ok(tuple) = result.cast::<PyTuple>() {
        return tuple.iter().try_for_each(|item| flattened(&item, into));
    }
    if let Ok(list) = result.cast::<PyList>() {
        return list.iter().try_for_each(|item| flattened(&item, into));
    }
    if let Ok(named) = result.cast::<PyDict>() {
        return named.values().iter().try_for_each(|item| flattened(&item, into));
    }
    if !result.is_none() {
        into.push(held(result, "a result of the model")?.as_ref().clone());
    }
    Ok(())
}

/// Writes a module as an ONNX file.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "those of the Python function")]
fn save(
    model: &Bound<'_, PyAny>,
    path: PathBuf,
    examples: Vec<Bound<'_, PyAny>>,
    input_names: Vec<String>,
    output_names: Vec<String>,
    dynamic_batch: bool,
    dynamic_axes: Option<Vec<(String, usize, String)>>,
    external_data: Option<bool>,
) -> PyResult<()> {
    let module = PythonModule::new(model)?;
    let inputs = examples.iter().map(|example| Ok(held(example, "an example input")?.as_ref().clone()));
    let inputs = inputs.collect::<PyResult<Vec<netcl::Tensor>>>()?;
    let axis = |(input, axis, name)| DynamicAxis { input, axis, name };
    let dynamic_axes = dynamic_axes.map(|axes| axes.into_iter().map(axis).collect());
    let options = SaveOptions { input_names, output_names, dynamic_batch, dynamic_axes, external_data };
    let forward = |inputs: &[netcl::Tensor]| {
        let py = model.py();
        let call = || {
            let inputs = inputs.iter().map(|input| object(py, input.clone())).collect::<PyResult<Vec<_>>>()?;
            let mut outputs = Vec::new();
            flattened(&model.call1(PyTuple::new(py, inputs)?)?, &mut outputs)?;
            Ok(outputs)
        };
        call().map_err(carry)
    };
    onnx::save_with(path, &module, &inputs, &options, &forward).map_err(|error| to_py(error.into()))
}

/// Fills the module `netcl._netcl.onnx`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "onnx")?;
    module.add("__doc__", "The extension's part of ``netcl.onnx``.")?;
    module.add_class::<Model>()?;
    module.add_function(wrap_pyfunction!(check, &module)?)?;
    module.add_function(wrap_pyfunction!(save, &module)?)?;
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.onnx", &module)
}
