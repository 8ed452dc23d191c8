//! Files that are either there as a whole or not at all.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Writes a file so that a crash, a full disk or another process never leaves half of it: the content goes to a new file beside
/// it, is forced to the disk, takes the name at the end, and the folder is forced to the disk. Missing folders are made.
///
/// A process that is killed leaves its temporary file, which [`remove_leftovers`] removes.
///
/// # Errors
/// What could not be written and why; the file that was there before is still there.
pub fn write_atomically(path: &Path, content: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) -> Result<()> {
    Pending::write(path, |out| Ok(content(out)?))?.commit().map(drop)
}

/// Why the content of a file could not be written: because of the file, or because of what should be in it.
pub(crate) enum Failure {
    Write(std::io::Error),
    Content(Error),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::Write(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Content(error)
    }
}

/// A file that is written and on the disk, but has not its name yet. It vanishes if it is dropped.
pub(crate) struct Pending {
    temporary: Temporary,
    path: PathBuf,
}

impl Pending {
    /// Writes the content to a new file beside the path.
    pub(crate) fn write(
        path: &Path,
        content: impl FnOnce(&mut BufWriter<File>) -> Result<(), Failure>,
    ) -> Result<Pending> {
        let failed = |reason| Error::Write { path: path.to_owned(), reason };
        let temporary = Temporary::beside(path).map_err(failed)?;
        let mut writer = BufWriter::new(File::create(&temporary.0).map_err(failed)?);
        content(&mut writer).map_err(|failure| match failure {
            Failure::Write(reason) => failed(reason),
            Failure::Content(error) => error,
        })?;
        writer.flush().map_err(failed)?;
        writer.get_ref().sync_all().map_err(failed)?;
        Ok(Pending { temporary, path: path.to_owned() })
    }

    /// Gives the file its name, and returns it.
    pub(crate) fn commit(self) -> Result<PathBuf> {
        let renamed = fs::rename(&self.temporary.0, &self.path).and_then(|()| sync_folder(folder_of(&self.path)));
        match renamed {
            Ok(()) => Ok(self.path),
            Err(reason) => Err(Error::Write { path: self.path, reason }),
        }
    }
}

/// Makes `path` a link to another file of its folder, in the place of what was there. Where there are no links it is a copy.
///
/// # Errors
/// What could not be written and why; what was there before is still there.
pub fn link_atomically(path: &Path, target: &str) -> Result<()> {
    let linked = || {
        let temporary = Temporary::beside(path)?;
        link(target, &temporary.0).or_else(|_| {
            fs::copy(folder_of(path).join(target), &temporary.0)?;
            File::open(&temporary.0)?.sync_all()
        })?;
        fs::rename(&temporary.0, path)?;
        sync_folder(folder_of(path))
    };
    linked().map_err(|reason| Error::Write { path: path.to_owned(), reason })
}

#[cfg(unix)]
fn link(target: &str, path: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

/// Needs a privilege elsewhere.
#[cfg(not(unix))]
fn link(_: &str, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// The folder of a file: the empty parent of a bare name is the current folder.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What the names of temporary files end with.
const TEMPORARY: &str = ".tmp";

/// Makes a renaming last: without it a power failure may bring the old file back.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> std::io::Result<()> {
    use std::io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // Folders that may be written but not read, and file systems that cannot do it.
        Err(error) if matches!(error.kind(), PermissionDenied | InvalidInput | Unsupported) => Ok(()),
        done => done,
    }
}

/// Folders cannot be opened here.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> std::io::Result<()> {
    Ok(())
}

/// Removes the temporary files that killed processes left behind in a folder: `.NAME.PROCESS-COUNT.tmp`. Only for those who know
/// that no other process writes there now.
///
/// # Errors
/// If the folder cannot be listed or a file cannot be removed.
pub fn remove_leftovers(folder: &Path) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |reason| Error::Write { path, reason }
    };
    for entry in fs::read_dir(folder).map_err(failed(folder))? {
        let entry = entry.map_err(failed(folder))?;
        if is_temporary(&entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path()).map_err(failed(&entry.path()))?;
        }
    }
    Ok(())
}

fn is_temporary(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let inner = name.strip_prefix('.').and_then(|name| name.strip_suffix(TEMPORARY));
    let numbers = inner.and_then(|inner| inner.rsplit_once('.')).and_then(|(_, numbers)| numbers.split_once('-'));
    numbers.is_some_and(|(process, count)| is_number(process) && is_number(count))
}

/// Removed when it is not needed any more; after the renaming there is nothing to remove.
struct Temporary(PathBuf);

impl Temporary {
    /// A new name in the folder of a file, which is made where it is missing.
    fn beside(path: &Path) -> std::io::Result<Temporary> {
        let Some(name) = path.file_name() else {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "the path names no file"));
        };
        fs::create_dir_all(folder_of(path))?;
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let name = format!(".{}.{process}-{count}{TEMPORARY}", name.to_string_lossy());
        Ok(Temporary(folder_of(path).join(name)))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_or_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/file");
        write_atomically(&path, |out| out.write_all(b"one")).unwrap();
        let error = write_atomically(&path, |out| {
            out.write_all(b"tw")?;
            Err(std::io::Error::other("the disk is full"))
        });
        let text = error.unwrap_err().to_string();
        assert!(text.contains("a/b/file cannot be written: the disk is full"), "{text}");
        assert_eq!(fs::read(&path).unwrap(), b"one");
        write_atomically(&path, |out| out.write_all(b"three")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file stays behind");
    }

    #[test]
    fn what_killed_processes_left_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let names =
            [".model.netcl.17-0.tmp", ".a.b.4711-12.tmp", "model.netcl", ".hidden.tmp", "a.1-2.tmp", ".a.1-x.tmp"];
        for name in names {
            fs::write(folder.path().join(name), b"half").unwrap();
        }
        remove_leftovers(folder.path()).unwrap();
        let left: Vec<bool> = names.iter().map(|name| folder.path().join(name).exists()).collect();
        assert_eq!(left, [false, false, true, true, true, true]);
    }

    #[test]
    fn places_that_cannot_be_written_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        let text = write_atomically(&file.join("x"), |_| Ok(())).unwrap_err().to_string();
        assert!(text.contains("file/x cannot be written"), "{text}");
        assert!(write_atomically(Path::new("/"), |_| Ok(())).unwrap_err().to_string().contains("names no file"));
    }
}
