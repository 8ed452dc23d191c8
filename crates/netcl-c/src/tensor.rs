//! Tensors.

use std::ffi::c_void;

use netcl::DType;
use netcl::core::tensor::HostOptions;

use crate::Status;
use crate::boundary::{Failure, Result, elements, free, guarded, handle, put, reference};
use crate::device::Device;

/// A tensor on a device.
pub struct Tensor {
    pub(crate) tensor: netcl::Tensor,
}

/// The dtypes in the order of `netcl_dtype`.
const DTYPES: [DType; 7] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8];

fn dtype(code: i32) -> Result<DType> {
    let found = usize::try_from(code).ok().and_then(|code| DTYPES.get(code)).copied();
    found.ok_or_else(|| Failure::value(format!("{code} is no dtype")))
}

fn nbytes(tensor: &netcl::Tensor) -> usize {
    tensor.size() * tensor.dtype().size()
}

/// Makes a tensor of dense host data in row-major order, which are copied; of zeros where there are none.
///
/// # Safety
/// `device` is a handle, `shape` has `ndim` elements, `data` is NULL or has `nbytes` bytes, `tensor` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_new(
    device: *const Device,
    dtype: i32,
    shape: *const usize,
    ndim: usize,
    data: *const c_void,
    nbytes: usize,
    tensor: *mut *mut Tensor,
) -> Status {
    guarded("netcl_tensor_new", || {
        // SAFETY: the caller's promise.
        let (device, shape) = unsafe { (reference(device, "device")?, elements(shape, ndim, "shape")?) };
        let (queue, dtype) = (&device.handle.queue, self::dtype(dtype)?);
        let made = if data.is_null() {
            netcl::Tensor::from_shape(queue, shape, dtype)?
        } else {
            // SAFETY: the caller's promise.
            let data = unsafe { elements(data.cast::<u8>(), nbytes, "data")? };
            let options = HostOptions::default();
            netcl::core::tensor::Tensor::from_host_bytes(queue, data, dtype, shape.into(), options)?.into()
        };
        // SAFETY: the caller's promise.
        unsafe { put(tensor, "tensor", handle(Tensor { tensor: made })) }
    })
}

/// The dtype of a tensor.
///
/// # Safety
/// `tensor` is a handle, `dtype` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_dtype(tensor: *const Tensor, dtype: *mut i32) -> Status {
    guarded("netcl_tensor_dtype", || {
        // SAFETY: the caller's promise.
        let tensor = &unsafe { reference(tensor, "tensor") }?.tensor;
        let code = DTYPES.iter().position(|known| *known == tensor.dtype());
        // SAFETY: the caller's promise.
        unsafe { put(dtype, "dtype", code.map_or(-1, |code| code as i32)) }
    })
}

/// The number of axes.
///
/// # Safety
/// `tensor` is a handle, `ndim` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_ndim(tensor: *const Tensor, ndim: *mut usize) -> Status {
    // SAFETY: the caller's promise.
    guarded("netcl_tensor_ndim", || unsafe { put(ndim, "ndim", reference(tensor, "tensor")?.tensor.ndim()) })
}

/// The lengths of the axes.
///
/// # Safety
/// `tensor` is a handle, `shape` has `capacity` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_shape(tensor: *const Tensor, shape: *mut usize, capacity: usize) -> Status {
    guarded("netcl_tensor_shape", || {
        // SAFETY: the caller's promise.
        let tensor = &unsafe { reference(tensor, "tensor") }?.tensor;
        if capacity < tensor.ndim() {
            return Err(Failure::value(format!("there is room for {capacity} axes, the tensor has {}", tensor.ndim())));
        }
        for (axis, &length) in tensor.shape().iter().enumerate() {
            // SAFETY: there are as many elements.
            unsafe { put(shape.wrapping_add(axis), "shape", length)? };
        }
        Ok(())
    })
}

/// The number of bytes of all elements.
///
/// # Safety
/// `tensor` is a handle, `nbytes` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_nbytes(tensor: *const Tensor, nbytes: *mut usize) -> Status {
    // SAFETY: the caller's promise.
    guarded("netcl_tensor_nbytes", || unsafe {
        put(nbytes, "nbytes", self::nbytes(&reference(tensor, "tensor")?.tensor))
    })
}

/// Copies all elements to the host, in row-major order, and waits until they are there.
///
/// # Safety
/// `tensor` is a handle, `data` has `nbytes` bytes that is not aliased.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_read(tensor: *const Tensor, data: *mut c_void, nbytes: usize) -> Status {
    guarded("netcl_tensor_read", || {
        // SAFETY: the caller's promise.
        let tensor = &unsafe { reference(tensor, "tensor") }?.tensor;
        let wanted = self::nbytes(tensor);
        if nbytes != wanted {
            return Err(Failure::value(format!("the tensor has {wanted} bytes, the destination {nbytes}")));
        }
        if wanted == 0 {
            return Ok(());
        }
        if data.is_null() {
            return Err(Failure::value("data is NULL"));
        }
        // SAFETY: the caller's promise. Zeros first: a slice of what was never written is not allowed.
        let out = unsafe {
            data.cast::<u8>().write_bytes(0, wanted);
            std::slice::from_raw_parts_mut(data.cast::<u8>(), wanted)
        };
        Ok(tensor.read_bytes(out)?)
    })
}

/// Frees a tensor.
///
/// # Safety
/// `tensor` is a handle that is used no more, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_free(tensor: *mut Tensor) {
    // SAFETY: the caller's promise.
    unsafe { free(tensor) }
}
