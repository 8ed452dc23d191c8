//! Training runs: the loop, its progress, checkpoints that continue bit for bit, metrics and a report.
//!
//! [`fit()`] is the loop over any model; [`Run`] is a whole run in a folder: what `netcl train` does.
//!
//! ```
//! use netcl_nn::autograd::manager;
//! use netcl_trainer::{Classifier, Network, Outcome, Run, Settings};
//!
//! let folder = std::env::temp_dir().join(format!("netcl-run-{}", std::process::id()));
//! let queue = manager().cpu().queue;
//! let settings = Settings { epochs: 2, ..Settings::recommended("digits", Network::Mlp) };
//! let mut run = Run::start(settings, None, &queue, &folder)?;
//! assert_eq!(run.train(&|| false, &mut ())?, Outcome::Finished);
//! let summary = run.finish("the CPU")?;
//! assert!(summary.evaluation.accuracy() > 0.8);
//!
//! let classifier = Classifier::load(&summary.model, &queue)?;
//! let image = run.data().test.image(0);
//! assert_eq!(classifier.probabilities(image)?.len(), 10);
//! # std::fs::remove_dir_all(&folder).map_err(|reason| netcl_io::Error::Write { path: folder, reason })?;
//! # Ok::<(), netcl_trainer::Error>(())
//! ```

pub mod architecture;
mod batches;
pub mod callbacks;
pub mod classifier;
pub mod error;
pub mod evaluate;
pub mod fit;
mod folder;
pub mod history;
pub mod metric;
mod metrics;
pub mod report;
pub mod run;
pub mod settings;
pub mod trainer;

pub use architecture::{Architecture, Network};
pub use classifier::Classifier;
pub use error::{Error, Result};
pub use evaluate::{Evaluation, Mistake, evaluate};
pub use fit::{FitOptions, Observer, Outcome, Progress, fit};
pub use history::{Epoch, History, Step};
pub use run::{Run, Summary};
pub use settings::Settings;
