//! Samplers: orders of samples and how they are batched.

use std::sync::{Arc, Mutex, PoisonError};

use netcl::core::host;
use netcl::data;
use netcl::data::sampler::Batched;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use super::gate::Gate;
use super::sample::{array_from_py, array_to_py};
use super::{IntoPy, raised};
use crate::error::IntoPyResult;
use crate::list::List;

/// The order of an epoch's samples, a function of a seed and the epoch's number.
#[pyclass(frozen, module = "netcl._netcl.data")]
pub(super) struct Sampler(Shared);

#[derive(Clone)]
struct Shared(Arc<dyn data::Sampler>);

impl data::Sampler for Shared {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn order(&self, epoch: u64) -> Vec<usize> {
        self.0.order(epoch)
    }
}

impl Sampler {
    /// An order is a list in memory, with copies on its way to Python.
    fn checked(sampler: impl data::Sampler + 'static) -> PyResult<Sampler> {
        host::with_capacity::<usize>("sampler", sampler.len().saturating_mul(3)).py()?;
        Ok(Sampler(Shared(Arc::new(sampler))))
    }
}

#[pymethods]
impl Sampler {
    /// All samples in their order.
    #[staticmethod]
    fn sequential(len: usize) -> PyResult<Sampler> {
        Sampler::checked(data::SequentialSampler { len })
    }

    /// All samples in another order each epoch.
    #[staticmethod]
    fn random(len: usize, seed: u64) -> PyResult<Sampler> {
        Sampler::checked(data::RandomSampler { len, seed })
    }

    /// Samples drawn with replacement by weight.
    #[staticmethod]
    fn weighted(py: Python<'_>, weights: &Bound<'_, PyAny>, count: usize, seed: u64) -> PyResult<Sampler> {
        let weights: Vec<f64> = numbers("WeightedRandomSampler: weights", weights)?;
        Sampler::checked(data::WeightedSampler::new(&weights, count, seed).data(py)?)
    }

    /// Every ``world``th sample of another sampler's order.
    #[staticmethod]
    fn distributed(
        py: Python<'_>,
        inner: &Bound<'_, Sampler>,
        rank: usize,
        world: usize,
        drop_last: bool,
    ) -> PyResult<Sampler> {
        let uneven = if drop_last { data::Uneven::Truncate } else { data::Uneven::Pad };
        Sampler::checked(data::DistributedSampler::new(inner.get().0.clone(), rank, world, uneven).data(py)?)
    }

    /// The numbers of an epoch's samples.
    fn order<'py>(&self, py: Python<'py>, epoch: u64) -> PyResult<Bound<'py, PyAny>> {
        let order = py.detach(|| data::Sampler::order(&self.0, epoch).into_iter().map(|at| at as i64).collect());
        array_to_py(py, data::Array::line::<i64>(order))
    }

    fn __len__(&self) -> usize {
        data::Sampler::len(&self.0)
    }
}

/// The batches of an epoch, each the numbers of its samples.
#[pyclass(frozen, module = "netcl._netcl.data")]
pub(super) struct BatchSampler(Arc<dyn data::BatchSampler>);

#[pymethods]
impl BatchSampler {
    /// A sampler's order in batches of one size.
    #[staticmethod]
    fn fixed(py: Python<'_>, sampler: &Bound<'_, Sampler>, size: usize, drop_last: bool) -> PyResult<BatchSampler> {
        let batches = data::FixedBatches::new(sampler.get().0.clone(), size, drop_last).data(py)?;
        Ok(BatchSampler(Arc::new(batches)))
    }

    /// Batches of samples of similar lengths.
    #[staticmethod]
    fn by_length(
        py: Python<'_>,
        sampler: &Bound<'_, Sampler>,
        lengths: &Bound<'_, PyAny>,
        size: usize,
        batches: usize,
        seed: u64,
        drop_last: bool,
    ) -> PyResult<BatchSampler> {
        let List(lengths): List<usize> = lengths.extract()?;
        let batches = data::LengthBatches::new(sampler.get().0.clone(), lengths, size, batches, seed).data(py)?;
        Ok(BatchSampler(Arc::new(batches.drop_last(drop_last))))
    }

    /// The batches of an epoch without its first ``skipped`` samples.
    fn batches(&self, py: Python<'_>, epoch: u64, skipped: usize) -> Vec<Vec<usize>> {
        py.detach(|| self.0.batches(epoch, skipped).collect())
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// Floats of whatever NumPy makes an array of.
fn numbers(what: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<f64>> {
    let wrong = || PyTypeError::new_err(format!("{what} must be numbers"));
    let array = crate::ndarray::numpy(object.py())?.call_method1("asarray", (object,))?;
    if !matches!(array.cast::<PyUntypedArray>()?.dtype().kind(), b'f' | b'i' | b'u' | b'b') {
        return Err(wrong());
    }
    host::check::<f64>("sampler", array.cast::<PyUntypedArray>()?.len()).py()?;
    let array = array_from_py(what, &array.call_method1("astype", ("float64",))?)?;
    array.slice::<f64>().map(<[f64]>::to_vec).ok_or_else(wrong)
}

/// Where the loader's batches come from: a sampler of ours, or a Python iterator of lists of numbers.
pub(super) enum Batches {
    Rust(Arc<dyn data::BatchSampler>),
    /// It is asked once: a loader is made for each epoch.
    Python {
        lists: Mutex<Option<Py<PyIterator>>>,
        gate: Arc<Gate>,
        failed: Failed,
    },
}

/// The exception that ended a Python sampler: an iterator of batches has no place for it.
pub(super) type Failed = Arc<Mutex<Option<PyErr>>>;

impl Batches {
    pub(super) fn new(object: &Bound<'_, PyAny>, gate: &Arc<Gate>, failed: &Failed) -> PyResult<Batches> {
        if let Ok(sampler) = object.cast::<BatchSampler>() {
            return Ok(Batches::Rust(sampler.get().0.clone()));
        }
        let lists = Mutex::new(Some(object.try_iter()?.unbind()));
        Ok(Batches::Python { lists, gate: gate.clone(), failed: failed.clone() })
    }

    /// Whether the workers need Python for it.
    pub(super) fn is_python(&self) -> bool {
        matches!(self, Batches::Python { .. })
    }
}

impl data::BatchSampler for Batches {
    /// Python's loader knows the number of its batches itself.
    fn len(&self) -> usize {
        match self {
            Batches::Rust(batches) => batches.len(),
            Batches::Python { .. } => 0,
        }
    }

    fn batches(&self, epoch: u64, skipped: usize) -> Batched {
        let (lists, gate, failed) = match self {
            Batches::Rust(batches) => return batches.batches(epoch, skipped),
            Batches::Python { lists, gate, failed } => (lists, gate.clone(), failed.clone()),
        };
        let mut lists = lists.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::new(std::iter::from_fn(move || {
            let next = gate.pass(|py| {
                let Some(list) = lists.as_ref().and_then(|lists| lists.bind(py).clone().next()) else { return Ok(None) };
                let list = list?;
                let indices: PyResult<List<usize>> = list.extract();
                indices.map(|indices| Some(indices.0)).map_err(|_| {
                    PyTypeError::new_err(format!(
                        "DataLoader: a sampler gives the numbers of samples, whole and 0 or more; this one gave {list:.200}"
                    ))
                })
            });
            next.unwrap_or_else(|error| {
                lists = None;
                let error = Python::try_attach(|py| raised(py, error));
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = error;
                None
            })
        }))
    }
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Sampler>()?;
    module.add_class::<BatchSampler>()
}
