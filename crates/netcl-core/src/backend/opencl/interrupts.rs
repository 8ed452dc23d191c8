//! Interrupts while a driver call does not return.
//!
//! A thread inside a driver call cannot be told to stop, and a kernel that never ends keeps it there for ever: Python would
//! never get to raise `KeyboardInterrupt`. So every call that may wait is counted, and a program that asks for it
//! ([`install_interrupt_handler`] for a host with handlers of its own such as Python, [`catch_interrupts`] for a program
//! without) is ended when a call that was in flight at the signal is still in flight [`GRACE`] later.
//! A Rust program that asks for nothing keeps its signals as they are.

#[cfg(unix)]
mod signals;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

#[cfg(unix)]
use crate::env;
#[cfg(unix)]
pub(super) use signals::give_up;

/// How long a driver call may go on after an interrupt.
pub const GRACE: Duration = Duration::from_secs(3);

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
