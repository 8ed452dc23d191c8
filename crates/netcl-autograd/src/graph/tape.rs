//! The scope in which ops are recorded.

use super::engine::{BackwardOptions, backward};
use super::mode::{GradMode, enable_grad, recorded};
use crate::error::Result;
use crate::tensor::Tensor;

/// A scope in which this thread records, also inside [`no_grad`](super::no_grad).
///
/// Recording is on by default, so a tape is never needed: it makes the extent visible, and gives it a name to call backward
/// on. It owns nothing: the graph belongs to its results and goes with them.
///
/// ```
/// use netcl_autograd::{Tape, Tensor, manager, ops::{elementwise::mul, reduce::sum}};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0], [2])?.with_grad();
/// let tape = Tape::new();
/// let loss = sum(&mul(&x, &x)?, (), false)?;
/// assert_eq!(tape.recorded(), 2);
/// tape.backward(&loss)?;
/// assert_eq!(x.grad().unwrap().to_host::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[must_use = "recording changes back when this is dropped"]
pub struct Tape {
    before: u64,
    _recording: GradMode,
}

impl Tape {
    /// Starts recording on this thread, until the tape is dropped.
    #[expect(clippy::new_without_default, reason = "starting to record is no default")]
    pub fn new() -> Tape {
        Tape { before: recorded(), _recording: enable_grad() }
    }

    /// How many ops this thread has recorded since the tape began.
    pub fn recorded(&self) -> u64 {
        recorded() - self.before
    }

    /// Computes the gradients of a one-element tensor and accumulates them on the leaves.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        backward(loss, None, BackwardOptions::default())
    }

    /// [`Tape::backward`] from a given gradient, keeping or recording the graph.
    pub fn backward_with(&self, loss: &Tensor, gradient: Option<&Tensor>, options: BackwardOptions) -> Result<()> {
        backward(loss, gradient, options)
    }
}
