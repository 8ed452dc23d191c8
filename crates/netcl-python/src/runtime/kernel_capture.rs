//! Launches that are kept as they run.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, TryLockError};

use netcl::core::backend::Queue;
use netcl::core::backend::opencl::ClMemory;
use netcl::core::dtype::DType;
use netcl::core::kernels::launch::{Arg, Launch, Scalar, Work};
use netcl::core::shape::Layout;
use netcl::core::storage::Storage;
use netcl::core::tensor::Tensor as Raw;
use netcl::runtime::capture;
use netcl::runtime::capture::{Paused, Tensors};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use super::Value;
use crate::device::{queue_from_py, queue_to_py};
use crate::error::IntoPyResult;
use crate::ndarray;
use crate::opencl::{Buffer, Event, Kernel, Owner, buffer_from_py};

/// Runs launches and keeps them, between ``begin`` and ``end``, to be run again on the same memory.
#[pyclass(module = "netcl.runtime", frozen, weakref, subclass)]
pub(crate) struct KernelCapture(Mutex<State>);

#[derive(Default)]
struct State {
    capture: capture::KernelCapture,
    finalized: bool,
}

impl KernelCapture {
    fn with<R>(&self, run: impl FnOnce(&mut State) -> netcl::core::Result<R>) -> PyResult<R> {
        match self.0.try_lock() {
            Ok(mut state) => run(&mut state).py(),
            Err(TryLockError::Poisoned(poisoned)) => run(&mut poisoned.into_inner()).py(),
            Err(TryLockError::WouldBlock) => {
                Err(PyRuntimeError::new_err("the capture is being replayed; make a second one"))
            }
        }
    }

    fn check_ended(&self) -> PyResult<()> {
        if self.is_finalized()? {
            return Ok(());
        }
        Err(PyRuntimeError::new_err("replay: there is nothing to replay yet; call begin(), launch, call end()"))
    }
}

#[pymethods]
impl KernelCapture {
    #[new]
    fn new() -> KernelCapture {
        KernelCapture(Mutex::default())
    }

    /// Starts to keep the launches of this thread; what was kept before is forgotten.
    fn begin(&self) -> PyResult<()> {
        self.with(|state| {
            state.capture.clear();
            state.finalized = false;
            state.capture.begin()
        })
    }

    /// Stops, and returns how many launches were kept.
    fn end(&self) -> PyResult<usize> {
        self.with(|state| {
            let count = state.capture.end()?;
            state.finalized = true;
            Ok(count)
        })
    }

    /// Keeps a launch of another library's that has just run: a replay calls ``again()`` in its place.
    fn keep(&self, again: Py<PyAny>) -> PyResult<()> {
        let action = move || {
            Python::attach(|py| again.call0(py).map(drop)).map_err(|raised| netcl::core::Error::State {
                op: "replay",
                what: format!("a kept launch failed: {raised}"),
            })
        };
        self.with(|state| {
            state.capture.keep(Box::new(action));
            Ok(())
        })
    }

    /// Runs everything that was kept once more. ``rebind`` maps ``(launch, argument)`` to a tensor or buffer that takes the place of
    /// what the launch had there, from now on.
    #[pyo3(signature = (rebind=None))]
    fn replay(&self, py: Python<'_>, rebind: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        self.check_ended()?;
        for (place, object) in rebind.into_iter().flatten() {
            let (launch, arg): (usize, usize) = place.extract()?;
            let storage = storage_from_py(&object)?;
            self.with(|state| state.capture.rebind(launch, arg, &storage))?;
        }
        py.detach(|| self.with(|state| state.capture.replay()))
    }

    /// Runs everything once more with other buffers in the place of some, this time only: ``buffer_map`` maps the ``int_ptr`` of
    /// a buffer to the buffer or tensor that is to be used instead.
    fn replay_with_new_buffers(&self, py: Python<'_>, buffer_map: &Bound<'_, PyDict>) -> PyResult<()> {
        self.check_ended()?;
        let new = |(pointer, object): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            Ok((pointer.extract::<usize>()?, storage_from_py(&object)?))
        };
        let map = buffer_map.iter().map(new).collect::<PyResult<HashMap<usize, Arc<Storage>>>>()?;
        let instead = |storage: &Arc<Storage>| {
            let buffer = storage.cl_memory()?.buffer().ok()?;
            map.get(&buffer.int_ptr()).cloned()
        };
        py.detach(|| self.with(|state| state.capture.replay_with(instead)))
    }

    /// Forgets everything, also what is being kept.
    fn clear(&self) -> PyResult<()> {
        self.with(|state| {
            state.capture.clear();
            state.finalized = false;
            Ok(())
        })
    }

    /// Whether launches are being kept.
    #[getter]
    fn is_recording(&self) -> PyResult<bool> {
        self.with(|state| Ok(state.capture.is_capturing()))
    }

    /// Whether ``end()`` was called, so that a replay is possible.
    #[getter]
    fn is_finalized(&self) -> PyResult<bool> {
        self.with(|state| Ok(state.finalized))
    }

    /// How many launches were kept, up to now.
    #[getter]
    fn num_launches(&self) -> PyResult<usize> {
        self.with(|state| Ok(state.capture.len()))
    }

    fn __len__(&self) -> PyResult<usize> {
        self.num_launches()
    }

    /// For each launch ``(name, kernel, queue, global_size, local_size, args)``, and ``None`` for another library's.
    fn described<'py>(&self, py: Python<'py>) -> PyResult<Vec<Option<Bound<'py, PyTuple>>>> {
        let launches: Vec<Option<Launch>> =
            self.with(|state| Ok(state.capture.launches().map(|launch| launch.cloned()).collect()))?;
        launches.iter().map(|launch| launch.as_ref().map(|launch| describe(py, launch)).transpose()).collect()
    }

    /// An event that is complete when everything is that an OpenCL queue was given so far; ``None`` for other queues.
    #[staticmethod]
    fn event_of(queue: &Bound<'_, PyAny>) -> PyResult<Option<Event>> {
        match queue_from_py(queue)? {
            Some(Queue::OpenCl(stream)) => stream.queue().marker(&[]).py().map(|event| Some(Event::new(event))),
            _ => Ok(None),
        }
    }
}

/// A context in which no ``KernelCapture`` keeps the launches of this thread; they only run.
#[pyclass(module = "netcl.runtime", name = "capture_disabled", unsendable)]
pub(crate) struct CaptureDisabled(RefCell<Vec<Paused>>);

#[pymethods]
impl CaptureDisabled {
    #[new]
    fn new() -> CaptureDisabled {
        CaptureDisabled(RefCell::default())
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this.0.borrow_mut().push(Paused::new());
        this
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, PyTuple>) {
        self.0.borrow_mut().pop();
    }
}

/// The memory of a tensor or buffer, ours or PyOpenCL's.
fn storage_from_py(object: &Bound<'_, PyAny>) -> PyResult<Arc<Storage>> {
    if let Some((buffer, owner)) = buffer_from_py(object)? {
        return Ok(match owner {
            Owner::Storage(storage) => storage,
            Owner::Nobody => Arc::new(Storage::opencl(ClMemory::foreign(buffer))),
            Owner::Lease(lease) => Arc::new(Storage::opencl(ClMemory::shared(lease))),
            Owner::Foreign(object) => Arc::new(Storage::opencl(ClMemory::foreign_of(buffer, Some(object)))),
        });
    }
    let mut storage = None;
    if let Ok(value) = Value::from_py(object) {
        value.visit(&mut |tensor| storage = Some(tensor.storage().clone()));
    }
    let kind = object.get_type().name()?;
    storage.ok_or_else(|| PyTypeError::new_err(format!("a tensor or a buffer is needed, not {kind}")))
}

fn describe<'py>(py: Python<'py>, launch: &Launch) -> PyResult<Bound<'py, PyTuple>> {
    let none = || py.None().into_bound(py);
    let (kernel, global, local) = match &launch.work {
        Work::OpenCl(kernel, grid) => {
            let local = grid.local_size().map(|size| PyTuple::new(py, size)).transpose()?;
            let kernel = Bound::new(py, Kernel(kernel.clone()))?.into_any();
            (kernel, PyTuple::new(py, grid.global_size())?.into_any(), local.map_or_else(none, Bound::into_any))
        }
        Work::Cpu(_) | Work::Host(_) => (none(), PyTuple::empty(py).into_any(), none()),
    };
    let args = launch.args.iter().map(|arg| argument(py, &launch.queue, arg)).collect::<PyResult<Vec<_>>>()?;
    let queue = queue_to_py(py, &launch.queue)?.into_bound(py);
    let name = launch.name.as_ref().into_pyobject(py)?.into_any();
    PyTuple::new(py, [name, kernel, queue, global, local, PyTuple::new(py, args)?.into_any()])
}

/// An argument as Python has it: a buffer (the bytes themselves on the native CPU), a number.
fn argument<'py>(py: Python<'py>, queue: &Queue, arg: &Arg) -> PyResult<Bound<'py, PyAny>> {
    Ok(match arg {
        Arg::Buffer(storage, _) => match storage.cl_memory() {
            Some(memory) => {
                Bound::new(py, Buffer::new(memory.buffer().py()?, Owner::Storage(storage.clone())))?.into_any()
            }
            None => {
                let layout = Layout::contiguous([storage.nbytes()].into());
                let bytes = Raw::from_storage(queue, storage.clone(), layout, DType::U8).py()?;
                ndarray::share_bytes(py, &bytes)?.unwrap_or_else(|| py.None().into_bound(py))
            }
        },
        Arg::Local(nbytes) => nbytes.into_pyobject(py)?.into_any(),
        Arg::Null => py.None().into_bound(py),
        Arg::Scalar(scalar) => match scalar {
            Scalar::I32(v) => v.into_pyobject(py)?.into_any(),
            Scalar::U32(v) => v.into_pyobject(py)?.into_any(),
            Scalar::I64(v) => v.into_pyobject(py)?.into_any(),
            Scalar::U64(v) => v.into_pyobject(py)?.into_any(),
            Scalar::F32(v) => v.into_pyobject(py)?.into_any(),
            Scalar::F64(v) => v.into_pyobject(py)?.into_any(),
            Scalar::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
            Scalar::SlotF32(slot) | Scalar::SlotF64(slot) => slot.get_float().into_pyobject(py)?.into_any(),
            Scalar::SlotU64(slot) => slot.get_integer().into_pyobject(py)?.into_any(),
        },
    })
}
