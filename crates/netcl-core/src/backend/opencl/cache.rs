//! A content-addressed folder of small files: compiled programs and probe results that survive the process.
//!
//! Several processes may use one folder: entries are written to a temporary file and renamed, so a reader sees a whole entry
//! or none, and a checksum finds what a full disk or a bad one left behind. The folder may be deleted at any time.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::env;

/// The variable that names the cache folder.
pub const CACHE_DIR_VARIABLE: &str = env::CACHE_DIR.name;
/// The variable that turns the cache off when it is `0`.
pub const CACHE_VARIABLE: &str = env::CACHE.name;
/// The variable that caps the folder's size, for example `512M`.
pub const CACHE_MAX_VARIABLE: &str = env::CACHE_MAX.name;

const MAGIC: &[u8; 8] = b"netclpc1";
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

    /// Looks an entry up and marks it as used. Damaged entries are deleted.
    pub fn get(&self, key: &Key) -> Lookup {
        let path = self.path(key);
        let Ok(mut file) = File::open(&path) else { return Lookup::Miss };
        let mut bytes = Vec::new();
        if file.read_to_end(&mut bytes).is_err() {
            return Lookup::Miss;
        }
        match decode(&bytes) {
            Some(entry) => {
                // The time of last use orders the pruning. On a read-only folder it stays as it is.
                let _ = File::options().append(true).open(&path).and_then(|f| f.set_modified(SystemTime::now()));
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
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(&self.dir)?;
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let temporary = self.dir.join(format!("{key}.{}.{number}.tmp", std::process::id()));
        let written = File::create(&temporary)
            .and_then(|mut file| file.write_all(&encode(header, payload)?))
            .and_then(|()| fs::rename(&temporary, self.path(key)));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        if self.writes.fetch_add(1, Ordering::Relaxed).is_multiple_of(PRUNE_EVERY) {
            self.prune(self.max_bytes)?;
        }
        written
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
            let header = fs::read(&path).ok().and_then(|bytes| decode(&bytes)).map(|entry| entry.header);
            list.push(EntryInfo { path, bytes, age, header });
        }
        list.sort_by(|a, b| a.age.cmp(&b.age).then_with(|| a.path.cmp(&b.path)));
        Ok(list)
    }

    /// What an entry of [`Store::entries`] holds; `None` where it is damaged or gone.
    pub fn payload(&self, path: &Path) -> Option<Vec<u8>> {
        fs::read(path).ok().and_then(|bytes| decode(&bytes)).map(|entry| entry.payload)
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
            let Ok(data) = fs::metadata(&path) else { continue };
            let age = data.modified().ok().and_then(|time| now.duration_since(time).ok()).unwrap_or_default();
            files.push((path, data.len(), age));
        }
        Ok(files)
    }
}

/// `magic, checksum of the rest, header length, header (TOML), payload`.
fn encode(header: &Header, payload: &[u8]) -> io::Result<Vec<u8>> {
    let header = toml::to_string(header).map_err(io::Error::other)?;
    let mut rest = Vec::with_capacity(4 + header.len() + payload.len());
    rest.extend_from_slice(&(header.len() as u32).to_le_bytes());
    rest.extend_from_slice(header.as_bytes());
    rest.extend_from_slice(payload);
    let mut bytes = Vec::with_capacity(40 + rest.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(blake3::hash(&rest).as_bytes());
    bytes.extend_from_slice(&rest);
    Ok(bytes)
}

fn decode(bytes: &[u8]) -> Option<Entry> {
    let (sum, rest) = bytes.strip_prefix(MAGIC)?.split_at_checked(32)?;
    if blake3::hash(rest).as_bytes() != sum {
        return None;
    }
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (header, payload) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let header = toml::from_str(std::str::from_utf8(header).ok()?).ok()?;
    Some(Entry { header, payload: payload.to_vec() })
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
    system.map(|dir| dir.join("netcl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("netcl-cache-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Folder(path)
        }

        fn store(&self) -> Store {
            Store::new(&self.0, 1 << 20)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn header(kernel: &str) -> Header {
        Header { device: "d \"quoted\"".into(), options: "-D".into(), kernels: vec![kernel.into()], failed: false }
    }

    #[test]
    fn keys_keep_the_borders_of_their_parts() {
        assert_ne!(Key::new(&["ab", "c"]), Key::new(&["a", "bc"]));
        assert_ne!(Key::new(&["a"]), Key::new(&["a", ""]));
        assert_eq!(Key::new(&["a", "b"]), Key::new(&["a", "b"]));
    }

    #[test]
    fn entries_come_back_whole_and_are_listed() {
        let folder = Folder::new("whole");
        let store = folder.store();
        assert!(store.entries().unwrap().is_empty(), "a folder that does not exist holds nothing");
        let key = Key::new(&["x"]);
        assert_eq!(store.get(&key), Lookup::Miss);
        store.put(&key, &header("k"), &[0, 1, 2, 255]).unwrap();
        assert_eq!(store.get(&key), Lookup::Hit(Entry { header: header("k"), payload: vec![0, 1, 2, 255] }));
        let list = store.entries().unwrap();
        assert_eq!(list.len(), 1);
        assert_eq!(list[0].header, Some(header("k")));
        assert!(list[0].bytes > 40 && list[0].age < Duration::from_secs(60));
        assert_eq!(store.clear().unwrap().entries, 1);
        assert_eq!(store.get(&key), Lookup::Miss);
    }

    #[test]
    fn every_truncation_and_every_flipped_byte_is_found() {
        let folder = Folder::new("damage");
        let store = folder.store();
        let key = Key::new(&["x"]);
        store.put(&key, &header("k"), b"payload").unwrap();
        let good = fs::read(store.path(&key)).unwrap();
        for length in 0..good.len() {
            fs::write(store.path(&key), &good[..length]).unwrap();
            assert_eq!(store.get(&key), Lookup::Corrupt, "cut to {length} bytes");
            assert!(!store.path(&key).exists(), "the damaged entry is deleted");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            fs::write(store.path(&key), &bad).unwrap();
            assert_eq!(store.get(&key), Lookup::Corrupt, "byte {at} flipped");
        }
        fs::write(store.path(&key), &good).unwrap();
        assert!(matches!(store.get(&key), Lookup::Hit(_)));
    }

    #[test]
    fn pruning_takes_the_least_recently_used_and_leaves_foreign_files() {
        let folder = Folder::new("prune");
        let store = folder.store();
        let keys: Vec<Key> = (0..4).map(|n| Key::new(&[&n.to_string()])).collect();
        for (n, key) in keys.iter().enumerate() {
            store.put(key, &header("k"), &[7; 1000]).unwrap();
            let time = SystemTime::now() - Duration::from_secs(1000 - 100 * n as u64);
            File::options().append(true).open(store.path(key)).unwrap().set_modified(time).unwrap();
        }
        let foreign = folder.0.join("notes.txt");
        fs::write(&foreign, "mine").unwrap();
        let stale = folder.0.join("dead.1.2.tmp");
        fs::write(&stale, "half").unwrap();
        File::options().append(true).open(&stale).unwrap().set_modified(SystemTime::now() - 2 * STALE).unwrap();
        assert!(matches!(store.get(&keys[0]), Lookup::Hit(_)), "use makes the oldest the youngest");
        let size = store.entries().unwrap()[0].bytes;
        assert_eq!(store.prune(2 * size).unwrap(), Pruned { entries: 2, bytes: 2 * size });
        let left: Vec<bool> = keys.iter().map(|key| store.path(key).exists()).collect();
        assert_eq!(left, [true, false, false, true]);
        assert!(foreign.exists() && !stale.exists());
    }

    #[test]
    fn the_cap_holds_over_many_writes() {
        let folder = Folder::new("cap");
        let store = Store::new(&folder.0, 10_000);
        for n in 0..=2 * PRUNE_EVERY {
            store.put(&Key::new(&[&n.to_string()]), &header("k"), &[1; 1000]).unwrap();
        }
        let total: u64 = store.entries().unwrap().iter().map(|e| e.bytes).sum();
        assert!(total <= 10_000, "{total} bytes after a write that prunes");
    }

    #[test]
    fn writers_and_readers_of_one_key_do_not_disturb_each_other() {
        let folder = Folder::new("race");
        let store = folder.store();
        let key = Key::new(&["shared"]);
        let payloads: Vec<Vec<u8>> = (0..4_u8).map(|n| vec![n; 5000 + usize::from(n)]).collect();
        std::thread::scope(|scope| {
            for payload in &payloads {
                let store = &store;
                scope.spawn(move || {
                    for _ in 0..50 {
                        store.put(&key, &header("k"), payload).unwrap();
                        match store.get(&key) {
                            Lookup::Hit(entry) => assert!(payloads_contains(&entry.payload)),
                            other => panic!("{other:?}"),
                        }
                    }
                });
            }
        });
        fn payloads_contains(payload: &[u8]) -> bool {
            payload.iter().all(|&b| b == payload[0]) && payload.len() == 5000 + usize::from(payload[0])
        }
        assert!(fs::read_dir(&folder.0).unwrap().all(|f| f.unwrap().path().extension().unwrap() == EXTENSION));
    }
}
