//! Data-parallel training: copies on several devices, parts of batches, gradients over ranks.

use netcl::core::tensor::Tensor as RawTensor;
use netcl::distributed::Group as Ranks;
use netcl::distributed::data_parallel::{self as dp, OverlappedSync};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::group::Group;
use crate::autograd::{site, wrap};
use crate::device::resolve_queue;
use crate::error::{IntoPyResult, distributed_to_py};
use crate::index::Made;
use crate::optim::Optimizer;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Replicas>()?;
    module.add_class::<OverlappedGradients>()?;
    module.add_function(wrap_pyfunction!(shard_lengths, module)?)?;
    module.add_function(wrap_pyfunction!(replicate_params, module)?)?;
    module.add_function(wrap_pyfunction!(broadcast_params, module)?)?;
    module.add_function(wrap_pyfunction!(sync_replicas, module)?)?;
    module.add_function(wrap_pyfunction!(broadcast_over_ranks, module)?)?;
    module.add_function(wrap_pyfunction!(shard_optimizer, module)?)?;
    module.add_function(wrap_pyfunction!(joint_batch_norm, module)?)?;
    module.add_function(wrap_pyfunction!(refuse_recording, module)?)?;
    module.add_function(wrap_pyfunction!(sync_batch_norm, module)?)
}

fn ranks(group: &Bound<'_, Group>) -> Ranks {
    group.get().0.clone()
}

fn tensors(list: &[Bound<'_, Tensor>]) -> Vec<netcl::Tensor> {
    list.iter().map(|tensor| tensor.get().inner().as_ref().clone()).collect()
}

fn queues(py: Python<'_>, list: &[Bound<'_, PyAny>]) -> PyResult<Vec<netcl::core::backend::Queue>> {
    list.iter().map(|queue| resolve_queue(py, Some(queue), None)).collect()
}

/// Copies of tensors on several devices through which gradients flow back to the tensors, summed.
#[pyclass(module = "netcl._netcl.distributed", frozen)]
struct Replicas(dp::Replicas);

#[pymethods]
impl Replicas {
    #[new]
    fn new(py: Python<'_>, queues: Vec<Bound<'_, PyAny>>) -> PyResult<Replicas> {
        Ok(Replicas(dp::Replicas::new(self::queues(py, &queues)?).map_err(distributed_to_py)?))
    }

    /// For each queue the copies of the tensors, which lie on the first queue's device.
    fn copy(&self, py: Python<'_>, tensors: Vec<Bound<'_, Tensor>>) -> PyResult<Vec<Vec<Made>>> {
        let tensors = self::tensors(&tensors);
        let copies = site::detach(py, || self.0.copy(&tensors)).map_err(distributed_to_py)?;
        copies.into_iter().map(|copies| copies.into_iter().map(|copy| wrap(py, copy)).collect()).collect()
    }
}

/// Gradients that are summed over ranks while backward runs.
#[pyclass(module = "netcl._netcl.distributed", frozen)]
struct OverlappedGradients(OverlappedSync);

#[pymethods]
impl OverlappedGradients {
    #[new]
    fn new(
        py: Python<'_>,
        group: &Bound<'_, Group>,
        parameters: Vec<Bound<'_, Tensor>>,
        share: f64,
    ) -> PyResult<OverlappedGradients> {
        let (group, parameters) = (ranks(group), tensors(&parameters));
        let sync = site::detach(py, || OverlappedSync::new(&group, &parameters, share)).map_err(distributed_to_py)?;
        Ok(OverlappedGradients(sync))
    }

    /// Changes this rank's share of the global batch, before backward.
    fn set_share(&self, share: f64) -> PyResult<()> {
        self.0.set_share(share).map_err(distributed_to_py)
    }

    /// Whether gradients are accumulated without being exchanged.
    fn set_paused(&self, paused: bool) {
        self.0.set_paused(paused);
    }

    /// Waits until all gradients are sums over ranks.
    fn sync_grads(&self, py: Python<'_>) -> PyResult<()> {
        site::detach(py, || self.0.sync_grads()).map_err(distributed_to_py)
    }
}

/// How many of ``batch`` samples each of so many shards gets.
#[pyfunction]
#[pyo3(signature = (batch, num_shards, weights=None))]
fn shard_lengths(batch: usize, num_shards: usize, weights: Option<Vec<f64>>) -> PyResult<Vec<usize>> {
    dp::shard_lengths(batch, num_shards, weights.as_deref()).map_err(distributed_to_py)
}

/// Copies of parameters on each queue.
#[pyfunction]
fn replicate_params(
    py: Python<'_>,
    params: Vec<Bound<'_, Tensor>>,
    queues: Vec<Bound<'_, PyAny>>,
) -> PyResult<Vec<Vec<Made>>> {
    let (params, queues) = (tensors(&params), self::queues(py, &queues)?);
    let copies = site::detach(py, || dp::replicate_params(&params, &queues)).map_err(distributed_to_py)?;
    Ok(copies.into_iter().map(|copies| copies.into_iter().map(Made::new).collect()).collect())
}

/// Overwrites the parameters of every group with the source's.
#[pyfunction]
fn broadcast_params(
    py: Python<'_>,
    source: Vec<Bound<'_, Tensor>>,
    groups: Vec<Vec<Bound<'_, Tensor>>>,
) -> PyResult<()> {
    let (source, groups) = (tensors(&source), groups.iter().map(|group| tensors(group)).collect::<Vec<_>>());
    site::detach(py, || dp::broadcast_params(&source, &groups)).map_err(distributed_to_py)
}

/// Makes the gradients of replicas their mean.
#[pyfunction]
fn sync_replicas(py: Python<'_>, replicas: Vec<Vec<Bound<'_, Tensor>>>) -> PyResult<()> {
    let replicas: Vec<_> = replicas.iter().map(|replica| tensors(replica)).collect();
    site::detach(py, || dp::sync_grads(&replicas)).map_err(distributed_to_py)
}

/// Overwrites tensors, also of indices, with those of rank 0.
#[pyfunction]
fn broadcast_over_ranks(py: Python<'_>, group: &Bound<'_, Group>, tensors: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
    let raw = |object: &Bound<'_, PyAny>| match object.cast::<Tensor>() {
        Ok(tensor) => Ok(tensor.get().inner().raw().clone()),
        Err(_) => Err(PyTypeError::new_err(format!("broadcast takes tensors, not {}", object.get_type()))),
    };
    let tensors = tensors.iter().map(raw).collect::<PyResult<Vec<_>>>()?;
    let group = ranks(group);
    site::detach(py, || tensors.iter().try_for_each(|tensor| group.broadcast(tensor, 0))).map_err(distributed_to_py)
}

/// Divides an optimizer's state among ranks.
#[pyfunction]
fn shard_optimizer(py: Python<'_>, optimizer: &Bound<'_, Optimizer>, group: &Bound<'_, Group>) -> PyResult<()> {
    let (optimizer, group) = (optimizer.get(), ranks(group));
    site::detach(py, || dp::shard_optimizer(&mut **optimizer.lock(), &group)).map_err(distributed_to_py)
}

/// Mean, variance, the number of batches so far, and the share of a new one.
type Averages<'py> = (Bound<'py, Tensor>, Bound<'py, Tensor>, Option<Bound<'py, Tensor>>, Option<f64>);

/// Batch normalisation by the statistics of all ranks. ``running`` are the averages to update: mean, variance, the number of batches
/// and the share of a new batch.
#[pyfunction]
#[pyo3(signature = (group, x, weight, bias, running, eps))]
fn sync_batch_norm(
    py: Python<'_>,
    group: &Bound<'_, Group>,
    x: &Bound<'_, Tensor>,
    weight: Option<Bound<'_, Tensor>>,
    bias: Option<Bound<'_, Tensor>>,
    running: Option<Averages<'_>>,
    eps: f64,
) -> PyResult<Made> {
    let (group, x) = (ranks(group), x.get().inner());
    let (weight, bias) = (weight.map(|one| one.get().inner()), bias.map(|one| one.get().inner()));
    let averages = running.map(Kept::new);
    let result = site::detach(py, || {
        let running = averages.as_ref().map(Kept::running);
        dp::sync_batch_norm(&group, &x, weight.as_deref(), bias.as_deref(), running, eps)
    });
    wrap(py, result.map_err(distributed_to_py)?)
}

/// Running averages, without Python.
struct Kept {
    mean: RawTensor,
    var: RawTensor,
    batches: Option<RawTensor>,
    momentum: Option<f64>,
}

impl Kept {
    fn new((mean, var, batches, momentum): Averages<'_>) -> Kept {
        let raw = |tensor: Bound<'_, Tensor>| tensor.get().inner().raw().clone();
        Kept { mean: raw(mean), var: raw(var), batches: batches.map(raw), momentum }
    }

    fn running(&self) -> netcl::raw_ops::norm::Running<'_> {
        let Kept { mean, var, batches, momentum } = self;
        netcl::raw_ops::norm::Running { mean, var, momentum: *momentum, batches: batches.as_ref() }
    }
}

/// A part of a batch at a layer of batch norm: input, scales, shifts.
type NormPart<'py> = (Bound<'py, Tensor>, Option<Bound<'py, Tensor>>, Option<Bound<'py, Tensor>>);

/// Batch normalisation of parts on several devices by the statistics of all; ``running`` as for ``sync_batch_norm``.
#[pyfunction]
fn joint_batch_norm(
    py: Python<'_>,
    parts: Vec<NormPart<'_>>,
    running: Option<Averages<'_>>,
    eps: f64,
) -> PyResult<Vec<Made>> {
    let inner = |tensor: &Bound<'_, Tensor>| tensor.get().inner().as_ref().clone();
    let part = |(x, weight, bias): &NormPart<'_>| dp::joint_norm::Part {
        x: inner(x),
        weight: weight.as_ref().map(inner),
        bias: bias.as_ref().map(inner),
    };
    let (parts, averages) = (parts.iter().map(part).collect::<Vec<_>>(), running.map(Kept::new));
    let results = site::detach(py, || dp::joint_batch_norm(&parts, averages.as_ref().map(Kept::running), eps)).py()?;
    results.into_iter().map(|result| wrap(py, result)).collect()
}

/// An error while a step is being captured: for what runs in threads, or for what is measured.
#[pyfunction]
fn refuse_recording(measures: bool) -> PyResult<()> {
    let why = if measures { dp::model::MEASURES } else { dp::joint_norm::IN_THREADS };
    dp::joint_norm::refuse_recording(why).py()
}
