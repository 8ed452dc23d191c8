//! One epoch of a loader: batches made by worker threads, which need the interpreter's lock only for what is Python code.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netcl::data::loader::Samples;
use netcl::data::{self, DataLoader, Error, LoaderState, Result, Sample};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList};

use super::dataset::{Dataset, Set};
use super::gate::{Gate, finish};
use super::sample::to_py;
use super::sampler::{Batches, Failed};
use super::transforms::{Mix, changes, mixers};
use super::{IntoPy, raised};

/// How long a wait may keep signal handlers from running.
const LOOK: Duration = Duration::from_millis(50);

/// A sample or batch on its way: Python objects only where Python code made or takes them.
pub(super) enum Item {
    Rust(Sample),
    Python(Py<PyAny>),
}

impl Item {
    pub(super) fn into_py(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        match self {
            Item::Rust(sample) => to_py(py, sample),
            Item::Python(object) => Ok(object.into_bound(py)),
        }
    }
}

/// A data set of netcl-data, read without the interpreter's lock.
struct RustSet(Set);

impl data::Dataset for RustSet {
    type Item = Item;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Result<Item> {
        self.0.get(index).map(Item::Rust)
    }
}

/// Anything with `__getitem__`, which knows its length best itself.
struct PythonSet {
    dataset: Py<PyAny>,
    gate: Arc<Gate>,
}

impl data::Dataset for PythonSet {
    type Item = Item;

    fn len(&self) -> usize {
        usize::MAX
    }

    fn get(&self, index: usize) -> Result<Item> {
        self.gate.pass(|py| Ok(Item::Python(self.dataset.bind(py).get_item(index)?.unbind())))
    }
}

/// A Python iterator of samples.
struct PythonStream {
    samples: Py<PyIterator>,
    gate: Arc<Gate>,
}

impl data::IterableDataset for PythonStream {
    type Item = Item;

    fn samples(&self, _epoch: u64) -> Result<Samples<Item>> {
        let gate = self.gate.clone();
        let mut samples = Some(gate.pass(|py| Ok(self.samples.clone_ref(py)))?);
        Ok(Box::new(std::iter::from_fn(move || {
            let iterator = samples.as_ref()?;
            let next = gate.pass(|py| match iterator.bind(py).clone().next() {
                Some(sample) => Ok(Some(Item::Python(sample?.unbind()))),
                None => Ok(None),
            });
            if next.is_err() {
                // An iterator that raised has nothing more to give.
                samples = None;
            }
            next.transpose()
        })))
    }
}

/// An epoch's batches, in order.
#[pyclass(frozen, module = "netcl._netcl.data", weakref)]
pub(super) struct Epoch {
    running: Mutex<Option<data::Epoch<Item>>>,
    gate: Arc<Gate>,
    failed: Failed,
    /// Whether workers run Python code, so that nobody may wait for them with the interpreter's lock held.
    python: bool,
    timeout: Option<Duration>,
    /// Set by `close`, for a thread that waits for a batch.
    closing: AtomicBool,
    /// How many batches were handed over, and how many samples of the epoch were, those before a resumed one's start among them.
    batches: AtomicUsize,
    samples: AtomicUsize,
}

#[pymethods]
impl Epoch {
    /// ``dataset`` is a data set of the extension, an object with ``__getitem__``, or, where ``stream`` is true, an iterator of
    /// samples in batches of ``batch_size``.
    #[new]
    #[pyo3(signature = (dataset, batches, *, stream, batch_size, drop_last, transforms, mixes, collate, always_collate,
                        seed, epoch, samples, workers, prefetch, timeout))]
    #[expect(clippy::too_many_arguments, reason = "the loader's settings, by name")]
    fn new(
        py: Python<'_>,
        dataset: &Bound<'_, PyAny>,
        batches: &Bound<'_, PyAny>,
        stream: bool,
        batch_size: usize,
        drop_last: bool,
        transforms: Vec<Bound<'_, PyAny>>,
        mixes: Vec<Bound<'_, Mix>>,
        collate: Py<PyAny>,
        always_collate: bool,
        seed: u64,
        epoch: u64,
        samples: usize,
        workers: usize,
        prefetch: usize,
        timeout: Option<f64>,
    ) -> PyResult<Epoch> {
        let gate = Gate::new(workers > 0);
        let failed = Failed::default();
        let (changes, mixers) = (changes(py, &transforms)?, mixers(&mixes));
        let mut python = always_collate || changes.iter().any(|change| change.is_python());
        let mut builder = if stream {
            python = true;
            let samples = dataset.try_iter()?.unbind();
            let stream = PythonStream { samples, gate: gate.clone() };
            DataLoader::of_stream(stream).batch_size(batch_size).drop_last(drop_last)
        } else {
            let order = Batches::new(batches, &gate, &failed)?;
            python |= order.is_python();
            let builder = match dataset.cast::<Dataset>() {
                Ok(set) => DataLoader::of(RustSet(set.get().0.clone())),
                Err(_) => {
                    python = true;
                    DataLoader::of(PythonSet { dataset: dataset.clone().unbind(), gate: gate.clone() })
                }
            };
            builder.batch_sampler(order)
        };
        builder = builder.seed(seed).workers(workers).prefetch(prefetch);
        if !changes.is_empty() {
            let gate = gate.clone();
            builder = builder.transform(move |item, random| {
                changes.iter().try_fold(item, |item, change| change.apply(&gate, item, random))
            });
        }
        let gate_of_batch = gate.clone();
        let loader = builder.build_with(move |items, random| {
            let batch = collated(&gate_of_batch, items, &collate, always_collate)?;
            mixers.iter().try_fold(batch, |batch, mixer| mixer.of_batch(&gate_of_batch, batch, random))
        });
        let loader = loader.data(py)?;
        let running = py.detach(|| loader.resume(LoaderState { seed, epoch, samples })).data(py)?;
        let timeout = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let (batches, samples) = (AtomicUsize::new(0), AtomicUsize::new(samples));
        let (running, closing) = (Mutex::new(Some(running)), AtomicBool::new(false));
        Ok(Epoch { running, gate, failed, python, timeout, closing, batches, samples })
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Ok(mut running) = self.running.try_lock() else {
            let text = "DataLoader: this iterator is in use; every thread needs an iterator of its own, and a data set must not \
                        ask the iterator that asks it";
            return Err(PyRuntimeError::new_err(text));
        };
        let Some(epoch) = running.as_mut() else { return Ok(None) };
        let started = Instant::now();
        let next = loop {
            let left = self.timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            let waited = py.detach(|| epoch.wait(left.map_or(LOOK, |left| left.min(LOOK)))).data(py)?;
            if let Some(next) = waited {
                break next;
            }
            if self.closing.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if let Err(interrupt) = py.check_signals() {
                // Ends at once: workers finish the sample at hand by themselves.
                if let Some(epoch) = running.take() {
                    epoch.detach();
                }
                return Err(interrupt);
            }
            if left.is_some_and(|left| left.is_zero()) {
                let (batch, timeout) = (self.batches.load(Ordering::Relaxed), self.timeout.unwrap_or_default());
                return Err(raised(py, Error::Timeout { batch, seconds: timeout.as_secs_f64() }));
            }
        };
        self.samples.store(epoch.state().samples, Ordering::Relaxed);
        match next {
            Some(batch) => {
                self.batches.fetch_add(1, Ordering::Relaxed);
                drop(running);
                batch.data(py)?.into_py(py).map(Some)
            }
            None => {
                let ended = running.take();
                drop(running);
                self.end(py, ended);
                match self.failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    Some(error) => Err(error),
                    None => Ok(None),
                }
            }
        }
    }

    /// How many samples of the epoch have been handed over.
    #[getter]
    fn samples(&self) -> usize {
        self.samples.load(Ordering::Relaxed)
    }

    /// How the time was spent so far, in seconds; none after the end.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Ok(running) = self.running.try_lock() else { return Ok(None) };
        let Some(stats) = running.as_ref().map(data::Epoch::stats) else { return Ok(None) };
        let dict = PyDict::new(py);
        dict.set_item("batches", stats.batches)?;
        dict.set_item("samples", stats.samples)?;
        dict.set_item("consumer_wait", stats.consumer_wait.as_secs_f64())?;
        dict.set_item("worker_wait", stats.worker_wait.as_secs_f64())?;
        dict.set_item("worker_busy", stats.worker_busy.as_secs_f64())?;
        dict.set_item("lock_wait", self.gate.waited().as_secs_f64())?;
        dict.set_item("python_busy", self.gate.busy().as_secs_f64())?;
        Ok(Some(dict))
    }

    /// Ends the workers; with ``wait``, when they have finished the samples at hand.
    fn close(&self, py: Python<'_>, wait: bool) -> PyResult<()> {
        self.closing.store(true, Ordering::Relaxed);
        let pause = || {
            py.detach(|| std::thread::sleep(Duration::from_millis(1)));
            py.check_signals()
        };
        loop {
            // Somebody else may wait for a batch, until it sees that this is the end.
            if let Ok(mut running) = self.running.try_lock() {
                let ended = running.take();
                drop(running);
                self.end(py, ended);
                break;
            }
            if !wait {
                return Ok(());
            }
            pause()?;
        }
        while wait && self.python && !self.gate.is_empty() {
            pause()?;
        }
        Ok(())
    }
}

impl Epoch {
    /// Ends workers without a wait for Python code.
    fn end(&self, py: Python<'_>, epoch: Option<data::Epoch<Item>>) {
        match epoch {
            Some(epoch) if self.python => epoch.detach(),
            epoch => py.detach(|| drop(epoch)),
        }
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        if let Some(epoch) = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // Never a wait with the interpreter's lock held, which a worker may need to end.
            epoch.detach();
        }
    }
}

/// A batch of samples. Samples that no Python code has seen are joined without the interpreter's lock.
fn collated(gate: &Gate, items: Vec<Item>, collate: &Py<PyAny>, always: bool) -> Result<Item> {
    let rust = |item: &Item| matches!(item, Item::Rust(_));
    if !always && items.iter().all(rust) {
        let samples =
            items.into_iter().filter_map(|item| if let Item::Rust(sample) = item { Some(sample) } else { None });
        return Sample::collate(samples.collect()).map(Item::Rust);
    }
    gate.pass(|py| {
        let samples = items.into_iter().map(|item| item.into_py(py)).collect::<PyResult<Vec<_>>>()?;
        Ok(Item::Python(collate.bind(py).call1((PyList::new(py, samples)?,))?.unbind()))
    })
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Epoch>()?;
    module.add_function(wrap_pyfunction!(finish, module)?)
}
