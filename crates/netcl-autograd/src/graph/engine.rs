//! The walk backwards.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering as Memory;

use smallvec::SmallVec;

use super::hook::AWAITED;
use super::mode::{anomaly_enabled, enable_grad, no_grad, suspend_anomaly};
use super::node::{Arrived, Edge, Gradients, Node, check_finite};
use crate::autocast;
use crate::error::{Error, Result};
use crate::ops::elementwise::add;
use crate::tensor::{GradCell, Tensor};

/// How a walk treats the graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    crate::jit::refuse_tracing("backward")?;
    let seed = seed("backward", loss, gradient)?;
    Walk::new(options, Goal::Leaves).run([(loss.edge(), seed)])
}

/// The gradients of some outputs with respect to some inputs, without touching any `grad`. `None` for an input that no output
/// depends on. `gradients` are those of the outputs, in order; an output of one element needs none.
///
/// Only what lies between outputs and inputs is walked, and freed unless it is to be kept.
///
/// ```
/// use netcl_autograd::{Tensor, grad, manager, ops::elementwise::mul};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[3.0f64], [1])?.with_grad();
/// let cube = mul(&mul(&x, &x)?, &x)?;
/// let slope = grad(&[&cube], &[&x], &[], Default::default())?;
/// assert_eq!(slope[0].as_ref().unwrap().item()?, 27.0);
/// assert!(x.grad().is_none());
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
pub fn grad(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    gradients: &[Option<&Tensor>],
    options: BackwardOptions,
) -> Result<Vec<Option<Tensor>>> {
    let roots = outputs
        .iter()
        .enumerate()
        .map(|(i, output)| Ok((output.edge(), seed("grad", output, gradients.get(i).copied().flatten())?)))
        .collect::<Result<Vec<_>>>()?;
    for (i, input) in inputs.iter().enumerate() {
        if !input.needs_grad() {
            return Err(Error::NoGradient { op: "grad", what: format!("input {i} does not require a gradient") });
        }
    }
    let wanted: HashSet<usize> = inputs.iter().map(|t| t.place().key()).collect();
    let useful = leading_to("grad", &wanted, roots.iter().map(|(edge, _)| edge), |_| true)?;
    let mut found = HashMap::new();
    Walk::new(options, Goal::Inputs { wanted, useful, found: &mut found }).run(roots)?;
    Ok(inputs.iter().map(|t| found.get(&t.place().key()).cloned()).collect())
}

/// The gradients that arrive at some places of a graph when the walk goes no further than these; `None` also for a place that
/// was named before.
pub(crate) fn grad_up_to(
    output: &Tensor,
    gradient: &Tensor,
    places: &[Edge],
    options: BackwardOptions,
) -> Result<Gradients> {
    walk_up_to(vec![(output.edge(), gradient.clone())], places, options, true)
}

/// As [`grad_up_to`] from several results at once, without the hooks of the places: whoever compiles a walk runs them outside.
pub(crate) fn joint_grad_up_to(
    roots: Vec<(Edge, Tensor)>,
    places: &[Edge],
    options: BackwardOptions,
) -> Result<Gradients> {
    walk_up_to(roots, places, options, false)
}

fn walk_up_to(roots: Vec<(Edge, Tensor)>, places: &[Edge], options: BackwardOptions, hooks: bool) -> Result<Gradients> {
    let wanted: HashSet<usize> = places.iter().filter(|place| place.has_target()).map(Edge::key).collect();
    let roots_of = roots.iter().map(|(root, _)| root);
    let useful = leading_to("backward", &wanted, roots_of, |key| !wanted.contains(&key))?;
    let mut found = HashMap::new();
    let mut walk = Walk::new(options, Goal::Inputs { wanted, useful, found: &mut found });
    walk.hooks_at_places = hooks;
    walk.run(roots)?;
    // A place that is named twice gets its gradient once.
    Ok(places.iter().map(|place| found.remove(&place.key())).collect())
}

/// The nodes from which a wanted place can be reached, going through nodes that `passes` allows.
///
/// A result that did not record is an error wherever it is met: it may depend on a wanted place.
fn leading_to<'e>(
    op: &'static str,
    wanted: &HashSet<usize>,
    roots: impl Iterator<Item = &'e Edge>,
    passes: impl Fn(usize) -> bool,
) -> Result<HashSet<usize>> {
    let mut reached: HashMap<usize, Arc<Node>> = HashMap::new();
    let mut pending: Vec<Arc<Node>> = Vec::new();
    let mut lost = None;
    let mut visit = |edge: &Edge, pending: &mut Vec<Arc<Node>>| {
        lost = lost.or(edge.unrecorded());
        if let Edge::Node(node) | Edge::Output(node, _) = edge
            && passes(edge.key())
            && reached.insert(edge.key(), node.clone()).is_none()
        {
            pending.push(node.clone());
        }
    };
    roots.for_each(|edge| visit(edge, &mut pending));
    while let Some(node) = pending.pop() {
        node.edges().iter().for_each(|edge| visit(edge, &mut pending));
    }
    if let Some(lost) = lost {
        return Err(Error::Unrecorded { op, lost });
    }
    let mut nodes: Vec<(usize, Arc<Node>)> = reached.into_iter().collect();
    nodes.sort_by_key(|(_, node)| node.number());
    // Inputs come before the nodes that use them.
    let mut useful = HashSet::new();
    for (key, node) in nodes {
        if node.edges().iter().any(|edge| wanted.contains(&edge.key()) || useful.contains(&edge.key())) {
            useful.insert(key);
        }
    }
    Ok(useful)
}

fn seed(op: &'static str, loss: &Tensor, gradient: Option<&Tensor>) -> Result<Tensor> {
    if !loss.needs_grad() {
        if let Some(lost) = loss.unrecorded() {
            return Err(Error::Unrecorded { op, lost });
        }
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
            what: format!(
                "a tensor of shape {} has no single gradient; reduce it to one element or give one",
                loss.shape()
            ),
        }),
    }
}

/// What a walk is for.
enum Goal<'f> {
    /// Gradients of all leaves, accumulated there.
    Leaves,
    /// Gradients at certain places.
    Inputs {
        /// The places.
        wanted: HashSet<usize>,
        /// The nodes on the way to them.
        useful: HashSet<usize>,
        /// The gradients so far.
        found: &'f mut HashMap<usize, Tensor>,
    },
}

struct Walk<'f> {
    options: BackwardOptions,
    goal: Goal<'f>,
    /// Gradients that have arrived at leaves and at nodes not yet visited.
    pending: HashMap<usize, Tensor>,
    /// The same for nodes with several results.
    joint: HashMap<usize, Vec<Option<Tensor>>>,
    /// Whether the places that the walk goes to see their gradients through their hooks.
    hooks_at_places: bool,
    queue: BinaryHeap<Next>,
    /// The leaves reached, in order.
    leaves: Vec<Arc<GradCell>>,
    /// How many edges that have not been walked yet lead to each leaf whose accumulated gradient somebody waits for.
    awaited: HashMap<usize, usize>,
}

impl<'f> Walk<'f> {
    fn new(options: BackwardOptions, goal: Goal<'f>) -> Self {
        Walk {
            options,
            goal,
            pending: HashMap::new(),
            joint: HashMap::new(),
            hooks_at_places: true,
            queue: BinaryHeap::new(),
            leaves: Vec::new(),
            awaited: HashMap::new(),
        }
    }

    fn run(mut self, roots: impl IntoIterator<Item = (Edge, Tensor)>) -> Result<()> {
        let check = anomaly_enabled();
        // What a rule computes is reported as the backward pass of its op, below.
        let _anomaly = suspend_anomaly();
        // A rule runs in the dtypes of its op.
        let _autocast = autocast::suspend();
        let _recording = if self.options.create_graph { enable_grad() } else { no_grad() };
        let retain = self.options.retain_graph || self.options.create_graph;
        for (edge, gradient) in roots {
            if matches!(self.goal, Goal::Leaves) && AWAITED.load(Memory::Acquire) {
                self.awaited.extend(awaited_uses(&edge));
            }
            self.arrive(&edge, gradient)?;
        }
        while let Some(Next(node)) = self.queue.pop() {
            let key = Arc::as_ptr(&node) as usize;
            if let Some(gradients) = self.joint.remove(&key) {
                self.through(&node, Arrived::Joint(&gradients), retain, check)?;
                continue;
            }
            let Some(gradient) = self.pending.remove(&key) else { continue };
            let gradient =
                if self.hooks_at_places || !self.is_wanted(key) { node.hooks.run(gradient)? } else { gradient };
            if let Goal::Inputs { wanted, useful, found } = &mut self.goal {
                if wanted.contains(&key) {
                    found.insert(key, gradient.clone());
                }
                if !useful.contains(&key) {
                    continue;
                }
            }
            self.through(&node, Arrived::One(&gradient), retain, check)?;
        }
        // A leaf that is used in several places gets the sum at once, so that its hooks see the whole.
        let mut arrived = Vec::new();
        for cell in std::mem::take(&mut self.leaves) {
            let key = Arc::as_ptr(&cell) as usize;
            let Some(gradient) = self.pending.remove(&key) else { continue };
            let gradient = if self.hooks_at_places { cell.hooks.run(gradient)? } else { gradient };
            match &mut self.goal {
                Goal::Leaves => arrived.push((cell, gradient)),
                Goal::Inputs { found, .. } => {
                    found.insert(key, gradient);
                }
            }
        }
        let holders: Vec<usize> = arrived.iter().map(|(_, gradient)| holders(&arrived, gradient)).collect();
        for ((cell, gradient), holders) in arrived.into_iter().zip(holders) {
            accumulate(&cell, gradient, holders, self.options.create_graph)?;
        }
        Ok(())
    }

    /// Runs a node's rule and hands its gradients on.
    fn through(&mut self, node: &Arc<Node>, arrived: Arrived<'_>, retain: bool, check: bool) -> Result<()> {
        if let Some(lost) = node.edges().iter().find_map(Edge::unrecorded) {
            return Err(Error::Unrecorded { op: "backward", lost });
        }
        let wanted: SmallVec<[bool; 4]> = node.edges().iter().map(|edge| self.wants(edge)).collect();
        let gradients = node.run(arrived, &wanted, retain)?;
        for ((edge, gradient), wanted) in node.edges().iter().zip(gradients).zip(wanted) {
            if let Some(gradient) = gradient.filter(|_| wanted) {
                if check {
                    check_finite(node.op(), node.place(), "backward", gradient.raw())?;
                }
                self.arrive(edge, gradient)?;
            }
            if let Edge::Leaf(cell) = edge {
                self.used(cell)?;
            }
        }
        Ok(())
    }

    /// Notes that an edge to a leaf has been walked. After the last one the gradient of an awaited leaf is complete before the walk is.
    fn used(&mut self, cell: &Arc<GradCell>) -> Result<()> {
        let key = Arc::as_ptr(cell) as usize;
        let Some(left) = self.awaited.get_mut(&key) else { return Ok(()) };
        *left -= 1;
        match self.pending.remove(&key) {
            Some(gradient) if *left == 0 => accumulate(cell, cell.hooks.run(gradient)?, 1, self.options.create_graph),
            Some(gradient) => {
                self.pending.insert(key, gradient);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn is_wanted(&self, key: usize) -> bool {
        matches!(&self.goal, Goal::Inputs { wanted, .. } if wanted.contains(&key))
    }

    /// Whether a gradient has to be computed for an edge.
    fn wants(&self, edge: &Edge) -> bool {
        match (&self.goal, edge) {
            (_, Edge::Unrecorded(_) | Edge::None) => false,
            (Goal::Leaves, _) => true,
            (Goal::Inputs { wanted, useful, .. }, edge) => wanted.contains(&edge.key()) || useful.contains(&edge.key()),
        }
    }

    /// Adds a gradient to what its place has received so far.
    fn arrive(&mut self, edge: &Edge, gradient: Tensor) -> Result<()> {
        if !self.wants(edge) {
            return Ok(());
        }
        if let Edge::Output(node, output) = edge {
            let first = !self.joint.contains_key(&edge.key());
            let parts = self.joint.entry(edge.key()).or_default();
            if parts.len() <= *output {
                parts.resize(output + 1, None);
            }
            parts[*output] = Some(match parts[*output].take() {
                Some(before) => add(&before, &gradient)?,
                None => gradient,
            });
            if first {
                self.queue.push(Next(node.clone()));
            }
            return Ok(());
        }
        let before = self.pending.remove(&edge.key());
        let first = before.is_none();
        let sum = match before {
            Some(before) => add(&before, &gradient)?,
            None => gradient,
        };
        self.pending.insert(edge.key(), sum);
        match edge {
            Edge::Node(node) if first => self.queue.push(Next(node.clone())),
            Edge::Leaf(cell) if first => self.leaves.push(cell.clone()),
            _ => {}
        }
        Ok(())
    }
}

/// Adds a gradient, whose memory holds so many of its walk, to what a leaf has from earlier walks.
fn accumulate(cell: &GradCell, gradient: Tensor, holders: usize, create_graph: bool) -> Result<()> {
    let gradient = cell.fitted(gradient)?;
    let mut sum = match cell.grad() {
        Some(before) if create_graph => add(&before, &gradient)?,
        // Dense, whatever the order of axes of those that are added: a leaf's own is where others expect it.
        Some(before) => add(&before, &gradient)?.raw().contiguous()?.into(),
        None if create_graph => gradient,
        // A gradient that passed through (of a sum, of a reshape) is shared with others, or a view: a leaf's own may be
        // written to.
        None if Arc::strong_count(gradient.storage()) > holders => gradient.raw().duplicate()?.into(),
        None => gradient.raw().contiguous()?.into(),
    };
    if !cell.accumulated.is_empty() {
        // Set before, so that a hook finds it at the leaf as well.
        cell.set_grad(Some(sum.clone()));
        sum = cell.accumulated.run(sum)?;
    }
    cell.set_grad(Some(sum));
    Ok(())
}

/// How many edges lead to each leaf, past an edge, that has hooks for its accumulated gradient.
fn awaited_uses(root: &Edge) -> HashMap<usize, usize> {
    let (mut uses, mut seen, mut pending) = (HashMap::new(), HashSet::new(), vec![root.clone()]);
    while let Some(Edge::Node(node) | Edge::Output(node, _)) = pending.pop() {
        if !seen.insert(Arc::as_ptr(&node) as usize) {
            continue;
        }
        for edge in node.edges() {
            match edge {
                Edge::Leaf(cell) if !cell.accumulated.is_empty() => *uses.entry(edge.key()).or_insert(0) += 1,
                Edge::Node(_) | Edge::Output(..) => pending.push(edge.clone()),
                _ => {}
            }
        }
    }
    uses
}

/// How many of a walk's gradients lie in the memory of one of them, if none overlaps another: a rule may make those of several
/// parameters in one piece, as layer norm does.
fn holders(arrived: &[(Arc<GradCell>, Tensor)], gradient: &Tensor) -> usize {
    if gradient.size() * gradient.dtype().size() == gradient.storage().nbytes() {
        return 1;
    }
    let together = || arrived.iter().map(|(_, other)| other.raw()).filter(|other| other.shares_storage(gradient.raw()));
    let mut parts: SmallVec<[(usize, usize); 4]> =
        together().map(|part| (part.layout().offset(), part.layout().end())).collect();
    parts.sort_unstable();
    let apart = parts.windows(2).all(|pair| pair[0].1 <= pair[1].0);
    if apart && together().all(|part| part.dtype() == gradient.dtype()) { parts.len() } else { 1 }
}
