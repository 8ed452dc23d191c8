//! The files of a cache folder: opened without trusting what lies there.
//!
//! A compiled program is code that runs in this process, so nothing that somebody else could have written is used: the folder and
//! its entries belong to this user (or to root, who can do anything anyway) and are writable by nobody else. For root, a folder of
//! another user is foreign: under `sudo` with the caller's `HOME`, the caller's cache must neither be run nor filled with files that
//! the caller cannot replace.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// No entry is larger: a sparse file must not eat the memory.
const MOST_BYTES: u64 = 1 << 30;

/// How far a file or folder can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Only this user (or root) can have written it.
    Full,
    /// Ours, but others may write to it.
    #[cfg_attr(not(unix), expect(dead_code, reason = "only Unix has modes to tell this from"))]
    Loose,
    /// Somebody else's.
    Foreign,
}

#[cfg(unix)]
pub(super) fn trust(data: &Metadata) -> Trust {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: the call has no preconditions.
    trust_of(data.uid(), data.mode(), unsafe { libc::geteuid() })
}

#[cfg(unix)]
pub(super) fn trust_of(owner: u32, mode: u32, me: u32) -> Trust {
    if owner != me && owner != 0 {
        Trust::Foreign
    } else if mode & 0o022 != 0 {
        Trust::Loose
    } else {
        Trust::Full
    }
}

/// Windows gives each user a folder of their own, with its rights inherited.
#[cfg(not(unix))]
pub(super) fn trust(_: &Metadata) -> Trust {
    Trust::Full
}

/// Whether a folder that does not exist yet may be made: its nearest existing parent belongs to this user or to root.
pub(super) fn may_make(folder: &Path) -> bool {
    let parent = folder.ancestors().find_map(|path| std::fs::metadata(path).ok());
    parent.is_none_or(|data| trust(&data) != Trust::Foreign)
}

/// Makes a folder and its parents, for this user alone.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// Takes everybody else's rights to a folder away.
#[cfg(unix)]
pub(super) fn close_folder(folder: &Path) -> io::Result<()> {
    std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o700))
}

#[cfg(not(unix))]
pub(super) fn close_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Why there are no bytes.
pub(super) enum Unread {
    /// There is no file, or it cannot be read.
    Missing,
    /// There is something that is no entry of ours: a link, a pipe, a file of somebody else.
    Untrusted,
}

/// Opens and reads an entry. Opening neither follows a link nor waits for the other end of a pipe, and what was opened is checked, not what the path
/// names a moment later.
pub(super) fn read(path: &Path) -> Result<(File, Vec<u8>), Unread> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    #[cfg(windows)]
    std::os::windows::fs::OpenOptionsExt::access_mode(&mut options, GENERIC_READ | FILE_WRITE_ATTRIBUTES);
    let file = options.open(path).map_err(|_| match path.symlink_metadata() {
        Ok(data) if !data.is_file() => Unread::Untrusted,
        _ => Unread::Missing,
    })?;
    let data = file.metadata().map_err(|_| Unread::Missing)?;
    if !data.is_file() || trust(&data) != Trust::Full || data.len() > MOST_BYTES {
        return Err(Unread::Untrusted);
    }
    let mut bytes = Vec::new();
    (&file).take(MOST_BYTES).read_to_end(&mut bytes).map_err(|_| Unread::Missing)?;
    Ok((file, bytes))
}

#[cfg(windows)]
const GENERIC_READ: u32 = 0x8000_0000;
/// For the time of last use.
#[cfg(windows)]
const FILE_WRITE_ATTRIBUTES: u32 = 0x100;

/// A new file of this user alone, under a name that nobody can foresee and prepare.
pub(super) fn temporary(folder: &Path, stem: &str) -> io::Result<(PathBuf, File)> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    loop {
        // The hasher's keys come from the operating system's random numbers.
        let number = std::hash::RandomState::new().build_hasher().finish();
        let path = folder.join(format!("{stem}.{number:016x}.tmp"));
        match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map(|file| (path, file)),
        }
    }
}
