//! From units to launches over planned memory: what a call only has to bind and submit.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::kernels::copy::copy;
use netcl_core::kernels::described::{Epilogue, Prologue};
use netcl_core::kernels::elementwise::Elementwise;
use netcl_core::kernels::expr::Node;
use netcl_core::kernels::launch::{self, Allocation, Launch, Sink};
use netcl_core::storage::Storage;
use netcl_core::tensor::Tensor as Raw;
use netcl_ops::Axes;
use netcl_ops::reduce::{Operands, Reduction};

use super::facts::{Listing, is_whole};
use super::region;
use super::trace::{Op, Planned, StorageId, id};
use super::units::{ReduceWork, Unit, Work};
use super::views::with_axes;

/// Launches over planned memory.
pub(super) struct Lowered {
    /// Each with the unit it belongs to.
    pub(super) launches: Vec<(Launch, usize)>,
    /// All planned memory: of the trace, and what kernels need beside.
    pub(super) planned: HashMap<StorageId, Planned>,
    /// Where values went that were meant to go somewhere else.
    moved: HashMap<StorageId, Arc<Storage>>,
    /// The text of each unit's kernel, where it was written for it.
    pub(super) sources: Vec<Option<String>>,
}

impl Lowered {
    /// Where a value of the trace really is.
    pub(super) fn place(&self, tensor: &Raw) -> Result<Raw> {
        match self.moved.get(&id(tensor.storage())) {
            Some(storage) => {
                Raw::from_storage(tensor.queue(), storage.clone(), tensor.layout().clone(), tensor.dtype())
            }
            None => Ok(tensor.clone()),
        }
    }

    fn places(&self, tensors: &[Raw]) -> Result<Vec<Raw>> {
        tensors.iter().map(|t| self.place(t)).collect()
    }
}

/// Keeps launches and plans memory; takes no operation, so that each is lowered to its kernels.
#[derive(Default)]
struct Collector {
    launches: RefCell<Vec<Launch>>,
    planned: RefCell<Vec<Planned>>,
}

impl Sink for Collector {
    fn launch(&self, launch: Launch) -> Result<()> {
        self.launches.borrow_mut().push(launch);
        Ok(())
    }

    fn allocate(&self, request: &Allocation) -> Result<Arc<Storage>> {
        let storage = Arc::new(Storage::planned(request.nbytes));
        self.planned.borrow_mut().push(Planned { storage: storage.clone(), queue: request.queue.clone() });
        Ok(storage)
    }
}

/// The launches that a computation makes, and what it gives, over memory that is only planned.
pub(super) fn collect<T>(compute: impl FnOnce() -> Result<T>) -> Result<(T, Vec<Launch>)> {
    let collector = Rc::new(Collector::default());
    let made = launch::with_sink(collector.clone(), compute)?;
    Ok((made, collector.launches.take()))
}

/// Lowers units in their order.
pub(super) fn lower(
    units: &[Unit],
    listing: &Listing,
    planned: HashMap<StorageId, Planned>,
    relaxed: bool,
) -> Result<Lowered> {
    let mut lowered =
        Lowered { launches: Vec::new(), planned, moved: HashMap::new(), sources: Vec::with_capacity(units.len()) };
    let collector = Rc::new(Collector::default());
    for (at, unit) in units.iter().enumerate() {
        let members: Vec<&Op> = unit.ops.iter().map(|&op| &listing.ops[op]).collect();
        let source = launch::with_sink(collector.clone(), || one(unit, &members, &mut lowered, relaxed))?;
        lowered.sources.push(source);
        lowered.launches.extend(collector.launches.take().into_iter().map(|launch| (launch, at)));
        lowered.planned.extend(collector.planned.take().into_iter().map(|planned| (id(&planned.storage), planned)));
    }
    Ok(lowered)
}

/// The name of a kernel: the operations in it.
pub(super) fn label(members: &[&Op]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for op in members {
        if names.last() != Some(&op.name.as_ref()) {
            names.push(&op.name);
        }
    }
    const SHOWN: usize = 8;
    let more = if names.len() > SHOWN { format!("_and_{}_more", names.len() - SHOWN) } else { String::new() };
    names[..names.len().min(SHOWN)].join("_") + &more
}

fn one(unit: &Unit, members: &[&Op], lowered: &mut Lowered, relaxed: bool) -> Result<Option<String>> {
    match &unit.work {
        Work::Map { fused, outputs } => {
            let inputs = lowered.places(&fused.inputs)?;
            let outputs = lowered.places(outputs)?;
            if let ([Node::Input(0)], [input], [output]) = (fused.expr.nodes(), inputs.as_slice(), outputs.as_slice()) {
                copy(input, output)?;
                return Ok(None);
            }
            let name = label(members);
            let op = if relaxed {
                Elementwise::relaxed(name, fused.expr.clone())
            } else {
                Elementwise::new(name, fused.expr.clone())
            };
            let (inputs, outputs): (Vec<&Raw>, Vec<&Raw>) = (inputs.iter().collect(), outputs.iter().collect());
            op.run(&inputs, &fused.scalars, &outputs)?;
            op.source(&inputs, &outputs).map(Some)
        }
        Work::Rows(rows) => {
            let translated = |tensors: &[Raw]| lowered.places(tensors);
            region::run(rows, &label(members), translated).map(Some)
        }
        Work::Reduce(reduce) => {
            let result = self::reduce(reduce, lowered)?;
            settle(unit, &reduce.out, result, lowered)?;
            Ok(None)
        }
        Work::Fusable { heavy, inputs, out, prologue, epilogue } => {
            let inputs = lowered.places(inputs)?;
            let mut next = 0;
            let axes: Vec<Option<usize>> = out
                .shape()
                .iter()
                .map(|&n| {
                    next += usize::from(n != 1);
                    (n != 1).then(|| next - 1)
                })
                .collect();
            let behind = epilogue
                .as_ref()
                .map(|(fused, result)| {
                    let own = fused.inputs[1..].iter().map(|t| widened(&lowered.place(t)?, &axes));
                    Ok::<_, netcl_core::Error>(Epilogue {
                        expr: &fused.expr,
                        inputs: own.collect::<Result<_>>()?,
                        scalars: fused.scalars.clone(),
                        dtype: Some(result.dtype()),
                    })
                })
                .transpose()?;
            let before = prologue
                .as_ref()
                .map(|(operand, fused)| {
                    let inputs = lowered.places(&fused.inputs[1..])?;
                    let (expr, scalars) = (&fused.expr, fused.scalars.clone());
                    Ok::<_, netcl_core::Error>(Prologue { operand: *operand, expr, inputs, scalars })
                })
                .transpose()?;
            let result = heavy.run(&inputs, before, behind)?;
            settle(unit, epilogue.as_ref().map_or(out, |(_, result)| result), result, lowered)?;
            Ok(None)
        }
        Work::Opaque(launch) => {
            let mut launch = Launch::clone(launch);
            launch.bind(|storage| lowered.moved.get(&id(storage)).cloned());
            launch::submit(launch)?;
            Ok(None)
        }
    }
}

fn widened(tensor: &Raw, axes: &[Option<usize>]) -> Result<Raw> {
    match with_axes(tensor.layout(), axes) {
        Some(layout) => tensor.with_layout(layout),
        None => Ok(tensor.clone()),
    }
}

fn reduce(work: &ReduceWork, lowered: &Lowered) -> Result<Raw> {
    let mut reduction = Reduction::new(work.name, work.combine);
    let (mut before, mut after): (&[_], &[_]) = (&[], &[]);
    if let Some(fused) = &work.prologue {
        reduction = reduction.prologue(fused.expr.clone());
        before = &fused.scalars;
    }
    let mut extras = Vec::new();
    if let Some(fused) = &work.epilogue {
        reduction = reduction.epilogue(fused.expr.clone());
        after = &fused.scalars;
        let mut next = 0;
        let axes: Vec<Option<usize>> = work
            .reduced
            .iter()
            .map(|&gone| {
                next += usize::from(!gone);
                (!gone).then(|| next - 1)
            })
            .collect();
        for extra in &fused.inputs[1..] {
            extras.push(widened(&lowered.place(extra)?, &axes)?);
        }
    }
    let inputs = lowered.places(&work.inputs)?;
    let axes: Vec<isize> =
        (0..work.reduced.len()).filter(|&axis| work.reduced[axis]).map(|axis| axis as isize).collect();
    let operands = Operands {
        inputs: &inputs.iter().collect::<Vec<_>>(),
        prologue_scalars: before,
        extras: &extras.iter().collect::<Vec<_>>(),
        epilogue_scalars: after,
        dtype: Some(work.out.dtype()),
    };
    reduction.run(&operands, Axes::Several(&axes), false)
}

/// A result takes the place it was meant for: by name where nothing else is in that memory, else by a copy.
fn settle(unit: &Unit, out: &Raw, result: Raw, lowered: &mut Lowered) -> Result<()> {
    if !unit.pinned && is_whole(&result) {
        lowered.moved.insert(id(out.storage()), result.storage().clone());
        return Ok(());
    }
    let place = lowered.place(out)?;
    copy(&netcl_core::tensor::reshape(&result, place.shape().clone())?, &place)
}

/// The queue that work goes to, for memory that is only planned.
pub(super) fn queue_of(planned: &Planned) -> &Queue {
    &planned.queue
}
