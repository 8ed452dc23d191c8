//! A recorded program in fewer launches, once it is known who reads what: an elementwise operation behind a product or a convolution
//! becomes its epilogue, and small constants are filled once instead of at every run.
//!
//! ```text
//!   recorded    product -> t     relu: t -> y      ...      product -> g     relu_backward: y, g -> h
//!   fused                        product_relu -> y                           product_relu_backward -> h
//! ```
//!
//! Only where the bits stay the same: sums of the result's own dtype, of which nobody else sees anything.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::origins::Origins;
use super::{InPlace, Need, Recorded, Recording, State, Step};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::described::{Described, Finish, Heavy, Meaning};
use crate::kernels::elementwise::Number;
use crate::kernels::expr::{Expr, Graph, Val};
use crate::kernels::launch::{self, Access, Arg, Launch};
use crate::storage::Storage;
use crate::tensor::Tensor;

/// What a product takes in behind it: beyond this, the parameters and registers of its own kernel suffer.
const MAX_INPUTS: usize = 5;
const MAX_NODES: usize = 64;
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

/// An operation that can be run again with an expression behind it, and the steps that it is made of.
struct Product {
    heavy: Arc<dyn Heavy>,
    inputs: Vec<Tensor>,
    output: Tensor,
    steps: Range<usize>,
}

/// What stands in the place of an elementwise operation and of the product before it.
struct Joined {
    launches: Vec<Launch>,
    /// The product's own steps.
    product: Range<usize>,
}

impl State {
    /// Remembers an operation that is about to be launched.
    pub(super) fn describe(&mut self, operation: &Described<'_>) {
        self.fusion.next = match (&operation.meaning, operation.outputs) {
            _ if self.fusion.lowering => None,
            (Meaning::Fill(_), [output]) => self.need(output.storage()).map(Meant::Fill),
            (Meaning::Elementwise(op, scalars), [output]) if !op.is_relaxed() => {
                let map = |inputs, output| Map {
                    name: op.label().to_owned(),
                    expr: op.expr().clone(),
                    scalars: scalars.to_vec(),
                    inputs,
                    output,
                };
                self.all(operation.inputs).zip(self.standing_in(output)).map(|(i, o)| Meant::Map(Box::new(map(i, o))))
            }
            _ => None,
        };
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

    /// The step of the elementwise operation that alone reads a product's result and can become its epilogue.
    fn follower(&self, product: &Product) -> Option<usize> {
        let made = &product.output;
        let need = self.need(made.storage())?;
        if self.needs[need].storage.strong_count() > 0 {
            return None;
        }
        let mut users = self
            .launches_in(0..self.steps.len())
            .filter(|(at, launch)| !product.steps.contains(at) && touches(launch, made.storage(), false));
        let (at, _) = users.next()?;
        let map = self.fusion.maps.get(&at)?;
        let alone = users.next().is_none() && at >= product.steps.end;
        // The product moves to its reader's place: what it reads must still be there.
        let kept = self
            .launches_in(product.steps.end..at)
            .all(|(_, launch)| product.inputs.iter().all(|input| !touches(launch, input.storage(), true)));
        (alone && kept && map.fits(product)).then_some(at)
    }
}

impl Map {
    fn reads(&self, product: &Product) -> impl Fn(&Tensor) -> bool {
        let made = product.output.storage().clone();
        move |input| Arc::ptr_eq(input.storage(), &made)
    }

    /// Whether the operation gives the same bits as the product's epilogue.
    fn fits(&self, product: &Product) -> bool {
        let (made, out, reads) = (&product.output, &self.output, self.reads(product));
        let dtype = made.dtype();
        let others = || self.inputs.iter().filter(|input| !reads(input));
        let fresh = |tensor: &Tensor| !Arc::ptr_eq(tensor.storage(), out.storage());
        matches!(dtype, DType::F32 | DType::F64)
            && is_whole(out)
            && self.inputs.iter().all(|input| input.dtype() == dtype)
            && out.dtype() == dtype
            && self.inputs.iter().filter(|input| reads(input)).all(is_whole)
            && self.inputs.iter().chain(&product.inputs).all(fresh)
            && others().all(|input| viewed(input, made).is_some())
            && others().count() <= MAX_INPUTS
            && self.expr.nodes().len() <= MAX_NODES
    }

    /// The expression with the product's result as input 0, and the further inputs in the product's shape.
    fn behind(&self, product: &Product) -> (Expr, Vec<Tensor>) {
        let reads = self.reads(product);
        let g = Graph::new();
        let mut others = Vec::new();
        let values: Vec<Val<'_>> = self
            .inputs
            .iter()
            .map(|input| match viewed(input, &product.output) {
                Some(view) if !reads(input) => {
                    others.push(view);
                    g.input(others.len())
                }
                _ => g.input(0),
            })
            .collect();
        let scalars: Vec<Val<'_>> = (0..self.expr.scalars()).map(|i| g.scalar(i)).collect();
        let outputs = g.inline(&self.expr, &values, &scalars);
        (g.finish_with(&outputs, 1 + others.len(), self.expr.scalars()), others)
    }
}

impl Recording {
    /// Turns a product into launches, and notes which they are. `false` where that is left to the product itself.
    pub(super) fn keep(&self, operation: &Described<'_>, heavy: &Arc<dyn Heavy>) -> Result<bool> {
        let mut state = self.state.borrow_mut();
        let [output] = operation.outputs else { return Ok(false) };
        let (Some(need), Some(inputs), Some(stand_in)) =
            (state.need(output.storage()), state.all(operation.inputs), state.standing_in(output))
        else {
            return Ok(false);
        };
        if state.fusion.lowering || !is_whole(output) {
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
        state.fusion.products.push(Product { heavy: heavy.clone(), inputs, output: stand_in, steps });
        Ok(true)
    }

    fn lower(&self, heavy: &Arc<dyn Heavy>, inputs: &[Tensor], finish: Option<Finish<'_>>) -> Result<Tensor> {
        self.state.borrow_mut().fusion.lowering = true;
        let made = heavy.run(inputs, None, finish);
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
        let products = std::mem::take(&mut self.state.borrow_mut().fusion.products);
        let (mut gone, mut instead): (HashSet<usize>, HashMap<usize, Joined>) = Default::default();
        let origins = Origins::of(&self.state.borrow().steps);
        let places = self.state.borrow().places.clone();
        for product in &products {
            let mut state = self.state.borrow_mut();
            let Some((at, map)) = state.follower(product).and_then(|at| Some((at, state.fusion.maps.remove(&at)?)))
            else {
                continue;
            };
            let requested = state.requested_bytes;
            drop(state);
            let fused = launch::with_sink(self.clone(), || self.fuse(product, &map))?;
            self.state.borrow_mut().requested_bytes = requested;
            if let Some(launches) = fused {
                gone.extend(product.steps.clone());
                instead.insert(at, Joined { launches, product: product.steps.clone() });
            }
        }
        let (constants, once) = self.state.borrow_mut().constants(&gone);
        gone.extend(constants);
        let behind = self.state.borrow_mut().replace(&gone, instead);
        let slots = origins.trace(&self.state.borrow().steps, &behind);
        // A joined launch is its product's work.
        let place = |origins: &Vec<usize>| places.get(*origins.first()?)?.clone();
        let places = behind.iter().map(place).collect();
        Ok(Recorded { once, origins: origins.launches, slots, places, ..self.take() })
    }

    /// The launches of a product with an operation behind it.
    fn fuse(&self, product: &Product, map: &Map) -> Result<Option<Vec<Launch>>> {
        let (expr, inputs) = map.behind(product);
        let start = self.state.borrow().steps.len();
        let finish = Finish { expr: &expr, inputs, scalars: map.scalars.clone(), dtype: map.output.dtype() };
        let made = self.lower(&product.heavy, &product.inputs, Some(finish))?;
        let mut state = self.state.borrow_mut();
        let launches = state.split_off(start);
        if !is_whole(&made) || made.storage().nbytes() != map.output.storage().nbytes() {
            return Ok(None);
        }
        state.append(launches, &made, &map.output);
        let mut launches = state.split_off(start);
        if let Some(last) = launches.last_mut() {
            last.name = format!("{}_{}", last.name, map.name).into();
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
            if let Some(Joined { launches, product }) = instead.remove(&at) {
                let joined = product.filter_map(|step| before.get(&step).copied()).chain([origin]).collect();
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

/// An operand in the shape of a product's result, where that takes no copy.
fn viewed(input: &Tensor, made: &Tensor) -> Option<Tensor> {
    if input.shape() == made.shape() {
        return Some(input.clone());
    }
    let layout = input.layout().reshape(made.shape()).ok().flatten()?;
    Tensor::from_storage(input.queue(), input.storage().clone(), layout, input.dtype()).ok()
}
