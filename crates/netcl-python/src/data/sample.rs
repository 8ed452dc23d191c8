//! Samples and batches: netcl-data's arrays and nested fields as NumPy arrays, tuples and dicts, and arrays back.

use netcl::data::{Array, DType, Sample};
use numpy::npyffi::{NPY_ARRAY_WRITEABLE, NPY_TYPES, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::IntoPy;
use crate::error::IntoPyResult;
use crate::ndarray::{self, numpy};

fn type_number(dtype: DType) -> NPY_TYPES {
    match dtype {
        DType::Bool => NPY_TYPES::NPY_BOOL,
        DType::U8 => NPY_TYPES::NPY_UBYTE,
        DType::I8 => NPY_TYPES::NPY_BYTE,
        DType::U16 => NPY_TYPES::NPY_USHORT,
        DType::I16 => NPY_TYPES::NPY_SHORT,
        DType::U32 => NPY_TYPES::NPY_UINT,
        DType::I32 => NPY_TYPES::NPY_INT,
        // The type that NumPy calls int64; the other of the same size has another name in dtypes that are printed.
        DType::U64 if cfg!(target_os = "linux") && cfg!(target_pointer_width = "64") => NPY_TYPES::NPY_ULONG,
        DType::I64 if cfg!(target_os = "linux") && cfg!(target_pointer_width = "64") => NPY_TYPES::NPY_LONG,
        DType::U64 => NPY_TYPES::NPY_ULONGLONG,
        DType::I64 => NPY_TYPES::NPY_LONGLONG,
        DType::F16 => NPY_TYPES::NPY_HALF,
        DType::F32 => NPY_TYPES::NPY_FLOAT,
        DType::F64 => NPY_TYPES::NPY_DOUBLE,
    }
}

/// The element type of an array; none for one that netcl-data does not have, or in the other order of bytes.
fn dtype_of(descr: &Bound<'_, PyArrayDescr>) -> Option<DType> {
    if descr.is_native_byteorder() == Some(false) {
        return None;
    }
    Some(match (descr.kind(), descr.itemsize()) {
        (b'b', 1) => DType::Bool,
        (b'u', 1) => DType::U8,
        (b'u', 2) => DType::U16,
        (b'u', 4) => DType::U32,
        (b'u', 8) => DType::U64,
        (b'i', 1) => DType::I8,
        (b'i', 2) => DType::I16,
        (b'i', 4) => DType::I32,
        (b'i', 8) => DType::I64,
        (b'f', 2) => DType::F16,
        (b'f', 4) => DType::F32,
        (b'f', 8) => DType::F64,
        _ => return None,
    })
}

/// A dense NumPy array of one of netcl-data's element types.
pub(super) struct Dense<'py> {
    array: Bound<'py, PyUntypedArray>,
    dtype: DType,
}

impl<'py> Dense<'py> {
    /// The array itself where it is dense, a dense copy where not; `what` names it in errors.
    pub(super) fn new(what: &str, object: &Bound<'py, PyAny>) -> PyResult<Dense<'py>> {
        let py = object.py();
        let array = match object.cast::<PyUntypedArray>() {
            Ok(array) => array.clone(),
            Err(_) => numpy(py)?.call_method1("asarray", (object,))?.cast_into::<PyUntypedArray>()?,
        };
        let Some(dtype) = dtype_of(&array.dtype()) else {
            let text = format!(
                "{what}: an array of dtype {} has no samples for networks; use booleans, whole numbers or floats of 16 to 64 \
                 bits in this machine's order of bytes (array.astype)",
                array.dtype()
            );
            return Err(PyTypeError::new_err(text));
        };
        if array.is_c_contiguous() && array.is_aligned() {
            return Ok(Dense { array, dtype });
        }
        // Where memory is promised freely, NumPy's own copy would end the process.
        netcl::core::host::check::<u8>("array", array.len().saturating_mul(dtype.size())).py()?;
        let dense = numpy(py)?.call_method1("ascontiguousarray", (&array,))?;
        // ascontiguousarray turns a 0-d array into a 1-d one.
        let dense = dense.call_method1("reshape", (array.getattr("shape")?,))?;
        Ok(Dense { array: dense.cast_into::<PyUntypedArray>()?, dtype })
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    /// Where the elements start, and how many bytes they have. Valid while the array lives.
    pub(super) fn memory(&self) -> (*const u8, usize) {
        // SAFETY: reading the fields of a live array.
        let first = unsafe { (*ndarray::fields(&self.array)).data.cast::<u8>() };
        (first, self.array.len() * self.dtype.size())
    }

    pub(super) fn owner(&self) -> Py<PyAny> {
        self.array.clone().into_any().unbind()
    }

    /// A copy of the elements.
    pub(super) fn copy(&self) -> PyResult<Array> {
        let (first, bytes) = self.memory();
        // SAFETY: `new` made sure that the array is dense; it is alive, and the interpreter's lock keeps others from writing.
        let bytes = if bytes == 0 { &[] } else { unsafe { std::slice::from_raw_parts(first, bytes) } };
        Array::from_bytes(self.dtype, self.shape(), bytes).data(self.array.py())
    }
}

/// A copy of what `np.asarray` makes of an object.
pub(super) fn array_from_py(what: &str, object: &Bound<'_, PyAny>) -> PyResult<Array> {
    Dense::new(what, object)?.copy()
}

/// An ndarray over an array's memory, which it takes over.
pub(super) fn array_to_py(py: Python<'_>, array: Array) -> PyResult<Bound<'_, PyAny>> {
    let dims = array.shape().iter().map(|&length| length as npy_intp).collect();
    let first = array.bytes().as_ptr().cast_mut();
    let number = type_number(array.dtype());
    // SAFETY: the elements are dense and on the heap, the box keeps them alive, and no other code has the array.
    unsafe { ndarray::over(py, first, number, dims, None, NPY_ARRAY_WRITEABLE, Box::new(array)) }
}

/// A sample or batch as Python sees it: fields by position are a tuple, by name a dict, several texts a list, a single number is
/// NumPy's scalar.
pub(super) fn to_py(py: Python<'_>, sample: Sample) -> PyResult<Bound<'_, PyAny>> {
    Ok(match sample {
        Sample::Array(array) if array.shape().is_empty() => array_to_py(py, array)?.get_item(())?,
        Sample::Array(array) => array_to_py(py, array)?,
        Sample::Text(text) => text.into_pyobject(py)?.into_any(),
        Sample::List(fields) => {
            let texts = !fields.is_empty() && fields.iter().all(|field| field.text().is_some());
            let fields = fields.into_iter().map(|field| to_py(py, field)).collect::<PyResult<Vec<_>>>()?;
            if texts { PyList::new(py, fields)?.into_any() } else { PyTuple::new(py, fields)?.into_any() }
        }
        Sample::Dict(fields) => {
            let dict = PyDict::new(py);
            for (name, field) in fields {
                dict.set_item(name, to_py(py, field)?)?;
            }
            dict.into_any()
        }
    })
}
