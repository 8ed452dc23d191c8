//! What can go wrong in a training run.

use std::path::PathBuf;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in a training run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A loss that is not a number any more.
    #[error(
        "the loss became {loss} at step {step} (epoch {epoch}, learning rate {lr:.3e}): the weights are spoilt. Try a tenth of \
         the learning rate, a larger batch, or a model with normalisation"
    )]
    Diverged {
        /// The step, counted from 1.
        step: usize,
        /// The epoch, counted from 1.
        epoch: usize,
        /// The learning rate of that step.
        lr: f64,
        /// The loss: NaN or infinite.
        loss: f64,
    },
    /// A setting that cannot be used.
    #[error("{what}")]
    Setting {
        /// What is wrong and what to do.
        what: String,
    },
    /// A file that does not hold what is needed.
    #[error("{} {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// An error of a data set.
    #[error(transparent)]
    Data(#[from] netcl_data::Error),
    /// An error of a model file or a checkpoint.
    #[error(transparent)]
    Io(#[from] netcl_io::Error),
    /// An error of a device or a tensor.
    #[error(transparent)]
    Tensor(#[from] netcl_nn::autograd::Error),
}

impl From<netcl_nn::autograd::CoreError> for Error {
    fn from(error: netcl_nn::autograd::CoreError) -> Self {
        Error::Tensor(error.into())
    }
}

impl From<netcl_augment::Error> for Error {
    fn from(error: netcl_augment::Error) -> Self {
        match error {
            netcl_augment::Error::Core(error) => error.into(),
            netcl_augment::Error::Data(error) => error.into(),
            // The enum may grow; its text says what is wrong.
            other => Error::setting(other.to_string()),
        }
    }
}

impl Error {
    pub(crate) fn setting(what: impl Into<String>) -> Error {
        Error::Setting { what: what.into() }
    }
}
