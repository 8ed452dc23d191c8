//! A content-addressed folder of small files: compiled programs and probe results that survive the process.
//!
//! Several processes may use one folder: entries are written to a temporary file and renamed, so a reader sees a whole entry
//! or none. A checksum, keyed by the entry's name, finds what a full disk or a bad one left behind and entries under another's
//! name. What somebody else could have written is not used (`files.rs` says what that is). The folder may be deleted at any time.

mod files;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use self::files::{Trust, Unread};
use crate::env;

const MAGIC: &[u8; 8] = b"netclpc2";
const EXTENSION: &str = "entry";
const DEFAULT_MAX_BYTES: u64 = 1 << 30;
/// Pruning looks at every file, so it happens once in so many writes.
const PRUNE_EVERY: u64 = 32;
/// A temporary file this old belongs to a process that died.
const STALE: Duration = Duration::from_secs(3600);

/// The name of an entry: a hash of everything the contents depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(blake3::Hash);

impl Key {
    /// Hashes the parts, keeping their borders: `["ab", "c"]` and `["a", "bc"]` differ.
    pub fn new(parts: &[&str]) -> Key {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        Key(hasher.finalize())
    }

    /// The key of an entry, from the name of its file.
    pub fn of(path: &Path) -> Option<Key> {
        blake3::Hash::from_hex(path.file_stem()?.as_encoded_bytes()).ok().map(Key)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.to_hex().as_str())
    }
}

/// What an entry says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// The device it is for.
    pub device: String,
    /// The build options.
    pub options: String,
    /// The program's kernels.
    pub kernels: Vec<String>,
    /// True for the log of a build that failed.
    pub failed: bool,
}

/// An entry with its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it says of itself.
    pub header: Header,
    /// The binary, or the log of a failed build.
    pub payload: Vec<u8>,
}

/// The answer to a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The entry.
    Hit(Entry),
    /// There is none.
    Miss,
    /// There was a damaged one; it has been deleted.
    Corrupt,
}

/// One line of a listing.
#[derive(Clone, Debug)]
pub struct EntryInfo {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// Time since its last use.
    pub age: Duration,
    /// What it says of itself; `None` when it cannot be read.
    pub header: Option<Header>,
}

/// What a pruning removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Files removed.
    pub entries: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// The folder.
///
/// ```
/// use netcl_core::backend::opencl::cache::{Header, Key, Lookup, Store};
/// let folder = std::env::temp_dir().join(format!("netcl-doc-{}", std::process::id()));
/// let store = Store::new(&folder, 1 << 20);
/// let key = Key::new(&["source", "options"]);
/// store.put(&key, &Header::default(), b"binary")?;
/// assert!(matches!(store.get(&key), Lookup::Hit(entry) if entry.payload == b"binary"));
/// store.clear()?;
/// assert_eq!(store.get(&key), Lookup::Miss);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    max_bytes: u64,
    writes: AtomicU64,
}

impl Store {
    /// A store in the given folder, which is made at the first write.
    pub fn new(dir: impl Into<PathBuf>, max_bytes: u64) -> Store {
        Store { dir: dir.into(), max_bytes, writes: AtomicU64::new(0) }
    }

    /// The compiled programs of this user: `$NETCL_CACHE_DIR/programs`, else `netcl/programs` in the system's cache folder.
    /// `None` when switched off (`NETCL_CACHE=0`) or when there is no such folder.
    pub fn programs() -> Option<Store> {
        Store::named("programs")
    }

    /// The probe results of this user, beside the programs.
    pub fn probes() -> Option<Store> {
        Store::named("probes")
    }

    /// What the tuner measured for this user, beside the programs.
    pub fn tuning() -> Option<Store> {
        Store::named("tuning")
    }

    fn named(name: &str) -> Option<Store> {
        if !env::CACHE.switch() {
            return None;
        }
        Some(Store::new(root()?.join(name), env::CACHE_MAX.size().unwrap_or(DEFAULT_MAX_BYTES)))
    }

    /// The folder's path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.dir.join(format!("{key}.{EXTENSION}"))
    }

    /// Looks an entry up and marks it as used. Damaged entries, and what is no entry of this user, are deleted.
    pub fn get(&self, key: &Key) -> Lookup {
        if !fs::metadata(&self.dir).is_ok_and(|data| files::trust(&data) == Trust::Full) {
            return Lookup::Miss;
        }
        let found = match files::read(&self.path(key)) {
            Err(Unread::Missing) => return Lookup::Miss,
            Err(Unread::Untrusted) => None,
            Ok((file, bytes)) => decode(key, &bytes).map(|entry| (file, entry)),
        };
        match found {
            Some((file, entry)) => {
                // The time of last use orders the pruning. On a read-only folder it stays as it is.
                let _ = file.set_modified(SystemTime::now());
                Lookup::Hit(entry)
            }
            None => {
                self.remove(key);
                Lookup::Corrupt
            }
        }
    }

    /// Writes an entry; readers see the old one or the new one, never a part.
    pub fn put(&self, key: &Key, header: &Header, payload: &[u8]) -> io::Result<()> {
        self.make_folder()?;
        let (temporary, mut file) = files::temporary(&self.dir, &key.to_string())?;
        let written = encode(key, header, payload)
            .and_then(|bytes| file.write_all(&bytes))
            .and_then(|()| fs::rename(&temporary, self.path(key)));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        if self.writes.fetch_add(1, Ordering::Relaxed).is_multiple_of(PRUNE_EVERY) {
            self.prune(self.max_bytes)?;
        }
        written
    }

    /// Makes the folder, or sees to it that nobody else can write to it.
    fn make_folder(&self) -> io::Result<()> {
        files::make_folder(&self.dir)?;
        match files::trust(&fs::metadata(&self.dir)?) {
            Trust::Full => Ok(()),
            Trust::Loose => {
                files::close_folder(&self.dir)?;
                // Whatever others may have moved here.
                self.clear().map(drop)
            }
            Trust::Foreign => {
                static TOLD: Once = Once::new();
                TOLD.call_once(|| {
                    eprintln!(
                        "netcl: nothing is cached: {} belongs to another user. Set {} to a folder of your own, or {}=0",
                        self.dir.display(),
                        env::CACHE_DIR.name,
                        env::CACHE.name
                    );
                });
                Err(io::Error::new(io::ErrorKind::PermissionDenied, "the folder belongs to another user"))
            }
        }
    }

    /// Deletes one entry, if it is there.
    pub fn remove(&self, key: &Key) {
        // Another process may have been faster; that is as good.
        let _ = fs::remove_file(self.path(key));
    }

    /// All entries, the most recently used first.
    pub fn entries(&self) -> io::Result<Vec<EntryInfo>> {
        let mut list = Vec::new();
        for (path, bytes, age) in self.files(EXTENSION)? {
            let header = read_named(&path).map(|entry| entry.header);
            list.push(EntryInfo { path, bytes, age, header });
        }
        list.sort_by(|a, b| a.age.cmp(&b.age).then_with(|| a.path.cmp(&b.path)));
        Ok(list)
    }

    /// What an entry of [`Store::entries`] holds; `None` where it is damaged or gone.
    pub fn payload(&self, path: &Path) -> Option<Vec<u8>> {
        read_named(path).map(|entry| entry.payload)
    }

    /// Removes the least recently used entries until at most `max_bytes` remain, and what dead processes left.
    pub fn prune(&self, max_bytes: u64) -> io::Result<Pruned> {
        for (path, _, age) in self.files("tmp")? {
            if age > STALE {
                let _ = fs::remove_file(path);
            }
        }
        let mut files = self.files(EXTENSION)?;
        files.sort_by_key(|&(_, _, age)| std::cmp::Reverse(age));
        let mut total: u64 = files.iter().map(|&(_, bytes, _)| bytes).sum();
        let mut pruned = Pruned::default();
        for (path, bytes, _) in files {
            if total <= max_bytes {
                break;
            }
            total -= bytes;
            if fs::remove_file(path).is_ok() {
                pruned.entries += 1;
                pruned.bytes += bytes;
            }
        }
        Ok(pruned)
    }

    /// Removes all entries.
    pub fn clear(&self) -> io::Result<Pruned> {
        self.prune(0)
    }

    /// Files of one kind: path, size, time since last use. A missing folder holds none.
    fn files(&self, extension: &str) -> io::Result<Vec<(PathBuf, u64, Duration)>> {
        let folder = match fs::read_dir(&self.dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let now = SystemTime::now();
        let mut files = Vec::new();
        for item in folder {
            let path = item?.path();
            // Files of others are not ours to touch; files that vanish meanwhile were another process's.
            if path.extension().is_none_or(|e| e != extension) {
                continue;
            }
            let Ok(data) = fs::symlink_metadata(&path) else { continue };
            let age = data.modified().ok().and_then(|time| now.duration_since(time).ok()).unwrap_or_default();
            files.push((path, data.len(), age));
        }
        Ok(files)
    }
}

/// `magic, checksum of the rest keyed by the name, header length, header (TOML), payload`.
fn encode(key: &Key, header: &Header, payload: &[u8]) -> io::Result<Vec<u8>> {
    let header = toml::to_string(header).map_err(io::Error::other)?;
    let mut rest = Vec::with_capacity(4 + header.len() + payload.len());
    rest.extend_from_slice(&(header.len() as u32).to_le_bytes());
    rest.extend_from_slice(header.as_bytes());
    rest.extend_from_slice(payload);
    let mut bytes = Vec::with_capacity(40 + rest.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(checksum(key, &rest).as_bytes());
    bytes.extend_from_slice(&rest);
    Ok(bytes)
}

fn decode(key: &Key, bytes: &[u8]) -> Option<Entry> {
    let (sum, rest) = bytes.strip_prefix(MAGIC)?.split_at_checked(32)?;
    if checksum(key, rest).as_bytes() != sum {
        return None;
    }
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (header, payload) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let header = toml::from_str(std::str::from_utf8(header).ok()?).ok()?;
    Some(Entry { header, payload: payload.to_vec() })
}

/// Keyed, so that an entry under another's name is found like any other damage.
fn checksum(key: &Key, rest: &[u8]) -> blake3::Hash {
    blake3::keyed_hash(key.0.as_bytes(), rest)
}

fn read_named(path: &Path) -> Option<Entry> {
    let (_, bytes) = files::read(path).ok()?;
    decode(&Key::of(path)?, &bytes)
}

/// The folder over all stores.
fn root() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = env::CACHE_DIR.text() {
        return Some(dir.into());
    }
    let system = if cfg!(windows) {
        variable("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        variable("HOME").map(|home| home.join("Library/Caches"))
    } else {
        // The XDG rules say that a relative path is to be ignored.
        variable("XDG_CACHE_HOME")
            .filter(|dir| dir.is_absolute())
            .or_else(|| variable("HOME").map(|home| home.join(".cache")))
    };
    // Under sudo the home may be the caller's.
    system.map(|dir| dir.join("netcl")).filter(|dir| files::may_make(dir))
}

#[cfg(test)]
mod tests;
