//! `netcl.trainer.metrics`: metrics of Rust, and metrics that users write in Python.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netcl::Tensor as Recorded;
use netcl::autograd::ops::loss::Target;
use netcl::core::index::IndexTensor as Index;
use netcl::distributed::Group;
use netcl::trainer::metric::{self as core, Average, LabelOptions, Score, metric_from_name};
use netcl::trainer::trainer::Metric as Core;
use netcl::trainer::{Error, Result};
use pyo3::exceptions::{PyNotImplementedError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::autograd::{Labels, run};
use crate::error::{carry, kind, trainer_to_py};
use crate::index::Made;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Metric>()?;
    module.add_class::<Accuracy>()?;
    module.add_class::<TopK>()?;
    module.add_class::<Precision>()?;
    module.add_class::<Recall>()?;
    module.add_class::<F1>()?;
    module.add_class::<ConfusionMatrix>()?;
    module.add_class::<Auroc>()?;
    module.add_class::<Perplexity>()?;
    module.add_class::<MeanError>()?;
    module.add_class::<MeanSquaredError>()?;
    module.add_function(wrap_pyfunction!(from_name, module)?)?;
    module.add_function(wrap_pyfunction!(rehearse, module)?)
}

/// A metric's name and its figure of a batch, and the figure of a fresh one that sees the batch as well: as a trainer calls it.
#[pyfunction]
#[pyo3(name = "_rehearse_metric")]
fn rehearse(
    metric: &Bound<'_, PyAny>,
    predictions: &Tensor,
    targets: &Bound<'_, PyAny>,
) -> PyResult<(String, f64, f64)> {
    let mut metric = metric_of(metric)?;
    let predictions = &predictions.inner();
    let targets = Labels::new(targets, predictions)?;
    let mut figures = || {
        metric.update(predictions, targets.target())?;
        let mut fresh = metric.fresh()?;
        fresh.update(predictions, targets.target())?;
        Ok((metric.name(), metric.compute()?, fresh.compute()?))
    };
    figures().map_err(trainer_to_py)
}

type Shared<M> = Arc<Mutex<M>>;

fn lock<M: ?Sized>(shared: &Mutex<M>) -> MutexGuard<'_, M> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A figure over all samples since ``reset()``.
///
/// To write your own, derive from it and write ``update(predictions, targets)``, ``compute()`` and ``reset()``; ``name`` is a class
/// attribute, else the name of the class.
#[pyclass(module = "netcl.trainer.metrics", frozen, subclass)]
pub(crate) struct Metric {
    /// The metric of Rust; none in classes of users.
    inner: Option<Shared<dyn Core>>,
}

impl Metric {
    fn of(inner: Shared<dyn Core>) -> PyClassInitializer<Metric> {
        PyClassInitializer::from(Metric { inner: Some(inner) })
    }

    fn inner(slf: &Bound<'_, Self>, method: &str) -> PyResult<Shared<dyn Core>> {
        slf.get().inner.clone().ok_or_else(|| {
            PyNotImplementedError::new_err(format!(
                "{} derives from Metric and must have {method}()",
                kind(slf.as_any())
            ))
        })
    }
}

#[pymethods]
impl Metric {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Metric {
        // Those of a subclass's __init__.
        let _ = (args, kwargs);
        Metric { inner: None }
    }

    /// The key in results.
    #[getter]
    fn name(slf: &Bound<'_, Self>) -> String {
        slf.get().inner.as_ref().map_or_else(|| kind(slf.as_any()), |inner| lock(inner).name())
    }

    /// Adds a batch. Targets are an ``IndexTensor``, a ``Tensor`` or an array. Nothing waits for the device.
    fn update(slf: &Bound<'_, Self>, predictions: &Tensor, targets: &Bound<'_, PyAny>) -> PyResult<()> {
        let inner = Metric::inner(slf, "update")?;
        let predictions = &predictions.inner();
        let targets = Labels::new(targets, predictions)?;
        let updated = run(slf.py(), predictions, || lock(&inner).update(predictions, targets.target()));
        updated.map_err(trainer_to_py)
    }

    /// The figure of all batches since ``reset()``. This waits for the device.
    fn compute(slf: &Bound<'_, Self>) -> PyResult<f64> {
        let inner = Metric::inner(slf, "compute")?;
        slf.py().detach(|| lock(&inner).compute()).map_err(trainer_to_py)
    }

    /// Starts over.
    fn reset(slf: &Bound<'_, Self>) -> PyResult<()> {
        let inner = Metric::inner(slf, "reset")?;
        slf.py().detach(|| lock(&inner).reset()).map_err(trainer_to_py)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        Ok(format!("{}(name={:?})", kind(slf.as_any()), slf.getattr(intern!(slf.py(), "name"))?.str()?.to_string()))
    }
}

/// A metric of Rust with the usual settings, by its short name: ``"accuracy"``, ``"top5"``, ``"f1"``.
#[pyfunction]
fn from_name(name: &str) -> PyResult<Metric> {
    let inner = Boxed(metric_from_name(name).map_err(trainer_to_py)?);
    Ok(Metric { inner: Some(Arc::new(Mutex::new(inner))) })
}

/// Numbers of classes with the usual settings unless told otherwise.
fn labels(ignore_index: Option<i64>, threshold: f64) -> LabelOptions {
    LabelOptions { ignore_index, threshold }
}

/// The share of samples whose largest prediction is that of their class.
#[pyclass(module = "netcl.trainer.metrics", frozen, subclass, extends = Metric)]
pub(crate) struct Accuracy;

#[pymethods]
impl Accuracy {
    /// One number per sample above ``threshold`` is class 1: 0 for logits, 0.5 for probabilities.
    #[new]
    #[pyo3(signature = (*, ignore_index=Some(-100), threshold=0.0), text_signature = "(*, ignore_index=-100, threshold=0.0)")]
    fn new(ignore_index: Option<i64>, threshold: f64) -> PyClassInitializer<Accuracy> {
        let inner = core::Accuracy::new(labels(ignore_index, threshold));
        Metric::of(Arc::new(Mutex::new(inner))).add_subclass(Accuracy)
    }
}

/// The share of samples whose class is among the ``k`` largest predictions.
#[pyclass(module = "netcl.trainer.metrics", frozen, subclass, extends = Metric)]
pub(crate) struct TopK;

#[pymethods]
impl TopK {
    #[new]
    #[pyo3(signature = (k=5, *, ignore_index=Some(-100)), text_signature = "(k=5, *, ignore_index=-100)")]
    fn new(k: usize, ignore_index: Option<i64>) -> PyResult<PyClassInitializer<TopK>> {
        let inner = core::TopK::new(k, labels(ignore_index, 0.0)).map_err(trainer_to_py)?;
        Ok(Metric::of(Arc::new(Mutex::new(inner))).add_subclass(TopK))
    }
}

macro_rules! class_score {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[pyclass(module = "netcl.trainer.metrics", frozen, subclass, extends = Metric)]
        pub(crate) struct $name(Shared<core::ClassScore>);

        #[pymethods]
        impl $name {
            /// ``average`` is ``"macro"``, ``"micro"`` or ``"weighted"``, as in scikit-learn. Predictions of one number per sample
            /// give the figure of class 1.
            #[new]
            #[pyo3(signature = (average="macro", *, ignore_index=Some(-100), threshold=0.0),
                text_signature = "(average='macro', *, ignore_index=-100, threshold=0.0)")]
            fn new(average: &str, ignore_index: Option<i64>, threshold: f64) -> PyResult<PyClassInitializer<$name>> {
                let average = Average::parse(average).map_err(trainer_to_py)?;
                let inner = core::ClassScore::new(Score::$name, average, labels(ignore_index, threshold));
                let inner = Arc::new(Mutex::new(inner));
                Ok(Metric::of(inner.clone()).add_subclass($name(inner)))
            }

            /// The figure of every class. This waits for the device.
            fn per_class(&self, py: Python<'_>) -> PyResult<Vec<f64>> {
                py.detach(|| lock(&self.0).per_class()).map_err(trainer_to_py)
            }
        }
    )*};
}

class_score! {
    /// Of the samples that are taken for a class, the share that are of it.
    Precision;
    /// Of the samples of a class, the share that are found.
    Recall;
    /// The harmonic mean of precision and recall.
    F1;
}

/// How often each class is taken for which. As a single figure it is the accuracy.
#[pyclass(module = "netcl.trainer.metrics", frozen, subclass, extends = Metric)]
pub(crate) struct ConfusionMatrix(Shared<core::ConfusionMatrix>);

#[pymethods]
impl ConfusionMatrix {
    #[new]
    #[pyo3(signature = (*, ignore_index=Some(-100), threshold=0.0), text_signature = "(*, ignore_index=-100, threshold=0.0)")]
    fn new(ignore_index: Option<i64>, threshold: f64) -> PyClassInitializer<ConfusionMatrix> {
        let inner = Arc::new(Mutex::new(core::ConfusionMatrix::new(labels(ignore_index, threshold))));
        Metric::of(inner.clone()).add_subclass(ConfusionMatrix(inner))
    }

    /// ``matrix()[label][guess]``: how many samples of a class are taken for which. This waits for the device.
    fn matrix(&self, py: Python<'_>) -> PyResult<Vec<Vec<u64>>> {
        py.detach(|| lock(&self.0).matrix()).map_err(trainer_to_py)
    }
}

/// The area under the receiver operating characteristic; the mean of every class against the rest where there are several.
#[pyclass(module = "netcl.trainer.metrics", frozen, subclass, extends = Metric, name = "AUROC")]
pub(crate) struct Auroc;

#[pymethods]
impl Auroc {
    /// ``from_logits=False`` for predictions of several classes that are probabilities already.
    #[new]
    #[pyo3(signature = (*, from_logits=true, ignore_index=Some(-100)), text_signature = "(*, from_logits=True, ignore_index=-100)")]
    fn new(from_logits: bool, ignore_index: Option<i64>) -> PyClassInitializer<Auroc> {
        Metric::of(Arc::new(Mutex::new(core::Auroc::new(ignore_index, from_logits)))).add_subclass(Auroc)
    }
}

/// e to the mean cross-entropy of all tokens, from logits.
#[pyclass(module = "netcl.trainer.metrics", frozen, subclass, extends = Metric)]
pub(crate) struct Perplexity;

#[pymethods]
impl Perplexity {
    #[new]
    #[pyo3(signature = (*, ignore_index=Some(-100)), text_signature = "(*, ignore_index=-100)")]
    fn new(ignore_index: Option<i64>) -> PyClassInitializer<Perplexity> {
        Metric::of(Arc::new(Mutex::new(core::Perplexity::new(ignore_index)))).add_subclass(Perplexity)
    }
}

/// The mean absolute error.
#[pyclass(module = "netcl.trainer.metrics", frozen, subclass, extends = Metric)]
pub(crate) struct MeanError;

#[pymethods]
impl MeanError {
    #[new]
    fn new() -> PyClassInitializer<MeanError> {
        Metric::of(Arc::new(Mutex::new(core::MeanError::default()))).add_subclass(MeanError)
    }
}

/// The mean squared error; with ``root=True`` its square root.
#[pyclass(module = "netcl.trainer.metrics", frozen, subclass, extends = Metric)]
pub(crate) struct MeanSquaredError;

#[pymethods]
impl MeanSquaredError {
    #[new]
    #[pyo3(signature = (root=false))]
    fn new(root: bool) -> PyClassInitializer<MeanSquaredError> {
        Metric::of(Arc::new(Mutex::new(core::MeanSquaredError::new(root)))).add_subclass(MeanSquaredError)
    }
}

/// A metric for Rust from what users give: a short name, one of ours (whose object shows what Rust has counted), an object of a class
/// of their own.
pub(crate) fn metric_of(object: &Bound<'_, PyAny>) -> PyResult<Box<dyn Core>> {
    if let Ok(name) = object.cast::<PyString>() {
        return metric_from_name(name.to_str()?).map_err(trainer_to_py);
    }
    if let Ok(metric) = object.cast::<Metric>()
        && let Some(inner) = &metric.get().inner
        && !overrides(object, &["update", "compute", "reset"])?
    {
        return Ok(Box::new(Held(inner.clone())));
    }
    for method in ["update", "compute", "reset"] {
        if !object.hasattr(method)? {
            return Err(PyTypeError::new_err(format!(
                "a metric is a name such as \"accuracy\" or an object with update(), compute() and reset(); {} has no {method}()",
                kind(object)
            )));
        }
    }
    Ok(Box::new(OfPython(object.clone().unbind())))
}

/// Whether a class has methods of its own in the place of [`Metric`]'s.
fn overrides(object: &Bound<'_, PyAny>, methods: &[&str]) -> PyResult<bool> {
    let (own, base) = (object.get_type(), object.py().get_type::<Metric>());
    for method in methods {
        if !own.getattr(*method)?.is(base.getattr(*method)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Calls a metric that Python holds as well.
struct Held(Shared<dyn Core>);

/// A metric in a box, as a type of known size.
struct Boxed(Box<dyn Core>);

macro_rules! delegate {
    ($type:ty, |$slf:ident| $inner:expr) => {
        impl Core for $type {
            fn name(&self) -> String {
                let $slf = self;
                $inner.name()
            }

            fn update(&mut self, predictions: &Recorded, target: Target<'_>) -> Result<()> {
                let $slf = self;
                $inner.update(predictions, target)
            }

            fn compute(&self) -> Result<f64> {
                let $slf = self;
                $inner.compute()
            }

            fn reset(&mut self) -> Result<()> {
                let $slf = self;
                $inner.reset()
            }

            fn can_capture(&self) -> bool {
                let $slf = self;
                $inner.can_capture()
            }

            fn sums(&self) -> Vec<Recorded> {
                let $slf = self;
                $inner.sums()
            }

            fn merge(&mut self, group: &Group) -> Result<bool> {
                let $slf = self;
                $inner.merge(group)
            }

            fn fresh(&self) -> Result<Box<dyn Core>> {
                let $slf = self;
                $inner.fresh()
            }
        }
    };
}

delegate!(Held, |held| lock(&held.0));
delegate!(Boxed, |boxed| boxed.0);

/// A metric that a user wrote in Python.
struct OfPython(Py<PyAny>);

/// Calls into Python; what it raises goes through the Rust layers as it is.
pub(super) fn attached<T>(call: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T> {
    Python::attach(call).map_err(|raised| Error::Tensor(carry(raised)))
}

impl Core for OfPython {
    fn name(&self) -> String {
        Python::attach(|py| {
            let object = self.0.bind(py);
            let name = object.getattr(intern!(py, "name")).and_then(|name| name.extract());
            name.unwrap_or_else(|_| kind(object))
        })
    }

    fn update(&mut self, predictions: &Recorded, target: Target<'_>) -> Result<()> {
        let target = match target {
            Target::Labels(labels) => Ok(Index::from_host(predictions.queue(), labels, [labels.len()])?),
            Target::Index(index) => Ok(index.clone()),
            Target::Tensor(tensor) => Err(tensor.detach()),
        };
        attached(|py| {
            let target = match target {
                Ok(index) => Made::from(index).into_pyobject(py)?,
                Err(tensor) => Made::new(tensor).into_pyobject(py)?,
            };
            let predictions = Tensor::new(predictions.detach());
            self.0.call_method1(py, intern!(py, "update"), (predictions, target)).map(drop)
        })
    }

    fn compute(&self) -> Result<f64> {
        attached(|py| self.0.call_method0(py, intern!(py, "compute"))?.extract(py))
    }

    fn reset(&mut self) -> Result<()> {
        attached(|py| self.0.call_method0(py, intern!(py, "reset")).map(drop))
    }

    /// Replays do not run Python.
    fn can_capture(&self) -> bool {
        false
    }

    fn sums(&self) -> Vec<Recorded> {
        Vec::new()
    }

    fn fresh(&self) -> Result<Box<dyn Core>> {
        attached(|py| {
            let object = self.0.bind(py);
            let class = object.get_type();
            // Objects of classes that are written in Rust cannot be copied by Python's copy module, but their __dict__ can.
            let copy = class.call_method1(intern!(py, "__new__"), (&class,))?;
            if let Ok(values) = object.getattr(intern!(py, "__dict__")) {
                let values = py.import("copy")?.call_method1("deepcopy", (values,))?;
                copy.getattr(intern!(py, "__dict__"))?.call_method1("update", (values,))?;
            }
            copy.call_method0(intern!(py, "reset"))?;
            Ok(Box::new(OfPython(copy.unbind())) as Box<dyn Core>)
        })
    }
}
