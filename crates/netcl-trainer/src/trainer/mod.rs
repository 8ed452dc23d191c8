//! The trainer: a model, an optimizer and a loader become a run that can be watched, stopped and resumed.
//!
//! ```text
//!   loader -> batches -> Stepper::update ........ forward and loss, in the model's language
//!                          Session::backward .... gradients, metrics
//!                          Session::apply ....... loss kept on the device, clipping, update, average
//!             fit::run  -> callbacks, validation, schedule, checkpoints
//! ```
//!
//! [`Trainer`] is for models in Rust; Python's trainer is another [`Stepper`] under the same loop.

pub mod callback;
pub mod find_lr;
pub mod fit;
pub mod history;
pub mod loader;
pub mod losses;
pub mod metric;
pub mod native;
pub mod progress;
pub(crate) mod ranks;
pub mod schedule;
pub mod session;
#[cfg(test)]
mod tests;
mod trouble;

pub use callback::{Callback, Context};
pub use find_lr::LrCurve;
pub use fit::{Outcome, Stepper, Way};
pub use history::{Epoch, History, Step};
pub use loader::{Batches, Loader, Opened, Sharing};
pub use metric::Metric;
pub use native::{Batch, Trainer, TrainerOptions};
pub use progress::Progress;
pub use schedule::{ScheduleEvery, Scheduled};
pub use session::{Output, Session, Truth};
pub(crate) use trouble::advice;
