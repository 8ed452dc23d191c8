//! Fork safety: a driver's threads and locks do not survive `fork`, so a forked child must not call into it.
//!
//! The library's first use registers a handler that runs in every child made by `fork`. From then on the child's calls
//! return [`ClError::Forked`](super::ClError::Forked) before they touch a lock or the driver, and its drops do nothing: the
//! objects belong to the parent. At its exit the child skips the exit handlers and destructors of the libraries it inherited: a
//! driver's would wait for threads that do not exist here, or for locks that those threads held. A child forked *before* OpenCL
//! was loaded is a process like any other.

use std::sync::atomic::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);
static LOADED: AtomicBool = AtomicBool::new(false);

/// True in a child that was forked after this process had loaded OpenCL.
///
/// ```
/// assert!(!netcl_core::backend::opencl::is_forked_child());
/// ```
#[inline]
pub fn is_forked_child() -> bool {
    // Relaxed suffices: the flag is written once, by the child's only thread, before `fork` returns there.
    FORKED.load(Ordering::Relaxed)
}

/// Says whether there is a library that a child must not call.
pub(super) fn set_loaded(loaded: bool) {
    LOADED.store(loaded, Ordering::Relaxed);
}

/// Makes `fork` mark its children. Called once, before the library is loaded.
#[cfg(unix)]
pub(super) fn register() {
    extern "C" fn in_child() {
        if LOADED.load(Ordering::Relaxed) {
            FORKED.store(true, Ordering::Relaxed);
            leave_without_destructors();
        }
    }
    // SAFETY: the handler only touches atomics and registers an exit handler, which is safe in a child after fork. A
    // failure (ENOMEM) leaves the process as it was: unprotected, but working.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    }
}

/// Puts an exit handler in front of all others, those of drivers included: it writes out what the standard streams of C still
/// hold and ends the process with the code that was asked for.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn leave_without_destructors() {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn on_exit(handler: extern "C" fn(c_int, *mut c_void), data: *mut c_void) -> c_int;
    }
    extern "C" fn leave(code: c_int, _: *mut c_void) {
        // SAFETY: plain calls of the C library, whose stream locks `fork` has reset.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(code);
        }
    }
    // SAFETY: the handler needs no data and never returns. Without memory for it the child leaves like any other process.
    unsafe {
        on_exit(leave, std::ptr::null_mut());
    }
}

/// The C library cannot tell an exit handler the exit code, so the child leaves like any other process.
#[cfg(all(unix, not(all(target_os = "linux", target_env = "gnu"))))]
fn leave_without_destructors() {}

/// Nothing to do where there is no `fork`.
#[cfg(not(unix))]
pub(super) fn register() {}
