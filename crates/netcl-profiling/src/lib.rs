//! Profiling reports and the autotuner's front end; self-tests and measurements of devices.

pub mod autotuner;
pub mod ceilings;
pub mod doctor;
pub mod gauges;
pub mod measure;
pub mod profile;
pub mod timing;
