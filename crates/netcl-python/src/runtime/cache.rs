//! `netcl.runtime.cache`: what lies in the program cache, and how to make it smaller.

use std::path::PathBuf;
use std::time::Duration;

use netcl::core::backend::opencl::cache::{EntryInfo, Pruned};
use netcl::runtime::cache::{self, CacheError};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

const DAY: f64 = 86_400.0;

/// An entry of the program cache.
#[pyclass(module = "netcl.runtime.cache", frozen, get_all)]
pub(crate) struct CacheEntry {
    /// What it is: ``"programs"`` (a compiled program) or ``"probes"`` (what a device was found to do).
    kind: &'static str,
    /// The file.
    path: PathBuf,
    /// The file's size in bytes.
    nbytes: u64,
    /// Days since its last use.
    days_unused: f64,
    /// The device it is for; ``None`` for a damaged entry.
    device: Option<String>,
    /// The options it was compiled with; ``None`` for a damaged entry.
    options: Option<String>,
    /// The names of its kernels.
    kernels: Vec<String>,
    /// Whether it is the log of a program that does not compile.
    failed: bool,
}

impl CacheEntry {
    fn new(kind: &'static str, entry: EntryInfo) -> CacheEntry {
        let EntryInfo { path, bytes, age, header, .. } = entry;
        let (device, options) = header.as_ref().map(|header| (header.device.clone(), header.options.clone())).unzip();
        let (kernels, failed) = header.map_or_else(Default::default, |header| (header.kernels, header.failed));
        let days_unused = age.as_secs_f64() / DAY;
        CacheEntry { kind, path, nbytes: bytes, days_unused, device, options, kernels, failed }
    }
}

#[pymethods]
impl CacheEntry {
    fn __repr__(&self) -> String {
        format!("<CacheEntry of {}: {} bytes, {}>", self.kind, self.nbytes, self.kernels.join(", "))
    }
}

/// The entries of the program cache, the most recently used of each kind first; none when it is off (``NETCL_CACHE=0``).
#[pyfunction]
fn cache_list(py: Python<'_>) -> PyResult<Vec<CacheEntry>> {
    let listings = py.detach(cache::list).map_err(os_error)?;
    let entries = |listing: cache::Listing| {
        let kind = listing.kind;
        listing.entries.into_iter().map(move |entry| CacheEntry::new(kind, entry))
    };
    Ok(listings.into_iter().flat_map(entries).collect())
}

/// The bytes of all entries of the program cache.
#[pyfunction]
fn cache_size(py: Python<'_>) -> PyResult<u64> {
    let listings = py.detach(cache::list).map_err(os_error)?;
    Ok(listings.iter().map(cache::Listing::bytes).sum())
}

/// Removes entries that were not used for ``older_than`` days, and then the least recently used ones until at most
/// ``max_bytes`` of each kind are left. Returns ``(entries, bytes)`` that were removed.
#[pyfunction]
#[pyo3(signature = (max_bytes=None, older_than=None))]
fn cache_prune(py: Python<'_>, max_bytes: Option<u64>, older_than: Option<f64>) -> PyResult<(usize, u64)> {
    let wrong = || PyValueError::new_err("prune: older_than is a number of days that is not negative");
    let limit = older_than.map(|days| Duration::try_from_secs_f64(days * DAY).map_err(|_| wrong())).transpose()?;
    if max_bytes.is_none() && limit.is_none() {
        return Err(PyValueError::new_err(
            "prune: say what to keep with max_bytes=, older_than= or both; clear() keeps nothing",
        ));
    }
    py.detach(|| cache::prune(max_bytes, limit)).map(removed).map_err(os_error)
}

/// Removes everything: programs are compiled again when next needed. Returns ``(entries, bytes)`` that were removed.
#[pyfunction]
fn cache_clear(py: Python<'_>) -> PyResult<(usize, u64)> {
    py.detach(cache::clear).map(removed).map_err(os_error)
}

fn removed(pruned: Pruned) -> (usize, u64) {
    (pruned.entries, pruned.bytes)
}

fn os_error(error: CacheError) -> PyErr {
    PyOSError::new_err(error.to_string())
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CacheEntry>()?;
    module.add_function(wrap_pyfunction!(cache_list, module)?)?;
    module.add_function(wrap_pyfunction!(cache_size, module)?)?;
    module.add_function(wrap_pyfunction!(cache_prune, module)?)?;
    module.add_function(wrap_pyfunction!(cache_clear, module)?)
}
