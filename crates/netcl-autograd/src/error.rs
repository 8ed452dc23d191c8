//! What can go wrong when differentiating.

use std::panic::Location;

use netcl_core::ErrorKind;
use netcl_core::dtype::DType;
use netcl_core::shape::Shape;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in autograd.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the layers below.
    #[error(transparent)]
    Core(#[from] netcl_core::Error),
    /// A tensor that a layer does not take.
    #[error("{layer}: expected input {takes}, got {shape}")]
    Input {
        /// The layer, with what its input depends on: `Conv2d(in_channels=3)`.
        layer: String,
        /// The shape it takes: `(N, 3, H, W)`.
        takes: String,
        /// The input's shape.
        shape: Shape,
    },
    /// An error of a layer inside a model.
    #[error(transparent)]
    Layer(Box<InLayer>),
    /// A gradient that cannot be computed as asked.
    #[error("{op}: {what}")]
    NoGradient {
        /// The operation.
        op: &'static str,
        /// What is wrong and what to do.
        what: String,
    },
    /// A gradient that was lost in an op that never records.
    #[error(
        "{op}: {lost} of netcl.ops was called on a tensor that requires a gradient; netcl.ops does not record: use \
         netcl.autograd.{lost}, or detach() the tensor (or no_grad) if no gradient is meant"
    )]
    Unrecorded {
        /// The operation that needs the gradient.
        op: &'static str,
        /// The op that did not record.
        lost: &'static str,
    },
    /// An op without a gradient.
    #[error("{op} at {place} has no gradient; use detach() on its input if none is wanted")]
    NotDifferentiable {
        /// The operation.
        op: &'static str,
        /// Where it was called.
        place: &'static Location<'static>,
    },
    /// A saved value that has changed since.
    #[error(
        "backward of {op} (called at {place}) needs {which} that was overwritten in place since; write to a copy instead"
    )]
    Overwritten {
        /// The operation.
        op: &'static str,
        /// Which value.
        which: &'static str,
        /// Where the op was called.
        place: &'static Location<'static>,
    },
    /// A result that was overwritten without autograd's knowledge, and used afterwards.
    #[error(
        "backward of {op} (called at {place}): its result was overwritten in place after it was recorded and used after that, so \
         that no gradient would be right; write to a copy, or use what is recorded (+=, add_, mul_, copy_, ...) on the tensor \
         itself"
    )]
    ResultOverwritten {
        /// The operation.
        op: &'static str,
        /// Where the op was called.
        place: &'static Location<'static>,
    },
    /// A write in place to a leaf that requires a gradient, while recording.
    #[error(
        "{op}: the tensor of shape {shape} and dtype {dtype} is a leaf that requires grad, and a write to it in place cannot be \
         recorded; write under no_grad(), or make a new tensor with the operation that is not in place"
    )]
    LeafOverwritten {
        /// The operation.
        op: &'static str,
        /// The leaf's shape.
        shape: Shape,
        /// The leaf's dtype.
        dtype: DType,
    },
    /// A write in place that cannot be recorded.
    #[error("{op}: {what}")]
    InPlace {
        /// The operation.
        op: &'static str,
        /// What is wrong and what to do.
        what: String,
    },
    /// A second walk over a graph whose saved values are gone.
    #[error(
        "backward of {op} (called at {place}) ran before and freed its saved values; pass retain_graph the first time"
    )]
    Freed {
        /// The operation.
        op: &'static str,
        /// Where the op was called.
        place: &'static Location<'static>,
    },
    /// The first value that is not finite, in anomaly mode.
    #[error("anomaly: the {pass} pass of {op} (called at {place}) gave a value that is not finite at element {at}")]
    Anomaly {
        /// The operation.
        op: &'static str,
        /// `"forward"` or `"backward"`.
        pass: &'static str,
        /// The element, in row-major order.
        at: usize,
        /// Where the op was called.
        place: &'static Location<'static>,
    },
    /// A rule that contradicts itself: a bug of the op's author.
    #[error("the gradient rule of {op} is wrong: {what}")]
    Rule {
        /// The operation.
        op: &'static str,
        /// What is wrong.
        what: String,
    },
    /// An error of the user's own, from a hook, a custom op or a checkpointed function.
    #[error(transparent)]
    Custom(Box<dyn std::error::Error + Send + Sync>),
}

/// What a layer says, and where the layer is: `fc (Linear): expected input (..., 100), got (2, 144)`.
#[derive(Debug)]
pub struct InLayer {
    /// The layer's dotted path inside `within`; empty for that module itself.
    pub path: String,
    /// The kind of layer.
    pub kind: &'static str,
    /// Address and kind of the module that the path begins at.
    pub within: (usize, &'static str),
    /// What it says.
    pub source: Error,
}

impl std::fmt::Display for InLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let InLayer { path, kind, source, .. } = self;
        match source {
            _ if path.is_empty() => write!(f, "{source}"),
            Error::Input { takes, shape, .. } => write!(f, "{path} ({kind}): expected input {takes}, got {shape}"),
            _ => write!(f, "{path} ({kind}): {source}"),
        }
    }
}

impl std::error::Error for InLayer {}

impl From<netcl_core::backend::opencl::ClError> for Error {
    fn from(error: netcl_core::backend::opencl::ClError) -> Self {
        Error::Core(error.into())
    }
}

/// For `?` in a loop over batches.
impl From<netcl_data::Error> for Error {
    fn from(error: netcl_data::Error) -> Self {
        use netcl_data::Error::{Index, NotFound, Panic, Read, Timeout};
        let kind = match &error {
            Read { reason, .. } if reason.kind() != std::io::ErrorKind::NotFound => ErrorKind::Io,
            Read { .. } | NotFound { .. } => ErrorKind::NotFound,
            Index { .. } => ErrorKind::Index,
            Panic { .. } | Timeout { .. } => ErrorKind::Runtime,
            _ => ErrorKind::Value,
        };
        Error::other(kind, error)
    }
}

impl Error {
    /// What another part of the program says, with the kind of its own error.
    pub fn other(kind: ErrorKind, error: impl std::fmt::Display) -> Self {
        netcl_core::Error::Host { kind, what: error.to_string() }.into()
    }

    /// A value that cannot be used.
    pub fn argument(op: &'static str, what: impl Into<String>) -> Self {
        netcl_core::Error::argument(op, what).into()
    }

    /// A value of the wrong type, where types are known at run time only.
    pub fn wrong_type(op: &'static str, what: impl Into<String>) -> Self {
        netcl_core::Error::wrong_type(op, what).into()
    }

    /// A tensor of a shape that cannot be used.
    pub fn shape(op: &'static str, shape: &Shape, why: impl Into<String>) -> Self {
        netcl_core::Error::shape(op, shape, why).into()
    }

    /// An [`Error::Input`].
    pub fn input(layer: impl Into<String>, takes: impl Into<String>, shape: &Shape) -> Self {
        Error::Input { layer: layer.into(), takes: takes.into(), shape: shape.clone() }
    }

    /// Which Python exception this becomes.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Core(error) => error.kind(),
            Error::Layer(layer) => layer.source.kind(),
            Error::Input { .. } | Error::NoGradient { .. } | Error::Unrecorded { .. } => ErrorKind::Value,
            _ => ErrorKind::Runtime,
        }
    }
}
