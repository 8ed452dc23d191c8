//! Tests of files. One binary: nextest runs each test in a process of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

mod damage;
mod files;
mod golden;
mod hostile;
mod memory;
mod writing;
