//! What queues do with memory: allocate it, fill it from the host, read it back.

use std::sync::Arc;

use super::Storage;
use crate::backend::Queue;
use crate::backend::cpu::{CpuBuffer, memory_kernels};
use crate::backend::opencl::{ClMemory, UploadPath};
use crate::dtype::DType;
use crate::error::Result;
use crate::observe::{self, Kind};

impl Queue {
    /// Memory from this queue's pool, without asking the current sink; ops call
    /// [`launch::allocate`](crate::kernels::launch::allocate). The contents are whatever was there before.
    pub fn allocate_now(&self, nbytes: usize, label: &'static str) -> Result<Arc<Storage>> {
        let storage = match self {
            Queue::Cpu(_) => Arc::new(Storage::cpu(CpuBuffer::uninit(nbytes)?)),
            Queue::OpenCl(stream) => {
                let lease = stream.pool().allocate_on(nbytes, label, stream.id())?;
                Arc::new(Storage::opencl(ClMemory::leased(lease)))
            }
        };
        observe::allocated(self, Arc::as_ptr(&storage) as usize, nbytes, label);
        Ok(storage)
    }

    /// Copies dense host data to the start of a storage, casting on the way.
    pub(crate) fn upload(
        &self,
        storage: &Arc<Storage>,
        data: &[u8],
        data_dtype: DType,
        dtype: DType,
        path: UploadPath,
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        match self {
            Queue::Cpu(_) => observe::copy(self, Kind::Upload, data.len(), || {
                memory_kernels::upload(storage, data, data_dtype, dtype)
            }),
            Queue::OpenCl(stream) => {
                storage.require_cl("from_host")?.write(stream, data, data_dtype, dtype, path)?;
                storage.raise_version();
                Ok(())
            }
        }
    }

    /// Copies bytes of a storage to the host and waits for them.
    pub(crate) fn download(&self, storage: &Arc<Storage>, offset: usize, out: &mut [u8]) -> Result<()> {
        match self {
            Queue::Cpu(_) => {
                observe::copy(self, Kind::Download, out.len(), || memory_kernels::download(storage, offset, out))
            }
            Queue::OpenCl(stream) => storage.require_cl("to_host")?.read(stream, offset, out),
        }
    }

    /// Waits for an upload into a storage that is still under way, if any.
    pub(crate) fn wait_for_upload(&self, storage: &Arc<Storage>) -> Result<()> {
        storage.cl_memory().map_or(Ok(()), ClMemory::wait)
    }
}
