//! Losses, with PyTorch's meaning of every option.
//!
//! The pointwise ones are a single expression and a reduction. Shapes must match exactly: a target of shape `(N,)` beside
//! an input of shape `(N, 1)` is an error, not an `(N, N)` matrix. Everything is written with recordable ops, so that
//! gradients can be differentiated again; [`ctc_loss`] alone is computed on the host, and its gradient cannot.
//!
//! | file | losses |
//! |---|---|
//! | `cross_entropy.rs` | [`cross_entropy`], [`nll_loss`] |
//! | `linear_cross_entropy.rs` | [`linear_cross_entropy`] |
//! | `regression.rs` | [`mse_loss`], [`l1_loss`], [`smooth_l1_loss`], [`huber_loss`] |
//! | `binary.rs` | [`binary_cross_entropy`], [`binary_cross_entropy_with_logits`] |
//! | `ctc.rs` | [`ctc_loss`] |
//! | `divergence.rs` | [`kl_div`] |
//! | `embedding.rs` | [`cosine_embedding_loss`], [`triplet_margin_loss`] |
//! | `likelihood.rs` | [`poisson_nll_loss`], [`gaussian_nll_loss`] |
//! | `margin.rs` | [`margin_ranking_loss`], [`hinge_embedding_loss`], [`soft_margin_loss`], [`multi_margin_loss`], [`multilabel_margin_loss`], [`multilabel_soft_margin_loss`] |
//! | `labels.rs` | [`Target`]: what class labels may be given as |

mod binary;
mod cross_entropy;
mod ctc;
mod divergence;
mod embedding;
mod labels;
mod likelihood;
mod linear_cross_entropy;
mod margin;
mod pick;
mod regression;

pub use binary::{BceOptions, BceWithLogitsOptions, binary_cross_entropy, binary_cross_entropy_with_logits};
pub use cross_entropy::{CrossEntropyOptions, NllOptions, cross_entropy, nll_loss};
pub use ctc::{CtcOptions, ctc_loss};
pub use divergence::{KlDivOptions, kl_div};
pub use embedding::{CosineEmbeddingOptions, TripletMarginOptions, cosine_embedding_loss, triplet_margin_loss};
pub use labels::Target;
pub use likelihood::{GaussianNllOptions, PoissonNllOptions, gaussian_nll_loss, poisson_nll_loss};
pub use linear_cross_entropy::{LinearCrossEntropyOptions, linear_cross_entropy};
pub use margin::{
    HingeEmbeddingOptions, MarginRankingOptions, MultiMarginOptions, MultilabelSoftMarginOptions, hinge_embedding_loss,
    margin_ranking_loss, multi_margin_loss, multilabel_margin_loss, multilabel_soft_margin_loss, soft_margin_loss,
};
pub use pick::{pick, unpick};
pub use regression::{HuberOptions, SmoothL1Options, huber_loss, l1_loss, mse_loss, smooth_l1_loss};

use netcl_core::Error as CoreError;
use netcl_core::backend::Queue;
use netcl_core::kernels::launch;

use super::reduce::{mean, sum};
use crate::error::Result;
use crate::tensor::Tensor;

/// What becomes of the losses of single elements or rows.
///
/// ```
/// use netcl_autograd::ops::loss::Reduction;
///
/// assert_eq!(Reduction::parse("mean")?, Reduction::default());
/// assert!(Reduction::parse("max").is_err());
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// They are returned as they are.
    None,
    /// Their mean, of shape `()`.
    #[default]
    Mean,
    /// Their sum, of shape `()`.
    Sum,
}

impl Reduction {
    /// Reads `"none"`, `"mean"` or `"sum"`.
    pub fn parse(name: &str) -> Result<Reduction> {
        match name {
            "none" => Ok(Reduction::None),
            "mean" => Ok(Reduction::Mean),
            "sum" => Ok(Reduction::Sum),
            _ => {
                let what = format!("there is no reduction {name:?}; use \"none\", \"mean\" or \"sum\"");
                Err(CoreError::argument("loss", what).into())
            }
        }
    }

    #[track_caller]
    fn apply(self, losses: Tensor) -> Result<Tensor> {
        match self {
            Reduction::None => Ok(losses),
            Reduction::Mean => mean(&losses, (), false),
            Reduction::Sum => sum(&losses, (), false),
        }
    }
}

/// An error unless two operands of a loss have one shape.
fn check_same_shape(op: &'static str, input: &Tensor, target: &Tensor) -> Result<()> {
    if input.shape() == target.shape() {
        return Ok(());
    }
    let why =
        format!("it must be the input's, {}; losses do not broadcast, reshape or expand one of them", input.shape());
    Err(CoreError::Shape { op, shape: target.shape().clone(), why }.into())
}

/// An error unless a weight can be broadcast to the input without making it larger.
fn check_weight(op: &'static str, input: &Tensor, weight: Option<&Tensor>) -> Result<()> {
    match weight {
        Some(weight) if input.shape().broadcast(op, weight.shape())? != *input.shape() => {
            let why = format!("a weight must broadcast to the input's shape {}", input.shape());
            Err(CoreError::Shape { op, shape: weight.shape().clone(), why }.into())
        }
        _ => Ok(()),
    }
}

/// An error unless a number lies where a loss is defined; `valid` is false for NaN.
fn check_number(op: &'static str, name: &str, value: f64, valid: bool, wanted: &str) -> Result<()> {
    if valid {
        return Ok(());
    }
    Err(CoreError::argument(op, format!("{name} is {value}, but must be {wanted}")).into())
}

/// An error that names the first element outside what a loss is defined for, where elements can be read without waiting.
fn check_elements(op: &'static str, x: &Tensor, valid: fn(f64) -> bool, name: &str, wanted: &str) -> Result<()> {
    if !matches!(x.queue(), Queue::Cpu(_)) || launch::is_repeating() || launch::check_readable(op).is_err() {
        return Ok(());
    }
    let values = x.raw().to_f64_vec()?;
    let Some(at) = values.iter().position(|&value| !valid(value)) else { return Ok(()) };
    Err(CoreError::argument(op, format!("element {at} of {name} is {}, and {wanted}", values[at])).into())
}
