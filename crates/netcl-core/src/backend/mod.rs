//! The two transports: OpenCL and the native CPU, sibling folders with the same interface.

pub mod cpu;
pub mod opencl;
