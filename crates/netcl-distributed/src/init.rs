//! Which group this process belongs to: what `netcl launch` or `mpirun` put into the environment says it.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use netcl_core::env::{self, MpiRank};

use crate::error::{Error, Result};
use crate::group::Group;

const CALL: &str = "init";

/// The group of the processes that were started together: by `netcl launch`, by `mpirun` on one host, or this process alone.
///
/// It returns when all ranks have called it. Further calls return the same group, which ends with the process.
///
/// ```
/// let group = netcl_distributed::init()?;
/// // Nobody launched this example.
/// assert_eq!((group.rank(), group.size(), group.kind()), (0, 1, "alone"));
/// # Ok::<(), netcl_distributed::Error>(())
/// ```
///
/// # Errors
/// If the environment is incomplete, the ranks are on several hosts, or one does not come within `NETCL_RANK_TIMEOUT`.
pub fn init() -> Result<Group> {
    static GROUP: Mutex<Option<Group>> = Mutex::new(None);
    let mut group = GROUP.lock().unwrap_or_else(PoisonError::into_inner);
    if group.is_none() {
        *group = Some(from_environment()?);
    }
    Ok(group.clone().unwrap_or_else(Group::alone))
}

fn from_environment() -> Result<Group> {
    match (env::RANK.whole(), env::RANKS.whole(), env::RENDEZVOUS.text()) {
        (Some(rank), Some(size), Some(folder)) => join(Path::new(&folder), rank, size),
        (None, None, None) => env::mpi_rank().map_or_else(|| Ok(Group::alone()), join_mpi),
        (None | Some(0), Some(1), None) => Ok(Group::alone()),
        (rank, size, folder) => {
            let state = |is_set: bool| if is_set { "is set" } else { "is missing or no number" };
            let what = format!(
                "NETCL_RANK {}, NETCL_RANKS {}, NETCL_RENDEZVOUS {}; set all three, as netcl launch does, or none",
                state(rank.is_some()),
                state(size.is_some()),
                state(folder.is_some())
            );
            Err(Error::argument(CALL, what))
        }
    }
}

fn join_mpi(job: MpiRank) -> Result<Group> {
    if job.size == 1 {
        return Ok(Group::alone());
    }
    if job.local != job.size {
        let what = format!(
            "{} of {} ranks are on this host; ranks of several hosts need MPI itself: the crate netcl-mpi, or in Python \
             init(from_mpi4py(MPI.COMM_WORLD))",
            job.local, job.size
        );
        return Err(Error::argument(CALL, what));
    }
    join_job(&job)
}

#[cfg(target_os = "linux")]
fn join_job(job: &MpiRank) -> Result<Group> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};

    let name: String = job.job.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let user = std::fs::metadata("/proc/self").map_or(0, |process| process.uid());
    let folder = std::path::PathBuf::from(format!("/dev/shm/netcl-{user}-{name}"));
    let failed = |reason: String| Error::argument(CALL, format!("{} cannot be made: {reason}", folder.display()));
    // Another rank may have been faster; another user must not have been.
    let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
    if let Err(reason) = made.or_else(|_| {
        let found = std::fs::symlink_metadata(&folder)?;
        let ours = found.is_dir() && found.uid() == user;
        if ours { Ok(()) } else { Err(std::io::Error::other("it belongs to somebody else")) }
    }) {
        return Err(failed(reason.to_string()));
    }
    let joined = join(&folder, job.rank, job.size);
    if job.rank == 0 {
        // Empty when all are there, and needed by nobody.
        let _ = std::fs::remove_dir(&folder);
    }
    joined
}

#[cfg(target_os = "linux")]
fn join(folder: &Path, rank: usize, size: usize) -> Result<Group> {
    Ok(Group::new(crate::communicator::Processes::join(folder, rank, size)?))
}

#[cfg(not(target_os = "linux"))]
fn join_job(job: &MpiRank) -> Result<Group> {
    join(Path::new(""), job.rank, job.size)
}

#[cfg(not(target_os = "linux"))]
fn join(_folder: &Path, rank: usize, size: usize) -> Result<Group> {
    let what = format!("rank {rank} of {size}: processes share memory on Linux only; use MPI");
    Err(Error::argument(CALL, what))
}
