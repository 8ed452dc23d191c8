//! What a thread records, in which precision, and whether it looks for the first value that is not finite.
//!
//! Python's context managers are objects of Python; what they change belongs to the thread and is kept here, so that one object
//! can be entered by several threads, and twice by one.

use std::cell::RefCell;

use netcl::amp::Autocast;
use netcl::autograd::graph::{
    Anomaly, GradMode, anomaly_enabled, detect_anomaly, enable_grad, grad_enabled, no_grad, suspend_anomaly,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(enter_scope, module)?)?;
    module.add_function(wrap_pyfunction!(leave_scope, module)?)?;
    module.add_function(wrap_pyfunction!(set_grad_enabled, module)?)?;
    module.add_function(wrap_pyfunction!(is_grad_enabled, module)?)?;
    module.add_function(wrap_pyfunction!(set_anomaly_enabled, module)?)
}

/// Restores what was before when it is dropped.
pub(crate) enum Scope {
    Grad(#[expect(dead_code, reason = "held for its drop")] GradMode),
    Anomaly(#[expect(dead_code, reason = "held for its drop")] Anomaly),
    Autocast(#[expect(dead_code, reason = "held for its drop")] Autocast),
}

impl Scope {
    /// Keeps a scope that this thread has entered until it leaves it.
    pub(crate) fn enter(self) {
        SCOPES.with_borrow_mut(|scopes| scopes.push(self));
    }
}

thread_local! {
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };
}

/// Enters ``"no_grad"``, ``"enable_grad"`` or ``"detect_anomaly"`` on this thread.
#[pyfunction]
fn enter_scope(kind: &str) -> PyResult<()> {
    let scope = match kind {
        "no_grad" => Scope::Grad(no_grad()),
        "enable_grad" => Scope::Grad(enable_grad()),
        "detect_anomaly" => Scope::Anomaly(detect_anomaly()),
        other => return Err(PyValueError::new_err(format!("there is no scope {other:?}"))),
    };
    scope.enter();
    Ok(())
}

/// Leaves the scope that this thread entered last.
#[pyfunction]
fn leave_scope() -> PyResult<()> {
    match SCOPES.with_borrow_mut(Vec::pop) {
        Some(_) => Ok(()),
        None => Err(PyRuntimeError::new_err("this thread has entered no scope that it could leave")),
    }
}

/// Whether operations of this thread are recorded from now on.
#[pyfunction]
fn set_grad_enabled(mode: bool) {
    // What would restore the state before is not wanted: whoever calls this restores it by another call.
    std::mem::forget(if mode { enable_grad() } else { no_grad() });
}

/// Whether operations of this thread are recorded.
#[pyfunction]
fn is_grad_enabled() -> bool {
    grad_enabled()
}

/// Whether this thread looks at every result and gradient from now on; what it was before.
#[pyfunction]
fn set_anomaly_enabled(mode: bool) -> bool {
    let before = anomaly_enabled();
    // As above.
    std::mem::forget(if mode { detect_anomaly() } else { suspend_anomaly() });
    before
}
