//! One allocation whose parts are storages: where a recorded program keeps what it plans.

use std::sync::{Arc, RwLock};

use crate::backend::Queue;
use crate::backend::cpu::CpuBuffer;
use crate::backend::opencl::{ClMemory, SharedLease};
use crate::error::{Error, Result};
use crate::storage::Storage;

/// A block of a queue's memory to be cut into parts, which may overlap: whoever cuts it sees to it that parts that share
/// bytes are not used at the same time. The block lives as long as any of its parts.
///
/// ```
/// use netcl_core::{device::manager, memory::Arena};
///
/// let arena = Arena::allocate(&manager().get("auto")?.queue, 4096, "example")?;
/// let part = arena.part(1024, 100)?;
/// assert_eq!(part.nbytes(), 100);
/// assert!(arena.part(4000, 100).is_err());
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub struct Arena {
    block: Block,
    nbytes: usize,
}

enum Block {
    Cpu(Arc<CpuBuffer>),
    OpenCl(SharedLease),
}

impl Arena {
    /// Takes a block from the queue's pool.
    ///
    /// # Errors
    /// When there is not so much memory, or not in one piece ([`Arena::limit`]).
    pub fn allocate(queue: &Queue, nbytes: usize, label: &'static str) -> Result<Arena> {
        let block = match queue {
            Queue::Cpu(_) => Block::Cpu(Arc::new(CpuBuffer::uninit(nbytes)?)),
            Queue::OpenCl(stream) => {
                let lease = stream.pool().allocate_on(nbytes, label, stream.id())?;
                Block::OpenCl(Arc::new(RwLock::new(lease)))
            }
        };
        Ok(Arena { block, nbytes })
    }

    /// What parts of a queue's arenas begin at multiples of: what the device asks for, and whole cache lines.
    pub fn align(queue: &Queue) -> usize {
        const LINES: usize = 128;
        match queue {
            Queue::Cpu(_) => LINES,
            Queue::OpenCl(stream) => stream.device().info().base_addr_align.max(1).next_multiple_of(LINES),
        }
    }

    /// The largest block that the queue's device gives.
    pub fn limit(queue: &Queue) -> usize {
        match queue {
            Queue::Cpu(_) => isize::MAX as usize,
            Queue::OpenCl(stream) => usize::try_from(stream.context().max_alloc()).unwrap_or(usize::MAX),
        }
    }

    /// The size.
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// A part as a storage of its own, from a multiple of [`Arena::align`] on.
    ///
    /// # Errors
    /// If it does not lie inside, is empty, or begins elsewhere.
    pub fn part(&self, offset: usize, nbytes: usize) -> Result<Arc<Storage>> {
        let end = offset.checked_add(nbytes).filter(|end| nbytes > 0 && *end <= self.nbytes);
        let Some(end) = end else {
            let what = format!("{nbytes} bytes at {offset} are no part of {}", self.nbytes);
            return Err(Error::argument("arena", what));
        };
        Ok(Arc::new(match &self.block {
            Block::Cpu(buffer) => Storage::cpu(CpuBuffer::part(buffer, offset..end)?),
            Block::OpenCl(lease) => Storage::opencl(ClMemory::part(lease.clone(), offset..end)?),
        }))
    }
}
