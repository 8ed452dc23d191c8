//! Splitting an expression into what is the same for all elements of a chunk and what is not.

use crate::kernels::expr::{Expr, Graph, Id, Node, Val};

/// An expression in two parts: `body(inputs, prologue(scalars, controls))`.
#[derive(Debug)]
pub(super) struct Split {
    /// From scalars and controls to the values that the body needs; done once per work-item.
    pub(super) prologue: Expr,
    /// From an element of each operand to the outputs; its scalars are the prologue's outputs.
    pub(super) body: Expr,
}

impl Split {
    /// Splits; inputs from `first_control` on are controls.
    pub(super) fn new(expr: &Expr, first_control: usize) -> Split {
        let nodes = expr.nodes();
        let mut uniform = vec![false; nodes.len()];
        for (i, node) in nodes.iter().enumerate() {
            uniform[i] = match node {
                Node::Input(input) => usize::from(*input) >= first_control,
                node => node.operands().all(|operand| uniform[operand.index()]),
            };
        }
        let mut needed: Vec<usize> = expr.outputs().iter().map(|id| id.index()).collect();
        for (_, node) in nodes.iter().enumerate().filter(|(i, _)| !uniform[*i]) {
            needed.extend(node.operands().map(Id::index));
        }
        needed.retain(|&i| uniform[i] && !matches!(nodes[i], Node::Const(_)));
        needed.sort_unstable();
        needed.dedup();

        let prologue = Graph::new();
        let all = rebuild(&prologue, expr, |_| None);
        let outputs: Vec<Val<'_>> = needed.iter().map(|&i| all[i]).collect();
        let prologue = prologue.finish_with(&outputs, expr.inputs(), expr.scalars());

        let body = Graph::new();
        let all = rebuild(&body, expr, |i| needed.binary_search(&i).ok());
        let outputs: Vec<Val<'_>> = expr.outputs().iter().map(|id| all[id.index()]).collect();
        Split { body: body.finish_with(&outputs, expr.inputs(), needed.len()), prologue }
    }
}

/// All nodes inside another graph, where some become scalars.
fn rebuild<'g>(graph: &'g Graph, expr: &Expr, scalar: impl Fn(usize) -> Option<usize>) -> Vec<Val<'g>> {
    let mut values: Vec<Val<'g>> = Vec::with_capacity(expr.nodes().len());
    for (i, node) in expr.nodes().iter().enumerate() {
        let v = |id: Id| values[id.index()];
        let value = match *node {
            _ if scalar(i).is_some() => graph.scalar(scalar(i).unwrap_or_default()),
            Node::Input(i) => graph.input(usize::from(i)),
            Node::Scalar(i) => graph.scalar(usize::from(i)),
            Node::Const(c) => graph.constant(c.value()),
            Node::Unary(op, a) => v(a).unary(op),
            Node::Binary(op, a, b) => v(a).binary(op, v(b)),
            Node::Ternary(op, a, b, c) => graph.ternary(op, v(a), v(b), v(c)),
        };
        values.push(value);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_depends_on_scalars_and_controls_alone_moves_to_the_prologue() {
        let g = Graph::new();
        let (p, control, lr, t) = (g.input(0), g.input(1), g.scalar(0), g.scalar(1));
        let step = lr / -(t * control).expm1();
        let expr = g.finish(&[p * control - step * 2.0, step]);
        let split = Split::new(&expr, 1);
        assert_eq!(split.prologue.outputs().len(), 3, "{:?}", split.prologue);
        assert!(split.body.flops() <= 2, "{:?}", split.body);
        let values = split.prologue.eval(&[7.0, 0.5], &[0.1, 3.0]);
        assert_eq!(split.body.eval(&[7.0, 0.5], &values), expr.eval(&[7.0, 0.5], &[0.1, 3.0]));
    }
}
