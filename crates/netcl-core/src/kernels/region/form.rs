//! What the source of a kernel over rows depends on, beside its region.

use std::fmt::Write as _;

use super::plan::Keep;
use super::spec::Spec;
use crate::dtype::DType;
use crate::kernels::expr::opencl::{IndexWidth, tag};

/// Vectors of a row that one work-item keeps at most.
pub(super) const KEPT_VECTORS: usize = 4;

/// How an operand is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Access {
    /// One value per row.
    Row,
    /// The elements of a row lie densely.
    Dense,
    /// All elements of a row are one.
    Same,
    /// Any strides.
    Strided,
}

/// What a kernel's source depends on, beside its region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Inputs, then outputs.
    pub(super) operands: Vec<(DType, Access)>,
    /// How many axes count the rows, and how many lie along a row.
    pub(super) axes: (usize, usize),
    pub(super) index: IndexWidth,
    pub(super) compute: DType,
    /// Elements per vector.
    pub(super) width: usize,
    /// Vectors begin at multiples of their width.
    pub(super) aligned: bool,
    pub(super) keep: Keep,
}

/// An argument of a kernel, in the order of the signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Param {
    /// An operand's memory.
    Buffer(usize),
    /// Where its first element lies: `ulong`.
    Offset(usize),
    /// An operand's stride along an outer axis.
    Outer(usize, usize),
    /// An operand's stride along an axis of the row.
    Inner(usize, usize),
    Scalar(usize),
    /// The number of rows.
    Rows,
    /// The elements of a row.
    Length,
    /// The length of an outer axis but the outermost.
    OuterLength(usize),
    /// The length of an axis of the row but the outermost.
    InnerLength(usize),
    /// Work-items per row: `uint`.
    Lanes,
    /// Local memory, an element for each work-item.
    Tile,
}

/// A kernel's text and how to call it.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) params: Vec<Param>,
}

/// The kernel's name: the same for the same structure and form, in every process.
pub(super) fn name(region: &Spec, form: &Form) -> String {
    let mut name: String =
        region.label.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(48).collect();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        name.insert_str(0, "k_");
    }
    for (dtype, access) in &form.operands {
        let access = match access {
            Access::Row => "r",
            Access::Dense => "",
            Access::Same => "s",
            Access::Strided => "x",
        };
        let _ = write!(name, "_{}{access}", tag(*dtype));
    }
    let (outer, inner) = form.axes;
    let keep = match form.keep {
        Keep::Nothing => "",
        Keep::Costly | Keep::Inputs => "_kept",
    };
    let aligned = if form.aligned { "a" } else { "" };
    let _ = write!(name, "_groups{}{aligned}_{outer}x{inner}{keep}", form.width);
    if form.index == IndexWidth::Bits64 {
        name.push_str("_long");
    }
    let _ = write!(name, "_{:012x}", region.key & 0xffff_ffff_ffff);
    name
}
