//! `profile`: what ran in a scope, when, on which device, for which module and line, and who held the memory.
//!
//! A scope sees everything that the process runs while it is open: eager launches, those of replayed steps and compiled functions, copies
//! between host and device, allocations; of every thread and on every device. Scopes may overlap: each has its own result.
//!
//! ```
//! use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
//! use netcl_profiling::profile::profile;
//!
//! let queue = manager().cpu().queue;
//! let (result, found) = profile(|| Tensor::full(&queue, [1000], DType::F32, 2.5))?;
//! assert_eq!(result?.size(), 1000);
//! assert_eq!(found.kernels()[0].name, "fill");
//! # Ok::<(), netcl_core::Error>(())
//! ```

mod collect;
mod event_timer;
mod html;
mod memory;
mod tables;
#[cfg(test)]
mod tests;
mod trace;

use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::DeviceType;
use netcl_core::error::{Error, Result};
use netcl_core::observe::{self, Kind, Observing};

use crate::ceilings::{Ceilings, measure_ceilings};
use crate::timing::Effort;
use collect::Log;
pub use event_timer::{EventTimer, ProfileRecord};
pub use memory::{Holder, Memory};
pub use tables::{KernelRow, LineRow, ModuleRow};

/// What a profile does beside watching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// Measure what each device can do at most, so that rates come with their share of it. Takes some tenths of a second, once per process
    /// and device, after the scope.
    pub ceilings: bool,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        ProfileOptions { ceilings: true }
    }
}

/// A scope that is being profiled; [`Profiler::stop`] ends it.
#[must_use = "a profiler that is dropped has watched for nothing"]
pub struct Profiler {
    log: Arc<Log>,
    observing: Option<Observing>,
    options: ProfileOptions,
    began: Instant,
}

/// Profiles a closure.
///
/// # Errors
/// What a driver says while its queues are waited for.
pub fn profile<R>(f: impl FnOnce() -> R) -> Result<(R, Profile)> {
    let profiler = Profiler::start(ProfileOptions::default());
    let result = f();
    Ok((result, profiler.stop()?))
}

impl Profiler {
    /// Begins to watch.
    ///
    /// An OpenCL queue that was made without device times is replaced by one with them until the scope ends, so that no environment
    /// variable is needed; what it was given before is waited for. Where other code knows the queue's handle (PyOpenCL), it stays, and
    /// every launch is waited for instead: times are right, but nothing overlaps.
    pub fn start(options: ProfileOptions) -> Profiler {
        let log = Arc::new(Log::default());
        let observing = observe::observe(log.clone());
        Profiler { log, observing: Some(observing), options, began: Instant::now() }
    }

    /// Waits for the devices and ends the scope.
    ///
    /// # Errors
    /// What a driver says.
    pub fn stop(mut self) -> Result<Profile> {
        let entries = self.log.take();
        let mut devices: Vec<Device> = Vec::new();
        let queues = entries.commands.iter().map(|command| &command.queue).chain(entries.queues());
        for queue in queues {
            if !devices.iter().any(|device| device.queue.same_device(queue)) {
                devices.push(Device { name: queue.device_name(), queue: queue.clone(), ceilings: None });
            }
        }
        let finished = entries.finish();
        let end = Instant::now();
        // Queues change back only now: what they have is over.
        drop(self.observing.take());
        finished?;
        if self.options.ceilings {
            for device in &mut devices {
                device.ceilings = ceilings_of(&device.queue)?;
            }
        }
        let commands = collect::timed(&entries.commands, self.began, &devices);
        let memory = memory::of(&entries.memory, self.began, &devices);
        Ok(Profile { commands, devices, memory, span: end - self.began })
    }
}

/// What a device can do at most, measured once per process.
fn ceilings_of(queue: &Queue) -> Result<Option<Ceilings>> {
    static KNOWN: LazyLock<Mutex<Vec<(Queue, Ceilings)>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, found)) = known.iter().find(|(other, _)| other.same_device(queue)) {
        return Ok(Some(found.clone()));
    }
    let processor = match queue {
        Queue::Cpu(_) => true,
        Queue::OpenCl(stream) => stream.device().device_type() == DeviceType::Cpu,
    };
    let elements = if processor { 4 << 20 } else { 32 << 20 };
    // A device without the room for it has no share of a ceiling either.
    let found = observe::hidden(|| measure_ceilings(queue, elements, Effort::QUICK, |_| true)).ok();
    known.extend(found.clone().map(|found| (queue.clone(), found)));
    Ok(found)
}

/// A device that a profile saw.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// One of its queues.
    pub queue: Queue,
    /// What it can do at most, where that was measured.
    pub ceilings: Option<Ceilings>,
}

/// A launch or a copy with its times, in nanoseconds since the scope began.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// The kernel's name, or the direction of a copy.
    pub name: String,
    /// What it did.
    pub kind: Kind,
    /// Which of [`Profile::devices`] ran it.
    pub device: usize,
    /// The host thread that asked for it, counted from 0.
    pub thread: usize,
    /// The dotted path of its module; empty outside of any.
    pub module: Arc<str>,
    /// Whether it computes a gradient.
    pub backward: bool,
    /// `file:line` of the Python program.
    pub line: Option<Arc<str>>,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes moved.
    pub bytes: f64,
    /// When the host called, and when the call returned.
    pub host: (u64, u64),
    /// When the device began and ended.
    pub device_time: (u64, u64),
    /// Work-items and work-groups of an OpenCL kernel.
    pub grid: Option<String>,
    /// The OpenCL source, where it is known.
    pub source: Option<Arc<str>>,
}

impl Timed {
    /// Seconds on the device.
    pub fn seconds(&self) -> f64 {
        (self.device_time.1 - self.device_time.0) as f64 * 1e-9
    }
}

/// What a scope did.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Launches and copies, in the order of the host's calls.
    pub commands: Vec<Timed>,
    /// The devices that were used.
    pub devices: Vec<Device>,
    /// The memory of each device, in the same order.
    pub memory: Vec<Memory>,
    /// How long the scope was open, the wait for the devices included.
    pub span: Duration,
}

impl Profile {
    /// Seconds that all commands took on their devices together.
    pub fn device_seconds(&self) -> f64 {
        self.commands.iter().map(Timed::seconds).sum()
    }

    /// Writes a trace that Perfetto (<https://ui.perfetto.dev>) and Chrome's `about:tracing` open.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn trace(&self, path: impl AsRef<Path>) -> Result<()> {
        write("trace", path.as_ref(), &self.trace_json().to_string())
    }

    /// The trace as a value: the JSON object format of Chrome's trace events.
    pub fn trace_json(&self) -> serde_json::Value {
        trace::to_json(self)
    }

    /// Writes one page with everything: it opens in any browser and loads nothing from elsewhere.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn html(&self, path: impl AsRef<Path>) -> Result<()> {
        write("html", path.as_ref(), &html::page(self))
    }
}

fn write(op: &'static str, path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)
        .map_err(|error| Error::argument(op, format!("{} cannot be written: {error}", path.display())))
}
