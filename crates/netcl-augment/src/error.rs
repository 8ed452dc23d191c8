//! What can go wrong with batches on a device.

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the device or of the data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Of tensors and devices.
    #[error(transparent)]
    Core(#[from] netcl_core::Error),
    /// Of data sets, the loader and transforms.
    #[error(transparent)]
    Data(#[from] netcl_data::Error),
}

impl Error {
    pub(crate) fn argument(op: &'static str, what: impl Into<String>) -> Error {
        Error::Core(netcl_core::Error::argument(op, what))
    }
}

/// For `?` where tensors are computed with.
impl From<Error> for netcl_autograd::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Core(error) => error.into(),
            Error::Data(error) => error.into(),
        }
    }
}
