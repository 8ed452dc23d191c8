//! What can go wrong with files.

use std::path::PathBuf;

use netcl_nn::autograd::ErrorKind;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong when models are written and read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read.
    #[error("{} cannot be read: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// A file that cannot be written.
    #[error("{} cannot be written: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// A file that is not what it should be.
    #[error("{} cannot be used: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A file of another kind than what was asked for.
    #[error("{} {what}", path.display())]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// What is missing in it.
        what: String,
    },
    /// Weights that do not fit a model.
    #[error("the weights in {} do not fit the model: {}", path.display(), problems.join("; "))]
    Weights {
        /// The file.
        path: PathBuf,
        /// Everything that is wrong.
        problems: Vec<String>,
    },
    /// New names that cannot be given.
    #[error("rename: {what}")]
    Rename {
        /// What is wrong.
        what: String,
    },
    /// An error of a device or a tensor.
    #[error(transparent)]
    Tensor(#[from] netcl_nn::autograd::Error),
}

impl From<netcl_nn::autograd::CoreError> for Error {
    fn from(error: netcl_nn::autograd::CoreError) -> Self {
        Error::Tensor(error.into())
    }
}

impl Error {
    /// Which Python exception this becomes.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Read { reason, .. } if reason.kind() == std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            Error::Read { .. } | Error::Write { .. } => ErrorKind::Io,
            Error::Malformed { .. } | Error::Unsuitable { .. } | Error::Weights { .. } | Error::Rename { .. } => {
                ErrorKind::Value
            }
            Error::Tensor(error) => error.kind(),
        }
    }
}

/// For `?` where tensors are computed with.
impl From<Error> for netcl_nn::autograd::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Tensor(error) => error,
            other => netcl_nn::autograd::Error::other(other.kind(), other),
        }
    }
}
