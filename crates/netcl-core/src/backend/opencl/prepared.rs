//! A kernel object of one's own with its arguments set: what a replayed launch is.

use std::sync::Arc;

use super::error::ClResult;
use super::event::Deps;
use super::kernel::{Arg as ClArg, Grid, Kernel};
use super::source::out_of_memory;
use super::stream::{self, Stream};
use crate::error::{Error, Result};
use crate::kernels::launch::{Arg, Scalar};
use crate::memory::trim_device;
use crate::storage::Storage;

/// A kernel whose arguments stay; only slots are looked at again.
pub(crate) struct Prepared {
    kernel: Kernel,
    grid: Grid,
    slots: Vec<SlotArg>,
    /// Bytes of all buffers, for reports.
    bytes: usize,
}

struct SlotArg {
    at: usize,
    slot: Scalar,
    /// The bits that were set last.
    bits: u64,
}

impl Prepared {
    pub(crate) fn new(stream: &Stream, kernel: &Kernel, grid: Grid, args: &[Arg]) -> Result<Prepared> {
        let own = kernel.duplicate()?;
        own.check(stream.queue(), &grid, args.len())?;
        let mut prepared = Prepared { kernel: own, grid, slots: Vec::new(), bytes: 0 };
        for (at, arg) in args.iter().enumerate() {
            match arg {
                Arg::Buffer(storage, _) => {
                    prepared.set_buffer(at, storage)?;
                    prepared.bytes += storage.nbytes();
                }
                Arg::Local(bytes) => prepared.set(at, &ClArg::Local(*bytes))?,
                Arg::Null => prepared.set(at, &ClArg::Null)?,
                Arg::Scalar(scalar) => {
                    prepared.set(at, &scalar_arg(scalar))?;
                    if let Some(bits) = slot_bits(scalar) {
                        prepared.slots.push(SlotArg { at, slot: scalar.clone(), bits });
                    }
                }
            }
        }
        Ok(prepared)
    }

    pub(crate) fn set_buffer(&mut self, at: usize, storage: &Arc<Storage>) -> Result<()> {
        let memory = storage.cl_memory().ok_or_else(|| {
            Error::argument("launch", format!("a buffer of kernel {} is not OpenCL memory", self.kernel.name()))
        })?;
        self.set(at, &ClArg::Buffer(&memory.buffer()?))
    }

    fn set(&self, at: usize, arg: &ClArg<'_>) -> Result<()> {
        Ok(self.kernel.set_arg_locked(at, arg)?)
    }

    pub(crate) fn enqueue(&mut self, stream: &Stream) -> Result<()> {
        for slot in &mut self.slots {
            let bits = slot_bits(&slot.slot).unwrap_or(slot.bits);
            if bits != slot.bits {
                self.kernel.set_arg_locked(slot.at, &scalar_arg(&slot.slot))?;
                slot.bits = bits;
            }
        }
        let launch = || -> ClResult<()> { stream.queue().enqueue(&self.kernel, &self.grid, Deps::NONE).map(drop) };
        match launch() {
            // Drivers allocate lazily: want of memory may show only here. Empty the caches and try once more.
            Err(error) if error.is_out_of_memory() => {
                let device = crate::memory::BlockSource::device(stream.pool().source());
                trim_device(&device);
                stream::finish_device(stream.device());
                launch().map_err(|error| out_of_memory(error, &device, self.bytes))
            }
            other => Ok(other?),
        }
    }
}

/// A number as the driver takes it, with the slots' values of the moment.
pub(crate) fn scalar_arg(scalar: &Scalar) -> ClArg<'_> {
    match scalar {
        Scalar::Bytes(bytes) => ClArg::Bytes(bytes),
        Scalar::I32(v) => ClArg::scalar(*v),
        Scalar::U32(v) => ClArg::scalar(*v),
        Scalar::I64(v) => ClArg::scalar(*v),
        Scalar::U64(v) => ClArg::scalar(*v),
        Scalar::F32(v) => ClArg::scalar(*v),
        Scalar::F64(v) => ClArg::scalar(*v),
        Scalar::SlotF32(slot) => ClArg::scalar(slot.get_float() as f32),
        Scalar::SlotF64(slot) => ClArg::scalar(slot.get_float()),
        Scalar::SlotU64(slot) => ClArg::scalar(slot.get_integer()),
    }
}

fn slot_bits(scalar: &Scalar) -> Option<u64> {
    match scalar {
        Scalar::SlotF32(slot) | Scalar::SlotF64(slot) | Scalar::SlotU64(slot) => Some(slot.get_integer()),
        _ => None,
    }
}
