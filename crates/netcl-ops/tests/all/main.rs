//! Tests of operations: grids over devices and dtypes, launches. One binary: nextest runs each test in a process of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

mod attention_grid;
mod attention_support;
mod conv_depthwise_channels;
mod conv_grid;
mod conv_launches;
mod conv_many;
mod conv_support;
mod dropout;
mod elementwise_grid;
mod golden;
mod groups_form;
mod indexing_forms;
mod indexing_grid;
mod kernel_files;
mod layout_ops;
mod linear_gradients;
mod lines_grid;
mod matmul_grid;
mod matmul_support;
mod matmul_units;
mod norm_grid;
mod norm_launches;
mod pick_grid;
mod pool_grid;
mod prologues;
mod quantized_grid;
mod random_devices;
mod recurrent_grid;
mod reduce_grid;
mod resample_pad;
mod segment_grid;
mod sort_grid;
mod support;
