//! The memory pools against a fake device: a model for every step, threads, memory that runs out, limits and environment.

mod fake;
mod limits;
mod model;
mod out_of_memory;
mod threads;
