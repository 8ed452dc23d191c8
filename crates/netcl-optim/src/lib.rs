//! Optimizers and learning-rate schedules.
//!
//! ```
//! use netcl_autograd::{Tape, Tensor, manager};
//! use netcl_optim::{Optimizer, SGD};
//!
//! let x = Tensor::from_host(&manager().cpu().queue, &[3.0f32], [1])?.with_grad();
//! let mut opt = SGD::new([x.clone()], 0.25)?;
//! for _ in 0..3 {
//!     let tape = Tape::new();
//!     let loss = (&x * &x)?;
//!     tape.backward(&loss)?;
//!     opt.step()?;
//!     opt.zero_grad();
//! }
//! assert_eq!(x.to_host::<f32>()?, [0.375]); // each step takes half: x - 0.25 * 2 * x
//! # Ok::<(), netcl_autograd::Error>(())
//! ```

mod adadelta;
mod adagrad;
mod adam;
mod adamax;
mod adamw;
mod asgd;
mod base;
mod clip;
mod declare;
mod ema;
mod group;
mod lbfgs;
mod lion;
mod momentum;
mod muon;
mod nadam;
mod optimizer;
mod radam;
mod rmsprop;
mod rprop;
pub mod rule;
pub mod schedule;
mod settings;
mod sgd;
mod shards;
mod state;

pub use adadelta::{Adadelta, AdadeltaOptions};
pub use adagrad::{Adagrad, AdagradOptions};
pub use adam::{Adam, AdamOptions};
pub use adamax::{Adamax, AdamaxOptions};
pub use adamw::{AdamW, AdamWOptions};
pub use asgd::{ASGD, AsgdOptions};
pub use base::Base;
pub use clip::{Unscaled, clip_grad_norm, clip_grad_norm_device, clip_grad_value, unscale_grads};
pub use ema::{Ema, EmaOptions};
pub use group::ParamGroup;
pub use lbfgs::{LBFGS, LbfgsOptions, LbfgsStepper, LineSearch};
pub use lion::{Lion, LionOptions};
pub use momentum::{Momentum, MomentumOptions};
pub use muon::{AdjustLr, Muon, MuonOptions};
pub use nadam::{NAdam, NAdamOptions};
pub use optimizer::{GradScale, Optimizer, StepOptions};
pub use radam::{RAdam, RAdamOptions};
pub use rmsprop::{RMSProp, RmsPropOptions};
pub use rprop::{Rprop, RpropOptions};
pub use schedule::Schedule;
pub use sgd::{SGD, SgdOptions};
pub use shards::Shards;
pub use state::State;
