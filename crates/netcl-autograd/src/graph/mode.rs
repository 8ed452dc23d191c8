//! Whether this thread records, and whether it looks for the first NaN.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static RECORDING: Cell<bool> = const { Cell::new(true) };
    static ANOMALY: Cell<bool> = const { Cell::new(false) };
    static RECORDED: Cell<u64> = const { Cell::new(0) };
}

/// Whether ops of this thread are recorded.
pub fn grad_enabled() -> bool {
    RECORDING.get()
}

/// How many ops this thread has recorded.
pub(super) fn recorded() -> u64 {
    RECORDED.get()
}

pub(super) fn count_recorded() {
    RECORDED.set(RECORDED.get() + 1);
}

/// While this lives, recording is on or off; dropping it restores what was before.
#[must_use = "recording changes back when this is dropped"]
pub struct GradMode {
    before: bool,
    /// The mode belongs to the thread.
    _thread: PhantomData<*const ()>,
}

/// Turns recording off until the returned scope is dropped.
///
/// ```
/// use netcl_autograd::graph::{grad_enabled, no_grad};
///
/// {
///     let _scope = no_grad();
///     assert!(!grad_enabled());
/// }
/// assert!(grad_enabled());
/// ```
pub fn no_grad() -> GradMode {
    GradMode { before: RECORDING.replace(false), _thread: PhantomData }
}

/// Turns recording on until the returned scope is dropped, also inside [`no_grad`].
pub fn enable_grad() -> GradMode {
    GradMode { before: RECORDING.replace(true), _thread: PhantomData }
}

impl Drop for GradMode {
    fn drop(&mut self) {
        RECORDING.set(self.before);
    }
}

/// Whether every result and gradient of this thread is checked for NaN and infinity.
pub fn anomaly_enabled() -> bool {
    ANOMALY.get()
}

/// While this lives, anomaly mode is on; dropping it restores what was before.
#[must_use = "anomaly mode ends when this is dropped"]
pub struct Anomaly {
    before: bool,
    _thread: PhantomData<*const ()>,
}

/// Looks at every result and gradient until the returned scope is dropped: the first one that is not finite is an error that
/// names the op. Slow, for finding bugs.
pub fn detect_anomaly() -> Anomaly {
    Anomaly { before: ANOMALY.replace(true), _thread: PhantomData }
}

/// Leaves results alone until the returned scope is dropped.
pub fn suspend_anomaly() -> Anomaly {
    Anomaly { before: ANOMALY.replace(false), _thread: PhantomData }
}

impl Drop for Anomaly {
    fn drop(&mut self) {
        ANOMALY.set(self.before);
    }
}
