//! The OpenCL backend.
