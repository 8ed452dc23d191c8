//! Recording a whole program at the launch seam: launches over planned memory, and what the host does between them.

mod fusion;
mod origins;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::described::{Described, Meaning};
use super::launch::{Allocation, Arg, HostAction, Launch, Sink};
use crate::backend::Queue;
use crate::error::{Error, Result};
use crate::observe::{self, Place};
use crate::storage::Storage;
use crate::tensor::Tensor;

pub use origins::{Origin, SlotOrigin};

/// One entry of a recorded program.
pub enum Step {
    /// Work for the device.
    Launch(Box<Launch>),
    /// Work of the host at every run.
    Host(HostAction),
}

impl Step {
    fn launch(&self) -> Option<&Launch> {
        match self {
            Step::Launch(launch) => Some(launch),
            Step::Host(_) => None,
        }
    }
}

/// A sink that keeps launches, the memory they ask for and what the host does beside them, to be run as often as wanted.
///
/// Memory is only planned ([`Storage::planned`]), except for what the host fills at once. The launches that are kept name
/// *stand-ins* of planned storages, so that tensors of the recorded program are shared by nobody that would not share them
/// otherwise: whoever looks at reference counts decides as always, and a storage that is still alive afterwards is one that
/// the caller holds.
///
/// A program runs on one queue of each device that it uses.
#[derive(Default)]
pub struct Recording {
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    queues: Vec<Queue>,
    steps: Vec<Step>,
    launches: usize,
    /// Where each launch was made.
    places: Vec<Option<Arc<Place>>>,
    needs: Vec<Need>,
    by_address: HashMap<usize, usize>,
    /// Indices of needs whose storages were alive at the last look.
    alive: Vec<usize>,
    peak_bytes: usize,
    requested_bytes: usize,
    /// Inputs and outputs of the elementwise operation that is about to be launched, which may share memory.
    offered: Vec<(usize, usize)>,
    in_place: Vec<InPlace>,
    fusion: fusion::Notes,
    closed: bool,
}

/// A launch that may write an output where an input lies: element by element, in one layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// Which launch, counted without the host's actions.
    pub launch: usize,
    /// The need that is read.
    pub input: usize,
    /// The need that is written.
    pub output: usize,
}

/// Memory that a recorded program needs.
pub struct Need {
    /// What tensors of the program have; dead unless somebody still holds one.
    pub storage: Weak<Storage>,
    /// What the kept launches name in its place.
    pub stand_in: Arc<Storage>,
    /// How much.
    pub nbytes: usize,
    /// Where.
    pub queue: Queue,
    /// Whether [`Recorded::once`] fills it for good.
    pub constant: bool,
}

/// What was recorded.
pub struct Recorded {
    /// The queues of all launches, one for each device.
    pub queues: Vec<Queue>,
    /// Launches and actions, in order.
    pub steps: Vec<Step>,
    /// The memory they need.
    pub needs: Vec<Need>,
    /// Launches that need to run only once, before the others: constants.
    pub once: Vec<Launch>,
    /// The launches as the function made them, of which [`Recording::finish`] may have joined some and left out others.
    pub origins: Vec<Origin>,
    /// Where each slot of the launches has its number in those.
    pub slots: Vec<SlotOrigin>,
    /// Where each launch of the steps was made, for observers of its replays.
    pub places: Vec<Option<Arc<Place>>>,
    /// Where outputs may lie where inputs do.
    pub in_place: Vec<InPlace>,
    /// The bytes of all requests for memory.
    pub requested_bytes: usize,
    /// The most bytes of planned tensors that were alive at once: what running at once would have held.
    pub peak_bytes: usize,
}

impl Recording {
    /// An empty recording.
    pub fn new() -> Recording {
        Recording::default()
    }

    /// Memory that the program will find filled: an input. Its index in [`Recorded::needs`] comes with it.
    pub fn input(&self, queue: &Queue, nbytes: usize) -> (Arc<Storage>, usize) {
        let mut state = self.state.borrow_mut();
        (state.plan(queue, nbytes), state.needs.len() - 1)
    }

    /// What was recorded; the recording is empty and closed then.
    pub fn take(&self) -> Recorded {
        let state = self.state.take();
        self.state.borrow_mut().closed = true;
        Recorded {
            queues: state.queues,
            steps: state.steps,
            needs: state.needs,
            once: Vec::new(),
            origins: Vec::new(),
            slots: Vec::new(),
            places: state.places,
            in_place: state.in_place,
            requested_bytes: state.requested_bytes,
            peak_bytes: state.peak_bytes,
        }
    }
}

impl State {
    /// Notes what the elementwise operation that was offered last may do in place, if this is its launch.
    fn note_in_place(&mut self, launch: &Launch) {
        let offered = std::mem::take(&mut self.offered);
        let names = |address: usize| {
            launch.args.iter().any(|arg| matches!(arg, Arg::Buffer(s, _) if Arc::as_ptr(s) as usize == address))
        };
        for (input, output) in offered {
            if let (Some(&from), Some(&to)) = (self.by_address.get(&input), self.by_address.get(&output))
                && names(input)
                && names(output)
            {
                self.in_place.push(InPlace { launch: self.launches, input: from, output: to });
            }
        }
    }

    /// Notes that the last launches were made here.
    fn note_places(&mut self) {
        self.places.resize(self.launches, observe::place());
    }

    /// Notes that a launch uses a queue.
    fn enter(&mut self, name: &str, queue: &Queue) -> Result<()> {
        if self.queues.contains(queue) {
            return Ok(());
        }
        if self.queues.iter().any(|other| other.same_device(queue)) {
            let what = format!(
                "{name} runs on another queue of {} than the launches before it: a recorded program runs on one queue of each \
                 device; make its tensors with the same queue",
                queue.device_name(),
            );
            return Err(Error::State { op: "capture", what });
        }
        self.queues.push(queue.clone());
        Ok(())
    }

    fn plan(&mut self, queue: &Queue, nbytes: usize) -> Arc<Storage> {
        let (storage, stand_in) = (Arc::new(Storage::planned(nbytes)), Arc::new(Storage::planned(nbytes)));
        // The weak reference keeps the address from being used again as long as the recording lives.
        for named in [&storage, &stand_in] {
            self.by_address.insert(Arc::as_ptr(named) as usize, self.needs.len());
        }
        let queue = queue.clone();
        self.needs.push(Need { storage: Arc::downgrade(&storage), stand_in, nbytes, queue, constant: false });
        storage
    }

    /// The need behind a storage of the program, or behind its stand-in.
    fn need(&self, storage: &Arc<Storage>) -> Option<usize> {
        self.by_address.get(&(Arc::as_ptr(storage) as usize)).copied()
    }
}

impl Sink for Recording {
    fn launch(&self, mut launch: Launch) -> Result<()> {
        let mut state = self.state.borrow_mut();
        // The launch's own queue, and those of what work of the host has on other devices.
        for at in 0..=launch.args.len() {
            state.enter(&launch.name, launch.queue_of(at))?;
        }
        launch.raise_versions();
        state.note_in_place(&launch);
        let mut strange = false;
        launch.bind(|storage| match state.need(storage) {
            Some(need) => Some(state.needs[need].stand_in.clone()),
            None => {
                strange |= storage.is_planned();
                None
            }
        });
        if strange {
            let what = format!("{} takes a tensor of another recording that has never run", launch.name);
            return Err(Error::State { op: "capture", what });
        }
        state.note_meaning(&launch);
        state.steps.push(Step::Launch(Box::new(launch)));
        state.launches += 1;
        state.note_places();
        Ok(())
    }

    fn offer(&self, operation: &Described<'_>) -> Result<bool> {
        let address = |tensor: &Tensor| Arc::as_ptr(tensor.storage()) as usize;
        let mut state = self.state.borrow_mut();
        state.offered.clear();
        state.describe(operation);
        match &operation.meaning {
            Meaning::Elementwise(..) => {}
            Meaning::Fusable(heavy) => {
                drop(state);
                return self.keep(operation, heavy);
            }
            _ => return Ok(false),
        }
        for output in operation.outputs.iter().filter(|output| fusion::lie_alike(output, output)) {
            // The same memory seen through another layout as well would be overwritten before it is read.
            let alone = |input: &Tensor| {
                let mut others = operation.inputs.iter().filter(|other| other.shares_storage(input));
                others.all(|other| (other.layout(), other.dtype()) == (input.layout(), input.dtype()))
            };
            let fits =
                |input: &&&Tensor| fusion::lie_alike(input, output) && input.dtype() == output.dtype() && alone(input);
            let pairs = operation.inputs.iter().filter(fits).map(|input| (address(input), address(output)));
            state.offered.extend(pairs);
        }
        Ok(false)
    }

    fn allocate(&self, request: &Allocation) -> Result<Arc<Storage>> {
        let mut state = self.state.borrow_mut();
        let storage = state.plan(&request.queue, request.nbytes);
        let at = state.needs.len() - 1;
        let State { needs, alive, .. } = &mut *state;
        alive.retain(|&need| needs[need].storage.strong_count() > 0);
        alive.push(at);
        let bytes = alive.iter().map(|&need| needs[need].nbytes).sum();
        state.peak_bytes = state.peak_bytes.max(bytes);
        state.requested_bytes += request.nbytes;
        Ok(storage)
    }

    fn host(&self, action: HostAction) -> Option<HostAction> {
        self.state.borrow_mut().steps.push(Step::Host(action));
        None
    }

    fn repeats(&self) -> bool {
        !self.state.borrow().closed
    }

    fn made(&self, storage: &Arc<Storage>) -> bool {
        self.state.borrow().need(storage).is_some()
    }

    fn check_readable(&self, op: &'static str) -> Result<()> {
        let what = "values cannot be read while a step is being recorded: nothing has run yet; return the tensor from the \
                    recorded function and read it after the call, or leave this part out of the function";
        Err(Error::State { op, what: what.to_owned() })
    }
}
