//! Tests of devices, tensors, memory and kernel generation. One binary: nextest runs each test in a process of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

mod cpu_copy;
#[cfg(unix)]
mod cpu_fork;
mod debug_levels;
mod elementwise_tiles;
mod expr_accuracy;
mod expr_cpu;
mod expr_derivative;
mod expr_graph;
mod expr_opencl;
mod kernel_spec;
mod launch_seam;
mod layout_properties;
mod many_tensors;
mod memory_pools;
mod opencl_commands;
mod opencl_process;
mod opencl_profiles;
mod opencl_programs;
mod opencl_support;
#[cfg(unix)]
mod process_signals;
mod region;
mod region_source;
mod region_support;
mod tensor_basics;
mod tensor_devices;
mod tensor_opencl;
