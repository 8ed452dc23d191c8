//! The end of a process with device work: every queue is waited for.

#[cfg(unix)]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, mpsc};

use super::fork;
#[cfg(unix)]
use super::interrupts;
use super::interrupts::{GRACE, interrupted};
use super::queue::Queue;

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
#[cfg(unix)]
pub(super) fn wait_at_exit(after: After) {
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

/// Elsewhere programs call [`finish_at_exit`] themselves.
#[cfg(not(unix))]
pub(super) fn wait_at_exit(_after: After) {}

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
        interrupts::give_up();
    }
}

/// Waits for every queue; does nothing in a forked child. The end of a program calls [`finish_at_exit`], which does not wait for
/// ever after an interrupt.
pub fn finish_all() {
    if fork::is_forked_child() {
        return;
    }
    for queue in Queue::all() {
        let _ = queue.finish();
    }
}
