//! One allocation whose parts are storages: where a recorded program keeps what it plans.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::{Arc, RwLock};

use crate::backend::Queue;
use crate::backend::cpu::CpuBuffer;
use crate::backend::opencl::{Buffer, ClMemory, SharedLease};
use crate::error::{Error, Result};
use crate::storage::Storage;

/// A block of a queue's memory to be cut into parts. Storages may share a part, and on the native CPU parts may overlap: whoever
/// cuts the block sees to it that storages that share bytes are not used at the same time. The block lives as long as any of its
/// parts.
///
/// ```
/// use netcl_core::{device::manager, memory::Arena};
///
/// let mut arena = Arena::allocate(&manager().get("auto")?.queue, 4096, "example")?;
/// let part = arena.part(1024..2048, 100)?;
/// assert_eq!(part.nbytes(), 100);
/// assert!(arena.part(4000..4100, 100).is_err());
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub struct Arena {
    block: Block,
    nbytes: usize,
}

enum Block {
    Cpu(Arc<CpuBuffer>),
    OpenCl {
        lease: SharedLease,
        /// By where they begin: each is one object of the driver, whoever uses it.
        parts: HashMap<usize, Buffer>,
    },
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
                Block::OpenCl { lease: Arc::new(RwLock::new(lease)), parts: HashMap::new() }
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

    /// A storage of `nbytes` bytes in a part, which begins at a multiple of [`Arena::align`].
    ///
    /// # Errors
    /// If the part does not lie inside, is too small or empty, or begins elsewhere; on OpenCL also if it overlaps another part
    /// without being the same: some drivers crash when such are released.
    pub fn part(&mut self, part: Range<usize>, nbytes: usize) -> Result<Arc<Storage>> {
        if part.end > self.nbytes || part.len() < nbytes || nbytes == 0 {
            let what = format!("{nbytes} bytes in {part:?} do not lie in a block of {}", self.nbytes);
            return Err(Error::argument("arena", what));
        }
        Ok(Arc::new(match &mut self.block {
            Block::Cpu(buffer) => Storage::cpu(CpuBuffer::part(buffer, part.start..part.start + nbytes)?),
            Block::OpenCl { lease, parts } => {
                let meets = |(&start, other): (&usize, &Buffer)| {
                    start < part.end && part.start < start + other.size() && (start..start + other.size()) != part
                };
                if parts.iter().any(meets) {
                    return Err(Error::argument("arena", format!("{part:?} overlaps another part of the block")));
                }
                let buffer = match parts.entry(part.start) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(ClMemory::cut(lease, part)?),
                };
                Storage::opencl(ClMemory::part(lease.clone(), buffer.clone(), nbytes))
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::manager;

    #[test]
    fn opencl_parts_are_shared_as_a_whole_or_not_at_all() {
        for device in manager().discover().unwrap() {
            let queue = manager().handle(&device).unwrap().queue;
            let step = Arena::align(&queue);
            let mut arena = Arena::allocate(&queue, 4 * step, "test").unwrap();
            let (whole, less) = (arena.part(0..2 * step, 2 * step).unwrap(), arena.part(0..2 * step, 3).unwrap());
            assert_eq!((whole.nbytes(), less.nbytes()), (2 * step, 3));
            let buffer = |storage: &Storage| storage.cl_memory().unwrap().buffer().unwrap().int_ptr();
            assert_eq!(buffer(&whole), buffer(&less));
            for part in [0..step, step..3 * step, 0..3 * step] {
                assert!(arena.part(part, 1).unwrap_err().to_string().contains("overlaps"));
            }
            arena.part(2 * step..3 * step, 1).unwrap();
        }
    }
}
