//! Joining expressions: operations written into each other.

use std::sync::Arc;

use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::{Expr, Graph, Val};
use netcl_core::tensor::Tensor as Raw;

use super::facts::same_view;
use super::trace::{Kind, Op};

/// An expression over tensors: what several operations became.
#[derive(Clone)]
pub(super) struct Fused {
    pub(super) expr: Expr,
    pub(super) inputs: Vec<Raw>,
    pub(super) scalars: Vec<Number>,
}

/// Writes operations, in order, into one expression. Values that an operation reads as they are, by `same_view`, come from the
/// operations before it; everything else is an input. The outputs are the wanted tensors.
pub(super) fn fuse(ops: &[&Op], wanted: &[Raw], first: &[Raw]) -> Fused {
    let g = Graph::new();
    let mut inputs: Vec<Raw> = first.to_vec();
    let mut scalars: Vec<Number> = Vec::new();
    let mut known: Vec<(Raw, Val<'_>)> = Vec::new();
    for op in ops {
        let Kind::Map { expr, scalars: own } = &op.kind else { continue };
        let values: Vec<Val<'_>> = op
            .inputs
            .iter()
            .map(|input| {
                if let Some((_, value)) = known.iter().rev().find(|(made, _)| same_view(made, input)) {
                    return *value;
                }
                let at = inputs.iter().position(|other| same_view(other, input)).unwrap_or_else(|| {
                    inputs.push(input.clone());
                    inputs.len() - 1
                });
                g.input(at)
            })
            .collect();
        let numbers: Vec<Val<'_>> = (0..own.len()).map(|i| g.scalar(scalars.len() + i)).collect();
        let name: Arc<str> = op.name.as_ref().into();
        let made = g.inline(expr, &values, &numbers).into_iter().map(|value| value.named(name.clone()));
        scalars.extend(own.iter().cloned());
        known.extend(op.outputs.iter().cloned().zip(made));
    }
    let outputs: Vec<Val<'_>> = wanted
        .iter()
        .filter_map(|tensor| known.iter().rev().find(|(made, _)| same_view(made, tensor)).map(|(_, value)| *value))
        .collect();
    prune(&g.finish(&outputs), inputs, scalars, first.len())
}

/// Leaves out the inputs (but the first few) and scalars that an expression does not use.
fn prune(expr: &Expr, inputs: Vec<Raw>, scalars: Vec<Number>, first: usize) -> Fused {
    use netcl_core::kernels::expr::Node;
    let uses = |wanted: fn(&Node) -> Option<u16>, at: usize| {
        expr.nodes().iter().any(|node| wanted(node).is_some_and(|i| usize::from(i) == at))
    };
    let input = |node: &Node| if let Node::Input(i) = node { Some(*i) } else { None };
    let scalar = |node: &Node| if let Node::Scalar(i) = node { Some(*i) } else { None };
    let g = Graph::new();
    let mut kept = (Vec::new(), Vec::new());
    let mut values = Vec::new();
    for (i, tensor) in inputs.into_iter().enumerate() {
        if i < first || uses(input, i) {
            values.push(g.input(kept.0.len()));
            kept.0.push(tensor);
        } else {
            values.push(g.constant(0.0));
        }
    }
    let mut numbers = Vec::new();
    for (i, number) in scalars.into_iter().enumerate() {
        if uses(scalar, i) {
            numbers.push(g.scalar(kept.1.len()));
            kept.1.push(number);
        } else {
            numbers.push(g.constant(0.0));
        }
    }
    let outputs = g.inline(expr, &values, &numbers);
    let expr = g.finish_with(&outputs, kept.0.len(), kept.1.len());
    Fused { expr, inputs: kept.0, scalars: kept.1 }
}

/// An operation with one of its inputs replaced by what that input is made of.
pub(super) fn inlined(op: &Op, input: usize, producer: &Op, seen: Vec<Raw>) -> Op {
    let stand_in = Op { inputs: seen, outputs: vec![op.inputs[input].clone()], ..producer.clone() };
    let fused = fuse(&[&stand_in, op], &op.outputs, &[]);
    Op {
        name: format!("{}_{}", producer.name, op.name).into(),
        kind: Kind::Map { expr: Arc::new(fused.expr), scalars: fused.scalars },
        inputs: fused.inputs,
        outputs: op.outputs.clone(),
        part_of: None,
    }
}
