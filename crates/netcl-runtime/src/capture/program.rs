//! A recorded program with its memory in place: what a replay runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernels::bound::Bound;
use netcl_core::kernels::launch::{self, Access, Arg, HostAction, Launch};
use netcl_core::kernels::recording::{Origin, Recorded, SlotOrigin, Step};
use netcl_core::memory::Arena;
use netcl_core::precision::Precision;
use netcl_core::shape::Layout;
use netcl_core::storage::Storage;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::plan::{Lifetime, lifetimes, merge, pack, pack_whole};

/// What a captured step consists of, and what memory it takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CaptureStats {
    /// Launches of one step.
    pub launches: usize,
    /// What the host does between them: counting steps, learning rates, places in the random numbers.
    pub host_actions: usize,
    /// The names of the launches, in order.
    pub names: Vec<String>,
    /// Bytes of the blocks that hold everything the step makes.
    pub planned_bytes: usize,
    /// How many blocks those are.
    pub blocks: usize,
    /// The most bytes that the step's tensors would hold at once without a plan.
    pub eager_bytes: usize,
    /// The bytes of all tensors that the step makes.
    pub requested_bytes: usize,
}

/// A step to replay.
pub(crate) struct Program {
    queue: Queue,
    /// How products were computed when it was recorded.
    precision: Precision,
    entries: Vec<Entry>,
    inputs: Vec<Input>,
    /// Memory that others use as well: other queues may be at work on it when a replay begins.
    shared: Vec<Arc<Storage>>,
    /// Those of them in which tensors lived when the program was recorded.
    homes: Vec<Arc<Storage>>,
    /// Shared memory that a replay writes.
    written: Vec<Arc<Storage>>,
    written_ids: HashSet<usize>,
    /// The part of that which is not the program's own: parameters, the state of an optimizer.
    changed: Vec<Arc<Storage>>,
    /// The launches that the function made, and where those of the program have their changing numbers in them.
    pub(super) origins: Vec<Origin>,
    pub(super) slots: Vec<SlotOrigin>,
    stats: CaptureStats,
}

enum Entry {
    Run(Box<Bound>),
    Host(HostAction),
}

/// An input as it was when the program was recorded.
pub(crate) struct Input {
    layout: Layout,
    dtype: DType,
    queue: Queue,
    /// Entries and arguments that name its memory.
    uses: Vec<(usize, usize)>,
    /// Memory of its own, for values that cannot be taken where they lie.
    own: Option<Tensor>,
    /// Whether somebody holds on to the memory of its own, so that values must always be copied there.
    held: bool,
    bound: Option<Arc<Storage>>,
}

impl Input {
    /// An input like a tensor that is given to a function which is about to be recorded.
    pub(crate) fn like(tensor: &Tensor) -> Result<Input> {
        Ok(Input {
            layout: recorded_layout(tensor.layout())?,
            dtype: tensor.dtype(),
            queue: tensor.queue().clone(),
            uses: Vec::new(),
            own: None,
            held: false,
            bound: None,
        })
    }

    pub(crate) fn nbytes(&self) -> usize {
        self.layout.end() * self.dtype.size()
    }

    /// The tensor that stands in for the input while the function is recorded.
    pub(crate) fn tensor(&self, storage: Arc<Storage>) -> Result<Tensor> {
        Tensor::from_storage(&self.queue, storage, self.layout.clone(), self.dtype)
    }

    /// Whether a program that was recorded with this input can take a tensor.
    pub(crate) fn fits(&self, tensor: &Tensor) -> bool {
        let same = self.layout.shape() == tensor.shape()
            && self.dtype == tensor.dtype()
            && self.queue.same_device(tensor.queue());
        // A recorded layout is the recorded layout of itself.
        let lies_so = || *tensor.layout() == self.layout;
        same && (lies_so() || recorded_layout(tensor.layout()).is_ok_and(|layout| layout == self.layout))
    }

    /// Whether the program can read the tensor's memory where it lies.
    fn swaps(&self, tensor: &Tensor, queue: &Queue, written: &HashSet<usize>) -> bool {
        !self.held
            && *tensor.layout() == self.layout
            && tensor.queue() == queue
            && !written.contains(&tensor.storage().identity())
    }

    /// The memory that holds the values for the next run: the tensor's own, or a copy.
    fn take(&mut self, tensor: &Tensor, queue: &Queue, written: &HashSet<usize>) -> Result<Arc<Storage>> {
        if self.swaps(tensor, queue, written) {
            return Ok(tensor.storage().clone());
        }
        let own = match &self.own {
            Some(own) => own.clone(),
            None => {
                let storage = queue.allocate_now(self.nbytes().max(1), "captured input")?;
                self.own.insert(self.tensor(storage)?).clone()
            }
        };
        own.assign(tensor)?;
        Ok(own.storage().clone())
    }
}

/// The layout that a recorded function sees: the order of the axes in memory stays (channels-last images stay so), gaps and
/// repeated elements do not.
fn recorded_layout(layout: &Layout) -> Result<Layout> {
    let dense = layout.end() - layout.offset() == layout.shape().size() && !layout.overlaps_itself();
    let forwards = layout.strides().iter().all(|&stride| stride > 0);
    if dense && forwards {
        return Layout::strided(layout.shape().clone(), layout.strides(), 0);
    }
    Ok(Layout::contiguous(layout.shape().clone()))
}

impl Program {
    /// Gives everything its memory and sets all arguments. `inputs` come with the index of their need; `given` are the tensors
    /// of the first run.
    pub(crate) fn new(recorded: Recorded, inputs: Vec<(Input, usize)>, given: &[&Tensor]) -> Result<Program> {
        let Recorded { queue, steps, needs, mut once, in_place, requested_bytes, peak_bytes, origins, slots, places } =
            recorded;
        let mut launches: Vec<Launch> = Vec::new();
        // What stands at each position: the host's work, or the next launch.
        let mut order: Vec<Option<HostAction>> = Vec::with_capacity(steps.len());
        for step in steps {
            match step {
                Step::Launch(launch) => {
                    launches.push(*launch);
                    order.push(None);
                }
                Step::Host(action) => order.push(Some(action)),
            }
        }
        let Some(queue) = queue else {
            let what = "the function launched nothing, so that there is nothing to replay; a captured function computes with \
                        tensors of a device";
            return Err(Error::State { op: "capture", what: what.to_owned() });
        };
        let mut lives = lifetimes(&needs, &launches);
        let (mut inputs, input_needs): (Vec<Input>, Vec<usize>) = inputs.into_iter().unzip();
        for (input, &need) in inputs.iter_mut().zip(&input_needs) {
            input.held = needs[need].storage.strong_count() > 0;
            if !input.held {
                lives[need] = None;
            }
        }
        let fixed =
            |need: usize| needs[need].constant || needs[need].storage.strong_count() > 0 || input_needs.contains(&need);
        let merged = merge(&mut lives, &in_place, fixed);
        let placed: Vec<usize> = (0..lives.len()).filter(|&i| lives[i].is_some()).collect();
        let known: Vec<Lifetime> = lives.iter().flatten().copied().collect();
        let pack = if matches!(queue, Queue::Cpu(_)) { pack } else { pack_whole };
        let packing = pack(&known, Arena::align(&queue), Arena::limit(&queue));
        let mut arenas = packing
            .blocks
            .iter()
            .map(|&nbytes| Arena::allocate(&queue, nbytes, "captured step"))
            .collect::<Result<Vec<Arena>>>()?;
        let mut homes: HashMap<usize, Arc<Storage>> = HashMap::new();
        let mut shared: Vec<Arc<Storage>> = Vec::new();
        for (&need, place) in placed.iter().zip(&packing.places) {
            let home = arenas[place.block].part(place.offset..place.offset + place.room, needs[need].nbytes)?;
            if let Some(held) = needs[need].storage.upgrade() {
                held.settle(home.clone())?;
                shared.push(home.clone());
            }
            homes.insert(Arc::as_ptr(&needs[need].stand_in) as usize, home);
        }
        for (need, first) in merged.iter().enumerate().filter_map(|(need, first)| Some((need, (*first)?))) {
            if let Some(home) = homes.get(&(Arc::as_ptr(&needs[first].stand_in) as usize)).cloned() {
                homes.insert(Arc::as_ptr(&needs[need].stand_in) as usize, home);
            }
        }
        for (input, &need) in inputs.iter_mut().zip(&input_needs).filter(|(input, _)| input.held) {
            if let Some(home) = homes.get(&(Arc::as_ptr(&needs[need].stand_in) as usize)) {
                input.own = Some(input.tensor(home.clone())?);
            }
        }
        for launch in &mut once {
            launch.bind(|storage| homes.get(&(Arc::as_ptr(storage) as usize)).cloned());
            launch.run()?;
        }
        // Memory that others see: what the caller holds of the plan, and what the launches name beside it.
        let held: HashSet<usize> = shared.iter().map(|storage| storage.identity()).collect();
        let hidden: HashSet<usize> =
            homes.values().map(|home| home.identity()).filter(|home| !held.contains(home)).collect();
        let mut seen = held.clone();
        let (mut written, mut written_ids): (Vec<Arc<Storage>>, HashSet<usize>) = Default::default();
        for launch in &mut launches {
            launch.bind(|storage| homes.get(&(Arc::as_ptr(storage) as usize)).cloned());
            for arg in &launch.args {
                let Arg::Buffer(storage, access) = arg else { continue };
                let identity = storage.identity();
                if storage.is_planned() || hidden.contains(&identity) {
                    continue;
                }
                if seen.insert(identity) {
                    shared.push(storage.clone());
                }
                if *access == Access::Write && written_ids.insert(identity) {
                    written.push(storage.clone());
                }
            }
        }
        let changed = written.iter().filter(|storage| !held.contains(&storage.identity())).cloned().collect();
        // Inputs last: what may be read where it lies depends on what is written.
        let stand_ins: HashMap<usize, usize> =
            input_needs.iter().enumerate().map(|(i, &need)| (Arc::as_ptr(&needs[need].stand_in) as usize, i)).collect();
        let mut taken = Vec::with_capacity(inputs.len());
        for (input, tensor) in inputs.iter_mut().zip(given) {
            let storage = input.take(tensor, &queue, &written_ids)?;
            input.bound = Some(storage.clone());
            taken.push(storage);
        }
        let names = launches.iter().map(|launch| launch.name.to_string()).collect();
        let mut rest = launches.into_iter().zip(places.into_iter().chain(std::iter::repeat(None)));
        let mut entries = Vec::with_capacity(order.len());
        for host in order {
            if let Some(action) = host {
                entries.push(Entry::Host(action));
                continue;
            }
            let Some((mut launch, place)) = rest.next() else { break };
            for (at, arg) in launch.args.iter_mut().enumerate() {
                if let Arg::Buffer(storage, _) = arg
                    && let Some(&input) = stand_ins.get(&(Arc::as_ptr(storage) as usize))
                {
                    inputs[input].uses.push((entries.len(), at));
                    *storage = taken[input].clone();
                }
            }
            entries.push(Entry::Run(Box::new(Bound::new(launch)?.at(place))));
        }
        let runs = entries.iter().filter(|entry| matches!(entry, Entry::Run(_))).count();
        let stats = CaptureStats {
            launches: runs,
            host_actions: entries.len() - runs,
            names,
            planned_bytes: packing.blocks.iter().sum(),
            blocks: packing.blocks.len(),
            eager_bytes: peak_bytes,
            requested_bytes,
        };
        let homes = shared.iter().filter(|storage| !storage.was_left()).cloned().collect();
        let precision = Precision::current();
        Ok(Program {
            queue,
            precision,
            entries,
            inputs,
            shared,
            homes,
            written,
            written_ids,
            changed,
            origins,
            slots,
            stats,
        })
    }

    pub(crate) fn stats(&self) -> &CaptureStats {
        &self.stats
    }

    /// Whether a tensor that the program uses (a parameter) has been moved since.
    pub(crate) fn is_outdated(&self) -> bool {
        self.homes.iter().any(|storage| storage.was_left())
    }

    pub(crate) fn fits(&self, given: &[&Tensor]) -> bool {
        !self.is_outdated()
            && self.precision == Precision::current()
            && self.inputs.len() == given.len()
            && self.inputs.iter().zip(given).all(|(input, tensor)| input.fits(tensor))
    }

    /// The bytes that a replay changes outside of its own memory.
    pub(crate) fn changed(&self) -> Result<Vec<Tensor>> {
        let bytes = |storage: &Arc<Storage>| {
            let layout = Layout::contiguous([storage.nbytes()].into());
            Tensor::from_storage(&self.queue, storage.clone(), layout, DType::U8)
        };
        self.changed.iter().map(bytes).collect()
    }

    /// A copy of [`Program::changed`].
    pub(crate) fn snapshot(&self) -> Result<Vec<Tensor>> {
        self.changed()?.iter().map(Tensor::duplicate).collect()
    }

    /// Makes the next run read these tensors.
    pub(crate) fn feed(&mut self, given: &[&Tensor]) -> Result<()> {
        for (input, tensor) in self.inputs.iter_mut().zip(given) {
            let storage = input.take(tensor, &self.queue, &self.written_ids)?;
            if input.bound.as_ref().is_some_and(|bound| Arc::ptr_eq(bound, &storage)) {
                continue;
            }
            for &(entry, at) in &input.uses {
                if let Entry::Run(bound) = &mut self.entries[entry] {
                    bound.set_buffer(at, &storage)?;
                }
            }
            input.bound = Some(storage);
        }
        Ok(())
    }

    /// One step.
    pub(crate) fn run(&mut self) -> Result<()> {
        self.join()?;
        let watched = launch::has_sink();
        for entry in &mut self.entries {
            match entry {
                // Profilers and counters see replayed launches as well.
                Entry::Run(bound) if watched => launch::submit(bound.launch().clone())?,
                Entry::Run(bound) => bound.run()?,
                Entry::Host(action) => action()?,
            }
        }
        if !watched {
            self.written.iter().for_each(|storage| storage.raise_version());
        }
        Ok(())
    }

    /// The launches alone, each changed before it runs.
    pub(crate) fn run_launches(&self, mut change: impl FnMut(usize, &mut Launch) -> Result<()>) -> Result<()> {
        let launches = self.entries.iter().filter_map(|entry| match entry {
            Entry::Run(bound) => Some(bound.launch()),
            Entry::Host(_) => None,
        });
        for (at, launch) in launches.enumerate() {
            let mut launch = launch.clone();
            change(at, &mut launch)?;
            launch.run()?;
        }
        Ok(())
    }

    /// Makes the queue wait for what others do with shared memory.
    fn join(&self) -> Result<()> {
        if let Queue::Cpu(_) = self.queue {
            return Ok(());
        }
        let inputs = self.inputs.iter().filter_map(|input| input.bound.as_ref());
        self.shared.iter().chain(inputs).try_for_each(|storage| storage.join(&self.queue))
    }
}
