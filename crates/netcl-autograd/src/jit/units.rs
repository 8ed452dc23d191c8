//! From groups to units: one kernel each, with what a reduction or a product takes in before and behind it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use netcl_core::kernels::described::{CanFuse, Combine, Fusable, Prologue};
use netcl_core::kernels::launch::{Access, Arg, Launch, Scalar};
use netcl_core::shape::Layout;
use netcl_core::tensor::Tensor as Raw;

use super::facts::{Facts, Listing, is_whole, same_view};
use super::group::{Group, Space, groups, row_shape};
use super::merge::{Fused, fuse};
use super::trace::{Kind, Op, StorageId, id};
use super::views::remap;

/// What a product or a reduction takes in behind it: beyond this, the parameters and registers of its own kernel suffer.
const MAX_EPILOGUE_INPUTS: usize = 5;
const MAX_EPILOGUE_NODES: usize = 64;
/// Operations of an operand that a product computes while it reads it.
const MAX_PROLOGUE_NODES: usize = 32;
/// Tensors that a reduction reads through its prologue.
const MAX_PROLOGUE_INPUTS: usize = 8;

const RANDOM: &str = "a kernel of its own; its random numbers are new in every call, those that op by op would draw";

/// One kernel (or one operation with kernels of its own).
pub(super) struct Unit {
    /// The operations in it, in the order of the list.
    pub(super) ops: Vec<usize>,
    pub(super) work: Work,
    /// Whether it writes in place, or reads what is written in place: its results go exactly where they are said to go.
    pub(super) pinned: bool,
    /// Why it is not larger, where there is something to say.
    pub(super) note: &'static str,
}

pub(super) enum Work {
    Map {
        fused: Fused,
        outputs: Vec<Raw>,
    },
    Rows(Rows),
    Reduce(ReduceWork),
    Fusable {
        heavy: Arc<dyn Fusable>,
        inputs: Vec<Raw>,
        out: Raw,
        /// An input that is computed while it is read; the expression's first input stands in its place.
        prologue: Option<(usize, Fused)>,
        epilogue: Option<(Fused, Raw)>,
    },
    Opaque(Box<Launch>),
}

/// Maps and reductions over rows.
pub(super) struct Rows {
    pub(super) shape: netcl_core::shape::Shape,
    pub(super) trailing: usize,
    pub(super) ops: Vec<Op>,
    pub(super) outputs: Vec<Raw>,
}

/// A reduction with an expression before and behind it.
pub(super) struct ReduceWork {
    pub(super) name: &'static str,
    pub(super) combine: Combine,
    pub(super) reduced: Vec<bool>,
    /// The prologue's inputs, or the only input.
    pub(super) inputs: Vec<Raw>,
    pub(super) prologue: Option<Fused>,
    /// Input 0 is the combined value.
    pub(super) epilogue: Option<Fused>,
    pub(super) out: Raw,
}

impl Unit {
    pub(super) fn reads(&self) -> Vec<StorageId> {
        let ids = |tensors: &[Raw]| tensors.iter().map(|t| id(t.storage())).collect::<Vec<_>>();
        match &self.work {
            Work::Map { fused, .. } => ids(&fused.inputs),
            Work::Rows(rows) => rows.ops.iter().flat_map(Op::reads).collect(),
            Work::Reduce(reduce) => {
                let mut all = ids(&reduce.inputs);
                all.extend(reduce.epilogue.iter().flat_map(|fused| ids(&fused.inputs[1..])));
                all
            }
            Work::Fusable { inputs, prologue, epilogue, .. } => {
                let mut all = ids(inputs);
                all.extend(prologue.iter().flat_map(|(_, fused)| ids(&fused.inputs[1..])));
                all.extend(epilogue.iter().flat_map(|(fused, _)| ids(&fused.inputs[1..])));
                all
            }
            Work::Opaque(launch) => touched(launch, Access::Read),
        }
    }

    pub(super) fn writes(&self) -> Vec<StorageId> {
        match &self.work {
            Work::Map { outputs, .. } => outputs.iter().map(|t| id(t.storage())).collect(),
            Work::Rows(rows) => rows.outputs.iter().map(|t| id(t.storage())).collect(),
            Work::Reduce(reduce) => vec![id(reduce.out.storage())],
            Work::Fusable { out, epilogue, .. } => {
                vec![id(epilogue.as_ref().map_or(out, |(_, result)| result).storage())]
            }
            Work::Opaque(launch) => touched(launch, Access::Write),
        }
    }
}

/// The memory that a launch writes, or all it touches: what it writes it may have read before.
pub(super) fn touched(launch: &Launch, wanted: Access) -> Vec<StorageId> {
    let buffers = launch.args.iter().filter_map(|arg| match arg {
        Arg::Buffer(storage, access) if wanted == Access::Read || *access == wanted => Some(id(storage)),
        _ => None,
    });
    buffers.collect()
}

/// The units of a list, in an order in which they can run, and the list as it was rewritten.
pub(super) fn units(mut listing: Listing) -> (Vec<Unit>, Listing) {
    let groups = groups(&mut listing);
    let facts = Facts::new(&listing);
    let mut group_of = vec![None; listing.ops.len()];
    for (at, group) in groups.iter().enumerate() {
        group.ops.iter().for_each(|&op| group_of[op] = Some(at));
    }
    let units = Planner { listing: &listing, facts: &facts, groups: &groups, group_of }.units();
    (in_order(units, &listing), listing)
}

/// What operations with kernels of their own compute before they begin.
struct Prologues {
    /// By operation and input.
    fused: HashMap<(usize, usize), Fused>,
    /// Why an operand of a product is in memory, though its values could have been computed.
    apart: HashMap<usize, &'static str>,
}

/// A value's expression for somebody who sees it through other axes.
fn seen_by(read: &Raw, made: &Raw, fused: &Fused) -> Option<Fused> {
    let inputs = fused
        .inputs
        .iter()
        .map(|own| own.with_layout(remap(made.layout(), read.layout(), own.layout())?).ok())
        .collect::<Option<Vec<Raw>>>()?;
    Some(Fused { inputs, ..fused.clone() })
}

struct Planner<'l> {
    listing: &'l Listing,
    facts: &'l Facts,
    groups: &'l [Group],
    /// The group of each operation.
    group_of: Vec<Option<usize>>,
}

impl Planner<'_> {
    fn members(&self, group: &Group) -> Vec<&Op> {
        group.ops.iter().map(|&op| &self.listing.ops[op]).collect()
    }

    fn group_of(&self, op: usize) -> Option<&Group> {
        self.group_of[op].map(|at| &self.groups[at])
    }

    fn units(&self) -> Vec<Unit> {
        let mut prologues = Prologues { fused: self.prologues(), apart: HashMap::new() };
        self.prologue(&mut prologues);
        let mut units: Vec<Unit> = Vec::new();
        for group in self.groups {
            let outputs = self.needed(group, &prologues);
            if let Some(unit) = self.unit(group, outputs, &prologues) {
                units.push(unit);
            }
        }
        self.absorb_readers(&mut units);
        units
    }

    /// The results of a group that somebody outside reads, prologues that compute them again not counted.
    fn needed(&self, group: &Group, prologues: &Prologues) -> Vec<Raw> {
        let outside = |out: &&Raw| {
            let storage = id(out.storage());
            self.listing.kept.contains(&storage)
                || self
                    .facts
                    .readers(storage)
                    .iter()
                    .any(|place| group.ops.binary_search(&place.0).is_err() && !prologues.fused.contains_key(place))
        };
        self.members(group).into_iter().flat_map(|op| &op.outputs).filter(outside).cloned().collect()
    }

    /// What reductions with kernels of their own compute before they combine: values that only such reductions read are never
    /// written, every reduction computes them itself.
    fn prologues(&self) -> HashMap<(usize, usize), Fused> {
        let mut found = HashMap::new();
        for (i, op) in self.listing.ops.iter().enumerate() {
            if !self.is_lone_reduction(i) || found.contains_key(&(i, 0)) {
                continue;
            }
            let value = &op.inputs[0];
            let storage = id(value.storage());
            if self.listing.kept.contains(&storage) {
                continue;
            }
            let Some(producer) = self.facts.producer(&self.listing.ops, value) else { continue };
            let readers: Vec<usize> = self.facts.readers(storage).iter().map(|(reader, _)| *reader).collect();
            let group = self.group_of(producer).filter(|group| matches!(group.space, Space::Elements(_)));
            let Some(group) = group.filter(|_| readers.iter().all(|&r| self.is_lone_reduction(r))) else { continue };
            let made = &self.listing.ops[producer].outputs[0];
            let fused = fuse(&self.members(group), std::slice::from_ref(made), &[]);
            if !(1..=MAX_PROLOGUE_INPUTS).contains(&fused.inputs.len()) || !all_float(&fused.inputs) {
                continue;
            }
            let each: Option<Vec<Fused>> =
                readers.iter().map(|&reader| seen_by(&self.listing.ops[reader].inputs[0], made, &fused)).collect();
            found.extend(readers.into_iter().map(|reader| (reader, 0)).zip(each.into_iter().flatten()));
        }
        found
    }

    /// What products compute while they read an operand: a value that nobody else reads, where the engine copies the operand
    /// anyway. What can be a part of the product before it is that instead.
    fn prologue(&self, prologues: &mut Prologues) {
        for (i, op) in self.listing.ops.iter().enumerate() {
            let Kind::Fusable(heavy) = &op.kind else { continue };
            for (k, value) in op.inputs.iter().enumerate() {
                let Some(fused) = self.leading(value, (i, k)) else { continue };
                let mut inputs = op.inputs.clone();
                inputs[k] = fused.inputs[0].clone();
                let Fused { expr, inputs: all, scalars } = &fused;
                let prologue = Prologue { operand: k, expr, inputs: all[1..].to_vec(), scalars: scalars.clone() };
                match heavy.can_fuse(&prologue, &inputs, &op.outputs[0]) {
                    Ok(CanFuse::Yes) => {
                        prologues.fused.insert((i, k), fused);
                        break;
                    }
                    Ok(CanFuse::No(why)) => prologues.apart.insert(i, why),
                    Err(_) => None,
                };
            }
        }
    }

    /// The expression of an operand that only this operation reads.
    fn leading(&self, value: &Raw, place: (usize, usize)) -> Option<Fused> {
        let storage = id(value.storage());
        if self.listing.kept.contains(&storage) || *self.facts.readers(storage) != [place] {
            return None;
        }
        let producer = self.facts.producer(&self.listing.ops, value)?;
        let group = self.group_of(producer).filter(|group| matches!(group.space, Space::Elements(_)))?;
        let members = self.members(group);
        let made = self.listing.ops[producer].outputs.iter().find(|out| out.shares_storage(value))?;
        let fused = fuse(&members, std::slice::from_ref(made), &[]);
        let heavy = |input: &Raw| {
            let producer = self.facts.producer(&self.listing.ops, input);
            producer.is_some_and(|p| matches!(self.listing.ops[p].kind, Kind::Fusable(_)))
        };
        let fits =
            (1..=1 + MAX_EPILOGUE_INPUTS).contains(&fused.inputs.len()) && fused.expr.flops() <= MAX_PROLOGUE_NODES;
        if !fits || !all_float(&fused.inputs) || fused.inputs.iter().any(heavy) {
            return None;
        }
        // The engines load the first input like the operand that it stands for.
        let first = fused.inputs.iter().find(|input| input.dtype() == value.dtype())?.clone();
        seen_by(value, made, &fuse(&members, std::slice::from_ref(made), &[first]))
    }
    fn is_lone_reduction(&self, op: usize) -> bool {
        matches!(self.listing.ops[op].kind, Kind::Reduce { .. })
            && self.group_of(op).is_some_and(|group| group.space == Space::Alone)
            && !self.facts.is_pinned(&self.listing.ops[op])
    }

    fn unit(&self, group: &Group, outputs: Vec<Raw>, prologues: &Prologues) -> Option<Unit> {
        let mut ops = group.ops.clone();
        let members = self.members(group);
        let first = *members.first()?;
        let pinned = self.facts.is_pinned(first);
        if outputs.is_empty() && !pinned {
            return None;
        }
        let (work, note) = match (&group.space, &first.kind) {
            _ if let Some(launch) = self.composite(&members, &outputs) => (Work::Opaque(Box::new(launch)), ""),
            (_, Kind::Opaque(launch)) => {
                // A seed and a place.
                let random =
                    launch.args.iter().filter(|arg| matches!(arg, Arg::Scalar(Scalar::SlotU64(_)))).count() > 1;
                let note = if random { RANDOM } else { "a kernel of its own that takes nothing in" };
                (Work::Opaque(launch.clone()), note)
            }
            (Space::Rows { shape, trailing }, _) => (self.rows(shape, *trailing, &members, outputs), ""),
            (_, Kind::Map { .. }) => {
                let outputs = if pinned { first.outputs.clone() } else { outputs };
                let note = if pinned { "it writes in place, or reads what is written in place" } else { "" };
                (Work::Map { fused: fuse(&members, &outputs, &[]), outputs }, note)
            }
            (_, Kind::Reduce { combine, reduced, name }) => {
                let prologue = ops.first().and_then(|&op| prologues.fused.get(&(op, 0))).cloned();
                let inputs = prologue.as_ref().map_or_else(|| first.inputs.clone(), |fused| fused.inputs.clone());
                let (combine, reduced, name) = (*combine, reduced.clone(), *name);
                let out = first.outputs[0].clone();
                (Work::Reduce(ReduceWork { name, combine, reduced, inputs, prologue, epilogue: None, out }), "")
            }
            (_, Kind::Fusable(heavy)) => {
                let (mut inputs, out) = (first.inputs.clone(), first.outputs[0].clone());
                let own = *group.ops.first()?;
                let prologue = (0..inputs.len()).find_map(|k| Some((k, prologues.fused.get(&(own, k))?.clone())));
                if let Some((k, fused)) = &prologue {
                    let before = self.facts.producer(&self.listing.ops, &inputs[*k]).and_then(|p| self.group_of(p));
                    // Operations that live on elsewhere are listed there.
                    if let Some(before) = before.filter(|before| self.needed(before, prologues).is_empty()) {
                        ops.extend(&before.ops);
                        ops.sort_unstable();
                    }
                    inputs[*k] = fused.inputs[0].clone();
                }
                let note = prologues.apart.get(&own).filter(|_| prologue.is_none()).copied().unwrap_or_default();
                (Work::Fusable { heavy: heavy.clone(), inputs, out, prologue, epilogue: None }, note)
            }
        };
        Some(Unit { ops, work, pinned, note })
    }

    /// The launch of an operation that was written down in parts, where the parts are all there is.
    fn composite(&self, members: &[&Op], outputs: &[Raw]) -> Option<Launch> {
        let number = members.first()?.part_of?;
        let composite = &self.listing.composites[number];
        let all = members.len() == composite.parts && members.iter().all(|op| op.part_of == Some(number));
        let [out] = outputs else { return None };
        (all && id(out.storage()) == composite.out).then(|| composite.launch.clone())
    }

    /// A group over rows: a plain reduction with its surroundings where that is all it is, else rows.
    fn rows(&self, shape: &netcl_core::shape::Shape, trailing: usize, members: &[&Op], outputs: Vec<Raw>) -> Work {
        let reductions: Vec<&&Op> = members.iter().filter(|op| matches!(op.kind, Kind::Reduce { .. })).collect();
        if let ([reduction], [out]) = (reductions.as_slice(), outputs.as_slice())
            && *out.shape() == row_shape(shape, trailing)
            && let Some(work) = plain_reduction(reduction, members, out)
        {
            return Work::Reduce(work);
        }
        Work::Rows(Rows {
            shape: shape.clone(),
            trailing,
            ops: members.iter().map(|&op| op.clone()).collect(),
            outputs,
        })
    }

    /// A kernel that reads the result of a product or of a lone reduction, which nobody else reads, becomes its epilogue.
    fn absorb_readers(&self, units: &mut Vec<Unit>) {
        let mut gone: HashSet<usize> = HashSet::new();
        for reader in 0..units.len() {
            let Work::Map { fused, outputs } = &units[reader].work else { continue };
            let [out] = outputs.as_slice() else { continue };
            if fused.expr.flops() > MAX_EPILOGUE_NODES || self.facts.is_pinned(&self.listing.ops[units[reader].ops[0]])
            {
                continue;
            }
            let takes = |unit: &Unit| {
                let own = match &unit.work {
                    Work::Fusable { out, epilogue: None, .. } => squeezed(out)?,
                    Work::Reduce(ReduceWork { out, epilogue: None, .. }) => out.clone(),
                    _ => return None,
                };
                let storage = id(own.storage());
                let alone = !self.listing.kept.contains(&storage)
                    && is_whole(&own)
                    && self.facts.readers(storage).iter().all(|(op, _)| units[reader].ops.binary_search(op).is_ok())
                    // A prologue that computes a value again reads what the value is made of.
                    && units.iter().enumerate().all(|(i, unit)| i == reader || !unit.reads().contains(&storage));
                (alone && fused.inputs.iter().any(|input| same_view(input, &own))).then_some(own)
            };
            let found =
                (0..units.len()).rev().filter(|at| !gone.contains(at)).find_map(|at| Some((at, takes(&units[at])?)));
            let Some((at, own)) = found else { continue };
            let members: Vec<&Op> = units[reader].ops.iter().map(|&op| &self.listing.ops[op]).collect();
            let after = fuse(&members, std::slice::from_ref(out), std::slice::from_ref(&own));
            // The value must be read as it is, and as that only.
            let again = after.inputs[1..].iter().any(|t| t.shares_storage(&own));
            if after.inputs.len() > 1 + MAX_EPILOGUE_INPUTS || again || !all_float(&after.inputs) {
                continue;
            }
            let out = out.clone();
            let ops = units[reader].ops.clone();
            match &mut units[at].work {
                Work::Fusable { epilogue, .. } => *epilogue = Some((after, out)),
                Work::Reduce(reduce) => {
                    reduce.epilogue = Some(after);
                    reduce.out = out;
                }
                _ => continue,
            }
            units[at].ops.extend(ops);
            gone.insert(reader);
        }
        let mut at = 0;
        units.retain(|_| {
            at += 1;
            !gone.contains(&(at - 1))
        });
    }
}

/// One reduction over rows with a prologue and an epilogue, if nothing in it needs the rows again.
fn plain_reduction(reduction: &Op, members: &[&Op], out: &Raw) -> Option<ReduceWork> {
    let Kind::Reduce { combine, reduced, name } = &reduction.kind else { return None };
    let made: HashSet<StorageId> = members.iter().flat_map(|op| op.writes()).collect();
    let outside = |inputs: &[Raw]| inputs.iter().all(|t| !made.contains(&id(t.storage()))) && all_float(inputs);
    let value = &reduction.inputs[0];
    let prologue = if made.contains(&id(value.storage())) {
        let fused = fuse(members, std::slice::from_ref(value), &[]);
        Some(fused)
            .filter(|fused| (1..=MAX_PROLOGUE_INPUTS).contains(&fused.inputs.len()) && outside(&fused.inputs))?
            .into()
    } else {
        None::<Fused>
    };
    let total = &reduction.outputs[0];
    let epilogue = if same_view(total, out) {
        None
    } else {
        let fused = fuse(members, std::slice::from_ref(out), std::slice::from_ref(total));
        Some(fused).filter(|fused| fused.inputs.len() <= 1 + MAX_EPILOGUE_INPUTS && outside(&fused.inputs[1..]))?.into()
    };
    let inputs = prologue.as_ref().map_or_else(|| vec![value.clone()], |fused| fused.inputs.clone());
    let (name, combine, reduced) = (*name, *combine, reduced.clone());
    Some(ReduceWork { name, combine, reduced, inputs, prologue, epilogue, out: out.clone() })
}

/// Reductions and products read floats only.
fn all_float(tensors: &[Raw]) -> bool {
    tensors.iter().all(|t| t.dtype().is_float())
}

/// A whole tensor without axes of length 1.
fn squeezed(tensor: &Raw) -> Option<Raw> {
    if !is_whole(tensor) {
        return None;
    }
    let shape = tensor.shape().iter().copied().filter(|&n| n != 1).collect();
    tensor.with_layout(Layout::contiguous(shape)).ok()
}

/// Units in an order in which every one comes after what it reads; those that touch the same memory in place stay in theirs.
fn in_order(units: Vec<Unit>, listing: &Listing) -> Vec<Unit> {
    let touched: Vec<(Vec<StorageId>, Vec<StorageId>)> =
        units.iter().map(|unit| (unit.reads(), unit.writes())).collect();
    let mut writers: HashMap<StorageId, Vec<usize>> = HashMap::new();
    for (i, (_, writes)) in touched.iter().enumerate() {
        writes.iter().for_each(|&storage| writers.entry(storage).or_default().push(i));
    }
    let place = |unit: usize| units[unit].ops[0];
    let mut before: Vec<HashSet<usize>> = vec![HashSet::new(); units.len()];
    for (i, (reads, writes)) in touched.iter().enumerate() {
        for storage in reads.iter().chain(writes) {
            let all = writers.get(storage).map(Vec::as_slice).unwrap_or_default();
            for &writer in all.iter().filter(|&&writer| writer != i) {
                let once = all.len() == 1 && listing.own.contains(storage);
                // What is written once is written before it is read; else the order of the list holds.
                if once || place(writer) < place(i) {
                    before[i].insert(writer);
                } else {
                    before[writer].insert(i);
                }
            }
        }
    }
    let mut done = vec![false; units.len()];
    let mut order: Vec<usize> = Vec::with_capacity(units.len());
    let mut waiting: Vec<usize> = (0..units.len()).collect();
    waiting.sort_by_key(|&unit| place(unit));
    while !waiting.is_empty() {
        // Always found: merging made no cycle. The first one keeps this loop finite all the same.
        let at = waiting.iter().position(|&unit| before[unit].iter().all(|&other| done[other])).unwrap_or(0);
        let unit = waiting.remove(at);
        done[unit] = true;
        order.push(unit);
    }
    let mut units: Vec<Option<Unit>> = units.into_iter().map(Some).collect();
    order.into_iter().filter_map(|unit| units[unit].take()).collect()
}
