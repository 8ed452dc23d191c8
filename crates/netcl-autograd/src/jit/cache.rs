//! Plans by what they depend on, and calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netcl_core::backend::Queue;
use netcl_core::debug::{self, Level};
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::Slot;
use netcl_core::precision::matmul_precision;
use netcl_core::random::{Generator, default_generator, set_default_generator};
use netcl_core::shape::Layout;
use netcl_core::storage::Storage;
use netcl_core::tensor::Tensor as Raw;
use smallvec::SmallVec;

use super::captures::Captures;
use super::leaves::{Leaves, watch};
use super::plan::{Backward, Body, Compiled, Place, Plan, trace};
use super::report::UnitReport;
use super::{Counters, Style, enabled, page, report};
use crate::autocast::{autocast_dtype, resume};
use crate::error::{Error, Result};
use crate::graph::{BackwardOptions, Edge, Gradients, anomaly_enabled, grad_enabled, joint_grad_up_to, record_joint};
use crate::tensor::Tensor;

/// Plans that are kept; the one that was not used for the longest time goes first.
const MAX_PLANS: usize = 256;

/// The compiled forms of one function, by the kind of its arguments: what [`Jit`](super::Jit) and Python's `ag.jit` are made of.
///
/// A key has the caller's bytes (structure of the arguments, values of those that are no tensors) and for every tensor dtype,
/// shape, strides, offset, device and whether it needs a gradient; never an identity.
#[derive(Default)]
pub struct Cache {
    name: String,
    /// The one that was used last comes first: the next call mostly wants it, and finds it without hashing its key.
    plans: Mutex<Vec<Entry>>,
    relaxed: bool,
    traces: AtomicU64,
    hits: AtomicU64,
}

/// A plan, what it depends on, and what it supposes of tensors that the function has found itself.
struct Entry {
    key: Vec<u8>,
    plan: Arc<Plan>,
    number: u64,
    leaves: Leaves,
}

impl Cache {
    /// An empty cache. `relaxed` lets pointwise kernels on OpenCL devices trade exactness for speed.
    pub fn new(relaxed: bool) -> Cache {
        Cache { relaxed, ..Cache::default() }
    }

    /// With the function's name, for readers.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Cache {
        self.name = name.into();
        self
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        let plans = self.lock().len() as u64;
        Counters { traces: self.traces.load(Ordering::Relaxed), hits: self.hits.load(Ordering::Relaxed), plans }
    }

    /// Calls a function: `inputs` are its arguments, `captures` tensors it uses beside them that may be exchanged between calls.
    ///
    /// `statics` stands for everything else that the function depends on. Returns the results and the number of the plan that
    /// made them; plans have different numbers.
    #[track_caller]
    pub fn call(
        &self,
        statics: &[u8],
        inputs: &[&Tensor],
        captures: &Captures,
        body: Body,
    ) -> Result<(u64, Vec<Tensor>)> {
        if runs_op_by_op() {
            return Ok((0, body(&owned(inputs))?));
        }
        let (number, plan) = self.plan(statics, inputs, captures, &body)?;
        let results = match &*plan {
            Plan::AsItIs(_) => body(&owned(inputs))?,
            Plan::Compiled(_) => run(plan, inputs, captures, body)?,
        };
        Ok((number, results))
    }

    /// Tells whoever asked for it (`NETCL_DEBUG=3`, `NETCL_EXPLAIN`) of a new plan.
    fn tell(&self, plan: &Plan, inputs: &[&Tensor]) -> Result<()> {
        let (print, page) = (debug::wants(Level::Fusion), page::wanted());
        if !print && !page {
            return Ok(());
        }
        let list =
            |t: &&Tensor| format!("{} {}{}", t.shape(), t.dtype(), if t.needs_grad() { ", with gradient" } else { "" });
        let device = inputs.first().map(|t| format!(" on {}", t.queue().device_name())).unwrap_or_default();
        let arguments = format!("{}{device}", inputs.iter().map(list).collect::<Vec<_>>().join("; "));
        if print {
            debug::print(format_args!("jit {} of {arguments}\n{}", self.name, explanation(plan)?));
            if debug::wants(Level::Sources) {
                debug::print(format_args!("{}", sources(plan)?));
            }
        }
        if page {
            let (as_it_is, variant);
            let passes: Vec<(&str, &[UnitReport])> = match plan {
                Plan::AsItIs(why) => {
                    as_it_is = Some(why.as_str());
                    Vec::new()
                }
                Plan::Compiled(compiled) => {
                    as_it_is = None;
                    variant = match &compiled.backward {
                        Some(backward) => backward.variant(&vec![None; backward.upstream.len()])?,
                        None => None,
                    };
                    let backward = variant.as_ref().map(|variant| ("backward", variant.report.as_slice()));
                    [Some(("forward", compiled.report.as_slice())), backward].into_iter().flatten().collect()
                }
            };
            page::add(&page::Section { name: &self.name, arguments, passes: &passes, as_it_is });
        }
        Ok(())
    }

    /// What fused and what did not, one paragraph per kernel.
    pub fn explain(&self, statics: &[u8], inputs: &[&Tensor], captures: &Captures, body: Body) -> Result<String> {
        explanation(&self.plan(statics, inputs, captures, &body)?.1)
    }

    /// The text of every kernel that was written for the function.
    pub fn source(&self, statics: &[u8], inputs: &[&Tensor], captures: &Captures, body: Body) -> Result<String> {
        sources(&self.plan(statics, inputs, captures, &body)?.1)
    }

    /// A drawing of the traced operations, boxed by kernel.
    pub fn graph(
        &self,
        statics: &[u8],
        inputs: &[&Tensor],
        captures: &Captures,
        body: Body,
        style: Style,
    ) -> Result<String> {
        let (_, plan) = self.plan(statics, inputs, captures, &body)?;
        let draw = match style {
            Style::Dot => report::dot,
            Style::Mermaid => report::mermaid,
        };
        let Plan::Compiled(compiled) = &*plan else { return Ok(draw(&[])) };
        let backward = match &compiled.backward {
            Some(backward) => backward.variant(&vec![None; backward.upstream.len()])?,
            None => None,
        };
        let mut passes = vec![("forward", compiled.report.as_slice())];
        passes.extend(backward.as_ref().map(|variant| ("backward", variant.report.as_slice())));
        Ok(draw(&passes))
    }

    fn plan(&self, statics: &[u8], inputs: &[&Tensor], captures: &Captures, body: &Body) -> Result<(u64, Arc<Plan>)> {
        let key = plan_key(statics, inputs, captures);
        {
            let mut plans = self.lock();
            if let Some(at) = plans.iter().position(|entry| entry.key == key && entry.leaves.are_unchanged()) {
                plans[..=at].rotate_right(1);
                self.hits.fetch_add(1, Ordering::Relaxed);
                return Ok((plans[0].number, plans[0].plan.clone()));
            }
        }
        // Without the lock: the function is the user's, and may call others.
        let number = self.traces.fetch_add(1, Ordering::Relaxed) + 1;
        let found: Vec<&Tensor> = captures.tensors().iter().collect();
        let (made, leaves) = watch(|| trace(body, inputs, &found, self.relaxed));
        let made = Arc::new(made?);
        self.tell(&made, inputs)?;
        let leaves = leaves.without(inputs.iter().copied().chain(found.iter().copied()));
        let mut plans = self.lock();
        plans.truncate(MAX_PLANS - 1);
        plans.insert(0, Entry { key, plan: made.clone(), number, leaves });
        Ok((number, made))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a plan says of itself: one paragraph per kernel.
fn explanation(plan: &Plan) -> Result<String> {
    let compiled = match plan {
        Plan::AsItIs(why) => return Ok(format!("runs as it is: {why}\n")),
        Plan::Compiled(compiled) => compiled,
    };
    let mut out = String::new();
    report::explain(&mut out, "forward", &compiled.report);
    if let Some(backward) = &compiled.backward {
        let (saved, bytes) = (backward.saved(), backward.saved_bytes());
        out.push_str(&format!(
            "kept for the backward pass: {saved} values of {bytes} bytes beside inputs and results\n"
        ));
        if let Some(variant) = backward.variant(&vec![None; backward.upstream.len()])? {
            report::explain(&mut out, "backward", &variant.report);
        }
    }
    Ok(out)
}

fn sources(plan: &Plan) -> Result<String> {
    let Plan::Compiled(compiled) = plan else { return Ok(String::new()) };
    let mut out = String::new();
    report::source(&mut out, "forward", &compiled.report);
    if let Some(backward) = &compiled.backward
        && let Some(variant) = backward.variant(&vec![None; backward.upstream.len()])?
    {
        report::source(&mut out, "backward", &variant.report);
    }
    Ok(out)
}

fn owned(tensors: &[&Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|&t| t.clone()).collect()
}

/// Whether functions run op by op at the moment: compiling is switched off, or a trace takes them in.
pub fn runs_op_by_op() -> bool {
    !enabled() || anomaly_enabled() || super::is_tracing() || crate::trace::active()
}

fn plan_key(statics: &[u8], inputs: &[&Tensor], captures: &Captures) -> Vec<u8> {
    let mut key = Vec::with_capacity(statics.len() + 128 * inputs.len() + 96);
    number(&mut key, statics.len() as u64);
    key.extend_from_slice(statics);
    number(&mut key, u64::from(grad_enabled()));
    number(&mut key, matmul_precision() as u64);
    key.extend_from_slice(autocast_dtype().map_or("", |dtype| dtype.name()).as_bytes());
    number(&mut key, inputs.len() as u64);
    for (i, tensor) in inputs.iter().enumerate() {
        describe(&mut key, tensor);
        // Arguments that share memory are another function of their memory.
        let twin = inputs[..i].iter().position(|other| other.shares_storage(tensor) && tensor.size() > 0);
        number(&mut key, twin.unwrap_or(i) as u64);
        number(&mut key, captures.sharing(tensor).map_or(u64::MAX, |at| at as u64));
    }
    key.extend_from_slice(&captures.digest());
    key
}

pub(super) fn number(key: &mut Vec<u8>, value: u64) {
    key.extend_from_slice(&value.to_le_bytes());
}

/// What a plan depends on of a tensor.
pub(super) fn describe(key: &mut Vec<u8>, tensor: &Tensor) {
    let layout = tensor.layout();
    key.extend_from_slice(tensor.dtype().name().as_bytes());
    number(key, layout.shape().ndim() as u64);
    layout.shape().iter().for_each(|&n| number(key, n as u64));
    layout.strides().iter().for_each(|&stride| number(key, stride as u64));
    number(key, layout.offset() as u64);
    number(key, u64::from(tensor.needs_grad()));
    key.extend_from_slice(tensor.unrecorded().unwrap_or_default().as_bytes());
    let device = match tensor.queue() {
        Queue::Cpu(_) => 0,
        Queue::OpenCl(stream) => Arc::as_ptr(stream) as u64,
    };
    number(key, device);
}

/// A storage as it was when the forward pass had run.
struct Kept {
    storage: Arc<Storage>,
    version: u64,
}

#[track_caller]
fn run(plan: Arc<Plan>, inputs: &[&Tensor], captures: &Captures, body: Body) -> Result<Vec<Tensor>> {
    let Plan::Compiled(compiled) = &*plan else { return body(&owned(inputs)) };
    let captures = captures.tensors();
    let given: Vec<Arc<Storage>> = inputs.iter().copied().chain(captures).map(|t| t.storage().clone()).collect();
    // Where the numbers of this call begin, for a second run of the function.
    let generator = (!compiled.hosts.is_empty()).then(default_generator);
    let numbers = compiled.hosts.run()?;
    let mut results = compiled.forward.run(&given, &numbers)?;
    let Some(backward) = compiled.backward.as_ref() else {
        return Ok(marked(compiled, results.into_iter().map(Tensor::from).collect()));
    };
    let saved = results.split_off(compiled.differentiable.len());
    let keep = |storage: &Arc<Storage>| Kept { storage: storage.clone(), version: storage.version() };
    let read = given.iter().zip(&backward.given).map(|(storage, (_, read))| read.then(|| keep(storage))).collect();
    let call = Call {
        plan: plan.clone(),
        given: read,
        saved: saved.iter().map(|t| keep(t.storage())).collect(),
        found: backward.found.iter().map(keep).collect(),
        numbers,
        generator,
        autocast: autocast_dtype(),
        arguments: inputs.iter().map(|t| (t.raw().clone(), t.edge())).collect(),
        edges: backward.places.iter().map(|place| place.edge(inputs, captures)).collect(),
        body,
    };
    let edges = call.edges.clone();
    let outputs = results.into_iter().zip(compiled.differentiable.iter().copied()).collect();
    let outputs = record_joint("jit", edges, outputs, Box::new(move |_, upstream| call.backward(upstream)));
    Ok(marked(compiled, outputs))
}

/// Results that remember the op that has lost their gradient, as they do op by op.
fn marked(compiled: &Compiled, outputs: Vec<Tensor>) -> Vec<Tensor> {
    for (output, lost) in outputs.iter().zip(&compiled.unrecorded) {
        if lost.is_some() {
            output.set_unrecorded(*lost);
        }
    }
    outputs
}

impl Place {
    fn edge(&self, inputs: &[&Tensor], captures: &[Tensor]) -> Edge {
        match self {
            Place::Input(at) => inputs[*at].edge(),
            Place::Captured(at) => captures[*at].edge(),
            Place::Fixed(edge) => edge.clone(),
        }
    }
}

/// One call of a compiled function, waiting for its gradients.
struct Call {
    plan: Arc<Plan>,
    given: Vec<Option<Kept>>,
    saved: Vec<Kept>,
    /// Tensors that the function has found itself.
    found: Vec<Kept>,
    numbers: Vec<Arc<Slot>>,
    generator: Option<Generator>,
    /// The scope that it was made in.
    autocast: Option<DType>,
    arguments: Vec<(Raw, Edge)>,
    edges: SmallVec<[Edge; 3]>,
    body: Body,
}

impl Call {
    fn backward(&self, upstream: &[Option<Tensor>]) -> Result<Gradients> {
        if grad_enabled() {
            return self.op_by_op(upstream);
        }
        let Plan::Compiled(compiled) = &*self.plan else { return Ok(Gradients::new()) };
        let Compiled { backward: Some(backward), .. } = &**compiled else { return Ok(Gradients::new()) };
        self.compiled(backward, upstream)
    }

    fn compiled(&self, backward: &Backward, upstream: &[Option<Tensor>]) -> Result<Gradients> {
        let mut arrived: Vec<Option<Raw>> = Vec::with_capacity(backward.upstream.len());
        for (i, traced) in backward.upstream.iter().enumerate() {
            arrived.push(match (traced, upstream.get(i).and_then(Option::as_ref)) {
                (None, _) => None,
                (Some(_), Some(given)) => Some(given.raw().clone()),
                (Some(traced), None) => {
                    let zero = Raw::full(traced.queue(), (), traced.dtype(), 0.0)?;
                    Some(zero.expand(traced.shape())?)
                }
            });
        }
        let layout = |raw: &Option<Raw>| {
            raw.as_ref().map(|raw| raw.layout()).filter(|l| !(l.is_contiguous() && l.offset() == 0)).cloned()
        };
        let layouts: Vec<Option<Layout>> = arrived.iter().map(layout).collect();
        let variant = match backward.variant(&layouts)? {
            Some(variant) => variant,
            None => {
                for raw in arrived.iter_mut().flatten() {
                    *raw = raw.duplicate()?;
                }
                let dense = backward.variant(&vec![None; arrived.len()])?;
                dense
                    .ok_or_else(|| Error::NoGradient { op: "jit", what: "the backward pass has no plan".to_owned() })?
            }
        };
        let mut memory: Vec<Arc<Storage>> = arrived.iter().flatten().map(|raw| raw.storage().clone()).collect();
        for kept in &self.given {
            memory.push(match kept {
                Some(kept) => kept.unchanged()?,
                None => Arc::new(Storage::empty()),
            });
        }
        for kept in &self.saved {
            memory.push(kept.unchanged()?);
        }
        self.found.iter().try_for_each(|kept| kept.unchanged().map(drop))?;
        let results = variant.program.run(&memory, &self.numbers)?;
        Ok(variant.results.iter().map(|at| at.map(|at| Tensor::from(results[at].clone()))).collect())
    }

    /// A gradient that is to be differentiated again: the function runs once more, op by op, and its own graph is walked.
    fn op_by_op(&self, upstream: &[Option<Tensor>]) -> Result<Gradients> {
        let inputs: Vec<Tensor> =
            self.arguments.iter().map(|(raw, edge)| Tensor::with_edge(raw.clone(), edge.clone())).collect();
        let now = default_generator();
        if let Some(generator) = self.generator {
            set_default_generator(generator);
        }
        let outputs = {
            let _autocast = resume(self.autocast);
            (self.body)(&inputs)
        };
        if self.generator.is_some() {
            set_default_generator(now);
        }
        let outputs = outputs?;
        let roots = outputs
            .iter()
            .zip(upstream)
            .filter_map(|(output, upstream)| Some((output.edge(), upstream.clone()?)))
            .collect();
        let options = BackwardOptions { create_graph: true, ..Default::default() };
        joint_grad_up_to(roots, &self.edges, options)
    }
}

impl Kept {
    fn unchanged(&self) -> Result<Arc<Storage>> {
        if self.storage.version() == self.version {
            return Ok(self.storage.clone());
        }
        let what =
            "backward needs a tensor that was overwritten in place since the compiled function ran; write to a copy \
                    instead"
                .to_owned();
        Err(Error::NoGradient { op: "jit", what })
    }
}
