//! Optimizers whose state is divided among ranks (ZeRO stage 1): each updates the parameters that it owns.

use netcl_autograd::{Result, Tensor};

use crate::state::State;

/// How ranks divide the parameters of an optimizer; see [`Base::shard`](crate::Base::shard). `netcl-distributed` has one.
pub trait Shards: std::fmt::Debug + Send {
    /// Decides who owns further parameters, on all ranks alike.
    fn add(&mut self, parameters: &[Tensor]);

    /// Whether this rank owns a parameter, counted over all groups: only then it updates it, and keeps state for it.
    fn owns(&self, parameter: usize) -> bool;

    /// Gives every rank the parameters that others have updated.
    ///
    /// # Errors
    /// If a rank is lost.
    fn spread(&self, parameters: &[Tensor]) -> Result<()>;

    /// The state of all ranks from that of this one. `names` are those of the tensors that are kept for a parameter.
    ///
    /// # Errors
    /// If a rank is lost.
    fn gather(&self, own: State, names: &[&str], parameters: &[Tensor]) -> Result<State>;
}
