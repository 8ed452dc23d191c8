//! Kernels on small shapes for the checker of memory accesses, which runs them in one process, with one log: a binary of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

mod layers;
mod small;
#[expect(dead_code, reason = "the grids of the other binary use the rest")]
#[path = "../all/support/mod.rs"]
mod support;
