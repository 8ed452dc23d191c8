//! The loops over a row: which computes what, and what waits in between.
//!
//! ```text
//!   row values of level 0      scalars, row inputs
//!   loop 0                     reduces what depends on no reduction
//!   row values of level 1      what the first reductions gave
//!   loop 1                     reduces what depends on them
//!   ...
//!   loop last                  writes the full outputs
//!   row values of the end      written to the row outputs
//! ```
//!
//! All full outputs are written in the last loop, so that an output may take the place of an input.

use super::spec::Extent;
use crate::kernels::expr::{BinaryOp, Expr, Id, Node, UnaryOp};

/// What is known of each node of a region's expression.
#[derive(Debug)]
pub(super) struct Facts {
    /// Whether it has one value for each element of a row.
    pub(super) full: Vec<bool>,
    /// How many loops must have ended before it can be computed.
    pub(super) level: Vec<usize>,
}

impl Facts {
    pub(super) fn new(expr: &Expr, inputs: &[Extent]) -> Facts {
        let nodes = expr.nodes();
        let (mut full, mut level) = (vec![false; nodes.len()], vec![0; nodes.len()]);
        // The operand of a reduction stands before everything that uses its result: it is an earlier output.
        for (index, node) in nodes.iter().enumerate() {
            (full[index], level[index]) = match *node {
                Node::Input(i) => match inputs.get(usize::from(i)) {
                    Some(extent) => (*extent == Extent::Full, 0),
                    None => (false, level[expr.outputs()[usize::from(i) - inputs.len()].index()] + 1),
                },
                _ => (
                    node.operands().any(|o| full[o.index()]),
                    node.operands().map(|o| level[o.index()]).max().unwrap_or(0),
                ),
            };
        }
        Facts { full, level }
    }
}

/// What waits between the loops instead of being computed, or read, again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Keep {
    /// Nothing: any length of row.
    Nothing,
    /// What took a division, a root or an elementary function.
    Costly,
    /// That, and inputs.
    Inputs,
}

/// One loop over the row, and the row values before it.
#[derive(Debug, Default)]
pub(super) struct Phase {
    /// Row values to compute before the loop, in order.
    pub(super) rows: Vec<Id>,
    /// Full inputs that the loop reads.
    pub(super) inputs: Vec<Id>,
    /// Kept values that it reads.
    pub(super) loads: Vec<Id>,
    /// Full values that it computes, in order.
    pub(super) body: Vec<Id>,
    /// Values that wait for a later loop.
    pub(super) stores: Vec<Id>,
    /// The reductions of the loop.
    pub(super) reductions: Vec<usize>,
    /// The outputs it writes.
    pub(super) outputs: Vec<usize>,
}

/// All loops.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) phases: Vec<Phase>,
    /// Row values to compute behind the last loop, in order.
    pub(super) last: Vec<Id>,
}

impl Plan {
    pub(super) fn new(expr: &Expr, facts: &Facts, outputs: &[Extent], keep: Keep) -> Plan {
        let operands = &expr.outputs()[..expr.outputs().len() - outputs.len()];
        let results = &expr.outputs()[operands.len()..];
        let level = |id: &Id| facts.level[id.index()];
        let full_outputs = || outputs.iter().enumerate().filter(|(_, e)| **e == Extent::Full).map(|(o, _)| o);
        let reduced = operands.iter().map(|id| level(id) + 1).max().unwrap_or(0);
        let written = full_outputs().map(|o| level(&results[o]) + 1).max().unwrap_or(0);
        let mut phases: Vec<Phase> = (0..reduced.max(written)).map(|_| Phase::default()).collect();
        for (k, id) in operands.iter().enumerate() {
            phases[level(id)].reductions.push(k);
        }
        if let Some(last) = phases.last_mut() {
            last.outputs = full_outputs().collect();
        }
        let nodes = expr.nodes().len();
        let mut made = Made { expr, facts, keep, first: vec![None; nodes], row: vec![false; nodes] };
        for p in 0..phases.len() {
            let wanted = phases[p].reductions.iter().map(|&k| operands[k]);
            let wanted: Vec<Id> = wanted.chain(phases[p].outputs.iter().map(|&o| results[o])).collect();
            made.visit(&mut phases, p, &wanted);
        }
        for (o, id) in results.iter().enumerate() {
            if outputs[o] == Extent::Row {
                made.need_row(*id);
            }
        }
        let mut last = Vec::new();
        for (index, needed) in made.row.iter().enumerate() {
            let id = Id::new(index);
            if *needed && expr.nodes()[index].operands().next().is_some() {
                let place = phases.get_mut(level(&id)).map_or(&mut last, |phase| &mut phase.rows);
                place.push(id);
            }
        }
        Plan { phases, last }
    }

    /// Values that wait, in the order in which they are first stored.
    pub(super) fn kept(&self) -> impl Iterator<Item = Id> + '_ {
        self.phases.iter().flat_map(|phase| phase.stores.iter().copied())
    }
}

struct Made<'a> {
    expr: &'a Expr,
    facts: &'a Facts,
    keep: Keep,
    /// The loop in which a full value was first read or computed.
    first: Vec<Option<usize>>,
    /// Row values that are needed.
    row: Vec<bool>,
}

impl Made<'_> {
    /// Finds what loop `p` has to read and compute for some values.
    fn visit(&mut self, phases: &mut [Phase], p: usize, wanted: &[Id]) {
        let mut seen = vec![false; self.expr.nodes().len()];
        let mut pending: Vec<Id> = wanted.to_vec();
        let (mut here, mut inputs, mut loads) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(id) = pending.pop() {
            if std::mem::replace(&mut seen[id.index()], true) {
                continue;
            }
            if !self.facts.full[id.index()] {
                self.need_row(id);
                continue;
            }
            let node = self.expr.nodes()[id.index()];
            if let Some(q) = self.first[id.index()].filter(|&q| q < p && self.waits(&node)) {
                loads.push(id);
                if !phases[q].stores.contains(&id) {
                    phases[q].stores.push(id);
                }
                continue;
            }
            self.first[id.index()].get_or_insert(p);
            if let Node::Input(_) = node {
                inputs.push(id)
            } else {
                here.push(id)
            }
            pending.extend(node.operands());
        }
        for (to, mut ids) in [(0, inputs), (1, loads), (2, here)] {
            ids.sort_unstable();
            let phase = &mut phases[p];
            *[&mut phase.inputs, &mut phase.loads, &mut phase.body][to] = ids;
        }
    }

    fn need_row(&mut self, id: Id) {
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            if !std::mem::replace(&mut self.row[id.index()], true) {
                pending.extend(self.expr.nodes()[id.index()].operands());
            }
        }
    }

    fn waits(&self, node: &Node) -> bool {
        match self.keep {
            Keep::Nothing => false,
            Keep::Costly => costly(node),
            Keep::Inputs => costly(node) || matches!(node, Node::Input(_)),
        }
    }
}

fn costly(node: &Node) -> bool {
    match node {
        Node::Unary(op, _) => {
            !matches!(op, UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round)
        }
        Node::Binary(op, ..) => matches!(op, BinaryOp::Div | BinaryOp::Pow),
        _ => false,
    }
}
