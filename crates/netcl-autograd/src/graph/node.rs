//! Nodes and the rules they carry.

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use netcl_core::tensor::Tensor as Raw;
use smallvec::SmallVec;

use super::mode::{anomaly_enabled, grad_enabled};
use crate::error::{Error, Result};
use crate::tensor::{GradCell, Tensor};

/// Where a gradient flows to.
#[derive(Clone)]
pub enum Edge {
    /// The node that made the input.
    Node(Arc<Node>),
    /// A leaf that accumulates its gradient.
    Leaf(Arc<GradCell>),
    /// An input that needs no gradient.
    None,
}

/// The gradients of an op's inputs from the gradient of its output, one per input; `None` where there is none.
///
/// Rules are written with recordable ops, so that a gradient can be differentiated again.
pub type Rule = Box<dyn Fn(&RuleContext<'_>, &Tensor) -> Result<SmallVec<[Option<Tensor>; 3]>> + Send + Sync>;

/// Which values a rule wants to see again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Save {
    /// One bit per input.
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
}

/// One recorded op. Owned by its result; drops its whole history without recursion.
pub struct Node {
    op: &'static str,
    /// Later nodes have higher numbers, so the walk backwards needs no sorting.
    number: u64,
    place: &'static Location<'static>,
    edges: Vec<Edge>,
    state: Mutex<Option<State>>,
}

/// What a walk backwards uses up.
struct State {
    rule: Rule,
    inputs: SmallVec<[Option<Saved>; 2]>,
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
        Error::Rule { op: self.node.op, what: format!("its rule asks for an {which} that was not saved") }
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

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Runs the rule. Without `retain` the saved values are freed: a second walk is an error.
    pub(super) fn run(
        self: &Arc<Self>,
        gradient: &Tensor,
        wanted: &[bool],
        retain: bool,
    ) -> Result<SmallVec<[Option<Tensor>; 3]>> {
        let taken = self.lock().take();
        let Some(state) = taken else { return Err(Error::Freed { op: self.op, place: self.place }) };
        let result = (state.rule)(&RuleContext { node: self, state: &state, wanted }, gradient);
        if retain {
            *self.lock() = Some(state);
        }
        result
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A chain of a hundred thousand nodes would overflow the stack if each dropped the next.
        let mut pending = std::mem::take(&mut self.edges);
        while let Some(edge) = pending.pop() {
            if let Edge::Node(node) = edge
                && let Some(mut node) = Arc::into_inner(node)
            {
                pending.append(&mut node.edges);
            }
        }
    }
}

/// Makes the result of an op: with a node if this thread records and an input needs a gradient.
#[track_caller]
pub(crate) fn record(op: &'static str, inputs: &[&Tensor], output: Raw, save: Save, rule: impl FnOnce() -> Rule) -> Result<Tensor> {
    let place = Location::caller();
    if anomaly_enabled() {
        check_finite(op, place, "forward", &output)?;
    }
    if !grad_enabled() || !inputs.iter().any(|input| input.needs_grad()) {
        return Ok(output.into());
    }
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let keep = |i: usize| save.inputs >> i.min(31) & 1 == 1;
    let node = Arc::new(Node {
        op,
        number: NUMBER.fetch_add(1, Ordering::Relaxed),
        place,
        edges: inputs.iter().map(|input| input.edge()).collect(),
        state: Mutex::new(Some(State {
            rule: rule(),
            inputs: inputs.iter().enumerate().map(|(i, t)| keep(i).then(|| Saved::new(t.raw()))).collect(),
            output: save.output.then(|| Saved::new(&output)),
        })),
    });
    Ok(Tensor::with_edge(output, Edge::Node(node)))
}

pub(super) fn check_finite(op: &'static str, place: &'static Location<'static>, pass: &'static str, raw: &Raw) -> Result<()> {
    match raw.to_f64_vec()?.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(at) => Err(Error::Anomaly { op, pass, at, place }),
    }
}
