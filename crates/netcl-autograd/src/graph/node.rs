//! Nodes and the rules they carry.

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netcl_core::observe::{self, Place};
use netcl_core::tensor::Tensor as Raw;
use smallvec::SmallVec;

use super::hook::Hooks;
use super::mode::{anomaly_enabled, grad_enabled};
use crate::error::{Error, Result};
use crate::tensor::{GradCell, Tensor};
use crate::trace;

/// Where a gradient flows to.
#[derive(Clone)]
pub enum Edge {
    /// The node that made the input.
    Node(Arc<Node>),
    /// One of the results of a node with several. Only the node that stands for that result alone has such an edge.
    Output(Arc<Node>, usize),
    /// A leaf that accumulates its gradient.
    Leaf(Arc<GradCell>),
    /// Nowhere, although there is something to flow to: the input came out of this op, which did not record.
    Unrecorded(&'static str),
    /// An input that needs no gradient.
    None,
}

impl Edge {
    /// Identifies the place that the edge leads to.
    pub(crate) fn key(&self) -> usize {
        match self {
            Edge::Node(node) | Edge::Output(node, _) => Arc::as_ptr(node) as usize,
            Edge::Leaf(cell) => Arc::as_ptr(cell) as usize,
            Edge::Unrecorded(_) | Edge::None => 0,
        }
    }

    /// The op that did not record.
    pub(crate) fn unrecorded(&self) -> Option<&'static str> {
        match self {
            Edge::Unrecorded(op) => Some(op),
            _ => None,
        }
    }

    /// Whether a gradient can flow along it.
    pub(crate) fn has_target(&self) -> bool {
        !matches!(self, Edge::Unrecorded(_) | Edge::None)
    }
}

/// The gradients of an op's inputs; `None` where there is none.
pub type Gradients = SmallVec<[Option<Tensor>; 3]>;

/// The gradients of an op's inputs from the gradient of its output, one per input.
///
/// Rules are written with recordable ops, so that a gradient can be differentiated again.
pub type Rule = Box<dyn Fn(&RuleContext<'_>, &Tensor) -> Result<Gradients> + Send + Sync>;

/// As [`Rule`], for a node with several results: one gradient for each, `None` where none has arrived.
pub(crate) type JointRule = Box<dyn Fn(&RuleContext<'_>, &[Option<Tensor>]) -> Result<Gradients> + Send + Sync>;

/// Either kind of rule.
enum AnyRule {
    One(Rule),
    Joint(JointRule),
}

/// What has arrived at a node.
#[derive(Clone, Copy)]
pub(super) enum Arrived<'t> {
    One(&'t Tensor),
    Joint(&'t [Option<Tensor>]),
}

/// Which values a rule wants to see again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Save {
    /// One bit per input; the last bit stands for all inputs from 31 on.
    pub inputs: u32,
    /// The output.
    pub output: bool,
}

impl Save {
    /// Nothing: shapes are enough.
    pub const NOTHING: Save = Save { inputs: 0, output: false };
    /// All inputs.
    pub const INPUTS: Save = Save { inputs: u32::MAX, output: false };
    /// The output.
    pub const OUTPUT: Save = Save { inputs: 0, output: true };
    /// All inputs and the output.
    pub const EVERYTHING: Save = Save { inputs: u32::MAX, output: true };

    fn keeps(self, input: usize) -> bool {
        self.inputs >> input.min(31) & 1 == 1
    }
}

/// One recorded op. Owned by its result; drops its whole history without recursion.
pub struct Node {
    op: &'static str,
    /// Later nodes have higher numbers, so the walk backwards needs no sorting.
    number: u64,
    place: &'static Location<'static>,
    /// Whose gradient it is; known where somebody asks.
    module: Option<Arc<Place>>,
    edges: SmallVec<[Edge; 3]>,
    state: Mutex<Option<Arc<State>>>,
    pub(crate) hooks: Hooks,
}

/// What a walk backwards uses up.
struct State {
    rule: AnyRule,
    inputs: SmallVec<[Option<Saved>; 3]>,
    output: Option<Saved>,
}

/// A raw value and the version it had: raw, so that saving never keeps a graph alive.
struct Saved {
    raw: Raw,
    version: u64,
}

impl Saved {
    fn new(raw: &Raw) -> Self {
        Saved { raw: raw.clone(), version: raw.version() }
    }
}

/// What a rule can ask for while it runs.
pub struct RuleContext<'n> {
    node: &'n Arc<Node>,
    state: &'n State,
    wanted: &'n [bool],
}

impl RuleContext<'_> {
    /// Whether the gradient of an input is wanted at all.
    pub fn wants(&self, input: usize) -> bool {
        self.wanted.get(input).copied().unwrap_or(false)
    }

    /// A gradient that is computed only if it is wanted.
    pub fn if_wanted(&self, input: usize, gradient: impl FnOnce() -> Result<Tensor>) -> Result<Option<Tensor>> {
        self.wants(input).then(gradient).transpose()
    }

    /// An input as it was; an error if it has been overwritten since.
    pub fn input(&self, at: usize) -> Result<Tensor> {
        let saved = self.state.inputs.get(at).and_then(Option::as_ref).ok_or_else(|| self.not_saved("input"))?;
        self.unpack(saved, "an input", self.node.edges[at].clone())
    }

    /// The output as it was; an error if it has been overwritten since.
    pub fn output(&self) -> Result<Tensor> {
        let saved = self.state.output.as_ref().ok_or_else(|| self.not_saved("output"))?;
        self.unpack(saved, "the output", Edge::Node(self.node.clone()))
    }

    fn unpack(&self, saved: &Saved, which: &'static str, edge: Edge) -> Result<Tensor> {
        if saved.raw.version() != saved.version {
            return Err(Error::Overwritten { op: self.node.op, which, place: self.node.place });
        }
        Ok(Tensor::with_edge(saved.raw.clone(), edge))
    }

    fn not_saved(&self, which: &str) -> Error {
        Error::Rule { op: self.node.op, what: format!("it asks for an {which} that was not saved") }
    }
}

impl Node {
    /// The op's name.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// Where the op was called.
    pub fn place(&self) -> &'static Location<'static> {
        self.place
    }

    /// Where gradients of the inputs flow to.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The gradients of the inputs for a gradient of the output, one per input; saved values stay.
    pub fn gradients(self: &Arc<Self>, upstream: &Tensor) -> Result<Gradients> {
        let wanted: SmallVec<[bool; 3]> = self.edges.iter().map(Edge::has_target).collect();
        self.run(Arrived::One(upstream), &wanted, true)
    }

    /// Runs the rule. Without `retain` the saved values are freed: a second walk is an error.
    pub(super) fn run(self: &Arc<Self>, arrived: Arrived<'_>, wanted: &[bool], retain: bool) -> Result<Gradients> {
        let state = if retain { self.lock().clone() } else { self.lock().take() };
        let Some(state) = state else { return Err(Error::Freed { op: self.op, place: self.place }) };
        let context = RuleContext { node: self, state: &state, wanted };
        let _module = observe::backward(self.module.as_ref());
        let gradients = match (&state.rule, arrived) {
            (AnyRule::One(rule), Arrived::One(gradient)) => rule(&context, gradient)?,
            (AnyRule::Joint(rule), Arrived::Joint(gradients)) => rule(&context, gradients)?,
            _ => {
                let what = "a node with several results takes a gradient for each of them, and no other node does";
                return Err(Error::Rule { op: self.op, what: what.to_owned() });
            }
        };
        if gradients.len() != self.edges.len() {
            let what = format!("it gave {} gradients for {} inputs", gradients.len(), self.edges.len());
            return Err(Error::Rule { op: self.op, what });
        }
        Ok(gradients)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<State>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A chain of a hundred thousand nodes would overflow the stack if each dropped the next.
        let mut pending = std::mem::take(&mut self.edges);
        while let Some(edge) = pending.pop() {
            if let Edge::Node(node) | Edge::Output(node, _) = edge
                && let Some(mut node) = Arc::into_inner(node)
            {
                pending.append(&mut node.edges);
            }
        }
    }
}

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// The number that the next node will have at least.
pub(crate) fn next_number() -> u64 {
    NUMBER.load(Ordering::Relaxed)
}

/// Makes the result of an op: with a node if this thread records and an input needs a gradient.
#[track_caller]
#[inline]
pub(crate) fn record(
    op: &'static str,
    inputs: &[&Tensor],
    output: Raw,
    save: Save,
    rule: impl FnOnce() -> Rule,
) -> Result<Tensor> {
    let place = Location::caller();
    trace::note(op, inputs.iter().map(|input| input.raw()), &[&output]);
    if anomaly_enabled() {
        check_finite(op, place, "forward", &output)?;
    }
    if !grad_enabled() {
        return Ok(output.into());
    }
    if !inputs.iter().any(|input| input.needs_grad()) {
        let edge = inputs.iter().find_map(|input| input.unrecorded()).map_or(Edge::None, Edge::Unrecorded);
        return Ok(Tensor::with_edge(output, edge));
    }
    let edges = inputs.iter().map(|input| input.edge()).collect();
    let saved = inputs.iter().enumerate().map(|(i, t)| save.keeps(i).then(|| Saved::new(t.raw()))).collect();
    let kept = save.output.then(|| Saved::new(&output));
    Ok(make(op, place, edges, State { rule: AnyRule::One(rule()), inputs: saved, output: kept }, output))
}

fn make(
    op: &'static str,
    place: &'static Location<'static>,
    edges: SmallVec<[Edge; 3]>,
    state: State,
    output: Raw,
) -> Tensor {
    super::mode::count_recorded();
    Tensor::with_edge(output, Edge::Node(new_node(op, place, edges, state)))
}

fn new_node(
    op: &'static str,
    place: &'static Location<'static>,
    edges: SmallVec<[Edge; 3]>,
    state: State,
) -> Arc<Node> {
    Arc::new(Node {
        op,
        number: NUMBER.fetch_add(1, Ordering::Relaxed),
        place,
        module: observe::module_place(),
        edges,
        state: Mutex::new(Some(Arc::new(state))),
        hooks: Hooks::default(),
    })
}

/// Records one op with several results, of which `outputs` says whether each has a gradient: one node with the rule, and for
/// each result a node that passes its gradient on to it, so that hooks and gradients of single results work as ever.
#[track_caller]
pub(crate) fn record_joint(
    op: &'static str,
    edges: SmallVec<[Edge; 3]>,
    outputs: Vec<(Raw, bool)>,
    rule: JointRule,
) -> Vec<Tensor> {
    let state = State { rule: AnyRule::Joint(rule), inputs: SmallVec::new(), output: None };
    joint(op, Location::caller(), edges, state, outputs)
}

/// As [`record`], for an op with several results, all of which have gradients. All inputs and the first result are saved.
#[track_caller]
pub(crate) fn record_several(
    op: &'static str,
    inputs: &[&Tensor],
    outputs: Vec<Raw>,
    rule: impl FnOnce() -> JointRule,
) -> Result<Vec<Tensor>> {
    let place = Location::caller();
    trace::note(op, inputs.iter().map(|input| input.raw()), &outputs.iter().collect::<SmallVec<[&Raw; 3]>>());
    if anomaly_enabled() {
        outputs.iter().try_for_each(|output| check_finite(op, place, "forward", output))?;
    }
    if !inputs.iter().any(|input| input.needs_grad()) || !grad_enabled() {
        let lost = if grad_enabled() { inputs.iter().find_map(|input| input.unrecorded()) } else { None };
        let edge = lost.map_or(Edge::None, Edge::Unrecorded);
        return Ok(outputs.into_iter().map(|output| Tensor::with_edge(output, edge.clone())).collect());
    }
    let edges = inputs.iter().map(|input| input.edge()).collect();
    let saved = inputs.iter().map(|input| Some(Saved::new(input.raw()))).collect();
    let state = State { rule: AnyRule::Joint(rule()), inputs: saved, output: outputs.first().map(Saved::new) };
    Ok(joint(op, place, edges, state, outputs.into_iter().map(|output| (output, true)).collect()))
}

/// A node with several results, and a node for each of them that has a gradient.
fn joint(
    op: &'static str,
    place: &'static Location<'static>,
    edges: SmallVec<[Edge; 3]>,
    state: State,
    outputs: Vec<(Raw, bool)>,
) -> Vec<Tensor> {
    super::mode::count_recorded();
    let joint = new_node(op, place, edges, state);
    let part = |(i, (raw, differentiable)): (usize, (Raw, bool))| {
        if !differentiable {
            return raw.into();
        }
        let pass: Rule = Box::new(|_, upstream| Ok(smallvec::smallvec![Some(upstream.clone())]));
        let edges = smallvec::smallvec![Edge::Output(joint.clone(), i)];
        let state = State { rule: AnyRule::One(pass), inputs: SmallVec::new(), output: None };
        Tensor::with_edge(raw, Edge::Node(new_node(op, place, edges, state)))
    };
    outputs.into_iter().enumerate().map(part).collect()
}

/// As [`record`], for an op whose gradients also flow to places other than its inputs; those come first.
#[track_caller]
pub(crate) fn record_edges(op: &'static str, inputs: &[&Tensor], others: &[Edge], output: Raw, rule: Rule) -> Tensor {
    let edges = inputs.iter().map(|input| input.edge()).chain(others.iter().cloned()).collect();
    let saved = inputs.iter().map(|input| Some(Saved::new(input.raw()))).collect();
    make(op, Location::caller(), edges, State { rule: AnyRule::One(rule), inputs: saved, output: None }, output)
}

/// Where the gradient of a result flows to whose values are no longer what its op made: to an error. A node of its own with an
/// edge to the op, so that every walk that would go on there meets it.
pub(crate) fn overwritten(node: &Arc<Node>) -> Edge {
    let (op, place) = (node.op, node.place);
    let rule: Rule = Box::new(move |_, _| Err(Error::ResultOverwritten { op, place }));
    let state = State { rule: AnyRule::One(rule), inputs: SmallVec::new(), output: None };
    Edge::Node(new_node(op, place, smallvec::smallvec![Edge::Node(node.clone())], state))
}

/// The result of an op that has no gradient: a walk that arrives there is an error that names the op. The second derivative of a
/// fused gradient kernel is such an op.
#[track_caller]
pub(crate) fn record_without_gradient(op: &'static str, inputs: &[&Tensor], output: Raw) -> Result<Tensor> {
    let place = Location::caller();
    record(op, inputs, output, Save::NOTHING, || Box::new(move |_, _| Err(Error::NotDifferentiable { op, place })))
}

/// What [`Tensor::unrecorded`] is of a result that an op made of these inputs without recording: `None` where no gradient is lost.
pub fn unrecorded<'t>(op: &'static str, inputs: impl IntoIterator<Item = &'t Tensor>) -> Option<&'static str> {
    if !grad_enabled() {
        return None;
    }
    inputs.into_iter().find_map(|input| if input.needs_grad() { Some(op) } else { input.unrecorded() })
}

pub(super) fn check_finite(
    op: &'static str,
    place: &'static Location<'static>,
    pass: &'static str,
    raw: &Raw,
) -> Result<()> {
    match raw.to_f64_vec()?.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(at) => Err(Error::Anomaly { op, pass, at, place }),
    }
}
