//! Fork safety: a driver's threads and locks do not survive `fork`, so a forked child must not call into it.
//!
//! The library's first use registers a handler that runs in every child made by `fork`. From then on the child's calls
//! return [`ClError::Forked`](super::ClError::Forked) before they touch a lock or the driver, and its drops do nothing: the
//! objects belong to the parent. A child forked *before* OpenCL was loaded is a process like any other.

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
        }
    }
    // SAFETY: the handler only touches atomics, which is safe in the restricted world of a child after fork. A
    // failure (ENOMEM) leaves the process as it was: unprotected, but working.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    }
}

/// Nothing to do where there is no `fork`.
#[cfg(not(unix))]
pub(super) fn register() {}
