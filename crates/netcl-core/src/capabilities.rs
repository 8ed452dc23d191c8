//! What a device can do, as everyone else asks it: by capability, never by vendor.

use crate::backend::opencl::{Device, DeviceType, Subgroups};
use crate::env;

/// Below this much local memory a device counts as small: tiled kernels have no room.
const SMALL_LOCAL_BYTES: u64 = 16 * 1024;

/// Hardware for matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MatrixUnit {
    /// NVIDIA's warp-level `mma.sync` (bf16 and friends), Ampere and later.
    NvidiaMma,
    /// NVIDIA's warp-group `wgmma`, Hopper.
    NvidiaWgmma,
}

impl MatrixUnit {
    /// `"nvidia-mma"` or `"nvidia-wgmma"`.
    pub fn as_str(self) -> &'static str {
        match self {
            MatrixUnit::NvidiaMma => "nvidia-mma",
            MatrixUnit::NvidiaWgmma => "nvidia-wgmma",
        }
    }
}

/// A summary of a device that does not change.
///
/// The fields repeat what the device says (cut down by quirks and `NETCL_LIMITS`); the methods are facts that are found out by
/// a small experiment when first asked for.
///
/// ```
/// use netcl_core::capabilities::{DeviceProfile, kernel_strategy};
/// let cpu = DeviceProfile::cpu();
/// assert_eq!(cpu.device_type, "cpu");
/// assert!(cpu.has_fp64 && cpu.fp16_storage() && cpu.matrix_units().is_empty());
/// # if std::env::var_os("NETCL_KERNEL_STRATEGY").is_none() {
/// assert_eq!(kernel_strategy(&cpu), "portable");
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceProfile {
    /// The device's name.
    pub name: String,
    /// Who made it.
    pub vendor: String,
    /// `"gpu"`, `"cpu"`, `"accel"` or `"other"`.
    pub device_type: &'static str,
    /// `"cl"` or `"cpu"`.
    pub backend: &'static str,
    /// Any extension mentions fp16. See [`DeviceProfile::fp16_storage`] and [`DeviceProfile::fp16_arithmetic`] for what
    /// works.
    pub has_fp16: bool,
    /// Double precision.
    pub has_fp64: bool,
    /// Any extension mentions subgroups.
    pub has_subgroups: bool,
    /// 64-bit atomics.
    pub fast_atomics: bool,
    /// Local memory in bytes as advertised.
    pub local_mem_size: u64,
    /// Largest work-group.
    pub max_work_group_size: usize,
    /// Compute units.
    pub compute_units: u32,
    /// Global memory in bytes; 0 when unknown.
    pub global_mem_size: u64,
    /// Largest single allocation in bytes.
    pub max_mem_alloc_size: u64,
    /// Most bytes of kernel arguments.
    pub max_parameter_size: usize,
    /// Host and device share memory.
    pub unified_memory: bool,
    /// The extension list.
    pub extensions: Vec<String>,
    /// The device to experiment on; the native CPU has none.
    device: Option<Device>,
}

impl DeviceProfile {
    /// The profile of an OpenCL device.
    pub fn from_opencl(device: &Device) -> DeviceProfile {
        let info = device.info();
        let mentions = |word: &str| info.extensions.iter().any(|e| e.contains(word));
        DeviceProfile {
            name: info.name.clone(),
            vendor: info.vendor.clone(),
            device_type: info.device_type.as_str(),
            backend: "cl",
            has_fp16: mentions("fp16"),
            has_fp64: info.has_extension("cl_khr_fp64") || info.has_extension("cl_amd_fp64"),
            has_subgroups: mentions("subgroup"),
            fast_atomics: info.has_extension("cl_khr_int64_base_atomics")
                || info.has_extension("cl_khr_int64_extended_atomics"),
            local_mem_size: info.local_mem_size,
            max_work_group_size: info.max_work_group_size,
            compute_units: info.compute_units,
            global_mem_size: info.global_mem_size,
            max_mem_alloc_size: info.max_mem_alloc_size,
            max_parameter_size: info.max_parameter_size,
            unified_memory: info.host_unified_memory,
            extensions: info.extensions.clone(),
            device: Some(device.clone()),
        }
    }

    /// The profile of the native CPU backend.
    pub fn cpu() -> DeviceProfile {
        DeviceProfile {
            name: "native CPU".to_owned(),
            vendor: std::env::consts::ARCH.to_owned(),
            device_type: DeviceType::Cpu.as_str(),
            backend: "cpu",
            has_fp16: false,
            has_fp64: true,
            has_subgroups: false,
            fast_atomics: true,
            local_mem_size: 0,
            max_work_group_size: 1,
            compute_units: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            global_mem_size: 0,
            max_mem_alloc_size: isize::MAX as u64,
            max_parameter_size: usize::MAX,
            unified_memory: true,
            extensions: Vec::new(),
            device: None,
        }
    }

    /// The same as `has_fp16`, under the documentation's second name.
    pub fn supports_fp16(&self) -> bool {
        self.has_fp16
    }

    /// The OpenCL device behind the profile.
    pub fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// Values can be stored in half precision.
    pub fn fp16_storage(&self) -> bool {
        self.device.as_ref().is_none_or(|device| device.probes().fp16_storage())
    }

    /// Kernels can compute in half precision (the native CPU converts instead).
    pub fn fp16_arithmetic(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.probes().fp16_arithmetic())
    }

    /// Matrix hardware that computes right, the best last.
    pub fn matrix_units(&self) -> Vec<MatrixUnit> {
        let Some(device) = &self.device else { return Vec::new() };
        let probes = device.probes();
        let mut units = Vec::new();
        if probes.nvidia_mma() {
            units.push(MatrixUnit::NvidiaMma);
        }
        if probes.nvidia_wgmma() {
            units.push(MatrixUnit::NvidiaWgmma);
        }
        units
    }

    /// Boxes of arrays can be copied to local memory by hardware (NVIDIA's tensor maps).
    pub fn tensor_copies(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.probes().nvidia_tensor_copies())
    }

    /// Subgroups, when they exist and compute right.
    pub fn subgroups(&self) -> Option<Subgroups> {
        self.device.as_ref().and_then(|device| device.probes().subgroups())
    }

    /// Bytes of static local memory that a work-group can really use, which may be more than advertised.
    pub fn static_local_mem_size(&self) -> u64 {
        self.device.as_ref().map_or(self.local_mem_size, |device| device.probes().static_local_bytes())
    }
}

/// The profile of an OpenCL device.
pub fn device_profile(device: &Device) -> DeviceProfile {
    DeviceProfile::from_opencl(device)
}

/// `"portable"` or `"optimized"`: which family of kernels suits a device.
///
/// CPUs and devices with very little local memory are portable; devices with subgroups or fp16, and those of NVIDIA and AMD, are
/// optimized. `NETCL_KERNEL_STRATEGY` overrides.
pub fn kernel_strategy(profile: &DeviceProfile) -> &'static str {
    strategy(profile, env::KERNEL_STRATEGY.word())
}

fn strategy(profile: &DeviceProfile, forced: Option<&str>) -> &'static str {
    match forced {
        Some("portable") => return "portable",
        Some("optimized") => return "optimized",
        _ => {}
    }
    if profile.device_type == "cpu" || profile.local_mem_size < SMALL_LOCAL_BYTES {
        return "portable";
    }
    let vendor = profile.vendor.to_ascii_lowercase();
    let known = ["nvidia", "advanced micro devices", "amd"].iter().any(|name| vendor.contains(name));
    if profile.has_subgroups || profile.has_fp16 || known { "optimized" } else { "portable" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(vendor: &str, local: u64) -> DeviceProfile {
        DeviceProfile { device_type: "gpu", vendor: vendor.to_owned(), local_mem_size: local, ..DeviceProfile::cpu() }
    }

    #[test]
    fn strategies_follow_the_documentation() {
        assert_eq!(strategy(&DeviceProfile::cpu(), None), "portable");
        assert_eq!(strategy(&gpu("NVIDIA Corporation", 49152), None), "optimized");
        assert_eq!(strategy(&gpu("Advanced Micro Devices, Inc.", 65536), None), "optimized");
        assert_eq!(strategy(&gpu("NVIDIA Corporation", 4096), None), "portable");
        assert_eq!(strategy(&gpu("ARM", 32768), None), "portable");
        assert_eq!(strategy(&DeviceProfile { has_subgroups: true, ..gpu("ARM", 32768) }, None), "optimized");
        assert_eq!(strategy(&DeviceProfile { has_fp16: true, ..gpu("ARM", 32768) }, None), "optimized");
    }

    #[test]
    fn the_environment_has_the_last_word() {
        assert_eq!(strategy(&DeviceProfile::cpu(), Some("optimized")), "optimized");
        assert_eq!(strategy(&gpu("NVIDIA", 49152), Some("portable")), "portable");
        assert_eq!(strategy(&gpu("NVIDIA", 49152), Some("auto")), "optimized");
    }
}
