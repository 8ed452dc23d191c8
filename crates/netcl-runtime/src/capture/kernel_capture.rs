//! Launches kept as they run: the simplest kind of capture, without a function and without a plan.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

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
/// use netcl_runtime::core::{device::manager, dtype::DType, tensor::Tensor};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0], [2])?;
/// let mut kept = KernelCapture::new();
/// kept.begin()?;
/// let y = x.cast(DType::F64)?;
/// assert_eq!(kept.end()?, 1);
/// x.fill(7.0)?;
/// kept.replay()?;
/// assert_eq!(y.to_host::<f64>()?, [7.0, 7.0]);
/// # Ok::<(), netcl_runtime::core::Error>(())
/// ```
#[derive(Default)]
pub struct KernelCapture {
    open: Option<(Rc<Keeper>, Entered)>,
    entries: Vec<Entry>,
}

enum Entry {
    Run(Box<Bound>),
    Host(HostAction),
}

#[derive(Default)]
struct Keeper {
    entries: RefCell<Vec<Kept>>,
    failed: RefCell<Option<Error>>,
}

enum Kept {
    Launch(Box<Launch>),
    Host(HostAction),
}

impl Sink for Keeper {
    fn launch(&self, launch: Launch) -> Result<()> {
        launch.run()?;
        self.entries.borrow_mut().push(Kept::Launch(Box::new(launch)));
        Ok(())
    }

    fn host(&self, mut action: HostAction) -> Option<HostAction> {
        if let Err(error) = action() {
            self.failed.borrow_mut().get_or_insert(error);
        }
        self.entries.borrow_mut().push(Kept::Host(action));
        None
    }

    fn repeats(&self) -> bool {
        true
    }
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
        let keeper = Rc::new(Keeper::default());
        self.open = Some((keeper.clone(), launch::enter(keeper)));
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
        let Some((keeper, entered)) = self.open.take() else {
            return Err(Error::State { op: OP, what: "nothing is being captured; call begin() first".to_owned() });
        };
        drop(entered);
        if let Some(error) = keeper.failed.take() {
            return Err(error);
        }
        for kept in keeper.entries.take() {
            self.entries.push(match kept {
                Kept::Launch(launch) => Entry::Run(Box::new(Bound::new(*launch)?)),
                Kept::Host(action) => Entry::Host(action),
            });
        }
        Ok(self.len())
    }

    /// How many launches were kept.
    pub fn len(&self) -> usize {
        self.launches().count()
    }

    /// Whether none was kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The launches that were kept.
    pub fn launches(&self) -> impl Iterator<Item = &Launch> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Run(bound) => Some(bound.launch()),
            Entry::Host(_) => None,
        })
    }

    /// Puts other memory in the place of a launch's buffer, for all replays from now on.
    ///
    /// # Errors
    /// If there is no such launch, or that argument is not a buffer.
    pub fn rebind(&mut self, launch: usize, arg: usize, storage: &Arc<Storage>) -> Result<()> {
        let count = self.len();
        let mut launches = self.entries.iter_mut().filter_map(|entry| match entry {
            Entry::Run(bound) => Some(bound),
            Entry::Host(_) => None,
        });
        match launches.nth(launch) {
            Some(bound) => bound.set_buffer(arg, storage),
            None => Err(Error::argument(OP, format!("there is no launch {launch}; {count} were captured"))),
        }
    }

    /// Runs everything that was kept once more, in order.
    ///
    /// # Errors
    /// While launches are being kept; what kernels and drivers say.
    pub fn replay(&mut self) -> Result<()> {
        if self.is_capturing() || launch::is_repeating() {
            let what = "launches are being recorded; end that before a replay".to_owned();
            return Err(Error::State { op: OP, what });
        }
        for entry in &mut self.entries {
            match entry {
                Entry::Run(bound) => {
                    let launch = bound.launch();
                    for arg in &launch.args {
                        if let Arg::Buffer(storage, _) = arg {
                            storage.join(&launch.queue)?;
                        }
                    }
                    bound.run()?;
                    bound.launch().raise_versions();
                }
                Entry::Host(action) => action()?,
            }
        }
        Ok(())
    }

    /// Forgets everything, also what is being kept.
    pub fn clear(&mut self) {
        self.open = None;
        self.entries.clear();
    }
}
