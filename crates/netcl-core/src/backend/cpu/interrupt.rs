//! Stopping an operation of the native CPU halfway, for a host whose user pressed Ctrl+C.
//!
//! A host (Python) says what to ask with [`on_interrupt`]; without one nothing here does anything. The thread that called an
//! operation looks at the number of signals between tiles, and asks the host when it has changed: only the host knows whether
//! its handler wants the operation to end. Then all threads of that operation leave at their next tile, and it returns
//! [`Error::Interrupted`](crate::Error::Interrupted). Operations of other threads go on.
//!
//! Only launches whose results nobody has seen can be stopped: a tensor that is written in place is never left half-written.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::backend::opencl::interrupts;

/// How often the handlers are looked after: whoever installs one later replaces ours without knowing of it.
const ARM: Duration = Duration::from_millis(20);

static HOST: OnceLock<fn() -> bool> = OnceLock::new();

thread_local! {
    /// Whether the launch that this thread runs may be stopped.
    static ALLOWED: Cell<bool> = const { Cell::new(false) };
    /// The job that this thread works on, if it may be stopped.
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
    /// The number of signals that this thread knows of.
    static SEEN: Cell<u64> = const { Cell::new(0) };
    static ARMED: Cell<Option<Instant>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Current {
    stop: NonNull<AtomicBool>,
    /// Whether this thread called the operation, and so asks the host.
    asks: bool,
}

/// What unwinds out of an operation that is stopped. Not a panic: no hook hears of it.
pub(super) struct Stopped;

/// Has a function asked, on the thread that called an operation of the native CPU, whether to stop after a signal. It is called in
/// the middle of the operation, whose tensors are locked. The first function given stays.
///
/// From then on operations that are watched put the handlers of
/// [`install_interrupt_handler`](crate::backend::opencl::shutdown::install_interrupt_handler) in place.
pub fn on_interrupt(stop: fn() -> bool) {
    let _ = HOST.set(stop);
}

/// Asks the host whether what waits on this thread is to stop. For waits that hold no tensor's lock: the host runs its signal handlers.
pub fn wants_stop() -> bool {
    HOST.get().is_some_and(|stop| stop())
}

/// Runs a launch's native function, which may be stopped if its results are new: nobody has seen them.
pub(super) fn allowed<T>(results_are_new: impl FnOnce() -> bool, run: impl FnOnce() -> T) -> T {
    if HOST.get().is_none() || !results_are_new() {
        return run();
    }
    let before = ALLOWED.replace(true);
    let result = run();
    ALLOWED.set(before);
    result
}

/// Whether a job that begins now on this thread may be stopped; if so, signals are watched.
pub(super) fn watched() -> bool {
    if !ALLOWED.get() {
        return false;
    }
    let now = Instant::now();
    if ARMED.get().is_none_or(|armed| now - armed > ARM) {
        ARMED.set(Some(now));
        interrupts::watch_signals();
    }
    true
}

/// Works on a job that `stop` ends, until it is dropped. A job inside another one ends with that.
pub(super) struct Watched(Option<Current>);

impl Watched {
    pub(super) fn new(stop: &AtomicBool, asks: bool) -> Watched {
        let before = CURRENT.get();
        CURRENT.set(before.or(Some(Current { stop: NonNull::from(stop), asks })));
        Watched(before)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Called between tiles of an operation: leaves it, by unwinding to the pool, if it is to stop. Costs a few nanoseconds.
#[inline]
pub fn checkpoint() {
    if let Some(current) = CURRENT.get() {
        look(current);
    }
}

fn look(current: Current) {
    // SAFETY: the flag belongs to the job that this thread works on: `Watched` is dropped before the job is.
    let stop = unsafe { current.stop.as_ref() };
    let signals = interrupts::signals_seen();
    if current.asks && SEEN.replace(signals) != signals && ask() {
        stop.store(true, Ordering::Relaxed);
    }
    if stop.load(Ordering::Relaxed) {
        resume_unwind(Box::new(Stopped));
    }
}

/// Asks the host. Its handlers may compute something themselves, which has nothing to do with the operation that waits here.
#[cold]
fn ask() -> bool {
    let (current, allowed) = (CURRENT.take(), ALLOWED.replace(false));
    let stop = wants_stop();
    CURRENT.set(current);
    ALLOWED.set(allowed);
    stop
}
