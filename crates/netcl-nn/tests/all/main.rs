//! Tests of modules, layers and models. One binary: nextest runs each test in a process of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

mod generation;
mod golden;
mod layers;
mod models;
mod modules;
mod modules_config;
mod modules_derive;
mod modules_shared;
mod modules_system;
mod quantized;
