//! `netcl.onnx`: models from ONNX files, and modules as ONNX files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use netcl::core::backend::Queue;
use netcl::nn::Role;
use netcl::onnx::{self, Array, Data, DynamicAxis, Kind, OnnxModule, Port, SaveOptions, Value};
use numpy::{IntoPyArray, PyReadonlyArray1, PyUntypedArray};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyTuple};

use crate::device::{queue_from_py, queue_to_py};
use crate::error::{carry, to_py};
use crate::nn::{PythonModule, held, object};

/// A model that runs; `netcl.onnx.OnnxModule` holds it.
#[pyclass(module = "netcl._netcl.onnx", frozen)]
pub(crate) struct Model {
    module: OnnxModule,
    queue: Queue,
}

/// A stored tensor: its name, what it is, the tensor.
type Stored<'py> = (String, &'static str, Bound<'py, PyAny>);
/// Name, element type, shape.
type Described = (String, Option<&'static str>, Option<Vec<String>>);

fn described(ports: &[Port]) -> Vec<Described> {
    ports.iter().map(|port| (port.name.clone(), port.kind.map(|kind| kind.name()), port.shape.clone())).collect()
}

/// Element types that NumPy has and devices do not: arrays of them stay on the host.
const ON_THE_HOST: [Kind; 6] = [Kind::U8, Kind::I8, Kind::U16, Kind::I16, Kind::U32, Kind::U64];

fn result(py: Python<'_>, queue: &Queue, value: &Value) -> PyResult<Py<PyAny>> {
    match value {
        Value::None => Ok(py.None()),
        Value::Sequence(values) => {
            let values = values.iter().map(|value| result(py, queue, value)).collect::<PyResult<Vec<_>>>()?;
            Ok(values.into_pyobject(py)?.into_any().unbind())
        }
        Value::Array(array) if array.kind.dtype().is_none() => in_numpy(py, array),
        value => Ok(object(py, value.to_tensor(queue).map_err(to_py)?)?.unbind()),
    }
}

/// A NumPy array of elements that devices do not have; types that NumPy lacks too become the next wider one.
fn in_numpy(py: Python<'_>, array: &Array) -> PyResult<Py<PyAny>> {
    let (flat, dtype) = match &array.data {
        Data::Texts(texts) => (py.import("numpy")?.call_method1("array", (texts, "object"))?, "object"),
        Data::Floats(numbers) => (numbers.clone().into_pyarray(py).into_any(), "float32"),
        Data::Ints(numbers) => {
            let dtype = if ON_THE_HOST.contains(&array.kind) { array.kind.name() } else { "int8" };
            (numbers.clone().into_pyarray(py).into_any(), dtype)
        }
    };
    Ok(flat.call_method1("astype", (dtype,))?.call_method1("reshape", (&array.shape,))?.unbind())
}

/// An input: a tensor, a NumPy array, or one number, which stays on the host.
fn given(input: &Bound<'_, PyAny>, kind: Option<Kind>, queue: &Queue) -> PyResult<Value> {
    if input.is_instance_of::<PyInt>() {
        let kind = kind.filter(|kind| !kind.is_float());
        return Ok(Array::ints(kind.unwrap_or(Kind::I64), vec![], vec![input.extract()?]).into());
    }
    if input.is_instance_of::<PyFloat>() {
        let kind = kind.filter(|kind| kind.is_float());
        return Ok(Array::floats(kind.unwrap_or(Kind::F32), vec![], vec![input.extract()?]).into());
    }
    if input.cast::<PyUntypedArray>().is_err() {
        return Ok(Value::Tensor(held(input, "an input")?.as_ref().clone()));
    }
    let py = input.py();
    let (dtype, shape): (String, Vec<usize>) =
        (input.getattr("dtype")?.getattr("name")?.extract()?, input.getattr("shape")?.extract()?);
    if let Some(kind) = ON_THE_HOST.into_iter().find(|kind| kind.name() == dtype) {
        let numbers = input.call_method1("astype", ("int64",))?.call_method0("ravel")?;
        return Ok(
            Array::ints(kind, shape, numbers.extract::<PyReadonlyArray1<'_, i64>>()?.as_slice()?.to_vec()).into()
        );
    }
    if dtype.starts_with("str") || dtype == "object" {
        let texts = input.call_method0("ravel")?.call_method0("tolist")?.extract()?;
        return Ok(Array { kind: Kind::Text, shape, data: Data::Texts(texts) }.into());
    }
    let named = PyDict::new(py);
    named.set_item("device", queue_to_py(py, queue)?)?;
    let tensor = py.import("netcl")?.getattr("tensor")?.call((input,), Some(&named))?;
    Ok(Value::Tensor(held(&tensor, "an input")?.as_ref().clone()))
}

#[pymethods]
impl Model {
    /// Reads a file onto a queue's device.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, queue: &Bound<'_, PyAny>) -> PyResult<Model> {
        let queue = queue_from_py(queue)?.ok_or_else(|| PyTypeError::new_err("onnx.load: expected a queue"))?;
        let module = py.detach(|| onnx::load(path, &queue)).map_err(|error| to_py(error.into()))?;
        Ok(Model { module, queue })
    }

    fn stored<'py>(&self, py: Python<'py>) -> PyResult<Vec<Stored<'py>>> {
        let role = |role| match role {
            Role::Parameter => "parameter",
            Role::Buffer => "buffer",
            Role::Constant => "constant",
        };
        self.module
            .stored()
            .map(|(name, kind, tensor)| Ok((name.to_owned(), role(kind), object(py, tensor.clone())?)))
            .collect()
    }

    #[getter]
    fn inputs(&self) -> Vec<Described> {
        described(self.module.inputs())
    }

    #[getter]
    fn outputs(&self) -> Vec<Described> {
        described(self.module.outputs())
    }

    fn run(&self, py: Python<'_>, inputs: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Py<PyAny>>> {
        let ports = self.module.inputs();
        // Parameters move to other devices.
        let queue = self.module.stored().next().map_or(&self.queue, |(_, _, tensor)| tensor.queue()).clone();
        let value =
            |(at, input): (usize, &Bound<'_, PyAny>)| given(input, ports.get(at).and_then(|port| port.kind), &queue);
        let values = inputs.iter().enumerate().map(value).collect::<PyResult<Vec<Value>>>()?;
        let of_inputs = values.iter().find_map(|value| match value {
            Value::Tensor(tensor) => Some(tensor.queue().clone()),
            _ => None,
        });
        let queue = of_inputs.unwrap_or(queue);
        let outputs = py.detach(|| self.module.run(values)).map_err(to_py)?;
        outputs.iter().map(|value| result(py, &queue, value)).collect()
    }

    fn __repr__(&self) -> String {
        self.module.to_string()
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
