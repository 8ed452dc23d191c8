//! The quirk table: what drivers and devices really do, kept as data in `quirks.toml`.
//!
//! This and the selector's tables are the only places that look at vendor names; everyone else asks for a capability.

use std::sync::OnceLock;

use serde::Deserialize;

/// What the tables are matched against.
///
/// ```
/// use netcl_core::quirks::{DeviceId, quirks};
/// let id = DeviceId {
///     platform: "NVIDIA CUDA",
///     vendor: "NVIDIA Corporation",
///     device: "NVIDIA H200",
///     driver: "580.159",
///     device_type: "gpu",
///     compute_capability: Some((9, 0)),
/// };
/// assert!(quirks(&id).ptx);
/// assert_eq!(netcl_core::quirks::architecture(&id).map(|a| a.name).as_deref(), Some("hopper"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DeviceId<'a> {
    /// The platform's name.
    pub platform: &'a str,
    /// The device's vendor.
    pub vendor: &'a str,
    /// The device's name.
    pub device: &'a str,
    /// The driver's version.
    pub driver: &'a str,
    /// `"gpu"`, `"cpu"`, `"accel"` or `"other"`.
    pub device_type: &'a str,
    /// NVIDIA's compute capability, where there is one.
    pub compute_capability: Option<(u32, u32)>,
}

/// The flags of all matching quirks, merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// Command buffers are missing or not to be trusted.
    pub no_command_buffers: bool,
    /// Barriers only in uniform control flow, also where the standard would allow more.
    pub uniform_barriers: bool,
    /// Programs are PTX text, and inline PTX works.
    pub ptx: bool,
    /// The advertised local memory may be too small for static arrays: worth a probe.
    pub probe_static_local: bool,
    /// The compiler keeps its files in a folder that it shares with other processes, unlocked.
    pub shared_compiler_folder: bool,
    /// The driver compiles one program at a time in a process, however many threads ask.
    pub serial_compiler: bool,
    /// Cap on the work-group size.
    pub max_work_group_size: Option<usize>,
    /// Alignment in bytes that a host pointer needs for zero copy.
    pub zero_copy_align: Option<usize>,
    /// The size of a zero-copy buffer must be a multiple of this.
    pub zero_copy_size_multiple: Option<usize>,
    /// Why: one sentence per entry that matched.
    pub reasons: Vec<String>,
}

/// A family of devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// The family's name: `"hopper"`, `"rdna3"`, `"gen9"`, `"cpu"`, ...
    pub name: String,
    /// Work-items that run in lockstep.
    pub subgroup: u32,
    /// Memory bandwidth of this very device in GB/s, where known.
    pub gbps: Option<f64>,
    /// Rule of thumb for the family: GB/s per compute unit.
    pub gbps_per_cu: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct QuirkEntry {
    platform: Option<String>,
    vendor: Option<String>,
    device: Option<String>,
    driver: Option<String>,
    device_type: Option<String>,
    why: String,
    no_command_buffers: Option<bool>,
    uniform_barriers: Option<bool>,
    ptx: Option<bool>,
    probe_static_local: Option<bool>,
    shared_compiler_folder: Option<bool>,
    serial_compiler: Option<bool>,
    max_work_group_size: Option<usize>,
    zero_copy_align: Option<usize>,
    zero_copy_size_multiple: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ArchitectureEntry {
    name: String,
    vendor: Option<String>,
    device: Option<String>,
    device_type: Option<String>,
    compute_capability: Option<String>,
    subgroup: u32,
    gbps: Option<f64>,
    gbps_per_cu: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Table {
    quirk: Vec<QuirkEntry>,
    architecture: Vec<ArchitectureEntry>,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    // The text is compiled in and a test parses it, so the default is never seen.
    TABLE.get_or_init(|| toml::from_str(include_str!("quirks.toml")).unwrap_or_default())
}

/// The quirks of a device.
pub fn quirks(id: &DeviceId<'_>) -> Quirks {
    let mut merged = Quirks::default();
    for entry in &table().quirk {
        let fits = fits(&entry.platform, id.platform)
            && fits(&entry.vendor, id.vendor)
            && fits(&entry.device, id.device)
            && fits(&entry.driver, id.driver)
            && fits(&entry.device_type, id.device_type);
        if !fits {
            continue;
        }
        merged.no_command_buffers = entry.no_command_buffers.unwrap_or(merged.no_command_buffers);
        merged.uniform_barriers = entry.uniform_barriers.unwrap_or(merged.uniform_barriers);
        merged.ptx = entry.ptx.unwrap_or(merged.ptx);
        merged.probe_static_local = entry.probe_static_local.unwrap_or(merged.probe_static_local);
        merged.serial_compiler = entry.serial_compiler.unwrap_or(merged.serial_compiler);
        merged.shared_compiler_folder = entry.shared_compiler_folder.unwrap_or(merged.shared_compiler_folder);
        merged.max_work_group_size = entry.max_work_group_size.or(merged.max_work_group_size);
        merged.zero_copy_align = entry.zero_copy_align.or(merged.zero_copy_align);
        merged.zero_copy_size_multiple = entry.zero_copy_size_multiple.or(merged.zero_copy_size_multiple);
        merged.reasons.push(entry.why.clone());
    }
    merged
}

/// The device's family, as far as its name tells.
pub fn architecture(id: &DeviceId<'_>) -> Option<Architecture> {
    let capability = id.compute_capability.map(|(major, minor)| format!("{major}.{minor}"));
    let entry = table().architecture.iter().find(|entry| {
        fits(&entry.vendor, id.vendor)
            && fits(&entry.device, id.device)
            && fits(&entry.device_type, id.device_type)
            && match (&entry.compute_capability, &capability) {
                (Some(pattern), Some(value)) => glob(pattern, value),
                (Some(_), None) => false,
                (None, _) => true,
            }
    })?;
    Some(Architecture {
        name: entry.name.clone(),
        subgroup: entry.subgroup,
        gbps: entry.gbps,
        gbps_per_cu: entry.gbps_per_cu,
    })
}

fn fits(pattern: &Option<String>, value: &str) -> bool {
    pattern.as_deref().is_none_or(|pattern| glob(pattern, value))
}

/// Matches without regard to ASCII case; `*` stands for any text, `?` for one character.
fn glob(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.to_ascii_lowercase().chars().collect();
    let text: Vec<char> = text.to_ascii_lowercase().chars().collect();
    let (mut p, mut t) = (0, 0);
    // Where to resume after a wrong guess of how much the last `*` swallowed.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == '*' {
            retry = Some((p + 1, t));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == '?' || pattern[p] == text[t]) {
            p += 1;
            t += 1;
        } else if let Some((after_star, from)) = retry {
            retry = Some((after_star, from + 1));
            p = after_star;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id<'a>(vendor: &'a str, device: &'a str, device_type: &'a str) -> DeviceId<'a> {
        DeviceId { platform: "p", vendor, device, driver: "1", device_type, compute_capability: None }
    }

    fn name(id: &DeviceId<'_>) -> Option<String> {
        architecture(id).map(|a| a.name)
    }

    #[test]
    fn the_compiled_in_table_parses() {
        let table: Table = toml::from_str(include_str!("quirks.toml")).unwrap();
        assert!(table.quirk.len() >= 4 && table.architecture.len() > 20);
        assert!(table.quirk.iter().all(|q| !q.why.is_empty()), "every quirk says why");
        assert!(table.architecture.iter().all(|a| a.gbps.is_some() || a.gbps_per_cu.is_some()));
    }

    #[test]
    fn globs() {
        assert!(glob("*nvidia*", "NVIDIA Corporation"));
        assert!(glob("8.*", "8.6") && !glob("8.*", "9.0"));
        assert!(glob("1?.*", "12.0") && !glob("1?.*", "1.0"));
        assert!(glob("a*b*c", "a-bb-b-c") && !glob("a*b*c", "a-c-b"));
        assert!(glob("*", "") && glob("", "") && !glob("", "x") && !glob("?", ""));
    }

    #[test]
    fn quirks_merge_and_explain() {
        let pocl = DeviceId { platform: "Portable Computing Language", ..id("GenuineIntel", "pthread-x", "cpu") };
        let found = quirks(&pocl);
        assert!(found.uniform_barriers && !found.ptx);
        assert!(found.shared_compiler_folder);
        assert_eq!(found.reasons.len(), 2);
        let nvidia = quirks(&id("NVIDIA Corporation", "NVIDIA GeForce RTX 3060", "gpu"));
        assert!(nvidia.ptx && nvidia.probe_static_local && nvidia.no_command_buffers);
        let apple = DeviceId { platform: "Apple", ..id("Intel", "i7", "cpu") };
        assert_eq!(quirks(&apple).max_work_group_size, Some(1));
        assert_eq!(quirks(&id("Intel(R) Corporation", "Intel(R) Arc(TM) A770", "gpu")).zero_copy_align, Some(4096));
        assert_eq!(quirks(&id("nobody", "nothing", "other")), Quirks::default());
    }

    #[test]
    fn architectures_of_well_known_devices() {
        let nvidia = |device, capability| {
            name(&DeviceId { compute_capability: Some(capability), ..id("NVIDIA Corporation", device, "gpu") })
        };
        assert_eq!(nvidia("NVIDIA A100-SXM4-80GB", (8, 0)).as_deref(), Some("ampere"));
        assert_eq!(nvidia("NVIDIA GeForce RTX 4090", (8, 9)).as_deref(), Some("ada"));
        assert_eq!(nvidia("Tesla T4", (7, 5)).as_deref(), Some("turing"));
        assert_eq!(nvidia("Tesla V100", (7, 0)).as_deref(), Some("volta"));
        assert_eq!(nvidia("NVIDIA H100 PCIe", (9, 0)).as_deref(), Some("hopper"));
        assert_eq!(nvidia("NVIDIA B200", (10, 0)).as_deref(), Some("blackwell"));
        for (vendor, device, expected) in [
            ("Advanced Micro Devices, Inc.", "gfx1030", "rdna2"),
            ("Advanced Micro Devices, Inc.", "gfx1100", "rdna3"),
            ("Advanced Micro Devices, Inc.", "gfx90a:sramecc+:xnack-", "cdna2"),
            ("Advanced Micro Devices, Inc.", "gfx906", "vega"),
            ("Advanced Micro Devices, Inc.", "Ellesmere", "gcn"),
            ("Intel(R) Corporation", "Intel(R) UHD Graphics 630", "gen9"),
            ("Intel(R) Corporation", "Intel(R) Iris(R) Xe Graphics", "xe"),
            ("Intel(R) Corporation", "Intel(R) Arc(TM) A770 Graphics", "xe-hpg"),
            ("Intel(R) Corporation", "Intel(R) Arc(TM) B580 Graphics", "xe2"),
            ("ARM", "Mali-G78", "mali"),
            ("QUALCOMM", "QUALCOMM Adreno(TM)", "adreno"),
        ] {
            assert_eq!(name(&id(vendor, device, "gpu")).as_deref(), Some(expected), "{device}");
        }
        assert_eq!(name(&id("GenuineIntel", "Xeon", "cpu")).as_deref(), Some("cpu"));
        assert_eq!(name(&id("nobody", "nothing", "accel")), None);
    }
}
