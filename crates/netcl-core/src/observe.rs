//! Watching what really runs: every launch, copy and allocation of the process, with the module and the line it belongs to.
//!
//! A [`Sink`](crate::kernels::launch::Sink) decides what happens to the launches of one thread; an [`Observer`] changes nothing and sees
//! what is run, by any thread, eagerly or from a recorded program. Without observers the cost is one relaxed load per launch.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//! use netcl_core::{device::manager, dtype::DType, observe::{self, Command, Observer}, tensor::Tensor};
//!
//! #[derive(Default)]
//! struct Names(Mutex<Vec<String>>);
//! impl Observer for Names {
//!     fn command(&self, command: Command) {
//!         self.0.lock().unwrap().push(command.name.into_owned());
//!     }
//! }
//!
//! let queue = manager().cpu().queue;
//! let names = Arc::new(Names::default());
//! let observing = observe::observe(names.clone());
//! Tensor::full(&queue, [1000], DType::F32, 2.5)?;
//! drop(observing);
//! assert!(names.0.lock().unwrap().contains(&"fill".to_owned()));
//! # Ok::<(), netcl_core::Error>(())
//! ```

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use smallvec::SmallVec;

use crate::backend::Queue;
use crate::backend::opencl::{self, Event, Grid, Kernel, Stream};
use crate::error::Result;
use crate::kernels::cost::Cost;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Runs a kernel.
    Kernel,
    /// Copies from the host to the device.
    Upload,
    /// Copies from the device to the host.
    Download,
    /// Work of the host between launches; its copies are commands of their own.
    Host,
}

/// A launch or a copy that was given to a device.
#[derive(Clone)]
pub struct Command {
    /// What it is called.
    pub name: Cow<'static, str>,
    /// What it does.
    pub kind: Kind,
    /// Where.
    pub queue: Queue,
    /// What it should cost.
    pub cost: Cost,
    /// When the host began the call, and when the call returned.
    pub host: (Instant, Instant),
    /// Completions that carry device times. Without any, the command ran while the host was in the call.
    pub events: SmallVec<[Event; 1]>,
    /// Whose work it is.
    pub place: Option<Arc<Place>>,
    /// The host thread, counted from 0.
    pub thread: usize,
    /// The kernel and its grid, where it is one of OpenCL.
    pub kernel: Option<(Kernel, Grid)>,
}

/// Memory that was allocated or given back.
#[derive(Clone, Debug)]
pub enum MemoryChange {
    /// A new block.
    Allocated {
        /// Names the block until it is freed.
        id: usize,
        /// Its size.
        nbytes: usize,
        /// What it is for.
        label: &'static str,
        /// The device.
        queue: Queue,
        /// Whose it is.
        place: Option<Arc<Place>>,
    },
    /// The end of a block; those that are older than the observer are named as well.
    Freed {
        /// The block.
        id: usize,
    },
}

/// Sees what runs. Called on the thread that launches: an observer keeps what it needs and returns.
pub trait Observer: Send + Sync {
    /// A launch or a copy was handed to its device.
    fn command(&self, command: Command);

    /// Memory came or went.
    fn memory(&self, _change: MemoryChange) {}
}

/// Whose work something is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The dotted path of the module; empty outside of any.
    pub module: Arc<str>,
    /// Whether it is the module's gradient.
    pub backward: bool,
    /// `file:line` of the program that asked for it.
    pub site: Option<Arc<str>>,
}

static OBSERVERS: RwLock<Vec<Arc<dyn Observer>>> = RwLock::new(Vec::new());
/// How many observers there are.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
/// How many ask for places: observers, and recordings, whose replays may be observed later.
static PLACES: AtomicUsize = AtomicUsize::new(0);
/// Who knows the line of the host program.
static SITE: OnceLock<fn() -> Option<Arc<str>>> = OnceLock::new();

thread_local! {
    static STACK: RefCell<Vec<Arc<Place>>> = const { RefCell::new(Vec::new()) };
    static THREAD: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed)
    };
    /// Whether this thread's commands are the observers' own.
    static HIDDEN: Cell<bool> = const { Cell::new(false) };
}

/// An observer at work until this is dropped.
#[must_use = "the observer is taken away when this is dropped"]
pub struct Observing(Arc<dyn Observer>);

/// Shows an observer everything that runs from now on, on all threads, until the result is dropped.
///
/// Queues that do not profile their commands are replaced for that time by ones that do: what was given to them is waited for at either
/// end. A queue whose handle other code knows stays, and its launches are waited for one by one.
///
/// A forked child is not observed: a thread of its parent may hold what the observer keeps its records with.
pub fn observe(observer: Arc<dyn Observer>) -> Observing {
    stop_in_children();
    let mut observers = OBSERVERS.write().unwrap_or_else(PoisonError::into_inner);
    observers.push(observer.clone());
    if observers.len() == 1 {
        opencl::time_queues(true);
    }
    PLACES.fetch_add(1, Ordering::Relaxed);
    ACTIVE.store(observers.len(), Ordering::Release);
    Observing(observer)
}

/// Makes `fork` end all observing in its children.
fn stop_in_children() {
    #[cfg(unix)]
    {
        extern "C" fn in_child() {
            ACTIVE.store(0, Ordering::Relaxed);
        }
        static REGISTERED: std::sync::Once = std::sync::Once::new();
        // SAFETY: the handler touches an atomic only. A failure (ENOMEM) leaves children as observed as their parent.
        REGISTERED.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        });
    }
}

impl Drop for Observing {
    fn drop(&mut self) {
        if !is_active() {
            return; // in a forked child, where the lock may belong to a thread that is not there
        }
        let mut observers = OBSERVERS.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = observers.iter().position(|known| Arc::ptr_eq(known, &self.0)) {
            observers.remove(at);
            PLACES.fetch_sub(1, Ordering::Relaxed);
        }
        ACTIVE.store(observers.len(), Ordering::Release);
        if observers.is_empty() {
            opencl::time_queues(false);
        }
    }
}

/// Whether anybody observes.
#[inline]
pub fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed) > 0
}

/// Whether anybody asks whose work something is.
#[inline]
pub fn wants_places() -> bool {
    PLACES.load(Ordering::Relaxed) > 0
}

/// Runs a closure whose commands on this thread are hidden from observers: what they do themselves.
pub fn hidden<R>(run: impl FnOnce() -> R) -> R {
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            HIDDEN.set(self.0);
        }
    }
    let _back = Back(HIDDEN.replace(true));
    run()
}

/// Asks for places as long as it lives, for a recording.
pub struct WantsPlaces(());

impl WantsPlaces {
    /// Asks from now on.
    #[expect(clippy::new_without_default, reason = "it is made for its effect")]
    pub fn new() -> WantsPlaces {
        PLACES.fetch_add(1, Ordering::Relaxed);
        WantsPlaces(())
    }
}

impl Drop for WantsPlaces {
    fn drop(&mut self) {
        PLACES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sets who is asked for the line of the host program; the first one stays.
pub fn set_site(site: fn() -> Option<Arc<str>>) {
    // Two interpreters in one process would be the same one.
    let _ = SITE.set(site);
}

/// The module that this thread is in; `None` outside of any.
pub fn module() -> Option<Arc<str>> {
    STACK.with_borrow(|stack| stack.last().map(|place| place.module.clone())).filter(|module| !module.is_empty())
}

/// Whose work this thread does now; `None` where nobody asks for places.
pub fn place() -> Option<Arc<Place>> {
    if !wants_places() {
        return None;
    }
    let inner = STACK.with_borrow(|stack| stack.last().cloned());
    match (inner, SITE.get().and_then(|site| site())) {
        (Some(place), site) if place.site.is_some() || site.is_none() => Some(place),
        (place, site) => {
            let Place { module, backward, .. } = place.map_or_else(Place::default, |place| (*place).clone());
            Some(Arc::new(Place { module, backward, site }))
        }
    }
}

/// The module that this thread is in, without a line, for [`backward`]; `None` where nobody asks for places.
pub fn module_place() -> Option<Arc<Place>> {
    wants_places().then(|| STACK.with_borrow(|stack| stack.last().cloned()).unwrap_or_default())
}

/// A module that this thread is in until this is dropped.
#[must_use = "the module is left when this is dropped"]
pub struct Scope {
    depth: Option<usize>,
    /// The stack is the thread's own.
    _here: std::marker::PhantomData<*const ()>,
}

impl Scope {
    fn push(place: Option<Arc<Place>>) -> Scope {
        let depth = place.map(|place| {
            STACK.with_borrow_mut(|stack| {
                stack.push(place);
                stack.len() - 1
            })
        });
        Scope { depth, _here: std::marker::PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(depth) = self.depth {
            // At the end of a thread the stack may be gone.
            let _ = STACK.try_with(|stack| stack.borrow_mut().truncate(depth));
        }
    }
}

/// Enters a module by its whole path; nothing happens where nobody asks for places.
pub fn enter(module: impl FnOnce() -> Arc<str>) -> Scope {
    if !wants_places() {
        return Scope::push(None);
    }
    Scope::push(Some(Arc::new(Place { module: module(), ..Place::default() })))
}

/// Goes on with the work of a place: a launch that was recorded there.
pub fn resume(place: Option<&Arc<Place>>) -> Scope {
    Scope::push(place.filter(|_| wants_places()).cloned())
}

/// The gradient of what was done at a place.
pub fn backward(place: Option<&Arc<Place>>) -> Scope {
    let gradient = |place: &Arc<Place>| Arc::new(Place { module: place.module.clone(), backward: true, site: None });
    Scope::push(place.filter(|_| wants_places()).map(gradient))
}

/// Whether commands of this thread are to be shown.
fn watches() -> bool {
    is_active() && !HIDDEN.get()
}

fn tell(tell: impl Fn(&dyn Observer)) {
    let observers: SmallVec<[Arc<dyn Observer>; 2]> =
        OBSERVERS.read().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
    observers.iter().for_each(|observer| tell(&**observer));
}

/// A command that is about to run.
pub(crate) struct Announced {
    pub(crate) name: Cow<'static, str>,
    pub(crate) kind: Kind,
    pub(crate) queue: Queue,
    pub(crate) cost: Cost,
    pub(crate) kernel: Option<(Kernel, Grid)>,
}

/// When the host was in a call, and the events of what it enqueued.
type Times = ((Instant, Instant), SmallVec<[Event; 1]>);

/// Runs a command and keeps the events of what it enqueues, where its queue has device times.
fn timed<R>(stream: Option<&Stream>, run: impl FnOnce() -> Result<R>) -> Result<(R, Times)> {
    let clock = || {
        let start = Instant::now();
        let result = run();
        (result, (start, Instant::now()))
    };
    match stream {
        Some(stream) if stream.queue().profiling() => {
            let ((result, host), events) = opencl::keep_events(clock);
            Ok((result?, (host, events)))
        }
        // Nothing tells when the device begins and ends but waiting.
        Some(stream) => {
            stream.finish()?;
            let (result, (start, _)) = clock();
            let result = result?;
            stream.finish()?;
            Ok((result, ((start, Instant::now()), SmallVec::new())))
        }
        None => {
            let (result, host) = clock();
            Ok((result?, (host, SmallVec::new())))
        }
    }
}

/// Runs a command and shows it.
pub(crate) fn command<R>(announce: impl FnOnce() -> Announced, run: impl FnOnce() -> Result<R>) -> Result<R> {
    if !watches() {
        return run();
    }
    let (place, Announced { name, kind, queue, cost, kernel }) = (place(), announce());
    let stream = match &queue {
        Queue::OpenCl(stream) if kind != Kind::Host => Some(&**stream),
        _ => None,
    };
    let (result, (host, events)) = timed(stream, run)?;
    let thread = THREAD.with(|number| *number);
    let command = Command { name, kind, queue, cost, host, events, place, thread, kernel };
    tell(|observer| observer.command(command.clone()));
    Ok(result)
}

/// Runs a copy of so many bytes between host and device and shows it.
pub(crate) fn copy<R>(queue: &Queue, kind: Kind, nbytes: usize, run: impl FnOnce() -> Result<R>) -> Result<R> {
    // A copy inside a command is a part of it.
    if opencl::keeps_events() {
        return run();
    }
    let announce = || Announced {
        name: if kind == Kind::Upload { "host to device" } else { "device to host" }.into(),
        kind,
        queue: queue.clone(),
        cost: Cost { flops: 0.0, bytes: nbytes as f64 },
        kernel: None,
    };
    command(announce, run)
}

/// [`copy`] for those who have a stream only.
pub(crate) fn copy_on<R>(stream: &Stream, kind: Kind, nbytes: usize, run: impl FnOnce() -> Result<R>) -> Result<R> {
    // Asked first: finding the stream takes a lock that a copy should not wait for, and that a forked child must not meet.
    match watches().then(|| stream.shared()).flatten() {
        Some(stream) => copy(&Queue::OpenCl(stream), kind, nbytes, run),
        None => run(),
    }
}

/// Shows a block of memory that was made.
pub(crate) fn allocated(queue: &Queue, id: usize, nbytes: usize, label: &'static str) {
    if watches() {
        let change = MemoryChange::Allocated { id, nbytes, label, queue: queue.clone(), place: place() };
        tell(|observer| observer.memory(change.clone()));
    }
}

/// Shows the end of a block.
#[inline]
pub(crate) fn freed(id: usize) {
    if is_active() {
        tell(|observer| observer.memory(MemoryChange::Freed { id }));
    }
}
