//! Ctrl+C and the interpreter's end: what is put in place when a process makes its first OpenCL stream or runs its first longer
//! operation on the native CPU, and not before.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use netcl::core::backend::cpu::interrupt;
use netcl::core::backend::opencl::shutdown;
use pyo3::ffi;
use pyo3::prelude::*;

/// Waits for every queue; after an interrupt for three seconds at most. ``netcl.core.backend._shutdown`` registers it with
/// ``atexit``.
#[pyfunction]
fn finish_at_exit(py: Python<'_>) {
    py.detach(shutdown::finish_at_exit);
}

/// Adds the functions and asks to be told of the first stream.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    shutdown::on_first_stream(first_stream);
    interrupt::on_interrupt(handle_signals);
    module.add_function(wrap_pyfunction!(finish_at_exit, module)?)
}

thread_local! {
    /// What a signal handler raised in the middle of an operation.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Has the interpreter call its signal handlers, on the main thread; an exception of theirs stops the operation under way.
fn handle_signals() -> bool {
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let stop = raised.is_some();
    RAISED.set(raised);
    stop
}

/// The exception that stopped the last operation of this thread.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// Called by whichever thread makes the first stream, with or without the interpreter's lock, perhaps while it holds locks of
/// ours that others wait for: the Python side must wait for the main thread's next step instead.
fn first_stream() {
    shutdown::install_interrupt_handler();
    // SAFETY: the function may be called from any thread in any state, and the callback lives as long as the process. When its
    // queue is full the hook is missing, and the driver is left to end its work itself.
    unsafe { ffi::Py_AddPendingCall(Some(install), std::ptr::null_mut()) };
}

extern "C" fn install(_argument: *mut c_void) -> c_int {
    Python::attach(|py| {
        let installed = py.import("netcl.core.backend._shutdown").and_then(|hooks| hooks.call_method0("install"));
        installed.map_or_else(
            |error| {
                error.restore(py);
                -1
            },
            |_| 0,
        )
    })
}
