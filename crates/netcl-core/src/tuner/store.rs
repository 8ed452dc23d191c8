//! Results on disk: one file for each device, driver, version of netcl and problem.

use std::time::Duration;

use super::Tuning;
use crate::backend::opencl::Limits;
use crate::backend::opencl::cache::{Header, Key, Lookup, Store};
use crate::device_profile::ExtendedDeviceProfile;
use crate::error::{Error, Result};
use crate::kernel_selector::{KernelConfig, KernelSelector, Problem, config_from_table, entry_for_table};

/// A result that lies on disk.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The device it was measured on.
    pub device: String,
    /// The problem: `"matmul 1024x1024x1024 float32"`.
    pub problem: String,
    /// What was fastest, and its time, in words.
    pub outcome: String,
    /// The entry, as `kernel_defaults.toml` writes it.
    pub entry: String,
    /// Since it was last used.
    pub age: Duration,
}

/// The device with its driver, the version of netcl, and the problem. The native CPU has one engine and nothing to keep.
fn key(profile: &ExtendedDeviceProfile, problem: &Problem) -> Option<Key> {
    let identity = profile.base.device()?.identity();
    // Limits make a device another one.
    let limits = Some(Limits::from_env()).filter(|limits| **limits != Limits::default());
    let limits = limits.map_or_else(String::new, |limits| format!("{limits:?}"));
    Some(Key::new(&[&identity, env!("CARGO_PKG_VERSION"), &limits, &problem.to_string()]))
}

/// Keeps a result: for this process in the device's selector, for all others in the cache folder (`NETCL_CACHE=0`: nowhere).
/// Returns whether there was a result to keep.
pub fn keep(selector: &KernelSelector, tuning: &Tuning) -> Result<bool> {
    let Some(best) = tuning.best() else { return Ok(false) };
    selector.remember(&tuning.problem, best.config.clone());
    let profile = selector.profile();
    let (Some(store), Some(key)) = (Store::tuning(), key(profile, &tuning.problem)) else { return Ok(true) };
    let entry = entry_for_table(&tuning.problem, &profile.base.name, &best.config)?;
    let time = best.median().unwrap_or(f64::NAN);
    let header = Header {
        device: profile.base.name.clone(),
        options: tuning.problem.to_string(),
        kernels: vec![best.config.to_string(), format!("{:.4} ms", time * 1e3)],
        failed: false,
    };
    store.put(&key, &header, entry.as_bytes()).map_err(|error| {
        let what = format!(
            "the result could not be kept in {}: {error}; it serves this process only. Set NETCL_CACHE_DIR to a folder that \
             can be written to",
            store.dir().display()
        );
        Error::argument("tune", what)
    })?;
    Ok(true)
}

/// What was kept for a problem on a device. Entries that cannot be read count as missing.
pub(crate) fn find(profile: &ExtendedDeviceProfile, problem: &Problem) -> Option<KernelConfig> {
    let key = key(profile, problem)?;
    let Lookup::Hit(entry) = Store::tuning()?.get(&key) else { return None };
    config_from_table(std::str::from_utf8(&entry.payload).ok()?, problem, profile)
}

/// Everything that was kept, whatever the device, the most recently used first.
pub fn list() -> Result<Vec<Kept>> {
    let Some(store) = Store::tuning() else { return Ok(Vec::new()) };
    let entries = store.entries().map_err(|error| unreadable(&store, &error))?;
    let read = |path: &std::path::Path| Some(String::from_utf8_lossy(&store.payload(path)?).into_owned());
    Ok(entries
        .into_iter()
        .filter_map(|info| {
            let header = info.header?;
            Some(Kept {
                device: header.device,
                problem: header.options,
                outcome: header.kernels.join(", "),
                entry: read(&info.path)?,
                age: info.age,
            })
        })
        .collect())
}

/// All that was kept as the text of a table: what `kernel_defaults.toml` ships.
pub fn export() -> Result<String> {
    let mut kept = list()?;
    kept.sort_by(|a, b| (&a.device, &a.problem).cmp(&(&b.device, &b.problem)));
    Ok(kept
        .iter()
        .map(|kept| format!("# {}: {}\n{}", kept.problem, kept.outcome, kept.entry))
        .collect::<Vec<_>>()
        .join("\n"))
}

/// Forgets everything on disk and says how many results there were. Running processes keep what they know.
pub fn clear() -> Result<usize> {
    let Some(store) = Store::tuning() else { return Ok(0) };
    Ok(store.clear().map_err(|error| unreadable(&store, &error))?.entries)
}

fn unreadable(store: &Store, error: &std::io::Error) -> Error {
    Error::argument("tune", format!("the folder {} cannot be used: {error}", store.dir().display()))
}
