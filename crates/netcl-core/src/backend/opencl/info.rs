//! `clGet...Info`, typed: every query asks for the size first and never trusts a driver's terminating zero.

use std::ffi::c_void;

use bytemuck::Pod;
use opencl_sys::cl_int;

use super::error::{ClError, ClResult, check};

/// A query with everything but (capacity, destination, size returned) filled in.
pub(super) trait Query: Fn(usize, *mut c_void, *mut usize) -> cl_int {}
impl<F: Fn(usize, *mut c_void, *mut usize) -> cl_int> Query for F {}

pub(super) fn bytes(call: &'static str, query: impl Query) -> ClResult<Vec<u8>> {
    let mut size = 0;
    check(call, query(0, std::ptr::null_mut(), &mut size))?;
    let mut value = vec![0_u8; size];
    if size > 0 {
        check(call, query(size, value.as_mut_ptr().cast(), std::ptr::null_mut()))?;
    }
    Ok(value)
}

pub(super) fn string(call: &'static str, query: impl Query) -> ClResult<String> {
    let value = bytes(call, query)?;
    let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
    Ok(String::from_utf8_lossy(&value[..end]).trim().to_owned())
}

pub(super) fn list<T: Pod>(call: &'static str, query: impl Query) -> ClResult<Vec<T>> {
    let value = bytes(call, query)?;
    Ok(value.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
}

pub(super) fn scalar<T: Pod>(call: &'static str, query: impl Query) -> ClResult<T> {
    let mut value = T::zeroed();
    check(call, query(size_of::<T>(), (&raw mut value).cast(), std::ptr::null_mut()))?;
    Ok(value)
}

/// An object pointer out of a query, as an address.
pub(super) fn pointer(call: &'static str, query: impl Query) -> ClResult<*mut c_void> {
    let address: usize = scalar(call, query)?;
    if address == 0 {
        return Err(ClError::usage(call, "the driver returned a null object"));
    }
    Ok(address as *mut c_void)
}
