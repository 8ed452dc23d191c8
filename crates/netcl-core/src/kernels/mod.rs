//! The launch seam, the expression IR and the kernel source helpers.

pub(crate) mod argument;
pub mod bound;
pub mod copy;
pub(crate) mod cost;
pub mod described;
pub mod elementwise;
pub mod expr;
pub mod fold;
pub mod group_limit;
pub mod host_work;
pub mod launch;
pub mod many;
pub(crate) mod memo;
mod opencl;
pub mod primitives;
pub mod recording;
pub mod region;
pub mod work_group;

/// Bytes that a work-item of a memory-bound kernel reads or writes at once.
pub const VECTOR_BYTES: usize = 16;
