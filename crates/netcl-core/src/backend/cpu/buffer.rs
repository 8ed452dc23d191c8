//! Aligned memory of the CPU backend, recycled through a bounded cache so that training loops do not fault pages in anew
//! at every step.
//!
//! Blocks come in size classes with four mantissa bits (at most 6.25 % larger than asked for). A dropped buffer's block
//! waits in the cache of its class; when the cache would hold more than `NETCL_CPU_CACHE_MB` (1024 by default) the blocks
//! that waited longest go back to the system.
//!
//! Every byte of a buffer is initialised at any time: fresh blocks are zeroed by the system, recycled ones hold what this
//! process last wrote there. "Uninit" therefore means *unspecified values*, never undefined behaviour.

mod cache;
mod system;

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::host;

use cache::{CACHE, Found};

/// Alignment of every block.
pub const ALIGN: usize = 64;
/// From this size on blocks start on a page, as zero-copy buffers of OpenCL want it.
pub const PAGE_FROM: usize = 64 << 10;
/// Alignment of blocks of at least [`PAGE_FROM`] bytes.
pub const PAGE: usize = 4096;

/// A block of host memory that may be shared between threads and is written through raw pointers.
///
/// ```
/// use netcl_core::backend::cpu::CpuBuffer;
///
/// let buffer = CpuBuffer::zeroed(1000)?;
/// assert_eq!(buffer.nbytes(), 1000);
/// assert_eq!(buffer.as_ptr() as usize % 64, 0);
/// // SAFETY: nobody else knows this buffer yet, and it has 1000 bytes.
/// unsafe { buffer.as_ptr().add(999).write(7) };
/// # Ok::<(), netcl_core::Error>(())
/// ```
///
/// The buffer hands out `*mut u8` from a shared reference: who writes must make sure that nobody reads or writes the
/// same bytes meanwhile. Within the crate the launch seam orders that.
pub struct CpuBuffer {
    ptr: NonNull<u8>,
    nbytes: usize,
    origin: Origin,
}

enum Origin {
    /// No memory: zero bytes.
    Nothing,
    /// A block of the cache, of this many bytes.
    Block(usize),
    /// A block of the cache that goes back to the system instead.
    Discarded(usize),
    /// Memory of somebody else, alive as long as this value is.
    Foreign(#[expect(dead_code, reason = "held only to be dropped")] Box<dyn Any + Send + Sync>),
}

// SAFETY: the buffer owns its block (or what keeps it alive, which is Send + Sync); access through `as_ptr` is the caller's
// responsibility, as stated there.
unsafe impl Send for CpuBuffer {}
// SAFETY: see `Send`.
unsafe impl Sync for CpuBuffer {}

impl CpuBuffer {
    /// A block of `nbytes` bytes of unspecified (but initialised) content.
    pub fn uninit(nbytes: usize) -> Result<Self> {
        Ok(Self::allocate(nbytes)?.0)
    }

    /// A block of `nbytes` zero bytes.
    pub fn zeroed(nbytes: usize) -> Result<Self> {
        let (buffer, found) = Self::allocate(nbytes)?;
        if found == Found::Recycled {
            // SAFETY: the block has `nbytes` bytes and nobody else knows it yet.
            unsafe { super::copy::fill(buffer.as_ptr(), nbytes, &[0])? };
        }
        Ok(buffer)
    }

    /// Memory that somebody else allocated (a NumPy array, a DLPack capsule) and that `owner` keeps alive.
    ///
    /// # Safety
    /// `ptr` must point to `nbytes` initialised bytes that stay valid, for reads and writes from any thread, until `owner`
    /// is dropped. It may have any alignment; kernels that need more must copy.
    pub unsafe fn foreign(ptr: *mut u8, nbytes: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        let ptr = NonNull::new(ptr).unwrap_or(dangling());
        CpuBuffer { ptr, nbytes, origin: Origin::Foreign(owner) }
    }

    /// A part of a buffer, which it keeps alive.
    ///
    /// # Errors
    /// If the range does not lie inside the buffer.
    pub fn part(buffer: &Arc<CpuBuffer>, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > buffer.nbytes {
            let what = format!("bytes {range:?} do not lie in a buffer of {}", buffer.nbytes);
            return Err(Error::argument("buffer", what));
        }
        // SAFETY: the range lies inside the buffer, all of whose bytes are initialised, and the owner keeps it alive. That no
        // two threads use the same bytes is up to whoever takes overlapping parts, as everywhere with `as_ptr`.
        Ok(unsafe {
            let start = buffer.as_ptr().add(range.start);
            CpuBuffer::foreign(start, range.len(), Box::new(Arc::clone(buffer)))
        })
    }

    fn allocate(nbytes: usize) -> Result<(Self, Found)> {
        if nbytes == 0 {
            return Ok((CpuBuffer { ptr: dangling(), nbytes, origin: Origin::Nothing }, Found::Fresh));
        }
        let out_of_memory = || {
            let s = stats();
            let holders = format!(
                "{} bytes are in use in {} buffers (at most {} at once so far), {} more wait in the cache; \
                 drop tensors or use smaller batches",
                s.live_bytes, s.live_buffers, s.peak_bytes, s.cached_bytes
            );
            Error::OutOfMemory { device: "cpu".to_owned(), bytes: nbytes, holders }
        };
        let block = size_class(nbytes).ok_or_else(out_of_memory)?;
        // Pools keep blocks of their own: they let go of them before the request fails.
        let take = || CACHE.take(block, host::total());
        let again = || (crate::memory::trim_device("cpu") > 0).then(take).flatten();
        let (ptr, found) = take().or_else(again).ok_or_else(out_of_memory)?;
        Ok((CpuBuffer { ptr, nbytes, origin: Origin::Block(block) }, found))
    }

    /// The first byte; dangling (but aligned and not null) when the buffer is empty.
    ///
    /// Reading or writing through it is sound only while no other thread writes the same bytes, and only up to
    /// [`CpuBuffer::nbytes`].
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The size asked for.
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Has the block given back to the system, instead of to the cache, when the buffer is dropped.
    pub(crate) fn discard(&mut self) {
        if let Origin::Block(block) = self.origin {
            self.origin = Origin::Discarded(block);
        }
    }

    /// Whether the memory belongs to somebody else.
    pub fn is_foreign(&self) -> bool {
        matches!(self.origin, Origin::Foreign(_))
    }
}

impl Drop for CpuBuffer {
    fn drop(&mut self) {
        match self.origin {
            // SAFETY: `take(block)` gave this pointer, and the buffer that owned it is going away.
            Origin::Block(block) => unsafe { CACHE.give(self.ptr, block, true) },
            // SAFETY: as above.
            Origin::Discarded(block) => unsafe { CACHE.give(self.ptr, block, false) },
            Origin::Nothing | Origin::Foreign(_) => {}
        }
    }
}

impl fmt::Debug for CpuBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self.origin {
            Origin::Nothing => "empty",
            Origin::Block(_) | Origin::Discarded(_) => "owned",
            Origin::Foreign(_) => "foreign",
        };
        write!(f, "CpuBuffer({:p}, {} bytes, {origin})", self.ptr, self.nbytes)
    }
}

fn dangling() -> NonNull<u8> {
    NonNull::without_provenance(const { std::num::NonZero::new(ALIGN).expect("not zero") })
}

/// The size of the block that serves a request: four bits after the leading one, and whole cache lines.
/// `None` where the address space ends.
pub fn size_class(nbytes: usize) -> Option<usize> {
    let step = match nbytes.checked_ilog2() {
        Some(log) if log >= 4 => (1usize << (log - 4)).max(ALIGN),
        _ => ALIGN,
    };
    nbytes.checked_next_multiple_of(step).filter(|&n| n <= isize::MAX as usize).map(|n| n.max(ALIGN))
}

/// What the CPU backend holds. Byte counts are sizes of blocks, so `live + cached` is what the system gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuMemoryStats {
    /// Bytes of blocks that buffers own.
    pub live_bytes: usize,
    /// How many buffers own a block.
    pub live_buffers: usize,
    /// The highest `live_bytes` since the process started or [`reset_peak`].
    pub peak_bytes: usize,
    /// Bytes of blocks that wait for reuse.
    pub cached_bytes: usize,
    /// Requests that a cached block served.
    pub hits: u64,
    /// Requests that went to the system.
    pub misses: u64,
    /// Cached blocks that went back to the system.
    pub evictions: u64,
    /// The highest `live_bytes + cached_bytes` since the process started or [`reset_peak`].
    pub peak_allocated_bytes: usize,
}

/// The counters of the process-wide cache.
pub fn stats() -> CpuMemoryStats {
    CACHE.stats()
}

/// The counters, and the sizes of the blocks that wait for reuse with how many there are, smallest first.
pub fn snapshot() -> (CpuMemoryStats, Vec<(usize, usize)>) {
    CACHE.snapshot()
}

/// The most bytes that wait for reuse.
pub fn max_cached_bytes() -> usize {
    CACHE.cap()
}

/// Gives every cached block back to the system and says how many bytes that were.
pub fn trim() -> usize {
    CACHE.trim(0)
}

/// Gives the blocks that waited longest back to the system until at most `keep` bytes wait; says how many bytes went.
pub fn trim_to(keep: usize) -> usize {
    CACHE.trim(keep)
}

/// Makes the present use the peak.
pub fn reset_peak() {
    CACHE.reset_peak();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_waste_at_most_a_sixteenth() {
        assert_eq!(size_class(1), Some(64));
        assert_eq!(size_class(65), Some(128));
        assert_eq!(size_class(1 << 20), Some(1 << 20));
        assert_eq!(size_class((1 << 20) + 1), Some((1 << 20) + (1 << 16)));
        assert_eq!(size_class(usize::MAX), None);
        for nbytes in (1024..300_000).chain((1 << 30)..(1 << 30) + 1000) {
            let block = size_class(nbytes).unwrap();
            assert!(block >= nbytes && (block - nbytes) * 16 <= nbytes, "{nbytes} -> {block}");
            assert_eq!(size_class(block), Some(block));
            assert_eq!(block % if block >= PAGE_FROM { PAGE } else { ALIGN }, 0);
        }
    }

    #[test]
    fn alignment_and_emptiness() {
        for nbytes in [1, 63, 64, 1000, 65_535, 65_536, 70_000, 3 << 20] {
            let buffer = CpuBuffer::uninit(nbytes).unwrap();
            assert_eq!(buffer.as_ptr() as usize % if nbytes >= PAGE_FROM { PAGE } else { ALIGN }, 0, "{nbytes}");
            assert_eq!(buffer.nbytes(), nbytes);
        }
        let empty = CpuBuffer::zeroed(0).unwrap();
        assert!(matches!(empty.origin, Origin::Nothing));
        assert!(!empty.as_ptr().is_null());
    }

    #[test]
    fn zeroed_clears_recycled_blocks() {
        for nbytes in [100usize, 100_000, 5 << 20] {
            for _ in 0..3 {
                let buffer = CpuBuffer::zeroed(nbytes).unwrap();
                // SAFETY: this test owns the buffer, all of whose bytes are initialised.
                let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.as_ptr(), nbytes) };
                assert!(bytes.iter().all(|&b| b == 0));
                bytes.fill(0xa5);
            }
        }
    }

    #[test]
    fn foreign_memory_is_kept_alive_and_returned() {
        let mut data = vec![1u8, 2, 3];
        let ptr = data.as_mut_ptr();
        let owner = Arc::new(data);
        // SAFETY: the Arc's clone keeps the vector's heap block alive.
        let buffer = unsafe { CpuBuffer::foreign(ptr, 3, Box::new(Arc::clone(&owner))) };
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(buffer);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn an_impossible_size_is_an_error_that_says_who_holds_what() {
        let _held = CpuBuffer::uninit(4096).unwrap();
        for nbytes in [usize::MAX, isize::MAX as usize / 2] {
            let error = CpuBuffer::uninit(nbytes).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Memory);
            assert!(error.to_string().contains("bytes are in use in"), "{error}");
        }
    }

    #[test]
    fn buffers_that_do_not_fit_the_machine_together_are_refused_before_anything_is_written() {
        // A system that promises no more than it has refuses the first one already.
        let most = |_: &CpuBuffer| CpuBuffer::zeroed(host::total() / 5 * 3);
        let Ok(first) = CpuBuffer::zeroed(host::total() / 5 * 3) else { return };
        assert_eq!(most(&first).unwrap_err().kind(), crate::ErrorKind::Memory);
        assert_eq!(CpuBuffer::uninit(host::total() + 1).unwrap_err().kind(), crate::ErrorKind::Memory);
        assert!(CpuBuffer::zeroed(1 << 20).is_ok());
    }
}
