//! Large blocks for devices that are this host's own processor: memory that we ask the operating system for and hand to the driver.
//!
//! The drivers take theirs from `malloc`, in pages of 4 KiB. In huge pages whatever is bound by memory was up to 8 % faster on PoCL
//! (benches/results/README.md), since a core finds its way through 512 times as few of them.
//! The native backend's own blocks are not used: they wait in its cache when the pools here want memory to be free.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::buffer::StableBytes;
use super::device::{Device, DeviceType};
use crate::backend::cpu::buffer::PAGE;
use crate::backend::pages::{self, HUGE_FROM};

/// Bytes of all [`HostPages`]. Whichever driver works on them, they lie in one memory.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Pages of this process that a buffer lives in.
pub(super) struct HostPages {
    start: NonNull<u8>,
    len: usize,
}

impl HostPages {
    /// Whether a block of a device should lie in such pages: a device that works in the host's memory, and a block that fills some.
    pub(super) fn suit(device: &Device, bytes: usize) -> bool {
        bytes >= HUGE_FROM && device.device_type() == DeviceType::Cpu && device.info().host_unified_memory
    }

    /// Pages for a block, or why there are none. The driver does not count what it is given, so this does: all blocks together are
    /// no larger than the memory that the device says it has.
    pub(super) fn new(device: &Device, bytes: usize) -> Result<HostPages, String> {
        let most = usize::try_from(device.info().global_mem_size).unwrap_or(usize::MAX);
        let len = bytes.checked_next_multiple_of(PAGE).ok_or("no address space is that large")?;
        let room = |taken: usize| taken.checked_add(len).filter(|sum| *sum <= most);
        if let Err(taken) = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room) {
            return Err(format!("{taken} of the device's {most} bytes are taken by large blocks"));
        }
        let Some(start) = pages::map(len) else {
            TAKEN.fetch_sub(len, Ordering::Relaxed);
            return Err(format!("the operating system gave no {len} bytes: {}", std::io::Error::last_os_error()));
        };
        Ok(HostPages { start, len })
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and the buffer in it is gone.
        unsafe { pages::unmap(self.start, self.len) };
        TAKEN.fetch_sub(self.len, Ordering::Relaxed);
    }
}

// SAFETY: the mapping belongs to this value alone, and any thread may unmap it.
unsafe impl Send for HostPages {}

// SAFETY: the mapping stays where it is until the value is dropped, and belongs to it alone.
unsafe impl StableBytes for HostPages {
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: a mapping of `len` bytes, zeroed by the system.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}
