//! What can go wrong between ranks.

use netcl_nn::autograd::ErrorKind;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong between ranks and between devices.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A rank that ended, or does not answer.
    #[error("{call}: rank {rank} {what}; all ranks stop here. Look at what rank {rank} printed last")]
    Lost {
        /// The call that waited for it.
        call: &'static str,
        /// The rank.
        rank: usize,
        /// What happened to it: "has ended (process 4711)", "did not answer for 60 s".
        what: String,
    },
    /// Ranks that call different things, or the same with different tensors.
    #[error(
        "rank {rank} called {there}, but rank {own} called {here}; all ranks must make the same calls in the same order"
    )]
    Disagree {
        /// The rank that differs.
        rank: usize,
        /// This rank.
        own: usize,
        /// Its call: "all_reduce(sum) of float32 (3, 4)".
        there: String,
        /// The call of this rank.
        here: String,
    },
    /// A value that cannot be used.
    #[error("{call}: {what}")]
    Argument {
        /// The call.
        call: &'static str,
        /// What is wrong and what to do.
        what: String,
    },
    /// An error of a device or a tensor.
    #[error(transparent)]
    Device(#[from] netcl_nn::autograd::Error),
    /// An error of a file.
    #[error(transparent)]
    Io(#[from] netcl_io::Error),
}

impl Error {
    pub(crate) fn argument(call: &'static str, what: impl Into<String>) -> Error {
        Error::Argument { call, what: what.into() }
    }

    /// As an error of tensors, for what modules and optimizers return.
    pub(crate) fn into_autograd(self) -> netcl_nn::autograd::Error {
        self.into()
    }

    /// Which exception it becomes.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Lost { .. } => ErrorKind::Runtime,
            Error::Disagree { .. } | Error::Argument { .. } => ErrorKind::Value,
            Error::Device(inner) => inner.kind(),
            Error::Io(inner) => inner.kind(),
        }
    }
}

impl From<netcl_nn::autograd::CoreError> for Error {
    fn from(inner: netcl_nn::autograd::CoreError) -> Error {
        Error::Device(inner.into())
    }
}

/// For what modules and optimizers return.
impl From<Error> for netcl_nn::autograd::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Device(error) => error,
            other => netcl_nn::autograd::Error::other(other.kind(), other),
        }
    }
}
