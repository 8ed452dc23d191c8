//! Where blocks come from: zeroed memory of the operating system.

use std::alloc::Layout;
use std::ptr::NonNull;

use super::{ALIGN, PAGE, PAGE_FROM};
#[cfg(unix)]
use crate::backend::pages;

fn heap_layout(block: usize) -> Option<Layout> {
    Layout::from_size_align(block, if block >= PAGE_FROM { PAGE } else { ALIGN }).ok()
}

/// A zeroed block of a size class, or `None` when the system has no more.
pub(super) fn allocate(block: usize) -> Option<NonNull<u8>> {
    #[cfg(unix)]
    if block >= PAGE_FROM {
        return pages::map(block);
    }
    let layout = heap_layout(block)?;
    // SAFETY: size classes are never zero.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
}

/// Gives a block back.
///
/// # Safety
/// `ptr` must come from [`allocate`] with the same `block` and not be used any more.
pub(super) unsafe fn release(ptr: NonNull<u8>, block: usize) {
    #[cfg(unix)]
    if block >= PAGE_FROM {
        // SAFETY: `allocate` mapped such a block, and the caller is done with it.
        unsafe { pages::unmap(ptr, block) };
        return;
    }
    if let Some(layout) = heap_layout(block) {
        // SAFETY: `allocate` used this layout.
        unsafe { std::alloc::dealloc(ptr.as_ptr(), layout) };
    }
}
