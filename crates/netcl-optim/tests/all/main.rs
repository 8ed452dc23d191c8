//! Tests of optimizers. One binary: nextest runs each test in a process of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

mod golden;
mod launches;
mod matrices;
mod sgd;
mod steps;
mod support;
