//! NumPy arrays in and out, without needless copies.

use std::any::Any;
use std::ffi::c_int;
use std::sync::Arc;

use netcl::core::dtype::DType;
use netcl::core::shape::Shape;
use netcl::core::tensor::Tensor;
use numpy::npyffi::{
    _PyArray_GET_ITEM_DATA, NPY_ARRAY_WRITEABLE, NPY_TYPES, NpyTypes, PY_ARRAY_API, PyArrayObject,
    PyArrayObject_fields, get_type_object, npy_intp,
};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::error::IntoPyResult;

/// The `numpy` module, imported on first use so that `import netcl` does not pay for it.
pub(crate) fn numpy(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    if let Some(numpy) = NUMPY.get(py) {
        return Ok(numpy.bind(py));
    }
    // Imported outside the cell: an import lets other threads run, one of them may fork, and its child would wait for the cell
    // for ever.
    let numpy = py.import("numpy")?.unbind();
    Ok(NUMPY.get_or_init(py, || numpy).bind(py))
}

/// NumPy's name for a dtype; bfloat16 has none.
pub(crate) fn numpy_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::BF16 => None,
        DType::U8 => Some("uint8"),
        other => Some(other.name()),
    }
}

fn type_number(dtype: DType) -> Option<NPY_TYPES> {
    Some(match dtype {
        DType::F32 => NPY_TYPES::NPY_FLOAT,
        DType::F64 => NPY_TYPES::NPY_DOUBLE,
        DType::F16 => NPY_TYPES::NPY_HALF,
        DType::U8 => NPY_TYPES::NPY_UBYTE,
        DType::I32 => NPY_TYPES::NPY_INT,
        DType::I64 => NPY_TYPES::NPY_LONGLONG,
        DType::BF16 => return None,
    })
}

/// The dtype of an array's elements, if they are of one of our types in native byte order; booleans count as bytes.
fn dtype_of(descr: &Bound<'_, PyArrayDescr>) -> Option<DType> {
    if descr.is_native_byteorder() == Some(false) {
        return None;
    }
    match (descr.kind(), descr.itemsize()) {
        (b'f', 4) => Some(DType::F32),
        (b'f', 8) => Some(DType::F64),
        (b'f', 2) => Some(DType::F16),
        (b'u', 1) | (b'b', 1) => Some(DType::U8),
        (b'i', 4) => Some(DType::I32),
        (b'i', 8) => Some(DType::I64),
        _ => None,
    }
}

/// The C fields of an array, valid while it lives.
pub(crate) fn fields(array: &Bound<'_, PyUntypedArray>) -> *mut PyArrayObject_fields {
    // SAFETY: a live array, and the interpreter is attached.
    unsafe { _PyArray_GET_ITEM_DATA(array.as_array_ptr()) }
}

/// Dense host data of one of our dtypes, borrowed from a NumPy array that is kept alive.
pub(crate) struct HostData<'py> {
    array: Bound<'py, PyUntypedArray>,
    /// The elements' type.
    pub(crate) dtype: DType,
    /// The array's shape.
    pub(crate) shape: Shape,
}

impl<'py> HostData<'py> {
    /// What `np.asarray` makes of an object, dense and of a type we know; other real types become `fallback`.
    pub(crate) fn new(data: &Bound<'py, PyAny>, fallback: DType) -> PyResult<Self> {
        let py = data.py();
        let mut array = match data.cast::<PyUntypedArray>() {
            Ok(array) => array.clone(),
            Err(_) => numpy(py)?.call_method1("asarray", (data,))?.cast_into::<PyUntypedArray>()?,
        };
        let dtype = match dtype_of(&array.dtype()) {
            Some(dtype) if array.is_c_contiguous() && array.is_aligned() => dtype,
            found => {
                let kind = array.dtype().kind();
                if !matches!(kind, b'f' | b'i' | b'u' | b'b' | b'V') {
                    let text = format!("cannot make a tensor of an array of dtype {}", array.dtype());
                    return Err(PyTypeError::new_err(text));
                }
                // ml_dtypes' bfloat16 reports kind 'V' and casts to float32 by itself; true structs fail in astype.
                let wanted = found.unwrap_or(if fallback == DType::F64 { DType::F64 } else { DType::F32 });
                // Where memory is promised freely, NumPy's own copy would end the process.
                netcl::core::host::check::<f32>("from_host", array.len()).py()?;
                let dense = numpy(py)?.call_method1("ascontiguousarray", (&array, numpy_name(wanted)))?;
                // ascontiguousarray turns a 0-d array into a 1-d one.
                let dense = dense.call_method1("reshape", (array.getattr("shape")?,))?;
                array = dense.cast_into::<PyUntypedArray>()?;
                wanted
            }
        };
        let shape = Shape::from(array.shape());
        Ok(HostData { array, dtype, shape })
    }

    /// The raw bytes. Valid while Python runs no code that writes to the array.
    pub(crate) fn bytes(&self) -> &[u8] {
        let nbytes = self.array.len() * self.dtype.size();
        if nbytes == 0 {
            return &[];
        }
        // SAFETY: `new` made sure that the array is dense and of this element size; `array` keeps it alive.
        unsafe { std::slice::from_raw_parts((*fields(&self.array)).data.cast(), nbytes) }
    }
}

/// What an ndarray over our memory keeps alive.
#[pyclass(frozen)]
struct MemoryOwner {
    _memory: Box<dyn Any + Send + Sync>,
}

/// An ndarray that shares a CPU tensor's memory and keeps it alive; `None` where NumPy has no such dtype.
pub(crate) fn share<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Option<Bound<'py, PyAny>>> {
    share_bytes(py, tensor)?.map(|array| truth_values(array, tensor.dtype())).transpose()
}

/// [`share`] of a tensor whose bytes are plain bytes.
pub(crate) fn share_bytes<'py>(py: Python<'py>, bytes: &Tensor) -> PyResult<Option<Bound<'py, PyAny>>> {
    share_with(py, bytes, Box::new(bytes.storage().clone()))
}

/// Bytes of a tensor are truth values.
fn truth_values(array: Bound<'_, PyAny>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    if dtype == DType::U8 { array.call_method1("view", ("bool",)) } else { Ok(array) }
}

/// [`share`] with something else to keep alive, which keeps the memory alive in turn.
pub(crate) fn share_with<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    owner: Box<dyn Any + Send + Sync>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(number) = type_number(tensor.dtype()) else { return Ok(None) };
    let Some(first) = tensor.cpu_ptr() else { return Ok(None) };
    let dims: Vec<npy_intp> = tensor.shape().iter().map(|&n| n as npy_intp).collect();
    let strides: Vec<npy_intp> =
        tensor.layout().strides().iter().map(|&s| s * tensor.dtype().size() as npy_intp).collect();
    // SAFETY: the pointer, shape and strides describe memory of the storage, which the owner keeps alive.
    unsafe { over(py, first, number, dims, Some(strides), NPY_ARRAY_WRITEABLE, owner) }.map(Some)
}

/// A read-only ndarray over the bytes of an upload, of the tensor's shape where they are all of it. bfloat16 shows as uint16.
pub(crate) fn snapshot<'py>(py: Python<'py>, bytes: Arc<[u8]>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let number = type_number(tensor.dtype()).unwrap_or(NPY_TYPES::NPY_USHORT);
    let size = tensor.dtype().size();
    let dims = if bytes.len() == tensor.size() * size {
        tensor.shape().iter().map(|&n| n as npy_intp).collect()
    } else {
        vec![(bytes.len() / size) as npy_intp]
    };
    let first = bytes.as_ptr().cast_mut();
    // SAFETY: the dense bytes are immutable, the array is read-only, and the owner keeps them alive. (The bytes of an `Arc` begin
    // behind two counters, so they are aligned for eight-byte elements.)
    unsafe { over(py, first, number, dims, None, 0, Box::new(bytes)) }
}

/// A writeable line of bytes over memory.
///
/// # Safety
/// `length` bytes at `first` are valid and belong to `owner` alone while it lives.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn bytes_over<'py>(
    py: Python<'py>,
    first: *mut u8,
    length: usize,
    owner: Box<dyn Any + Send + Sync>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: as the caller promises.
    unsafe { over(py, first, NPY_TYPES::NPY_UBYTE, vec![length as npy_intp], None, NPY_ARRAY_WRITEABLE, owner) }
}

/// The memory of a dense array of any element type. Valid while the array lives and Python runs no code that writes to it.
#[cfg(target_os = "linux")]
pub(crate) fn dense_bytes<'a>(array: &'a Bound<'_, PyUntypedArray>) -> PyResult<&'a [u8]> {
    let nbytes = array.len() * array.dtype().itemsize();
    if !array.is_c_contiguous() {
        return Err(PyValueError::new_err("the array is not dense (C-contiguous); copy it with np.ascontiguousarray"));
    }
    if nbytes == 0 {
        return Ok(&[]);
    }
    // SAFETY: a live, dense array.
    Ok(unsafe { std::slice::from_raw_parts((*fields(array)).data.cast(), nbytes) })
}

/// An ndarray over memory.
///
/// # Safety
/// Everything that `dims` and `strides` (dense if `None`) reach from `first` is valid while `owner` lives, for writes too if the
/// flags say so.
pub(crate) unsafe fn over<'py>(
    py: Python<'py>,
    first: *mut u8,
    number: NPY_TYPES,
    mut dims: Vec<npy_intp>,
    mut strides: Option<Vec<npy_intp>>,
    flags: c_int,
    owner: Box<dyn Any + Send + Sync>,
) -> PyResult<Bound<'py, PyAny>> {
    let owner = Py::new(py, MemoryOwner { _memory: owner })?;
    // SAFETY: as the caller promises; NewFromDescr takes over the descriptor's reference, SetBaseObject the owner's.
    unsafe {
        let descr = PY_ARRAY_API.PyArray_DescrFromType(py, number as _);
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            get_type_object(py, NpyTypes::PyArray_Type),
            descr,
            dims.len() as _,
            dims.as_mut_ptr(),
            strides.as_mut().map_or(std::ptr::null_mut(), Vec::as_mut_ptr),
            first.cast(),
            flags,
            std::ptr::null_mut(),
        );
        let array = Bound::from_owned_ptr_or_err(py, array)?;
        let failed = PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast::<PyArrayObject>(), owner.into_ptr());
        if failed != 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(array)
    }
}

/// The memory of a dense, writeable array, for a device to work on.
pub(crate) fn writeable_bytes(array: &Bound<'_, PyUntypedArray>) -> PyResult<(*mut u8, usize)> {
    // SAFETY: reading the fields of a live array.
    let (data, flags) = unsafe { ((*fields(array)).data.cast::<u8>(), (*fields(array)).flags) };
    let why = match (array.is_c_contiguous(), flags & NPY_ARRAY_WRITEABLE != 0) {
        (true, true) => return Ok((data, array.len() * array.dtype().itemsize())),
        (false, _) => "not dense (C-contiguous); copy it with np.ascontiguousarray",
        (_, false) => "read-only, and kernels may write",
    };
    Err(PyValueError::new_err(format!("the array cannot be shared with a device: it is {why}")))
}

/// A fresh ndarray with a tensor's values; bfloat16 becomes float32.
pub(crate) fn copy_out<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let tensor =
        if tensor.dtype() == DType::BF16 { py.detach(|| tensor.cast(DType::F32)).py()? } else { tensor.clone() };
    let shape = tensor.shape().to_vec();
    let array = numpy(py)?.call_method1("empty", (shape, numpy_name(tensor.dtype())))?;
    let target = array.cast::<PyUntypedArray>()?;
    let nbytes = target.len() * tensor.dtype().size();
    if nbytes > 0 {
        // SAFETY: a fresh dense array of exactly this many bytes that nobody else has seen yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut((*fields(target)).data.cast::<u8>(), nbytes) };
        py.detach(|| tensor.read_bytes(bytes)).py()?;
    }
    truth_values(array, tensor.dtype())
}

/// A tensor over an ndarray's own memory, for the keyword constructor: nothing is copied.
pub(crate) fn alias(array: &Bound<'_, PyUntypedArray>, dtype: DType) -> PyResult<Tensor> {
    let found = dtype_of(&array.dtype());
    if found != Some(dtype) {
        let text = format!("array has dtype {}, the tensor {dtype}; use Tensor.from_host to convert", array.dtype());
        return Err(PyValueError::new_err(text));
    }
    // SAFETY: reading the flags of a live array.
    let writeable = unsafe { (*fields(array)).flags } & NPY_ARRAY_WRITEABLE != 0;
    let size = dtype.size() as isize;
    if !writeable || !array.is_aligned() || array.strides().iter().any(|s| s % size != 0) {
        let text = "array is read-only or not aligned, so it cannot be a tensor's memory; use Tensor.from_host";
        return Err(PyValueError::new_err(text));
    }
    let strides: Vec<isize> = array.strides().iter().map(|s| s / size).collect();
    let owner = Box::new(array.clone().unbind());
    // SAFETY: pointer, shape and strides are those of a live array, which the owner keeps alive.
    unsafe {
        let first = (*fields(array)).data.cast::<u8>();
        Tensor::from_foreign(first, Shape::from(array.shape()), &strides, dtype, owner).py()
    }
}
