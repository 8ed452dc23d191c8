//! The header says what the library has, and programs in C and C++ run with it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod header;
mod programs;
