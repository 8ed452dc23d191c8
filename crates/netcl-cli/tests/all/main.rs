//! Tests of the command line tool. One binary: nextest runs each test in a process of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

mod command;
mod data;
mod explain;
mod files;
mod launch;
mod measuring;
mod train;
