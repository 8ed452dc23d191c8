//! A recorded program in fewer launches, once it is known who reads what: elementwise operations and casts after a product, a
//! convolution or another elementwise operation become its epilogue, parameters are cast together, and small constants are filled
//! once instead of at every run.
//!
//! ```text
//!   recorded    product -> t     relu: t -> y      ...      product -> g     cast: g -> h     add: h, x -> z
//!   fused                        product_relu -> y                                            product_cast_add -> z
//! ```
//!
//! Only where the bits stay the same: a result that is no longer stored has no other reader, and one of 16 bits is still rounded
//! to them before the epilogue goes on in float32.

mod casts;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::origins::Origins;
use super::{InPlace, Need, Recorded, Recording, State, Step};
use crate::backend::Queue;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::described::{self, Described, Fusable, Meaning, Prologue};
use crate::kernels::elementwise::{Elementwise, Number};
use crate::kernels::expr::{Expr, Graph, Val};
use crate::kernels::launch::{self, Access, Arg, Launch};
use crate::storage::Storage;
use crate::tensor::Tensor;

/// What an epilogue may have: beyond this, the parameters and registers of a kernel suffer.
const MAX_INPUTS: usize = 5;
const MAX_NODES: usize = 64;
/// On OpenCL devices each of a tile's sums has the epilogue's instructions of its own, while matrix units stand still: with GELU's
/// gradient in products GPT-2 small's step in tf32 took 52.0 ms on an H200, without 44.6.
const MAX_EFFORT: usize = 16;
/// Results up to this size take any epilogue: what the instructions cost is less than a launch, as in a step of generation.
const SMALL_RESULT: usize = 1 << 16;
/// Constants up to this size have memory of their own instead of being filled at every run.
const MAX_CONSTANT: usize = 4096;

/// What launches mean, as far as fusion cares. All tensors are over stand-ins.
#[derive(Default)]
pub(super) struct Notes {
    /// The operation that was offered last, whose launch comes next.
    next: Option<Meant>,
    /// Elementwise operations by their step.
    maps: HashMap<usize, Map>,
    /// Steps that fill a need with a number.
    fills: Vec<(usize, usize)>,
    products: Vec<Product>,
    /// Whether a product is being turned into launches, whose parts are nobody's business.
    lowering: bool,
}

enum Meant {
    Map(Box<Map>),
    Fill(usize),
}

/// An elementwise operation with one result.
struct Map {
    name: String,
    expr: Expr,
    scalars: Vec<Number>,
    inputs: Vec<Tensor>,
    output: Tensor,
}

/// An operation that can be run again with an expression after it, and the steps that it is made of.
struct Product {
    heavy: Arc<dyn Fusable>,
    /// Whether it is an elementwise operation itself, to whose kernel an epilogue costs nothing but its arithmetic.
    pointwise: bool,
    /// Whether numbers of its own change from run to run.
    moving: bool,
    inputs: Vec<Tensor>,
    output: Tensor,
    steps: Range<usize>,
}

/// An elementwise operation as the head of a chain.
struct Head {
    name: String,
    expr: Expr,
    scalars: Vec<Number>,
    output: Tensor,
}

impl Fusable for Head {
    fn name(&self) -> &'static str {
        "elementwise"
    }

    fn run(
        &self,
        inputs: &[Tensor],
        _: Option<Prologue<'_>>,
        epilogue: Option<described::Epilogue<'_>>,
    ) -> Result<Tensor> {
        let out = &self.output;
        let epilogue =
            epilogue.ok_or_else(|| Error::argument("capture", "an elementwise operation is its own launch"))?;
        let expr = epilogue.after(&self.expr, inputs.len());
        let scalars: Vec<Number> = self.scalars.iter().cloned().chain(epilogue.scalars).collect();
        let (shape, dtype) = (out.shape().clone(), epilogue.dtype.unwrap_or(out.dtype()));
        let made = match out.layout().is_channels_last() {
            true => Tensor::uninit_channels_last(out.queue(), shape, dtype)?,
            false => Tensor::uninit(out.queue(), shape, dtype)?,
        };
        let all: Vec<&Tensor> = inputs.iter().chain(&epilogue.inputs).collect();
        Elementwise::new(self.name.clone(), expr).run(&all, &scalars, &[&made])?;
        Ok(made)
    }
}

impl Map {
    /// The operation as the head of a chain, from the step that it is.
    fn head(&self, at: usize) -> Product {
        let Map { name, expr, scalars, inputs, output } = self;
        let (name, expr, scalars) = (name.clone(), expr.clone(), scalars.clone());
        let moving = any_slot(&scalars);
        let head = Head { name, expr, scalars, output: output.clone() };
        let (inputs, output) = (inputs.clone(), output.clone());
        Product { heavy: Arc::new(head), pointwise: true, moving, inputs, output, steps: at..at + 1 }
    }
}

/// A product and what became its epilogue so far.
struct Chain<'p> {
    product: &'p Product,
    /// The steps after the product's own; what stands for all of them goes to the place of the last.
    followers: Vec<usize>,
    names: Vec<String>,
    epilogue: Option<Epilogue>,
    /// What the last of them gives.
    output: Tensor,
}

/// An expression of a product's result, which is input 0.
struct Epilogue {
    expr: Expr,
    inputs: Vec<Tensor>,
    scalars: Vec<Number>,
}

/// What stands in the place of a chain's last step.
struct Joined {
    launches: Vec<Launch>,
    /// The chain's other steps.
    others: Vec<usize>,
}

impl State {
    /// Remembers an operation that is about to be launched.
    pub(super) fn describe(&mut self, operation: &Described<'_>) {
        self.fusion.next = match (&operation.meaning, operation.outputs) {
            _ if self.fusion.lowering => None,
            (Meaning::Fill(_), [output]) => self.need(output.storage()).map(Meant::Fill),
            (Meaning::Elementwise(op), [output]) if !op.relaxed => {
                self.map(op.name, op.expr.clone(), op.scalars, operation.inputs, output)
            }
            (Meaning::Copy, [output]) if operation.inputs[0].dtype() != output.dtype() => {
                let g = Graph::new();
                self.map("cast", g.finish(&[g.input(0)]), &[], operation.inputs, output)
            }
            _ => None,
        };
    }

    fn map(&self, name: &str, expr: Expr, scalars: &[Number], inputs: &[&Tensor], output: &Tensor) -> Option<Meant> {
        let (inputs, output) = self.all(inputs).zip(self.standing_in(output))?;
        Some(Meant::Map(Box::new(Map { name: name.to_owned(), expr, scalars: scalars.to_vec(), inputs, output })))
    }

    /// Notes the meaning of a launch that will be the next step.
    pub(super) fn note_meaning(&mut self, launch: &Launch) {
        let at = self.steps.len();
        match self.fusion.next.take() {
            Some(Meant::Map(map)) if touches(launch, map.output.storage(), true) => {
                self.fusion.maps.insert(at, *map);
            }
            Some(Meant::Fill(need)) if touches(launch, &self.needs[need].stand_in, true) => {
                self.fusion.fills.push((at, need));
            }
            _ => {}
        }
    }

    /// The tensor over the stand-in of its storage; memory that is not the program's stands for itself.
    fn standing_in(&self, tensor: &Tensor) -> Option<Tensor> {
        let storage = match self.need(tensor.storage()) {
            Some(need) => self.needs[need].stand_in.clone(),
            None => tensor.storage().clone(),
        };
        Tensor::from_storage(tensor.queue(), storage, tensor.layout().clone(), tensor.dtype()).ok()
    }

    fn all(&self, tensors: &[&Tensor]) -> Option<Vec<Tensor>> {
        tensors.iter().map(|tensor| self.standing_in(tensor)).collect()
    }

    /// Takes the last steps away again, from one on: all of them launches.
    fn split_off(&mut self, at: usize) -> Vec<Launch> {
        let launches: Vec<Launch> = self.steps.drain(at..).filter_map(launch_of).collect();
        self.launches -= launches.len();
        self.places.truncate(self.launches);
        let count = self.launches;
        self.in_place.retain(|place| place.launch < count);
        launches
    }

    fn launches_in(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &Launch)> {
        self.steps[range.clone()].iter().zip(range).filter_map(|(step, at)| Some((at, step.launch()?)))
    }

    /// The steps that do anything with each need.
    fn users(&self) -> Vec<Vec<usize>> {
        let mut users = vec![Vec::new(); self.needs.len()];
        for (at, launch) in self.launches_in(0..self.steps.len()) {
            for arg in &launch.args {
                if let Arg::Buffer(storage, _) = arg
                    && let Some(need) = self.need(storage)
                    && users[need].last() != Some(&at)
                {
                    users[need].push(at);
                }
            }
        }
        users
    }

    /// The step of the elementwise operation that alone reads what a chain gives and can become a part of its epilogue.
    fn follower(&self, chain: &Chain<'_>, users: &[Vec<usize>]) -> Option<usize> {
        let made = &chain.output;
        let need = self.need(made.storage())?;
        if self.needs[need].storage.strong_count() > 0 {
            return None;
        }
        let own = &chain.product.steps;
        let others = |at: &usize| !own.contains(at) && !chain.followers.contains(at);
        let mut users = users[need].iter().copied().filter(others);
        let at = users.next()?;
        let map = self.fusion.maps.get(&at)?;
        let from = chain.followers.last().map_or(own.end, |last| last + 1);
        let alone = users.next().is_none() && at >= from;
        // The chain moves to its reader's place: what it reads must still be there.
        let kept = self
            .launches_in(from..at)
            .all(|(_, launch)| chain.inputs().all(|input| !touches(launch, input.storage(), true)));
        // Nor may the host have changed a number on the way.
        let moving =
            chain.product.moving || chain.epilogue.as_ref().is_some_and(|epilogue| any_slot(&epilogue.scalars));
        let waits = moving && at >= from && self.steps[from..at].iter().any(|step| matches!(step, Step::Host(_)));
        (alone && kept && !waits && map.fits(chain)).then_some(at)
    }
}

impl Map {
    fn reads(&self, chain: &Chain<'_>) -> impl Fn(&Tensor) -> bool + use<> {
        let made = chain.output.storage().clone();
        move |input| Arc::ptr_eq(input.storage(), &made)
    }

    /// Whether the operation gives the same bits as a part of the chain's epilogue.
    fn fits(&self, chain: &Chain<'_>) -> bool {
        let (made, out, reads) = (&chain.output, &self.output, self.reads(chain));
        let others = || self.inputs.iter().filter(|input| !reads(input));
        let fresh = |tensor: &Tensor| !Arc::ptr_eq(tensor.storage(), out.storage());
        let computes_alike =
            |tensor: &Tensor| tensor.dtype().is_float() && tensor.dtype().accumulator() == made.dtype().accumulator();
        let before = chain.epilogue.as_ref();
        lie_alike(out, made)
            && self.inputs.iter().chain([out]).all(computes_alike)
            && self.inputs.iter().filter(|input| reads(input)).all(|input| lie_alike(input, made))
            && self.inputs.iter().chain(chain.inputs()).all(fresh)
            && others().all(|input| viewed(input, made).is_some())
            && others().count() + before.map_or(0, |before| before.inputs.len()) <= MAX_INPUTS
            && (chain.product.pointwise
                || matches!(made.queue(), Queue::Cpu(_))
                || made.size() <= SMALL_RESULT
                || self.expr.effort() + before.map_or(0, |before| before.expr.effort()) <= MAX_EFFORT)
            && self.expr.nodes().len() + before.map_or(0, |before| before.expr.nodes().len()) <= MAX_NODES
    }
}

impl<'p> Chain<'p> {
    fn new(product: &'p Product) -> Self {
        let output = product.output.clone();
        Chain { product, followers: Vec::new(), names: Vec::new(), epilogue: None, output }
    }

    /// Every tensor that is read.
    fn inputs(&self) -> impl Iterator<Item = &Tensor> {
        self.product.inputs.iter().chain(self.epilogue.iter().flat_map(|epilogue| &epilogue.inputs))
    }

    /// Makes an operation a part of the epilogue: the chain's result in its place, the further inputs in the result's shape.
    fn push(&mut self, at: usize, map: Map) {
        let (reads, g) = (map.reads(self), Graph::new());
        let (expr, mut inputs, mut scalars) = match self.epilogue.take() {
            Some(Epilogue { expr, inputs, scalars }) => (expr, inputs, scalars),
            None => (g.finish(&[g.input(0)]), Vec::new(), Vec::new()),
        };
        let before = g.inline(&expr, &[], &[])[0];
        let stored = match self.output.dtype() {
            DType::F16 => before.to_f16(),
            DType::BF16 => before.to_bf16(),
            _ => before,
        };
        let values: Vec<Val<'_>> = map
            .inputs
            .iter()
            .map(|input| match viewed(input, &self.output) {
                Some(view) if !reads(input) => {
                    inputs.push(view);
                    g.input(inputs.len())
                }
                _ => stored,
            })
            .collect();
        let numbers: Vec<Val<'_>> = (0..map.expr.scalars()).map(|i| g.scalar(scalars.len() + i)).collect();
        scalars.extend(map.scalars);
        let outputs = g.inline(&map.expr, &values, &numbers);
        let expr = g.finish_with(&outputs, 1 + inputs.len(), scalars.len());
        self.epilogue = Some(Epilogue { expr, inputs, scalars });
        self.followers.push(at);
        self.names.push(map.name);
        self.output = map.output;
    }
}

impl Recording {
    /// Turns a product into launches, and notes which they are. `false` where that is left to the product itself.
    pub(super) fn keep(&self, operation: &Described<'_>, heavy: &Arc<dyn Fusable>) -> Result<bool> {
        let mut state = self.state.borrow_mut();
        let [output] = operation.outputs else { return Ok(false) };
        let (Some(need), Some(inputs), Some(stand_in)) =
            (state.need(output.storage()), state.all(operation.inputs), state.standing_in(output))
        else {
            return Ok(false);
        };
        if state.fusion.lowering || !lie_alike(output, output) {
            return Ok(false);
        }
        let start = state.steps.len();
        // While the launches are made, a result of their own stands for the one that is there already.
        state.alive.retain(|&alive| alive != need);
        drop(state);
        let made = self.lower(heavy, &inputs, None)?;
        let mut state = self.state.borrow_mut();
        state.alive.push(need);
        state.requested_bytes -= made.storage().nbytes();
        let launches = state.split_off(start);
        if made.layout() != output.layout() || made.dtype() != output.dtype() {
            return Ok(false);
        }
        state.append(launches, &made, &stand_in);
        output.storage().raise_version();
        let steps = start..state.steps.len();
        state.fusion.products.push(Product {
            heavy: heavy.clone(),
            pointwise: false,
            moving: false,
            inputs,
            output: stand_in,
            steps,
        });
        Ok(true)
    }

    fn lower(
        &self,
        heavy: &Arc<dyn Fusable>,
        inputs: &[Tensor],
        epilogue: Option<described::Epilogue<'_>>,
    ) -> Result<Tensor> {
        self.state.borrow_mut().fusion.lowering = true;
        let made = heavy.run(inputs, None, epilogue);
        self.state.borrow_mut().fusion.lowering = false;
        made
    }

    /// What was recorded, in as few launches as give the same bits; the recording is empty and closed then.
    ///
    /// Call it when nothing of the program is held any more but what its results are: whatever somebody could still look at is
    /// computed.
    ///
    /// # Errors
    /// What a product says that is chosen anew.
    pub fn finish(self: &Rc<Self>) -> Result<Recorded> {
        let mut products = std::mem::take(&mut self.state.borrow_mut().fusion.products);
        products.extend(self.state.borrow().fusion.maps.iter().map(|(&at, map)| map.head(at)));
        products.sort_by_key(|product| product.steps.start);
        let users = self.state.borrow().users();
        let casts = self.state.borrow().casts(&users);
        let (mut gone, mut instead): (HashSet<usize>, HashMap<usize, Joined>) = Default::default();
        let origins = Origins::of(&self.state.borrow().steps);
        let places = self.state.borrow().places.clone();
        for product in &products {
            let mut chain = Chain::new(product);
            {
                let mut state = self.state.borrow_mut();
                // It is a part of another chain already.
                if product.pointwise && state.fusion.maps.remove(&product.steps.start).is_none() {
                    continue;
                }
                while let Some(at) = state.follower(&chain, &users)
                    && let Some(map) = state.fusion.maps.remove(&at)
                {
                    chain.push(at, map);
                }
            }
            let Some((last, before)) = chain.followers.split_last() else { continue };
            let requested = self.state.borrow().requested_bytes;
            let fused = launch::with_sink(self.clone(), || self.fuse(&chain))?;
            self.state.borrow_mut().requested_bytes = requested;
            if let Some(launches) = fused {
                let others: Vec<usize> = product.steps.clone().chain(before.iter().copied()).collect();
                gone.extend(&others);
                instead.insert(*last, Joined { launches, others });
            }
        }
        self.join_casts(&casts, &mut gone, &mut instead)?;
        let (constants, once) = self.state.borrow_mut().constants(&gone);
        gone.extend(constants);
        let behind = self.state.borrow_mut().replace(&gone, instead);
        let slots = origins.trace(&self.state.borrow().steps, &behind);
        // A joined launch is its product's work.
        let place = |origins: &Vec<usize>| places.get(*origins.first()?)?.clone();
        let places = behind.iter().map(place).collect();
        Ok(Recorded { once, origins: origins.launches, slots, places, ..self.take() })
    }

    /// The launches of a product with its epilogue.
    fn fuse(&self, chain: &Chain<'_>) -> Result<Option<Vec<Launch>>> {
        let Chain { product, epilogue: Some(Epilogue { expr, inputs, scalars }), output, .. } = chain else {
            return Ok(None);
        };
        let start = self.state.borrow().steps.len();
        let (inputs, scalars, dtype) = (inputs.clone(), scalars.clone(), Some(output.dtype()));
        let epilogue = described::Epilogue { expr, inputs, scalars, dtype };
        let made = self.lower(&product.heavy, &product.inputs, Some(epilogue))?;
        let mut state = self.state.borrow_mut();
        let launches = state.split_off(start);
        if !lie_alike(&made, output) || made.storage().nbytes() != output.storage().nbytes() {
            return Ok(None);
        }
        state.append(launches, &made, output);
        let mut launches = state.split_off(start);
        if let Some(last) = launches.last_mut() {
            last.name = format!("{}_{}", last.name, chain.names.join("_")).into();
        }
        Ok(Some(launches))
    }
}

impl State {
    /// Adds launches that write where another tensor lies.
    fn append(&mut self, launches: Vec<Launch>, made: &Tensor, instead: &Tensor) {
        let Some(stand_in) = self.need(made.storage()).map(|need| self.needs[need].stand_in.clone()) else { return };
        self.launches += launches.len();
        self.note_places();
        self.steps.extend(launches.into_iter().map(|mut launch| {
            launch.bind(|storage| Arc::ptr_eq(storage, &stand_in).then(|| instead.storage().clone()));
            Step::Launch(Box::new(launch))
        }));
    }

    /// The steps that fill small memory which nobody else writes or could look at, and their launches.
    fn constants(&mut self, gone: &HashSet<usize>) -> (Vec<usize>, Vec<Launch>) {
        let (mut steps, mut once) = (Vec::new(), Vec::new());
        for (at, need) in std::mem::take(&mut self.fusion.fills) {
            let Need { storage, stand_in, nbytes, .. } = &self.needs[need];
            let alone = self
                .launches_in(0..self.steps.len())
                .all(|(other, launch)| other == at || gone.contains(&other) || !touches(launch, stand_in, true));
            if *nbytes > MAX_CONSTANT || storage.strong_count() > 0 || !alone {
                continue;
            }
            if let Step::Launch(launch) = &self.steps[at] {
                once.push((**launch).clone());
                steps.push(at);
                self.needs[need].constant = true;
            }
        }
        (steps, once)
    }

    /// Leaves steps out and puts others in their place. For each launch that is there then it gives those that were there before
    /// and whose work it does.
    fn replace(&mut self, gone: &HashSet<usize>, mut instead: HashMap<usize, Joined>) -> Vec<Vec<usize>> {
        // Launches by their step before, and launches by their number before.
        let (mut before, mut number) = (HashMap::new(), HashMap::new());
        let mut steps: Vec<Step> = Vec::with_capacity(self.steps.len());
        let mut behind: Vec<Vec<usize>> = Vec::new();
        for (at, step) in std::mem::take(&mut self.steps).into_iter().enumerate() {
            if matches!(step, Step::Host(_)) {
                steps.push(step);
                continue;
            }
            let origin = before.len();
            before.insert(at, origin);
            if let Some(Joined { launches, others }) = instead.remove(&at) {
                let joined = others.iter().filter_map(|step| before.get(step).copied()).chain([origin]).collect();
                behind.extend(vec![joined; launches.len()]);
                steps.extend(launches.into_iter().map(|launch| Step::Launch(Box::new(launch))));
            } else if !gone.contains(&at) {
                number.insert(origin, behind.len());
                behind.push(vec![origin]);
                steps.push(step);
            }
        }
        self.steps = steps;
        self.launches = behind.len();
        let places = std::mem::take(&mut self.in_place).into_iter();
        self.in_place =
            places.filter_map(|place| Some(InPlace { launch: *number.get(&place.launch)?, ..place })).collect();
        behind
    }
}

fn any_slot(numbers: &[Number]) -> bool {
    numbers.iter().any(|number| matches!(number, Number::Slot(_)))
}

fn launch_of(step: Step) -> Option<Launch> {
    match step {
        Step::Launch(launch) => Some(*launch),
        Step::Host(_) => None,
    }
}

/// Whether a launch writes a storage, or does anything with it.
fn touches(launch: &Launch, storage: &Arc<Storage>, writes: bool) -> bool {
    launch.args.iter().any(|arg| match arg {
        Arg::Buffer(other, access) => Arc::ptr_eq(other, storage) && (!writes || *access == Access::Write),
        _ => false,
    })
}

/// Whether a tensor is all of its storage, in order.
fn is_whole(tensor: &Tensor) -> bool {
    tensor.layout().is_contiguous() && tensor.size() * tensor.dtype().size() == tensor.storage().nbytes()
}

/// Whether two tensors are all of their storages with the elements in the same order: row by row, or both channels-last.
pub(super) fn lie_alike(a: &Tensor, b: &Tensor) -> bool {
    let channels_last = |t: &Tensor| {
        t.layout().is_channels_last() && t.size() * t.dtype().size() == t.storage().nbytes() && t.layout() == a.layout()
    };
    is_whole(a) && is_whole(b) || channels_last(a) && channels_last(b)
}

/// An operand in the shape of a product's result, where that takes no copy.
fn viewed(input: &Tensor, made: &Tensor) -> Option<Tensor> {
    if input.shape() == made.shape() {
        return Some(input.clone());
    }
    let layout = input.layout().reshape(made.shape()).ok().flatten()?;
    Tensor::from_storage(input.queue(), input.storage().clone(), layout, input.dtype()).ok()
}
