//! Devices: discovery, selection by name or capability, and the thread's active device.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use crate::backend::cpu::CpuQueue;
use crate::backend::opencl::{self, ClError, Context, Device, Discovery, LoadError, Stream};
use crate::backend::{Backend, Queue};
use crate::capabilities::DeviceProfile;
use crate::dtype::DType;
use crate::env;
use crate::error::{Error, Result};

pub use crate::backend::opencl::DeviceType;

/// A chosen device, ready to be computed on: everything the layers above need.
#[derive(Clone, PartialEq)]
pub struct DeviceHandle {
    /// The platform, e.g. `"NVIDIA CUDA"`, or `"netcl"` for the native CPU.
    pub platform_name: String,
    /// The device, e.g. `"Tesla T4"`.
    pub device_name: String,
    /// The transport.
    pub backend: Backend,
    /// What kind of device it is.
    pub device_type: DeviceType,
    /// The queue that tensors are created on.
    pub queue: Queue,
}

impl fmt::Debug for DeviceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceHandle({:?}, {:?}, ", self.platform_name, self.device_name)?;
        write!(f, "backend={:?}, device_type={:?})", self.backend.name(), self.device_type.as_str())
    }
}

impl DeviceHandle {
    /// The OpenCL context; `None` for the native CPU.
    pub fn context(&self) -> Option<&Context> {
        match &self.queue {
            Queue::Cpu(_) => None,
            Queue::OpenCl(stream) => Some(stream.context()),
        }
    }

    fn opencl(device: &Device) -> Result<DeviceHandle> {
        Ok(DeviceHandle {
            platform_name: device.platform().name().to_owned(),
            device_name: device.name().to_owned(),
            backend: Backend::OpenCl,
            device_type: device.device_type(),
            queue: Queue::OpenCl(Stream::on_device(device)?),
        })
    }
}

/// Finds devices and hands out one cached handle per selector.
///
/// | selector | device |
/// |---|---|
/// | `"auto"` | what `NETCL_DEVICE` says, else the best GPU or accelerator, else the native CPU |
/// | `"cpu"` | the native CPU |
/// | `"gpu"`, `"accel"` | the best OpenCL device of that kind |
/// | `"opencl"` | the best OpenCL device of any kind |
/// | `"0"`, `"1"`, ... | the device at that place of [`DeviceManager::discover`] |
/// | `"<platform>:<device>"` | the device at that place of that platform, both counted from 0 |
/// | `"fp16"`, `"fp64"`, `"subgroups"`, `"matrix"` | the best GPU or accelerator that has half-precision arithmetic, double precision, subgroups or matrix units; else the native CPU where it has; else another OpenCL device that has |
/// | anything else | the first device whose name, or else whose platform's name, contains it, whatever the case |
///
/// An OpenCL driver for the CPU is therefore only ever chosen by `"opencl"`, index, name or platform: the native CPU serves the same
/// machine faster.
///
/// ```
/// use netcl_core::device::manager;
///
/// let dev = manager().default("cpu")?.expect("the native CPU is always there");
/// assert_eq!((dev.backend.name(), dev.device_type.as_str()), ("cpu", "cpu"));
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub struct DeviceManager {
    handles: Mutex<HashMap<String, Option<DeviceHandle>>>,
    /// One handle per OpenCL device, whatever selector found it: all selectors share its stream, pools and kernels.
    by_device: Mutex<HashMap<usize, DeviceHandle>>,
    /// What [`DeviceManager::cpu_driver`] found.
    cpu_driver: OnceLock<Option<DeviceHandle>>,
}

/// The process-wide [`DeviceManager`].
pub fn manager() -> &'static DeviceManager {
    static MANAGER: LazyLock<DeviceManager> = LazyLock::new(DeviceManager::new);
    &MANAGER
}

impl DeviceManager {
    fn new() -> Self {
        DeviceManager { handles: Mutex::default(), by_device: Mutex::default(), cpu_driver: OnceLock::new() }
    }

    /// Every OpenCL device of every platform. Where there is no OpenCL library there are none.
    pub fn discover(&self) -> Result<Vec<Device>> {
        Ok(self.report()?.devices())
    }

    /// What every platform answered, also those that failed.
    pub fn report(&self) -> Result<Discovery> {
        match opencl::discover() {
            Ok(found) => Ok(found),
            Err(ClError::Load(LoadError { .. })) => Ok(Discovery::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// The device a selector names, or `None` where there is no such device.
    pub fn default(&self, selector: &str) -> Result<Option<DeviceHandle>> {
        let asked = match selector {
            "auto" => env::DEVICE.text().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            other => other.to_owned(),
        };
        let asked = if asked.is_empty() { "auto".to_owned() } else { asked };
        // Needs no lock, so that a forked child always gets it.
        if asked == "cpu" {
            return Ok(Some(self.cpu()));
        }
        if let Some(handle) = lock(&self.handles)?.get(&asked) {
            return Ok(handle.clone());
        }
        let handle = match choose(&asked, &self.discover()?) {
            Some(Choice::OpenCl(device)) => Some(self.handle(&device)?),
            Some(Choice::NativeCpu) => Some(self.cpu()),
            None => None,
        };
        // NETCL_DEVICE names something that is not there: falling back in silence would hide the mistake.
        if handle.is_none() && selector == "auto" {
            return Err(self.no_device(&asked, Some(env::DEVICE.name)));
        }
        lock(&self.handles)?.insert(asked, handle.clone());
        Ok(handle)
    }

    /// The device a selector names, or an error that lists the devices there are.
    pub fn get(&self, selector: &str) -> Result<DeviceHandle> {
        self.default(selector)?.ok_or_else(|| self.no_device(selector, None))
    }

    /// The handle of an OpenCL device; the same device always has the same one.
    pub fn handle(&self, device: &Device) -> Result<DeviceHandle> {
        let mut handles = lock(&self.by_device)?;
        if let Some(handle) = handles.get(&device.int_ptr()) {
            return Ok(handle.clone());
        }
        let handle = DeviceHandle::opencl(device)?;
        handles.insert(device.int_ptr(), handle.clone());
        Ok(handle)
    }

    /// The native CPU, which is always there.
    pub fn cpu(&self) -> DeviceHandle {
        let queue = CpuQueue::default();
        DeviceHandle {
            platform_name: "netcl".to_owned(),
            device_name: queue.device().name().to_owned(),
            backend: Backend::Cpu,
            device_type: DeviceType::Cpu,
            queue: Queue::Cpu(queue),
        }
    }

    /// The OpenCL driver for CPUs that runs kernels of one's own on tensors of the native CPU; `None` where none is installed.
    pub fn cpu_driver(&self) -> Result<Option<DeviceHandle>> {
        if let Some(known) = self.cpu_driver.get() {
            return Ok(known.clone());
        }
        let found = best(&self.discover()?, |d| d.device_type() == DeviceType::Cpu);
        let handle = found.map(|device| self.handle(&device)).transpose()?;
        Ok(self.cpu_driver.get_or_init(|| handle).clone())
    }

    fn no_device(&self, selector: &str, variable: Option<&'static str>) -> Error {
        let devices = self.discover().unwrap_or_default();
        let mut available: Vec<String> =
            devices.iter().enumerate().map(|(i, d)| format!("{i} ({}: {})", d.platform().name(), d.name())).collect();
        available.push(format!("cpu ({})", self.cpu().device_name));
        Error::NoDevice { selector: selector.to_owned(), variable, available: available.join(", ") }
    }
}

/// Locks; in a forked child, where the owner of a held lock may not exist, an error instead of a wait.
fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    if opencl::is_forked_child() {
        return match mutex.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(ClError::Forked { call: "DeviceManager" }.into()),
        };
    }
    Ok(mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What a selector stands for.
enum Choice {
    OpenCl(Device),
    NativeCpu,
}

/// What a selector names.
fn choose(selector: &str, devices: &[Device]) -> Option<Choice> {
    let cpu = DeviceProfile::cpu();
    match selector {
        "auto" => able(devices, |_| true, true),
        "fp16" => able(devices, |d| d.probes().fp16_arithmetic(), cpu.fp16_arithmetic()),
        "fp64" => able(devices, |d| d.has_extension("cl_khr_fp64") || d.has_extension("cl_amd_fp64"), cpu.has_fp64),
        "subgroups" => able(devices, |d| d.probes().subgroups().is_some(), cpu.has_subgroups),
        "matrix" => {
            let units = |d: &Device| d.probes().nvidia_mma() || d.probes().nvidia_wgmma();
            able(devices, units, !cpu.matrix_units().is_empty())
        }
        _ => named(selector, devices).map(Choice::OpenCl),
    }
}

/// The best of what has an ability: a GPU or accelerator before the native CPU before any other OpenCL device.
fn able(devices: &[Device], fits: impl Fn(&Device) -> bool, native: bool) -> Option<Choice> {
    let fast = |d: &Device| matches!(d.device_type(), DeviceType::Gpu | DeviceType::Accelerator);
    let choice = best(devices, |d| fast(d) && fits(d)).map(Choice::OpenCl);
    choice.or(native.then_some(Choice::NativeCpu)).or_else(|| best(devices, fits).map(Choice::OpenCl))
}

/// The best device that fits. (`max_by_key` takes the last of equals, hence the `rev`: the first in the list wins.)
fn best(devices: &[Device], fits: impl Fn(&Device) -> bool) -> Option<Device> {
    devices.iter().rev().filter(|d| fits(d)).max_by_key(|d| merit(d)).cloned()
}

/// The OpenCL device that a selector names by kind, index or name.
fn named(selector: &str, devices: &[Device]) -> Option<Device> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    match selector {
        "opencl" => best(devices, |_| true),
        "gpu" => best(devices, |d| d.device_type() == DeviceType::Gpu),
        "accel" => best(devices, |d| d.device_type() == DeviceType::Accelerator),
        _ => {
            if let Some(index) = number(selector) {
                return devices.get(index).cloned();
            }
            if let Some((platform, device)) = selector.split_once(':')
                && let (Some(platform), Some(device)) = (number(platform), number(device))
            {
                let mut platforms: Vec<_> = devices.iter().map(Device::platform).collect();
                platforms.dedup();
                let platform = *platforms.get(platform)?;
                return devices.iter().filter(|d| d.platform() == platform).nth(device).cloned();
            }
            let part = selector.to_lowercase();
            let named = |name: &str| name.to_lowercase().contains(&part);
            let by_name = devices.iter().find(|d| named(d.name()));
            by_name.or_else(|| devices.iter().find(|d| named(d.platform().name()))).cloned()
        }
    }
}

/// GPUs before accelerators before CPUs; among equals the one that computes most.
fn merit(device: &Device) -> (u8, u64) {
    let kind = match device.device_type() {
        DeviceType::Gpu => 3,
        DeviceType::Accelerator => 2,
        DeviceType::Cpu => 1,
        DeviceType::Other => 0,
    };
    (kind, u64::from(device.info().compute_units) * u64::from(device.info().clock_mhz.max(1)))
}

thread_local! {
    /// The open scopes with their numbers, innermost last.
    static ACTIVE: RefCell<Vec<(u64, DeviceHandle)>> = const { RefCell::new(Vec::new()) };
}

/// While this lives, its device is the thread's active one; dropping it restores the previous one.
pub struct DeviceScope {
    handle: DeviceHandle,
    number: u64,
    /// A scope belongs to the thread that opened it.
    _thread: PhantomData<*const ()>,
}

impl DeviceScope {
    /// The device of the scope.
    pub fn handle(&self) -> &DeviceHandle {
        &self.handle
    }
}

impl Drop for DeviceScope {
    fn drop(&mut self) {
        // By number, not by position: a generator in Python may close its scope out of order.
        ACTIVE.with(|active| active.borrow_mut().retain(|(number, _)| *number != self.number));
    }
}

/// Makes a device the thread's active one until the returned scope is dropped.
///
/// ```
/// use netcl_core::device::{device, get_active_device};
///
/// {
///     let scope = device("cpu")?;
///     assert_eq!(get_active_device().as_ref(), Some(scope.handle()));
/// }
/// assert!(get_active_device().is_none());
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn device(selector: &str) -> Result<DeviceScope> {
    Ok(activate(manager().get(selector)?))
}

/// Makes a device that was already chosen the thread's active one until the returned scope is dropped.
pub fn activate(handle: DeviceHandle) -> DeviceScope {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    ACTIVE.with(|active| active.borrow_mut().push((number, handle.clone())));
    DeviceScope { handle, number, _thread: PhantomData }
}

/// The thread's active device, if a [`device`] scope is open.
pub fn get_active_device() -> Option<DeviceHandle> {
    ACTIVE.with(|active| active.borrow().last().map(|(_, handle)| handle.clone()))
}

/// The thread's active device, else the default one: where things go when nobody names a queue.
pub fn current_device() -> Result<DeviceHandle> {
    match get_active_device() {
        Some(handle) => Ok(handle),
        None => manager().get("auto"),
    }
}

/// Where something is made: a queue, a [`DeviceHandle`], a selector such as `"gpu"`, or `()` for [`current_device`]. With a dtype
/// beside it, as in `(&queue, DType::F64)`, it also says of what.
///
/// ```
/// use netcl_core::device::{AsDevice, manager};
/// use netcl_core::dtype::DType;
///
/// let handle = manager().cpu();
/// assert_eq!("cpu".queue()?, handle.queue()?);
/// assert_eq!(((&handle.queue, DType::F64)).dtype(), Some(DType::F64));
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub trait AsDevice {
    /// The queue of the device.
    ///
    /// # Errors
    /// For a selector that matches no device; the error lists those that are there.
    fn queue(&self) -> Result<Queue>;

    /// The dtype, where one was named.
    fn dtype(&self) -> Option<DType> {
        None
    }
}

impl AsDevice for Queue {
    fn queue(&self) -> Result<Queue> {
        Ok(self.clone())
    }
}

impl AsDevice for DeviceHandle {
    fn queue(&self) -> Result<Queue> {
        Ok(self.queue.clone())
    }
}

impl AsDevice for str {
    fn queue(&self) -> Result<Queue> {
        Ok(manager().get(self)?.queue)
    }
}

impl AsDevice for String {
    fn queue(&self) -> Result<Queue> {
        self.as_str().queue()
    }
}

impl AsDevice for () {
    fn queue(&self) -> Result<Queue> {
        Ok(current_device()?.queue)
    }
}

impl<D: AsDevice> AsDevice for (D, DType) {
    fn queue(&self) -> Result<Queue> {
        self.0.queue()
    }
    fn dtype(&self) -> Option<DType> {
        Some(self.1)
    }
}

impl<D: AsDevice + ?Sized> AsDevice for &D {
    fn queue(&self) -> Result<Queue> {
        (**self).queue()
    }
    fn dtype(&self) -> Option<DType> {
        (**self).dtype()
    }
}
