//! Cross-cutting services: capture and replay, scheduling, kernel cache tools.

pub mod cache;
pub mod capture;
pub mod scheduler;
