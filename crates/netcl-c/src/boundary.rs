//! What passes between C and Rust: errors as codes with a text, pointers as references, and no panics.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use netcl::ErrorKind;

use crate::{BUILD, INDEX, INTERNAL, INTERRUPTED, IO, MEMORY, NOT_FOUND, OK, RUNTIME, Status, TYPE, VALUE};

/// An error on its way to C.
pub(crate) struct Failure {
    status: Status,
    text: String,
}

impl Failure {
    pub(crate) fn value(text: impl Into<String>) -> Failure {
        Failure { status: VALUE, text: text.into() }
    }
}

impl From<netcl::Error> for Failure {
    fn from(error: netcl::Error) -> Failure {
        let status = match error.kind() {
            ErrorKind::Value => VALUE,
            ErrorKind::Type => TYPE,
            ErrorKind::Index => INDEX,
            ErrorKind::Memory => MEMORY,
            ErrorKind::NotFound => NOT_FOUND,
            ErrorKind::Io => IO,
            ErrorKind::Build => BUILD,
            ErrorKind::Interrupted => INTERRUPTED,
            ErrorKind::Runtime => RUNTIME,
        };
        Failure { status, text: error.to_string() }
    }
}

macro_rules! by_way_of_netcl {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                netcl::Error::from(error).into()
            }
        }
    )*};
}

by_way_of_netcl!(netcl::core::Error, netcl::io::Error, netcl::onnx::Error);

pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The text of this thread's last error; valid until its next one.
pub(crate) fn last_error() -> *const c_char {
    // At the end of a thread the text may be gone.
    LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |text| text.as_ptr())).unwrap_or(c"".as_ptr())
}

fn remember(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // Without a place for the text the code still says what happened.
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut place| *place = text));
}

/// Runs the body of a function of the interface.
pub(crate) fn guarded(op: &str, body: impl FnOnce() -> Result) -> Status {
    // What a panic leaves behind is dropped, or behind a lock that its next user finds poisoned.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => OK,
        Ok(Err(failure)) => {
            remember(&format!("{op}: {}", failure.text));
            failure.status
        }
        Err(panic) => {
            remember(&format!("{op}: internal error, please report it: {}", said(&*panic)));
            // A payload may panic when it is dropped.
            std::mem::forget(panic);
            INTERNAL
        }
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

/// What a handle points to.
///
/// # Safety
/// The pointer is null, or points to a live value that nobody changes meanwhile.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::value(format!("{name} is NULL")))
}

/// Where a result belongs.
///
/// # Safety
/// The pointer is null, or points to memory for a `T` that is not aliased.
pub(crate) unsafe fn put<T>(pointer: *mut T, name: &str, value: T) -> Result {
    if pointer.is_null() {
        return Err(Failure::value(format!("{name} is NULL: the result has no place to go")));
    }
    // SAFETY: the caller's promise; what was there has no destructor, or the caller's own.
    unsafe { pointer.write(value) };
    Ok(())
}

/// The elements of an array; a null pointer has none.
///
/// # Safety
/// The pointer points to `length` elements that nobody changes meanwhile, or the length is 0.
pub(crate) unsafe fn elements<'a, T>(pointer: *const T, length: usize, name: &str) -> Result<&'a [T]> {
    if length == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Failure::value(format!("{name} is NULL, but {length} elements are needed")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// A text.
///
/// # Safety
/// The pointer is null, or points to a text that ends with a zero byte.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(Failure::value(format!("{name} is NULL")));
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| Failure::value(format!("{name} is not UTF-8")))
}

/// Frees what a handle points to.
///
/// # Safety
/// The pointer is null, or a handle of this library that is used no more.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if handle.is_null() {
        return;
    }
    // SAFETY: handles are boxes, and this one was given back.
    let owned = unsafe { Box::from_raw(handle) };
    guarded("free", move || {
        drop(owned);
        Ok(())
    });
}

/// A handle for a value.
pub(crate) fn handle<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}
