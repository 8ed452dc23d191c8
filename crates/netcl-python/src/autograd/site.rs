//! Which line of Python asked for an operation: known in anomaly mode and under a profile only, because looking costs more than a small
//! operation.

use std::cell::RefCell;
use std::sync::Arc;

use netcl::core::observe::wants_places;
use pyo3::marker::Ungil;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

thread_local! {
    /// The line whose operation this thread's walk backwards is at.
    static CURRENT: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
    /// The line that called what runs detached from the interpreter.
    static HELD: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Where the operation was called that a walk of this thread was at last.
pub(crate) fn current() -> Option<Arc<str>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Before a walk.
pub(super) fn forget() {
    CURRENT.set(None);
}

/// Lets a walk that comes to a result's operation know who called it. All operations that one call records follow each other in a
/// walk, the result's first, so that the parts of a compound one are found as well.
pub(crate) fn note(py: Python<'_>, result: &netcl::Tensor) -> PyResult<()> {
    if result.is_leaf() {
        return Ok(());
    }
    if let Some(site) = caller(py)? {
        let hook = move |_: &netcl::Tensor| {
            CURRENT.set(Some(site.clone()));
            Ok(None)
        };
        // The result needs a gradient, so that there is nothing to refuse.
        let _ = result.register_hook(hook);
    }
    Ok(())
}

/// The line that asked for what this thread launches, for observers.
///
/// A thread that is detached from the interpreter does not attach itself: it may hold locks that another one wants with the interpreter in
/// its hands. What launches while detached notes its line before ([`detach`]).
pub(crate) fn observed() -> Option<Arc<str>> {
    if is_attached() {
        return Python::attach(|py| caller(py).ok().flatten());
    }
    HELD.with_borrow(Clone::clone)
}

#[cfg(unix)]
fn is_attached() -> bool {
    unsafe extern "C" {
        // Of every CPython, although not of the headers of the stable interface.
        fn PyGILState_Check() -> std::ffi::c_int;
    }
    // SAFETY: it takes nothing and may be called by any thread.
    unsafe { PyGILState_Check() == 1 }
}

#[cfg(not(unix))]
fn is_attached() -> bool {
    false
}

/// A line that is known until this is dropped.
struct Held(Option<Arc<str>>);

/// Detaches from the interpreter for work that launches: its line is known to those who ask for lines.
pub(crate) fn detach<T: Ungil>(py: Python<'_>, run: impl FnOnce() -> T + Ungil) -> T {
    let _held = wants_places().then(|| Held(HELD.replace(caller(py).ok().flatten())));
    py.detach(run)
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(self.0.take());
    }
}

/// `file:line` of the innermost frame outside of the package.
fn caller(py: Python<'_>) -> PyResult<Option<Arc<str>>> {
    static PACKAGE: PyOnceLock<String> = PyOnceLock::new();
    let package = PACKAGE.get_or_try_init(py, || -> PyResult<String> {
        let paths: Vec<String> = py.import("netcl")?.getattr("__path__")?.extract()?;
        Ok(paths.into_iter().next().unwrap_or_default())
    })?;
    let mut frame = py.import("sys")?.call_method0("_getframe")?;
    while !frame.is_none() {
        let file = frame.getattr("f_code")?.getattr("co_filename")?.cast_into::<PyString>()?;
        let file = file.to_string_lossy();
        if !file.starts_with(package.as_str()) {
            let line: usize = frame.getattr("f_lineno")?.extract()?;
            return Ok(Some(format!("{file}:{line}").into()));
        }
        frame = frame.getattr("f_back")?;
    }
    Ok(None)
}
