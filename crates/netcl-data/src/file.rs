//! Files that are read whole or mapped into memory: only ones that have an end.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use memmap2::Mmap;

use crate::error::{Error, Result};

/// Opens a regular file with its length. A pipe or a device has no length that could bound the memory of a reader.
pub(crate) fn open(path: &Path) -> Result<(File, u64)> {
    let unreadable = |reason| Error::Read { path: path.to_owned(), reason };
    let file = File::open(path).map_err(unreadable)?;
    let facts = file.metadata().map_err(unreadable)?;
    if !facts.is_file() {
        let what = "it is a folder, a pipe or a device".to_owned();
        return Err(Error::Malformed { path: path.to_owned(), expected: "regular file", what });
    }
    Ok((file, facts.len()))
}

/// The content of a regular file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let (file, length) = open(path)?;
    let mut content = Vec::new();
    file.take(length).read_to_end(&mut content).map_err(|reason| Error::Read { path: path.to_owned(), reason })?;
    Ok(content)
}

/// Maps a regular file into memory: the system reads a page when it is first used, and several processes share it.
pub(crate) fn map(path: &Path) -> Result<Mmap> {
    let (file, _) = open(path)?;
    // SAFETY: the map is only read, and nobody keeps a reference into it across calls: elements are copied out before they are
    // used, so a file that another process changes meanwhile gives other numbers but no broken invariant. A file that another
    // process makes shorter ends this process by SIGBUS, as in every program that maps files; NumPy's `mmap_mode` is the same.
    unsafe { Mmap::map(&file) }.map_err(|reason| Error::Read { path: path.to_owned(), reason })
}
