//! Signals: those that the launcher gets and passes on, and those that end ranks.

#[cfg(unix)]
pub(super) use unix::*;

#[cfg(unix)]
mod unix {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command, ExitStatus};
    use std::sync::atomic::{AtomicU32, Ordering};

    use libc::c_int;

    /// Signals that are passed on.
    const PASSED: [c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
    /// How many of each have come and were not asked for yet.
    static COME: [AtomicU32; PASSED.len()] = [const { AtomicU32::new(0) }; PASSED.len()];

    pub(in crate::launch) const ASK: c_int = libc::SIGTERM;
    pub(in crate::launch) const KILL: c_int = libc::SIGKILL;
    pub(in crate::launch) const INTERRUPT: c_int = libc::SIGINT;

    extern "C" fn note(signal: c_int) {
        if let Some(place) = PASSED.iter().position(|&passed| passed == signal) {
            COME[place].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// From now on signals are noted, for [`take`].
    pub(in crate::launch) fn catch() {
        let handler = note as extern "C" fn(c_int);
        for signal in PASSED {
            // SAFETY: the handler only touches atomics, which is allowed in one; the old handler is of no use to anyone.
            unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        }
    }

    /// A signal that has come.
    pub(in crate::launch) fn take() -> Option<c_int> {
        let lower = |count: &AtomicU32| {
            count.try_update(Ordering::SeqCst, Ordering::SeqCst, |come| come.checked_sub(1)).is_ok()
        };
        COME.iter().position(lower).map(|place| PASSED[place])
    }

    /// Makes a process group of the child, so that Ctrl+C reaches it through the launcher alone and its own children end with it;
    /// and ends it when the launcher is killed.
    pub(in crate::launch) fn tie(command: &mut Command) {
        command.process_group(0);
        #[cfg(target_os = "linux")]
        {
            let launcher = std::process::id();
            let tie = move || {
                // SAFETY: plain system calls, which are allowed between fork and exec.
                let parent = unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::getppid()
                };
                // It died before the line above: nobody will tell.
                if parent as u32 != launcher {
                    return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
                }
                Ok(())
            };
            // SAFETY: the closure allocates nothing and takes no lock.
            unsafe { command.pre_exec(tie) };
        }
    }

    /// Sends a signal to a rank and everything it has started.
    pub(in crate::launch) fn send(child: &mut Child, signal: c_int) {
        // SAFETY: a plain system call; the group is the child's own (see `tie`).
        unsafe { libc::kill(-(child.id() as c_int), signal) };
    }

    /// The signal that ended a process.
    pub(in crate::launch) fn of(status: ExitStatus) -> Option<c_int> {
        status.signal()
    }

    pub(in crate::launch) fn name(signal: c_int) -> &'static str {
        match signal {
            libc::SIGKILL => " (SIGKILL: by hand, or because memory ran out)",
            libc::SIGSEGV => " (SIGSEGV: a crash)",
            libc::SIGABRT => " (SIGABRT: a crash)",
            libc::SIGBUS => " (SIGBUS: a crash, or no room left in shared memory)",
            libc::SIGFPE => " (SIGFPE: a crash)",
            libc::SIGILL => " (SIGILL: a crash)",
            libc::SIGTERM => " (SIGTERM)",
            libc::SIGINT => " (SIGINT)",
            _ => "",
        }
    }
}

/// Elsewhere there are no signals: a rank can only be killed.
#[cfg(not(unix))]
mod elsewhere {
    use std::process::{Child, Command, ExitStatus};

    pub(in crate::launch) const ASK: i32 = 15;
    pub(in crate::launch) const KILL: i32 = 9;
    pub(in crate::launch) const INTERRUPT: i32 = 2;

    pub(in crate::launch) fn catch() {}

    pub(in crate::launch) fn take() -> Option<i32> {
        None
    }

    pub(in crate::launch) fn tie(_: &mut Command) {}

    pub(in crate::launch) fn send(child: &mut Child, _: i32) {
        let _ = child.kill();
    }

    pub(in crate::launch) fn of(_: ExitStatus) -> Option<i32> {
        None
    }

    pub(in crate::launch) fn name(_: i32) -> &'static str {
        ""
    }
}

#[cfg(not(unix))]
pub(super) use elsewhere::*;
