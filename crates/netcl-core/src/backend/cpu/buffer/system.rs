//! Where blocks come from: zeroed memory of the operating system.

use std::alloc::Layout;
use std::ptr::NonNull;

use super::{ALIGN, PAGE, PAGE_FROM};

/// Blocks from this size on ask for huge pages: one fault then brings 2 MiB instead of 4 KiB, and first writing a 64 MB block
/// is four times as fast (benches/cpu_memory.rs, first-touch).
#[cfg(target_os = "linux")]
const HUGE_FROM: usize = 4 << 20;

fn heap_layout(block: usize) -> Option<Layout> {
    Layout::from_size_align(block, if block >= PAGE_FROM { PAGE } else { ALIGN }).ok()
}

/// A zeroed block of a size class, or `None` when the system has no more.
pub(super) fn allocate(block: usize) -> Option<NonNull<u8>> {
    #[cfg(unix)]
    if block >= PAGE_FROM {
        return map(block);
    }
    let layout = heap_layout(block)?;
    // SAFETY: size classes are never zero.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
}

/// Maps pages that the kernel zeroes when they are first touched, by whichever thread that is. (`alloc_zeroed` with page
/// alignment would clear them all at once here, on one core.)
#[cfg(unix)]
fn map(block: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing memory.
    let ptr = unsafe { libc::mmap(std::ptr::null_mut(), block, protection, flags, -1, 0) };
    if ptr == libc::MAP_FAILED {
        return None;
    }
    #[cfg(target_os = "linux")]
    if block >= HUGE_FROM {
        // SAFETY: advice about the mapping just made; a kernel without huge pages refuses it, which changes nothing.
        unsafe { libc::madvise(ptr, block, libc::MADV_HUGEPAGE) };
    }
    NonNull::new(ptr.cast())
}

/// Gives a block back.
///
/// # Safety
/// `ptr` must come from [`allocate`] with the same `block` and not be used any more.
pub(super) unsafe fn release(ptr: NonNull<u8>, block: usize) {
    #[cfg(unix)]
    if block >= PAGE_FROM {
        // SAFETY: `map` made exactly this mapping. Failure (too many mappings to split) would only leak it.
        unsafe { libc::munmap(ptr.as_ptr().cast(), block) };
        return;
    }
    if let Some(layout) = heap_layout(block) {
        // SAFETY: `allocate` used this layout.
        unsafe { std::alloc::dealloc(ptr.as_ptr(), layout) };
    }
}
