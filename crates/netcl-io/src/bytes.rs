//! The bytes of a file or of an array: a part of a mapped file, or memory of its own.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::{Deref, DerefMut, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::{Error, Result};

/// Shorter files are read instead of mapped: a page fault for each 4 KiB costs more than the copy.
const SHORTEST_MAP: u64 = 1 << 20;

/// Bytes that are borrowed from a file for as long as nobody changes them.
///
/// Clones of borrowed bytes share the file; changing them copies them first.
///
/// ```
/// let mut bytes = netcl_io::Bytes::from(vec![1, 2, 3]);
/// bytes[0] = 7;
/// assert_eq!(bytes[..], [7, 2, 3]);
/// ```
#[derive(Clone)]
pub struct Bytes(Inner);

#[derive(Clone)]
enum Inner {
    Owned(Vec<u8>),
    Shared(Arc<Content>, Range<usize>),
}

enum Content {
    Memory(Vec<u8>),
    Map(Mmap),
}

impl Deref for Content {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Content::Memory(bytes) => bytes,
            Content::Map(map) => map,
        }
    }
}

impl Bytes {
    /// The whole content of a file, mapped into memory if it is long.
    ///
    /// A file that another process shortens while it is mapped ends this process with SIGBUS at the first access past its new
    /// end: no program that maps files can prevent that. Files of ours are replaced by renaming, which leaves the old content in
    /// place for those who have it mapped, and short files are not mapped at all.
    pub(crate) fn of_file(path: &Path) -> Result<Bytes> {
        let unreadable = |reason| Error::Read { path: path.to_owned(), reason };
        let mut file = File::open(path).map_err(unreadable)?;
        let facts = file.metadata().map_err(unreadable)?;
        if facts.is_dir() {
            return Err(unreadable(std::io::ErrorKind::IsADirectory.into()));
        }
        let content = if facts.len() < SHORTEST_MAP {
            let mut content = Vec::new();
            // A pipe or a device has no length and may never end.
            file.by_ref().take(SHORTEST_MAP).read_to_end(&mut content).map_err(unreadable)?;
            Content::Memory(content)
        } else {
            // SAFETY: the map is only read, through slices of bytes, for which every bit pattern is good. Another process that
            // writes to the file changes values, never memory safety; one that shortens it ends this process (see above).
            Content::Map(unsafe { Mmap::map(&file) }.map_err(unreadable)?)
        };
        Ok(Bytes::share(content))
    }

    /// Memory whose parts share it, too.
    pub(crate) fn shared(bytes: Vec<u8>) -> Bytes {
        Bytes::share(Content::Memory(bytes))
    }

    fn share(content: Content) -> Bytes {
        let length = content.len();
        Bytes(Inner::Shared(Arc::new(content), 0..length))
    }

    /// A part of it that shares the file; `None` past its end.
    pub(crate) fn part(&self, range: Range<usize>) -> Option<Bytes> {
        self.get(range.clone())?;
        Some(Bytes(match &self.0 {
            Inner::Owned(bytes) => Inner::Owned(bytes[range].to_vec()),
            Inner::Shared(content, whole) => {
                Inner::Shared(content.clone(), whole.start + range.start..whole.start + range.end)
            }
        }))
    }

    /// Whether these bytes lie in a file or in other memory that is shared.
    #[cfg(test)]
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.0, Inner::Shared(..))
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Inner::Owned(bytes) => bytes,
            Inner::Shared(content, range) => &content[range.clone()],
        }
    }
}

/// Copies what is borrowed.
impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        if let Inner::Shared(..) = self.0 {
            self.0 = Inner::Owned(self.to_vec());
        }
        match &mut self.0 {
            Inner::Owned(bytes) => bytes,
            Inner::Shared(..) => &mut [],
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes(Inner::Owned(bytes))
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

/// The first ones only: there may be billions.
impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes: {:02x?}", self.len(), &self[..self.len().min(32)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_shared_until_someone_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for length in [5, SHORTEST_MAP as usize + 5] {
            std::fs::write(&path, vec![1; length]).unwrap();
            let whole = Bytes::of_file(&path).unwrap();
            let mut part = whole.part(length - 3..length).unwrap();
            assert!(part.is_shared() && whole.part(length - 3..length + 1).is_none());
            assert!(whole.part(Range { start: 3, end: 2 }).is_none());
            part[0] = 2;
            assert!(!part.is_shared() && part[..] == [2, 1, 1] && whole[length - 3] == 1);
        }
        assert!(Bytes::of_file(folder.path()).unwrap_err().to_string().contains("cannot be read"));
    }
}
