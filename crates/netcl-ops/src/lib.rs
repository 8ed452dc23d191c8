//! Forward-only operations on tensors; nothing in this crate knows what a gradient is.
//!
//! Elementwise operations come from one table ([`netcl_core::kernels::expr::table`]); a heavy operation is one folder with its
//! checks and shape rule (`mod.rs`), native code (`cpu.rs`), launch code (`opencl.rs`) and kernel (`.cl`).
//!
//! ```
//! use netcl_core::{device::manager, tensor::Tensor};
//!
//! let queue = manager().cpu().queue;
//! let x = Tensor::from_host(&queue, &[-1.0f32, 0.0, 2.0], [3])?;
//! let y = netcl_ops::relu(&netcl_ops::mul(&x, 3.0)?)?;
//! assert_eq!(y.to_host::<f32>()?, [0.0, 0.0, 6.0]);
//! # Ok::<(), netcl_core::Error>(())
//! ```

pub mod attention;
pub mod conv;
pub mod cross_entropy;
mod dense;
pub mod dropout;
mod elements;
pub mod elementwise;
mod epilogue;
pub mod indexing;
pub mod integer;
pub mod layout;
pub mod linalg;
pub mod linear_cross_entropy;
pub mod linear_gradients;
mod lines;
mod lines_opencl;
pub mod matmul;
pub mod norm;
pub mod pad;
pub mod pick;
pub mod pool;
mod prelude;
mod prologue;
pub mod quantized;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod resample;
mod row_tile;
pub mod scan;
pub mod segment;
pub mod softmax;
pub mod sort;
pub mod tuning;

/// Barriers, and copies by Hopper's tensor copy engine: the beginning of kernels that use them.
const COPY_ENGINE: &str = include_str!("copy_engine.cl");

pub use attention::{scaled_dot_product_attention, scaled_dot_product_attention_backward};
pub use conv::{conv_transpose2d, conv2d, conv2d_backward_data, conv2d_backward_weight};
pub use cross_entropy::{cross_entropy, cross_entropy_backward, cross_entropy_fits};
pub use dropout::{dropout, dropout_at, dropout_backward, dropout_blocks};
pub use elementwise::*;
pub use indexing::{
    embedding, embedding_backward, embedding_sum, gather, gather_backward, index_add, index_put, index_select,
    index_select_backward, index_select_checked, masked_fill, one_hot, positions, scatter_add,
};
pub use layout::*;
pub use linear_gradients::{linear_gradients, linear_gradients_pay};
pub use matmul::{bias_add, build_matmul_kernel, linear, matmul, matmul_with};
pub use norm::{
    batch_norm, batch_norm_backward, batch_norm_eval, batch_norm_with, group_norm, group_norm_backward, layer_norm,
    layer_norm_backward, rms_norm, rms_norm_backward,
};
pub use pad::{pad, pad_backward};
pub use pick::{pick, unpick};
pub use pool::{
    adaptive_avg_pool1d, adaptive_avg_pool1d_backward, adaptive_avg_pool2d, adaptive_avg_pool2d_backward,
    adaptive_max_pool1d, adaptive_max_pool1d_backward, adaptive_max_pool2d, adaptive_max_pool2d_backward, avg_pool1d,
    avg_pool1d_backward, avg_pool2d, avg_pool2d_backward, max_pool1d, max_pool1d_backward, max_pool2d,
    max_pool2d_backward,
};
pub use quantized::quantized_linear;
pub use recurrent::{recurrent, recurrent_backward};
pub use reduce::{Axes, all, any, argmax, argmin, logsumexp, max, mean, min, norm, prod, std, sum, var};
pub use resample::{
    upsample_bicubic, upsample_bicubic_backward, upsample_bilinear, upsample_bilinear_backward, upsample_nearest,
    upsample_nearest_backward,
};
pub use scan::cumsum;
pub use segment::{segment_argmax, segment_sum};
pub use softmax::{log_softmax, log_softmax_backward, softmax, softmax_backward};
pub use sort::{argsort, sort, sort_backward, topk};
