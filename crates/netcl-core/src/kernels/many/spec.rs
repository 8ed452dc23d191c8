//! What a computation over many tensors is.

use std::sync::Arc;

use super::uniform::Split;
use crate::kernels::elementwise::Elementwise;
use crate::kernels::expr::{Expr, Node};
use crate::kernels::launch::Access;

/// Where an output of the expression is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the tensors of a list.
    List(usize),
    /// To a row of the flat tensor.
    Row(usize),
}

/// The structure of a [`Many`](super::Many).
pub(super) struct Spec {
    pub(super) map: Arc<Elementwise>,
    pub(super) lists: usize,
    pub(super) rows: usize,
    pub(super) targets: Vec<Target>,
    /// Which lists the expression reads; the others are only written.
    pub(super) reads: Vec<bool>,
    /// Which run-time scalars the expression reads; the others need no argument.
    pub(super) used: Vec<bool>,
    pub(super) split: Split,
}

impl Spec {
    pub(super) fn new(label: &'static str, expr: Expr, lists: usize, rows: usize, targets: Vec<Target>) -> Spec {
        let (mut used, mut reads) = (vec![false; expr.scalars()], vec![false; lists]);
        for node in expr.nodes() {
            match *node {
                Node::Scalar(i) => used[usize::from(i)] = true,
                Node::Input(i) if usize::from(i) < lists => reads[usize::from(i)] = true,
                _ => {}
            }
        }
        let split = Split::new(&expr, lists + rows);
        Spec { map: Elementwise::new(label, expr), lists, rows, targets, reads, used, split }
    }

    pub(super) fn label(&self) -> &str {
        self.map.label()
    }

    pub(super) fn controls(&self) -> usize {
        self.map.expr().inputs().saturating_sub(self.lists + self.rows)
    }

    pub(super) fn list_access(&self, list: usize) -> Access {
        if self.targets.contains(&Target::List(list)) { Access::Write } else { Access::Read }
    }

    pub(super) fn flat_access(&self) -> Access {
        let rows = self.targets.iter().any(|target| matches!(target, Target::Row(_)));
        if rows { Access::Write } else { Access::Read }
    }
}
