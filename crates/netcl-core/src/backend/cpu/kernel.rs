//! Native functions as launchable work.

use std::sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use smallvec::SmallVec;

use super::interrupt;
use crate::backend::Queue;
use crate::error::{Error, Result};
use crate::kernels::argument::{Access, Arg, Scalar};
use crate::storage::Storage;

type Body = dyn Fn(&CpuArgs<'_>) -> Result<()> + Send + Sync;

/// A native function that takes a launch's arguments.
#[derive(Clone)]
pub struct CpuKernel(Arc<Body>);

/// The arguments of a running native kernel. While it exists, nobody else writes the buffers that the kernel reads, and
/// nobody else touches those it writes.
pub struct CpuArgs<'a> {
    args: &'a [Arg],
}

/// What [`CpuArgs::derived`] keeps, alive as long as this value is.
pub struct Derived(Arc<Storage>);

impl Derived {
    /// Its memory, which nobody writes.
    pub fn memory(&self) -> Result<*const u8> {
        self.0.cpu_memory().map(|(first, _)| first.cast_const())
    }
}

enum Guard<'a> {
    Read(#[expect(dead_code, reason = "held for its drop")] RwLockReadGuard<'a, ()>),
    Write(#[expect(dead_code, reason = "held for its drop")] RwLockWriteGuard<'a, ()>),
}

impl CpuKernel {
    /// Wraps a function. It may be run many times, from any thread.
    pub fn new(body: impl Fn(&CpuArgs<'_>) -> Result<()> + Send + Sync + 'static) -> Self {
        CpuKernel(Arc::new(body))
    }

    pub(crate) fn run(&self, args: &[Arg]) -> Result<()> {
        let _guards = lock(args);
        interrupt::allowed(|| results_are_new(args), || (self.0)(&CpuArgs { args }))
    }
}

/// Whether everything that is written was never written before, and is not read.
fn results_are_new(args: &[Arg]) -> bool {
    let reads = |identity| {
        args.iter().any(|arg| matches!(arg, Arg::Buffer(storage, Access::Read) if storage.identity() == identity))
    };
    args.iter().all(|arg| match arg {
        Arg::Buffer(storage, Access::Write) => storage.version() == 0 && !reads(storage.identity()),
        _ => true,
    })
}

/// Locks every storage of a launch once, with the strongest access it is used with, in the order of their addresses:
/// two launches that share buffers can neither run into each other's writes nor wait for each other in a circle.
fn lock(args: &[Arg]) -> SmallVec<[Guard<'_>; 4]> {
    let mut wanted: SmallVec<[(&Storage, Access); 4]> = SmallVec::new();
    for arg in args {
        if let Arg::Buffer(storage, access) = arg {
            match wanted.iter_mut().find(|(seen, _)| seen.identity() == storage.identity()) {
                Some((_, strongest)) => *strongest = (*strongest).max(*access),
                None => wanted.push((storage, *access)),
            }
        }
    }
    wanted.sort_unstable_by_key(|(storage, _)| storage.identity());
    wanted
        .into_iter()
        .map(|(storage, access)| match access {
            Access::Read => Guard::Read(storage.guard().read().unwrap_or_else(PoisonError::into_inner)),
            Access::Write => Guard::Write(storage.guard().write().unwrap_or_else(PoisonError::into_inner)),
        })
        .collect()
}

impl CpuArgs<'_> {
    /// All of them, as launched.
    pub(crate) fn all(&self) -> &[Arg] {
        self.args
    }

    /// The memory of the argument at a position, as a pointer and its length in bytes.
    ///
    /// Dereferencing it is up to the caller's `unsafe`: stay inside the length, write only what the launch declared as
    /// written, and keep it no longer than the kernel runs.
    pub fn memory(&self, at: usize) -> Result<(*mut u8, usize)> {
        match self.args.get(at) {
            Some(Arg::Buffer(storage, _)) => storage.cpu_memory(),
            _ => Err(Error::argument("launch", format!("argument {at} of the kernel is not a buffer"))),
        }
    }

    /// The memory of the argument at a position, which must reach at least to `end`.
    pub fn checked_memory(&self, at: usize, end: usize) -> Result<*mut u8> {
        let (ptr, nbytes) = self.memory(at)?;
        if end <= nbytes {
            return Ok(ptr);
        }
        Err(Error::argument("launch", format!("argument {at} reaches {end} bytes into a storage of {nbytes}")))
    }

    /// The contents of a buffer in another form, which `fill` writes: kept beside them from the second use on, until they are written
    /// or freed. `None` where nothing is kept: the kernel computes it in memory of its launch. Two forms have different keys.
    pub fn derived(
        &self,
        at: usize,
        key: &[usize],
        (queue, nbytes): (&Queue, usize),
        fill: impl FnOnce(*mut u8) -> Result<()>,
    ) -> Result<Option<Derived>> {
        match self.args.get(at) {
            Some(Arg::Buffer(storage, Access::Read)) => Ok(storage.derived(queue, key, nbytes, fill)?.map(Derived)),
            _ => Err(Error::argument("launch", format!("argument {at} of the kernel is not a buffer that is read"))),
        }
    }

    /// The whole number at a position.
    pub fn integer(&self, at: usize) -> Result<i64> {
        match self.args.get(at) {
            Some(Arg::Scalar(Scalar::I32(v))) => Ok(i64::from(*v)),
            Some(Arg::Scalar(Scalar::U32(v))) => Ok(i64::from(*v)),
            Some(Arg::Scalar(Scalar::I64(v))) => Ok(*v),
            Some(Arg::Scalar(Scalar::U64(v))) => Ok(*v as i64),
            Some(Arg::Scalar(Scalar::SlotU64(slot))) => Ok(slot.get_integer() as i64),
            _ => Err(Error::argument("launch", format!("argument {at} of the kernel is not a whole number"))),
        }
    }

    /// The float at a position.
    pub fn float(&self, at: usize) -> Result<f64> {
        match self.args.get(at) {
            Some(Arg::Scalar(Scalar::F32(v))) => Ok(f64::from(*v)),
            Some(Arg::Scalar(Scalar::F64(v))) => Ok(*v),
            // As a device would see it: a `float` argument has float's precision.
            Some(Arg::Scalar(Scalar::SlotF32(slot))) => Ok(f64::from(slot.get_float() as f32)),
            Some(Arg::Scalar(Scalar::SlotF64(slot))) => Ok(slot.get_float()),
            _ => Err(Error::argument("launch", format!("argument {at} of the kernel is not a float"))),
        }
    }
}
