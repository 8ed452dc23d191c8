//! The launch seam: every op, on either backend, becomes a [`Launch`] that is handed to the current thread's [`Sink`].
//!
//! Running is only the default sink. Capture, profiling, debug print-outs and launch-count tests are other sinks, so
//! they need to know nothing of the layers above, and no op needs to know of them.
//!
//! ```
//! use std::rc::Rc;
//! use netcl_core::{device::manager, dtype::DType, kernels::launch, tensor::Tensor};
//!
//! let queue = manager().cpu().queue;
//! let counter = Rc::new(launch::Counter::default());
//! launch::with_sink(counter.clone(), || Tensor::full(&queue, [1000], DType::F32, 2.5))?;
//! assert_eq!(counter.launches(), 1);
//! assert_eq!(counter.of("fill"), 1);
//! # Ok::<(), netcl_core::Error>(())
//! ```

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

pub use super::argument::{Access, Arg, Scalar, Slot};
pub use super::cost::Cost;
use super::described::Described;
use super::opencl;
use crate::backend::Queue;
use crate::backend::cpu::CpuKernel;
use crate::backend::opencl::{Grid, Kernel};
use crate::debug::{self, Level};
use crate::error::{Error, Result};
use crate::observe::{self, Announced, Kind, WantsPlaces};
use crate::storage::Storage;

/// One piece of work for a device: what to run, on which memory, with which numbers, and what it should cost.
///
/// A launch owns all it needs, so a sink may keep it and run it again.
#[derive(Clone)]
pub struct Launch {
    /// What print-outs and counters call it.
    pub name: Cow<'static, str>,
    /// Where it runs.
    pub queue: Queue,
    /// The code.
    pub work: Work,
    /// The arguments, in the order of the kernel's parameters.
    pub args: SmallVec<[Arg; 8]>,
    /// What it should cost, for GFLOP/s and GB/s.
    pub cost: Cost,
}

/// The code of a launch.
#[derive(Clone)]
pub enum Work {
    /// A native function; it is handed the arguments.
    Cpu(CpuKernel),
    /// A kernel of an OpenCL program, and how many work-items run it.
    OpenCl(Kernel, Grid),
    /// A function of the host, which waits for what it reads.
    Host(HostWork),
}

/// A function of the host that is given a launch's arguments.
#[derive(Clone)]
pub struct HostWork {
    /// The queue of each argument.
    pub(super) queues: Arc<[Queue]>,
    pub(super) body: Arc<HostBody>,
}

/// What [`HostWork`] does.
pub(super) type HostBody = dyn Fn(&[Arg]) -> Result<()> + Send + Sync;

/// A request for memory, which passes through the seam as well so that a sink can plan it.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Where.
    pub queue: Queue,
    /// How much; never zero.
    pub nbytes: usize,
    /// What the memory is for, in out-of-memory reports.
    pub label: &'static str,
}

/// Where launches and allocations of a thread go.
pub trait Sink {
    /// Takes a launch: runs it, keeps it, counts it.
    fn launch(&self, launch: Launch) -> Result<()> {
        launch.run()
    }

    /// Takes a request for memory.
    fn allocate(&self, request: &Allocation) -> Result<Arc<Storage>> {
        request.queue.allocate_now(request.nbytes, request.label)
    }

    /// Takes a request for memory that the host fills at once, so that it cannot wait for a replay.
    fn allocate_resident(&self, request: &Allocation) -> Result<Arc<Storage>> {
        request.queue.allocate_now(request.nbytes, request.label)
    }

    /// Offered an operation by its meaning, before it is turned into launches. A sink that takes it (a compiler, which will
    /// fuse it with others) answers `true`, and nothing else happens.
    fn offer(&self, _operation: &Described<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Takes what the host does beside launches at every run (counting a step, drawing a place in the random numbers): a sink
    /// that runs its launches later keeps it for then, and answers `None`. Otherwise it comes back, and is done at once.
    fn host(&self, action: HostAction) -> Option<HostAction> {
        Some(action)
    }

    /// Whether launches will run later and more than once, so that numbers which change from run to run must live in slots.
    fn repeats(&self) -> bool {
        false
    }

    /// Whether work may be launched before the function that runs asks for it, with what it will ask for later: not where launches
    /// are compared with those of another run.
    fn may_run_ahead(&self) -> bool {
        !self.repeats()
    }

    /// Whether a storage was made by what is being recorded, so that every run has its own. Only asked of a sink that repeats.
    fn made(&self, _storage: &Arc<Storage>) -> bool {
        true
    }

    /// Asked before values are read on the host; a sink whose launches have not run yet refuses.
    fn check_readable(&self, _op: &'static str) -> Result<()> {
        Ok(())
    }
}

/// What the host does at every run of a recorded program, in its place between the launches.
pub type HostAction = Box<dyn FnMut() -> Result<()> + Send>;

thread_local! {
    static SINKS: RefCell<Vec<Rc<dyn Sink>>> = const { RefCell::new(Vec::new()) };
}

/// Runs a closure while launches and allocations of this thread go to `sink`. Scopes nest; the inner one wins.
pub fn with_sink<R>(sink: Rc<dyn Sink>, f: impl FnOnce() -> R) -> R {
    let _entered = enter(sink);
    f()
}

/// A sink that is in use until this is dropped; see [`enter`].
pub struct Entered {
    sink: Rc<dyn Sink>,
    /// Whoever observes the replays asks whose work a launch is.
    _places: Option<WantsPlaces>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // One that ends with its thread may find the list gone.
        let _ = SINKS.try_with(|sinks| {
            let mut sinks = sinks.borrow_mut();
            if let Some(at) = sinks.iter().rposition(|sink| Rc::ptr_eq(sink, &self.sink)) {
                sinks.remove(at);
            }
        });
    }
}

/// [`with_sink`] for callers that cannot wrap the work in a closure: launches go to `sink` until the result is dropped.
#[must_use = "the sink is left when this is dropped"]
pub fn enter(sink: Rc<dyn Sink>) -> Entered {
    SINKS.with(|sinks| sinks.borrow_mut().push(sink.clone()));
    let places = sink.repeats().then(WantsPlaces::new);
    Entered { sink, _places: places }
}

/// Runs a closure whose launches run at once and whose values can be read, whatever is being recorded: for memory that is
/// prepared once and not at every replay.
pub fn at_once<R>(f: impl FnOnce() -> R) -> R {
    struct Now;
    impl Sink for Now {}
    with_sink(Rc::new(Now), f)
}

fn current() -> Option<Rc<dyn Sink>> {
    SINKS.with(|sinks| sinks.borrow().last().cloned())
}

/// Hands a launch to the current sink; without one it runs.
pub fn submit(launch: Launch) -> Result<()> {
    match current() {
        Some(sink) => sink.launch(launch),
        None => launch.run(),
    }
}

/// Asks the current sink for memory; zero bytes need none.
pub fn allocate(queue: &Queue, nbytes: usize, label: &'static str) -> Result<Arc<Storage>> {
    if nbytes == 0 {
        return Ok(Arc::new(Storage::empty()));
    }
    match current() {
        Some(sink) => sink.allocate(&Allocation { queue: queue.clone(), nbytes, label }),
        None => queue.allocate_now(nbytes, label),
    }
}

/// As [`allocate`], for memory that the host fills at once.
pub fn allocate_resident(queue: &Queue, nbytes: usize, label: &'static str) -> Result<Arc<Storage>> {
    if nbytes == 0 {
        return Ok(Arc::new(Storage::empty()));
    }
    match current() {
        Some(sink) => sink.allocate_resident(&Allocation { queue: queue.clone(), nbytes, label }),
        None => queue.allocate_now(nbytes, label),
    }
}

/// Offers an operation to the current sink by its meaning; `true` if the sink has taken it.
pub fn offer(operation: &Described<'_>) -> Result<bool> {
    current().map_or(Ok(false), |sink| sink.offer(operation))
}

/// Does what the host has to do beside launches: now, or at every run of the program that is being recorded.
///
/// An action changes numbers in slots. It leaves the memory of the program's launches alone: those without slots may run before it or
/// after it.
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
/// use netcl_core::kernels::launch;
///
/// let steps = Arc::new(AtomicU64::new(0));
/// let counted = steps.clone();
/// launch::each_run(move || {
///     counted.fetch_add(1, Ordering::Relaxed);
///     Ok(())
/// })?;
/// assert_eq!(steps.load(Ordering::Relaxed), 1); // nothing is being recorded here
/// # Ok::<(), netcl_core::Error>(())
/// ```
///
/// # Errors
/// Those of the action, where it is done now.
pub fn each_run(mut action: impl FnMut() -> Result<()> + Send + 'static) -> Result<()> {
    if !is_repeating() {
        return action();
    }
    let mut action: HostAction = Box::new(action);
    let sinks = SINKS.with(|sinks| sinks.borrow().clone());
    for sink in sinks.iter().rev() {
        match sink.host(action) {
            Some(back) => action = back,
            None => return Ok(()),
        }
    }
    action()
}

/// Whether launches of this thread are being recorded to be run more than once.
pub fn is_repeating() -> bool {
    SINKS.with(|sinks| sinks.borrow().iter().any(|sink| sink.repeats()))
}

/// Whether work of this thread may be launched before the function that runs asks for it.
pub fn may_run_ahead() -> bool {
    SINKS.with(|sinks| sinks.borrow().iter().all(|sink| sink.may_run_ahead()))
}

/// Whether launches of this thread are being recorded to be run more than once, and a storage comes from outside of the recording.
pub fn is_from_outside(storage: &Arc<Storage>) -> bool {
    SINKS.with(|sinks| sinks.borrow().iter().rfind(|sink| sink.repeats()).is_some_and(|sink| !sink.made(storage)))
}

/// Whether launches of this thread go to a sink instead of running at once.
pub fn has_sink() -> bool {
    SINKS.with(|sinks| !sinks.borrow().is_empty())
}

/// An error if the current sink's launches have not run, so that there are no values to read.
pub fn check_readable(op: &'static str) -> Result<()> {
    current().map_or(Ok(()), |sink| sink.check_readable(op))
}

impl Launch {
    /// Puts other memory in the place of some of the buffers: those for which `memory` gives any.
    pub fn bind(&mut self, mut memory: impl FnMut(&Arc<Storage>) -> Option<Arc<Storage>>) {
        for arg in &mut self.args {
            if let Arg::Buffer(storage, _) = arg
                && let Some(other) = memory(storage)
            {
                *storage = other;
            }
        }
    }

    /// The queue that orders what is done to the memory of an argument.
    pub fn queue_of(&self, arg: usize) -> &Queue {
        match &self.work {
            Work::Host(work) => work.queues.get(arg).unwrap_or(&self.queue),
            _ => &self.queue,
        }
    }

    /// Runs the work now and raises the version of every storage it writes.
    pub fn run(&self) -> Result<()> {
        watch(self, || self.run_now())
    }

    fn run_now(&self) -> Result<()> {
        match &self.work {
            Work::Cpu(kernel) => kernel.run(&self.args)?,
            Work::Host(work) => (work.body)(&self.args)?,
            Work::OpenCl(kernel, grid) => match &self.queue {
                Queue::OpenCl(stream) => opencl::run(stream, kernel, *grid, &self.args)?,
                Queue::Cpu(_) => {
                    return Err(Error::argument("launch", "an OpenCL kernel cannot run on the native CPU's queue"));
                }
            },
        }
        self.raise_versions();
        Ok(())
    }

    /// Raises the version of every storage that the launch writes.
    pub fn raise_versions(&self) {
        for arg in &self.args {
            if let Arg::Buffer(storage, Access::Write) = arg {
                storage.raise_version();
            }
        }
    }
}

/// Runs a launch, shows it to observers and, from [`Level::Launches`] on, waits for it and prints what it took.
pub(super) fn watch(launch: &Launch, run: impl FnOnce() -> Result<()>) -> Result<()> {
    if !observe::is_active() {
        return timed(launch, run);
    }
    let announce = || Announced {
        name: launch.name.clone(),
        kind: if matches!(launch.work, Work::Host(_)) { Kind::Host } else { Kind::Kernel },
        queue: launch.queue.clone(),
        cost: launch.cost,
        kernel: match &launch.work {
            Work::OpenCl(kernel, grid) => Some((kernel.clone(), *grid)),
            Work::Cpu(_) | Work::Host(_) => None,
        },
    };
    observe::command(announce, || timed(launch, run))
}

fn timed(launch: &Launch, run: impl FnOnce() -> Result<()>) -> Result<()> {
    if !debug::wants(Level::Launches) {
        return run();
    }
    launch.queue.finish()?;
    let start = Instant::now();
    run()?;
    launch.queue.finish()?;
    debug::print(format_args!("{}", line(launch, start.elapsed())));
    Ok(())
}

/// `softmax              65.3 us     12.1 GFLOP/s      8.0 GB/s  native CPU`
fn line(launch: &Launch, time: Duration) -> String {
    let seconds = time.as_secs_f64().max(1e-9);
    let rate = |amount: f64| amount / seconds * 1e-9;
    let place = match &launch.work {
        Work::Cpu(_) => "native CPU".to_owned(),
        Work::Host(_) => "host".to_owned(),
        Work::OpenCl(_, grid) => format!("{grid}"),
    };
    format!(
        "{:<28} {:>10.1} us {:>9.1} GFLOP/s {:>8.1} GB/s  {place}",
        launch.name,
        seconds * 1e6,
        rate(launch.cost.flops),
        rate(launch.cost.bytes)
    )
}

/// A sink that runs everything and counts it: what launch-count tests assert on.
#[derive(Default)]
pub struct Counter {
    launches: RefCell<BTreeMap<Cow<'static, str>, usize>>,
    allocations: Cell<usize>,
    allocated_bytes: Cell<usize>,
}

impl Counter {
    /// How many launches passed.
    pub fn launches(&self) -> usize {
        self.launches.borrow().values().sum()
    }

    /// How many launches of this name passed.
    pub fn of(&self, name: &str) -> usize {
        self.launches.borrow().get(name).copied().unwrap_or(0)
    }

    /// Launch names with their counts, sorted by name.
    pub fn names(&self) -> Vec<(String, usize)> {
        self.launches.borrow().iter().map(|(name, n)| (name.to_string(), *n)).collect()
    }

    /// How many allocations passed, and their bytes.
    pub fn allocations(&self) -> (usize, usize) {
        (self.allocations.get(), self.allocated_bytes.get())
    }
}

impl Sink for Counter {
    fn launch(&self, launch: Launch) -> Result<()> {
        *self.launches.borrow_mut().entry(launch.name.clone()).or_default() += 1;
        launch.run()
    }

    fn allocate(&self, request: &Allocation) -> Result<Arc<Storage>> {
        self.allocations.set(self.allocations.get() + 1);
        self.allocated_bytes.set(self.allocated_bytes.get() + request.nbytes);
        request.queue.allocate_now(request.nbytes, request.label)
    }

    fn allocate_resident(&self, request: &Allocation) -> Result<Arc<Storage>> {
        self.allocate(request)
    }
}

/// A sink that keeps launches instead of running them; [`Recorder::replay`] runs them, as often as wanted.
#[derive(Default)]
pub struct Recorder {
    launches: RefCell<Vec<Launch>>,
}

impl Recorder {
    /// Runs what was recorded, in order, with the slots' values of the moment.
    pub fn replay(&self) -> Result<()> {
        self.launches.borrow().iter().try_for_each(Launch::run)
    }

    /// How many launches were recorded.
    pub fn len(&self) -> usize {
        self.launches.borrow().len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Sink for Recorder {
    fn launch(&self, launch: Launch) -> Result<()> {
        self.launches.borrow_mut().push(launch);
        Ok(())
    }

    fn check_readable(&self, op: &'static str) -> Result<()> {
        let what =
            "values cannot be read while launches are being recorded: nothing has run yet; read after the replay";
        Err(Error::State { op, what: what.to_owned() })
    }
}
