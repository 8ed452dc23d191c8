//! A lock that a forked child never finds held by a thread that no longer exists.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A short-held lock whose word names its owner.
///
/// `std::sync::Mutex` cannot be released by a fork handler, so a child forked while another thread held it would wait for
/// ever. Here [`ForkLock::hold`] runs before the fork and [`ForkLock::release`] after it, in parent and child; both do
/// nothing when there is nothing to do, so registering the handlers twice is harmless.
pub(super) struct ForkLock<T> {
    owner: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, and `owner` lets one thread at a time have a guard.
unsafe impl<T: Send> Sync for ForkLock<T> {}

/// A non-zero number that no two living threads share; the thread that survives a fork keeps its own.
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place) as usize)
}

impl<T> ForkLock<T> {
    pub(super) const fn new(value: T) -> Self {
        ForkLock { owner: AtomicUsize::new(0), value: UnsafeCell::new(value) }
    }

    fn acquire(&self, me: usize) {
        let mut tries = 0u32;
        while self.owner.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Held for tens of nanoseconds: spin first, and give the core away only if the owner was descheduled.
            tries += 1;
            if tries.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Waits for the lock. The caller must not lock again, panic or fork while it holds the guard.
    pub(super) fn lock(&self) -> ForkGuard<'_, T> {
        self.acquire(this_thread());
        ForkGuard { lock: self }
    }

    /// Takes the lock before a fork, unless this thread holds it already.
    #[cfg(unix)]
    pub(super) fn hold(&self) {
        let me = this_thread();
        if self.owner.load(Ordering::Relaxed) != me {
            self.acquire(me);
        }
    }

    /// Gives back what [`ForkLock::hold`] took; does nothing if this thread does not hold the lock.
    #[cfg(unix)]
    pub(super) fn release(&self) {
        if self.owner.load(Ordering::Relaxed) == this_thread() {
            self.owner.store(0, Ordering::Release);
        }
    }
}

/// Access to the value of a [`ForkLock`].
pub(super) struct ForkGuard<'a, T> {
    lock: &'a ForkLock<T>,
}

impl<T> Deref for ForkGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard's thread owns the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for ForkGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard's thread owns the lock, and the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for ForkGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.owner.store(0, Ordering::Release);
    }
}
