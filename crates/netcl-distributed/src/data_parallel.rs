//! Data-parallel training: every device or rank computes the gradients of its part of a batch, and all apply their sum.
//!
//! ```text
//!   DataParallel        one process, several devices: a batch goes in, its parts run on all devices, one result comes out
//!   Group::sync_grads   several ranks: gradients summed in flat buckets, before the optimizer's step
//!   OverlappedSync      the same while backward still runs
//!   sync_batch_norm     batch statistics over all ranks
//!   shard_optimizer     each rank keeps the optimizer's state of a part of the parameters
//! ```

pub mod gradients;
pub mod joint_norm;
pub mod model;
pub mod overlap;
pub mod replicas;
pub mod sharded;
pub mod sync_batch_norm;

pub use gradients::sync_grads;
pub use joint_norm::joint_batch_norm;
pub use model::DataParallel;
pub use overlap::OverlappedSync;
pub use replicas::{Replicas, broadcast_params, replicate_params, shard_batch, shard_lengths};
pub use sharded::shard_optimizer;
pub use sync_batch_norm::{convert_sync_batchnorm, sync_batch_norm};
