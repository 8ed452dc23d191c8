//! The memory behind tensors: a closed choice of backends, a version counter, and the pending upload.

use std::fmt;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::backend::cpu::CpuBuffer;
use crate::backend::opencl::ClMemory;
use crate::error::{Error, Result};

/// A block of device memory that tensors share. Views, reshapes and clones of a tensor all point to one storage.
pub struct Storage {
    memory: Memory,
    /// Raised by every write, so that whoever saved a tensor can tell that it has changed.
    version: AtomicU64,
    persistent: AtomicBool,
    /// Guards native memory while a kernel runs; OpenCL orders its kernels by queue instead.
    guard: RwLock<()>,
}

enum Memory {
    /// Of zero-size tensors.
    Empty,
    Cpu(CpuBuffer),
    OpenCl(ClMemory),
    /// Of a program that is being recorded: a size and an identity; memory takes its place before anything runs.
    Planned(usize),
}

impl Storage {
    fn new(memory: Memory) -> Self {
        Storage { memory, version: AtomicU64::new(0), persistent: AtomicBool::new(false), guard: RwLock::new(()) }
    }

    /// The storage of a zero-size tensor: no memory at all.
    pub fn empty() -> Self {
        Storage::new(Memory::Empty)
    }

    /// A storage over native memory.
    pub fn cpu(buffer: CpuBuffer) -> Self {
        Storage::new(Memory::Cpu(buffer))
    }

    /// A storage over OpenCL memory.
    pub fn opencl(memory: ClMemory) -> Self {
        Storage::new(Memory::OpenCl(memory))
    }

    /// A stand-in for memory that a recorded program will need: launches may name it, and
    /// [`Launch::bind`](crate::kernels::launch::Launch::bind) puts real memory in its place.
    pub fn planned(nbytes: usize) -> Self {
        Storage::new(Memory::Planned(nbytes))
    }

    /// Whether this only stands in for memory.
    pub fn is_planned(&self) -> bool {
        matches!(self.memory, Memory::Planned(_))
    }

    /// The size in bytes.
    pub fn nbytes(&self) -> usize {
        match &self.memory {
            Memory::Empty => 0,
            Memory::Cpu(buffer) => buffer.nbytes(),
            Memory::OpenCl(memory) => memory.nbytes(),
            Memory::Planned(nbytes) => *nbytes,
        }
    }

    /// How often the contents were written.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Notes that the contents were written, or will be when a recorded program runs.
    pub fn raise_version(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the memory is given back to the system, instead of to a pool, when the last tensor lets go of it.
    pub fn persistent(&self) -> bool {
        self.persistent.load(Ordering::Acquire)
    }

    /// Sets [`Storage::persistent`].
    pub fn set_persistent(&self, persistent: bool) {
        self.persistent.store(persistent, Ordering::Release);
        if let Memory::OpenCl(memory) = &self.memory {
            memory.set_persistent(persistent);
        }
    }

    pub(crate) fn guard(&self) -> &RwLock<()> {
        &self.guard
    }

    /// Native memory as a pointer and its length; an error on a device.
    pub(crate) fn cpu_memory(&self) -> Result<(*mut u8, usize)> {
        match &self.memory {
            // Well aligned for every element type, never dereferenced.
            Memory::Empty => Ok((std::ptr::without_provenance_mut(64), 0)),
            Memory::Cpu(buffer) => Ok((buffer.as_ptr(), buffer.nbytes())),
            Memory::OpenCl(_) => {
                let what = "the memory belongs to an OpenCL device; read it with to_host or move it with t.to(queue)";
                Err(Error::argument("tensor", what))
            }
            Memory::Planned(_) => Err(unbacked("tensor")),
        }
    }

    /// OpenCL memory, if that is what it is.
    pub fn cl_memory(&self) -> Option<&ClMemory> {
        match &self.memory {
            Memory::OpenCl(memory) => Some(memory),
            Memory::Empty | Memory::Cpu(_) | Memory::Planned(_) => None,
        }
    }

    /// OpenCL memory, or an error that names the operation.
    pub(crate) fn require_cl(&self, op: &'static str) -> Result<&ClMemory> {
        self.cl_memory().ok_or_else(|| match self.memory {
            Memory::Planned(_) => unbacked(op),
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
