//! The memory behind tensors: a closed choice of backends, a version counter, and the pending upload.

mod derived;
mod transfer;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::backend::Queue;
use crate::backend::cpu::CpuBuffer;
use crate::backend::opencl::ClMemory;
use crate::error::{Error, Result};
use crate::memory::SharedCpuLease;
use crate::observe;

/// A block of device memory that tensors share. Views, reshapes and clones of a tensor all point to one storage.
pub struct Storage {
    memory: Memory,
    /// Raised by every write, so that whoever saved a tensor can tell that it has changed.
    version: AtomicU64,
    persistent: AtomicBool,
    /// Whether the tensor that lived here has moved: a program that was recorded with it would go on in the wrong place.
    left: AtomicBool,
    /// Whether somebody may write to the memory without raising the version.
    exposed: AtomicBool,
    derived: derived::Derived,
    /// Guards native memory while a kernel runs; OpenCL orders its kernels by queue instead.
    guard: RwLock<()>,
}

enum Memory {
    /// Of zero-size tensors.
    Empty,
    Cpu(CpuBuffer),
    /// Native memory of a pool of the caller's choice.
    CpuLease(LeasedBlock),
    OpenCl(ClMemory),
    /// Of a program that is being recorded: a size and an identity; memory takes its place before anything runs.
    Planned {
        nbytes: usize,
        /// Where the program keeps it, once that is decided.
        home: OnceLock<Arc<Storage>>,
    },
}

impl Drop for Storage {
    fn drop(&mut self) {
        observe::freed(std::ptr::from_ref(self) as usize);
        if let (true, Memory::Cpu(buffer)) = (self.persistent(), &mut self.memory) {
            buffer.discard();
        }
    }
}

/// The first bytes of a lease's block.
struct LeasedBlock {
    /// Held beside the lease: one that is ended by hand takes no memory away. `None` only while dropping.
    block: Option<Arc<CpuBuffer>>,
    nbytes: usize,
    lease: SharedCpuLease,
}

impl Drop for LeasedBlock {
    fn drop(&mut self) {
        // The lease ends with the last tensor, also where somebody still holds its handle. The block first: one that is seen
        // elsewhere is not used again.
        self.block = None;
        self.lease.write().unwrap_or_else(PoisonError::into_inner).release();
    }
}

impl Storage {
    fn new(memory: Memory) -> Self {
        Storage {
            memory,
            version: AtomicU64::new(0),
            persistent: AtomicBool::new(false),
            left: AtomicBool::new(false),
            exposed: AtomicBool::new(false),
            derived: derived::Derived::default(),
            guard: RwLock::new(()),
        }
    }

    /// The storage of a zero-size tensor: no memory at all.
    pub fn empty() -> Self {
        Storage::new(Memory::Empty)
    }

    /// A storage over native memory.
    pub fn cpu(buffer: CpuBuffer) -> Self {
        Storage::new(Memory::Cpu(buffer))
    }

    /// A storage over native memory of a lease that somebody else may hold, too.
    ///
    /// # Errors
    /// [`Error::State`] when the lease has ended.
    pub fn cpu_lease(lease: SharedCpuLease) -> Result<Self> {
        let (block, nbytes) = {
            let held = lease.read().unwrap_or_else(PoisonError::into_inner);
            (Arc::clone(held.block()?), held.nbytes())
        };
        Ok(Storage::new(Memory::CpuLease(LeasedBlock { block: Some(block), nbytes, lease })))
    }

    /// The lease of native memory that came from a pool of the caller's choice.
    pub fn cpu_lease_of(&self) -> Option<&SharedCpuLease> {
        match &self.actual().memory {
            Memory::CpuLease(leased) => Some(&leased.lease),
            _ => None,
        }
    }

    /// A storage over OpenCL memory.
    pub fn opencl(memory: ClMemory) -> Self {
        Storage::new(Memory::OpenCl(memory))
    }

    /// A stand-in for memory that a recorded program will need: launches may name it, and
    /// [`Launch::bind`](crate::kernels::launch::Launch::bind) puts real memory in its place.
    pub fn planned(nbytes: usize) -> Self {
        Storage::new(Memory::Planned { nbytes, home: OnceLock::new() })
    }

    /// Whether this only stands in for memory.
    pub fn is_planned(&self) -> bool {
        matches!(self.actual().memory, Memory::Planned { .. })
    }

    /// Gives a planned storage the memory it stood in for: tensors over it can be used like any other from now on.
    ///
    /// # Errors
    /// If it is not planned, has a home already, or the memory is too small.
    pub fn settle(&self, home: Arc<Storage>) -> Result<()> {
        let op = "settle";
        let Memory::Planned { nbytes, home: place } = &self.memory else {
            return Err(Error::argument(op, "the storage has memory of its own"));
        };
        if home.is_planned() || home.nbytes() < *nbytes {
            let what = format!("a planned storage of {nbytes} bytes needs as much memory, got {home:?}");
            return Err(Error::argument(op, what));
        }
        place.set(home).map_err(|_| Error::argument(op, "the storage has a home already"))
    }

    /// The storage that has the memory: this one, or the home of a planned one.
    fn actual(&self) -> &Storage {
        match &self.memory {
            Memory::Planned { home, .. } => home.get().map_or(self, |home| home.actual()),
            _ => self,
        }
    }

    /// What tells memory from other memory: equal for a planned storage and its home.
    pub fn identity(&self) -> usize {
        std::ptr::from_ref(self.actual()) as usize
    }

    /// Makes what a queue is given from now on wait for whatever another queue is doing with the memory.
    ///
    /// # Errors
    /// If the memory was given back, and what the driver says.
    pub fn join(&self, queue: &Queue) -> Result<()> {
        match (&self.actual().memory, queue) {
            (Memory::OpenCl(memory), Queue::OpenCl(stream)) => memory.acquire(stream).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// The size in bytes.
    pub fn nbytes(&self) -> usize {
        match &self.memory {
            Memory::Empty => 0,
            Memory::Cpu(buffer) => buffer.nbytes(),
            Memory::CpuLease(leased) => leased.nbytes,
            Memory::OpenCl(memory) => memory.nbytes(),
            Memory::Planned { nbytes, .. } => *nbytes,
        }
    }

    /// How often the contents were written.
    pub fn version(&self) -> u64 {
        self.actual().version.load(Ordering::Acquire)
    }

    /// Notes that the contents were written: every launch does it by itself.
    pub fn raise_version(&self) {
        self.actual().version.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the memory is given back to the system, instead of to a pool, when the last tensor lets go of it.
    pub fn persistent(&self) -> bool {
        self.persistent.load(Ordering::Acquire)
    }

    /// Sets [`Storage::persistent`].
    pub fn set_persistent(&self, persistent: bool) {
        self.persistent.store(persistent, Ordering::Release);
        match &self.memory {
            Memory::OpenCl(memory) => memory.set_persistent(persistent),
            Memory::CpuLease(leased) => {
                leased.lease.read().unwrap_or_else(PoisonError::into_inner).set_persistent(persistent);
            }
            Memory::Empty | Memory::Cpu(_) | Memory::Planned { .. } => {}
        }
    }

    /// Says that the tensor that lived here has moved to another storage.
    pub fn leave(&self) {
        self.actual().left.store(true, Ordering::Release);
    }

    /// Whether the tensor that lived here has moved.
    pub fn was_left(&self) -> bool {
        self.actual().left.load(Ordering::Acquire)
    }

    pub(crate) fn guard(&self) -> &RwLock<()> {
        &self.actual().guard
    }

    /// Native memory as a pointer and its length; an error on a device.
    pub(crate) fn cpu_memory(&self) -> Result<(*mut u8, usize)> {
        match &self.actual().memory {
            // Well aligned for every element type, never dereferenced.
            Memory::Empty => Ok((std::ptr::without_provenance_mut(64), 0)),
            Memory::Cpu(buffer) => Ok((buffer.as_ptr(), buffer.nbytes())),
            Memory::CpuLease(leased) => match &leased.block {
                Some(block) => Ok((block.as_ptr(), leased.nbytes)),
                None => Err(unbacked("tensor")),
            },
            Memory::OpenCl(_) => {
                let what = "the memory belongs to an OpenCL device; read it with to_host or move it with t.to(queue)";
                Err(Error::argument("tensor", what))
            }
            Memory::Planned { .. } => Err(unbacked("tensor")),
        }
    }

    /// OpenCL memory, if that is what it is.
    pub fn cl_memory(&self) -> Option<&ClMemory> {
        match &self.actual().memory {
            Memory::OpenCl(memory) => Some(memory),
            Memory::Empty | Memory::Cpu(_) | Memory::CpuLease(_) | Memory::Planned { .. } => None,
        }
    }

    /// OpenCL memory, or an error that names the operation.
    pub(crate) fn require_cl(&self, op: &'static str) -> Result<&ClMemory> {
        self.cl_memory().ok_or_else(|| match self.memory {
            Memory::Planned { .. } => unbacked(op),
            _ => Error::argument(op, "the tensor's memory does not belong to an OpenCL device"),
        })
    }
}

fn unbacked(op: &'static str) -> Error {
    let what = "the tensor belongs to a program that is being recorded and has no values yet; use it only inside the \
                recorded function, and read results after the replay";
    Error::State { op, what: what.to_owned() }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Storage({} bytes, version {})", self.nbytes(), self.version())
    }
}
