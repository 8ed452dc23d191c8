//! A mutex that never hangs in a forked child.
//!
//! A fork copies only the calling thread: a mutex that another thread held at that moment stays locked in the child for
//! ever. An uncontended lock is a plain `try_lock`; only when that fails is the process id compared with the owner's, and a
//! child gets [`Forked`] instead of waiting. (A `pthread_atfork` flag would say the same at the price of `unsafe`.)

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::error::Error;

/// The lock is held, perhaps by a thread that does not exist in this process.
#[derive(Debug)]
pub(super) struct Forked;

impl Forked {
    /// The error for a user who asked for something that needs the lock.
    pub(super) fn error(self, op: &'static str) -> Error {
        Error::State {
            op,
            what: "this process was forked while another thread was inside the memory pool; device memory does not \
                   survive a fork: create devices and tensors after forking, or start workers with spawn"
                .into(),
        }
    }
}

/// Tries before the slow way to wait.
const SPINS: u32 = 64;

/// A mutex that belongs to one process.
pub(super) struct ProcessMutex<T> {
    owner: AtomicU32,
    inner: Mutex<T>,
}

impl<T> ProcessMutex<T> {
    /// A mutex without an owner yet, for statics: see [`ProcessMutex::claim`].
    pub(super) const fn unclaimed(value: T) -> Self {
        ProcessMutex { owner: AtomicU32::new(0), inner: Mutex::new(value) }
    }

    /// A mutex of the process with this id.
    #[inline]
    pub(super) fn owned_by(owner: u32, value: T) -> Self {
        ProcessMutex { owner: AtomicU32::new(owner), inner: Mutex::new(value) }
    }

    /// Makes the calling process the owner unless there is one.
    pub(super) fn claim(&self) {
        // Whoever loses this race belongs to the same process, or finds the parent's id: both are what is wanted.
        let _ = self.owner.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The id of the owning process.
    #[inline]
    pub(super) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Locks, waiting for other threads but never for ones that a fork left behind.
    #[inline]
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, T>, Forked> {
        match self.inner.try_lock() {
            Ok(guard) => Ok(guard),
            // No code of ours panics between two states that belong together, so a poisoned value is a whole one.
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> Result<MutexGuard<'_, T>, Forked> {
        // Holders are gone within nanoseconds; asking for the process id is a system call.
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if let Ok(guard) = self.inner.try_lock() {
                return Ok(guard);
            }
        }
        if self.owner() == std::process::id() {
            Ok(self.inner.lock().unwrap_or_else(PoisonError::into_inner))
        } else {
            Err(Forked)
        }
    }

    /// Makes this process look like a child of the owner's.
    #[cfg(test)]
    pub(super) fn disown(&self) {
        self.owner.fetch_add(1, Ordering::Relaxed);
    }

    /// The value, without locking: there is no other reference.
    #[inline]
    pub(super) fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_held_elsewhere_is_refused_in_another_process_and_waited_for_in_its_own() {
        let foreign = ProcessMutex::owned_by(std::process::id(), 7);
        foreign.disown();
        assert_eq!(*foreign.lock().unwrap(), 7, "a free lock is taken in any process");
        let held = foreign.lock().unwrap();
        assert!(foreign.lock().is_err());
        drop(held);
        assert!(foreign.lock().is_ok());

        let own = ProcessMutex::unclaimed(0);
        own.claim();
        assert_eq!(own.owner(), std::process::id());
        std::thread::scope(|scope| {
            let mut held = own.lock().unwrap();
            let waiter = scope.spawn(|| *own.lock().unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
            *held = 9;
            drop(held);
            assert_eq!(waiter.join().unwrap(), 9);
        });
    }

    #[test]
    fn the_error_says_what_to_do() {
        let text = Forked.error("allocate").to_string();
        assert!(text.starts_with("allocate: this process was forked") && text.contains("spawn"), "{text}");
    }
}
