//! The OpenCL backend: a thin, safe layer over a library that is loaded at run time. It knows nothing of shapes and dtypes beyond casting uploads.
//!
//! | file | subject |
//! |---|---|
//! | `api`, `fork`, `handle`, `info`, `error` | the library, children of `fork`, object ownership, queries, errors |
//! | `platform`, `device`, `limits`, `probe` | what there is, what it says, what it may show, what it really does |
//! | `context`, `queue`, `event`, `buffer`, `transfer`, `kernel`, `program` | the objects and commands |
//! | `stream`, `memory`, `lane`, `source`, `prepared` | a device's queues with pools and kernels, a tensor's memory, its copies in chunks, the pools' blocks, kernels that keep their arguments |
//! | `interrupts`, `exit`, `shutdown` | interrupts of driver calls that do not return, the finish at exit, both for users |
//! | `build`, `cache`, `ahead`, `compiler` | from source to program, kept on disk, many before they are needed, in processes of their own |
//! | `compiler_lock`, `first_launch`, `ptx` | compilers for one process at a time, those that run at a launch, NVIDIA's intermediate text |
//! | `tensor_map` | how NVIDIA's copy engine is told where an array lies |
//!
//! Every object has `int_ptr()` and `from_int_ptr()`, so that it can be shared with other code that uses OpenCL (PyOpenCL).
//! Queues are in order; commands make events only when asked ([`Deps`]). In a child that was forked after the library was
//! loaded every call is an error and every drop does nothing.

pub mod ahead;
mod api;
mod buffer;
mod build;
pub mod cache;
pub mod compiler;
mod compiler_lock;
mod context;
mod device;
mod error;
mod event;
mod exit;
mod facts;
mod first_launch;
mod fork;
mod handle;
#[cfg(target_os = "linux")]
mod host_pages;
mod info;
pub(crate) mod interrupts;
mod kernel;
mod lane;
pub(crate) mod limits;
mod memory;
mod platform;
mod probe;
mod program;
pub mod ptx;
mod queue;
pub mod shutdown;
mod source;
mod stream;
pub mod tensor_map;
mod transfer;

pub use api::{Api, LoadError};
pub use buffer::{Buffer, MemFlags, StableBytes};
pub use build::{BuildStats, Builder, Source, build};
pub use context::Context;
pub use device::{Device, DeviceInfo, DeviceType};
pub use error::{BuildError, ClError, ClResult};
pub use event::{Deps, Event, EventStatus, EventTimes};
pub(crate) use event::{keep_events, keeps_events};
pub use exit::finish_all;
pub use fork::is_forked_child;
pub use kernel::{Arg, ArgInfo, Grid, Kernel, Scalar, WorkGroupInfo};
pub use lane::ClLane;
pub use limits::{Limits, LimitsError};
pub use memory::{ClMemory, SharedLease, Staged, Upload, UploadPath};
pub use platform::{Discovery, Platform, PlatformReport, discover};
pub use probe::{DeviceProbes, Subgroups};
pub use program::Program;
pub use queue::Queue;
pub(crate) use queue::time_queues;
pub use source::ClSource;
pub use stream::{COUNTERS, Stream};
pub use transfer::{MapMode, Mapped, Transfer};
