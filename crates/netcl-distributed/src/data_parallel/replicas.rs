//! Copies of a model's tensors on several devices, and parts of a batch for them.

use std::sync::{Mutex, PoisonError};

use netcl_core::kernels::launch::is_repeating;
use netcl_nn::autograd::function::call_several;
use netcl_nn::autograd::graph::Gradients;
use netcl_nn::autograd::ops::elementwise::add;
use netcl_nn::autograd::ops::layout::{cat, reshape, slice, split, to};
use netcl_nn::autograd::{CoreError, DType, Queue, RawTensor, Result as AutogradResult, Slice, Tensor};
use netcl_nn::autograd::{autocast, no_grad};

use crate::collectives::gathered;
use crate::error::{Error, Result};

/// How many of `batch` samples each of so many shards gets: as equal as possible, the first ones more, or by weights.
///
/// ```
/// use netcl_distributed::data_parallel::shard_lengths;
///
/// assert_eq!(shard_lengths(10, 3, None)?, [4, 3, 3]);
/// assert_eq!(shard_lengths(10, 3, Some(&[2.0, 1.0, 1.0]))?, [5, 3, 2]);
/// # Ok::<(), netcl_distributed::Error>(())
/// ```
///
/// # Errors
/// For no shards, and for weights that are not one positive number per shard.
pub fn shard_lengths(batch: usize, shards: usize, weights: Option<&[f64]>) -> Result<Vec<usize>> {
    const CALL: &str = "shard_batch";
    if shards == 0 || shards > 1 << 20 {
        return Err(Error::argument(CALL, format!("num_shards is {shards}; a batch has from 1 to {} shards", 1 << 20)));
    }
    let Some(weights) = weights else {
        return Ok((0..shards).map(|k| batch / shards + usize::from(k < batch % shards)).collect());
    };
    let total: f64 = weights.iter().sum();
    let usable = weights.iter().all(|weight| *weight >= 0.0) && total.is_finite() && total > 0.0;
    if weights.len() != shards || !usable {
        let what =
            format!("weights {weights:?} do not fit {shards} shards: give one number from 0 for each, not all 0");
        return Err(Error::argument(CALL, what));
    }
    let wanted: Vec<f64> = weights.iter().map(|weight| batch as f64 * weight / total).collect();
    let mut lengths: Vec<usize> = wanted.iter().map(|wanted| wanted.floor() as usize).collect();
    // What rounding down left over goes to those that lost most by it, the first of equals first.
    let mut order: Vec<usize> = (0..shards).collect();
    order.sort_by(|&a, &b| (wanted[b] - wanted[b].floor()).total_cmp(&(wanted[a] - wanted[a].floor())));
    let left = batch.saturating_sub(lengths.iter().sum());
    order.into_iter().cycle().take(left).for_each(|at| lengths[at] += 1);
    Ok(lengths)
}

/// The parts of a batch along its first axis, recorded; see [`shard_lengths`].
///
/// # Errors
/// As [`shard_lengths`]; for a tensor without axes.
pub fn shard_batch(batch: &Tensor, shards: usize, weights: Option<&[f64]>) -> Result<Vec<Tensor>> {
    let Some(&rows) = batch.shape().to_vec().first() else {
        return Err(Error::argument("shard_batch", "a tensor without axes has no samples: give it a first axis"));
    };
    Ok(split(batch, &shard_lengths(rows, shards, weights)?, 0)?)
}

/// Copies of parameters on each queue, as parameters of their own: what optimizers for each device take.
///
/// # Errors
/// If a device has no room.
pub fn replicate_params(parameters: &[Tensor], queues: &[Queue]) -> Result<Vec<Vec<Tensor>>> {
    let copy = |parameter: &Tensor, queue: &Queue| {
        let copy = Tensor::from(moved(parameter.latest().raw(), queue)?);
        copy.set_requires_grad(parameter.requires_grad())?;
        Ok(copy)
    };
    queues.iter().map(|queue| parameters.iter().map(|parameter| copy(parameter, queue)).collect()).collect()
}

/// Overwrites the parameters of every group with those of `source`, in order.
///
/// # Errors
/// For groups of other lengths or shapes; nothing is overwritten then.
pub fn broadcast_params(source: &[Tensor], groups: &[Vec<Tensor>]) -> Result<()> {
    const CALL: &str = "broadcast_params";
    for (k, group) in groups.iter().enumerate() {
        if group.len() != source.len() {
            let what = format!("group {k} has {} parameters, the source {}", group.len(), source.len());
            return Err(Error::argument(CALL, what));
        }
        if let Some((at, (to, from))) = group.iter().zip(source).enumerate().find(|(_, (a, b))| a.shape() != b.shape())
        {
            let what =
                format!("parameter {at} has shape {} in group {k} and {} in the source", to.shape(), from.shape());
            return Err(Error::argument(CALL, what));
        }
    }
    for (to, from) in groups.iter().flat_map(|group| group.iter().zip(source)) {
        let (to, from) = (to.latest(), from.latest());
        if !to.shares_storage(&from) {
            to.raw().assign(&from.raw().to(to.queue())?)?;
        }
    }
    Ok(())
}

/// A tensor's values on a queue, in memory of their own.
pub(super) fn moved(raw: &RawTensor, queue: &Queue) -> Result<RawTensor, CoreError> {
    if raw.queue().same_device(queue) { raw.duplicate() } else { raw.to(queue) }
}

/// Copies of tensors on several devices through which gradients flow back, summed in the order of devices.
///
/// All copies are results of one node. It is recorded before the forward passes that use them, so a walk backwards comes to it last:
/// all devices have their whole backward pass in their queues before the first gradient is waited for. The copies travel flat, one
/// transfer per device and dtype, and only when the tensors have changed.
///
/// ```
/// use netcl_distributed::data_parallel::Replicas;
/// use netcl_nn::autograd::{Tensor, manager, ops::elementwise::mul};
///
/// let queue = manager().cpu().queue;
/// let weight = Tensor::from_host(&queue, &[3.0f32], [1])?.with_grad();
/// let replicas = Replicas::new(vec![queue.clone(), queue])?;
/// let copies = replicas.copy(&[weight.clone()])?;
/// mul(&copies[0][0], &copies[1][0])?.backward()?;
/// assert_eq!(weight.grad().unwrap().item()?, 6.0);
/// # Ok::<(), netcl_distributed::Error>(())
/// ```
pub struct Replicas {
    queues: Vec<Queue>,
    kept: Mutex<Option<Kept>>,
}

/// The copies of the last call, for as long as nothing was written to the tensors.
struct Kept {
    sources: Vec<(RawTensor, u64)>,
    /// One list for each device.
    copies: Vec<Vec<RawTensor>>,
}

impl Kept {
    fn fits(&self, tensors: &[Tensor]) -> bool {
        let same = |(raw, version): &(RawTensor, u64), tensor: &Tensor| {
            raw.shares_storage(tensor.raw()) && raw.layout() == tensor.layout() && *version == tensor.version()
        };
        self.sources.len() == tensors.len() && self.sources.iter().zip(tensors).all(|(kept, now)| same(kept, now))
    }
}

impl Replicas {
    /// Copies on these queues; the tensors themselves lie on the first.
    ///
    /// # Errors
    /// For no queue at all.
    pub fn new(queues: Vec<Queue>) -> Result<Replicas> {
        if queues.is_empty() {
            return Err(Error::argument("DataParallel", "there are no devices: give at least one"));
        }
        Ok(Replicas { queues, kept: Mutex::new(None) })
    }

    /// The queues.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// For each queue the copies of the tensors, recorded; those on the tensors' own device share their memory.
    ///
    /// # Errors
    /// For a tensor that does not lie on the first device.
    pub fn copy(&self, tensors: &[Tensor]) -> Result<Vec<Vec<Tensor>>> {
        let tensors: Vec<Tensor> = tensors.iter().map(Tensor::latest).collect();
        for tensor in &tensors {
            tensor.queue().check_same_device("DataParallel", &self.queues[0])?;
        }
        let copies = self.values(&tensors)?;
        let count = tensors.len();
        let outputs = copies.into_iter().flat_map(|copies| copies.into_iter().zip(0..)).collect();
        let inputs: Vec<&Tensor> = tensors.iter().collect();
        let home = self.queues[0].clone();
        let mut results =
            call_several("replicate", &inputs, outputs, move |gradients| summed(gradients, count, &home)).into_iter();
        Ok(self.queues.iter().map(|_| results.by_ref().take(count).collect()).collect())
    }

    /// The values of the copies, one list per device. A program that is being recorded copies at every run, and keeps nothing: what it
    /// records has no values yet.
    fn values(&self, tensors: &[Tensor]) -> Result<Vec<Vec<RawTensor>>> {
        if is_repeating() {
            return self.copied(tensors);
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = kept.as_ref().filter(|kept| kept.fits(tensors)) {
            return Ok(kept.copies.clone());
        }
        // Before the copies: what is written to meanwhile is copied again the next time.
        let sources = tensors.iter().map(|tensor| (tensor.raw().clone(), tensor.version())).collect();
        let copies = self.copied(tensors)?;
        *kept = Some(Kept { sources, copies: copies.clone() });
        Ok(copies)
    }

    fn copied(&self, tensors: &[Tensor]) -> Result<Vec<Vec<RawTensor>>> {
        let raw: Vec<RawTensor> = tensors.iter().map(|tensor| tensor.raw().clone()).collect();
        let mut copies = vec![raw; self.queues.len()];
        let far: Vec<usize> =
            (0..self.queues.len()).filter(|&k| !self.queues[k].same_device(&self.queues[0])).collect();
        if far.is_empty() {
            return Ok(copies);
        }
        let _plain = (no_grad(), autocast::suspend());
        let queues: Vec<Queue> = far.iter().map(|&k| self.queues[k].clone()).collect();
        let members: Vec<usize> = (0..tensors.len()).collect();
        for group in members.chunk_by(|&a, &b| tensors[a].dtype() == tensors[b].dtype()) {
            let flat = joined(group.iter().map(|&at| tensors[at].detach()))?;
            for (&k, there) in far.iter().zip(gathered("replicate", &[flat.raw().clone()], &queues)?) {
                let parts = parted(&there.into(), group.iter().map(|&at| &tensors[at]))?;
                group.iter().zip(parts).for_each(|(&at, part)| copies[k][at] = part.raw().clone());
            }
        }
        Ok(copies)
    }
}

/// Tensors one after the other, flat.
pub(super) fn joined(tensors: impl Iterator<Item = Tensor>) -> AutogradResult<Tensor> {
    let flat = tensors.map(|tensor| reshape(&tensor, [tensor.size()])).collect::<AutogradResult<Vec<_>>>()?;
    if let [one] = &flat[..] { Ok(one.clone()) } else { cat(&flat.iter().collect::<Vec<_>>(), 0) }
}

/// The parts of a flat tensor in the shapes of others, as views.
pub(super) fn parted<'t>(flat: &Tensor, like: impl Iterator<Item = &'t Tensor>) -> AutogradResult<Vec<Tensor>> {
    let mut start = 0;
    like.map(|like| {
        let end = start + like.size() as isize;
        let part = slice(flat, 0, Slice::new(Some(start), Some(end), 1))?;
        start = end;
        reshape(&part, like.shape().clone())
    })
    .collect()
}

/// The gradients of `count` tensors from those of their copies, which come device by device.
fn summed(gradients: &[Option<Tensor>], count: usize, home: &Queue) -> AutogradResult<Gradients> {
    let of = |at: usize| gradients.iter().skip(at).step_by(count).map(Option::as_ref);
    // Neighbours of one dtype with gradients from the same devices travel together.
    let kind = |at: usize| -> (Option<DType>, Vec<bool>) {
        (of(at).flatten().next().map(|gradient| gradient.dtype()), of(at).map(|gradient| gradient.is_some()).collect())
    };
    let kinds: Vec<_> = (0..count).map(kind).collect();
    let mut found = Gradients::from_elem(None, count);
    let members: Vec<usize> = (0..count).collect();
    for group in members.chunk_by(|&a, &b| kinds[a] == kinds[b]) {
        let mut sum: Option<Tensor> = None;
        for device in (0..kinds[group[0]].1.len()).filter(|&device| kinds[group[0]].1[device]) {
            let own = group.iter().filter_map(|&at| gradients.get(device * count + at).cloned().flatten());
            let here = to(&joined(own)?, home)?;
            sum = Some(sum.map_or(Ok(here.clone()), |sum| add(&sum, &here))?);
        }
        let Some(sum) = sum else { continue };
        let like = group.iter().filter_map(|&at| of(at).flatten().next());
        for (&at, part) in group.iter().zip(parted(&sum, like)?) {
            found[at] = Some(part);
        }
    }
    Ok(found)
}
