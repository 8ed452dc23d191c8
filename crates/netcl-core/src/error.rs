//! The error type of the core: what was asked, what is wrong, what to do.

mod kind;

use crate::backend::opencl::ClError;
use crate::dtype::DType;
use crate::shape::Shape;

pub use kind::ErrorKind;

/// A result of the core.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in the core.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ---- dtypes ------------------------------------------------------------------------------------------------
    /// A dtype name that is not in the table.
    #[error("unsupported dtype {name:?}: use one of {}", DType::NAMES.join(", "))]
    UnsupportedDtype {
        /// The name as given.
        name: String,
    },
    /// An operation met a dtype it does not work on.
    #[error("{op}: expected {expected}, got a tensor of {got}")]
    Dtype {
        /// The operation.
        op: &'static str,
        /// What it takes.
        expected: String,
        /// What it was given.
        got: DType,
    },
    /// Two tensors of one operation have different dtypes.
    #[error("{op}: mixes {lhs} and {rhs}; cast one of them first")]
    DtypeMismatch {
        /// The operation.
        op: &'static str,
        /// The first tensor's dtype.
        lhs: DType,
        /// The other tensor's dtype.
        rhs: DType,
    },

    // ---- shapes ------------------------------------------------------------------------------------------------
    /// Two shapes that cannot be broadcast together.
    #[error("{op}: shapes {lhs} and {rhs} do not broadcast: axis {axis} from the end has lengths {left} and {right}")]
    Broadcast {
        /// The operation.
        op: &'static str,
        /// The first shape.
        lhs: Shape,
        /// The second shape.
        rhs: Shape,
        /// The axis that differs, counted from the end (1 is the last).
        axis: usize,
        /// The first shape's length there.
        left: usize,
        /// The second shape's length there.
        right: usize,
    },
    /// A reshape that would change the number of elements.
    #[error("reshape: cannot give {from} ({} elements) the shape {to} ({} elements); the counts must be equal", from.size(), to.size())]
    ReshapeCount {
        /// The tensor's shape.
        from: Shape,
        /// The requested shape.
        to: Shape,
    },
    /// A shape that an operation cannot use.
    #[error("{op}: shape {shape} does not fit: {why}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The offending shape.
        shape: Shape,
        /// What is wrong with it.
        why: String,
    },
    /// A shape with more elements than can be addressed.
    #[error("{op}: shape {dims:?} of {dtype} needs more bytes than can be addressed")]
    TooLarge {
        /// The operation.
        op: &'static str,
        /// The requested lengths.
        dims: Vec<usize>,
        /// The element type.
        dtype: DType,
    },
    /// Data that does not have as many elements as the shape it was given.
    #[error("{op}: {got} values given for shape {shape}, which has {} elements", shape.size())]
    Length {
        /// The operation.
        op: &'static str,
        /// The number of values.
        got: usize,
        /// The shape.
        shape: Shape,
    },
    /// An axis that a tensor does not have.
    #[error("{op}: axis {axis} is out of range for shape {shape}, {}", axes_of(shape))]
    Axis {
        /// The operation.
        op: &'static str,
        /// The axis as given.
        axis: isize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// An index outside an axis.
    #[error("{op}: index {index} is out of range for axis {axis} of shape {shape}")]
    Index {
        /// The operation.
        op: &'static str,
        /// The index as given.
        index: isize,
        /// The axis.
        axis: usize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// A subscript that does not fit the tensor.
    #[error("{op}: {what}")]
    Subscript {
        /// The operation.
        op: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// An argument with a value that cannot be used.
    #[error("{op}: {what}")]
    Argument {
        /// The operation.
        op: &'static str,
        /// What is wrong and what to do.
        what: String,
    },
    /// An argument of the wrong type, where types are known at run time only.
    #[error("{op}: {what}")]
    ArgumentType {
        /// The operation.
        op: &'static str,
        /// What it takes and what was given.
        what: String,
    },

    /// An argument of a kernel that its parameter cannot take.
    #[error("kernel {kernel}, argument {index} ({parameter}): {why}")]
    KernelArgument {
        /// The kernel.
        kernel: String,
        /// The argument's place, counted from 0.
        index: usize,
        /// The parameter as declared.
        parameter: String,
        /// What is wrong and what to pass instead.
        why: String,
        /// The argument has the right type and a value that the parameter's type cannot hold.
        out_of_range: bool,
    },

    // ---- devices -----------------------------------------------------------------------------------------------
    /// Tensors of two devices in one operation.
    #[error("{op}: tensors live on different devices, {lhs} and {rhs}; move one with t.to(queue)")]
    DeviceMismatch {
        /// The operation.
        op: &'static str,
        /// The first tensor's device.
        lhs: String,
        /// The other tensor's device.
        rhs: String,
    },
    /// A selector that matches no device.
    #[error("no device matches {selector:?}{}; available: {available}", said_by(*variable))]
    NoDevice {
        /// The selector as given.
        selector: String,
        /// The environment variable that it was given in, if it was.
        variable: Option<&'static str>,
        /// The devices there are.
        available: String,
    },
    /// Something a device cannot do.
    #[error("{op}: {device} cannot do this: {why}")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// The device.
        device: String,
        /// What is missing and what to use instead.
        why: String,
    },

    /// A driver refused a call, a program does not compile, or there is no OpenCL.
    #[error(transparent)]
    OpenCl(#[from] ClError),

    // ---- memory ------------------------------------------------------------------------------------------------
    /// An allocation that failed, also after the caches were emptied.
    #[error("{device}: out of memory allocating {bytes} bytes; {holders}")]
    OutOfMemory {
        /// The device.
        device: String,
        /// The size asked for.
        bytes: usize,
        /// Who holds how much.
        holders: String,
    },

    /// Host memory that this machine does not have.
    #[error("{op}: needs {bytes} bytes of host memory, this machine has {total} in all; use fewer elements")]
    HostMemory {
        /// The operation.
        op: &'static str,
        /// The size asked for.
        bytes: u128,
        /// Physical memory and swap.
        total: usize,
    },

    // ---- states ------------------------------------------------------------------------------------------------
    /// A worker of the CPU backend panicked: a bug of ours, reported instead of taking the process down.
    #[error("{op}: a worker thread failed: {message}; please report this")]
    Worker {
        /// The operation.
        op: &'static str,
        /// The panic's message.
        message: String,
    },
    /// An interrupt (Ctrl+C) ended an operation halfway.
    #[error("{op}: interrupted; it has no result")]
    Interrupted {
        /// The operation.
        op: &'static str,
    },
    /// What work of the host between launches says, with the kind of its own error.
    #[error("{what}")]
    Host {
        /// What kind of error it is.
        kind: ErrorKind,
        /// Its text.
        what: String,
    },
    /// Reading values while a computation is being recorded.
    #[error("{op}: {what}")]
    State {
        /// The operation.
        op: &'static str,
        /// What the object's state forbids and what to do.
        what: String,
    },
}

/// Where a selector comes from: ` (NETCL_DEVICE says so)`.
fn said_by(variable: Option<&str>) -> String {
    variable.map_or_else(String::new, |variable| format!(" ({variable} says so)"))
}

/// What axes there are: `which has axes 0 to 2 (or -3 to -1)`.
fn axes_of(shape: &Shape) -> String {
    match shape.ndim() {
        0 => "which has no axes".to_owned(),
        1 => "whose only axis is 0 (or -1)".to_owned(),
        n => format!("which has axes 0 to {} (or -{n} to -1)", n - 1),
    }
}

impl Error {
    /// An [`Error::Argument`].
    pub fn argument(op: &'static str, what: impl Into<String>) -> Self {
        Error::Argument { op, what: what.into() }
    }

    /// An [`Error::ArgumentType`].
    pub fn wrong_type(op: &'static str, what: impl Into<String>) -> Self {
        Error::ArgumentType { op, what: what.into() }
    }

    /// An [`Error::Shape`].
    pub fn shape(op: &'static str, shape: &Shape, why: impl Into<String>) -> Self {
        Error::Shape { op, shape: shape.clone(), why: why.into() }
    }

    /// Which Python exception this becomes.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::UnsupportedDtype { .. }
            | Error::Broadcast { .. }
            | Error::ReshapeCount { .. }
            | Error::Shape { .. }
            | Error::TooLarge { .. }
            | Error::Length { .. }
            | Error::Argument { .. }
            | Error::DeviceMismatch { .. }
            | Error::NoDevice { .. }
            | Error::KernelArgument { out_of_range: true, .. }
            | Error::Axis { .. } => ErrorKind::Value,
            Error::Dtype { .. }
            | Error::DtypeMismatch { .. }
            | Error::ArgumentType { .. }
            | Error::KernelArgument { .. } => ErrorKind::Type,
            Error::Index { .. } | Error::Subscript { .. } => ErrorKind::Index,
            Error::OutOfMemory { .. } | Error::HostMemory { .. } => ErrorKind::Memory,
            Error::Interrupted { .. } => ErrorKind::Interrupted,
            Error::OpenCl(error) => error.kind(),
            Error::Host { kind, .. } => *kind,
            Error::Unsupported { .. } | Error::Worker { .. } | Error::State { .. } => ErrorKind::Runtime,
        }
    }
}
