//! How a process with device work ends: interrupts while a driver call does not return, waits with a time limit, the finish at exit.
//!
//! A thread inside a driver call cannot be told to stop, and a kernel that never ends keeps it there for ever: Python would
//! never get to raise `KeyboardInterrupt`. So every call that may wait is counted, and a program that asks for it
//! ([`install_interrupt_handler`] for a host with handlers of its own such as Python, [`catch_interrupts`] for a program
//! without) is ended when a call that was in flight at the signal is still in flight [`GRACE`] later.
//! A Rust program that asks for nothing keeps its signals as they are.

#[cfg(unix)]
mod signals;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use super::error::{ClError, ClResult};
use super::fork;
use super::stream::{Stream, finish_all};
use crate::env;
use crate::error::Error;

/// How long a driver call may go on after an interrupt.
pub const GRACE: Duration = Duration::from_secs(3);

/// How often [`finish_timeout`] asks whether to go on.
pub const POLL: Duration = Duration::from_millis(10);

/// The variable that keeps all signal handlers as they are when it is `0`.
pub const SIGNALS_VARIABLE: &str = env::SIGNALS.name;

/// More threads than this inside a driver at once: the others are not counted.
const SLOTS: usize = 128;

/// The number of the next call; numbers order calls and signals in time.
static NEXT: AtomicU64 = AtomicU64::new(1);
/// The numbers of the calls in flight; 0 is a free place. A signal handler reads them, hence no lock.
static IN_FLIGHT: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

/// A driver call under way, from its making to its drop.
pub(super) struct InFlight(Option<&'static AtomicU64>);

impl InFlight {
    /// A call that should be short, but may wait where a driver's queue is full. Costs some tens of nanoseconds.
    #[inline]
    pub(super) fn begin() -> InFlight {
        thread_local!(static PLACE: Cell<usize> = Cell::new(first_place()));
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let free = |place: &AtomicU64| place.compare_exchange(0, number, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        // Each thread has its favourite place, so that threads do not compete for one cache line.
        let favourite = PLACE.try_with(Cell::get).unwrap_or(0);
        if free(&IN_FLIGHT[favourite]) {
            return InFlight(Some(&IN_FLIGHT[favourite]));
        }
        InFlight(IN_FLIGHT.iter().find(|place| free(place)))
    }

    /// A call that waits for the device.
    pub(super) fn blocking() -> InFlight {
        #[cfg(unix)]
        signals::arm();
        InFlight::begin()
    }
}

impl Drop for InFlight {
    #[inline]
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, Ordering::Release);
        }
    }
}

fn first_place() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    THREADS.fetch_add(1, Ordering::Relaxed) % SLOTS
}

/// Whether a call that began before `number` is in flight. Safe in a signal handler.
#[cfg(unix)]
fn in_flight_before(number: u64) -> bool {
    IN_FLIGHT.iter().any(|place| (1..number).contains(&place.load(Ordering::SeqCst)))
}

/// Makes a stuck device unable to hold the process after Ctrl+C, in a host that handles signals itself.
///
/// The handlers that are there when a wait begins go on being called first; `SIG_DFL` and `SIG_IGN` stay what they are. In
/// addition, when a driver call that was in flight at the signal is still in flight [`GRACE`] later, or at a second signal, the
/// process ends: SIGINT with exit code 130, SIGTERM by that signal. Calling this again does nothing, and neither does it where
/// there are no signals or where `NETCL_SIGNALS=0`.
pub fn install_interrupt_handler() {
    #[cfg(unix)]
    if env::SIGNALS.switch() {
        signals::install(signals::Default::Leave);
    }
}

/// As [`install_interrupt_handler`], for a program without a handler of its own: where SIGINT has its default meaning, the first
/// Ctrl+C makes [`interrupted`] true, so that the program can end in order, and the second ends it with exit code 130.
pub fn catch_interrupts() {
    #[cfg(unix)]
    if env::SIGNALS.switch() {
        signals::install(signals::Default::Catch);
    }
}

/// As [`install_interrupt_handler`], and puts the handlers back in front of those that were installed since.
pub(crate) fn watch_signals() {
    install_interrupt_handler();
    #[cfg(unix)]
    signals::arm();
}

/// How many signals the handlers have seen.
pub(crate) fn signals_seen() -> u64 {
    #[cfg(unix)]
    return signals::seen();
    #[cfg(not(unix))]
    0
}

/// Whether a SIGINT or a handled SIGTERM has come since the handlers were installed.
///
/// ```
/// assert!(!netcl_core::backend::opencl::shutdown::interrupted());
/// ```
pub fn interrupted() -> bool {
    #[cfg(unix)]
    return signals::interrupted();
    #[cfg(not(unix))]
    false
}

static FIRST_STREAM: OnceLock<fn()> = OnceLock::new();

/// Has a function called once, when the process makes its first stream, so that a host language can install what it needs only
/// if OpenCL is used. The first function given stays; it must not wait for another thread.
pub fn on_first_stream(hook: fn()) {
    let _ = FIRST_STREAM.set(hook);
}

/// A stream was made.
pub(super) fn stream_made() {
    wait_at_exit(After::Build);
    static CALLED: AtomicBool = AtomicBool::new(false);
    if let Some(hook) = FIRST_STREAM.get()
        && !CALLED.swap(true, Ordering::Relaxed)
    {
        hook();
    }
}

/// After what [`wait_at_exit`] is called; each has its share of the room.
#[derive(Clone, Copy)]
pub(super) enum After {
    /// A program was built, or a stream made.
    Build,
    /// A queue's first kernel was launched.
    Launch,
}

/// Has the process wait for its devices before it ends, also where nobody calls [`finish_at_exit`]: a driver that is cleaned up while
/// its kernels are compiled or run crashes (Intel's, every third time, with a program that ends right after a launch).
///
/// What was registered last is called first, and drivers make further objects of their own when they first compile and launch. So
/// this is called again after a build and after a queue's first launch; waiting once more costs nothing.
pub(super) fn wait_at_exit(after: After) {
    #[cfg(unix)]
    {
        static REGISTERED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
        extern "C" fn wait() {
            // A panic has nobody to go to here.
            let _ = std::panic::catch_unwind(finish_at_exit);
        }
        // Together as many as every C library has room for.
        if REGISTERED[after as usize].fetch_add(1, Ordering::Relaxed) < 16 {
            // SAFETY: the handler takes nothing, unwinds never, and is part of this library, which removes it if it is unloaded.
            unsafe { libc::atexit(wait) };
        }
    }
}

/// Waits for everything given to a stream, but at most `timeout`; `true` when it is done.
///
/// The wait happens on another thread. This one calls `poll` every 10 ms, and an error of `poll` ends the wait: the way for a
/// host to react to a signal meanwhile. When the wait ends early the work goes on, and so does the other thread.
///
/// ```
/// use netcl_core::backend::opencl::{Stream, discover, shutdown::finish_timeout};
/// use std::time::Duration;
///
/// for device in discover().map(|found| found.devices()).unwrap_or_default() {
///     let stream = Stream::on_device(&device)?;
///     assert!(finish_timeout(&stream, Duration::from_secs(30), || Ok::<(), netcl_core::Error>(()))?);
/// }
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn finish_timeout<E: From<Error>>(
    stream: &Arc<Stream>,
    timeout: Duration,
    mut poll: impl FnMut() -> Result<(), E>,
) -> Result<bool, E> {
    const CALL: &str = "finish_timeout";
    if fork::is_forked_child() {
        return Err(Error::from(ClError::Forked { call: CALL }).into());
    }
    let start = Instant::now();
    let (sender, receiver) = mpsc::channel::<ClResult<()>>();
    let waited = Arc::clone(stream);
    let worker = std::thread::Builder::new().name("netcl-finish".into()).spawn(move || {
        // Not counted as in flight: the caller stays able to react. Nobody listens any more after a time-out.
        let result = waited.finish_uncounted();
        // Dropped first: the last reference must not go with this thread after the caller went on.
        drop(waited);
        let _ = sender.send(result);
    });
    if let Err(error) = worker {
        let what = format!("no thread to wait on could be started: {error}");
        return Err(Error::State { op: CALL, what }.into());
    }
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        match receiver.recv_timeout(left.min(POLL)) {
            Ok(result) => {
                result.map_err(Error::from)?;
                return Ok(true);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let what = "the thread that waited ended without a result".to_owned();
                return Err(Error::State { op: CALL, what }.into());
            }
        }
        poll()?;
        if start.elapsed() >= timeout {
            return Ok(false);
        }
    }
}

/// Waits for every known queue: what the end of a program calls. In a forked child it does nothing.
///
/// After an interrupt it waits [`GRACE`] at most and then ends the process at once, since a driver's own clean-up would wait
/// for the stuck kernel as well.
pub fn finish_at_exit() {
    if fork::is_forked_child() {
        return;
    }
    if !interrupted() {
        return finish_all();
    }
    let (sender, receiver) = mpsc::channel::<()>();
    let worker = std::thread::Builder::new().name("netcl-exit".into()).spawn(move || {
        finish_all();
        let _ = sender.send(());
    });
    if worker.is_ok() && receiver.recv_timeout(GRACE).is_err() {
        #[cfg(unix)]
        signals::give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_while_they_last() {
        let outer = InFlight::begin();
        let number = outer.0.unwrap().load(Ordering::SeqCst);
        // Other tests of this process may be in flight too, but none with these numbers.
        let inner = InFlight::begin();
        assert!(inner.0.unwrap().load(Ordering::SeqCst) > number);
        let holds = |n| IN_FLIGHT.iter().any(|place| place.load(Ordering::SeqCst) == n);
        assert!(holds(number));
        drop(outer);
        assert!(!holds(number));
        drop(inner);
    }

    #[test]
    fn more_calls_than_places_are_no_error() {
        let calls: Vec<InFlight> = (0..SLOTS + 10).map(|_| InFlight::begin()).collect();
        assert!(calls.iter().any(|call| call.0.is_none()));
        drop(calls);
        assert!(InFlight::begin().0.is_some());
    }
}
