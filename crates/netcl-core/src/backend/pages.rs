//! Memory straight from the operating system: pages that it zeroes when they are first touched, by whichever thread that is.
//! (`alloc_zeroed` with page alignment would clear them all at once, on one core.)

use std::ptr::NonNull;

/// Mappings from this size on ask for huge pages. One fault then brings 2 MiB instead of 4 KiB, and first writing a 64 MB block
/// is four times as fast (benches/cpu_memory.rs, first-touch); later on a core finds its way through 512 times as few of them.
#[cfg(target_os = "linux")]
pub(super) const HUGE_FROM: usize = 4 << 20;

/// A new mapping of at least `len` bytes, or `None` when the system has no more.
pub(super) fn map(len: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing memory.
    let ptr = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if ptr == libc::MAP_FAILED {
        return None;
    }
    #[cfg(target_os = "linux")]
    if len >= HUGE_FROM {
        // SAFETY: advice about the mapping just made; a kernel without huge pages refuses it, which changes nothing.
        unsafe { libc::madvise(ptr, len, libc::MADV_HUGEPAGE) };
    }
    NonNull::new(ptr.cast())
}

/// Gives a mapping back.
///
/// # Safety
/// `ptr` must come from [`map`] with the same `len` and not be used any more.
pub(super) unsafe fn unmap(ptr: NonNull<u8>, len: usize) {
    // SAFETY: `map` made exactly this mapping. Failure (too many mappings to split) would only leak it.
    unsafe { libc::munmap(ptr.as_ptr().cast(), len) };
}
