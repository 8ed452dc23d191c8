//! A region as programs of the native CPU: one for each loop over the row, and one for the row values before it.

use super::plan::{Phase, Plan};
use super::spec::Spec;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::expr::cpu::Program;
use crate::kernels::expr::{Graph, Id, Node, Val};

/// The programs of a region in one type.
pub(super) struct Native {
    pub(super) phases: Vec<Loop>,
    /// Row values behind the last loop.
    pub(super) last: Option<Step>,
    /// Converts an input that is reduced as it is.
    pub(super) same: Program,
}

/// A loop over the row and the row values before it.
pub(super) struct Loop {
    pub(super) rows: Option<Step>,
    /// `None` if there is nothing to compute: inputs are reduced as they are.
    pub(super) body: Option<Step>,
    /// For each reduction its number and where its operand lies.
    pub(super) reductions: Vec<(usize, Operand)>,
    /// How many outputs the program writes, last of all.
    pub(super) outputs: usize,
}

/// A program, and the nodes that are its inputs and outputs.
pub(super) struct Step {
    pub(super) program: Program,
    pub(super) inputs: Vec<Id>,
    pub(super) outputs: Vec<Id>,
}

/// Where the operand of a reduction lies.
pub(super) enum Operand {
    /// A full input of the region.
    Input(usize),
    /// A value that waits.
    Kept(Id),
    /// A temporary of the loop's program: which one.
    Temporary(usize),
}

impl Native {
    pub(super) fn compile(region: &Spec, plan: &Plan, compute: DType) -> Result<Native> {
        let phases = plan.phases.iter().map(|phase| Loop::compile(region, phase, compute)).collect::<Result<_>>()?;
        let g = Graph::new();
        let same = Program::compile(&g.finish(&[g.input(0)]), compute)?;
        Ok(Native { phases, last: Step::compile(region, &plan.last, &plan.last, compute)?, same })
    }
}

impl Loop {
    fn compile(region: &Spec, phase: &Phase, compute: DType) -> Result<Loop> {
        let mut wanted: Vec<Id> = Vec::new();
        let mut reductions = Vec::new();
        for &k in &phase.reductions {
            let id = region.operand(k);
            let place = match region.expr.nodes()[id.index()] {
                Node::Input(i) if region.facts.full[id.index()] => Operand::Input(usize::from(i)),
                _ if phase.stores.contains(&id) => Operand::Kept(id),
                _ => {
                    let at = wanted.iter().position(|w| *w == id).unwrap_or(wanted.len());
                    if at == wanted.len() {
                        wanted.push(id);
                    }
                    Operand::Temporary(at)
                }
            };
            reductions.push((k, place));
        }
        wanted.extend(&phase.stores);
        wanted.extend(phase.outputs.iter().map(|&o| region.result(o)));
        let body = Step::compile(region, &phase.body, &wanted, compute)?;
        let rows = Step::compile(region, &phase.rows, &phase.rows, compute)?;
        Ok(Loop { rows, body, reductions, outputs: phase.outputs.len() })
    }
}

impl Step {
    /// The program that computes `wanted` by way of the nodes `made`; what else it needs are its inputs.
    fn compile(region: &Spec, made: &[Id], wanted: &[Id], compute: DType) -> Result<Option<Step>> {
        if wanted.is_empty() {
            return Ok(None);
        }
        let g = Graph::new();
        let nodes = region.expr.nodes();
        let mut values = Values { graph: &g, nodes, known: vec![None; nodes.len()], inputs: Vec::new() };
        for &id in made {
            let result = match nodes[id.index()] {
                Node::Unary(op, a) => values.get(a).unary(op),
                Node::Binary(op, a, b) => values.get(a).binary(op, values.get(b)),
                Node::Ternary(op, a, b, c) => g.ternary(op, values.get(a), values.get(b), values.get(c)),
                Node::Input(_) | Node::Scalar(_) | Node::Const(_) => values.get(id),
            };
            values.known[id.index()] = Some(result);
        }
        let results: Vec<Val<'_>> = wanted.iter().map(|&id| values.get(id)).collect();
        let inputs = values.inputs;
        let expr = g.finish_with(&results, inputs.len(), region.scalars);
        Ok(Some(Step { program: Program::compile(&expr, compute)?, inputs, outputs: wanted.to_vec() }))
    }
}

/// The values of a step's graph; what is asked for and not known becomes an input.
struct Values<'g> {
    graph: &'g Graph,
    nodes: &'g [Node],
    known: Vec<Option<Val<'g>>>,
    inputs: Vec<Id>,
}

impl<'g> Values<'g> {
    fn get(&mut self, id: Id) -> Val<'g> {
        match (self.known[id.index()], self.nodes[id.index()]) {
            (Some(known), _) => known,
            (None, Node::Scalar(s)) => self.graph.scalar(usize::from(s)),
            (None, Node::Const(c)) => self.graph.constant(c.value()),
            (None, _) => {
                self.inputs.push(id);
                *self.known[id.index()].insert(self.graph.input(self.inputs.len() - 1))
            }
        }
    }
}
