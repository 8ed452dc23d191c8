//! Launches on OpenCL streams: at once, or prepared to be replayed; the counters that kernels of a stream share.

use std::any::Any;
use std::sync::Arc;

use smallvec::SmallVec;

use super::argument::{Arg, Scalar};
use crate::backend::opencl::{Arg as ClArg, Buffer, COUNTERS, ClMemory, Deps, Grid, Kernel, MemFlags, Stream};
use crate::error::{Error, Result};
use crate::storage::Storage;

/// Runs a launch's kernel on a stream.
pub(super) fn run(stream: &Stream, kernel: &Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
    let mut buffers: SmallVec<[Buffer; 8]> = SmallVec::new();
    for arg in args {
        if let Arg::Buffer(storage, _) = arg {
            buffers.push(memory_of(storage, kernel)?.acquire(stream)?);
        }
    }
    let mut next = buffers.iter();
    let args: SmallVec<[ClArg<'_>; 16]> = args
        .iter()
        .map(|arg| match arg {
            // One buffer was collected per buffer argument.
            Arg::Buffer(..) => next.next().map_or(ClArg::Null, ClArg::Buffer),
            Arg::Local(bytes) => ClArg::Local(*bytes),
            Arg::Null => ClArg::Null,
            Arg::Scalar(scalar) => scalar_arg(scalar),
        })
        .collect();
    let launch = || stream.queue().launch(kernel, grid, &args, Deps::NONE).map(drop);
    stream.with_room(|| buffers.iter().map(Buffer::size).sum(), launch)
}

fn memory_of<'s>(storage: &'s Storage, kernel: &Kernel) -> Result<&'s ClMemory> {
    storage
        .cl_memory()
        .ok_or_else(|| Error::argument("launch", format!("a buffer of kernel {} is not OpenCL memory", kernel.name())))
}

impl Stream {
    /// [`COUNTERS`] integers (`uint`) in device memory, all zero, with which the groups of a launch find out who is the last.
    ///
    /// A kernel that uses them leaves them zero again, so that the next one of this stream (or the next replay) finds them so.
    pub fn counters(&self) -> Result<Arc<Storage>> {
        if let Some(kept) = self.kept().get() {
            return counters_in(kept);
        }
        let buffer = Buffer::new(self.context(), MemFlags::READ_WRITE, COUNTERS * size_of::<u32>())?;
        self.queue().fill(&buffer, 0..buffer.size(), 0u32, Deps::default())?;
        // Not of the pool: its blocks know their streams, and this stream would never end.
        counters_in(self.kept().get_or_init(|| Arc::new(Storage::opencl(ClMemory::foreign(buffer)))))
    }
}

fn counters_in(kept: &Arc<dyn Any + Send + Sync>) -> Result<Arc<Storage>> {
    let what = "a stream keeps something else than its counters".to_owned();
    kept.clone().downcast().map_err(|_| Error::State { op: "counters", what })
}

/// A kernel object of a launch's own, with its arguments set; only slots are looked at again.
pub(super) struct Prepared {
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
    pub(super) fn new(stream: &Stream, kernel: &Kernel, grid: Grid, args: &[Arg]) -> Result<Prepared> {
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

    pub(super) fn set_buffer(&mut self, at: usize, storage: &Arc<Storage>) -> Result<()> {
        self.set(at, &ClArg::Buffer(&memory_of(storage, &self.kernel)?.buffer()?))
    }

    fn set(&self, at: usize, arg: &ClArg<'_>) -> Result<()> {
        Ok(self.kernel.set_arg_locked(at, arg)?)
    }

    pub(super) fn enqueue(&mut self, stream: &Stream) -> Result<()> {
        for slot in &mut self.slots {
            let bits = slot_bits(&slot.slot).unwrap_or(slot.bits);
            if bits != slot.bits {
                self.kernel.set_arg_locked(slot.at, &scalar_arg(&slot.slot))?;
                slot.bits = bits;
            }
        }
        let launch = || stream.queue().enqueue(&self.kernel, &self.grid, Deps::NONE).map(drop);
        stream.with_room(|| self.bytes, launch)
    }
}

/// A number as the driver takes it, with the slots' values of the moment.
pub(super) fn scalar_arg(scalar: &Scalar) -> ClArg<'_> {
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
