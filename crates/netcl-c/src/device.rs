//! Devices.

use std::ffi::{CString, c_char};

use netcl::core::device::{DeviceHandle, manager};

use crate::Status;
use crate::boundary::{Failure, Result, free, guarded, handle, put, reference, text};

/// A device that is ready to compute.
pub struct Device {
    pub(crate) handle: DeviceHandle,
    name: CString,
}

impl Device {
    fn new(handle: DeviceHandle) -> Device {
        let name = CString::new(handle.device_name.replace('\0', " ")).unwrap_or_default();
        Device { handle, name }
    }
}

/// The devices of all OpenCL platforms, and the native CPU last.
fn count() -> Result<usize> {
    Ok(manager().discover()?.len() + 1)
}

/// How many devices there are.
///
/// # Safety
/// `count` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_device_count(count: *mut usize) -> Status {
    // SAFETY: the caller's promise.
    guarded("netcl_device_count", || unsafe { put(count, "count", self::count()?) })
}

/// Opens a device by its place in the list.
///
/// # Safety
/// `device` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_device_at(index: usize, device: *mut *mut Device) -> Status {
    guarded("netcl_device_at", || {
        let found = manager().discover()?;
        let opened = match found.get(index) {
            Some(device) => manager().handle(device)?,
            None if index == found.len() => manager().cpu(),
            None => return Err(Failure::value(format!("there is no device {index}; there are {}", found.len() + 1))),
        };
        // SAFETY: the caller's promise.
        unsafe { put(device, "device", handle(Device::new(opened))) }
    })
}

/// Opens a device by a selector: "auto", "gpu", "cpu", a number or a part of its name.
///
/// # Safety
/// `selector` is a text, `device` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_device_open(selector: *const c_char, device: *mut *mut Device) -> Status {
    guarded("netcl_device_open", || {
        // SAFETY: the caller's promise.
        let opened = manager().get(unsafe { text(selector, "selector") }?)?;
        // SAFETY: the caller's promise.
        unsafe { put(device, "device", handle(Device::new(opened))) }
    })
}

/// The name of a device; it lives as long as the handle.
///
/// # Safety
/// `device` is a handle or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_device_name(device: *const Device) -> *const c_char {
    // SAFETY: the caller's promise.
    match unsafe { reference(device, "device") } {
        Ok(device) => device.name.as_ptr(),
        Err(_) => c"".as_ptr(),
    }
}

/// Gives a device back.
///
/// # Safety
/// `device` is a handle that is used no more, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_device_free(device: *mut Device) {
    // SAFETY: the caller's promise.
    unsafe { free(device) }
}
