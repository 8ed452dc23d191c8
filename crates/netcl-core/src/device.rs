//! Devices: discovery, selection by name or capability, and the thread's active device.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::backend::cpu::CpuQueue;
use crate::backend::{Backend, Queue};
use crate::error::{Error, Result};

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

/// What kind of device a handle leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceType {
    /// A graphics processor.
    Gpu,
    /// A processor, native or through an OpenCL driver.
    Cpu,
    /// An accelerator card.
    Accelerator,
    /// Anything else.
    Other,
}

impl DeviceType {
    /// `"gpu"`, `"cpu"`, `"accel"` or `"other"`.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceType::Gpu => "gpu",
            DeviceType::Cpu => "cpu",
            DeviceType::Accelerator => "accel",
            DeviceType::Other => "other",
        }
    }
}

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for DeviceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceHandle({:?}, {:?}, ", self.platform_name, self.device_name)?;
        write!(f, "backend={:?}, device_type={:?})", self.backend.name(), self.device_type.name())
    }
}

/// Finds devices and hands out one cached handle per selector.
///
/// | selector | device |
/// |---|---|
/// | `"auto"` | what `NETCL_DEVICE` says, else the best OpenCL device (GPU, accelerator, CPU), else the native CPU |
/// | `"cpu"` | the native CPU |
/// | `"gpu"` | the best OpenCL GPU |
///
/// ```
/// use netcl_core::device::manager;
///
/// let dev = manager().default("cpu")?.expect("the native CPU is always there");
/// assert_eq!((dev.backend.name(), dev.device_type.name()), ("cpu", "cpu"));
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub struct DeviceManager {
    handles: Mutex<HashMap<String, Option<DeviceHandle>>>,
}

/// The process-wide [`DeviceManager`].
pub fn manager() -> &'static DeviceManager {
    static MANAGER: LazyLock<DeviceManager> = LazyLock::new(DeviceManager::new);
    &MANAGER
}

impl DeviceManager {
    fn new() -> Self {
        DeviceManager { handles: Mutex::default() }
    }

    /// The device a selector names, or `None` where there is no such device.
    pub fn default(&self, selector: &str) -> Result<Option<DeviceHandle>> {
        let selector = match selector {
            "auto" => std::env::var("NETCL_DEVICE").unwrap_or_default(),
            other => other.to_owned(),
        };
        let selector = if selector.is_empty() { "auto" } else { selector.as_str() };
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = handles.get(selector) {
            return Ok(handle.clone());
        }
        let handle = match selector {
            "auto" | "cpu" => Some(self.cpu()),
            _ => None,
        };
        handles.insert(selector.to_owned(), handle.clone());
        Ok(handle)
    }

    /// The device a selector names, or an error that lists the devices there are.
    pub fn get(&self, selector: &str) -> Result<DeviceHandle> {
        self.default(selector)?.ok_or_else(|| Error::NoDevice {
            selector: selector.to_owned(),
            available: format!("cpu ({})", self.cpu().device_name),
        })
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
