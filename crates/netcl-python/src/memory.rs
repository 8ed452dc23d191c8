//! `netcl.core.memory`: pools, leases, statistics and helpers for host memory.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use netcl::core::backend::Queue;
use netcl::core::backend::opencl as cl;
use netcl::core::backend::opencl::{ClSource, MemFlags, SharedLease};
use netcl::core::memory as core;
use netcl::core::memory::Limits;
use numpy::PyUntypedArray;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::device::resolve_queue;
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
    module.add_class::<PoolStats>()?;
    module.add_function(wrap_pyfunction!(get_pinned_pool, module)?)?;
    module.add_function(wrap_pyfunction!(get_persistent_pool, module)?)?;
    module.add_function(wrap_pyfunction!(is_integrated_gpu, module)?)?;
    module.add_function(wrap_pyfunction!(has_svm_support, module)?)?;
    module.add_function(wrap_pyfunction!(create_pinned_buffer, module)?)?;
    module.add_function(wrap_pyfunction!(create_zero_copy_buffer, module)?)?;
    Ok(())
}

/// What the pools have in common.
#[pyclass(name = "_Pool", module = "netcl.core.memory", frozen, subclass, weakref, eq, hash)]
#[derive(Clone, PartialEq)]
pub(crate) struct Pool(pub(crate) core::Pool<ClSource>);

impl Eq for Pool {}

impl Hash for Pool {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Equal pools have one context; pools of one context are few.
        self.0.source().context().int_ptr().hash(state);
    }
}

#[pymethods]
impl Pool {
    /// Leases a block of at least ``nbytes`` bytes, possibly a used one: its contents are whatever was there.
    fn allocate(&self, py: Python<'_>, nbytes: i64) -> PyResult<BufferHandle> {
        let nbytes = byte_count("allocate", nbytes)?;
        py.detach(|| self.0.allocate(nbytes)).map(|lease| BufferHandle(Arc::new(RwLock::new(lease)))).py()
    }

    /// The counters of this moment.
    #[getter]
    fn stats(&self) -> PoolStats {
        PoolStats(self.0.stats())
    }

    /// Frees cached blocks until at most ``keep`` bytes are cached; returns how many bytes were freed.
    #[pyo3(signature = (keep=0))]
    fn trim(&self, py: Python<'_>, keep: usize) -> usize {
        py.detach(|| self.0.trim(keep))
    }

    /// Frees all cached blocks; returns how many bytes were freed.
    fn clear(&self, py: Python<'_>) -> usize {
        py.detach(|| self.0.clear())
    }

    /// The context the blocks belong to.
    #[getter]
    fn context(&self) -> Context {
        Context(self.0.source().context().clone())
    }

    fn __repr__(&self) -> String {
        format!("<{:?}>", self.0)
    }
}

fn byte_count(op: &str, nbytes: i64) -> PyResult<usize> {
    usize::try_from(nbytes).map_err(|_| PyValueError::new_err(format!("{op}: {nbytes} is not a number of bytes")))
}

/// The context of an argument and its first device, which stands for it in messages.
fn context_and_device(object: &Bound<'_, PyAny>) -> PyResult<(cl::Context, cl::Device)> {
    let context = context_from_py(object)?;
    match context.devices().first().cloned() {
        Some(device) => Ok((context, device)),
        None => Err(PyValueError::new_err("the context has no device")),
    }
}

/// Recycles device buffers in buckets of powers of two, without a limit.
#[pyclass(extends = Pool, module = "netcl.core.memory", frozen)]
pub(crate) struct BufferPool;

#[pymethods]
impl BufferPool {
    #[new]
    fn new(context: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        let (context, device) = context_and_device(context)?;
        let pool = core::BufferPool::new(ClSource::device_memory(&context, &device));
        Ok(PyClassInitializer::from(Pool(pool.into())).add_subclass(BufferPool))
    }
}

/// Recycles page-locked host buffers, which devices copy fast from and to.
#[pyclass(extends = Pool, module = "netcl.core.memory", frozen)]
pub(crate) struct PinnedBufferPool;

#[pymethods]
impl PinnedBufferPool {
    #[new]
    fn new(context: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        let (context, device) = context_and_device(context)?;
        let pool = core::PinnedBufferPool::new(ClSource::pinned_memory(&context, &device));
        Ok(PyClassInitializer::from(Pool(pool.into())).add_subclass(PinnedBufferPool))
    }
}

/// Recycles device buffers in a fixed table of buckets, with a hard limit on the bytes that wait for reuse.
#[pyclass(extends = Pool, module = "netcl.core.memory", frozen)]
pub(crate) struct PersistentBufferPool(core::PersistentBufferPool<ClSource>);

impl PersistentBufferPool {
    fn initializer(pool: &core::PersistentBufferPool<ClSource>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Pool(pool.clone().into())).add_subclass(PersistentBufferPool(pool.clone()))
    }
}

#[pymethods]
impl PersistentBufferPool {
    /// ``max_cached_bytes`` is ``NETCL_MAX_CACHED_GB`` gigabytes (4) unless given.
    #[new]
    #[pyo3(signature = (context, max_cached_bytes=None))]
    fn new(context: &Bound<'_, PyAny>, max_cached_bytes: Option<i64>) -> PyResult<PyClassInitializer<Self>> {
        let (context, device) = context_and_device(context)?;
        let source = ClSource::device_memory(&context, &device);
        let pool = match max_cached_bytes {
            Some(bytes) => {
                let limits = Limits::bytes(byte_count("max_cached_bytes", bytes)?);
                core::PersistentBufferPool::with_limits(source, limits)
            }
            None => core::PersistentBufferPool::new(source).py()?,
        };
        Ok(PersistentBufferPool::initializer(&pool))
    }

    /// The most bytes that wait for reuse.
    #[getter]
    fn max_cached_bytes(&self) -> usize {
        self.0.limits().max_cached_bytes
    }

    /// ``{hits, misses, hit_rate, bytes_allocated, bytes_cached, buckets}``; ``buckets`` maps block sizes to how many wait.
    fn get_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.0.get_stats();
        let buckets = PyDict::new(py);
        for bucket in stats.buckets {
            buckets.set_item(bucket.size, bucket.blocks)?;
        }
        let all = PyDict::new(py);
        all.set_item("hits", stats.hits)?;
        all.set_item("misses", stats.misses)?;
        all.set_item("hit_rate", stats.hit_rate)?;
        all.set_item("bytes_allocated", stats.bytes_allocated)?;
        all.set_item("bytes_cached", stats.bytes_cached)?;
        all.set_item("buckets", buckets)?;
        Ok(all)
    }
}

/// A one-shot lease of a block: released by ``release()``, by its tensor's end, or when dropped.
#[pyclass(module = "netcl.core.memory", frozen, weakref)]
pub(crate) struct BufferHandle(pub(crate) SharedLease);

impl BufferHandle {
    fn read<R>(&self, look: impl FnOnce(&core::BufferHandle<ClSource>) -> R) -> R {
        look(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl BufferHandle {
    /// Gives the block back to its pool. Releasing again does nothing.
    fn release(&self, py: Python<'_>) {
        py.detach(|| self.0.write().unwrap_or_else(PoisonError::into_inner).release());
    }

    /// The block; an error once the lease has ended.
    #[getter]
    fn buffer(&self) -> PyResult<Buffer> {
        let buffer = self.read(|lease| lease.block().cloned()).py()?;
        Ok(Buffer::new(buffer, Owner::Lease(self.0.clone())))
    }

    /// The bytes asked for.
    #[getter]
    fn nbytes(&self) -> usize {
        self.read(core::BufferHandle::nbytes)
    }

    /// The bytes of the block, at least ``nbytes``.
    #[getter]
    fn size(&self) -> usize {
        self.read(core::BufferHandle::size)
    }

    /// Whether the lease has ended.
    #[getter]
    fn released(&self) -> bool {
        self.read(core::BufferHandle::is_released)
    }

    /// If true, the block is freed instead of pooled when the lease ends.
    #[getter]
    fn persistent(&self) -> bool {
        self.read(core::BufferHandle::is_persistent)
    }

    #[setter]
    fn set_persistent(&self, persistent: bool) {
        self.read(|lease| lease.set_persistent(persistent));
    }

    fn __eq__(&self, other: &BufferHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn __hash__(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
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

/// The stream of a queue argument; pools are a matter of OpenCL.
fn need_stream(op: &str, queue: Option<&Bound<'_, PyAny>>, py: Python<'_>) -> PyResult<Arc<cl::Stream>> {
    match resolve_queue(py, queue, None)? {
        Queue::OpenCl(stream) => Ok(stream),
        Queue::Cpu(_) => {
            Err(PyTypeError::new_err(format!("{op}: the native CPU recycles memory by itself; give an OpenCL queue")))
        }
    }
}

/// The pool of page-locked memory that uploads to the queue's device go through.
#[pyfunction]
#[pyo3(signature = (queue=None))]
fn get_pinned_pool(py: Python<'_>, queue: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PinnedBufferPool>> {
    let stream = need_stream("get_pinned_pool", queue, py)?;
    let pool = Pool(stream.pinned_pool().clone().into());
    Py::new(py, PyClassInitializer::from(pool).add_subclass(PinnedBufferPool))
}

/// The pool that tensors of the queue's device come from. It is one pool per context and device, whoever asks.
#[pyfunction]
#[pyo3(signature = (queue=None))]
fn get_persistent_pool(py: Python<'_>, queue: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PersistentBufferPool>> {
    let stream = need_stream("get_persistent_pool", queue, py)?;
    Py::new(py, PersistentBufferPool::initializer(stream.pool()))
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

/// One buffer of page-locked host memory (``ALLOC_HOST_PTR``), outside any pool.
#[pyfunction]
fn create_pinned_buffer(py: Python<'_>, queue_or_context: &Bound<'_, PyAny>, nbytes: i64) -> PyResult<Buffer> {
    let context = context_from_py(queue_or_context)?;
    let nbytes = byte_count("create_pinned_buffer", nbytes)?;
    let buffer = py.detach(|| core::create_pinned_buffer(&context, nbytes)).py()?;
    Ok(Buffer::new(buffer, Owner::Nobody))
}

/// A buffer that *is* the array's memory (``USE_HOST_PTR``); the array is kept alive for as long as the driver uses it.
///
/// The array must be dense and writeable. Some devices ask for aligned memory: ``aligned_array`` makes it.
#[pyfunction]
fn create_zero_copy_buffer(queue_or_context: &Bound<'_, PyAny>, array: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    let context = context_from_py(queue_or_context)?;
    let array = array.cast::<PyUntypedArray>().map_err(|_| {
        PyTypeError::new_err("create_zero_copy_buffer: array must be an ndarray, whose memory the device can use")
    })?;
    let (pointer, nbytes) = ndarray::writeable_bytes(array)?;
    core::ZeroCopyRules::of(&context).check(pointer.addr(), nbytes).py()?;
    let owner = Box::new(array.clone().unbind());
    // SAFETY: a live, dense, writeable array of this many bytes, which the owner keeps alive. NumPy does not move it; that nobody
    // touches it while commands run is the caller's side of zero copy, and said in the documentation.
    let buffer = unsafe { cl::Buffer::from_host_ptr(&context, MemFlags::READ_WRITE, pointer, nbytes, owner) }.py()?;
    Ok(Buffer::new(buffer, Owner::Nobody))
}
