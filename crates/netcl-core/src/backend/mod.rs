//! The two transports, sibling folders with one interface: [`Queue`].
//!
//! Everything above asks a queue to allocate, copy, fill or launch and never matches on the backend; this file is the
//! only place where the two meet.

pub mod cpu;
pub mod opencl;

use std::fmt;
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::launch;
use crate::storage::Storage;
use crate::tensor::HostOptions;
use cpu::{CpuBuffer, CpuQueue, memory_kernels};

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The native CPU, which has finished whatever it was given when the call returns.
    Cpu(CpuQueue),
}

impl Queue {
    /// Which transport this is.
    pub fn backend(&self) -> Backend {
        match self {
            Queue::Cpu(_) => Backend::Cpu,
        }
    }

    /// The device's name, for messages.
    pub fn device_name(&self) -> String {
        match self {
            Queue::Cpu(queue) => queue.device().name().to_owned(),
        }
    }

    /// Waits until everything that was given to this queue is done.
    pub fn finish(&self) -> Result<()> {
        match self {
            Queue::Cpu(queue) => queue.finish(),
        }
    }

    /// Sends everything that was given to this queue on its way, without waiting.
    pub fn flush(&self) -> Result<()> {
        match self {
            Queue::Cpu(queue) => queue.flush(),
        }
    }

    /// Whether two queues lead to the same device, so that one op may mix their tensors.
    pub fn same_device(&self, other: &Queue) -> bool {
        match (self, other) {
            (Queue::Cpu(_), Queue::Cpu(_)) => true,
        }
    }

    /// An error unless two queues lead to the same device.
    pub fn check_same_device(&self, op: &'static str, other: &Queue) -> Result<()> {
        if self.same_device(other) {
            return Ok(());
        }
        Err(Error::DeviceMismatch { op, lhs: self.device_name(), rhs: other.device_name() })
    }

    /// Memory from this queue's pool, without asking the current sink; ops call
    /// [`launch::allocate`](crate::kernels::launch::allocate). The contents are whatever was there before.
    pub fn allocate_now(&self, nbytes: usize, _label: &'static str) -> Result<Arc<Storage>> {
        match self {
            Queue::Cpu(_) => Ok(Arc::new(Storage::cpu(CpuBuffer::uninit(nbytes)?))),
        }
    }

    /// Copies dense host data to the start of a storage, casting on the way.
    pub(crate) fn upload(
        &self,
        storage: &Arc<Storage>,
        data: &[u8],
        data_dtype: DType,
        dtype: DType,
        _options: HostOptions,
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        match self {
            Queue::Cpu(_) => memory_kernels::upload(storage, data, data_dtype, dtype),
        }
    }

    /// Copies bytes of a storage to the host and waits for them.
    pub(crate) fn download(&self, storage: &Arc<Storage>, offset: usize, out: &mut [u8]) -> Result<()> {
        launch::check_readable("to_host")?;
        match self {
            Queue::Cpu(_) => memory_kernels::download(storage, offset, out),
        }
    }

    /// Waits for an upload into a storage that is still under way, if any.
    pub(crate) fn wait_for_upload(&self, _storage: &Arc<Storage>) -> Result<()> {
        match self {
            Queue::Cpu(_) => Ok(()),
        }
    }
}
