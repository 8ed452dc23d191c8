//! A compiled list of launches. A call binds memory and submits; nothing is decided any more.

use std::collections::HashMap;
use std::sync::Arc;

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{self, Arg, Launch, Scalar, Slot as Number};
use netcl_core::shape::Layout;
use netcl_core::storage::Storage;
use netcl_core::tensor::Tensor as Raw;

use super::lower::{Lowered, queue_of};
use super::trace::{StorageId, id, number_of};

/// Memory of a program: one that is given comes first, then what a call allocates.
struct Slot {
    nbytes: usize,
    queue: Option<Queue>,
}

struct Step {
    launch: Launch,
    /// Which arguments are which slots.
    binds: Vec<(usize, usize)>,
    /// Which arguments are which of the numbers that every call has of its own.
    numbers: Vec<(usize, usize)>,
    /// Slots that are used for the first and for the last time.
    allocate: Vec<usize>,
    free: Vec<usize>,
}

/// A result: which memory, seen how.
pub(super) struct ResultView {
    memory: Memory,
    layout: Layout,
    dtype: DType,
    queue: Queue,
}

enum Memory {
    Slot(usize),
    Constant(Arc<Storage>),
}

/// Launches that share memory, and what comes out.
pub(super) struct Program {
    slots: Vec<Slot>,
    given: usize,
    steps: Vec<Step>,
    results: Vec<ResultView>,
}

impl Program {
    /// A program from launches; `given` is the memory that every call brings along, `numbers` are slots for which it does.
    pub(super) fn new(
        lowered: &Lowered,
        given: &[StorageId],
        numbers: &[Arc<Number>],
        results: &[Raw],
    ) -> Result<Program> {
        let mut slots: Vec<Slot> = given.iter().map(|_| Slot { nbytes: 0, queue: None }).collect();
        let mut at: HashMap<StorageId, usize> = HashMap::new();
        for (slot, storage) in given.iter().enumerate() {
            at.entry(*storage).or_insert(slot);
        }
        let mut slot_of = |storage: &Arc<Storage>| -> Option<usize> {
            if let Some(slot) = at.get(&id(storage)) {
                return Some(*slot);
            }
            let planned = lowered.planned.get(&id(storage))?;
            slots.push(Slot { nbytes: storage.nbytes(), queue: Some(queue_of(planned).clone()) });
            at.insert(id(storage), slots.len() - 1);
            Some(slots.len() - 1)
        };
        let nothing = Arc::new(Storage::empty());
        let mut steps: Vec<Step> = Vec::with_capacity(lowered.launches.len());
        for (launch, _) in &lowered.launches {
            let binds: Vec<(usize, usize)> = launch
                .args
                .iter()
                .enumerate()
                .filter_map(|(i, arg)| match arg {
                    Arg::Buffer(storage, _) => Some((i, slot_of(storage)?)),
                    _ => None,
                })
                .collect();
            let mut launch = launch.clone();
            for &(arg, _) in &binds {
                // What is bound in every call must not keep the memory of the trace alive.
                if let Arg::Buffer(storage, _) = &mut launch.args[arg] {
                    *storage = nothing.clone();
                }
            }
            let place =
                |arg: &Arg| number_of(arg).and_then(|own| numbers.iter().position(|slot| Arc::ptr_eq(slot, own)));
            let numbers = launch.args.iter().enumerate().filter_map(|(i, arg)| Some((i, place(arg)?))).collect();
            steps.push(Step { launch, binds, numbers, allocate: Vec::new(), free: Vec::new() });
        }
        let results: Vec<ResultView> = results
            .iter()
            .map(|tensor| {
                let tensor = lowered.place(tensor)?;
                let memory = match slot_of(tensor.storage()) {
                    Some(slot) => Memory::Slot(slot),
                    None => Memory::Constant(tensor.storage().clone()),
                };
                let (layout, dtype, queue) = (tensor.layout().clone(), tensor.dtype(), tensor.queue().clone());
                Ok(ResultView { memory, layout, dtype, queue })
            })
            .collect::<Result<_>>()?;
        let mut program = Program { slots, given: given.len(), steps, results };
        program.plan_memory();
        Ok(program)
    }

    fn plan_memory(&mut self) {
        let mut first: Vec<Option<usize>> = vec![None; self.slots.len()];
        let mut last: Vec<Option<usize>> = vec![None; self.slots.len()];
        for (i, step) in self.steps.iter().enumerate() {
            for &(_, slot) in &step.binds {
                first[slot].get_or_insert(i);
                last[slot] = Some(i);
            }
        }
        for slot in self.given..self.slots.len() {
            let kept = self.results.iter().any(|view| matches!(view.memory, Memory::Slot(at) if at == slot));
            if let Some(step) = first[slot] {
                self.steps[step].allocate.push(slot);
            }
            if let (Some(step), false) = (last[slot], kept) {
                self.steps[step].free.push(slot);
            }
        }
    }

    /// Runs the program on given memory, with the numbers of this call, and returns its results.
    pub(super) fn run(&self, given: &[Arc<Storage>], numbers: &[Arc<Number>]) -> Result<Vec<Raw>> {
        let mut memory: Vec<Option<Arc<Storage>>> = given.iter().cloned().map(Some).collect();
        memory.resize(self.slots.len(), None);
        for step in &self.steps {
            for &slot in &step.allocate {
                memory[slot] = Some(self.allocate(slot)?);
            }
            let mut launch = step.launch.clone();
            for &(arg, slot) in &step.binds {
                if let (Arg::Buffer(storage, _), Some(real)) = (&mut launch.args[arg], &memory[slot]) {
                    *storage = real.clone();
                }
            }
            for &(arg, at) in &step.numbers {
                if let Arg::Scalar(Scalar::SlotF32(slot) | Scalar::SlotF64(slot) | Scalar::SlotU64(slot)) =
                    &mut launch.args[arg]
                {
                    *slot = numbers[at].clone();
                }
            }
            launch::submit(launch)?;
            for &slot in &step.free {
                memory[slot] = None;
            }
        }
        self.results
            .iter()
            .map(|view| {
                let storage = match &view.memory {
                    Memory::Constant(storage) => storage.clone(),
                    Memory::Slot(slot) => match &memory[*slot] {
                        Some(storage) => storage.clone(),
                        // Memory that nothing was ever written to.
                        None => self.allocate(*slot)?,
                    },
                };
                Raw::from_storage(&view.queue, storage, view.layout.clone(), view.dtype)
            })
            .collect()
    }

    fn allocate(&self, slot: usize) -> Result<Arc<Storage>> {
        match &self.slots[slot] {
            Slot { nbytes, queue: Some(queue) } => launch::allocate(queue, *nbytes, "jit"),
            Slot { queue: None, .. } => Ok(Arc::new(Storage::empty())),
        }
    }
}
