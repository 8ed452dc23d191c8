//! OpenCL C from an expression: whole elementwise kernels, and statements for other kernels to splice in.
//!
//! Kernels are meant to be read: one statement per node, named after its operation; loads, stores and the few functions
//! the standard lacks (or has with other NaN rules) are small helpers above. Sizes, strides, offsets and scalars are
//! arguments; only the structure, the types and the vector width are compiled in.

mod ctype;
mod inline;
mod kernel;

pub(crate) use ctype::tag;
pub use ctype::{CType, bf16_bits, bits_type};
pub use inline::{Inlined, inline_c};
pub(in crate::kernels) use inline::{Statements, extremum, in_comment};
pub use kernel::{
    Addressing, Arg, ElementwiseSpec, IndexWidth, InputKind, InputSpec, KernelSource, batch, elementwise_source,
};

/// A helper function of generated code: equal names have equal texts, so a program needs each only once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Helper {
    /// The function's name.
    pub name: String,
    /// Its definition.
    pub text: String,
}
