//! Native tensors over somebody else's memory, and somebody else's view of ours: NumPy and DLPack.

use std::any::Any;
use std::sync::Arc;

use super::Tensor;
use crate::backend::Queue;
use crate::backend::cpu::{CpuBuffer, CpuQueue};
use crate::dtype::DType;
use crate::error::Result;
use crate::shape::{Layout, Shape};
use crate::storage::Storage;

impl Tensor {
    /// A CPU tensor over memory that `owner` keeps alive; nothing is copied.
    ///
    /// # Safety
    /// Every element that `shape` and `strides` (in elements, relative to `first`) reach must be valid for reads and
    /// writes while `owner` lives, and aligned for `dtype`.
    pub unsafe fn from_foreign(
        first: *mut u8,
        shape: Shape,
        strides: &[isize],
        dtype: DType,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Tensor> {
        let queue = Queue::Cpu(CpuQueue::default());
        if shape.nbytes("tensor", dtype)? == 0 {
            return Tensor::uninit(&queue, shape, dtype);
        }
        // Negative strides reach below the first element; the storage starts at the lowest one.
        let below: isize = strides.iter().zip(shape.iter()).map(|(&s, &n)| s.min(0) * (n as isize - 1)).sum();
        let layout = Layout::strided(shape, strides, below.unsigned_abs())?;
        let nbytes = layout.end() * dtype.size();
        // SAFETY: the caller vouches for everything between the lowest and the highest element.
        let buffer = unsafe { CpuBuffer::foreign(first.offset(below * dtype.size() as isize), nbytes, owner) };
        Tensor::from_storage(&queue, Arc::new(Storage::cpu(buffer)), layout, dtype)
    }

    /// Where the first element lies in native memory; `None` on a device and for zero-size tensors.
    ///
    /// Whoever reads or writes through it must keep the storage alive and stay inside the layout.
    pub fn cpu_ptr(&self) -> Option<*mut u8> {
        match self.storage.cpu_memory() {
            Ok((ptr, nbytes)) if nbytes > 0 => {
                self.storage.expose();
                Some(ptr.wrapping_add(self.layout.offset() * self.dtype.size()))
            }
            _ => None,
        }
    }
}
