//! Less memory for more arithmetic.

use std::collections::HashSet;

use netcl_core::random::{default_generator, set_default_generator};

use crate::autocast::{autocast_dtype, resume};
use crate::error::Result;
use crate::graph::{
    BackwardOptions, Edge, RuleContext, enable_grad, grad_enabled, grad_up_to, next_number, record_edges,
};
use crate::tensor::Tensor;

/// Runs a part of a network without keeping what its backward pass needs; that is computed a second time when the walk gets
/// there. The result and the gradients are the same: random numbers are drawn again from where they were.
///
/// Parameters that the function captures get their gradients as ever. The function must compute the same both times.
///
/// ```
/// use netcl_autograd::{Tensor, checkpoint, manager, ops::{elementwise::{exp, mul}, reduce::sum}};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[0.0f64, 1.0], [2])?.with_grad();
/// let weight = Tensor::from_host(&queue, &[2.0f64, 3.0], [2])?.with_grad();
/// let captured = weight.clone();
/// let y = checkpoint(move |inputs| exp(&mul(inputs[0], &captured)?), &[&x])?;
/// sum(&y, (), false)?.backward()?;
/// assert_eq!(x.grad().unwrap().to_f64_vec()?, [2.0, 3.0 * 3f64.exp()]);
/// assert_eq!(weight.grad().unwrap().to_f64_vec()?, [0.0, 3f64.exp()]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn checkpoint(
    function: impl Fn(&[&Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    inputs: &[&Tensor],
) -> Result<Tensor> {
    if !grad_enabled() {
        return function(inputs);
    }
    let (generator, precision) = (default_generator(), autocast_dtype());
    let start = next_number();
    // Recorded once and dropped at once: the graph tells which captured tensors take part.
    let output = function(inputs)?;
    let own: Vec<Edge> = inputs.iter().map(|input| input.edge()).collect();
    let others = captured(&[&output], &own, start);
    if !own.iter().any(Edge::has_target) && others.is_empty() {
        return Ok(output);
    }
    let value = output.raw().clone();
    drop(output);
    let (count, captured) = (inputs.len(), others.clone());
    let rule = move |context: &RuleContext<'_>, upstream: &Tensor| {
        let inputs = (0..count).map(|i| context.input(i)).collect::<Result<Vec<_>>>()?;
        let places = inputs.iter().map(|input| input.edge()).chain(captured.iter().cloned());
        let wanted: Vec<Edge> =
            places.enumerate().map(|(i, edge)| if context.wants(i) { edge } else { Edge::None }).collect();
        let options = BackwardOptions { create_graph: grad_enabled(), ..Default::default() };
        let _recording = enable_grad();
        let now = default_generator();
        set_default_generator(generator);
        let output = {
            let _autocast = resume(precision);
            function(&inputs.iter().collect::<Vec<_>>())
        };
        set_default_generator(now);
        grad_up_to(&output?, upstream, &wanted, options)
    };
    Ok(record_edges("checkpoint", inputs, &others, value, Box::new(rule)))
}

/// Where gradients leave the graph of some results other than through their inputs: leaves, and ops recorded before the start.
pub(crate) fn captured(outputs: &[&Tensor], inputs: &[Edge], start: u64) -> Vec<Edge> {
    let mut seen: HashSet<usize> = inputs.iter().map(Edge::key).collect();
    let mut found = Vec::new();
    let mut pending: Vec<Edge> = outputs.iter().map(|output| output.edge()).collect();
    while let Some(edge) = pending.pop() {
        if !seen.insert(edge.key()) {
            continue;
        }
        match &edge {
            Edge::Node(node) | Edge::Output(node, _) if node.number() >= start => {
                pending.extend(node.edges().iter().cloned());
            }
            Edge::Node(_) | Edge::Output(..) | Edge::Leaf(_) => found.push(edge),
            Edge::Unrecorded(_) | Edge::None => {}
        }
    }
    found
}
