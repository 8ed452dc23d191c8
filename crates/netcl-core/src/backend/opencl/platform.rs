//! Platforms and discovery.

use std::sync::{Arc, Mutex, PoisonError};

use opencl_sys::*;

use super::api::api;
use super::device::Device;
use super::error::{ClError, ClResult, check};
use super::info;

const CL_PLATFORM_NOT_FOUND_KHR: cl_int = -1001;

/// Held while a driver is asked for its devices. PoCL 3.1 sets itself up in the first such call and, when a second thread asks
/// meanwhile, hands it devices that are not ready: a crash.
static SETTING_UP: Mutex<()> = Mutex::new(());

/// One installed driver.
#[derive(Clone)]
pub struct Platform(Arc<Inner>);

struct Inner {
    id: usize,
    name: String,
    vendor: String,
    version: String,
    extensions: Vec<String>,
}

impl Platform {
    /// Every platform the loader knows, sorted by name so that indices do not depend on the order of a folder.
    pub fn all() -> ClResult<Vec<Platform>> {
        let mut platforms = Vec::new();
        for id in platform_ids()? {
            platforms.push(Platform::load(id)?);
        }
        platforms.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(platforms)
    }

    /// Wraps a `cl_platform_id` made by other code.
    ///
    /// # Safety
    /// `ptr` is a valid `cl_platform_id` of the loaded library.
    pub unsafe fn from_int_ptr(ptr: usize) -> ClResult<Platform> {
        Platform::load(ptr)
    }

    fn load(id: usize) -> ClResult<Platform> {
        const CALL: &str = "clGetPlatformInfo";
        let api = api(CALL)?;
        if id == 0 {
            return Err(ClError::usage(CALL, "the pointer is null"));
        }
        let text = |what| {
            // SAFETY: `id` came from the driver (or is vouched for by the caller of `from_int_ptr`), and the query
            // passes a capacity that matches its destination.
            info::string(CALL, |size, to, got| unsafe {
                (api.clGetPlatformInfo)(id as cl_platform_id, what, size, to, got)
            })
        };
        Ok(Platform(Arc::new(Inner {
            id,
            name: text(CL_PLATFORM_NAME)?,
            vendor: text(CL_PLATFORM_VENDOR)?,
            version: text(CL_PLATFORM_VERSION)?,
            extensions: text(CL_PLATFORM_EXTENSIONS)?.split_whitespace().map(str::to_owned).collect(),
        })))
    }

    /// The `cl_platform_id` as a number.
    pub fn int_ptr(&self) -> usize {
        self.0.id
    }

    /// The platform's name, for example `NVIDIA CUDA`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Who made it.
    pub fn vendor(&self) -> &str {
        &self.0.vendor
    }

    /// Its version text, `OpenCL 3.0 ...`.
    pub fn version(&self) -> &str {
        &self.0.version
    }

    /// The extensions that all its devices have.
    pub fn extensions(&self) -> &[String] {
        &self.0.extensions
    }

    /// The platform's devices in the driver's order; none is an empty list.
    pub fn devices(&self) -> ClResult<Vec<Device>> {
        const CALL: &str = "clGetDeviceIDs";
        let api = api(CALL)?;
        let platform = self.0.id as cl_platform_id;
        let setting_up = SETTING_UP.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count = 0;
        // SAFETY: the platform is valid; a null list with room for none asks for the count alone.
        let code = unsafe { (api.clGetDeviceIDs)(platform, CL_DEVICE_TYPE_ALL, 0, std::ptr::null_mut(), &mut count) };
        if code == CL_DEVICE_NOT_FOUND || (code == CL_SUCCESS && count == 0) {
            return Ok(Vec::new());
        }
        check(CALL, code)?;
        let mut ids = vec![std::ptr::null_mut(); count as usize];
        // SAFETY: the list has room for `count` ids.
        check(CALL, unsafe {
            (api.clGetDeviceIDs)(platform, CL_DEVICE_TYPE_ALL, count, ids.as_mut_ptr(), &mut count)
        })?;
        ids.truncate(count as usize);
        drop(setting_up);
        // SAFETY: the ids are the driver's own.
        ids.into_iter().map(|id| unsafe { Device::from_int_ptr(id as usize) }).collect()
    }
}

impl std::fmt::Debug for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Platform({:?}, {:?})", self.name(), self.version())
    }
}

impl PartialEq for Platform {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Platform {}

fn platform_ids() -> ClResult<Vec<usize>> {
    const CALL: &str = "clGetPlatformIDs";
    let api = api(CALL)?;
    let _setting_up = SETTING_UP.lock().unwrap_or_else(PoisonError::into_inner);
    let mut count = 0;
    // SAFETY: a null list with room for none asks for the count alone.
    let code = unsafe { (api.clGetPlatformIDs)(0, std::ptr::null_mut(), &mut count) };
    if code == CL_PLATFORM_NOT_FOUND_KHR || (code == CL_SUCCESS && count == 0) {
        return Ok(Vec::new());
    }
    check(CALL, code)?;
    let mut ids = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: the list has room for `count` ids.
    check(CALL, unsafe { (api.clGetPlatformIDs)(count, ids.as_mut_ptr(), &mut count) })?;
    ids.truncate(count as usize);
    Ok(ids.into_iter().map(|id| id as usize).collect())
}

/// What one platform answered.
#[derive(Clone, Debug)]
pub struct PlatformReport {
    /// The platform; `None` when not even its name could be read.
    pub platform: Option<Platform>,
    /// Its devices.
    pub devices: Vec<Device>,
    /// Why it has none, when that is an error.
    pub problem: Option<ClError>,
}

/// The result of [`discover`].
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    /// One report per platform, sorted by the platform's name.
    pub platforms: Vec<PlatformReport>,
}

impl Discovery {
    /// All devices, platform by platform.
    pub fn devices(&self) -> Vec<Device> {
        self.platforms.iter().flat_map(|report| report.devices.iter().cloned()).collect()
    }

    /// What went wrong, one error per failing platform.
    pub fn problems(&self) -> impl Iterator<Item = &ClError> {
        self.platforms.iter().filter_map(|report| report.problem.as_ref())
    }
}

/// Looks at every platform; one that fails is reported and does not take the others down.
///
/// An error means that there is no library at all, that this is a forked child, or that `NETCL_LIMITS` cannot be read.
///
/// ```
/// match netcl_core::backend::opencl::discover() {
///     Ok(found) => {
///         for device in found.devices() {
///             println!("{}: {}", device.platform().name(), device.name());
///         }
///     }
///     Err(why) => println!("no OpenCL here: {why}"),
/// }
/// ```
pub fn discover() -> ClResult<Discovery> {
    let mut platforms = Vec::new();
    for id in platform_ids()? {
        platforms.push(match Platform::load(id) {
            Err(problem) => PlatformReport { platform: None, devices: Vec::new(), problem: Some(problem) },
            Ok(platform) => {
                let (devices, problem) = match platform.devices() {
                    Ok(devices) => (devices, None),
                    Err(problem) => (Vec::new(), Some(problem)),
                };
                PlatformReport { platform: Some(platform), devices, problem }
            }
        });
    }
    platforms.sort_by(|a, b| a.platform.as_ref().map(Platform::name).cmp(&b.platform.as_ref().map(Platform::name)));
    Ok(Discovery { platforms })
}
