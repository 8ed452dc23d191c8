//! The program cache from outside: what is in it, how large it is, and how to make it smaller.

use std::path::PathBuf;
use std::time::Duration;

use netcl_core::backend::opencl::cache::{EntryInfo, Pruned, Store};

/// The folder could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[error("the cache folder {} could not be {action}: {source}", dir.display())]
pub struct CacheError {
    /// The folder.
    pub dir: PathBuf,
    /// What was tried.
    pub action: &'static str,
    /// What the operating system says.
    pub source: std::io::Error,
}

/// One of the cache's folders and its entries.
#[derive(Debug)]
pub struct Listing {
    /// What is kept there: `"programs"` or `"probes"`.
    pub kind: &'static str,
    /// The folder, which need not exist.
    pub dir: PathBuf,
    /// The entries, the most recently used first.
    pub entries: Vec<EntryInfo>,
}

impl Listing {
    /// The bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.bytes).sum()
    }
}

/// The user's cache; empty when it is switched off (`NETCL_CACHE=0`) or when there is no place for it.
///
/// ```
/// for listing in netcl_runtime::cache::list()? {
///     println!("{}: {} entries, {} bytes", listing.kind, listing.entries.len(), listing.bytes());
/// }
/// # Ok::<(), netcl_runtime::cache::CacheError>(())
/// ```
pub fn list() -> Result<Vec<Listing>, CacheError> {
    stores().map(|(kind, store)| listing(kind, &store)).collect()
}

fn listing(kind: &'static str, store: &Store) -> Result<Listing, CacheError> {
    let entries = store.entries().map_err(|source| failed(store, "read", source))?;
    Ok(Listing { kind, dir: store.dir().to_path_buf(), entries })
}

/// Removes programs and probe results that were not used for `older_than`, and then the least recently used ones until each
/// folder holds at most `max_bytes`. What is not given sets no bound.
pub fn prune(max_bytes: Option<u64>, older_than: Option<Duration>) -> Result<Pruned, CacheError> {
    let mut total = Pruned::default();
    for (kind, store) in stores() {
        add(&mut total, prune_store(kind, &store, max_bytes, older_than)?);
    }
    Ok(total)
}

fn prune_store(
    kind: &'static str,
    store: &Store,
    max_bytes: Option<u64>,
    older_than: Option<Duration>,
) -> Result<Pruned, CacheError> {
    let mut removed = Pruned::default();
    if let Some(limit) = older_than {
        for entry in listing(kind, store)?.entries.iter().filter(|entry| entry.age >= limit) {
            // Another process may have been faster; that is as good.
            if std::fs::remove_file(&entry.path).is_ok() {
                add(&mut removed, Pruned { entries: 1, bytes: entry.bytes });
            }
        }
    }
    // Also without a bound: it takes away what dead processes left.
    let rest = store.prune(max_bytes.unwrap_or(u64::MAX)).map_err(|source| failed(store, "pruned", source))?;
    add(&mut removed, rest);
    Ok(removed)
}

/// Removes everything: programs are compiled again when next needed.
pub fn clear() -> Result<Pruned, CacheError> {
    prune(Some(0), None)
}

fn stores() -> impl Iterator<Item = (&'static str, Store)> {
    [("programs", Store::programs()), ("probes", Store::probes())]
        .into_iter()
        .filter_map(|(kind, store)| Some((kind, store?)))
}

fn failed(store: &Store, action: &'static str, source: std::io::Error) -> CacheError {
    CacheError { dir: store.dir().to_path_buf(), action, source }
}

fn add(total: &mut Pruned, more: Pruned) {
    total.entries += more.entries;
    total.bytes += more.bytes;
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_core::backend::opencl::cache::{Header, Key};
    use std::time::SystemTime;

    #[test]
    fn age_and_size_bound_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path(), 1 << 30);
        for n in 0..4u64 {
            store.put(&Key::new(&[&n.to_string()]), &Header::default(), &[0; 1000]).unwrap();
        }
        let entries = listing("programs", &store).unwrap().entries;
        let size = entries[0].bytes;
        for (hours, entry) in entries.iter().enumerate() {
            let time = SystemTime::now() - Duration::from_secs(3600 * hours as u64);
            std::fs::File::options().append(true).open(&entry.path).unwrap().set_modified(time).unwrap();
        }
        let nothing = prune_store("programs", &store, None, None).unwrap();
        assert_eq!(nothing, Pruned::default());
        let old = prune_store("programs", &store, None, Some(Duration::from_secs(9000))).unwrap();
        assert_eq!(old, Pruned { entries: 1, bytes: size });
        let rest = prune_store("programs", &store, Some(2 * size), None).unwrap();
        assert_eq!(rest, Pruned { entries: 1, bytes: size });
        assert_eq!(listing("programs", &store).unwrap().bytes(), 2 * size);
    }

    #[test]
    fn a_folder_that_is_a_file_is_an_error_that_names_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = listing("programs", &Store::new(file.path(), 0)).unwrap_err();
        assert!(error.to_string().contains(&*file.path().to_string_lossy()), "{error}");
    }
}
