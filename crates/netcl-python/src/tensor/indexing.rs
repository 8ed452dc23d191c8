//! Subscripts as Python writes them.

use netcl::autograd::ops::subscript::{Index, Subscript};
use netcl::core::shape::{Shape, Slice};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PyInt, PyList, PyRange, PySlice, PyTuple};
use smallvec::{SmallVec, smallvec};

use super::Tensor;
use crate::autograd::run;
use crate::error::IntoPyResult;
use crate::ndarray::{HostData, numpy};

/// What a subscript of a tensor names.
pub(super) fn subscript(tensor: &netcl::Tensor, key: &Bound<'_, PyAny>) -> PyResult<Subscript> {
    let parts: SmallVec<[Index; 4]> = match key.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().map(|key| part(&key, tensor.shape())).collect::<PyResult<_>>()?,
        Err(_) => smallvec![part(key, tensor.shape())?],
    };
    // A mask on a device is waited for.
    match parts.iter().any(|part| matches!(part, Index::Tensor(_))) {
        true => run(key.py(), tensor, || Subscript::new(tensor.raw(), &parts)).py(),
        false => Subscript::new(tensor.raw(), &parts).py(),
    }
}

fn part(key: &Bound<'_, PyAny>, shape: &Shape) -> PyResult<Index> {
    if key.is_exact_instance_of::<PyInt>() {
        let too_far = |_| PyIndexError::new_err(format!("indexing: index {key} is out of range for shape {shape}"));
        return key.extract().map(Index::At).map_err(too_far);
    }
    if let Ok(slice) = key.cast::<PySlice>() {
        return bounds(slice).map(Index::Slice);
    }
    if key.is_none() {
        return Ok(Index::NewAxis);
    }
    if key.is_instance_of::<PyEllipsis>() {
        return Ok(Index::Ellipsis);
    }
    if let Ok(all) = key.cast::<PyBool>() {
        return Ok(Index::Bool(all.is_true()));
    }
    if let Ok(tensor) = key.cast::<Tensor>() {
        return Ok(tensor.get().inner().as_ref().into());
    }
    // NumPy's boolean, which before NumPy 2.3 is a whole number as well.
    if let Ok(all) = key.extract::<bool>() {
        return Ok(Index::Bool(all));
    }
    match key.extract::<isize>() {
        Ok(index) => Ok(Index::At(index)),
        Err(_) => listed(key, shape),
    }
}

/// The numbers of a slice; those that are too large mean as far as the axis goes.
fn bounds(slice: &Bound<'_, PySlice>) -> PyResult<Slice> {
    let (mut start, mut stop, mut step) = (0, 0, 0);
    // SAFETY: the object is a slice, and the numbers are written before the call returns.
    match unsafe { ffi::PySlice_Unpack(slice.as_ptr(), &mut start, &mut stop, &mut step) } {
        0 => Ok(Slice::new(Some(start), Some(stop), step)),
        _ => Err(PyErr::fetch(slice.py())),
    }
}

/// Indices or a mask of the host.
fn listed(key: &Bound<'_, PyAny>, shape: &Shape) -> PyResult<Index> {
    let py = key.py();
    let refused = |what: String| {
        let text = format!(
            "a tensor is indexed by whole numbers, slices, ..., None, and arrays, lists or tensors of whole numbers or \
             booleans, not {what}"
        );
        PyTypeError::new_err(text)
    };
    if let Ok(range) = key.cast::<PyRange>() {
        // Each index of an axis has two numbers. Longer ranges may not even fit into memory.
        let longest = shape.iter().copied().max().unwrap_or(0);
        if range.len().unwrap_or(usize::MAX) > 2 * longest {
            return Err(PyIndexError::new_err(format!("indexing: {range} is out of range for shape {shape}")));
        }
    } else if !key.is_instance_of::<PyList>() && !key.is_instance_of::<PyTuple>() && !key.hasattr("__array__")? {
        return Err(refused(key.get_type().to_string()));
    }
    let array = numpy(py)?.call_method1("asarray", (key,))?.cast_into::<PyUntypedArray>()?;
    let (kind, lengths) = (array.dtype().kind(), Shape::from(array.shape()));
    if kind == b'b' {
        let mask: Vec<bool> =
            HostData::new(&array, netcl::core::dtype::DType::F32)?.bytes().iter().map(|&b| b != 0).collect();
        // An array without axes is a boolean.
        return Ok(match mask[..] {
            [all] if lengths.is_empty() => Index::Bool(all),
            _ => Index::Mask(Box::new((mask, lengths))),
        });
    }
    let empty_list = array.len() == 0 && !key.is_instance_of::<PyUntypedArray>();
    if !matches!(kind, b'i' | b'u') && !empty_list {
        return Err(refused(format!("an array of {}", array.dtype())));
    }
    let whole = array.call_method1("astype", ("int64",))?;
    let host = HostData::new(&whole, netcl::core::dtype::DType::F64)?;
    let value = |bytes: &[u8]| i64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    Ok(Index::List(Box::new((host.bytes().chunks_exact(8).map(value).collect(), lengths))))
}
