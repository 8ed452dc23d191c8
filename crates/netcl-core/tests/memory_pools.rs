//! The memory pools against a fake device: a model for every step, threads, memory that runs out, limits and environment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

#[cfg(test)]
#[path = "memory_pools/fake.rs"]
mod fake;
#[cfg(test)]
#[path = "memory_pools/limits.rs"]
mod limits;
#[cfg(test)]
#[path = "memory_pools/model.rs"]
mod model;
#[cfg(test)]
#[path = "memory_pools/out_of_memory.rs"]
mod out_of_memory;
#[cfg(test)]
#[path = "memory_pools/threads.rs"]
mod threads;
