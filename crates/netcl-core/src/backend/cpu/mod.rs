//! The native CPU backend's machinery: aligned memory, a thread pool, SIMD dispatch and memory kernels.
//!
//! Nothing here knows what a tensor is; it works on pointers, byte counts and [`Layout`](crate::shape::Layout)s.
//!
//! | file | subject |
//! |---|---|
//! | [`buffer`] | aligned blocks and the process-wide cache they return to |
//! | [`threads`] | the thread pool, which survives `fork` |
//! | [`simd`] | choosing a loop's instruction set at run time |
//! | [`copy`] | filling, copying, permuting and casting memory |

pub mod buffer;
mod fork;

pub use buffer::{CpuBuffer, CpuMemoryStats};
