//! The walk backwards.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use super::mode::{anomaly_enabled, enable_grad, no_grad};
use super::node::{Edge, Node, check_finite};
use crate::error::{Error, Result};
use crate::ops::elementwise::add;
use crate::tensor::{GradCell, Tensor};

/// How a walk treats the graph.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackwardOptions {
    /// Keep saved values, so that the same graph can be walked again.
    pub retain_graph: bool,
    /// Record the walk itself, so that gradients can be differentiated; implies `retain_graph`.
    pub create_graph: bool,
}

/// A node in the order of the walk: the latest first.
struct Next(Arc<Node>);

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        self.0.number() == other.0.number()
    }
}
impl Eq for Next {}
impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Next {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.number().cmp(&other.0.number())
    }
}

/// Computes the gradients of `loss` and accumulates them on the leaves. `gradient` is the gradient of the loss itself; a loss of
/// one element needs none.
pub fn backward(loss: &Tensor, gradient: Option<&Tensor>, options: BackwardOptions) -> Result<()> {
    let seed = seed("backward", loss, gradient)?;
    let mut leaves = Leaves::Accumulate;
    walk(&[(loss.clone(), seed)], options, &mut leaves)
}

/// The gradients of some outputs with respect to some inputs, without touching any `grad`. `None` for an input that no output
/// depends on.
pub fn grad(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    gradients: &[Option<&Tensor>],
    options: BackwardOptions,
) -> Result<Vec<Option<Tensor>>> {
    let roots = outputs
        .iter()
        .enumerate()
        .map(|(i, output)| Ok(((*output).clone(), seed("grad", output, gradients.get(i).copied().flatten())?)))
        .collect::<Result<Vec<_>>>()?;
    for (i, input) in inputs.iter().enumerate() {
        if !input.needs_grad() {
            return Err(Error::NoGradient { op: "grad", what: format!("input {i} does not require a gradient") });
        }
    }
    let mut leaves = Leaves::Collect { wanted: inputs.iter().map(|t| key(&t.edge())).collect(), found: HashMap::new() };
    walk(&roots, options, &mut leaves)?;
    let Leaves::Collect { mut found, .. } = leaves else { return Ok(Vec::new()) };
    Ok(inputs.iter().map(|t| found.get_mut(&key(&t.edge())).cloned()).collect())
}

/// What happens to gradients that arrive where they were meant to.
enum Leaves {
    Accumulate,
    Collect { wanted: HashSet<usize>, found: HashMap<usize, Tensor> },
}

/// Identifies the place an edge leads to.
fn key(edge: &Edge) -> usize {
    match edge {
        Edge::Node(node) => Arc::as_ptr(node) as usize,
        Edge::Leaf(cell) => Arc::as_ptr(cell) as usize,
        Edge::None => 0,
    }
}

fn seed(op: &'static str, loss: &Tensor, gradient: Option<&Tensor>) -> Result<Tensor> {
    if !loss.needs_grad() {
        let what = "the tensor does not depend on anything with requires_grad (or was made under no_grad)".to_owned();
        return Err(Error::NoGradient { op, what });
    }
    match gradient {
        Some(given) if given.shape() == loss.shape() && given.dtype() == loss.dtype() => Ok(given.clone()),
        Some(given) => Err(Error::NoGradient {
            op,
            what: format!(
                "the given gradient has shape {} and dtype {}, the tensor {} and {}",
                given.shape(),
                given.dtype(),
                loss.shape(),
                loss.dtype()
            ),
        }),
        None if loss.size() == 1 => Ok(Tensor::full(loss.queue(), loss.shape().clone(), loss.dtype(), 1.0)?),
        None => Err(Error::NoGradient {
            op,
            what: format!("a tensor of shape {} has no single gradient; reduce it to one element or give one", loss.shape()),
        }),
    }
}

fn walk(roots: &[(Tensor, Tensor)], options: BackwardOptions, leaves: &mut Leaves) -> Result<()> {
    let _mode = if options.create_graph { enable_grad() } else { no_grad() };
    let retain = options.retain_graph || options.create_graph;
    let mut pending: HashMap<usize, Tensor> = HashMap::new();
    let mut queue = BinaryHeap::new();
    for (root, gradient) in roots {
        arrive(&root.edge(), gradient.clone(), &mut pending, &mut queue, leaves)?;
    }
    while let Some(Next(node)) = queue.pop() {
        let at = Arc::as_ptr(&node) as usize;
        let Some(gradient) = pending.remove(&at) else { continue };
        let gradient = match leaves {
            Leaves::Collect { wanted, found } if wanted.contains(&at) => {
                found.insert(at, gradient.clone());
                gradient
            }
            _ => gradient,
        };
        let wanted: Vec<bool> = node.edges().iter().map(|edge| !matches!(edge, Edge::None)).collect();
        let gradients = node.run(&gradient, &wanted, retain)?;
        for ((edge, gradient), wanted) in node.edges().iter().zip(gradients).zip(wanted) {
            let Some(gradient) = gradient.filter(|_| wanted) else { continue };
            if anomaly_enabled() {
                check_finite(node.op(), node.place(), "backward", gradient.raw())?;
            }
            arrive(edge, gradient, &mut pending, &mut queue, leaves)?;
        }
    }
    Ok(())
}

/// Adds a gradient to what its place has received so far.
fn arrive(
    edge: &Edge,
    gradient: Tensor,
    pending: &mut HashMap<usize, Tensor>,
    queue: &mut BinaryHeap<Next>,
    leaves: &mut Leaves,
) -> Result<()> {
    match edge {
        Edge::None => Ok(()),
        Edge::Node(node) => {
            let at = Arc::as_ptr(node) as usize;
            match pending.remove(&at) {
                Some(before) => {
                    pending.insert(at, add(&before, &gradient)?);
                }
                None => {
                    pending.insert(at, gradient);
                    queue.push(Next(node.clone()));
                }
            }
            Ok(())
        }
        Edge::Leaf(cell) => match leaves {
            Leaves::Accumulate => accumulate(cell, gradient),
            Leaves::Collect { wanted, found } => {
                let at = Arc::as_ptr(cell) as usize;
                if wanted.contains(&at) {
                    let sum = match found.remove(&at) {
                        Some(before) => add(&before, &gradient)?,
                        None => gradient,
                    };
                    found.insert(at, sum);
                }
                Ok(())
            }
        },
    }
}

fn accumulate(cell: &GradCell, gradient: Tensor) -> Result<()> {
    let gradient = cell.run_hooks(gradient)?;
    let sum = match cell.grad() {
        Some(before) => add(&before, &gradient)?,
        None => gradient,
    };
    cell.set_grad(Some(sum));
    Ok(())
}
