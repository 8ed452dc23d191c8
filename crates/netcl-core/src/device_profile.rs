//! More about a device than [`capabilities`](crate::capabilities): its family and the figures a selector ranks kernels with.

use crate::backend::opencl::Device;
use crate::capabilities::DeviceProfile;
use crate::quirks::{Quirks, architecture};

/// The family of devices that nothing is known about.
pub const UNKNOWN_ARCHITECTURE: &str = "unknown";

/// What the kernel selector knows of a device.
///
/// ```
/// use netcl_core::device_profile::ExtendedDeviceProfile;
/// let cpu = ExtendedDeviceProfile::cpu();
/// assert_eq!(cpu.architecture, "cpu");
/// assert!(cpu.bandwidth_gbps > 0.0);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExtendedDeviceProfile {
    /// What it can do.
    pub base: DeviceProfile,
    /// A guess at the family: `"hopper"`, `"ampere"`, `"turing"`, `"rdna2"`, `"gen9"`, `"xe"`, `"cpu"`, ... or `"unknown"`.
    pub architecture: String,
    /// NVIDIA's compute capability.
    pub compute_capability: Option<(u32, u32)>,
    /// Work-items that run in lockstep, from the driver where it says, else from the family.
    pub warp_size: u32,
    /// Preferred vector width of `float`.
    pub vector_width_float: u32,
    /// Preferred vector width of `half`; 0 without fp16.
    pub vector_width_half: u32,
    /// Preferred vector width of `double`; 0 without fp64.
    pub vector_width_double: u32,
    /// Highest clock in MHz; 0 when unknown.
    pub clock_mhz: u32,
    /// Cache in bytes; 0 when unknown.
    pub cache_bytes: u64,
    /// Length of a cache line in bytes; 0 when unknown.
    pub cache_line: u32,
    /// Local memory is hardware of its own; if not, tiles in it only copy what the cache holds anyway.
    pub local_mem_dedicated: bool,
    /// Memory bandwidth in GB/s: from the data sheet or a rule of thumb, good for ranking, not for reports.
    pub bandwidth_gbps: f64,
    /// What to beware of.
    pub quirks: Quirks,
}

impl ExtendedDeviceProfile {
    /// The profile of an OpenCL device.
    pub fn from_opencl(device: &Device) -> ExtendedDeviceProfile {
        let info = device.info();
        let family = architecture(&device.id());
        let per_unit = |gbps: f64| gbps * f64::from(info.compute_units);
        let bandwidth_gbps = family
            .as_ref()
            .and_then(|f| f.gbps.or_else(|| f.gbps_per_cu.map(per_unit)))
            // An unknown device: twice what a CPU's core gets, so that it does not rank below one.
            .unwrap_or_else(|| per_unit(10.0));
        let [_, _, _, _, float, double, half] = info.preferred_vector_widths;
        ExtendedDeviceProfile {
            base: DeviceProfile::from_opencl(device),
            warp_size: info.warp_size.or_else(|| family.as_ref().map(|f| f.subgroup)).unwrap_or(1),
            architecture: family.map_or_else(|| UNKNOWN_ARCHITECTURE.to_owned(), |f| f.name),
            compute_capability: info.compute_capability,
            vector_width_float: float.max(1),
            vector_width_half: half,
            vector_width_double: double,
            clock_mhz: info.clock_mhz,
            cache_bytes: info.global_cache_size,
            cache_line: info.cache_line,
            local_mem_dedicated: info.local_mem_dedicated,
            bandwidth_gbps,
            quirks: device.quirks().clone(),
        }
    }

    /// The profile of the native CPU backend.
    pub fn cpu() -> ExtendedDeviceProfile {
        let base = DeviceProfile::cpu();
        ExtendedDeviceProfile {
            architecture: "cpu".to_owned(),
            compute_capability: None,
            warp_size: 1,
            // AVX2 or NEON, the two that the native loops are written for.
            vector_width_float: if cfg!(target_arch = "x86_64") { 8 } else { 4 },
            vector_width_half: 0,
            vector_width_double: if cfg!(target_arch = "x86_64") { 4 } else { 2 },
            clock_mhz: 0,
            cache_bytes: 0,
            cache_line: 64,
            local_mem_dedicated: false,
            bandwidth_gbps: 5.0 * f64::from(base.compute_units),
            quirks: Quirks::default(),
            base,
        }
    }
}
