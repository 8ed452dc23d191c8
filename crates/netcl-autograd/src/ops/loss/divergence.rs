//! The Kullback-Leibler divergence.

use std::sync::{Arc, LazyLock};

use netcl_core::Error as CoreError;
use netcl_core::kernels::expr::Graph;

use super::{Reduction, check_same_shape};
use crate::autocast;
use crate::error::Result;
use crate::ops::elementwise::{ExprOp, mul};
use crate::ops::reduce::sum;
use crate::tensor::Tensor;

/// How [`kl_div`] reads its target and reduces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KlDivOptions {
    /// The target holds logarithms, like the input.
    pub log_target: bool,
    /// [`Reduction::Mean`] divides by the length of the first axis instead of the number of elements, which is what the
    /// definition of the divergence asks for: PyTorch's `"batchmean"`.
    pub batch_mean: bool,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

/// The divergence of a distribution from the target: `target * (log(target) - input)`, where `input` holds
/// log-probabilities.
///
/// ```
/// use netcl_autograd::{Tensor, manager};
/// use netcl_autograd::ops::{loss::{KlDivOptions, kl_div}, softmax::log_softmax};
///
/// let queue = manager().cpu().queue;
/// let logits = Tensor::from_host(&queue, &[0.0f32, 0.0], [1, 2])?;
/// let target = Tensor::from_host(&queue, &[1.0f32, 0.0], [1, 2])?;
/// let options = KlDivOptions { batch_mean: true, ..Default::default() };
/// let loss = kl_div(&log_softmax(&logits, 1)?, &target, &options)?;
/// assert!((loss.item()? - 2f64.ln()).abs() < 1e-6);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn kl_div(input: &Tensor, target: &Tensor, options: &KlDivOptions) -> Result<Tensor> {
    /// By whether the target holds logarithms.
    static OPS: LazyLock<[Arc<ExprOp>; 2]> = LazyLock::new(|| {
        let g = Graph::new();
        let (x, t) = (g.input(0), g.input(1));
        // t * log(t) tends to 0 at 0, and so does the slope of what is chosen there.
        let of_probabilities = t.eq(0.0).select(0.0, t * t.log()) - t * x;
        let of_logarithms = t.exp() * (t - x);
        [of_probabilities, of_logarithms].map(|loss| ExprOp::new("kl_div", g.finish(&[loss])))
    });
    let op = "kl_div";
    if let Some(casts) = autocast::enter(op, [input, target]) {
        return kl_div(&casts.of(input)?, &casts.of(target)?, options);
    }
    check_same_shape(op, input, target)?;
    let losses = OPS[usize::from(options.log_target)].apply(&[input, target], &[])?;
    if !(options.batch_mean && options.reduction == Reduction::Mean) {
        return options.reduction.apply(losses);
    }
    let Some(&rows) = input.shape().first() else {
        let why = "a scalar has no first axis to take the mean over".to_owned();
        return Err(CoreError::Shape { op, shape: input.shape().clone(), why }.into());
    };
    mul(&sum(&losses, (), false)?, 1.0 / rows as f64)
}
