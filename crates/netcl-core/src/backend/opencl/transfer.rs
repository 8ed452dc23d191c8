//! Moving bytes: write, read, copy, fill and map.

use std::ops::Range;

use bytemuck::Pod;
use opencl_sys::*;

use super::api::api;
use super::buffer::{Buffer, StableBytes};
use super::error::{ClError, ClResult};
use super::event::{Deps, Event};
use super::fork;
use super::queue::Queue;

impl Queue {
    /// Copies host values into a buffer, beginning at byte `offset`, and waits.
    pub fn write<T: Pod>(&self, buffer: &Buffer, offset: usize, data: &[T]) -> ClResult<()> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        // SAFETY: the slice is valid for the whole call, and a blocking write ends before it returns.
        unsafe { self.write_raw(buffer, offset, bytes.as_ptr(), bytes.len(), true, Deps::NONE) }.map(drop)
    }

    /// Copies bytes of a buffer, beginning at byte `offset`, into host values, and waits.
    pub fn read<T: Pod>(&self, buffer: &Buffer, offset: usize, data: &mut [T]) -> ClResult<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
        // SAFETY: the slice is valid and exclusive for the whole call, and a blocking read ends before it returns.
        unsafe { self.read_raw(buffer, offset, bytes.as_mut_ptr(), bytes.len(), true, Deps::NONE) }.map(drop)
    }

    /// Starts a read of as many bytes as `data` has and returns at once; [`Transfer::wait`] gives the data.
    pub fn read_async<T: StableBytes>(
        &self,
        buffer: &Buffer,
        offset: usize,
        mut data: T,
        after: &[&Event],
    ) -> ClResult<Transfer<T>> {
        let memory = data.bytes_mut();
        let (pointer, len) = (memory.as_mut_ptr(), memory.len());
        // SAFETY: `StableBytes` keeps the memory in place, and the transfer keeps its owner until the command is done.
        let event = unsafe { self.read_raw(buffer, offset, pointer, len, false, Deps::after(after).event())? };
        Ok(Transfer { data: Some(data), event })
    }

    /// Enqueues a write from raw memory.
    ///
    /// # Safety
    /// `data` is valid for reads of `len` bytes until the command is done, and nobody writes there meanwhile.
    pub unsafe fn write_raw(
        &self,
        buffer: &Buffer,
        offset: usize,
        data: *const u8,
        len: usize,
        blocking: bool,
        deps: Deps<'_>,
    ) -> ClResult<Option<Event>> {
        const CALL: &str = "clEnqueueWriteBuffer";
        let api = api(CALL)?;
        buffer.check_range(CALL, offset, len)?;
        if len == 0 {
            return self.nothing(blocking, deps);
        }
        // SAFETY: queue and buffer are alive, the range lies in the buffer, and the caller vouches for the memory.
        deps.blocking(blocking).enqueue(CALL, |count, list, event| unsafe {
            (api.clEnqueueWriteBuffer)(
                self.raw(),
                buffer.raw(),
                cl_bool::from(blocking),
                offset,
                len,
                data.cast(),
                count,
                list,
                event,
            )
        })
    }

    /// Enqueues a read into raw memory.
    ///
    /// # Safety
    /// `data` is valid for writes of `len` bytes until the command is done, and nobody else uses it meanwhile.
    pub unsafe fn read_raw(
        &self,
        buffer: &Buffer,
        offset: usize,
        data: *mut u8,
        len: usize,
        blocking: bool,
        deps: Deps<'_>,
    ) -> ClResult<Option<Event>> {
        const CALL: &str = "clEnqueueReadBuffer";
        let api = api(CALL)?;
        buffer.check_range(CALL, offset, len)?;
        if len == 0 {
            return self.nothing(blocking, deps);
        }
        // SAFETY: queue and buffer are alive, the range lies in the buffer, and the caller vouches for the memory.
        deps.blocking(blocking).enqueue(CALL, |count, list, event| unsafe {
            (api.clEnqueueReadBuffer)(
                self.raw(),
                buffer.raw(),
                cl_bool::from(blocking),
                offset,
                len,
                data.cast(),
                count,
                list,
                event,
            )
        })
    }

    /// Copies `len` bytes between buffers. Ranges of one buffer must not overlap.
    pub fn copy(
        &self,
        from: &Buffer,
        from_offset: usize,
        to: &Buffer,
        to_offset: usize,
        len: usize,
        deps: Deps<'_>,
    ) -> ClResult<Option<Event>> {
        const CALL: &str = "clEnqueueCopyBuffer";
        let api = api(CALL)?;
        from.check_range(CALL, from_offset, len)?;
        to.check_range(CALL, to_offset, len)?;
        if len == 0 {
            return self.nothing(false, deps);
        }
        // SAFETY: queue and buffers are alive, and the ranges lie in them.
        deps.enqueue(CALL, |count, list, event| unsafe {
            (api.clEnqueueCopyBuffer)(self.raw(), from.raw(), to.raw(), from_offset, to_offset, len, count, list, event)
        })
    }

    /// Fills a range with copies of `pattern`, whose size (1, 2, 4, ... 128 bytes) must divide start and length.
    pub fn fill<T: Pod>(
        &self,
        buffer: &Buffer,
        range: Range<usize>,
        pattern: T,
        deps: Deps<'_>,
    ) -> ClResult<Option<Event>> {
        const CALL: &str = "clEnqueueFillBuffer";
        let api = api(CALL)?;
        let (unit, len) = (size_of::<T>(), range.end.saturating_sub(range.start));
        buffer.check_range(CALL, range.start, len)?;
        if !unit.is_power_of_two() || unit > 128 || !range.start.is_multiple_of(unit) || !len.is_multiple_of(unit) {
            let what =
                format!("bytes {range:?} cannot be filled with a pattern of {unit} bytes; it must divide both ends");
            return Err(ClError::usage(CALL, what));
        }
        if len == 0 {
            return self.nothing(false, deps);
        }
        // SAFETY: queue and buffer are alive, the range lies in the buffer; the driver copies the pattern before it returns.
        deps.enqueue(CALL, |count, list, event| unsafe {
            (api.clEnqueueFillBuffer)(
                self.raw(),
                buffer.raw(),
                (&raw const pattern).cast(),
                unit,
                range.start,
                len,
                count,
                list,
                event,
            )
        })
    }

    /// Makes a range of a buffer visible to the host, waiting until it is. While the mapping lives, no command may use the
    /// buffer, and no second mapping of it (or a part of it) can be made.
    pub fn map(&self, buffer: &Buffer, range: Range<usize>, mode: MapMode, after: &[&Event]) -> ClResult<Mapped> {
        const CALL: &str = "clEnqueueMapBuffer";
        let api = api(CALL)?;
        let len = range.end.saturating_sub(range.start);
        buffer.check_range(CALL, range.start, len)?;
        if len == 0 {
            return Err(ClError::usage(CALL, "the range is empty"));
        }
        if !buffer.begin_map() {
            return Err(ClError::usage(CALL, "the buffer is mapped already; unmap it first"));
        }
        let mut pointer = std::ptr::null_mut();
        // SAFETY: queue and buffer are alive, the range lies in the buffer.
        let result = Deps::after(after).blocking(true).enqueue(CALL, |count, list, event| unsafe {
            let mut code = 0;
            pointer = (api.clEnqueueMapBuffer)(
                self.raw(),
                buffer.raw(),
                CL_TRUE,
                mode.bits(),
                range.start,
                len,
                count,
                list,
                event,
                &mut code,
            );
            if code == CL_SUCCESS && pointer.is_null() { CL_MAP_FAILURE } else { code }
        });
        if let Err(error) = result {
            buffer.end_map();
            return Err(error);
        }
        Ok(Mapped { queue: self.clone(), buffer: buffer.clone(), pointer: pointer.cast(), len, mode, live: true })
    }

    /// The completion of an empty command: drivers refuse sizes of zero, callers should not have to care.
    pub(super) fn nothing(&self, blocking: bool, deps: Deps<'_>) -> ClResult<Option<Event>> {
        let event = self.barrier(deps)?;
        if blocking {
            self.finish()?;
        }
        Ok(event)
    }
}

/// A transfer under way, together with the host memory it uses.
///
/// Dropping it waits for the command, since the memory must not go before.
#[must_use = "dropping a transfer waits for it"]
pub struct Transfer<T> {
    data: Option<T>,
    event: Option<Event>,
}

impl<T> Transfer<T> {
    /// Waits and gives the memory back.
    pub fn wait(mut self) -> ClResult<T> {
        if let Some(event) = &self.event {
            event.wait()?;
        }
        self.event = None;
        self.data.take().ok_or_else(|| ClError::usage("Transfer::wait", "the data is gone"))
    }

    /// The command's event, for others to wait on.
    pub fn event(&self) -> Option<&Event> {
        self.event.as_ref()
    }

    /// True when the command is over.
    pub fn is_complete(&self) -> ClResult<bool> {
        self.event.as_ref().map_or(Ok(true), Event::is_complete)
    }
}

impl<T> Drop for Transfer<T> {
    fn drop(&mut self) {
        if let Some(event) = &self.event {
            let over = fork::is_forked_child() || event.wait().is_ok() || event.is_complete().unwrap_or(false);
            if !over {
                // The command may still use the memory: losing it is the lesser evil.
                std::mem::forget(self.data.take());
            }
        }
    }
}

/// What a mapping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapMode {
    /// The host reads.
    Read,
    /// The host reads and writes.
    ReadWrite,
    /// The host overwrites everything; the old contents need not be fetched.
    Overwrite,
}

impl MapMode {
    fn bits(self) -> cl_map_flags {
        match self {
            MapMode::Read => CL_MAP_READ,
            MapMode::ReadWrite => CL_MAP_READ | CL_MAP_WRITE,
            MapMode::Overwrite => CL_MAP_WRITE_INVALIDATE_REGION,
        }
    }
}

/// A mapped range of a buffer. Unmapped when dropped; [`Mapped::unmap`] reports errors.
pub struct Mapped {
    queue: Queue,
    buffer: Buffer,
    pointer: *mut u8,
    len: usize,
    mode: MapMode,
    live: bool,
}

// SAFETY: the mapping is plain memory that this value alone refers to, and the driver's calls are thread-safe.
unsafe impl Send for Mapped {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// The mapped bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the driver mapped `len` bytes here until the unmap, which takes the value away.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }

    /// The mapped bytes for writing; `None` when mapped for reading.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as in `bytes`, and this value is the only mapping of the buffer.
        (self.mode != MapMode::Read).then(|| unsafe { std::slice::from_raw_parts_mut(self.pointer, self.len) })
    }

    /// Gives the range back to the device.
    pub fn unmap(mut self, deps: Deps<'_>) -> ClResult<Option<Event>> {
        self.live = false;
        self.end(deps)
    }

    fn end(&self, deps: Deps<'_>) -> ClResult<Option<Event>> {
        const CALL: &str = "clEnqueueUnmapMemObject";
        let api = api(CALL)?;
        // SAFETY: the pointer came from mapping this buffer and is unmapped once.
        let result = deps.enqueue(CALL, |count, list, event| unsafe {
            (api.clEnqueueUnmapMemObject)(self.queue.raw(), self.buffer.raw(), self.pointer.cast(), count, list, event)
        });
        self.buffer.end_map();
        result
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.live {
            // An error has nobody to go to; in a forked child nothing happens.
            let _ = self.end(Deps::NONE);
        }
    }
}
