//! Tests of gradients, losses and the JIT compiler. One binary: nextest runs each test in a process of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

mod autocast;
mod einsum;
mod gradient_grid;
mod gradients;
mod jit;
mod jit_graphs;
mod losses;
mod memory;
mod random_graphs;
mod subscript;
mod support;
