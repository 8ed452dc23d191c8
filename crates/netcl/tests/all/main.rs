//! The facade's tests: whole trainings, capture, examples. One binary: nextest runs each test in a process of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

mod capture;
mod capture_guard;
mod capture_support;
mod decoding;
mod examples;
mod fashion_losses;
mod first_network;
mod steady_memory;
