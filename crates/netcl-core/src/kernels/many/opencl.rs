//! Many tensors on an OpenCL device: tables, batches, launches.

use std::ops::Range;

use smallvec::SmallVec;

use super::segments::chunks;
use super::source::{Body, Form, Text, row_length, write};
use super::{Many, Operands, Segment, Segments};
use crate::backend::opencl::{Grid, Source, Stream};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_selector::KernelSelector;
use crate::kernels::elementwise::Number;
use crate::kernels::group_limit::largest_group;
use crate::kernels::launch::{Access, Arg, Scalar, Work};
use crate::kernels::memo::Memo;
use crate::tensor::Tensor;

/// Vectors per work-item and chunk: enough to spread the cost of finding the chunk.
const VECTORS: usize = 4;
/// More tensors than this in one kernel would only make it long.
const MOST_TENSORS: usize = 512;
/// More sets of scalars than this in one kernel would make every work-item search; rare, so they are split.
const MOST_SETS: usize = 8;

type Args = SmallVec<[Arg; 8]>;

/// The kernel sources of one expression, by form.
pub(super) type Sources = Memo<Form, Text>;

/// One launch's work.
pub(super) struct Batch {
    pub(super) elements: usize,
    pub(super) work: Work,
    pub(super) args: Args,
}

/// How a device goes about it: elements per vector, work-items per work-group, elements per chunk.
pub(super) struct Shape {
    pub(super) width: usize,
    pub(super) local: usize,
    pub(super) chunk: usize,
}

impl Shape {
    pub(super) fn of(stream: &Stream, queue: &crate::backend::Queue, elements: usize, compute: DType) -> Result<Shape> {
        let config = KernelSelector::of(queue).select_elementwise_kernel(elements, compute);
        let width = config.vector_width.min(8);
        let most = config.local_size_1d.min(largest_group(stream.device())).max(1);
        // A power of two, for the sums' tree.
        let local = 1 << most.ilog2();
        Ok(Shape { width, local, chunk: local * width * VECTORS })
    }
}

/// Where the sums of a [`Body::Sum`] go: to this tensor, from this position on.
pub(super) struct Sums<'a> {
    pub(super) to: &'a Tensor,
    pub(super) first: usize,
}

/// An expression over segments.
pub(super) fn map(
    many: &Many,
    stream: &Stream,
    segments: &Segments,
    operands: &Operands<'_>,
    compute: DType,
) -> Result<Vec<Batch>> {
    batches(many, stream, segments, operands, compute, None)
}

/// Everything that runs over segments, in as few launches as the arguments fit into.
pub(super) fn batches(
    many: &Many,
    stream: &Stream,
    segments: &Segments,
    operands: &Operands<'_>,
    compute: DType,
    sums: Option<&Sums<'_>>,
) -> Result<Vec<Batch>> {
    let queue = operands.lists[0][0].queue();
    let shape = Shape::of(stream, queue, segments.elements(), compute)?;
    let slots = slots(many, operands.sets);
    let limit = stream.device().info().max_parameter_size;
    let plan = Plan::new(many, segments, &slots, compute, sums.is_some(), limit)?;
    let key = key(many, segments, operands, &shape, &plan, compute);
    let tables = segments.tables(key, || {
        plan.ranges.iter().map(|range| upload(many, segments, operands, range, &slots, &shape, compute)).collect()
    })?;
    let mut first_sum = sums.map_or(0, |sums| sums.first);
    let full = |range: &&Range<usize>| segments.all()[(*range).clone()].iter().any(|segment| segment.count > 0);
    let batches = plan.ranges.iter().zip(tables.iter()).filter(|(range, _)| full(range));
    batches
        .map(|(range, table)| {
            let part = &segments.all()[range.clone()];
            let sets = sets_of(part);
            let form = Form {
                lists: operands.lists.iter().map(|list| list[0].dtype()).collect(),
                compute,
                tensors: room(range.len(), plan.most),
                sets: sets.len().next_power_of_two(),
                slots: slots.clone(),
                width: shape.width,
                aligned: aligned(many, segments, operands, range, shape.width),
                chunk: shape.chunk,
                body: if sums.is_some() { Body::Sum } else { Body::Map },
            };
            let text = many.sources.get(&form, || Ok(write(&many.spec, &form)))?;
            let kernel = stream.kernel(&text.name, || (Source::new(text.source.clone(), ""), text.name.as_str()))?;
            let groups: usize = part.iter().map(|s| s.count.div_ceil(shape.chunk)).sum();
            let local = kernel.group_up_to(shape.local)?;
            let local = 1 << local.max(1).ilog2();
            let mut args: Args = SmallVec::new();
            args.push(Arg::Buffer(table.storage().clone(), Access::Read));
            if let Some(flat) = operands.flat.filter(|_| many.spec.rows + many.spec.controls() > 0) {
                args.push(Arg::Buffer(flat.storage().clone(), many.spec.flat_access()));
            }
            if let Some(Sums { to, .. }) = sums {
                args.push(Arg::Buffer(to.storage().clone(), Access::Write));
            }
            for (l, list) in operands.lists.iter().enumerate() {
                let access = if sums.is_some() { Access::Read } else { many.spec.list_access(l) };
                let list = &list[range.clone()];
                // Room that is not needed, and tensors without elements, get a buffer that is there anyway.
                let other = list.iter().find(|tensor| tensor.size() > 0).unwrap_or(&list[0]);
                let spare = || Arg::Buffer(other.storage().clone(), Access::Read);
                args.extend(list.iter().map(|tensor| match tensor.size() {
                    0 => spare(),
                    _ => Arg::Buffer(tensor.storage().clone(), access),
                }));
                args.extend((list.len()..form.tensors).map(|_| spare()));
            }
            for s in (0..slots.len()).filter(|&s| slots[s]) {
                let set = |g: usize| sets.get(g).or(sets.last()).copied().unwrap_or(0);
                args.extend((0..form.sets).map(|g| operands.sets[set(g)][s].arg(compute)));
            }
            if sums.is_some() {
                args.push(Arg::Scalar(Scalar::U64(first_sum as u64)));
                args.push(Arg::Local(local * compute.size()));
                first_sum += groups;
            }
            let grid = Grid::new([groups * local]).local([local]);
            Ok(Batch { elements: part.iter().map(|s| s.count).sum(), work: Work::OpenCl(kernel, grid), args })
        })
        .collect()
}

/// Whether every tensor, and every tensor's part of each row, begins at a multiple of a vector's length.
fn aligned(many: &Many, segments: &Segments, operands: &Operands<'_>, range: &Range<usize>, width: usize) -> bool {
    let lists = operands.lists.iter().flat_map(|list| &list[range.clone()]);
    let flat = operands.flat.map_or(0, |flat| flat.layout().offset());
    let mut rows = segments.all()[range.clone()]
        .iter()
        .flat_map(|segment| (0..many.spec.rows).map(move |r| flat + r * segments.stride() + segment.flat));
    lists.map(|t| t.layout().offset()).all(|at| at.is_multiple_of(width)) && rows.all(|at| at.is_multiple_of(width))
}

/// The sets that a batch's segments name, in the order of their first use.
fn sets_of(part: &[Segment]) -> SmallVec<[usize; 4]> {
    let mut sets: SmallVec<[usize; 4]> = SmallVec::new();
    for segment in part {
        if !sets.contains(&segment.set) {
            sets.push(segment.set);
        }
    }
    sets
}

/// Which scalars are arguments: those that are read and are a slot in some set.
fn slots(many: &Many, sets: &[Vec<Number>]) -> Vec<bool> {
    let slot = |s: usize| sets.iter().any(|set| matches!(set[s], Number::Slot(_)));
    (0..many.spec.used.len()).map(|s| many.spec.used[s] && slot(s)).collect()
}

/// Room for `n` tensors: few sizes, so that few programs are built, and never more than fit.
fn room(n: usize, most: usize) -> usize {
    n.next_power_of_two().max(4).min(most.max(n))
}

/// Which segments go into which launch.
struct Plan {
    ranges: Vec<Range<usize>>,
    /// The most tensors a launch has room for.
    most: usize,
}

impl Plan {
    fn new(many: &Many, segments: &Segments, slots: &[bool], compute: DType, sums: bool, limit: usize) -> Result<Plan> {
        let pointer = 8;
        let per_set = slots.iter().filter(|slot| **slot).count() * compute.size();
        let flat = usize::from(many.spec.rows + many.spec.controls() > 0);
        // The table, the flat tensor; the partial sums, where they start and their local memory.
        let fixed = (1 + flat + if sums { 3 } else { 0 }) * pointer;
        let fits = |sets: usize| {
            let numbers = sets.next_power_of_two() * per_set;
            (limit.saturating_sub(fixed + numbers) / (many.spec.lists * pointer)).min(MOST_TENSORS)
        };
        if fits(1) == 0 {
            let what = format!("{} needs more than the {limit} bytes of arguments the device takes", many.label());
            return Err(Error::argument(super::OP, what));
        }
        let mut plan = Plan { ranges: Vec::new(), most: fits(1) };
        let mut start = 0;
        for end in 1..=segments.len() {
            let sets = sets_of(&segments.all()[start..end]).len();
            if end - start > 1 && (sets > MOST_SETS || end - start > fits(sets)) {
                plan.ranges.push(start..end - 1);
                start = end - 1;
            }
        }
        plan.ranges.push(start..segments.len());
        plan.most = plan.ranges.iter().map(|r| fits(sets_of(&segments.all()[r.clone()]).len())).min().unwrap_or(1);
        Ok(plan)
    }
}

/// Everything a table depends on.
fn key(
    many: &Many,
    segments: &Segments,
    operands: &Operands<'_>,
    shape: &Shape,
    plan: &Plan,
    compute: DType,
) -> Vec<u64> {
    let mut key: Vec<u64> = vec![
        many.spec.lists as u64,
        many.spec.rows as u64,
        many.spec.controls() as u64,
        shape.chunk as u64,
        compute.size() as u64,
        plan.ranges.len() as u64,
    ];
    for list in operands.lists {
        key.extend(list.iter().map(|tensor| tensor.layout().offset() as u64));
    }
    key.extend(operands.flat.map(|flat| flat.layout().offset() as u64));
    key.extend(segments.all().iter().map(|s| s.set as u64));
    for set in operands.sets {
        key.extend(set.iter().zip(&many.spec.used).map(|(number, used)| match number {
            Number::Value(value) if *used => value.to_bits(),
            // A NaN of our own: no setting has these bits.
            _ => u64::MAX,
        }));
    }
    key
}

/// Makes the table of one launch.
fn upload(
    many: &Many,
    segments: &Segments,
    operands: &Operands<'_>,
    range: &Range<usize>,
    slots: &[bool],
    shape: &Shape,
    compute: DType,
) -> Result<Tensor> {
    let part = &segments.all()[range.clone()];
    let sets = sets_of(part);
    let chunks = chunks(part, shape.chunk);
    let entry = |c: &super::segments::Chunk| (c.segment as i64) << 32 | (c.start / shape.chunk) as i64;
    let mut table: Vec<i64> = chunks.iter().map(entry).collect();
    let values: Vec<usize> = (0..slots.len()).filter(|&s| many.spec.used[s] && !slots[s]).collect();
    let first_value = table.len() + part.len() * row_length(&many.spec);
    let flat = operands.flat.map_or(0, |flat| flat.layout().offset());
    for (t, segment) in part.iter().enumerate() {
        let set = sets.iter().position(|&set| set == segment.set).unwrap_or(0);
        table.extend([segment.count as i64, set as i64, (first_value + set * values.len()) as i64]);
        table.extend(operands.lists.iter().map(|list| list[range.start + t].layout().offset() as i64));
        table.extend((0..many.spec.rows).map(|r| (flat + r * segments.stride() + segment.flat) as i64));
        if many.spec.controls() > 0 {
            table.push((flat + many.spec.rows * segments.stride()) as i64);
        }
    }
    for set in sets {
        table.extend(values.iter().map(|&s| match &operands.sets[set][s] {
            Number::Value(value) if compute == DType::F64 => value.to_bits() as i64,
            Number::Value(value) => i64::from((*value as f32).to_bits()),
            // Never: a slot in any set makes the scalar an argument.
            Number::Slot(_) => 0,
        }));
    }
    Tensor::from_host(operands.lists[0][0].queue(), &table, [table.len()])
}
