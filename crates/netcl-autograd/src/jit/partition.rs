//! What runs forward, what runs backward, and what is kept in between.
//!
//! The rule: a value that the backward pass needs is **computed again** if it is pointwise and what it is computed from is there
//! anyway (inputs, captured tensors, results, values that are kept for another reason), or needs no more memory than the value
//! itself. Everything else is kept, and so is what products and other kernels read, since it is in memory anyway. The result of a product or a convolution is not kept for the sake of one value behind it: that
//! value is kept instead, so that computing it can be a part of the product. A chain of pointwise operations on inputs therefore keeps nothing at all, and the backward
//! pass of a softmax keeps the row sums instead of the exponentials.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use netcl_core::kernels::expr::Expr;
use netcl_core::storage::Storage;

use super::facts::{Facts, Listing, same_view};
use super::trace::{Composite, Kind, Op, Planned, StorageId, id};

/// Operations per element that may be spent on one value that is computed again.
const MAX_AGAIN: usize = 128;

/// A trace cut in two.
pub(super) struct Cut {
    pub(super) forward: Listing,
    /// Operations of the backward pass, with those of the forward pass that are done again.
    pub(super) backward: Vec<Op>,
    /// Memory that the forward pass leaves behind for the backward pass.
    pub(super) saved: Vec<Arc<Storage>>,
}

/// The operations that somebody needs: they make a target, or write memory that others see.
pub(super) fn needed(ops: &[Op], targets: &HashSet<StorageId>, own: &HashSet<StorageId>) -> Vec<bool> {
    let mut wanted = targets.clone();
    let mut live = vec![false; ops.len()];
    for (i, op) in ops.iter().enumerate().rev() {
        let writes = op.writes();
        if writes.iter().any(|storage| wanted.contains(storage) || !own.contains(storage)) {
            live[i] = true;
            wanted.extend(op.reads());
        }
    }
    live
}

fn pick(ops: &[Op], live: &[bool]) -> Vec<Op> {
    ops.iter().zip(live).filter(|(_, live)| **live).map(|(op, _)| op.clone()).collect()
}

/// Cuts a trace after `mark` operations. `outputs` is memory of results, `gradients` of what the backward pass gives.
pub(super) fn cut(
    ops: &[Op],
    mark: usize,
    planned: &HashMap<StorageId, Planned>,
    outputs: &HashSet<StorageId>,
    gradients: &HashSet<StorageId>,
    composites: &Arc<Vec<Composite>>,
) -> Cut {
    let own: HashSet<StorageId> = planned.keys().copied().collect();
    let (first, second) = ops.split_at(mark);
    let mut backward = pick(second, &needed(second, gradients, &own));
    mask_by_results(first, &mut backward);
    let made: HashSet<StorageId> = first.iter().flat_map(Op::writes).collect();
    // In the order of the trace, so that what is kept early is there for what comes later.
    let asked: HashSet<StorageId> = backward.iter().flat_map(Op::reads).chain(gradients.iter().copied()).collect();
    let mut order: Vec<StorageId> = Vec::new();
    for storage in first.iter().flat_map(Op::writes) {
        if asked.contains(&storage) && made.contains(&storage) && own.contains(&storage) && !order.contains(&storage) {
            order.push(storage);
        }
    }
    let whole = Listing { ops: first.to_vec(), own: own.clone(), kept: HashSet::new(), composites: composites.clone() };
    let choice = Choice::new(&whole, planned, outputs, &asked).choose(&order);
    let mut targets = outputs.clone();
    targets.extend(choice.saved.iter().copied());
    let forward = pick(first, &needed(first, &targets, &own));
    let again = first.iter().enumerate().filter(|(i, _)| choice.again.contains(i)).map(|(_, op)| op.clone());
    Cut {
        forward: Listing {
            ops: forward,
            kept: targets.intersection(&own).copied().collect(),
            own,
            composites: composites.clone(),
        },
        backward: again.chain(backward).collect(),
        saved: choice.saved.iter().filter_map(|storage| Some(planned.get(storage)?.storage.clone())).collect(),
    }
}

/// The backward pass of relu asks whether its input was positive, which its result knows as well: where nobody else needs the
/// input, it need not be kept, and relu can be a part of what made it.
fn mask_by_results(forward: &[Op], backward: &mut [Op]) {
    let is_mask = |op: &Op| op.name == "relu_backward" && op.inputs.len() == 2 && matches!(op.kind, Kind::Map { .. });
    for i in 0..backward.len() {
        let Some(input) = backward[i].inputs.first().filter(|_| is_mask(&backward[i])) else { continue };
        let elsewhere = backward
            .iter()
            .enumerate()
            .any(|(j, op)| op.reads().iter().enumerate().any(|(k, &s)| s == id(input.storage()) && (j, k) != (i, 0)));
        let made = forward.iter().find(|op| {
            op.name == "relu"
                && matches!(op.kind, Kind::Map { .. })
                && op.inputs.len() == 1
                && same_view(&op.inputs[0], input)
        });
        if let Some(relu) = made.filter(|_| !elsewhere) {
            backward[i].inputs[0] = relu.outputs[0].clone();
        }
    }
}

struct Choice<'l> {
    ops: &'l [Op],
    /// Which pointwise operation makes a storage.
    maps: HashMap<StorageId, usize>,
    planned: &'l HashMap<StorageId, Planned>,
    outputs: &'l HashSet<StorageId>,
    /// What the backward pass reads.
    asked: &'l HashSet<StorageId>,
    /// What products and convolutions make.
    heavy: HashSet<StorageId>,
    /// What operations with kernels of their own read: it is in memory anyway.
    written: HashSet<StorageId>,
    saved: Vec<StorageId>,
    again: HashSet<usize>,
}

impl<'l> Choice<'l> {
    fn new(
        listing: &'l Listing,
        planned: &'l HashMap<StorageId, Planned>,
        outputs: &'l HashSet<StorageId>,
        asked: &'l HashSet<StorageId>,
    ) -> Choice<'l> {
        let facts = Facts::new(listing);
        let mut maps = HashMap::new();
        for (i, op) in listing.ops.iter().enumerate() {
            if matches!(op.kind, Kind::Map { .. }) && !facts.is_pinned(op) {
                maps.extend(op.writes().into_iter().map(|storage| (storage, i)));
            }
        }
        let heavy = listing.ops.iter().filter(|op| matches!(op.kind, Kind::Fusable(_))).flat_map(Op::writes).collect();
        let own_kernel = |op: &&Op| matches!(op.kind, Kind::Fusable(_) | Kind::Opaque(_));
        let written = listing.ops.iter().filter(own_kernel).flat_map(Op::reads).collect();
        let (saved, again) = (Vec::new(), HashSet::new());
        Choice { ops: &listing.ops, maps, planned, outputs, asked, heavy, written, saved, again }
    }

    fn choose(mut self, order: &[StorageId]) -> Self {
        for &storage in order {
            match self.recipe(storage) {
                Some((ops, leaves)) => {
                    self.again.extend(ops);
                    self.saved.extend(leaves);
                }
                None => self.save(storage),
            }
        }
        // What is kept after all is not made again.
        let (ops, saved) = (self.ops, &self.saved);
        self.again.retain(|&op| ops[op].writes().iter().any(|storage| !saved.contains(storage)));
        self
    }

    fn save(&mut self, storage: StorageId) {
        if !self.saved.contains(&storage) {
            self.saved.push(storage);
        }
    }

    fn bytes(&self, storage: StorageId) -> usize {
        self.planned.get(&storage).map_or(0, |planned| planned.storage.nbytes())
    }

    /// The operations that make a value again, and what must be kept for them; `None` if keeping the value is better.
    fn recipe(&self, storage: StorageId) -> Option<(Vec<usize>, Vec<StorageId>)> {
        if [self.outputs, &self.written].iter().any(|set| set.contains(&storage)) || self.saved.contains(&storage) {
            return None;
        }
        let (mut ops, mut leaves, mut flops) = (Vec::new(), Vec::new(), 0);
        let mut pending = vec![*self.maps.get(&storage)?];
        while let Some(at) = pending.pop() {
            if ops.contains(&at) {
                continue;
            }
            ops.push(at);
            let op = &self.ops[at];
            if let Kind::Map { expr, .. } = &op.kind {
                flops += Expr::flops(expr);
            }
            if flops > MAX_AGAIN {
                return None;
            }
            for input in &op.inputs {
                let read = id(input.storage());
                let free = !self.planned.contains_key(&read) || self.saved.contains(&read);
                match self.maps.get(&read) {
                    _ if free => {}
                    Some(&made) if !self.outputs.contains(&read) => pending.push(made),
                    _ if !leaves.contains(&read) => leaves.push(read),
                    _ => {}
                }
            }
        }
        // Results live on anyway, and what is asked for is kept unless it can be made again: keeping those costs nothing.
        let free = |leaf: &StorageId| {
            self.outputs.contains(leaf) || (self.asked.contains(leaf) && !self.maps.contains_key(leaf))
        };
        let more: Vec<StorageId> = leaves.iter().filter(|leaf| !free(leaf)).copied().collect();
        let bytes: usize = more.iter().map(|&leaf| self.bytes(leaf)).sum();
        let behind_a_product = more.iter().any(|leaf| self.heavy.contains(leaf));
        (bytes <= self.bytes(storage) && !behind_a_product).then_some((ops, leaves))
    }
}
