//! Host memory for lengths that a caller chose: an error value where `vec![0; n]` would abort the process.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};

/// An error unless `n` elements of a type fit the memory of this machine.
///
/// ```
/// use netcl_core::{ErrorKind, host};
///
/// assert!(host::check::<f64>("arange", 1000).is_ok());
/// let error = host::check::<f64>("arange", 1 << 60).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Memory);
/// ```
///
/// # Errors
/// [`Error::HostMemory`].
pub fn check<T>(op: &'static str, n: usize) -> Result<()> {
    let bytes = n as u128 * size_of::<T>() as u128;
    if bytes <= total() as u128 { Ok(()) } else { Err(Error::HostMemory { op, bytes, total: total() }) }
}

/// An empty vector with room for `n` elements.
///
/// # Errors
/// [`Error::HostMemory`].
pub fn with_capacity<T>(op: &'static str, n: usize) -> Result<Vec<T>> {
    check::<T>(op, n)?;
    let mut out = Vec::new();
    let bytes = n as u128 * size_of::<T>() as u128;
    out.try_reserve_exact(n).map_err(|_| Error::HostMemory { op, bytes, total: total() })?;
    Ok(out)
}

/// A vector of `n` equal elements.
///
/// # Errors
/// [`Error::HostMemory`].
pub fn filled<T: Clone>(op: &'static str, n: usize, value: T) -> Result<Vec<T>> {
    let mut out = with_capacity(op, n)?;
    out.resize(n, value);
    Ok(out)
}

/// What an iterator of known length gives.
///
/// # Errors
/// [`Error::HostMemory`].
pub fn collect<T>(op: &'static str, values: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut out = with_capacity(op, values.len())?;
    out.extend(values);
    Ok(out)
}

/// The bytes that this process can ever have: physical memory, or what its control group allows of it, and swap. Linux hands out
/// more than that and kills the process that writes to it; other systems refuse by themselves, and have no limit here.
pub fn total() -> usize {
    // Not known yet: 0. No lock, which a fork in the middle of the first question would leave locked in the child.
    static TOTAL: AtomicUsize = AtomicUsize::new(0);
    match TOTAL.load(Ordering::Relaxed) {
        0 => {
            let total = system::total().unwrap_or(isize::MAX as usize);
            TOTAL.store(total, Ordering::Relaxed);
            total
        }
        total => total,
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs::read_to_string;
    use std::path::Path;

    pub(super) fn total() -> Option<usize> {
        let info = read_to_string("/proc/meminfo").ok()?;
        let physical = field(&info, "MemTotal:")?;
        let allowed = read_to_string("/proc/self/cgroup").ok().and_then(|groups| group_limit(&groups));
        Some(physical.min(allowed.unwrap_or(usize::MAX)).saturating_add(field(&info, "SwapTotal:").unwrap_or(0)))
    }

    /// A line of /proc/meminfo, which counts kilobytes.
    fn field(info: &str, name: &str) -> Option<usize> {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
    }

    /// The lowest limit of the control groups around this process, of either version.
    fn group_limit(groups: &str) -> Option<usize> {
        let limits = groups.lines().flat_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let (root, file) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                _ => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            };
            let of_memory = controllers.is_empty() || controllers.split(',').any(|name| name == "memory");
            let path = Path::new(path.trim_start_matches('/')).to_owned();
            let around: Vec<_> = path.ancestors().map(|group| Path::new(root).join(group).join(file)).collect();
            around.into_iter().filter(move |_| of_memory)
        });
        limits.filter_map(|file| read_to_string(file).ok()?.trim().parse().ok()).min()
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn lines_of_meminfo_are_kilobytes() {
            let info = "MemTotal:       16 kB\nMemFree: 4 kB\nSwapTotal:       2 kB\n";
            assert_eq!(super::field(info, "MemTotal:"), Some(16 << 10));
            assert_eq!(super::field(info, "SwapTotal:"), Some(2 << 10));
            assert_eq!(super::field(info, "Absent:"), None);
        }

        #[test]
        fn a_process_outside_of_any_limited_group_has_none() {
            assert_eq!(super::group_limit(""), None);
            assert_eq!(super::group_limit("3:cpu,cpuacct:/nowhere\nnonsense"), None);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn total() -> Option<usize> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_lengths_are_errors_and_others_are_served() {
        for n in [usize::MAX, isize::MAX as usize, 1 << 50] {
            assert_eq!(check::<u64>("test", n).unwrap_err().kind(), crate::ErrorKind::Memory);
            assert_eq!(filled("test", n, 0u64).unwrap_err().kind(), crate::ErrorKind::Memory);
            let error = collect("test", (0..n).map(|i| i as u64)).unwrap_err().to_string();
            assert!(error.contains(&format!("{} bytes", n as u128 * 8)), "{error}");
        }
        assert_eq!(filled("test", 3, 7u8).unwrap(), [7, 7, 7]);
        assert_eq!(collect("test", 0..3usize).unwrap(), [0, 1, 2]);
        assert!(total() > 1 << 20);
    }
}
