//! A lock between processes around a driver's compiler, where the driver's own cache folder needs one.
//!
//! PoCL keeps everything it compiles in one folder per user, writes some of those files in place and takes a file that exists for a
//! whole one: of eight processes that start cold, one may load another's half-written program, and fails to build or crashes. The
//! quirk table says which drivers do so (`shared_compiler_folder`). The lock is on that folder itself, so it holds whatever cache
//! folder of ours a process uses; the system releases it when the process dies. A process that cannot lock goes on without.

use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::sync::Once;
use std::time::{Duration, Instant};

use super::device::Device;
use super::fork;
use super::interrupts::InFlight;

/// Whoever waits longer than this is told why.
const TELL: Duration = Duration::from_secs(2);
/// After this the holder is taken for stuck.
const PATIENCE: Duration = Duration::from_secs(120);
/// A free lock is noticed this late at most.
const POLL: Duration = Duration::from_millis(10);

/// The right to compile, until it is dropped. Threads of one process exclude each other too; it is not to be taken twice by one.
pub(super) struct CompilerLock(Option<File>);

impl CompilerLock {
    /// Waits for the right to compile for a device.
    pub(super) fn acquire(device: &Device) -> CompilerLock {
        if !device.quirks().shared_compiler_folder || fork::is_forked_child() {
            return CompilerLock(None);
        }
        CompilerLock(pocl_folder().and_then(|folder| File::open(folder).ok()).and_then(lock))
    }
}

impl Drop for CompilerLock {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // Closing is not enough where a forked child holds the file as well.
            let _ = file.unlock();
        }
    }
}

fn lock(file: File) -> Option<File> {
    let start = Instant::now();
    // Waits for another process, as calls of a driver do: Ctrl+C must work.
    let _call = InFlight::blocking();
    loop {
        match file.try_lock() {
            Ok(()) => return Some(file),
            Err(TryLockError::Error(_)) => return None,
            Err(TryLockError::WouldBlock) if start.elapsed() > PATIENCE => return None,
            Err(TryLockError::WouldBlock) => {}
        }
        if start.elapsed() > TELL {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| eprintln!("netcl: waiting for another process that compiles kernels"));
        }
        std::thread::sleep(POLL);
    }
}

/// Where PoCL keeps what it compiled; it makes the folder when it is loaded.
fn pocl_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let below = |base: Option<PathBuf>, rest: &str| base.map(|base| base.join(rest));
    variable("POCL_CACHE_DIR")
        .or_else(|| below(variable("XDG_CACHE_HOME"), "pocl/kcache"))
        .or_else(|| below(variable("HOME"), ".cache/pocl/kcache"))
}
