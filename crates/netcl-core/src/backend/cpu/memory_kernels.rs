//! The checked door between launches and the raw memory loops of [`super::copy`].

use std::sync::PoisonError;

use super::{CpuKernel, copy};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::shape::{Layout, Shape};
use crate::storage::Storage;
use crate::with_element;

/// Sets the elements of argument 0 that a layout names.
pub(crate) fn fill(layout: Layout, dtype: DType, value: f64) -> CpuKernel {
    let (pattern, width) = with_element!(dtype, T => {
        let element = T::from_f64(value);
        let mut bytes = [0u8; 8];
        let raw = bytemuck::bytes_of(&element);
        bytes[..raw.len()].copy_from_slice(raw);
        (bytes, raw.len())
    });
    let one = Layout::contiguous(Shape::scalar());
    CpuKernel::new(move |args| {
        let (ptr, nbytes) = args.memory(0)?;
        check_inside(&layout, width, nbytes)?;
        // SAFETY: the layout lies inside the argument's memory, which the launch declared as written.
        unsafe {
            if layout.is_contiguous() {
                let start = ptr.add(layout.offset() * width);
                copy::fill(start, layout.shape().size() * width, &pattern[..width])
            } else {
                let source = one.expand("fill", layout.shape())?;
                copy::copy_strided(pattern.as_ptr(), &source, ptr, &layout, width)
            }
        }
    })
}

/// Copies argument 0 to argument 1, casting where the dtypes differ. The two lie in different storages.
pub(crate) fn copy((src, src_dtype): (Layout, DType), (dst, dst_dtype): (Layout, DType)) -> CpuKernel {
    CpuKernel::new(move |args| {
        let (from, from_bytes) = args.memory(0)?;
        let (to, to_bytes) = args.memory(1)?;
        check_inside(&src, src_dtype.size(), from_bytes)?;
        check_inside(&dst, dst_dtype.size(), to_bytes)?;
        // SAFETY: both layouts lie inside their memory, which does not overlap, and have the same shape.
        unsafe {
            if src_dtype == dst_dtype {
                copy::copy_strided(from, &src, to, &dst, src_dtype.size())
            } else {
                copy::cast_strided(from, &src, src_dtype, to, &dst, dst_dtype)
            }
        }
    })
}

/// Copies dense host data to the start of a storage, casting where the dtypes differ.
pub(crate) fn upload(storage: &Storage, data: &[u8], data_dtype: DType, dtype: DType) -> Result<()> {
    let n = data.len() / data_dtype.size();
    let (ptr, nbytes) = storage.cpu_memory()?;
    check_inside(&Layout::contiguous(Shape::from([n])), dtype.size(), nbytes)?;
    let _guard = storage.guard().write().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: `n` elements fit both the data and the storage, and the guard keeps every kernel away from the storage.
    unsafe {
        if data_dtype == dtype {
            copy::copy(data.as_ptr(), ptr, data.len())?;
        } else {
            copy::cast(data.as_ptr(), data_dtype, ptr, dtype, n)?;
        }
    }
    storage.raise_version();
    Ok(())
}

/// Copies bytes of a storage to the host.
pub(crate) fn download(storage: &Storage, offset: usize, out: &mut [u8]) -> Result<()> {
    let (ptr, nbytes) = storage.cpu_memory()?;
    if offset.checked_add(out.len()).is_none_or(|end| end > nbytes) {
        let what = format!("{} bytes at {offset} do not lie in a storage of {nbytes}", out.len());
        return Err(Error::argument("to_host", what));
    }
    let _guard = storage.guard().read().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the range was just checked, and the guard keeps writers away.
    unsafe { copy::copy(ptr.add(offset), out.as_mut_ptr(), out.len()) }
}

fn check_inside(layout: &Layout, width: usize, nbytes: usize) -> Result<()> {
    if layout.end() * width <= nbytes {
        return Ok(());
    }
    let why = format!("it ends {} bytes into a storage of {nbytes}", layout.end() * width);
    Err(Error::Shape { op: "launch", shape: layout.shape().clone(), why })
}
