//! What crates above the launch seam want to read from a device: each launch's cost and time, and the memory in use.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use netcl_core::backend::Queue;
use netcl_core::error::Result;
use netcl_core::kernels::launch::{self, Arg, Launch, Sink};
use netcl_core::memory::native_pool;
use netcl_core::tensor::Tensor;

/// Bytes of a device's memory that tensors of this process use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Now.
    pub in_use: usize,
    /// The most so far.
    pub peak: usize,
}

/// How much of a device's memory tensors of this process use. This does not wait for the device.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
/// use netcl_profiling::gauges::memory;
///
/// let queue = manager().cpu().queue;
/// let _tensor = Tensor::full(&queue, [1 << 20], DType::F32, 0.0)?;
/// assert!(memory(&queue).in_use >= 4 << 20 && memory(&queue).peak >= 4 << 20);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn memory(queue: &Queue) -> Memory {
    let stats = match queue {
        Queue::Cpu(_) => native_pool().stats(),
        Queue::OpenCl(stream) => stream.pool().stats(),
    };
    Memory { in_use: stats.bytes_in_use, peak: stats.peak_bytes_in_use }
}

/// One launch, as [`LaunchLog`] saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaunchEntry {
    /// Floating-point operations that it should need.
    pub flops: f64,
    /// How long the host waited for its end, in seconds.
    pub seconds: f64,
    /// The first of the log's tensors whose memory is among its arguments.
    pub uses: Option<usize>,
}

/// Runs launches one at a time and notes each one's cost and time, and which of some tensors it uses.
///
/// The host waits for each launch, so that a short one looks longer than in a step whose launches queue up.
///
/// ```
/// use std::rc::Rc;
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
/// use netcl_profiling::gauges::LaunchLog;
///
/// let queue = manager().cpu().queue;
/// let weight = Tensor::full(&queue, [4], DType::F32, 1.0)?;
/// let log = LaunchLog::new(&[weight.clone()]);
/// log.run(|| weight.cast(DType::F64))?;
/// let entries = log.take();
/// assert_eq!((entries.len(), entries[0].uses), (1, Some(0)));
/// assert!(log.take().is_empty());
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub struct LaunchLog(Rc<Keeper>);

struct Keeper {
    tensors: HashMap<usize, usize>,
    entries: RefCell<Vec<LaunchEntry>>,
    count: Arc<AtomicUsize>,
}

impl LaunchLog {
    /// A log that tells these tensors apart by their memory: each must have its own.
    pub fn new(tensors: &[Tensor]) -> LaunchLog {
        let mut places = HashMap::with_capacity(tensors.len());
        for (at, tensor) in tensors.iter().enumerate() {
            places.entry(Arc::as_ptr(tensor.storage()) as usize).or_insert(at);
        }
        LaunchLog(Rc::new(Keeper { tensors: places, entries: RefCell::default(), count: Arc::default() }))
    }

    /// Calls a function whose launches are logged.
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        launch::with_sink(self.0.clone(), f)
    }

    /// The launches since the last call, in order.
    pub fn take(&self) -> Vec<LaunchEntry> {
        self.0.count.store(0, Ordering::Relaxed);
        self.0.entries.take()
    }

    /// How many launches [`LaunchLog::take`] would give, for closures that cannot hold the log itself.
    pub fn count(&self) -> Arc<AtomicUsize> {
        self.0.count.clone()
    }
}

impl Sink for Keeper {
    fn launch(&self, launch: Launch) -> Result<()> {
        let buffers = launch.args.iter().filter_map(|arg| match arg {
            Arg::Buffer(storage, _) => self.tensors.get(&(Arc::as_ptr(storage) as usize)).copied(),
            _ => None,
        });
        let (uses, flops, queue) = (buffers.min(), launch.cost.flops, launch.queue.clone());
        queue.finish()?;
        let start = Instant::now();
        launch.run()?;
        queue.finish()?;
        self.entries.borrow_mut().push(LaunchEntry { flops, seconds: start.elapsed().as_secs_f64(), uses });
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
