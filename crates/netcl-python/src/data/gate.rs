//! The way of worker threads into Python code: who is inside, how much processor time they had there, and how they are made to
//! leave when the interpreter ends.
//!
//! CPython ends a thread that wants its lock back during finalization by unwinding it, which no Rust frame survives. So the lock is
//! not given to workers any more once [`finish`] has run, and it waits for those inside; Python code that does not return
//! within a moment gets a `SystemExit`, as by `PyThreadState_SetAsyncExc`.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use netcl::data::{Error, Result};
use pyo3::exceptions::PySystemExit;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::{PyTypeInfo, ffi};

use super::carry;

/// How long Python code may go on when the interpreter ends, before it gets a `SystemExit`.
const GRACE: Duration = Duration::from_millis(100);
/// How long the interpreter's end waits for code that heeds no exception, such as a read from a pipe.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether the interpreter is ending. Set and read with its lock held.
static ENDING: AtomicBool = AtomicBool::new(false);
static GATES: Mutex<Vec<Weak<Gate>>> = Mutex::new(Vec::new());

/// The gate of one epoch's workers.
#[derive(Default)]
pub(super) struct Gate {
    /// Python's numbers of the threads that are inside. Changed with the interpreter's lock held.
    inside: Mutex<Vec<u64>>,
    /// Nanoseconds of processor time that workers spent inside.
    busy: AtomicU64,
    /// Nanoseconds that workers waited to come in.
    waited: AtomicU64,
    /// Whether the threads are workers of ours; not where batches are made by the thread that asks for them.
    workers: bool,
    /// The process whose threads they are; a forked child has none of them.
    process: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A worker's thread state in the interpreter, kept from its first Python code to its end. Without it every sample would make and
/// delete one, for more than a microsecond and two system calls, and `threading.local` would forget its content.
#[derive(Default)]
struct Kept(Cell<bool>);

thread_local! {
    static KEPT: Kept = Kept::default();
}

impl Kept {
    /// Called while attached.
    fn keep(&self) {
        if !self.0.replace(true) {
            // SAFETY: the thread is attached. The count of the state stays above 0 until `drop` releases it.
            unsafe { ffi::PyGILState_Ensure() };
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.0.get() {
            Python::try_attach(|_| {
                if !ENDING.load(Ordering::Relaxed) {
                    // SAFETY: undoes `keep`, which found the thread attached; it is again.
                    unsafe { ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_LOCKED) };
                }
            });
        }
    }
}

/// A function of the standard library that takes nothing.
struct Clock(PyOnceLock<Py<PyAny>>);

impl Clock {
    fn call<'py, T: FromPyObjectOwned<'py>>(&self, py: Python<'py>, module: &str, name: &str) -> PyResult<T> {
        let function = match self.0.get(py) {
            Some(function) => function,
            None => {
                let function = py.import(module)?.getattr(name)?.unbind();
                self.0.get_or_init(py, || function)
            }
        };
        function.bind(py).call0()?.extract().map_err(Into::into)
    }
}

static IDENT: Clock = Clock(PyOnceLock::new());
static TIME: Clock = Clock(PyOnceLock::new());

impl Gate {
    pub(super) fn new(workers: bool) -> Arc<Gate> {
        let gate = Arc::new(Gate { workers, process: std::process::id(), ..Gate::default() });
        let mut gates = lock(&GATES);
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(Arc::downgrade(&gate));
        gate
    }

    /// Runs Python code; an exception becomes an error of netcl-data.
    pub(super) fn pass<R>(&self, code: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R> {
        let ended = || Err(Error::Argument { what: "DataLoader: the interpreter is ending".to_owned() });
        let asked = Instant::now();
        let passed = Python::try_attach(|py| {
            if !self.workers {
                return code(py).map_err(carry);
            }
            if ENDING.load(Ordering::Relaxed) {
                return ended();
            }
            self.waited.fetch_add(asked.elapsed().as_nanos() as u64, Ordering::Relaxed);
            KEPT.with(Kept::keep);
            let measured = || -> PyResult<R> {
                let thread: u64 = IDENT.call(py, "_thread", "get_ident")?;
                let started: u64 = TIME.call(py, "time", "thread_time_ns")?;
                lock(&self.inside).push(thread);
                let result = code(py);
                let mut inside = lock(&self.inside);
                if let Some(at) = inside.iter().position(|other| *other == thread) {
                    inside.swap_remove(at);
                }
                drop(inside);
                let now: u64 = TIME.call(py, "time", "thread_time_ns")?;
                self.busy.fetch_add(now.saturating_sub(started), Ordering::Relaxed);
                result
            };
            measured().map_err(carry)
        });
        passed.unwrap_or_else(ended)
    }

    /// The processor time that workers spent in Python code, all together.
    pub(super) fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy.load(Ordering::Relaxed))
    }

    /// How long workers waited for the interpreter's lock, all together.
    pub(super) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.process != std::process::id() || lock(&self.inside).is_empty()
    }

    /// Raises `SystemExit` in the threads that are inside.
    pub(super) fn clear(&self, py: Python<'_>) {
        for thread in lock(&self.inside).iter() {
            // SAFETY: the interpreter's lock is held; the number of a thread that has gone does nothing, and none goes through the
            // gate without this lock.
            unsafe { ffi::PyThreadState_SetAsyncExc(*thread as _, PySystemExit::type_object_raw(py).cast()) };
        }
    }
}

/// Lets no worker into Python code any more and waits for those inside. ``netcl.data`` registers it with ``atexit``.
#[pyfunction]
pub(super) fn finish(py: Python<'_>) {
    ENDING.store(true, Ordering::Relaxed);
    let started = Instant::now();
    let gates: Vec<Arc<Gate>> = lock(&GATES).iter().filter_map(Weak::upgrade).collect();
    while !gates.iter().all(|gate| gate.is_empty()) && started.elapsed() < PATIENCE {
        if started.elapsed() > GRACE {
            gates.iter().for_each(|gate| gate.clear(py));
        }
        py.detach(|| std::thread::sleep(Duration::from_millis(2)));
    }
}
