//! Where the pools' OpenCL blocks come from.

use super::buffer::{Buffer, MemFlags};
use super::context::Context;
use super::device::Device;
#[cfg(target_os = "linux")]
use super::host_pages::HostPages;
use super::stream;
use crate::error::{Error, Result};
use crate::memory::{BlockSource, QueueId};

/// Buffers of one context: device memory, or page-locked host memory.
#[derive(Clone, Debug)]
pub struct ClSource {
    context: Context,
    device: Device,
    flags: MemFlags,
}

impl ClSource {
    /// Device memory of a context, for the pool of one of its devices.
    pub fn device_memory(context: &Context, device: &Device) -> ClSource {
        ClSource { context: context.clone(), device: device.clone(), flags: MemFlags::READ_WRITE }
    }

    /// Page-locked host memory that a device of the context copies fast from and to.
    pub fn pinned_memory(context: &Context, device: &Device) -> ClSource {
        let flags = MemFlags::READ_WRITE | MemFlags::ALLOC_HOST_PTR;
        ClSource { context: context.clone(), device: device.clone(), flags }
    }

    /// Pages of our own for a block, where it should lie in such; why there are none, if there should be.
    #[cfg(target_os = "linux")]
    fn pages(&self, bytes: usize) -> Option<std::result::Result<HostPages, String>> {
        let suit = self.flags == MemFlags::READ_WRITE && HostPages::suit(&self.device, bytes);
        suit.then(|| HostPages::new(&self.device, bytes))
    }

    /// The driver's own memory is as good where nobody can be asked for huge pages.
    #[cfg(not(target_os = "linux"))]
    fn pages(&self, _bytes: usize) -> Option<std::result::Result<Vec<u8>, String>> {
        None
    }

    /// The context the buffers belong to.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl BlockSource for ClSource {
    type Block = Buffer;

    fn allocate(&self, bytes: usize) -> Result<Buffer> {
        // The driver's own words; the pool that asked adds who holds what.
        let none_left = |why| Error::OutOfMemory { device: self.device(), bytes, holders: why };
        let made = match self.pages(bytes).transpose().map_err(none_left)? {
            Some(pages) => Buffer::from_host_memory(&self.context, self.flags, pages),
            None => Buffer::new(&self.context, self.flags, bytes),
        };
        made.map_err(|error| if error.is_out_of_memory() { none_left(error.to_string()) } else { error.into() })
    }

    fn device(&self) -> String {
        // Two boards of one model have one name: the driver's own handle tells them apart.
        format!("{} [{:#x}]", self.device.name(), self.device.int_ptr())
    }

    fn largest(&self) -> usize {
        usize::try_from(self.context.max_alloc()).unwrap_or(usize::MAX)
    }

    fn settle(&self) {
        stream::finish_device(&self.device);
    }

    fn hand_over(&self, _block: &Buffer, from: QueueId, to: QueueId) -> Result<()> {
        stream::order(from, to)
    }
}
