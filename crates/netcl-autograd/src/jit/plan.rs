//! A function traced and compiled for one kind of arguments.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{self, Access, Arg, Launch, Slot};
use netcl_core::random::{default_generator, own_generators_refused};
use netcl_core::shape::{Layout, Shape};
use netcl_core::storage::Storage;
use netcl_core::tensor::Tensor as Raw;

use super::facts::Listing;
use super::lower::lower;
use super::partition::{cut, needed};
use super::program::Program;
use super::report::UnitReport;
use super::trace::{Composite, Hosts, Kind, Op, Planned, StorageId, Trace, Tracer, id};
use super::units::units;
use super::views::remap;
use crate::checkpoint::captured;
use crate::error::Result;
use crate::graph::{BackwardOptions, Edge, Gradients, joint_grad_up_to, next_number};
use crate::tensor::Tensor;

/// The function as the compiler sees it: a list of tensors in, a list of tensors out.
pub type Body = Arc<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// Where a gradient goes.
pub(super) enum Place {
    /// To an argument.
    Input(usize),
    /// To a tensor that the caller has named as captured.
    Captured(usize),
    /// To a tensor that the function has found itself.
    Fixed(Edge),
}

/// What became of a trace.
pub(super) enum Plan {
    Compiled(Box<Compiled>),
    /// The function runs as it is, for this reason.
    AsItIs(String),
}

pub(super) struct Compiled {
    /// What the host does in every call.
    pub(super) hosts: Hosts,
    pub(super) forward: Program,
    pub(super) report: Vec<UnitReport>,
    /// For each result whether it has a gradient.
    pub(super) differentiable: Vec<bool>,
    /// For each result the op that has lost its gradient.
    pub(super) unrecorded: Vec<Option<&'static str>>,
    pub(super) backward: Option<Backward>,
}

/// The backward pass, compiled when it is first needed and again for upstream gradients of other layouts.
pub(super) struct Backward {
    pub(super) places: Vec<Place>,
    ops: Vec<Op>,
    planned: HashMap<StorageId, Planned>,
    /// The gradient of each result, as it was traced.
    pub(super) upstream: Vec<Option<Raw>>,
    gradients: Vec<Option<Raw>>,
    /// Memory of arguments and captured tensors, in order, and whether the backward pass reads it. Held weakly: enough to keep
    /// its identity from being given to another storage, without keeping memory.
    pub(super) given: Vec<(Weak<Storage>, bool)>,
    saved: Vec<Arc<Storage>>,
    /// Memory of tensors that the function has found itself, which the backward pass reads.
    pub(super) found: Vec<Arc<Storage>>,
    numbers: Vec<Arc<Slot>>,
    composites: Arc<Vec<Composite>>,
    relaxed: bool,
    variants: Mutex<HashMap<Vec<Option<Layout>>, Arc<Variant>>>,
}

pub(super) struct Variant {
    pub(super) program: Program,
    pub(super) report: Vec<UnitReport>,
    /// Which of the program's results is the gradient of each place.
    pub(super) results: Vec<Option<usize>>,
}

/// Runs a function on stand-ins and compiles what it asked for.
pub(super) fn trace(body: &Body, inputs: &[&Tensor], captures: &[&Tensor], relaxed: bool) -> Result<Plan> {
    let tracer = Rc::new(Tracer::default());
    let stand_ins = stand_ins(inputs)?;
    let (generator, refused) = (default_generator(), own_generators_refused());
    let start = next_number();
    let traced = launch::with_sink(tracer.clone(), || {
        let _inside = super::Inside::enter();
        let outputs = body(&stand_ins)?;
        let mark = tracer.len();
        let drawn = tracer.hosts();
        let walked = walk(&stand_ins, captures, &outputs, start)?;
        Ok::<_, crate::Error>((outputs, mark, walked, tracer.hosts() > drawn))
    });
    let (outputs, mark, walked, late) = match traced {
        Err(_) if own_generators_refused() > refused => {
            return Ok(Plan::AsItIs("it draws random numbers from a generator of its own".to_owned()));
        }
        Err(crate::Error::Unrecorded { lost, .. }) => {
            netcl_core::random::set_default_generator(generator);
            let why =
                format!("{lost} of netcl.ops, which does not record, is called on a tensor that requires a gradient");
            return Ok(Plan::AsItIs(why));
        }
        traced => traced?,
    };
    let trace = tracer.take();
    if default_generator() != generator {
        netcl_core::random::set_default_generator(generator);
        return Ok(Plan::AsItIs("it draws random numbers on the host, which must be new in every call".to_owned()));
    }
    if late {
        let why = "its backward pass draws random numbers (a checkpoint with dropout), which must be those of the forward pass";
        return Ok(Plan::AsItIs(why.to_owned()));
    }
    if let Some(op) = trace.ops.iter().find(|op| op.writes().iter().any(|s| trace.residents.contains_key(s))) {
        let why = format!("{} overwrites a tensor made from host data inside the function; make it outside", op.name);
        return Ok(Plan::AsItIs(why));
    }
    let foreign = |walked: &Walked| walked.places.iter().any(|place| matches!(place, Place::Fixed(Edge::Node(_))));
    if walked.as_ref().is_some_and(foreign) {
        let why =
            "it captures the result of a recorded operation, which is another one every time; pass it as an argument";
        return Ok(Plan::AsItIs(why.to_owned()));
    }
    compile(trace, mark, &stand_ins, captures, &outputs, walked, relaxed).map(|made| Plan::Compiled(Box::new(made)))
}

fn stand_in(nbytes: usize) -> Arc<Storage> {
    Arc::new(if nbytes == 0 { Storage::empty() } else { Storage::planned(nbytes) })
}

/// Tensors like the arguments, without values. Arguments that share memory have stand-ins that do.
fn stand_ins(inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let mut known: HashMap<StorageId, Arc<Storage>> = HashMap::new();
    inputs
        .iter()
        .map(|input| {
            let storage = known.entry(id(input.storage())).or_insert_with(|| stand_in(input.storage().nbytes()));
            let raw = Raw::from_storage(input.queue(), storage.clone(), input.layout().clone(), input.dtype())?;
            let tensor = Tensor::from(raw);
            tensor.set_unrecorded(input.unrecorded());
            Ok(if input.needs_grad() { tensor.with_grad() } else { tensor })
        })
        .collect()
}

/// The walk backwards as it was traced.
struct Walked {
    places: Vec<Place>,
    upstream: Vec<Option<Raw>>,
    gradients: Gradients,
}

fn walk(stand_ins: &[Tensor], captures: &[&Tensor], outputs: &[Tensor], start: u64) -> Result<Option<Walked>> {
    if !outputs.iter().any(|output| output.needs_grad()) {
        return Ok(None);
    }
    let own: Vec<Edge> = stand_ins.iter().map(Tensor::edge).collect();
    let found = captured(&outputs.iter().collect::<Vec<_>>(), &own, start);
    let named: HashMap<usize, usize> =
        captures.iter().enumerate().rev().map(|(i, tensor)| (tensor.place().key(), i)).collect();
    let mut places: Vec<Place> = (0..own.len()).filter(|&i| own[i].has_target()).map(Place::Input).collect();
    let mut edges: Vec<Edge> = own.into_iter().filter(Edge::has_target).collect();
    for edge in found {
        places.push(match named.get(&edge.key()) {
            Some(&at) => Place::Captured(at),
            None => Place::Fixed(edge.clone()),
        });
        edges.push(edge);
    }
    let mut roots = Vec::new();
    let mut upstream = Vec::new();
    for output in outputs {
        if !output.needs_grad() {
            upstream.push(None);
            continue;
        }
        let storage = stand_in(output.shape().nbytes("jit", output.dtype())?);
        let layout = Layout::contiguous(output.shape().clone());
        let raw = Raw::from_storage(output.queue(), storage, layout, output.dtype())?;
        roots.push((output.edge(), raw.clone().into()));
        upstream.push(Some(raw));
    }
    let gradients = joint_grad_up_to(roots, &edges, BackwardOptions::default())?;
    Ok(Some(Walked { places, upstream, gradients }))
}

/// Compiles a list of operations; `given` is memory that every call brings along.
fn build(
    listing: Listing,
    planned: HashMap<StorageId, Planned>,
    (given, numbers): (&[StorageId], &[Arc<Slot>]),
    results: &[Raw],
    relaxed: bool,
) -> Result<(Program, Vec<UnitReport>)> {
    let (units, listing) = units(listing);
    let lowered = lower(&units, &listing, planned, relaxed)?;
    let program = Program::new(&lowered, given, numbers, results)?;
    let report = UnitReport::all(&units, &listing, &lowered);
    Ok((program, report))
}

fn compile(
    trace: Trace,
    mark: usize,
    stand_ins: &[Tensor],
    captures: &[&Tensor],
    outputs: &[Tensor],
    walked: Option<Walked>,
    relaxed: bool,
) -> Result<Compiled> {
    let slots = trace.slots();
    let Trace { ops, planned, composites, hosts, residents } = trace;
    let hosts = Hosts::new(hosts, slots);
    let composites = Arc::new(composites);
    let memory: Vec<&Arc<Storage>> =
        stand_ins.iter().map(|t| t.storage()).chain(captures.iter().map(|t| t.storage())).collect();
    let given: Vec<StorageId> = memory.iter().map(|storage| id(storage)).collect();
    let kept: HashSet<StorageId> = outputs.iter().map(|t| id(t.storage())).collect();
    let gradients: Vec<Option<Raw>> =
        walked.iter().flat_map(|walked| &walked.gradients).map(|g| g.as_ref().map(|g| g.raw().clone())).collect();
    let wanted: HashSet<StorageId> = gradients.iter().flatten().map(|g| id(g.storage())).collect();
    let cut = cut(&ops, mark, &planned, &kept, &wanted, &composites);
    let mut results: Vec<Raw> = outputs.iter().map(|t| t.raw().clone()).collect();
    for storage in &cut.saved {
        results.push(bytes_of(storage, &planned, outputs)?);
    }
    let (forward, report) = build(cut.forward, planned.clone(), (&given, &hosts.slots), &results, relaxed)?;
    let backward = walked.map(|walked| {
        let read: HashSet<StorageId> = cut.backward.iter().flat_map(Op::reads).chain(wanted).collect();
        let mut found = found_by(&cut.backward);
        found.retain(|s| !given.contains(&id(s)) && !planned.contains_key(&id(s)) && !residents.contains_key(&id(s)));
        Backward {
            places: walked.places,
            ops: cut.backward,
            planned,
            upstream: walked.upstream,
            gradients,
            given: memory.iter().map(|storage| (Arc::downgrade(storage), read.contains(&id(storage)))).collect(),
            saved: cut.saved,
            found,
            numbers: hosts.slots.clone(),
            composites,
            relaxed,
            variants: Mutex::default(),
        }
    });
    let differentiable = outputs.iter().map(|output| output.needs_grad()).collect();
    let unrecorded = outputs.iter().map(Tensor::unrecorded).collect();
    Ok(Compiled { hosts, forward, report, differentiable, unrecorded, backward })
}

/// All memory that operations read and do not write.
fn found_by(ops: &[Op]) -> Vec<Arc<Storage>> {
    let mut found: Vec<Arc<Storage>> = Vec::new();
    let mut add = |storage: &Arc<Storage>| {
        if !found.iter().any(|known| Arc::ptr_eq(known, storage)) {
            found.push(storage.clone());
        }
    };
    for op in ops {
        op.inputs.iter().for_each(|input| add(input.storage()));
        if let Kind::Opaque(launch) = &op.kind {
            for arg in &launch.args {
                if let Arg::Buffer(storage, Access::Read) = arg {
                    add(storage);
                }
            }
        }
    }
    let written: HashSet<StorageId> = ops.iter().flat_map(Op::writes).collect();
    found.retain(|storage| !written.contains(&id(storage)));
    found
}

fn reads_any(launch: &Launch, memory: &HashMap<StorageId, Raw>) -> bool {
    launch.args.iter().any(|arg| matches!(arg, Arg::Buffer(storage, _) if memory.contains_key(&id(storage))))
}

/// All of a storage, for handing it on.
fn bytes_of(storage: &Arc<Storage>, planned: &HashMap<StorageId, Planned>, outputs: &[Tensor]) -> Result<Raw> {
    let queue = match planned.get(&id(storage)) {
        Some(planned) => planned.queue.clone(),
        None => outputs[0].queue().clone(),
    };
    let layout = Layout::contiguous(Shape::from([storage.nbytes()]));
    Ok(Raw::from_storage(&queue, storage.clone(), layout, DType::U8)?)
}

impl Backward {
    /// How many values the forward pass leaves behind.
    pub(super) fn saved(&self) -> usize {
        self.saved.len()
    }

    /// The bytes of what the forward pass leaves behind beside arguments and results.
    pub(super) fn saved_bytes(&self) -> usize {
        self.saved.iter().map(|storage| storage.nbytes()).sum()
    }

    /// The program for upstream gradients that lie like these (`None`: dense). `None` if they must be made dense first.
    pub(super) fn variant(&self, layouts: &[Option<Layout>]) -> Result<Option<Arc<Variant>>> {
        let lock = || self.variants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = lock().get(layouts) {
            return Ok(Some(found.clone()));
        }
        let Some(made) = self.compile(layouts)? else { return Ok(None) };
        let made = Arc::new(made);
        lock().insert(layouts.to_vec(), made.clone());
        Ok(Some(made))
    }

    fn compile(&self, layouts: &[Option<Layout>]) -> Result<Option<Variant>> {
        // Stand-ins for the upstream gradients as they lie.
        let mut seen: HashMap<StorageId, Raw> = HashMap::new();
        let mut given = Vec::new();
        for (upstream, layout) in self.upstream.iter().zip(layouts) {
            let Some(traced) = upstream else { continue };
            let Some(layout) = layout else {
                given.push(id(traced.storage()));
                continue;
            };
            let storage = stand_in(layout.end() * traced.dtype().size());
            let raw = Raw::from_storage(traced.queue(), storage, layout.clone(), traced.dtype())?;
            given.push(id(raw.storage()));
            seen.insert(id(traced.storage()), raw);
        }
        let turned = |tensor: &Raw| -> Option<Raw> {
            let Some(real) = seen.get(&id(tensor.storage())) else { return Some(tensor.clone()) };
            let dense = Layout::contiguous(real.shape().clone());
            real.with_layout(remap(&dense, tensor.layout(), real.layout())?).ok()
        };
        let mut ops = Vec::with_capacity(self.ops.len());
        for op in &self.ops {
            let touches = op.reads().iter().any(|storage| seen.contains_key(storage));
            if touches && matches!(op.kind, Kind::Opaque(_)) {
                return Ok(None);
            }
            let Some(inputs) = op.inputs.iter().map(turned).collect::<Option<Vec<Raw>>>() else { return Ok(None) };
            // A launch for all of it expects memory as it was traced.
            let part_of = op.part_of.filter(|&at| !reads_any(&self.composites[at].launch, &seen));
            ops.push(Op { inputs, part_of, ..op.clone() });
        }
        let mut results = Vec::new();
        let mut places = Vec::new();
        for gradient in &self.gradients {
            places.push(match gradient {
                None => None,
                Some(gradient) => {
                    let Some(gradient) = turned(gradient) else { return Ok(None) };
                    results.push(gradient);
                    Some(results.len() - 1)
                }
            });
        }
        given.extend(self.given.iter().map(|(storage, _)| storage.as_ptr() as StorageId));
        given.extend(self.saved.iter().map(id));
        let own: HashSet<StorageId> = self.planned.keys().filter(|storage| !given.contains(storage)).copied().collect();
        let kept: HashSet<StorageId> = results.iter().map(|t| id(t.storage())).filter(|s| own.contains(s)).collect();
        let live = needed(&ops, &kept, &own);
        let ops = ops.into_iter().zip(live).filter(|(_, live)| *live).map(|(op, _)| op).collect();
        let planned = self.planned.iter().filter(|(s, _)| own.contains(s)).map(|(s, p)| (*s, p.clone())).collect();
        let (program, report) = build(
            Listing { ops, own, kept, composites: self.composites.clone() },
            planned,
            (&given, &self.numbers),
            &results,
            self.relaxed,
        )?;
        Ok(Some(Variant { program, report, results: places }))
    }
}
