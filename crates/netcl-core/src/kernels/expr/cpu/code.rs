//! What programs are made of.

use crate::kernels::expr::{BinaryOp, UnaryOp};

/// Where a chunk lies: first the inputs, then the outputs, then the registers.
pub(super) type Slot = u16;

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Copy,
    Unary(UnaryOp),
    Binary(BinaryOp),
    Fma,
    Select,
    /// A comparison and the choice made from it in one pass: relu and its relatives.
    Choose(BinaryOp),
}

impl Code {
    /// Whether a source that is one number need not stand in every element of its chunk.
    pub(super) fn takes_numbers(self) -> bool {
        use BinaryOp::{Add, Div, Max, Min, Mul, Sub};
        matches!(self, Code::Binary(Add | Sub | Mul | Div | Min | Max))
    }
}

/// One loop over a chunk. The destination is never one of the sources.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instr {
    pub(super) code: Code,
    pub(super) sources: [Slot; 4],
    pub(super) target: Slot,
}
