//! Which operations become one kernel.
//!
//! Operations over the same elements join in one kernel with several results: what is computed once is computed once, and only
//! what somebody else reads is written. Three things keep operations apart: memory that is written in place, a cycle (a kernel
//! would have to run before and after another one), and the limits of a kernel ([`MAX_NODES`], the device's parameters).

use std::collections::{HashMap, HashSet};

use netcl_core::backend::Queue;
use netcl_core::kernels::expr::Expr;
use netcl_core::shape::{Layout, Shape};
use netcl_core::tensor::Tensor as Raw;

use super::facts::{Facts, Listing, is_whole, same_view};
use super::merge::inlined;
use super::trace::{Kind, Op, StorageId, id};
use super::views::remap;

/// Operations of one kernel: beyond, compilers take long and registers spill.
const MAX_NODES: usize = 320;
/// Tensors of one kernel, even where a device would take more.
const MAX_OPERANDS: usize = 96;
/// What is computed again in every reader that sees it through other axes has at most so many operations.
const MAX_INLINED: usize = 16;

/// What one kernel goes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// Every element of a shape.
    Elements(Shape),
    /// Rows, and for each row its elements: the last `trailing` axes.
    Rows { shape: Shape, trailing: usize },
    /// An operation with a kernel of its own.
    Alone,
}

pub(super) struct Group {
    /// In the order of the list.
    pub(super) ops: Vec<usize>,
    pub(super) space: Space,
}

/// How a reader sees a value of its own kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// Element by element.
    Same,
    /// One value for all elements of the row.
    OfRow,
    /// In a way that would need the whole value first.
    Otherwise,
}

/// The groups of a list, in the order of their first operations; operations that see values through other axes are rewritten.
pub(super) fn groups(listing: &mut Listing) -> Vec<Group> {
    look_through_views(listing);
    let facts = Facts::new(listing);
    let mut grouping = Grouping::new(listing, &facts);
    for op in 0..listing.ops.len() {
        grouping.join_producers(op);
    }
    grouping.join_siblings();
    grouping.groups.into_iter().flatten().collect()
}

fn expr(op: &Op) -> Option<&Expr> {
    match &op.kind {
        Kind::Map { expr, .. } => Some(expr),
        _ => None,
    }
}

/// A reader that sees a cheap value through other axes (broadcast, permuted, reshaped) computes it itself.
fn look_through_views(listing: &mut Listing) {
    // Rewriting changes what an operation reads, never what it makes: these facts stay true of producers.
    let facts = Facts::new(listing);
    let mut tainted: HashSet<StorageId> = HashSet::new();
    for i in 0..listing.ops.len() {
        loop {
            let op = &listing.ops[i];
            if expr(op).is_none() || facts.is_pinned(op) {
                break;
            }
            let Some((input, producer, seen)) = candidate(listing, &facts, op, &tainted) else { break };
            let replaced = inlined(op, input, &listing.ops[producer], seen);
            listing.ops[i] = replaced;
        }
        let op = &listing.ops[i];
        let reduced =
            !matches!(op.kind, Kind::Map { .. }) || op.reads().iter().any(|storage| tainted.contains(storage));
        if reduced {
            tainted.extend(op.writes());
        }
    }
}

/// An input of an operation that can be looked through, with what its producer reads as the operation sees it.
fn candidate(
    listing: &Listing,
    facts: &Facts,
    op: &Op,
    tainted: &HashSet<StorageId>,
) -> Option<(usize, usize, Vec<Raw>)> {
    op.inputs.iter().enumerate().find_map(|(k, input)| {
        let producer = facts.producer(&listing.ops, input)?;
        let made = &listing.ops[producer];
        let expr = expr(made)?;
        let [result] = made.outputs.as_slice() else { return None };
        let storage = id(input.storage());
        let constant = made.inputs.is_empty();
        // A value after a reduction is one per row: reading it costs less than computing it for every element.
        let cheap = expr.flops() <= MAX_INLINED && op.inputs.len() + made.inputs.len() <= 12;
        let elsewhere = listing.kept.contains(&storage)
            || facts.readers(storage).iter().any(|&(reader, _)| !matches!(listing.ops[reader].kind, Kind::Map { .. }));
        let useful = constant || (!same_view(result, input) && !tainted.contains(&storage) && !elsewhere);
        if !cheap || !useful {
            return None;
        }
        let seen = made
            .inputs
            .iter()
            .map(|own| own.with_layout(remap(result.layout(), input.layout(), own.layout())?).ok())
            .collect::<Option<Vec<Raw>>>()?;
        Some((k, producer, seen))
    })
}

struct Grouping<'l> {
    listing: &'l Listing,
    facts: &'l Facts,
    group_of: Vec<usize>,
    groups: Vec<Option<Group>>,
    /// For each operation those that must come after it.
    after: Vec<Vec<usize>>,
}

impl<'l> Grouping<'l> {
    fn new(listing: &'l Listing, facts: &'l Facts) -> Self {
        let mut after = vec![Vec::new(); listing.ops.len()];
        for (i, before) in facts.before.iter().enumerate() {
            before.iter().for_each(|&other| after[other].push(i));
        }
        let space = |op: &Op| match &op.kind {
            _ if facts.is_pinned(op) => Space::Alone,
            Kind::Map { .. } => Space::Elements(op.outputs[0].shape().clone()),
            Kind::Reduce { reduced, .. } => rows(op, reduced).unwrap_or(Space::Alone),
            Kind::Fusable(_) | Kind::Opaque(_) => Space::Alone,
        };
        let groups =
            listing.ops.iter().enumerate().map(|(i, op)| Some(Group { ops: vec![i], space: space(op) })).collect();
        Grouping { listing, facts, group_of: (0..listing.ops.len()).collect(), groups, after }
    }

    fn join_producers(&mut self, op: usize) {
        for input in &self.listing.ops[op].inputs {
            if let Some(producer) = self.facts.producer(&self.listing.ops, input) {
                self.join(self.group_of[producer], self.group_of[op]);
            }
        }
    }

    /// Kernels that read the same memory and go through the same elements become one.
    fn join_siblings(&mut self) {
        let mut seen: HashMap<StorageId, Vec<usize>> = HashMap::new();
        for op in 0..self.listing.ops.len() {
            if self.groups[self.group_of[op]].as_ref().is_none_or(|group| group.space == Space::Alone) {
                continue;
            }
            for input in &self.listing.ops[op].inputs {
                let heavy = self.facts.producer(&self.listing.ops, input).map(|p| &self.listing.ops[p].kind);
                // The reader of a product becomes its epilogue, which has one result.
                if matches!(heavy, Some(Kind::Fusable(_))) {
                    continue;
                }
                let readers = seen.entry(id(input.storage())).or_default();
                let known: Vec<usize> = readers.clone();
                readers.push(op);
                for other in known {
                    self.join(self.group_of[other], self.group_of[op]);
                }
            }
        }
    }

    /// Makes two groups one where that is allowed.
    fn join(&mut self, a: usize, b: usize) {
        if a == b {
            return;
        }
        let (Some(first), Some(second)) = (&self.groups[a], &self.groups[b]) else { return };
        let Some(space) = common_space(&first.space, &second.space) else { return };
        let mut ops: Vec<usize> = first.ops.iter().chain(&second.ops).copied().collect();
        ops.sort_unstable();
        if !self.is_consistent(&ops, &space) || !self.fits(&ops, &space) || self.makes_cycle(a, b) {
            return;
        }
        ops.iter().for_each(|&op| self.group_of[op] = a);
        self.groups[a] = Some(Group { ops, space });
        self.groups[b] = None;
    }

    /// Whether every value that is read inside the kernel is seen in a way that a kernel can.
    fn is_consistent(&self, ops: &[usize], space: &Space) -> bool {
        let members: HashSet<usize> = ops.iter().copied().collect();
        ops.iter().all(|&op| {
            let reader = &self.listing.ops[op];
            reader.inputs.iter().all(|input| {
                let Some(producer) = self.facts.producer(&self.listing.ops, input).filter(|p| members.contains(p))
                else {
                    return true;
                };
                seen(space, &self.listing.ops[producer], reader, input) != Seen::Otherwise
            })
        })
    }

    /// The cut rules: operations and parameters of one kernel.
    fn fits(&self, ops: &[usize], space: &Space) -> bool {
        let members: Vec<&Op> = ops.iter().map(|&op| &self.listing.ops[op]).collect();
        let nodes: usize = members.iter().map(|op| expr(op).map_or(1, Expr::flops)).sum();
        if nodes > MAX_NODES {
            return false;
        }
        let made: HashSet<StorageId> = members.iter().flat_map(|op| op.writes()).collect();
        let mut operands: Vec<&Raw> = Vec::new();
        for input in members.iter().flat_map(|op| &op.inputs).filter(|t| !made.contains(&id(t.storage()))) {
            if !operands.iter().any(|other| same_view(other, input)) {
                operands.push(input);
            }
        }
        let inside: HashSet<usize> = ops.iter().copied().collect();
        let leaves = |out: &&Raw| {
            let storage = id(out.storage());
            self.listing.kept.contains(&storage)
                || self.facts.readers(storage).iter().any(|(reader, _)| !inside.contains(reader))
        };
        let outputs: Vec<&Raw> = members.iter().flat_map(|op| &op.outputs).filter(leaves).collect();
        operands.extend(outputs);
        let scalars: usize =
            members.iter().map(|op| if let Kind::Map { scalars, .. } = &op.kind { scalars.len() } else { 0 }).sum();
        operands.len() <= MAX_OPERANDS && parameter_bytes(&operands, scalars, space) <= parameter_limit(&operands)
    }

    /// Whether some other group would have to run between the two.
    fn makes_cycle(&self, a: usize, b: usize) -> bool {
        let reaches = |from: usize, to: usize| {
            let mut seen: HashSet<usize> = HashSet::new();
            let mut pending: Vec<(usize, bool)> = vec![(from, true)];
            while let Some((group, direct)) = pending.pop() {
                let Some(members) = &self.groups[group] else { continue };
                for &next in members.ops.iter().flat_map(|&op| &self.after[op]) {
                    let next = self.group_of[next];
                    if next == to && !direct {
                        return true;
                    }
                    if next != to && next != from && seen.insert(next) {
                        pending.push((next, false));
                    }
                }
            }
            false
        };
        reaches(a, b) || reaches(b, a)
    }
}

/// The space of a reduction over trailing axes, where rows are a good way to compute it.
fn rows(op: &Op, reduced: &[bool]) -> Option<Space> {
    let trailing = reduced.iter().rev().take_while(|reduced| **reduced).count();
    let only = reduced.iter().filter(|reduced| **reduced).count() == trailing;
    let shape = op.inputs[0].shape().clone();
    let row: usize = shape[shape.ndim() - trailing..].iter().product();
    let many = shape.size() / row.max(1) >= super::region::MIN_ROWS || row <= super::region::MAX_LONE_ROW;
    (only && many).then_some(Space::Rows { shape, trailing })
}

/// The shape of one value per row.
pub(super) fn row_shape(shape: &Shape, trailing: usize) -> Shape {
    shape[..shape.ndim() - trailing].into()
}

fn common_space(a: &Space, b: &Space) -> Option<Space> {
    match (a, b) {
        (Space::Alone, _) | (_, Space::Alone) => None,
        (a, b) if a == b => Some(a.clone()),
        (Space::Rows { shape, trailing }, Space::Elements(other))
        | (Space::Elements(other), Space::Rows { shape, trailing }) => {
            let fits = other == shape || *other == row_shape(shape, *trailing);
            fits.then(|| Space::Rows { shape: shape.clone(), trailing: *trailing })
        }
        _ => None,
    }
}

/// How an operation sees a value that another one of the same kernel makes.
fn seen(space: &Space, producer: &Op, reader: &Op, input: &Raw) -> Seen {
    let Some(made) = producer.outputs.iter().find(|out| out.shares_storage(input)) else { return Seen::Otherwise };
    if same_view(made, input) {
        return Seen::Same;
    }
    let Space::Rows { shape, trailing } = space else { return Seen::Otherwise };
    let kept = shape.ndim() - trailing;
    let full = matches!(reader.kind, Kind::Map { .. }) && input.shape() == shape;
    let of_row = full
        && made.shape() == &row_shape(shape, *trailing)
        && is_whole(made)
        && input.layout().offset() == 0
        && input.layout().strides()[..kept] == *made.layout().strides()
        && input.layout().strides()[kept..].iter().all(|&stride| stride == 0);
    if of_row { Seen::OfRow } else { Seen::Otherwise }
}

/// What the parameters of a kernel take, as the code generators lay them out.
fn parameter_bytes(operands: &[&Raw], scalars: usize, space: &Space) -> usize {
    let each = match space {
        Space::Rows { .. } => 8 * 5,
        _ => {
            let layouts: Vec<&Layout> = operands.iter().map(|t| t.layout()).collect();
            let (shape, strides) = Layout::collapse(&layouts);
            let runs = shape.ndim() <= 1 && strides.iter().all(|s| matches!(s.first(), None | Some(0 | 1)));
            if runs { 8 * 2 } else { 8 * (2 + shape.ndim()) }
        }
    };
    operands.len() * each + 8 * scalars + 64
}

fn parameter_limit(operands: &[&Raw]) -> usize {
    match operands.first().map(|t| t.queue()) {
        Some(Queue::OpenCl(stream)) => stream.device().info().max_parameter_size,
        _ => usize::MAX,
    }
}
