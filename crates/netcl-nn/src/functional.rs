//! The recordable operations as functions, under PyTorch's name for the place: `use netcl_nn::functional as F`.
//!
//! ```
//! use netcl_nn::autograd::{Tensor, manager};
//! use netcl_nn::functional as F;
//!
//! let queue = manager().cpu().queue;
//! let x = Tensor::from_host(&queue, &[0.5f32; 16], [1, 1, 4, 4])?;
//! let filters = Tensor::from_host(&queue, &[1.0f32; 9], [1, 1, 3, 3])?.with_grad();
//! let y = F::conv2d(&x, &filters, None, &F::ConvParams { padding: F::symmetric([1, 1]), ..Default::default() })?;
//! let pooled = F::max_pool2d(&F::relu(&y)?, &F::Window::new([2, 2]))?;
//! assert_eq!(pooled.to_host::<f32>()?, [4.5; 4]);
//! # Ok::<(), netcl_nn::autograd::Error>(())
//! ```

use netcl_autograd::{Result, Tensor};

pub use netcl_autograd::ops::activation::{glu, rrelu};
pub use netcl_autograd::ops::attention::{Attention, RotaryForm, RotaryTables, rotary, scaled_dot_product_attention};
pub use netcl_autograd::ops::conv::{ConvParams, conv_transpose1d, conv_transpose2d, conv1d, conv2d, symmetric};
pub use netcl_autograd::ops::distance::{cosine_similarity, normalize, pairwise_distance};
pub use netcl_autograd::ops::dropout::{Dropped, alpha_dropout, dropout, feature_dropout};
pub use netcl_autograd::ops::einsum::einsum;
pub use netcl_autograd::ops::elementwise::*;
pub use netcl_autograd::ops::embedding_bag::{BagMode, EmbeddingBagOptions, embedding_bag};
pub use netcl_autograd::ops::grid::{GridMode, GridPadding, affine_grid, grid_sample};
pub use netcl_autograd::ops::indexing::{embedding, gather, index_add, index_select, masked_fill, scatter_add};
pub use netcl_autograd::ops::layout::{
    cat, chunk, expand, flatten, flip, permute, repeat, reshape, select, slice, split, squeeze, stack, transpose, tril,
    triu, unsqueeze,
};
pub use netcl_autograd::ops::loss::cross_entropy as cross_entropy_with;
pub use netcl_autograd::ops::loss::linear_cross_entropy;
pub use netcl_autograd::ops::loss::*;
pub use netcl_autograd::ops::matmul::{bias_add, bilinear, linear, matmul};
pub use netcl_autograd::ops::norm::{
    LocalResponse, Running, batch_norm, batch_norm_eval, group_norm, instance_norm, instance_norm_eval, layer_norm,
    local_response_norm, rms_norm,
};
pub use netcl_autograd::ops::pad::{PadMode, pad};
pub use netcl_autograd::ops::pool::{
    Averaging, Window, adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_max_pool1d, adaptive_max_pool2d, avg_pool1d,
    avg_pool2d, lp_pool1d, lp_pool2d, max_pool1d, max_pool2d,
};
pub use netcl_autograd::ops::reduce::{
    all, any, argmax, argmin, cumsum, logsumexp, max, mean, min, norm, prod, std, sum, var,
};
pub use netcl_autograd::ops::resample::{Resize, upsample_area, upsample_bicubic, upsample_bilinear, upsample_nearest};
pub use netcl_autograd::ops::shuffle::{channel_shuffle, pixel_shuffle, pixel_unshuffle};
pub use netcl_autograd::ops::softmax::{gumbel_softmax, log_softmax, softmax, softmin};
pub use netcl_autograd::ops::sort::{argsort, sort, topk};

/// The mean cross-entropy between logits of shape `(N, C)`, `(N, C, d1, ...)` or `(C,)` and class labels or probabilities;
/// [`cross_entropy_with`] takes options.
///
/// ```
/// use netcl_nn::{autograd::Tensor, functional as F};
///
/// let logits = Tensor::new("cpu", [[0.0, 0.0], [0.0, 0.0]])?;
/// assert!((F::cross_entropy(&logits, &[1, 0])?.item()? - 2f64.ln()).abs() < 1e-6);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[track_caller]
pub fn cross_entropy<'t>(logits: &Tensor, target: impl Into<Target<'t>>) -> Result<Tensor> {
    cross_entropy_with(logits, target, &CrossEntropyOptions::default())
}
pub use netcl_autograd::ops::unfold::{Patches, fold, unfold};
