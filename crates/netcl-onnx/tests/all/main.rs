//! Integration tests: models made here, run, trained, compiled, damaged.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod build;
mod export;
mod hostile;
mod models;
