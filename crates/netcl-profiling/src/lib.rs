//! Profiling reports and the autotuner's front end; self-tests and measurements of devices.

pub mod doctor;
pub mod measure;

pub use netcl_ops::core;
