//! What tensors have to do with OpenCL objects: buffers from elsewhere, pools of one's own, reads that do not wait.

use std::sync::{Arc, LazyLock, RwLock};

use super::{HostOptions, Tensor};
use crate::backend::Queue;
use crate::backend::opencl::{Buffer, ClMemory, ClSource, Context, Event, SharedLease, Staged, Stream, Transfer};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::host;
use crate::kernels::{copy, launch};
use crate::memory::{BlockSource, BufferHandle, CpuSource, Pool, QueueId, SharedCpuLease};
use crate::shape::{Layout, Shape};
use crate::storage::Storage;

impl Tensor {
    /// A tensor over a buffer that exists already; nothing is copied. The buffer must belong to the queue's context and be large
    /// enough.
    ///
    /// # Errors
    /// [`Error::Argument`] for a queue of the native CPU or a buffer of another context; [`Error::Shape`] for a small one.
    pub fn from_buffer(queue: &Queue, buffer: Buffer, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        Tensor::from_cl_memory(queue, ClMemory::foreign(buffer), shape, dtype)
    }

    /// A tensor over the memory of a lease, which ends with the last tensor over it.
    ///
    /// # Errors
    /// As for [`Tensor::from_buffer`]; [`Error::State`] when the lease has ended.
    pub fn from_lease(queue: &Queue, lease: SharedLease, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        Tensor::from_cl_memory(queue, ClMemory::shared(lease), shape, dtype)
    }

    /// A tensor over OpenCL memory of any kind.
    ///
    /// # Errors
    /// As for [`Tensor::from_buffer`] and [`Tensor::from_lease`].
    pub fn from_cl_memory(queue: &Queue, memory: ClMemory, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        check_context(queue, "buffer", memory.buffer()?.context())?;
        queue.check_dtype("tensor", dtype)?;
        let layout = Layout::contiguous(shape.into());
        Tensor::from_storage(queue, Arc::new(Storage::opencl(memory)), layout, dtype)
    }

    /// A new tensor filled with a value, in memory of a pool of the caller's choice: one of the queue's context, or for the native
    /// CPU one over [`CpuSource`].
    ///
    /// # Errors
    /// [`Error::Argument`] for a pool of another context or device; otherwise those of [`Tensor::full`].
    pub fn full_in<S: TensorSource>(
        queue: &Queue,
        pool: &Pool<S>,
        shape: impl Into<Shape>,
        dtype: DType,
        fill: f64,
    ) -> Result<Tensor> {
        let id = pool.source().check_queue(queue)?;
        queue.check_dtype("from_shape", dtype)?;
        let shape = shape.into();
        let nbytes = shape.nbytes("from_shape", dtype)?;
        if nbytes == 0 {
            return Tensor::uninit(queue, shape, dtype);
        }
        let lease = pool.allocate_on(nbytes, "tensor", id)?;
        let storage = S::storage(Arc::new(RwLock::new(lease)))?;
        let tensor = Tensor::from_storage(queue, Arc::new(storage), Layout::contiguous(shape), dtype)?;
        copy::fill(&tensor, fill)?;
        Ok(tensor)
    }

    /// Starts to read all elements in row-major order; [`HostTransfer::wait`] gives them. Ready at once on the native CPU.
    ///
    /// ```
    /// use netcl_core::{device::manager, tensor::Tensor};
    /// let queue = manager().get("auto")?.queue;
    /// let tensor = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0], [3])?;
    /// let transfer = tensor.to_host_async::<f32>()?;
    /// // ... other work ...
    /// assert_eq!(transfer.wait()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), netcl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Tensor::to_host`].
    pub fn to_host_async<T: Element>(&self) -> Result<HostTransfer<T>> {
        let Queue::OpenCl(stream) = self.queue() else {
            return Ok(HostTransfer(State::Ready(self.to_host()?)));
        };
        if T::DTYPE != self.dtype() || self.size() == 0 {
            return Ok(HostTransfer(State::Ready(self.to_host()?)));
        }
        launch::check_readable("to_host_async")?;
        let dense = self.contiguous()?;
        let memory = dense.storage().require_cl("to_host_async")?;
        let offset = dense.layout().offset() * self.dtype().size();
        let out = host::filled("to_host_async", self.size(), T::default())?;
        let transfer = memory.download(stream, offset, out)?;
        Ok(HostTransfer(State::Pending(transfer)))
    }
}

/// A source whose blocks can be tensors' memory.
pub trait TensorSource: BlockSource + Sized {
    /// The identifier of a queue in leases, or an error if its tensors cannot lie in memory of this source.
    ///
    /// # Errors
    /// [`Error::Argument`].
    fn check_queue(&self, queue: &Queue) -> Result<QueueId>;

    /// The storage over a lease, which ends with it.
    ///
    /// # Errors
    /// [`Error::State`] when the lease has ended.
    fn storage(lease: Arc<RwLock<BufferHandle<Self>>>) -> Result<Storage>;
}

impl TensorSource for ClSource {
    fn check_queue(&self, queue: &Queue) -> Result<QueueId> {
        Ok(check_context(queue, "pool", self.context())?.id())
    }

    fn storage(lease: SharedLease) -> Result<Storage> {
        Ok(Storage::opencl(ClMemory::shared(lease)))
    }
}

impl TensorSource for CpuSource {
    fn check_queue(&self, queue: &Queue) -> Result<QueueId> {
        // Any number: work on the native CPU is never outstanding.
        static NATIVE: LazyLock<QueueId> = LazyLock::new(QueueId::next);
        match queue {
            Queue::Cpu(_) => Ok(*NATIVE),
            Queue::OpenCl(_) => {
                let what = format!(
                    "the pool belongs to the native CPU and the queue to {}; make it with queue.context",
                    queue.device_name()
                );
                Err(Error::argument("tensor", what))
            }
        }
    }

    fn storage(lease: SharedCpuLease) -> Result<Storage> {
        Storage::cpu_lease(lease)
    }
}

/// A point in the work of a queue: everything it was given before.
#[derive(Clone, Debug)]
pub struct Mark(Option<Event>);

impl Mark {
    /// The work that a queue has been given so far, sent on its way.
    ///
    /// # Errors
    /// What the driver says.
    pub fn of(queue: &Queue) -> Result<Mark> {
        let Queue::OpenCl(stream) = queue else { return Ok(Mark(None)) };
        let marker = stream.queue().marker(&[])?;
        stream.queue().flush()?;
        Ok(Mark(Some(marker)))
    }

    /// Waits for it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |event| Ok(event.wait()?))
    }
}

impl Tensor {
    /// Overwrites dense tensors with host data, the bytes of their elements, on the copy queue, beside whatever the compute queue is
    /// doing: that begins when `free` is reached, at which nobody may be using the tensors any more. Work that is given later waits
    /// for the data, which has been copied from the host when this returns.
    ///
    /// Where there is no copy queue (the native CPU) the data is there at once.
    ///
    /// # Errors
    /// For data of another length, views, and while launches are recorded.
    pub fn overwrite_after(batch: &[(&Tensor, &[u8])], free: Option<&Mark>) -> Result<()> {
        const OP: &str = "upload";
        launch::check_readable(OP)?;
        for (tensor, data) in batch {
            let nbytes = tensor.size() * tensor.dtype().size();
            if data.len() != nbytes || !tensor.layout().is_contiguous() || tensor.layout().offset() != 0 {
                let why = format!("{} bytes of {} need a dense tensor of as many", data.len(), tensor.dtype());
                return Err(Error::Shape { op: OP, shape: tensor.shape().clone(), why });
            }
        }
        // Everything into page-locked memory first: what comes there later has to wait for the copies before it, and with them for
        // `free`.
        let mut staged = Vec::with_capacity(batch.len());
        for (tensor, data) in batch.iter().filter(|(_, data)| !data.is_empty()) {
            match tensor.queue() {
                Queue::Cpu(_) => {
                    tensor.upload(data, tensor.dtype(), HostOptions::default())?;
                }
                Queue::OpenCl(stream) => staged.push((stream, tensor.storage(), Staged::new(stream, data)?)),
            }
        }
        for (stream, storage, staged) in staged {
            storage.require_cl(OP)?.write_after(stream, staged, free.and_then(|mark| mark.0.as_ref()))?;
            storage.raise_version();
        }
        Ok(())
    }
}

/// The stream of an OpenCL queue, provided that an object belongs to its context.
fn check_context<'q>(queue: &'q Queue, what: &str, context: &Context) -> Result<&'q Arc<Stream>> {
    match queue {
        Queue::OpenCl(stream) if stream.context() == context => Ok(stream),
        Queue::OpenCl(stream) => {
            let text = format!(
                "the {what} belongs to another OpenCL context ({context:?}) than the queue ({:?}); make it with queue.context",
                stream.context()
            );
            Err(Error::argument("tensor", text))
        }
        Queue::Cpu(_) => Err(Error::argument(
            "tensor",
            format!("the {what} is OpenCL's, the queue the native CPU's; name its queue"),
        )),
    }
}

/// Elements on their way to the host. Dropping it waits for them.
#[must_use = "dropping a transfer waits for it"]
pub struct HostTransfer<T>(State<T>);

enum State<T> {
    Ready(Vec<T>),
    Pending(Transfer<Vec<T>>),
}

impl<T> HostTransfer<T> {
    /// Waits for the elements.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait(self) -> Result<Vec<T>> {
        match self.0 {
            State::Ready(data) => Ok(data),
            State::Pending(transfer) => Ok(transfer.wait()?),
        }
    }

    /// The event that marks the copy as complete; `None` when it already is.
    pub fn event(&self) -> Option<&Event> {
        match &self.0 {
            State::Ready(_) => None,
            State::Pending(transfer) => transfer.event(),
        }
    }

    /// Whether [`HostTransfer::wait`] would return at once.
    ///
    /// # Errors
    /// What the driver says.
    pub fn is_complete(&self) -> Result<bool> {
        match &self.0 {
            State::Ready(_) => Ok(true),
            State::Pending(transfer) => Ok(transfer.is_complete()?),
        }
    }
}
