//! netcl: deep learning on any OpenCL device. The facade that Rust users depend on.

mod book;
