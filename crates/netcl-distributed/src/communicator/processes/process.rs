//! Which process a rank is, and whether it still runs.

/// This process in 62 bits: its number in 22, which Linux never exceeds, and its start time in 40.
pub(super) fn current() -> u64 {
    let pid = std::process::id();
    u64::from(pid) | start_time(pid).unwrap_or(0) << 22 & (u64::MAX >> 2)
}

/// The number of a process.
pub(super) fn id(owner: u64) -> u32 {
    (owner & 0x3F_FFFF) as u32
}

/// Whether a process still runs. One that cannot be looked at is taken to.
pub(super) fn is_alive(owner: u64) -> bool {
    let start = owner >> 22;
    match start_time(id(owner)) {
        Ok(now) => start == 0 || now & (u64::MAX >> 24) == start,
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// When a process started, in ticks since the machine did; `NotFound` for one that has ended, also if nobody has waited for it.
fn start_time(pid: u32) -> std::io::Result<u64> {
    let stat = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The process ended between opening and reading.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        other => other?,
    };
    // The second field is the command's name in parentheses, which may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or("");
    // A process whose first thread has ended looks the same but for its other threads.
    if matches!(field(3), "Z" | "X") && matches!(field(20), "0" | "1") {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    field(22).parse().map_err(std::io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_killed_process_is_dead_before_anybody_waits_for_it() {
        assert!(is_alive(current()));
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let owner = u64::from(child.id()) | start_time(child.id()).unwrap() << 22;
        assert!(is_alive(owner));
        assert!(!is_alive(owner + (1 << 22)), "another process of the same number");
        child.kill().unwrap();
        let gone = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            !is_alive(owner)
        });
        child.wait().unwrap();
        assert!(gone && !is_alive(owner));
    }
}
