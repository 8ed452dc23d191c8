//! Devices: what they say of themselves, cut down by quirks and `NETCL_LIMITS`.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use opencl_sys::*;

use super::api::{Api, api};
use super::error::{ClError, ClResult};
use super::facts::Facts;
use super::handle::{DeviceObject, Handle};
use super::info;
use super::limits::Limits;
use super::platform::Platform;
use crate::quirks::{DeviceId, Quirks, quirks};

const CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV: cl_device_info = 0x4000;
const CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV: cl_device_info = 0x4001;
const CL_DEVICE_WARP_SIZE_NV: cl_device_info = 0x4003;

/// What kind of hardware a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceType {
    /// A GPU.
    Gpu,
    /// A CPU.
    Cpu,
    /// A dedicated accelerator.
    Accelerator,
    /// Something else.
    Other,
}

impl DeviceType {
    /// `"gpu"`, `"cpu"`, `"accel"` or `"other"`.
    pub fn as_str(self) -> &'static str {
        match self {
            DeviceType::Gpu => "gpu",
            DeviceType::Cpu => "cpu",
            DeviceType::Accelerator => "accel",
            DeviceType::Other => "other",
        }
    }

    /// Reads an OpenCL device type; a device of several kinds counts as the fastest.
    pub fn from_bits(bits: u64) -> Self {
        if bits & CL_DEVICE_TYPE_GPU != 0 {
            DeviceType::Gpu
        } else if bits & CL_DEVICE_TYPE_ACCELERATOR != 0 {
            DeviceType::Accelerator
        } else if bits & CL_DEVICE_TYPE_CPU != 0 {
            DeviceType::Cpu
        } else {
            DeviceType::Other
        }
    }
}

impl std::fmt::Display for DeviceType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Everything a device says of itself, read once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The device's name.
    pub name: String,
    /// Who made it.
    pub vendor: String,
    /// `OpenCL 3.0 ...`
    pub version: String,
    /// `OpenCL C 1.2 ...`
    pub c_version: String,
    /// The driver's version.
    pub driver_version: String,
    /// Major and minor of `version`.
    pub opencl: (u32, u32),
    /// Major and minor of `c_version`.
    pub opencl_c: (u32, u32),
    /// What it is.
    pub device_type: DeviceType,
    /// The bits of `CL_DEVICE_TYPE`.
    pub type_bits: u64,
    /// Its extensions.
    pub extensions: Vec<String>,
    /// Compute units.
    pub compute_units: u32,
    /// Highest clock in MHz; 0 when unknown.
    pub clock_mhz: u32,
    /// Largest work-group.
    pub max_work_group_size: usize,
    /// Largest work-group in each dimension.
    pub max_work_item_sizes: Vec<usize>,
    /// Local memory in bytes as advertised.
    pub local_mem_size: u64,
    /// True when local memory is real hardware rather than a piece of global memory.
    pub local_mem_dedicated: bool,
    /// Global memory in bytes.
    pub global_mem_size: u64,
    /// Global cache in bytes.
    pub global_cache_size: u64,
    /// Length of a line of that cache in bytes.
    pub cache_line: u32,
    /// Largest single allocation in bytes.
    pub max_mem_alloc_size: u64,
    /// Alignment of sub-buffer origins, in bytes.
    pub base_addr_align: usize,
    /// Host and device share memory.
    pub host_unified_memory: bool,
    /// Most bytes of kernel arguments.
    pub max_parameter_size: usize,
    /// Largest constant buffer in bytes.
    pub max_constant_buffer_size: u64,
    /// Preferred vector widths of char, short, int, long, float, double, half (0: not supported).
    pub preferred_vector_widths: [u32; 7],
    /// Resolution of profiling times in nanoseconds.
    pub timer_resolution: usize,
    /// `CL_DEVICE_SVM_CAPABILITIES`; 0 for none.
    pub svm_capabilities: u64,
    /// A compiler is there.
    pub compiler_available: bool,
    /// NVIDIA's compute capability.
    pub compute_capability: Option<(u32, u32)>,
    /// NVIDIA's warp size.
    pub warp_size: Option<u32>,
}

impl DeviceInfo {
    /// True when `extension` is in the list.
    pub fn has_extension(&self, extension: &str) -> bool {
        self.extensions.iter().any(|e| e == extension)
    }
}

/// One device of one platform. Clones share what is known about it; the same driver object is always the same `Device`.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    handle: Handle<DeviceObject>,
    platform: Platform,
    info: DeviceInfo,
    raw: DeviceInfo,
    quirks: Quirks,
    limits: &'static Limits,
    facts: Facts,
}

impl Device {
    /// Wraps a `cl_device_id` made by other code; a reference is added.
    ///
    /// # Safety
    /// `ptr` is a valid `cl_device_id` of the loaded library.
    pub unsafe fn from_int_ptr(ptr: usize) -> ClResult<Device> {
        // One entry per driver object, kept for good: its facts and probes are found again, and since the entry holds a
        // reference the driver cannot give the address to another object.
        static KNOWN: OnceLock<Mutex<HashMap<usize, Device>>> = OnceLock::new();
        let api = api("clGetDeviceInfo")?; // refuses in a forked child before the lock is touched
        let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = known.get(&ptr) {
            return Ok(device.clone());
        }
        // SAFETY: the caller vouches for the pointer.
        let handle = unsafe { Handle::<DeviceObject>::share(ptr as *mut c_void)? };
        let device = Device::load(api, handle)?;
        known.insert(ptr, device.clone());
        Ok(device)
    }

    fn load(api: &Api, handle: Handle<DeviceObject>) -> ClResult<Device> {
        let limits = Limits::from_env();
        let reader = Reader { api, id: handle.raw() };
        let platform_id: usize = reader.get(CL_DEVICE_PLATFORM)?;
        // SAFETY: the id is the driver's own.
        let platform = unsafe { Platform::from_int_ptr(platform_id)? };
        let raw = reader.read()?;
        let quirks = quirks(&device_id(&platform, &raw));
        let info = limited(&raw, limits, &quirks);
        Ok(Device(Arc::new(Inner { handle, platform, info, raw, quirks, limits, facts: Facts::default() })))
    }

    /// The `cl_device_id` as a number.
    pub fn int_ptr(&self) -> usize {
        self.0.handle.raw() as usize
    }

    pub(super) fn raw_id(&self) -> cl_device_id {
        self.0.handle.raw()
    }

    /// The platform it belongs to.
    pub fn platform(&self) -> &Platform {
        &self.0.platform
    }

    /// What everyone is to believe: the driver's words, cut down by quirks and `NETCL_LIMITS`.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// The driver's own words.
    pub fn raw_info(&self) -> &DeviceInfo {
        &self.0.raw
    }

    /// The quirk table's entries for it.
    pub fn quirks(&self) -> &Quirks {
        &self.0.quirks
    }

    /// The limits it pretends to have.
    pub fn limits(&self) -> &'static Limits {
        self.0.limits
    }

    /// What probing found out so far; [`Device::probes`] makes them.
    pub(super) fn facts(&self) -> &Facts {
        &self.0.facts
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.info().name
    }

    /// The device's vendor.
    pub fn vendor(&self) -> &str {
        &self.info().vendor
    }

    /// What it is.
    pub fn device_type(&self) -> DeviceType {
        self.info().device_type
    }

    /// True when the (limited) extension list holds `extension`.
    pub fn has_extension(&self, extension: &str) -> bool {
        self.info().has_extension(extension)
    }

    /// What the quirk tables are matched against.
    pub fn id(&self) -> DeviceId<'_> {
        device_id(&self.0.platform, &self.0.raw)
    }

    /// Everything that a compiled program depends on, as one text: names, versions and, for CPUs, the instruction sets (two
    /// hosts may share a device name and differ in those).
    pub fn identity(&self) -> String {
        let raw = self.raw_info();
        let platform = self.platform();
        let mut text =
            [platform.name(), platform.version(), &raw.vendor, &raw.name, &raw.version, &raw.driver_version].join("\n");
        if raw.device_type == DeviceType::Cpu {
            text.push_str(&host_features());
        }
        text
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({:?} on {:?})", self.name(), self.platform().name())
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.int_ptr() == other.int_ptr()
    }
}

impl Eq for Device {}

impl std::hash::Hash for Device {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.int_ptr().hash(state);
    }
}

fn device_id<'a>(platform: &'a Platform, info: &'a DeviceInfo) -> DeviceId<'a> {
    DeviceId {
        platform: platform.name(),
        vendor: &info.vendor,
        device: &info.name,
        driver: &info.driver_version,
        device_type: info.device_type.as_str(),
        compute_capability: info.compute_capability,
    }
}

fn limited(raw: &DeviceInfo, limits: &Limits, quirks: &Quirks) -> DeviceInfo {
    let mut info = raw.clone();
    let cap = limits.work_group.into_iter().chain(quirks.max_work_group_size).min().unwrap_or(usize::MAX);
    info.max_work_group_size = info.max_work_group_size.min(cap);
    for size in &mut info.max_work_item_sizes {
        *size = (*size).min(cap);
    }
    info.local_mem_size = info.local_mem_size.min(limits.local.unwrap_or(u64::MAX));
    info.max_mem_alloc_size = info.max_mem_alloc_size.min(limits.alloc.unwrap_or(u64::MAX));
    let parameters = limits.parameters.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    info.max_parameter_size = info.max_parameter_size.min(parameters);
    info.extensions.retain(|extension| !limits.hides(extension));
    if limits.no_fp64 {
        info.preferred_vector_widths[5] = 0;
    }
    if limits.no_fp16 {
        info.preferred_vector_widths[6] = 0;
    }
    info
}

struct Reader<'a> {
    api: &'a Api,
    id: cl_device_id,
}

impl Reader<'_> {
    const CALL: &'static str = "clGetDeviceInfo";

    fn query(&self, what: cl_device_info) -> impl Fn(usize, *mut c_void, *mut usize) -> cl_int + '_ {
        // SAFETY: the device is alive (the caller holds its handle), and `info` passes a matching capacity.
        move |size, to, got| unsafe { (self.api.clGetDeviceInfo)(self.id, what, size, to, got) }
    }

    fn get<T: bytemuck::Pod>(&self, what: cl_device_info) -> ClResult<T> {
        info::scalar(Self::CALL, self.query(what)).map_err(|e| e.about(|| format!("query {what:#x}")))
    }

    /// For facts that an old or sloppy driver may not know.
    fn get_or<T: bytemuck::Pod>(&self, what: cl_device_info, default: T) -> T {
        info::scalar(Self::CALL, self.query(what)).unwrap_or(default)
    }

    fn text(&self, what: cl_device_info) -> ClResult<String> {
        info::string(Self::CALL, self.query(what)).map_err(|e| e.about(|| format!("query {what:#x}")))
    }

    fn read(&self) -> ClResult<DeviceInfo> {
        let version = self.text(CL_DEVICE_VERSION)?;
        let c_version = self.text(CL_DEVICE_OPENCL_C_VERSION).unwrap_or_default();
        let opencl = parse_version(&version, "OpenCL ")
            .ok_or_else(|| ClError::usage(Self::CALL, format!("the driver's version text is {version:?}")))?;
        let type_bits: cl_device_type = self.get(CL_DEVICE_TYPE)?;
        let extensions: Vec<String> = self.text(CL_DEVICE_EXTENSIONS)?.split_whitespace().map(str::to_owned).collect();
        let nvidia = extensions.iter().any(|e| e == "cl_nv_device_attribute_query");
        let major: u32 = if nvidia { self.get_or(CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV, 0) } else { 0 };
        let minor: u32 = if nvidia { self.get_or(CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV, 0) } else { 0 };
        let warp: u32 = if nvidia { self.get_or(CL_DEVICE_WARP_SIZE_NV, 0) } else { 0 };
        let width = |what| self.get_or::<cl_uint>(what, 0);
        Ok(DeviceInfo {
            name: self.text(CL_DEVICE_NAME)?,
            vendor: self.text(CL_DEVICE_VENDOR)?,
            driver_version: self.text(CL_DRIVER_VERSION)?,
            opencl_c: parse_version(&c_version, "OpenCL C ").unwrap_or(opencl),
            version,
            c_version,
            opencl,
            device_type: DeviceType::from_bits(type_bits),
            type_bits,
            extensions,
            compute_units: self.get(CL_DEVICE_MAX_COMPUTE_UNITS)?,
            clock_mhz: self.get_or(CL_DEVICE_MAX_CLOCK_FREQUENCY, 0),
            max_work_group_size: self.get(CL_DEVICE_MAX_WORK_GROUP_SIZE)?,
            max_work_item_sizes: info::list(Self::CALL, self.query(CL_DEVICE_MAX_WORK_ITEM_SIZES))?,
            local_mem_size: self.get(CL_DEVICE_LOCAL_MEM_SIZE)?,
            local_mem_dedicated: self.get_or::<cl_uint>(CL_DEVICE_LOCAL_MEM_TYPE, CL_GLOBAL) == CL_LOCAL,
            global_mem_size: self.get(CL_DEVICE_GLOBAL_MEM_SIZE)?,
            global_cache_size: self.get_or(CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, 0),
            cache_line: self.get_or(CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE, 0),
            max_mem_alloc_size: self.get(CL_DEVICE_MAX_MEM_ALLOC_SIZE)?,
            // The driver counts bits. 128 bytes is the largest OpenCL type, the least that the standard allows.
            base_addr_align: (self.get_or::<cl_uint>(CL_DEVICE_MEM_BASE_ADDR_ALIGN, 1024) as usize / 8).max(1),
            host_unified_memory: self.get_or::<cl_bool>(CL_DEVICE_HOST_UNIFIED_MEMORY, CL_FALSE) != CL_FALSE,
            max_parameter_size: self.get_or(CL_DEVICE_MAX_PARAMETER_SIZE, 1024),
            max_constant_buffer_size: self.get_or(CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE, 65536),
            preferred_vector_widths: [
                width(CL_DEVICE_PREFERRED_VECTOR_WIDTH_CHAR),
                width(CL_DEVICE_PREFERRED_VECTOR_WIDTH_SHORT),
                width(CL_DEVICE_PREFERRED_VECTOR_WIDTH_INT),
                width(CL_DEVICE_PREFERRED_VECTOR_WIDTH_LONG),
                width(CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT),
                width(CL_DEVICE_PREFERRED_VECTOR_WIDTH_DOUBLE),
                width(CL_DEVICE_PREFERRED_VECTOR_WIDTH_HALF),
            ],
            timer_resolution: self.get_or(CL_DEVICE_PROFILING_TIMER_RESOLUTION, 0),
            svm_capabilities: if opencl >= (2, 0) { self.get_or(CL_DEVICE_SVM_CAPABILITIES, 0) } else { 0 },
            compiler_available: self.get_or::<cl_bool>(CL_DEVICE_COMPILER_AVAILABLE, CL_TRUE) != CL_FALSE,
            compute_capability: (major > 0).then_some((major, minor)),
            warp_size: (warp > 0).then_some(warp),
        })
    }
}

/// Reads `OpenCL 3.0 vendor words` after the given prefix.
fn parse_version(text: &str, prefix: &str) -> Option<(u32, u32)> {
    let number = text.strip_prefix(prefix)?.split_whitespace().next()?;
    let (major, minor) = number.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn host_features() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        let has = [
            ("avx2", std::is_x86_feature_detected!("avx2")),
            ("fma", std::is_x86_feature_detected!("fma")),
            ("avx512f", std::is_x86_feature_detected!("avx512f")),
            ("avx512vl", std::is_x86_feature_detected!("avx512vl")),
            ("avx512bf16", std::is_x86_feature_detected!("avx512bf16")),
            ("avx512fp16", std::is_x86_feature_detected!("avx512fp16")),
        ];
        has.iter().filter(|(_, on)| *on).map(|(name, _)| format!("\n{name}")).collect()
    }
    #[cfg(not(target_arch = "x86_64"))]
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(parse_version("OpenCL 3.0 PoCL HSTR", "OpenCL "), Some((3, 0)));
        assert_eq!(parse_version("OpenCL C 1.2 ", "OpenCL C "), Some((1, 2)));
        assert_eq!(parse_version("OpenCL x", "OpenCL "), None);
        assert_eq!(parse_version("", "OpenCL "), None);
    }

    #[test]
    fn device_types() {
        assert_eq!(DeviceType::from_bits(CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_DEFAULT).as_str(), "gpu");
        assert_eq!(DeviceType::from_bits(CL_DEVICE_TYPE_CPU).as_str(), "cpu");
        assert_eq!(DeviceType::from_bits(CL_DEVICE_TYPE_ACCELERATOR).as_str(), "accel");
        assert_eq!(DeviceType::from_bits(CL_DEVICE_TYPE_CUSTOM).as_str(), "other");
    }
}
