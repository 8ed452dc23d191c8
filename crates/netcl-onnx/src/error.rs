//! What can go wrong when a model is loaded.

use std::path::PathBuf;

use netcl_nn::autograd::ErrorKind;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A model that cannot be loaded.
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
    /// A file that is not what it should be.
    #[error("{model} is no usable ONNX model: {what}")]
    Malformed {
        /// The file.
        model: String,
        /// What is wrong.
        what: String,
    },
    /// Operators that netcl does not have, all of them.
    #[error("{model} needs operators that are not supported: {}; `netcl inspect` lists what the model uses", missing.join("; "))]
    Missing {
        /// The file.
        model: String,
        /// Each operator, with the names of its nodes.
        missing: Vec<String>,
    },
    /// A file that cannot be written.
    #[error("{} cannot be written: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// A module that cannot be written as an ONNX file.
    #[error("the model cannot be exported: {what}")]
    Export {
        /// What is wrong, and what to do.
        what: String,
    },
    /// An error of a device or a tensor.
    #[error(transparent)]
    Tensor(#[from] netcl_nn::autograd::Error),
}

impl Error {
    /// Which Python exception this becomes.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Read { reason, .. } if reason.kind() == std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            Error::Read { .. } | Error::Write { .. } => ErrorKind::Io,
            Error::Malformed { .. } | Error::Missing { .. } | Error::Export { .. } => ErrorKind::Value,
            Error::Tensor(error) => error.kind(),
        }
    }
}

impl From<Error> for netcl_nn::autograd::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Tensor(error) => error,
            error => netcl_nn::autograd::Error::other(error.kind(), error),
        }
    }
}
