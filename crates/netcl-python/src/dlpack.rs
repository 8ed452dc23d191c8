//! DLPack: tensors shared with PyTorch, NumPy, JAX and others without a copy.

use std::ffi::{CStr, c_void};

use netcl::core::dtype::DType;
use netcl::core::shape::Shape;
use netcl::core::tensor::Tensor as Raw;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict};

use crate::error::IntoPyResult;
use crate::tensor::Tensor;

const CPU: i32 = 1;
const OPENCL: i32 = 4;
const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const READ_ONLY: u64 = 1;

const CAPSULE: &CStr = c"dltensor";
const USED_CAPSULE: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

// The C structures of DLPack's ABI, version 1.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDevice {
    kind: i32,
    id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// What an exported capsule keeps alive: the memory, and the arrays its pointers lead to.
struct Exported {
    _tensor: Raw,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

/// DLPack's device of a tensor.
pub(crate) fn device_of(tensor: &Raw) -> (i32, i32) {
    (if tensor.backend().name() == "cpu" { CPU } else { OPENCL }, 0)
}

/// A capsule over a CPU tensor's memory.
pub(crate) fn export<'py>(
    py: Python<'py>,
    tensor: &Raw,
    stream: Option<&Bound<'py, PyAny>>,
    max_version: Option<(u32, u32)>,
    dl_device: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    if stream.is_some_and(|s| !s.is_none()) {
        return Err(PyBufferError::new_err("__dlpack__: stream must be None for a tensor in host memory"));
    }
    if dl_device.is_some_and(|(kind, _)| kind != CPU) || device_of(tensor).0 != CPU {
        let text = "__dlpack__ gives host memory only; move the tensor with t.to(manager.default('cpu').queue) first";
        return Err(PyBufferError::new_err(text));
    }
    let tensor = if copy == Some(true) { tensor.duplicate().py()? } else { tensor.clone() };
    let mut owned = Box::new(Exported {
        shape: tensor.shape().iter().map(|&n| n as i64).collect(),
        strides: tensor.layout().strides().iter().map(|&s| s as i64).collect(),
        _tensor: tensor.clone(),
    });
    let description = DlTensor {
        data: tensor.cpu_ptr().map_or(std::ptr::null_mut(), <*mut u8>::cast),
        device: DlDevice { kind: CPU, id: 0 },
        ndim: tensor.ndim() as i32,
        dtype: data_type(tensor.dtype()),
        shape: owned.shape.as_mut_ptr(),
        strides: owned.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(owned).cast();
    // SAFETY: the pointers are fresh boxes; the capsule's destructor or the consumer calls the deleter exactly once.
    unsafe {
        let capsule = if max_version.is_some_and(|(major, _)| major >= 1) {
            let managed = ManagedVersioned {
                major: 1,
                minor: 0,
                context,
                deleter: Some(delete_versioned),
                flags: 0,
                tensor: description,
            };
            let managed = Box::into_raw(Box::new(managed)).cast();
            ffi::PyCapsule_New(managed, VERSIONED.as_ptr(), Some(drop_versioned_capsule))
        } else {
            let managed = Managed { tensor: description, context, deleter: Some(delete) };
            ffi::PyCapsule_New(Box::into_raw(Box::new(managed)).cast(), CAPSULE.as_ptr(), Some(drop_capsule))
        };
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: both pointers came from Box::into_raw in `export`, and DLPack calls the deleter once.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Exported>()));
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as in `delete`.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Exported>()));
    }
}

unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule that was consumed has been renamed, so only an unused one still owns its tensor.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, CAPSULE.as_ptr()) != 0 {
            delete(ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn drop_versioned_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: as in `drop_capsule`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

fn data_type(dtype: DType) -> DlDataType {
    let code = match dtype {
        DType::F32 | DType::F64 | DType::F16 => FLOAT,
        DType::BF16 => BFLOAT,
        DType::U8 => UINT,
        DType::I32 | DType::I64 => INT,
    };
    DlDataType { code, bits: dtype.size() as u8 * 8, lanes: 1 }
}

/// Whoever frees an imported tensor.
enum Import {
    Plain(*mut Managed),
    Versioned(*mut ManagedVersioned),
}

// SAFETY: DLPack lets a managed tensor be used and deleted from any thread.
unsafe impl Send for Import {}
// SAFETY: nothing is reached through a shared reference.
unsafe impl Sync for Import {}

impl Drop for Import {
    fn drop(&mut self) {
        // SAFETY: the pointers came out of capsules that were renamed, so this is their one deleter call. The producer may
        // be Python code, so the interpreter is attached first.
        Python::attach(|_| unsafe {
            match *self {
                Import::Plain(managed) => {
                    if let Some(deleter) = (*managed).deleter {
                        deleter(managed);
                    }
                }
                Import::Versioned(managed) => {
                    if let Some(deleter) = (*managed).deleter {
                        deleter(managed);
                    }
                }
            }
        });
    }
}

/// A tensor over the memory of any object with ``__dlpack__`` (PyTorch, NumPy, JAX, ...) on the CPU, without a copy.
#[pyfunction]
pub(crate) fn from_dlpack(x: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let py = x.py();
    if let Ok((kind, _)) = x.call_method0("__dlpack_device__").and_then(|d| d.extract::<(i32, i32)>())
        && kind != CPU
    {
        let text = format!("from_dlpack: the object lives on DLPack device type {kind}; bring it to host memory first");
        return Err(PyBufferError::new_err(text));
    }
    let options = PyDict::new(py);
    options.set_item("max_version", (1, 0))?;
    let capsule = match x.call_method("__dlpack__", (), Some(&options)) {
        Ok(capsule) => capsule,
        // Producers older than DLPack 1.0 do not know the keyword.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => x.call_method0("__dlpack__")?,
        Err(error) => return Err(error),
    };
    let capsule = capsule.cast_into::<PyCapsule>()?;
    // SAFETY: a capsule of either name holds a managed tensor of that layout; renaming it makes us its owner.
    let (description, read_only, owner) = unsafe {
        if let Ok(managed) = capsule.pointer_checked(Some(VERSIONED)) {
            let managed: *mut ManagedVersioned = managed.as_ptr().cast();
            ffi::PyCapsule_SetName(capsule.as_ptr(), USED_VERSIONED.as_ptr());
            let owner = Import::Versioned(managed);
            if (*managed).major > 1 {
                let text = format!("from_dlpack: DLPack version {} is newer than the 1.x known here", (*managed).major);
                return Err(PyBufferError::new_err(text));
            }
            (&(*managed).tensor, (*managed).flags & READ_ONLY != 0, owner)
        } else {
            let managed: *mut Managed = capsule.pointer_checked(Some(CAPSULE))?.as_ptr().cast();
            ffi::PyCapsule_SetName(capsule.as_ptr(), USED_CAPSULE.as_ptr());
            (&(*managed).tensor, false, Import::Plain(managed))
        }
    };
    import(description, read_only, owner)
}

fn import(description: &DlTensor, read_only: bool, owner: Import) -> PyResult<Tensor> {
    let DlDataType { code, bits, lanes } = description.dtype;
    let dtype = match (code, bits, lanes) {
        (FLOAT, 32, 1) => DType::F32,
        (FLOAT, 64, 1) => DType::F64,
        (FLOAT, 16, 1) => DType::F16,
        (BFLOAT, 16, 1) => DType::BF16,
        _ => {
            let text = format!("from_dlpack: only float tensors are supported, not {:?}", description.dtype);
            return Err(PyBufferError::new_err(text));
        }
    };
    if description.device.kind != CPU {
        let text = format!("from_dlpack: device type {} is not host memory", description.device.kind);
        return Err(PyBufferError::new_err(text));
    }
    let n = description.ndim as usize;
    // SAFETY: DLPack's contract: `shape` (and `strides`, unless null) point to `ndim` numbers, and the data they describe is
    // valid until the deleter is called, which `owner` does.
    unsafe {
        let dims: &[i64] = if n == 0 { &[] } else { std::slice::from_raw_parts(description.shape, n) };
        let shape: Shape = dims.iter().map(|&d| d as usize).collect();
        let strides: Vec<isize> = if n == 0 || description.strides.is_null() {
            shape.contiguous_strides().to_vec()
        } else {
            std::slice::from_raw_parts(description.strides, n).iter().map(|&s| s as isize).collect()
        };
        let first = description.data.cast::<u8>().wrapping_add(description.byte_offset as usize);
        let aliased = Raw::from_foreign(first, shape, &strides, dtype, Box::new(owner)).py()?;
        // Memory that must not be written to cannot back a tensor, which may be written in place.
        let raw = if read_only { aliased.duplicate().py()? } else { aliased };
        Ok(Tensor::new(raw.into()))
    }
}
