//! Cross-cutting services: capture and replay, scheduling, kernel cache tools.

pub mod cache;

pub use netcl_core as core;
