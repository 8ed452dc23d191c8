//! `netcl.core.memory`: pools, leases, statistics and helpers for host memory.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use netcl::core::backend::Queue;
use netcl::core::backend::opencl as cl;
use netcl::core::backend::opencl::{ClSource, MemFlags, SharedLease};
use netcl::core::dtype::DType;
use netcl::core::memory as core;
use netcl::core::memory::{CpuSource, Limits, SharedCpuLease};
use netcl::core::shape::Shape;
use netcl::core::storage::Storage;
use netcl::core::tensor::Tensor as Raw;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cpu_buffer::CpuBuffer;
use crate::device::{queue_from_py, resolve_queue};
use crate::error::IntoPyResult;
use crate::ndarray;
use crate::opencl::{Buffer, Context, Owner, context_from_py};

/// Adds the classes and functions of this file to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Pool>()?;
    module.add_class::<BufferPool>()?;
    module.add_class::<PinnedBufferPool>()?;
    module.add_class::<PersistentBufferPool>()?;
    module.add_class::<BufferHandle>()?;
    module.add_class::<CpuBuffer>()?;
    module.add_class::<PoolStats>()?;
    module.add_function(wrap_pyfunction!(get_pinned_pool, module)?)?;
    module.add_function(wrap_pyfunction!(get_persistent_pool, module)?)?;
    module.add_function(wrap_pyfunction!(is_integrated_gpu, module)?)?;
    module.add_function(wrap_pyfunction!(has_svm_support, module)?)?;
    module.add_function(wrap_pyfunction!(create_pinned_buffer, module)?)?;
    module.add_function(wrap_pyfunction!(create_zero_copy_buffer, module)?)?;
    Ok(())
}

/// A pool of either backend.
#[derive(Clone, PartialEq)]
pub(crate) enum AnyPool {
    OpenCl(core::Pool<ClSource>),
    Cpu(core::Pool<CpuSource>),
}

/// A lease of either backend's memory.
#[derive(Clone)]
pub(crate) enum AnyLease {
    OpenCl(SharedLease),
    Cpu(SharedCpuLease),
}

/// The same expression for either backend.
macro_rules! either {
    ($kind:ident: $value:expr, $name:ident => $body:expr) => {
        match $value {
            $kind::OpenCl($name) => $body,
            $kind::Cpu($name) => $body,
        }
    };
}

impl AnyPool {
    fn allocate(&self, nbytes: usize) -> netcl::core::Result<AnyLease> {
        Ok(match self {
            AnyPool::OpenCl(pool) => AnyLease::OpenCl(Arc::new(RwLock::new(pool.allocate(nbytes)?))),
            AnyPool::Cpu(pool) => AnyLease::Cpu(Arc::new(RwLock::new(pool.allocate(nbytes)?))),
        })
    }

    /// A new tensor in memory of the pool.
    pub(crate) fn full(&self, queue: &Queue, shape: Shape, dtype: DType, fill: f64) -> netcl::core::Result<Raw> {
        either!(AnyPool: self, pool => Raw::full_in(queue, pool, shape, dtype, fill))
    }
}

impl AnyLease {
    /// The lease of a tensor's memory, where it came from a pool.
    pub(crate) fn of(storage: &Storage) -> Option<AnyLease> {
        let opencl = storage.cl_memory().and_then(|memory| memory.lease().cloned()).map(AnyLease::OpenCl);
        opencl.or_else(|| storage.cpu_lease_of().cloned().map(AnyLease::Cpu))
    }

    fn address(&self) -> usize {
        match self {
            AnyLease::OpenCl(lease) => Arc::as_ptr(lease).addr(),
            AnyLease::Cpu(lease) => Arc::as_ptr(lease).addr(),
        }
    }
}

/// What the pools have in common.
#[pyclass(name = "_Pool", module = "netcl.core.memory", frozen, subclass, weakref, eq, hash)]
#[derive(Clone, PartialEq)]
pub(crate) struct Pool(pub(crate) AnyPool);

impl Eq for Pool {}

impl Hash for Pool {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Equal pools have one context; pools of one context are few.
        match &self.0 {
            AnyPool::OpenCl(pool) => pool.source().context().int_ptr().hash(state),
            AnyPool::Cpu(_) => 0.hash(state),
        }
    }
}

#[pymethods]
impl Pool {
    /// Leases a block of at least ``nbytes`` bytes, possibly a used one: its contents are whatever was there.
    fn allocate(&self, py: Python<'_>, nbytes: i64) -> PyResult<BufferHandle> {
        let nbytes = byte_count("allocate", nbytes)?;
        py.detach(|| self.0.allocate(nbytes)).map(BufferHandle).py()
    }

    /// The counters of this moment.
    #[getter]
    fn stats(&self) -> PoolStats {
        PoolStats(either!(AnyPool: &self.0, pool => pool.stats()))
    }

    /// Frees cached blocks until at most ``keep`` bytes are cached; returns how many bytes were freed.
    #[pyo3(signature = (keep=0))]
    fn trim(&self, py: Python<'_>, keep: usize) -> usize {
        py.detach(|| either!(AnyPool: &self.0, pool => pool.trim(keep)))
    }

    /// Frees all cached blocks; returns how many bytes were freed.
    fn clear(&self, py: Python<'_>) -> usize {
        self.trim(py, 0)
    }

    /// The context the blocks belong to; ``None`` for pools of the native CPU.
    #[getter]
    fn context(&self) -> Option<Context> {
        match &self.0 {
            AnyPool::OpenCl(pool) => Some(Context(pool.source().context().clone())),
            AnyPool::Cpu(_) => None,
        }
    }

    fn __repr__(&self) -> String {
        either!(AnyPool: &self.0, pool => format!("<{pool:?}>"))
    }
}

fn byte_count(op: &str, nbytes: i64) -> PyResult<usize> {
    usize::try_from(nbytes).map_err(|_| PyValueError::new_err(format!("{op}: {nbytes} is not a number of bytes")))
}

/// Where memory comes from.
enum Place {
    /// A context and its first device, which stands for it in messages.
    OpenCl(cl::Context, cl::Device),
    Cpu,
}

impl Place {
    /// The place of a context, queue or device handle. A queue of the native CPU has the context ``None``, which stands for it here.
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Place> {
        if object.is_none() || matches!(queue_from_py(object)?, Some(Queue::Cpu(_))) {
            return Ok(Place::Cpu);
        }
        let context = context_from_py(object)?;
        match context.devices().first().cloned() {
            Some(device) => Ok(Place::OpenCl(context, device)),
            None => Err(PyValueError::new_err("the context has no device")),
        }
    }
}

/// Recycles device buffers in buckets of powers of two, without a limit.
#[pyclass(extends = Pool, module = "netcl.core.memory", frozen)]
pub(crate) struct BufferPool;

#[pymethods]
impl BufferPool {
    #[new]
    fn new(context: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        let pool = match Place::of(context)? {
            Place::OpenCl(context, device) => {
                AnyPool::OpenCl(core::BufferPool::new(ClSource::device_memory(&context, &device)).into())
            }
            Place::Cpu => AnyPool::Cpu(core::BufferPool::new(CpuSource::default()).into()),
        };
        Ok(PyClassInitializer::from(Pool(pool)).add_subclass(BufferPool))
    }
}

/// Recycles page-locked host buffers, which devices copy fast from and to.
#[pyclass(extends = Pool, module = "netcl.core.memory", frozen)]
pub(crate) struct PinnedBufferPool;

#[pymethods]
impl PinnedBufferPool {
    #[new]
    fn new(context: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        let pool = match Place::of(context)? {
            Place::OpenCl(context, device) => {
                AnyPool::OpenCl(core::PinnedBufferPool::new(ClSource::pinned_memory(&context, &device)).into())
            }
            Place::Cpu => AnyPool::Cpu(core::PinnedBufferPool::new(CpuSource::default()).into()),
        };
        Ok(PyClassInitializer::from(Pool(pool)).add_subclass(PinnedBufferPool))
    }
}

/// Recycles device buffers in a fixed table of buckets, with a hard limit on the bytes that wait for reuse.
#[pyclass(extends = Pool, module = "netcl.core.memory", frozen)]
pub(crate) struct PersistentBufferPool;

/// A pool with the limit that was asked for, or the environment's.
fn persistent<S: core::BlockSource>(source: S, max_cached_bytes: Option<i64>) -> PyResult<core::Pool<S>> {
    Ok(match max_cached_bytes {
        Some(bytes) => {
            let limits = Limits::bytes(byte_count("max_cached_bytes", bytes)?);
            core::PersistentBufferPool::with_limits(source, limits).into()
        }
        None => core::PersistentBufferPool::new(source).into(),
    })
}

#[pymethods]
impl PersistentBufferPool {
    /// ``max_cached_bytes`` is ``NETCL_MAX_CACHED_GB`` gigabytes (4) unless given.
    #[new]
    #[pyo3(signature = (context, max_cached_bytes=None))]
    fn new(context: &Bound<'_, PyAny>, max_cached_bytes: Option<i64>) -> PyResult<PyClassInitializer<Self>> {
        let pool = match Place::of(context)? {
            Place::OpenCl(context, device) => {
                AnyPool::OpenCl(persistent(ClSource::device_memory(&context, &device), max_cached_bytes)?)
            }
            Place::Cpu => AnyPool::Cpu(persistent(CpuSource::default(), max_cached_bytes)?),
        };
        Ok(PyClassInitializer::from(Pool(pool)).add_subclass(PersistentBufferPool))
    }

    /// The most bytes that wait for reuse.
    #[getter]
    fn max_cached_bytes(slf: PyRef<'_, Self>) -> usize {
        either!(AnyPool: &slf.as_super().0, pool => pool.limits().max_cached_bytes)
    }

    /// ``{hits, misses, hit_rate, bytes_allocated, bytes_cached, buckets}``; ``buckets`` maps block sizes to how many wait.
    fn get_stats<'py>(slf: PyRef<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, occupied) = either!(AnyPool: &slf.as_super().0, pool => pool.snapshot());
        let buckets = PyDict::new(py);
        for bucket in occupied {
            buckets.set_item(bucket.size, bucket.blocks)?;
        }
        let all = PyDict::new(py);
        all.set_item("hits", stats.hits)?;
        all.set_item("misses", stats.misses)?;
        all.set_item("hit_rate", stats.hit_rate())?;
        all.set_item("bytes_allocated", stats.bytes_allocated)?;
        all.set_item("bytes_cached", stats.bytes_cached)?;
        all.set_item("buckets", buckets)?;
        Ok(all)
    }
}

/// A one-shot lease of a block: released by ``release()``, by its tensor's end, or when dropped.
#[pyclass(module = "netcl.core.memory", frozen, weakref)]
pub(crate) struct BufferHandle(pub(crate) AnyLease);

/// Looks at a lease of either backend.
macro_rules! look {
    ($handle:expr, $lease:ident => $body:expr) => {
        either!(AnyLease: &$handle.0, shared => {
            let $lease = shared.read().unwrap_or_else(PoisonError::into_inner);
            $body
        })
    };
}

#[pymethods]
impl BufferHandle {
    /// Gives the block back to its pool. Releasing again does nothing.
    fn release(&self, py: Python<'_>) {
        py.detach(
            || either!(AnyLease: &self.0, lease => lease.write().unwrap_or_else(PoisonError::into_inner).release()),
        );
    }

    /// The block: a ``Buffer``, or on the native CPU a ``CPUBuffer``; an error once the lease has ended.
    #[getter]
    fn buffer(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match &self.0 {
            AnyLease::OpenCl(shared) => {
                let buffer = shared.read().unwrap_or_else(PoisonError::into_inner).block().cloned().py()?;
                Ok(Py::new(py, Buffer::new(buffer, Owner::Lease(shared.clone())))?.into_any())
            }
            AnyLease::Cpu(shared) => Ok(Py::new(py, CpuBuffer::leased(shared)?)?.into_any()),
        }
    }

    /// The bytes asked for.
    #[getter]
    fn nbytes(&self) -> usize {
        look!(self, lease => lease.nbytes())
    }

    /// The bytes of the block, at least ``nbytes``.
    #[getter]
    fn size(&self) -> usize {
        look!(self, lease => lease.size())
    }

    /// Whether the lease has ended.
    #[getter]
    fn released(&self) -> bool {
        look!(self, lease => lease.is_released())
    }

    /// If true, the block is freed instead of pooled when the lease ends.
    #[getter]
    fn persistent(&self) -> bool {
        look!(self, lease => lease.is_persistent())
    }

    #[setter]
    fn set_persistent(&self, persistent: bool) {
        look!(self, lease => lease.set_persistent(persistent));
    }

    fn __eq__(&self, other: &BufferHandle) -> bool {
        self.0.address() == other.0.address()
    }

    fn __hash__(&self) -> usize {
        self.0.address()
    }

    fn __repr__(&self) -> String {
        let state = if self.released() { ", released" } else { "" };
        format!("<BufferHandle: {} of {} bytes{state}>", self.nbytes(), self.size())
    }
}

/// The counters of a pool at one moment.
#[pyclass(module = "netcl.core.memory", frozen, eq)]
#[derive(PartialEq)]
pub(crate) struct PoolStats(core::PoolStats);

#[pymethods]
impl PoolStats {
    #[new]
    #[pyo3(signature = (hits=0, misses=0, releases=0, evictions=0, bytes_allocated=0, bytes_cached=0, bytes_in_use=0,
        peak_bytes_allocated=0, peak_bytes_in_use=0))]
    #[expect(clippy::too_many_arguments, reason = "one argument per counter")]
    fn new(
        hits: u64,
        misses: u64,
        releases: u64,
        evictions: u64,
        bytes_allocated: usize,
        bytes_cached: usize,
        bytes_in_use: usize,
        peak_bytes_allocated: usize,
        peak_bytes_in_use: usize,
    ) -> Self {
        PoolStats(core::PoolStats {
            hits,
            misses,
            releases,
            evictions,
            bytes_allocated,
            bytes_cached,
            bytes_in_use,
            peak_bytes_allocated,
            peak_bytes_in_use,
        })
    }

    /// Leases served from the cache.
    #[getter]
    fn hits(&self) -> u64 {
        self.0.hits
    }

    /// Leases that needed a new block.
    #[getter]
    fn misses(&self) -> u64 {
        self.0.misses
    }

    /// Leases that ended.
    #[getter]
    fn releases(&self) -> u64 {
        self.0.releases
    }

    /// Cached blocks that were freed: over a limit, or trimmed.
    #[getter]
    fn evictions(&self) -> u64 {
        self.0.evictions
    }

    /// Bytes of all blocks that the pool holds now, leased or cached.
    #[getter]
    fn bytes_allocated(&self) -> usize {
        self.0.bytes_allocated
    }

    /// Bytes of the blocks that wait for reuse.
    #[getter]
    fn bytes_cached(&self) -> usize {
        self.0.bytes_cached
    }

    /// Bytes of the blocks that are leased.
    #[getter]
    fn bytes_in_use(&self) -> usize {
        self.0.bytes_in_use
    }

    /// The largest ``bytes_allocated`` so far.
    #[getter]
    fn peak_bytes_allocated(&self) -> usize {
        self.0.peak_bytes_allocated
    }

    /// The largest ``bytes_in_use`` so far.
    #[getter]
    fn peak_bytes_in_use(&self) -> usize {
        self.0.peak_bytes_in_use
    }

    /// The share of leases served from the cache, from 0 to 1.
    #[getter]
    fn hit_rate(&self) -> f64 {
        self.0.hit_rate()
    }

    fn __repr__(&self) -> String {
        format!("<PoolStats: {}>", self.0)
    }
}

/// The pool of page-locked memory that uploads to the queue's device go through.
#[pyfunction]
#[pyo3(signature = (queue=None))]
fn get_pinned_pool(py: Python<'_>, queue: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PinnedBufferPool>> {
    let pool = match resolve_queue(py, queue, None)? {
        Queue::OpenCl(stream) => AnyPool::OpenCl(stream.pinned_pool().clone().into()),
        Queue::Cpu(_) => AnyPool::Cpu(core::native_pinned_pool().clone().into()),
    };
    Py::new(py, PyClassInitializer::from(Pool(pool)).add_subclass(PinnedBufferPool))
}

/// The pool that tensors of the queue's device come from. It is one pool per context and device, whoever asks; on the native CPU
/// its counters are those of the process-wide cache.
#[pyfunction]
#[pyo3(signature = (queue=None))]
fn get_persistent_pool(py: Python<'_>, queue: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PersistentBufferPool>> {
    let pool = match resolve_queue(py, queue, None)? {
        Queue::OpenCl(stream) => AnyPool::OpenCl(stream.pool().clone().into()),
        Queue::Cpu(_) => AnyPool::Cpu(core::native_pool().clone().into()),
    };
    Py::new(py, PyClassInitializer::from(Pool(pool)).add_subclass(PersistentBufferPool))
}

/// Whether host and device share memory: integrated GPUs, CPU devices of OpenCL, and the native CPU.
#[pyfunction]
#[pyo3(signature = (queue=None))]
fn is_integrated_gpu(py: Python<'_>, queue: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
    Ok(core::is_integrated_gpu(&resolve_queue(py, queue, None)?))
}

/// Whether the device offers shared virtual memory of any kind.
#[pyfunction]
#[pyo3(signature = (queue=None))]
fn has_svm_support(py: Python<'_>, queue: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
    Ok(core::has_svm_support(&resolve_queue(py, queue, None)?))
}

/// One buffer of page-locked host memory (``ALLOC_HOST_PTR``), outside any pool; on the native CPU one of plain memory.
#[pyfunction]
fn create_pinned_buffer(py: Python<'_>, queue_or_context: &Bound<'_, PyAny>, nbytes: i64) -> PyResult<Py<PyAny>> {
    let place = Place::of(queue_or_context)?;
    let nbytes = byte_count("create_pinned_buffer", nbytes)?;
    match place {
        Place::OpenCl(context, _) => {
            let buffer = py.detach(|| core::create_pinned_buffer(&context, nbytes)).py()?;
            Ok(Py::new(py, Buffer::new(buffer, Owner::Nobody))?.into_any())
        }
        Place::Cpu if nbytes == 0 => {
            Err(PyValueError::new_err("create_pinned_buffer: a buffer needs at least one byte"))
        }
        Place::Cpu => {
            let memory = netcl::core::backend::cpu::CpuBuffer::zeroed(nbytes).py()?;
            Ok(Py::new(py, CpuBuffer::new(memory))?.into_any())
        }
    }
}

/// A buffer that *is* the array's memory (``USE_HOST_PTR``); the array is kept alive for as long as the driver uses it.
///
/// The array must be dense and writeable. Some devices ask for aligned memory: ``aligned_array`` makes it.
#[pyfunction]
fn create_zero_copy_buffer(
    py: Python<'_>,
    queue_or_context: &Bound<'_, PyAny>,
    array: &Bound<'_, PyAny>,
) -> PyResult<Py<PyAny>> {
    let place = Place::of(queue_or_context)?;
    let array = array.cast::<PyUntypedArray>().map_err(|_| {
        PyTypeError::new_err("create_zero_copy_buffer: array must be an ndarray, whose memory the device can use")
    })?;
    let (pointer, nbytes) = ndarray::writeable_bytes(array)?;
    let rules = match &place {
        Place::OpenCl(context, _) => core::ZeroCopyRules::of(context),
        Place::Cpu => core::ZeroCopyRules { alignment: array.dtype().alignment().max(1), size_multiple: 1 },
    };
    rules.check(pointer.addr(), nbytes).py()?;
    let owner = Box::new(array.clone().unbind());
    match place {
        Place::OpenCl(context, _) => {
            // SAFETY: a live, dense, writeable array of this many bytes, which the owner keeps alive. NumPy does not move it; that
            // nobody touches it while commands run is the caller's side of zero copy, and said in the documentation.
            let buffer =
                unsafe { cl::Buffer::from_host_ptr(&context, MemFlags::READ_WRITE, pointer, nbytes, owner) }.py()?;
            Ok(Py::new(py, Buffer::new(buffer, Owner::Nobody))?.into_any())
        }
        Place::Cpu => {
            // SAFETY: as above.
            let memory = unsafe { netcl::core::backend::cpu::CpuBuffer::foreign(pointer, nbytes, owner) };
            Ok(Py::new(py, CpuBuffer::new(memory))?.into_any())
        }
    }
}
