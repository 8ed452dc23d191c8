//! Files of named tensors of any kind.

use std::path::PathBuf;

use netcl::core::dtype::DType;
use netcl::io::{self, Archive, Array, Element, Kind, LoadOptions, Rename, Renamed, Tensors, WriteOptions};
use netcl::nn::{Module, Strict};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::parse;
use crate::device::resolve_queue;
use crate::error::io_to_py;
use crate::nn::{PythonModule, held, object};
use crate::tensor::parse_dtype;

/// Patterns and their replacements, as Python gives them.
type Rules = Vec<(String, String)>;

fn renaming(rules: Option<Rules>) -> PyResult<Rename> {
    Rename::new(&rules.unwrap_or_default()).map_err(io_to_py)
}

/// Names after the rules of ``rename``; an empty one is to be left out.
#[pyfunction]
pub(super) fn rename(names: Vec<String>, rules: Rules) -> PyResult<Vec<String>> {
    let rename = renaming(Some(rules))?;
    Ok(names.iter().map(|name| rename.apply(name).into_owned()).collect())
}

/// The kind of a file, and its metadata as JSON.
#[pyfunction]
pub(super) fn metadata(py: Python<'_>, path: PathBuf) -> PyResult<(&'static str, String)> {
    let file = py.detach(|| io::open(&path)).map_err(io_to_py)?;
    Ok((file.kind().name(), serde_json::Value::from(file.metadata().clone()).to_string()))
}

/// The tensors of a file by name, on a device. Whole numbers are index tensors.
#[pyfunction]
#[pyo3(signature = (path, queue=None, dtype=None, rename=None))]
pub(super) fn load_tensors<'py>(
    py: Python<'py>,
    path: PathBuf,
    queue: Option<&Bound<'py, PyAny>>,
    dtype: Option<&Bound<'py, PyAny>>,
    rename: Option<Rules>,
) -> PyResult<Bound<'py, PyDict>> {
    let queue = resolve_queue(py, queue, None)?;
    let (dtype, rename) = (dtype.map(|dtype| parse_dtype(Some(dtype))).transpose()?, renaming(rename)?);
    let file = py.detach(|| io::open(&path)).map_err(io_to_py)?;
    let renamed = Renamed::new(&file, &rename).map_err(io_to_py)?;
    let tensors = PyDict::new(py);
    for (index, info) in renamed.infos().iter().enumerate() {
        let tensor = py.detach(|| {
            let array = renamed.read(index)?;
            let wanted = match array.dtype {
                float if float.is_float() => dtype.unwrap_or(float),
                // Tensors of bytes are truth values, which other bytes are not.
                DType::U8 if info.element != Element::Bool => DType::I64,
                whole => whole,
            };
            array.to_tensor_of(&queue, wanted)
        });
        tensors.set_item(&info.name, object(py, tensor.map_err(io_to_py)?)?)?;
    }
    Ok(tensors)
}

/// Copies the tensors of a file into a model; returns the names that only the model has and those that only the file has.
#[pyfunction]
pub(super) fn load_weights(
    path: PathBuf,
    model: &Bound<'_, PyAny>,
    strict: bool,
    rename: Option<Rules>,
) -> PyResult<(Vec<String>, Vec<String>)> {
    let strict = if strict { Strict::Yes } else { Strict::No };
    let mut module = PythonModule::new(model)?;
    let options = LoadOptions { strict, rename: renaming(rename)? };
    let loaded = io::load_weights_with(&path, &mut module, &options).map_err(io_to_py)?;
    module.bring_back(model.py())?;
    Ok((loaded.report.missing, loaded.report.unexpected))
}

/// Writes a model's parameters and buffers; the kind of file is that of its name.
#[pyfunction]
pub(super) fn save_model(path: PathBuf, model: &Bound<'_, PyAny>, metadata: &str) -> PyResult<()> {
    let mut archive = Archive::new(parse(metadata)?);
    for (name, tensor) in PythonModule::new(model)?.state_dict() {
        archive.insert(name, Array::from_tensor(tensor.raw()).map_err(io_to_py)?);
    }
    model.py().detach(|| write(path, &archive, None))
}

/// Writes tensors by name; the kind of file is that of its name.
#[pyfunction]
pub(super) fn save_tensors(
    path: PathBuf,
    tensors: &Bound<'_, PyDict>,
    metadata: &str,
    max_shard_size: Option<u64>,
) -> PyResult<()> {
    let mut archive = Archive::new(parse(metadata)?);
    for (name, tensor) in tensors {
        let name: String = name.extract()?;
        let array = Array::from_tensor(held(&tensor, &name)?.raw()).map_err(io_to_py)?;
        archive.insert(name, array);
    }
    tensors.py().detach(|| write(path, &archive, max_shard_size))
}

fn write(path: PathBuf, archive: &Archive, max_shard_size: Option<u64>) -> PyResult<()> {
    let Some(kind) = Kind::of_name(&path) else {
        let what = format!("{}: the kind of file is that of its ending: {}", path.display(), Kind::endings());
        return Err(PyValueError::new_err(what));
    };
    let mut options = WriteOptions::new(kind);
    options.max_shard_size = max_shard_size.unwrap_or(options.max_shard_size);
    io::write(&path, archive, &options).map(drop).map_err(io_to_py)
}
