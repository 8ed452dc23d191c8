//! What can go wrong in a training run.

use std::path::PathBuf;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in a training run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A loss that is not finite, in a run of a [`Trainer`](crate::trainer::Trainer).
    #[error(
        "the loss became {loss} at step {step} (epoch {epoch}, {}, learning rate {lr:.3e}): {operation}. The weights are those \
         before that step. Try a tenth of the learning rate, grad_clip=1.0, or look at that batch",
        batch_words(*batches)
    )]
    NotFinite {
        /// The loss.
        loss: f64,
        /// The update, counted from 1.
        step: usize,
        /// The epoch, counted from 1.
        epoch: usize,
        /// The first and last batch of the update in the epoch, counted from 1.
        batches: (usize, usize),
        /// The learning rate of that update.
        lr: f64,
        /// The first operation that gave a value that is not finite, in words.
        operation: String,
    },
    /// Memory that does not suffice for a step.
    #[error("{inner}. {}", crate::trainer::advice(*samples, *parts, *parameters, *state))]
    Memory {
        /// Samples of the largest batch.
        samples: usize,
        /// Batches of the update.
        parts: usize,
        /// Bytes of the parameters.
        parameters: usize,
        /// Bytes of the optimizer's state.
        state: usize,
        /// What the device said.
        inner: netcl_nn::autograd::Error,
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
    /// An error in a callback.
    #[error("callback {name}: {source}")]
    Callback {
        /// The callback's name.
        name: String,
        /// What went wrong in it.
        #[source]
        source: Box<Error>,
    },
    /// An error of a data set.
    #[error(transparent)]
    Data(#[from] netcl_data::Error),
    /// An error of a model file or a checkpoint.
    #[error(transparent)]
    Io(#[from] netcl_io::Error),
    /// An error between ranks.
    #[error(transparent)]
    Ranks(#[from] netcl_distributed::Error),
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

fn batch_words((first, last): (usize, usize)) -> String {
    if first == last { format!("batch {first}") } else { format!("batches {first} to {last}") }
}

impl Error {
    pub(crate) fn setting(what: impl Into<String>) -> Error {
        Error::Setting { what: what.into() }
    }

    /// Whether every rank has met the same error at the same update, so that nobody need be told.
    pub(crate) fn is_of_all_ranks(&self) -> bool {
        matches!(self, Error::NotFinite { .. } | Error::Ranks(_))
    }

    /// The error of a callback, with its name.
    pub fn in_callback(self, name: impl Into<String>) -> Error {
        Error::Callback { name: name.into(), source: Box::new(self) }
    }
}

/// For `?` where tensors are computed with.
impl From<Error> for netcl_nn::autograd::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Tensor(error) => error,
            Error::Data(error) => error.into(),
            Error::Io(error) => error.into(),
            Error::Ranks(error) => error.into(),
            other => netcl_nn::autograd::Error::other(netcl_nn::autograd::ErrorKind::Runtime, other),
        }
    }
}
