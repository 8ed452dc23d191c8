//! The trainer: a model, an optimizer and a loader become a run that can be watched, stopped and resumed.

pub mod callback;
pub mod history;
pub mod metric;

pub use callback::{Callback, Context};
pub use history::{Epoch, History, Step};
pub use metric::Metric;
