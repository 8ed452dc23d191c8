//! Tracing: a sink that writes down what a function asks for instead of doing it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernels::described::{Combine, Described, Fusable, Meaning, Reduce};
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::kernels::launch::{self, Access, Allocation, Arg, HostAction, Launch, Scalar, Sink, Slot};
use netcl_core::shape::{Layout, Shape};
use netcl_core::storage::Storage;
use netcl_core::tensor::Tensor as Raw;
use netcl_core::{Error, Result};

use super::along::whole;
use super::units::touched;

/// Identifies a storage while a trace holds it.
pub(super) type StorageId = usize;

pub(super) fn id(storage: &Arc<Storage>) -> StorageId {
    Arc::as_ptr(storage) as usize
}

/// One operation of a trace. Tensors are views of planned storages (made by the trace) or of real ones.
#[derive(Clone)]
pub(super) struct Op {
    /// What the user called.
    pub(super) name: Cow<'static, str>,
    pub(super) kind: Kind,
    /// Of `Kind::Map` all inputs and outputs have one shape, without axes of length 1.
    pub(super) inputs: Vec<Raw>,
    pub(super) outputs: Vec<Raw>,
    /// Which [`Composite`] it is a part of.
    pub(super) part_of: Option<usize>,
}

/// An operation that was written down in parts, and the launch that does all of it: best where nothing fuses with the parts.
#[derive(Clone)]
pub(super) struct Composite {
    pub(super) parts: usize,
    pub(super) launch: Launch,
    pub(super) out: StorageId,
}

#[derive(Clone)]
pub(super) enum Kind {
    /// An expression of the elements.
    Map { expr: Arc<Expr>, scalars: Vec<Number> },
    /// One input, combined over some of its axes; the output has the others. No axis has length 1.
    Reduce { combine: Combine, reduced: Vec<bool>, name: &'static str },
    /// Kernels of its own, and room for an expression behind it.
    Fusable(Arc<dyn Fusable>),
    /// A launch that nobody has described.
    Opaque(Box<Launch>),
}

impl Op {
    pub(super) fn reads(&self) -> Vec<StorageId> {
        self.touched(Access::Read)
    }

    pub(super) fn writes(&self) -> Vec<StorageId> {
        self.touched(Access::Write)
    }

    fn touched(&self, wanted: Access) -> Vec<StorageId> {
        if let Kind::Opaque(launch) = &self.kind {
            return touched(launch, wanted);
        }
        let tensors = if wanted == Access::Read { &self.inputs } else { &self.outputs };
        tensors.iter().map(|t| id(t.storage())).collect()
    }
}

/// Memory that the trace planned.
#[derive(Clone)]
pub(super) struct Planned {
    pub(super) storage: Arc<Storage>,
    pub(super) queue: Queue,
}

/// What a trace has seen.
#[derive(Default)]
pub(super) struct Trace {
    pub(super) ops: Vec<Op>,
    pub(super) planned: HashMap<StorageId, Planned>,
    /// Memory that was filled from the host while tracing: constants of the program.
    pub(super) residents: HashMap<StorageId, Arc<Storage>>,
    pub(super) composites: Vec<Composite>,
    /// What the host does in every call.
    pub(super) hosts: Vec<HostAction>,
}

impl Trace {
    /// The numbers that launches look up when they run.
    pub(super) fn slots(&self) -> Vec<Arc<Slot>> {
        let mut found: Vec<Arc<Slot>> = Vec::new();
        let mut add = |slot: &Arc<Slot>| {
            if !found.iter().any(|known| Arc::ptr_eq(known, slot)) {
                found.push(slot.clone());
            }
        };
        for op in &self.ops {
            match &op.kind {
                Kind::Opaque(launch) => launch.args.iter().filter_map(number_of).for_each(&mut add),
                Kind::Map { scalars, .. } => scalars.iter().for_each(|number| {
                    if let Number::Slot(slot) = number {
                        add(slot);
                    }
                }),
                Kind::Reduce { .. } | Kind::Fusable(_) => {}
            }
        }
        found
    }
}

/// The slot that an argument is.
pub(super) fn number_of(arg: &Arg) -> Option<&Arc<Slot>> {
    match arg {
        Arg::Scalar(Scalar::SlotF32(slot) | Scalar::SlotF64(slot) | Scalar::SlotU64(slot)) => Some(slot),
        _ => None,
    }
}

/// What the host does in every call before the launches: drawing places in the random numbers, counting steps.
#[derive(Default)]
pub(super) struct Hosts {
    actions: Arc<Mutex<Vec<HostAction>>>,
    /// The numbers that the launches look up, as they were traced.
    pub(super) slots: Vec<Arc<Slot>>,
}

impl Hosts {
    pub(super) fn new(actions: Vec<HostAction>, slots: Vec<Arc<Slot>>) -> Hosts {
        // Without actions, slots belong to somebody else, who sets them.
        let slots = if actions.is_empty() { Vec::new() } else { slots };
        Hosts { actions: Arc::new(Mutex::new(actions)), slots }
    }

    /// Does it for a call (or for every replay of one), and gives the call numbers of its own: another call in between must not
    /// change what the backward pass of this one sees.
    pub(super) fn run(&self) -> Result<Vec<Arc<Slot>>> {
        let own: Vec<Arc<Slot>> = self.slots.iter().map(|_| Slot::integer(0)).collect();
        if !self.slots.is_empty() || !self.lock().is_empty() {
            let (this, to) = (Hosts { actions: self.actions.clone(), slots: self.slots.clone() }, own.clone());
            launch::each_run(move || {
                let mut actions = this.lock();
                actions.iter_mut().try_for_each(|action| action())?;
                this.slots.iter().zip(&to).for_each(|(from, to)| to.set_integer(from.get_integer()));
                Ok(())
            })?;
        }
        Ok(own)
    }

    /// Whether anything has to be done.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<HostAction>> {
        self.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sink. What is described becomes an [`Op`] with a meaning; other launches are kept as they are.
#[derive(Default)]
pub(super) struct Tracer {
    trace: RefCell<Trace>,
}

impl Tracer {
    /// How many operations have been seen.
    pub(super) fn len(&self) -> usize {
        self.trace.borrow().ops.len()
    }

    /// How often the host had something to do.
    pub(super) fn hosts(&self) -> usize {
        self.trace.borrow().hosts.len()
    }

    /// Everything seen so far.
    pub(super) fn take(&self) -> Trace {
        self.trace.take()
    }

    fn push(&self, op: Op) {
        // What was saved of a value that is overwritten later must be noticed while tracing, as it is op by op.
        match &op.kind {
            Kind::Opaque(launch) => launch.args.iter().for_each(|arg| {
                if let Arg::Buffer(storage, Access::Write) = arg {
                    storage.raise_version();
                }
            }),
            _ => op.outputs.iter().for_each(|out| out.storage().raise_version()),
        }
        self.trace.borrow_mut().ops.push(op);
    }

    /// Marks the operations from `first` on as the parts of one that a launch does as well.
    fn compose(&self, first: usize, launch: Launch, out: StorageId) {
        let trace = &mut *self.trace.borrow_mut();
        let number = trace.composites.len();
        let parts = &mut trace.ops[first..];
        parts.iter_mut().for_each(|op| op.part_of = Some(number));
        trace.composites.push(Composite { parts: parts.len(), launch, out });
    }

    /// A dense tensor over planned memory.
    pub(super) fn plan(&self, queue: &Queue, shape: impl Into<Shape>, dtype: DType) -> Result<Raw> {
        let shape = shape.into();
        let nbytes = shape.nbytes("jit", dtype)?;
        let storage = match nbytes {
            0 => Arc::new(Storage::empty()),
            _ => self.allocate(&Allocation { queue: queue.clone(), nbytes, label: "jit" })?,
        };
        Raw::from_storage(queue, storage, Layout::contiguous(shape), dtype)
    }

    pub(super) fn map(
        &self,
        name: Cow<'static, str>,
        expr: Expr,
        scalars: &[Number],
        inputs: &[&Raw],
        outputs: &[&Raw],
    ) -> Result<()> {
        let axes: Vec<bool> = outputs.first().map(|o| o.shape().iter().map(|&n| n != 1).collect()).unwrap_or_default();
        let squeeze = |t: &&Raw| keep_axes(t, &axes);
        let op = Op {
            name,
            kind: Kind::Map { expr: Arc::new(expr), scalars: scalars.to_vec() },
            inputs: inputs.iter().map(squeeze).collect::<Result<_>>()?,
            outputs: outputs.iter().map(squeeze).collect::<Result<_>>()?,
            part_of: None,
        };
        self.push(op);
        Ok(())
    }

    /// One reduction of a tensor over an axis that stays with length 1.
    pub(super) fn total(
        &self,
        name: &'static str,
        combine: Combine,
        x: &Raw,
        axis: usize,
        dtype: DType,
    ) -> Result<Raw> {
        let out = self.plan(x.queue(), x.shape().without_axis(axis, true), dtype)?;
        let reduced: Vec<bool> = (0..x.ndim()).map(|a| a == axis).collect();
        let reduce = Reduce {
            name,
            combine,
            prologue: None,
            prologue_scalars: &[],
            epilogue: None,
            epilogue_scalars: &[],
            extras: 0,
            reduced: &reduced,
        };
        self.reduce(&reduce, &[x], &out)?;
        Ok(out)
    }

    /// A reduction in three parts: what comes before it, the reduction itself, what comes after. Fusion joins them again.
    fn reduce(&self, reduce: &Reduce<'_>, inputs: &[&Raw], out: &Raw) -> Result<()> {
        let (own, extras) = inputs.split_at(inputs.len() - reduce.extras);
        let compute = if inputs.iter().any(|t| t.dtype() == DType::F64) || out.dtype() == DType::F64 {
            DType::F64
        } else {
            DType::F32
        };
        let name: Cow<'static, str> = reduce.name.into();
        let input = match reduce.prologue {
            Some(expr) => {
                let before = self.plan(out.queue(), own[0].shape().clone(), compute)?;
                self.map(name.clone(), expr.clone(), reduce.prologue_scalars, own, &[&before])?;
                before
            }
            None => own[0].clone(),
        };
        let total = match reduce.epilogue {
            Some(_) => self.plan(out.queue(), out.shape().clone(), compute)?,
            None => out.clone(),
        };
        let long: Vec<bool> = input.shape().iter().map(|&n| n != 1).collect();
        let reduced: Vec<bool> =
            reduce.reduced.iter().zip(&long).filter(|(_, long)| **long).map(|(reduced, _)| *reduced).collect();
        if reduced.contains(&true) {
            let kept: Vec<bool> = reduce.reduced.iter().zip(&long).map(|(reduced, long)| *long && !reduced).collect();
            self.push(Op {
                name: name.clone(),
                kind: Kind::Reduce { combine: reduce.combine, reduced, name: reduce.name },
                inputs: vec![keep_axes(&input, &long)?],
                outputs: vec![keep_axes(&total, &kept)?],
                part_of: None,
            });
        } else {
            let g = Graph::new();
            self.map(name.clone(), g.finish(&[g.input(0)]), &[], &[&input], &[&total])?;
        }
        if let Some(expr) = reduce.epilogue {
            let all: Vec<&Raw> = [&total].into_iter().chain(extras.iter().copied()).collect();
            self.map(name, expr.clone(), reduce.epilogue_scalars, &all, &[out])?;
        }
        Ok(())
    }
}

/// A view with some of the axes only; the others have length 1.
fn keep_axes(tensor: &Raw, keep: &[bool]) -> Result<Raw> {
    let layout = tensor.layout();
    let kept = || keep.iter().enumerate().filter(|(_, keep)| **keep).map(|(axis, _)| axis);
    let shape: Shape = kept().map(|axis| layout.shape()[axis]).collect();
    let strides: Vec<isize> = kept().map(|axis| layout.strides()[axis]).collect();
    tensor.with_layout(Layout::strided(shape, &strides, layout.offset())?)
}

impl Sink for Tracer {
    fn launch(&self, launch: Launch) -> Result<()> {
        let (name, inputs, outputs) = (launch.name.clone(), Vec::new(), Vec::new());
        self.push(Op { name, kind: Kind::Opaque(Box::new(launch)), inputs, outputs, part_of: None });
        Ok(())
    }

    fn allocate(&self, request: &Allocation) -> Result<Arc<Storage>> {
        let storage = Arc::new(Storage::planned(request.nbytes));
        let planned = Planned { storage: storage.clone(), queue: request.queue.clone() };
        self.trace.borrow_mut().planned.insert(id(&storage), planned);
        Ok(storage)
    }

    fn allocate_resident(&self, request: &Allocation) -> Result<Arc<Storage>> {
        let storage = request.queue.allocate_now(request.nbytes, request.label)?;
        self.trace.borrow_mut().residents.insert(id(&storage), storage.clone());
        Ok(storage)
    }

    fn offer(&self, operation: &Described<'_>) -> Result<bool> {
        let (inputs, outputs) = (operation.inputs, operation.outputs);
        // A value that is not a float cannot live in a register of an expression: what writes one stays a launch. The truth values of
        // a comparison can, as 0 and 1.
        let truth = matches!(&operation.meaning, Meaning::Elementwise(op) if op.expr.is_predicate());
        if !outputs.iter().all(|t| t.dtype().is_float() || (truth && t.dtype() == DType::U8)) {
            return Ok(false);
        }
        match &operation.meaning {
            Meaning::Elementwise(op) => {
                self.map(op.name.to_owned().into(), op.expr.clone(), op.scalars, inputs, outputs)?;
            }
            Meaning::Copy => {
                let name = if inputs[0].dtype() == outputs[0].dtype() { "copy" } else { "cast" };
                let g = Graph::new();
                self.map(name.into(), g.finish(&[g.input(0)]), &[], inputs, outputs)?;
            }
            Meaning::Fill(value) => {
                let g = Graph::new();
                self.map("fill".into(), g.finish(&[g.scalar(0)]), &[(*value).into()], inputs, outputs)?;
            }
            Meaning::Reduce(reduce) => self.reduce(reduce, inputs, outputs[0])?,
            Meaning::AlongAxis(axis, along) => {
                let first = self.len();
                if !self.along(*axis, *along, inputs, outputs[0])? {
                    return Ok(false);
                }
                if let Some(launch) = whole(*axis, *along, inputs, outputs[0])? {
                    self.compose(first, launch, id(outputs[0].storage()));
                }
            }
            Meaning::Fusable(heavy) => self.push(Op {
                name: heavy.name().into(),
                kind: Kind::Fusable(heavy.clone()),
                inputs: inputs.iter().map(|&t| t.clone()).collect(),
                outputs: outputs.iter().map(|&t| t.clone()).collect(),
                part_of: None,
            }),
            Meaning::RowNorm(_) => return Ok(false),
        }
        Ok(true)
    }

    fn host(&self, action: HostAction) -> Option<HostAction> {
        self.trace.borrow_mut().hosts.push(action);
        None
    }

    fn repeats(&self) -> bool {
        true
    }

    fn made(&self, storage: &Arc<Storage>) -> bool {
        self.trace.borrow().planned.contains_key(&id(storage))
    }

    fn check_readable(&self, op: &'static str) -> Result<()> {
        let what = "values cannot be read inside a function that jit compiles (item(), to_host(), numpy(), printing, or a \
                    Python if on a value): nothing has run yet. Return the tensor and read it outside, choose by value with \
                    where(), or take this part out of the compiled function";
        Err(Error::State { op, what: what.to_owned() })
    }
}
