//! Launches kept as they run: the simplest kind of capture, without a function and without a plan.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use netcl_core::kernels::bound::Bound;
use netcl_core::kernels::launch::{self, Arg, Entered, HostAction, Launch, Sink};
use netcl_core::storage::Storage;
use netcl_core::{Error, Result};

const OP: &str = "KernelCapture";

/// Runs launches and keeps them, between [`begin`](KernelCapture::begin) and [`end`](KernelCapture::end), to be run again on the
/// same memory.
///
/// Unlike with [`capture`](super::capture()), everything runs while it is kept, values can be read, and every tensor stays in
/// memory: put new values into the tensors that the launches read, replay, and read the results where they were.
///
/// ```
/// use netcl_runtime::capture::KernelCapture;
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0], [2])?;
/// let mut kept = KernelCapture::new();
/// kept.begin()?;
/// let y = x.cast(DType::F64)?;
/// assert_eq!(kept.end()?, 1);
/// x.fill(7.0)?;
/// kept.replay()?;
/// assert_eq!(y.to_host::<f64>()?, [7.0, 7.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Default)]
pub struct KernelCapture {
    open: Option<Arc<Mutex<Kept>>>,
    entries: Vec<Entry>,
}

enum Entry {
    Run(Box<Bound>),
    /// A launch that did not come through the seam: code of somebody else's that makes it.
    Other(HostAction),
    Host(HostAction),
}

/// What has been kept so far.
#[derive(Default)]
struct Kept {
    steps: Vec<Step>,
    failed: Option<Error>,
}

enum Step {
    Launch(Box<Launch>),
    Other(HostAction),
    Host(HostAction),
}

thread_local! {
    /// The sinks of captures that have begun on this thread, by the address of what they keep.
    static OPEN: RefCell<HashMap<usize, Entered>> = RefCell::default();
    /// How many [`Paused`] there are.
    static PAUSED: Cell<usize> = const { Cell::new(0) };
}

/// While it lives, no [`KernelCapture`] keeps the launches of this thread; they only run.
///
/// ```
/// use netcl_runtime::capture::{KernelCapture, Paused};
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0], [2])?;
/// let mut kept = KernelCapture::new();
/// kept.begin()?;
/// let _y = x.cast(DType::F64)?;
/// {
///     let _paused = Paused::new();
///     x.fill(3.0)?;
/// }
/// assert_eq!(kept.end()?, 1);
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[must_use = "it ends when this is dropped"]
pub struct Paused(std::marker::PhantomData<*const ()>);

impl Paused {
    /// Begins a pause.
    #[expect(clippy::new_without_default, reason = "it changes what the thread does")]
    pub fn new() -> Paused {
        PAUSED.set(PAUSED.get() + 1);
        Paused(std::marker::PhantomData)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        PAUSED.set(PAUSED.get() - 1);
    }
}

/// The sink of a capture; it keeps nothing any more once the capture is gone.
struct Keeper(Weak<Mutex<Kept>>);

impl Keeper {
    fn kept(&self) -> Option<Arc<Mutex<Kept>>> {
        self.0.upgrade().filter(|_| PAUSED.get() == 0)
    }
}

impl Sink for Keeper {
    fn launch(&self, launch: Launch) -> Result<()> {
        launch.run()?;
        if let Some(kept) = self.kept() {
            lock(&kept).steps.push(Step::Launch(Box::new(launch)));
        }
        Ok(())
    }

    fn host(&self, mut action: HostAction) -> Option<HostAction> {
        let Some(kept) = self.kept() else { return Some(action) };
        // What the action itself launches or asks of the host belongs to it: kept as well, it would happen twice, or without end.
        let result = {
            let _paused = Paused::new();
            action()
        };
        let mut kept = lock(&kept);
        if let Err(error) = result {
            kept.failed.get_or_insert(error);
        }
        kept.steps.push(Step::Host(action));
        None
    }

    fn repeats(&self) -> bool {
        self.kept().is_some()
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KernelCapture {
    /// Nothing kept yet.
    pub fn new() -> KernelCapture {
        KernelCapture::default()
    }

    /// Starts to keep the launches of this thread; what was kept before is forgotten.
    ///
    /// # Errors
    /// If it has begun already, or something else is being recorded.
    pub fn begin(&mut self) -> Result<()> {
        if self.is_capturing() || launch::is_repeating() {
            let what = "launches are being recorded already; end that first".to_owned();
            return Err(Error::State { op: OP, what });
        }
        self.entries.clear();
        let kept = Arc::new(Mutex::new(Kept::default()));
        let entered = launch::enter(Rc::new(Keeper(Arc::downgrade(&kept))));
        OPEN.with(|open| open.borrow_mut().insert(Arc::as_ptr(&kept) as usize, entered));
        self.open = Some(kept);
        Ok(())
    }

    /// Whether launches are being kept.
    pub fn is_capturing(&self) -> bool {
        self.open.is_some()
    }

    /// Stops, and says how many launches were kept.
    ///
    /// # Errors
    /// If it has not begun; if something of the host's failed.
    pub fn end(&mut self) -> Result<usize> {
        let Some(kept) = self.close() else {
            return Err(Error::State { op: OP, what: "nothing is being captured; call begin() first".to_owned() });
        };
        let Kept { steps, failed } = std::mem::take(&mut *lock(&kept));
        if let Some(error) = failed {
            return Err(error);
        }
        for step in steps {
            self.entries.push(match step {
                Step::Launch(launch) => Entry::Run(Box::new(Bound::new(*launch)?)),
                Step::Other(action) => Entry::Other(action),
                Step::Host(action) => Entry::Host(action),
            });
        }
        Ok(self.len())
    }

    /// Leaves the sink. One that was entered on another thread is without effect from now on, and is left when the thread ends.
    fn close(&mut self) -> Option<Arc<Mutex<Kept>>> {
        let kept = self.open.take()?;
        // At the end of a thread the sinks may be gone already.
        let _ = OPEN.try_with(|open| open.borrow_mut().remove(&(Arc::as_ptr(&kept) as usize)));
        Some(kept)
    }

    /// Keeps a launch that does not pass through netcl (a kernel of another library's, which has run already): at a replay the
    /// action makes it, in its place between the others. Nothing happens unless launches are being kept.
    pub fn keep(&mut self, action: HostAction) {
        if let Some(kept) = &self.open {
            lock(kept).steps.push(Step::Other(action));
        }
    }

    /// How many launches were kept, up to now.
    pub fn len(&self) -> usize {
        match &self.open {
            Some(kept) => lock(kept).steps.iter().filter(|step| !matches!(step, Step::Host(_))).count(),
            None => self.launches().count(),
        }
    }

    /// Whether none was kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The launches that were kept; `None` for one that [`keep`](KernelCapture::keep) was told of.
    pub fn launches(&self) -> impl Iterator<Item = Option<&Launch>> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Run(bound) => Some(Some(bound.launch())),
            Entry::Other(_) => Some(None),
            Entry::Host(_) => None,
        })
    }

    /// Puts other memory in the place of a launch's buffer, for all replays from now on.
    ///
    /// # Errors
    /// If there is no such launch, or that argument is not a buffer.
    pub fn rebind(&mut self, launch: usize, arg: usize, storage: &Arc<Storage>) -> Result<()> {
        let count = self.len();
        let mut launches = self.entries.iter_mut().filter(|entry| !matches!(entry, Entry::Host(_)));
        match launches.nth(launch) {
            Some(Entry::Run(bound)) => bound.set_buffer(arg, storage),
            Some(_) => Err(Error::argument(OP, format!("launch {launch} is another library's; its memory is fixed"))),
            None => Err(Error::argument(OP, format!("there is no launch {launch}; {count} were captured"))),
        }
    }

    /// Runs everything that was kept once more, in order.
    ///
    /// # Errors
    /// While launches are being kept; what kernels and drivers say.
    pub fn replay(&mut self) -> Result<()> {
        self.replay_with(|_| None)
    }

    /// Runs everything once more with other memory in the place of some, in this replay only: wherever `memory` gives any.
    ///
    /// # Errors
    /// As for [`replay`](KernelCapture::replay).
    pub fn replay_with(&mut self, memory: impl Fn(&Arc<Storage>) -> Option<Arc<Storage>>) -> Result<()> {
        if self.is_capturing() || launch::is_repeating() {
            let what = "launches are being recorded; end that before a replay".to_owned();
            return Err(Error::State { op: OP, what });
        }
        for entry in &mut self.entries {
            match entry {
                Entry::Run(bound) => {
                    let mut before: Vec<(usize, Arc<Storage>)> = Vec::new();
                    for at in 0..bound.launch().args.len() {
                        if let Some(Arg::Buffer(storage, _)) = bound.launch().args.get(at).cloned()
                            && let Some(other) = memory(&storage)
                        {
                            bound.set_buffer(at, &other)?;
                            before.push((at, storage));
                        }
                    }
                    let ran = run(bound);
                    for (at, storage) in before {
                        bound.set_buffer(at, &storage)?;
                    }
                    ran?;
                }
                Entry::Other(action) | Entry::Host(action) => action()?,
            }
        }
        Ok(())
    }

    /// Forgets everything, also what is being kept.
    pub fn clear(&mut self) {
        self.close();
        self.entries.clear();
    }
}

impl Drop for KernelCapture {
    fn drop(&mut self) {
        self.close();
    }
}

fn run(bound: &mut Bound) -> Result<()> {
    let launch = bound.launch();
    for arg in &launch.args {
        if let Arg::Buffer(storage, _) = arg {
            storage.join(&launch.queue)?;
        }
    }
    bound.run()?;
    bound.launch().raise_versions();
    Ok(())
}
