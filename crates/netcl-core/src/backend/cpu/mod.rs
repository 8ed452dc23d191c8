//! The native CPU backend's machinery: aligned memory, a thread pool, SIMD dispatch and memory kernels.
//!
//! Nothing here knows what a tensor is; it works on pointers, byte counts and [`Layout`](crate::shape::Layout)s.
//!
//! | file | subject |
//! |---|---|
//! | [`buffer`] | aligned blocks and the process-wide cache they return to |
//! | [`threads`] | the thread pool, which survives `fork` |
//! | [`simd`] | choosing the instruction set of a loop at run time |
//! | [`copy`] | filling, copying, permuting and casting memory |

pub mod buffer;
pub mod copy;
mod fork;
pub mod interrupt;
mod kernel;
pub(crate) mod memory_kernels;
mod queue;
pub mod simd;
pub mod threads;

pub use buffer::{CpuBuffer, CpuMemoryStats};
pub use kernel::{CpuArgs, CpuKernel, Derived};
pub use queue::{CpuDevice, CpuQueue};
pub use threads::{num_threads, parallel_for, set_num_threads};
