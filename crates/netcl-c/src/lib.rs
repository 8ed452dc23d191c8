//! The C interface: devices, tensors, and models from files, as `include/netcl.h` declares them.
//!
//! Handles are boxes whose owner is the caller. No panic leaves a function: it becomes `NETCL_INTERNAL`. The text of the last error
//! belongs to the thread that met it.

mod boundary;
pub mod device;
pub mod model;
pub mod tensor;

use std::ffi::{CStr, c_char};

/// What a function returns; `NETCL_OK` is 0.
pub type Status = i32;

pub(crate) const OK: Status = 0;
pub(crate) const VALUE: Status = 1;
pub(crate) const TYPE: Status = 2;
pub(crate) const INDEX: Status = 3;
pub(crate) const MEMORY: Status = 4;
pub(crate) const NOT_FOUND: Status = 5;
pub(crate) const IO: Status = 6;
pub(crate) const BUILD: Status = 7;
pub(crate) const INTERRUPTED: Status = 8;
pub(crate) const RUNTIME: Status = 9;
pub(crate) const INTERNAL: Status = 10;

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    CStr::from_bytes_with_nul(VERSION.as_bytes()).unwrap_or_default().as_ptr()
}

/// What the last function of this thread that failed had to say; empty before that.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_last_error() -> *const c_char {
    boundary::last_error()
}
