//! Operations by their meaning: what a compiler that listens at the launch seam is told before kernels are chosen.

use super::elementwise::{Elementwise, Number};
use crate::tensor::Tensor;

/// An operation that is about to be launched.
pub struct Described<'a> {
    /// What it reads, as the operation sees it: expanded to one shape where the meaning says so.
    pub inputs: &'a [&'a Tensor],
    /// What it writes, whole.
    pub outputs: &'a [&'a Tensor],
    /// What it computes.
    pub meaning: Meaning<'a>,
}

/// What an operation computes.
pub enum Meaning<'a> {
    /// Every element of the outputs by an expression of the same element of the inputs; all have one shape.
    Elementwise(&'a Elementwise, &'a [Number]),
}
