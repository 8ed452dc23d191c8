//! Metrics: figures over all samples of an epoch, gathered on the device.
//!
//! | file | metrics |
//! |---|---|
//! | `accuracy.rs` | [`Accuracy`], [`TopK`] |
//! | `class_score.rs` | [`ClassScore`]: precision, recall and F1 |
//! | `confusion.rs` | [`ConfusionMatrix`] |
//! | `auroc.rs` | [`Auroc`] |
//! | `perplexity.rs` | [`Perplexity`] |
//! | `regression.rs` | [`MeanError`], [`MeanSquaredError`] |
//! | `labels.rs` | [`LabelOptions`]: how predictions and labels of any shape are read |
//! | `sums.rs` | sums that stay exact over any number of batches |
//!
//! Metrics of classes take logits of shape `(N, C)` or `(N, C, d1, ...)` with labels `(N,)` or `(N, d1, ...)`, the logits of
//! language models `(N, T, C)` with labels `(N, T)`, and one number per sample for two classes. Targets of the predictions' own
//! shape are probabilities, of which the largest is the label. Where `(N, d, C)` has `d == C`, the classes are the second axis, as
//! in `cross_entropy`.
//!
//! ```
//! use netcl_nn::autograd::{Tensor, manager};
//! use netcl_trainer::metric::Accuracy;
//! use netcl_trainer::trainer::Metric;
//!
//! let queue = manager().cpu().queue;
//! let mut accuracy = Accuracy::default();
//! accuracy.update(&Tensor::from_host(&queue, &[2.0f32, 1.0, 0.0, 3.0], [2, 2])?, (&[0, 1]).into())?;
//! accuracy.update(&Tensor::from_host(&queue, &[2.0f32, 1.0], [1, 2])?, (&[1]).into())?;
//! assert_eq!(accuracy.compute()?, 2.0 / 3.0);
//! # Ok::<(), netcl_trainer::Error>(())
//! ```

mod accuracy;
mod auroc;
mod class_score;
mod confusion;
mod labels;
mod perplexity;
mod regression;
mod sums;

pub use accuracy::{Accuracy, TopK};
pub use auroc::Auroc;
pub use class_score::{Average, ClassScore, Score};
pub use confusion::ConfusionMatrix;
pub use labels::LabelOptions;
pub use perplexity::Perplexity;
pub use regression::{MeanError, MeanSquaredError};

use crate::error::{Error, Result};
use crate::trainer::Metric;

/// A metric with its usual settings by a short name: `accuracy`, `top5` (any number), `precision`, `recall`, `f1`,
/// `confusion_matrix`, `auroc`, `perplexity`, `mae`, `mse`, `rmse`.
///
/// ```
/// use netcl_trainer::metric::metric_from_name;
///
/// assert_eq!(metric_from_name("top5")?.name(), "top5");
/// assert!(metric_from_name("bleu").is_err_and(|error| error.to_string().contains("accuracy, top5")));
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
///
/// # Errors
/// For another name; the text lists those that exist.
pub fn metric_from_name(name: &str) -> Result<Box<dyn Metric>> {
    let (options, average) = (LabelOptions::default(), Average::default());
    Ok(match name {
        "accuracy" => Box::new(Accuracy::new(options)),
        "precision" => Box::new(ClassScore::new(Score::Precision, average, options)),
        "recall" => Box::new(ClassScore::new(Score::Recall, average, options)),
        "f1" => Box::new(ClassScore::new(Score::F1, average, options)),
        "confusion_matrix" => Box::new(ConfusionMatrix::new(options)),
        "auroc" => Box::new(Auroc::default()),
        "perplexity" => Box::new(Perplexity::default()),
        "mae" => Box::new(MeanError::default()),
        "mse" => Box::new(MeanSquaredError::new(false)),
        "rmse" => Box::new(MeanSquaredError::new(true)),
        _ => match name.strip_prefix("top").and_then(|k| k.parse().ok()) {
            Some(k) => Box::new(TopK::new(k, options)?),
            None => {
                return Err(Error::setting(format!(
                    "there is no metric {name:?}; there are accuracy, top5 (any number), precision, recall, f1, confusion_matrix, \
                     auroc, perplexity, mae, mse and rmse"
                )));
            }
        },
    })
}

#[cfg(test)]
mod tests;
