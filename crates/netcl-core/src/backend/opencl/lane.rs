//! A tensor's memory on its way to and from the host in chunks, so that copies of different chunks overlap.
//!
//! Chunks come down on the compute queue and go up on the copy queue, each through its own slot of page-locked memory: a device with
//! two copy engines does both at once, and the host works on a third chunk meanwhile.

use std::sync::Arc;

use super::buffer::Buffer;
use super::event::{Deps, Event};
use super::memory::ClMemory;
use super::source::ClSource;
use super::stream::{self, Stream};
use super::transfer::{MapMode, Mapped};
use crate::error::{Error, Result};
use crate::memory::BufferHandle;
use crate::observe::{self, Kind};

/// Chunks of one buffer under way.
pub struct ClLane {
    stream: Arc<Stream>,
    buffer: Buffer,
    /// Where the tensor begins in the buffer.
    start: usize,
    chunk: usize,
    slots: Vec<Slot>,
    base: *mut u8,
    /// Unmapped before the lease ends: fields are dropped in their order.
    _mapped: Mapped,
    _lease: BufferHandle<ClSource>,
}

// SAFETY: the pointer is to the mapping that the lane owns, and the lane is used by one thread at a time.
unsafe impl Send for ClLane {}

/// What may still use a slot's memory.
#[derive(Default)]
struct Slot {
    read: Option<Event>,
    write: Option<Event>,
}

impl ClLane {
    /// A lane over the bytes of a memory from `start` on, with so many slots for chunks of this size.
    ///
    /// # Errors
    /// Want of memory; what the driver says.
    pub fn new(stream: &Arc<Stream>, memory: &ClMemory, start: usize, chunk: usize, slots: usize) -> Result<ClLane> {
        let (copies, id) = stream.copy_queue()?;
        let lease = stream.pinned_pool().allocate_on(chunk * slots, "chunks", id)?;
        let mut mapped = copies.map(lease.block()?, 0..chunk * slots, MapMode::Overwrite, &[])?;
        let base = mapped.bytes_mut().unwrap_or_default().as_mut_ptr();
        let buffer = memory.acquire(stream)?;
        // What the compute queue still does with the memory comes before the first chunk that goes up.
        stream::order(stream.id(), id)?;
        let slots = (0..slots).map(|_| Slot::default()).collect();
        Ok(ClLane { stream: stream.clone(), buffer, start, chunk, slots, base, _mapped: mapped, _lease: lease })
    }

    /// The memory of a slot; the caller sees to it that no command uses it where that matters.
    fn slot(&self, slot: usize, len: usize) -> Result<*mut u8> {
        if slot >= self.slots.len() || len > self.chunk {
            return Err(Error::argument("chunks", format!("{len} bytes do not fit slot {slot} of {}", self.chunk)));
        }
        // SAFETY: the mapping has `slots * chunk` bytes.
        Ok(unsafe { self.base.add(slot * self.chunk) })
    }

    /// Starts to copy bytes of the tensor into a slot.
    ///
    /// # Errors
    /// What the driver says.
    pub fn start_read(&mut self, slot: usize, offset: usize, len: usize) -> Result<()> {
        let to = self.slot(slot, len)?;
        let before = self.slots[slot].write.take();
        let wait: smallvec::SmallVec<[&Event; 1]> = before.iter().collect();
        let (queue, start) = (self.stream.queue(), self.start);
        let read = || {
            let deps = Deps::after(&wait).event();
            // SAFETY: the slot lies in the lane's own memory, which lives until its events are complete (see the drop), and nobody
            // reads it before this one is (see `read`).
            Ok(unsafe { queue.read_raw(&self.buffer, start + offset, to, len, false, deps)? })
        };
        let event = observe::copy_on(&self.stream, Kind::Download, len, read)?;
        queue.flush()?;
        self.slots[slot].read = event;
        Ok(())
    }

    /// The bytes of a slot, when they have come.
    ///
    /// # Errors
    /// What the driver says.
    pub fn read(&mut self, slot: usize, len: usize) -> Result<&[u8]> {
        let from = self.slot(slot, len)?;
        if let Some(event) = &self.slots[slot].read {
            event.wait()?;
        }
        self.slots[slot].read = None;
        // SAFETY: the read is complete, and only `start_read` and `write`, which need the lane for themselves, change the bytes.
        Ok(unsafe { std::slice::from_raw_parts(from, len) })
    }

    /// Fills a slot and starts to copy it into the tensor.
    ///
    /// # Errors
    /// What the driver says.
    pub fn write(&mut self, slot: usize, offset: usize, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let from = self.slot(slot, len)?;
        self.settle(slot)?;
        // SAFETY: the commands that used the slot are over.
        fill(unsafe { std::slice::from_raw_parts_mut(from, len) });
        let (queue, _) = self.stream.copy_queue()?;
        let start = self.start;
        // SAFETY: as in `start_read`; the bytes are not changed before the event is complete (see above).
        let write = || Ok(unsafe { queue.write_raw(&self.buffer, start + offset, from, len, false, Deps::EVENT)? });
        let event = observe::copy_on(&self.stream, Kind::Upload, len, write)?;
        queue.flush()?;
        self.slots[slot].write = event;
        Ok(())
    }

    /// Waits for everything under way in a slot.
    fn settle(&mut self, slot: usize) -> Result<()> {
        let Slot { read, write } = std::mem::take(&mut self.slots[slot]);
        // Both, whatever the first one says: the memory is free only then.
        let waited = [read, write].map(|event| event.map_or(Ok(()), |event| event.wait()));
        Ok(waited.into_iter().collect::<super::ClResult<()>>()?)
    }

    /// Waits for everything under way.
    ///
    /// # Errors
    /// What the driver says.
    pub fn finish(&mut self) -> Result<()> {
        (0..self.slots.len()).try_for_each(|slot| self.settle(slot))
    }
}

impl Drop for ClLane {
    fn drop(&mut self) {
        // The memory must not go before the commands that use it. One that failed has ended; its error was or will be heard elsewhere.
        for slot in 0..self.slots.len() {
            let _ = self.settle(slot);
        }
    }
}

impl ClMemory {
    /// Copies bytes of another memory of the same context, in the order of the stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn copy_from(
        &self,
        stream: &Stream,
        offset: usize,
        from: &ClMemory,
        from_offset: usize,
        len: usize,
    ) -> Result<()> {
        let (source, target) = (from.acquire(stream)?, self.acquire(stream)?);
        stream.queue().copy(&source, from_offset, &target, offset, len, Deps::NONE)?;
        Ok(stream.queue().flush()?)
    }
}
