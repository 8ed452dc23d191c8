//! The two transports, sibling folders with one interface: [`Queue`].
//!
//! Everything above asks a queue to allocate, copy, fill or launch and never matches on the backend; this file and
//! `storage/transfer.rs` are the only places where the two meet.

pub mod cpu;
pub mod opencl;
#[cfg(unix)]
mod pages;

use std::fmt;
use std::sync::Arc;

use crate::capabilities::DeviceProfile;
use crate::dtype::DType;
use crate::error::{Error, Result};
use cpu::CpuQueue;
use opencl::Stream;

/// Which transport a queue, tensor or device belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// An OpenCL driver.
    OpenCl,
    /// The native CPU code of this crate.
    Cpu,
}

impl Backend {
    /// `"cl"` or `"cpu"`, as `Tensor.backend` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::OpenCl => "cl",
            Backend::Cpu => "cpu",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where work is ordered: a tensor is created on a queue, and ops run on the queue of their first input.
#[derive(Clone, Debug)]
pub enum Queue {
    /// The native CPU, which has finished whatever it was given when the call returns.
    Cpu(CpuQueue),
    /// An OpenCL device's stream, which works while the host goes on.
    OpenCl(Arc<Stream>),
}

impl PartialEq for Queue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Queue::Cpu(_), Queue::Cpu(_)) => true,
            (Queue::OpenCl(a), Queue::OpenCl(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Eq for Queue {}

impl Queue {
    /// Which transport this is.
    pub fn backend(&self) -> Backend {
        match self {
            Queue::Cpu(_) => Backend::Cpu,
            Queue::OpenCl(_) => Backend::OpenCl,
        }
    }

    /// The device's name, for messages.
    pub fn device_name(&self) -> String {
        match self {
            Queue::Cpu(queue) => queue.device().name().to_owned(),
            Queue::OpenCl(stream) => stream.device().name().to_owned(),
        }
    }

    /// Waits until everything that was given to this queue is done.
    pub fn finish(&self) -> Result<()> {
        match self {
            Queue::Cpu(queue) => queue.finish(),
            Queue::OpenCl(stream) => Ok(stream.finish()?),
        }
    }

    /// Sends everything that was given to this queue on its way, without waiting.
    pub fn flush(&self) -> Result<()> {
        match self {
            Queue::Cpu(queue) => queue.flush(),
            Queue::OpenCl(stream) => Ok(stream.flush()?),
        }
    }

    /// Whether two queues lead to the same device, so that one op may mix their tensors.
    pub fn same_device(&self, other: &Queue) -> bool {
        match (self, other) {
            (Queue::Cpu(_), Queue::Cpu(_)) => true,
            (Queue::OpenCl(a), Queue::OpenCl(b)) => a.same_device(b),
            _ => false,
        }
    }

    /// What the device can do.
    pub fn profile(&self) -> DeviceProfile {
        match self {
            Queue::Cpu(_) => DeviceProfile::cpu(),
            Queue::OpenCl(stream) => DeviceProfile::from_opencl(stream.device()),
        }
    }

    /// An error if the device has no memory format for a dtype: float64 where there is no double precision.
    pub fn check_dtype(&self, op: &'static str, dtype: DType) -> Result<()> {
        let Queue::OpenCl(stream) = self else { return Ok(()) };
        let device = stream.device();
        if dtype != DType::F64 || device.has_extension("cl_khr_fp64") || device.has_extension("cl_amd_fp64") {
            return Ok(());
        }
        let why = "it has no cl_khr_fp64, so float64 tensors cannot be computed with; use float32".to_owned();
        Err(Error::Unsupported { op, device: self.device_name(), why })
    }

    /// An error unless two queues lead to the same device.
    pub fn check_same_device(&self, op: &'static str, other: &Queue) -> Result<()> {
        if self.same_device(other) {
            return Ok(());
        }
        Err(Error::DeviceMismatch { op, lhs: self.device_name(), rhs: other.device_name() })
    }
}
