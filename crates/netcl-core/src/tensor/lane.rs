//! Moving a tensor to and from the host in chunks, several of them at once.

use std::sync::{Arc, PoisonError};

use super::Tensor;
use crate::backend::Queue;
use crate::backend::opencl::ClLane;
use crate::error::{Error, Result};
use crate::kernels::launch;
use crate::storage::Storage;

/// The bytes of a dense tensor, copied to and from the host in chunks. Copies of different slots overlap with each other and with
/// what the host does; the native CPU's memory is seen where it lies.
///
/// ```
/// use netcl_core::{device::manager, tensor::{HostLane, Tensor}};
///
/// let x = Tensor::from_host(&manager().get("auto")?.queue, &[1u8, 2, 3, 4], [4])?;
/// let mut lane = HostLane::new(&x, 2, 2)?;
/// lane.start_read(0, 0, 2)?;
/// lane.start_read(1, 2, 2)?;
/// let first = lane.read(0, 0, 2, |bytes| bytes.to_vec())?;
/// lane.write(1, 2, 2, |out| out.copy_from_slice(&first))?;
/// lane.finish()?;
/// assert_eq!(x.to_host::<u8>()?, [1, 2, 1, 2]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub struct HostLane {
    storage: Arc<Storage>,
    /// Where the tensor's bytes lie in the storage.
    start: usize,
    nbytes: usize,
    device: Option<ClLane>,
}

impl HostLane {
    /// A lane with so many slots for chunks of this size.
    ///
    /// # Errors
    /// For a tensor whose elements do not lie densely in row-major order; while launches are recorded; want of memory.
    pub fn new(tensor: &Tensor, chunk: usize, slots: usize) -> Result<HostLane> {
        const OP: &str = "chunks";
        launch::check_readable(OP)?;
        if !tensor.layout().is_contiguous() {
            return Err(Error::shape(OP, tensor.shape(), "its elements do not lie densely; use contiguous() first"));
        }
        let size = tensor.dtype().size();
        let (start, nbytes) = (tensor.layout().offset() * size, tensor.size() * size);
        let device = match tensor.queue() {
            Queue::OpenCl(stream) if nbytes > 0 => {
                let memory = tensor.storage().require_cl(OP)?;
                Some(ClLane::new(stream, memory, start, chunk.clamp(1, nbytes), slots)?)
            }
            _ => None,
        };
        Ok(HostLane { storage: tensor.storage().clone(), start, nbytes, device })
    }

    /// Starts to copy bytes to the host, into a slot that is not in use.
    ///
    /// # Errors
    /// For bytes outside the tensor; what the driver says.
    pub fn start_read(&mut self, slot: usize, offset: usize, len: usize) -> Result<()> {
        self.check(offset, len)?;
        self.device.as_mut().map_or(Ok(()), |lane| lane.start_read(slot, offset, len))
    }

    /// Shows the bytes that [`start_read`](HostLane::start_read) copied, when they have come.
    ///
    /// # Errors
    /// As there.
    pub fn read<R>(&mut self, slot: usize, offset: usize, len: usize, see: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.check(offset, len)?;
        if let Some(lane) = &mut self.device {
            return Ok(see(lane.read(slot, len)?));
        }
        let _guard = self.storage.guard().read().unwrap_or_else(PoisonError::into_inner);
        let (memory, _) = self.storage.cpu_memory()?;
        // SAFETY: `check` keeps the range inside the tensor, which lies inside the storage, and the guard keeps writers away.
        Ok(see(unsafe { std::slice::from_raw_parts(memory.add(self.start + offset), len) }))
    }

    /// Has bytes written, through a slot: `fill` sets all of them.
    ///
    /// # Errors
    /// As for [`start_read`](HostLane::start_read).
    pub fn write(&mut self, slot: usize, offset: usize, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        self.check(offset, len)?;
        if let Some(lane) = &mut self.device {
            return lane.write(slot, offset, len, fill);
        }
        let _guard = self.storage.guard().write().unwrap_or_else(PoisonError::into_inner);
        let (memory, _) = self.storage.cpu_memory()?;
        // SAFETY: as in `read`; the guard keeps everybody away.
        fill(unsafe { std::slice::from_raw_parts_mut(memory.add(self.start + offset), len) });
        Ok(())
    }

    /// Waits for all copies, and notes that the tensor was written.
    ///
    /// # Errors
    /// What the driver says.
    pub fn finish(mut self) -> Result<()> {
        self.storage.raise_version();
        self.device.as_mut().map_or(Ok(()), ClLane::finish)
    }

    fn check(&self, offset: usize, len: usize) -> Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.nbytes) {
            return Ok(());
        }
        Err(Error::argument("chunks", format!("{len} bytes at {offset} do not lie in a tensor of {}", self.nbytes)))
    }
}

impl Tensor {
    /// Overwrites the tensor with one of another device of the same OpenCL context, without the host. `false` if they have no context
    /// in common, or are not dense tensors of one dtype and size; then nothing has happened.
    ///
    /// # Errors
    /// While launches are recorded; what the driver says.
    pub fn copy_in_context(&self, source: &Tensor) -> Result<bool> {
        let alike = |a: &Tensor, b: &Tensor| {
            a.dtype() == b.dtype()
                && a.size() == b.size()
                && a.layout().is_contiguous()
                && b.layout().is_contiguous()
                && !a.shares_storage(b)
        };
        let (Queue::OpenCl(to), Queue::OpenCl(from)) = (self.queue(), source.queue()) else { return Ok(false) };
        if to.context() != from.context() || !alike(self, source) {
            return Ok(false);
        }
        launch::check_readable("copy")?;
        if self.size() > 0 {
            let size = self.dtype().size();
            let (memory, other) = (self.storage().require_cl("copy")?, source.storage().require_cl("copy")?);
            let (offset, other_offset) = (self.layout().offset() * size, source.layout().offset() * size);
            memory.copy_from(to, offset, other, other_offset, self.size() * size)?;
            self.storage().raise_version();
        }
        Ok(true)
    }
}
