//! A recorded program with its memory in place: what a replay runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::ahead;
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
    /// How products were computed when it was recorded.
    precision: Precision,
    entries: Vec<Entry>,
    inputs: Vec<Input>,
    /// Memory that others use as well: other queues may be at work on it when a replay begins.
    shared: Vec<(Arc<Storage>, Queue)>,
    /// Those of them in which tensors lived when the program was recorded.
    homes: Vec<Arc<Storage>>,
    /// Shared memory that a replay writes.
    written_ids: HashSet<usize>,
    /// The part of that which is not the program's own: parameters, the state of an optimizer.
    changed: Vec<(Arc<Storage>, Queue)>,
    /// The launches that the function made, and where those of the program have their changing numbers in them.
    pub(super) origins: Vec<Origin>,
    pub(super) slots: Vec<SlotOrigin>,
    stats: CaptureStats,
}

enum Entry {
    /// A launch, and what it writes of the memory that is not hidden in the program.
    Run(Box<Bound>, Box<[Arc<Storage>]>),
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
    fn swaps(&self, tensor: &Tensor, written: &HashSet<usize>) -> bool {
        !self.held
            && *tensor.layout() == self.layout
            && *tensor.queue() == self.queue
            && !written.contains(&tensor.storage().identity())
    }

    /// The memory that holds the values for the next run: the tensor's own, or a copy.
    fn take(&mut self, tensor: &Tensor, written: &HashSet<usize>) -> Result<Arc<Storage>> {
        if self.swaps(tensor, written) {
            return Ok(tensor.storage().clone());
        }
        let own = match &self.own {
            Some(own) => own.clone(),
            None => {
                let storage = self.queue.allocate_now(self.nbytes().max(1), "captured input")?;
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
    // The stride of an axis of length 1 says nothing.
    let strides =
        layout.shape().iter().zip(layout.strides()).map(|(&n, &stride)| if n == 1 { stride.max(1) } else { stride });
    let strides: Vec<isize> = strides.collect();
    if dense && strides.iter().all(|&stride| stride > 0) {
        return Layout::strided(layout.shape().clone(), &strides, 0);
    }
    Ok(Layout::contiguous(layout.shape().clone()))
}

impl Program {
    /// Gives everything its memory and sets all arguments. `inputs` come with the index of their need; `given` are the tensors
    /// of the first run.
    pub(crate) fn new(recorded: Recorded, inputs: Vec<(Input, usize)>, given: &[&Tensor]) -> Result<Program> {
        let Recorded {
            mut queues,
            steps,
            needs,
            mut once,
            in_place,
            requested_bytes,
            peak_bytes,
            origins,
            slots,
            places,
        } = recorded;
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
        ahead::build_all(launches.iter().chain(&once).filter_map(Launch::kernel))?;
        if queues.is_empty() {
            let what = "the function launched nothing, so that there is nothing to replay; a captured function computes with \
                        tensors of a device";
            return Err(Error::State { op: "capture", what: what.to_owned() });
        }
        let mut lives = lifetimes(&needs, &launches);
        let (mut inputs, input_needs): (Vec<Input>, Vec<usize>) = inputs.into_iter().unzip();
        for (input, &need) in inputs.iter_mut().zip(&input_needs) {
            // Where the launches of its device run.
            if let Some(queue) = queues.iter().find(|queue| queue.same_device(&input.queue)) {
                input.queue = queue.clone();
            }
            input.held = needs[need].storage.strong_count() > 0;
            if !input.held {
                lives[need] = None;
            }
        }
        let fixed =
            |need: usize| needs[need].constant || needs[need].storage.strong_count() > 0 || input_needs.contains(&need);
        let merged = merge(&mut lives, &in_place, fixed);
        // Memory that somebody holds may be on a device that nothing runs on.
        for need in &needs {
            if !queues.iter().any(|queue| queue.same_device(&need.queue)) {
                queues.push(need.queue.clone());
            }
        }
        let mut homes: HashMap<usize, Arc<Storage>> = HashMap::new();
        let mut shared: Vec<(Arc<Storage>, Queue)> = Vec::new();
        let mut blocks: Vec<usize> = Vec::new();
        for queue in &queues {
            let here = |&i: &usize| lives[i].is_some() && needs[i].queue.same_device(queue);
            let placed: Vec<usize> = (0..lives.len()).filter(here).collect();
            let known: Vec<Lifetime> = placed.iter().filter_map(|&i| lives[i]).collect();
            let pack = if matches!(queue, Queue::Cpu(_)) { pack } else { pack_whole };
            let packing = pack(&known, Arena::align(queue), Arena::limit(queue));
            let arena = |&nbytes: &usize| Arena::allocate(queue, nbytes, "captured step");
            let mut arenas = packing.blocks.iter().map(arena).collect::<Result<Vec<Arena>>>()?;
            for (&need, place) in placed.iter().zip(&packing.places) {
                let home = arenas[place.block].part(place.offset..place.offset + place.room, needs[need].nbytes)?;
                if let Some(held) = needs[need].storage.upgrade() {
                    held.settle(home.clone())?;
                    shared.push((home.clone(), queue.clone()));
                }
                homes.insert(Arc::as_ptr(&needs[need].stand_in) as usize, home);
            }
            blocks.extend(packing.blocks);
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
        let held: HashSet<usize> = shared.iter().map(|(storage, _)| storage.identity()).collect();
        let hidden: HashSet<usize> =
            homes.values().map(|home| home.identity()).filter(|home| !held.contains(home)).collect();
        let mut seen = held.clone();
        let (mut written, mut written_ids): (Vec<(Arc<Storage>, Queue)>, HashSet<usize>) = Default::default();
        for launch in &mut launches {
            launch.bind(|storage| homes.get(&(Arc::as_ptr(storage) as usize)).cloned());
            for (at, arg) in launch.args.iter().enumerate() {
                let Arg::Buffer(storage, access) = arg else { continue };
                let identity = storage.identity();
                if storage.is_planned() || hidden.contains(&identity) {
                    continue;
                }
                if seen.insert(identity) {
                    shared.push((storage.clone(), launch.queue_of(at).clone()));
                }
                if *access == Access::Write && written_ids.insert(identity) {
                    written.push((storage.clone(), launch.queue_of(at).clone()));
                }
            }
        }
        let changed = written.iter().filter(|(storage, _)| !held.contains(&storage.identity())).cloned().collect();
        // Inputs last: what may be read where it lies depends on what is written.
        let stand_ins: HashMap<usize, usize> =
            input_needs.iter().enumerate().map(|(i, &need)| (Arc::as_ptr(&needs[need].stand_in) as usize, i)).collect();
        let mut taken = Vec::with_capacity(inputs.len());
        for (input, tensor) in inputs.iter_mut().zip(given) {
            let storage = input.take(tensor, &written_ids)?;
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
            let writes = launch.args.iter().filter_map(|arg| match arg {
                Arg::Buffer(storage, Access::Write) if written_ids.contains(&storage.identity()) => {
                    Some(storage.clone())
                }
                _ => None,
            });
            let writes = writes.collect();
            entries.push(Entry::Run(Box::new(Bound::new(launch)?.at(place)), writes));
        }
        let runs = entries.iter().filter(|entry| matches!(entry, Entry::Run(..))).count();
        let stats = CaptureStats {
            launches: runs,
            host_actions: entries.len() - runs,
            names,
            planned_bytes: blocks.iter().sum(),
            blocks: blocks.len(),
            eager_bytes: peak_bytes,
            requested_bytes,
        };
        let homes = shared.iter().map(|(storage, _)| storage).filter(|storage| !storage.was_left()).cloned().collect();
        let precision = Precision::current();
        Ok(Program { precision, entries, inputs, shared, homes, written_ids, changed, origins, slots, stats })
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
        let bytes = |(storage, queue): &(Arc<Storage>, Queue)| {
            let layout = Layout::contiguous([storage.nbytes()].into());
            Tensor::from_storage(queue, storage.clone(), layout, DType::U8)
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
            let storage = input.take(tensor, &self.written_ids)?;
            if input.bound.as_ref().is_some_and(|bound| Arc::ptr_eq(bound, &storage)) {
                continue;
            }
            for &(entry, at) in &input.uses {
                if let Entry::Run(bound, _) = &mut self.entries[entry] {
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
        self.entries.iter_mut().try_for_each(|entry| match entry {
            // Profilers and counters see replayed launches as well.
            Entry::Run(bound, _) if watched => launch::submit(bound.launch().clone()),
            Entry::Run(bound, writes) => {
                // Launch by launch, since what follows may have kept packed weights; first, since an error leaves some written.
                writes.iter().for_each(|storage| storage.raise_version());
                bound.run()
            }
            Entry::Host(action) => action(),
        })
    }

    /// The launches alone, each changed before it runs.
    pub(crate) fn run_launches(&self, mut change: impl FnMut(usize, &mut Launch) -> Result<()>) -> Result<()> {
        let launches = self.entries.iter().filter_map(|entry| match entry {
            Entry::Run(bound, _) => Some(bound.launch()),
            Entry::Host(_) => None,
        });
        for (at, launch) in launches.enumerate() {
            let mut launch = launch.clone();
            change(at, &mut launch)?;
            launch.run()?;
        }
        Ok(())
    }

    /// Makes the queues wait for what others do with shared memory.
    fn join(&self) -> Result<()> {
        let inputs = self.inputs.iter().filter_map(|input| Some((input.bound.as_ref()?, &input.queue)));
        let shared = self.shared.iter().map(|(storage, queue)| (storage, queue));
        shared.chain(inputs).try_for_each(|(storage, queue)| storage.join(queue))
    }
}
