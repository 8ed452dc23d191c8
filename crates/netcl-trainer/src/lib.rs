//! Training: the loop over any model and task ([`trainer`]), metrics, callbacks, and whole runs in a folder.
//!
//! [`Run`] is what `netcl train` does: checkpoints that continue bit for bit, a log, a report and the trained model.
//!
//! ```
//! use netcl_nn::autograd::manager;
//! use netcl_trainer::trainer::Outcome;
//! use netcl_trainer::{Classifier, Data, Network, Run, Settings};
//!
//! let folder = std::env::temp_dir().join(format!("netcl-run-{}", std::process::id()));
//! let queue = manager().cpu().queue;
//! let settings = Settings { epochs: 2, ..Settings::recommended("digits", Network::Mlp) };
//! let mut run = Run::start(settings, None, &queue, &folder)?;
//! assert_eq!(run.train(&|| false)?, Outcome::Finished);
//! let summary = run.finish("the CPU")?;
//! assert!(summary.evaluation.accuracy() > 0.8);
//!
//! let classifier = Classifier::load(&summary.model, &queue)?;
//! let Data::Images(digits) = run.data() else { unreachable!() };
//! assert_eq!(classifier.probabilities(digits.test.image(0))?.len(), 10);
//! # std::fs::remove_dir_all(&folder).map_err(|reason| netcl_io::Error::Write { path: folder, reason })?;
//! # Ok::<(), netcl_trainer::Error>(())
//! ```

pub mod architecture;
mod batches;
pub mod callbacks;
pub mod classifier;
pub mod error;
pub mod evaluate;
mod folder;
pub mod language;
pub mod metric;
pub mod report;
pub mod run;
pub mod settings;
pub mod task;
pub mod trainer;

pub use architecture::{Architecture, GptSizes, Network};
pub use classifier::Classifier;
pub use error::{Error, Result};
pub use evaluate::{Evaluation, Mistake, evaluate};
pub use language::LanguageModel;
pub use run::{Run, Summary};
pub use settings::{Precision, Settings};
pub use task::{Data, Task, load_model};
pub use trainer::{
    Batches, Callback, Context, Epoch, History, Loader, LrCurve, Metric, Opened, Outcome, Output, ScheduleEvery, Step,
    Trainer, TrainerOptions, Truth,
};
