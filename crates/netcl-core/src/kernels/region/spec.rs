//! What a region computes, and its loops.

use std::sync::Arc;

use super::plan::{Facts, Keep, Plan};
use crate::kernels::described::Combine;
use crate::kernels::expr::{Expr, Id};

/// How many values an operand has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// One for each element of a row.
    Full,
    /// One for each row.
    Row,
}

/// A reduction, and what the user calls it.
#[derive(Clone, Debug)]
pub(super) struct Reduction {
    pub(super) combine: Combine,
    pub(super) name: Option<Arc<str>>,
}

/// The structure of a region.
pub(super) struct Spec {
    pub(super) label: String,
    /// Inputs: those of the region, then the reductions. Outputs: what is reduced, then those of the region.
    pub(super) expr: Expr,
    pub(super) inputs: Vec<Extent>,
    pub(super) reductions: Vec<Reduction>,
    pub(super) outputs: Vec<Extent>,
    pub(super) scalars: usize,
    pub(super) key: u128,
    pub(super) facts: Facts,
    /// Nothing waits between loops; costly values wait; costly values and inputs wait.
    pub(super) plans: [Plan; 3],
}

impl Spec {
    /// What a reduction reduces.
    pub(super) fn operand(&self, reduction: usize) -> Id {
        self.expr.outputs()[reduction]
    }

    /// What an output is.
    pub(super) fn result(&self, output: usize) -> Id {
        self.expr.outputs()[self.reductions.len() + output]
    }

    pub(super) fn plan(&self, keep: Keep) -> &Plan {
        &self.plans[keep as usize]
    }
}
