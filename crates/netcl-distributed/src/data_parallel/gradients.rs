//! Gradients summed over ranks, in flat buckets: one exchange for many parameters.

use netcl_nn::autograd::ops::elementwise::mul;
use netcl_nn::autograd::{DType, RawTensor, Tensor, autocast, no_grad};

use super::replicas::{joined, parted};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::reduction::Reduce;

const CALL: &str = "sync_grads";

/// How many bytes of gradients are exchanged at once: enough that latency does not count, few enough that the first exchange can
/// begin while backward computes the rest.
pub const BUCKET_BYTES: usize = 25 << 20;

impl Group {
    /// Makes every parameter's gradient the sum over ranks of `share` times its gradient there. `share` is the part of the global
    /// batch that this rank has seen: `1.0 / size` where all have seen as much.
    ///
    /// A parameter without a gradient on some rank counts as zeros there; one without on all ranks stays so. The results are the same
    /// on all ranks, bit for bit. [`OverlappedSync`](crate::data_parallel::OverlappedSync) does the same during backward.
    ///
    /// ```
    /// use netcl_distributed::{Group, Threads};
    /// use netcl_nn::autograd::{Tensor, manager};
    ///
    /// std::thread::scope(|scope| {
    ///     for group in Threads::new(2).into_iter().map(Group::new) {
    ///         scope.spawn(move || {
    ///             let queue = manager().cpu().queue;
    ///             let weight = Tensor::from_host(&queue, &[1.0f32], [1]).unwrap().with_grad();
    ///             weight.set_grad(Some(Tensor::from_host(&queue, &[group.rank() as f32 * 6.0], [1]).unwrap()));
    ///             group.sync_grads(&[weight.clone()], 0.5).unwrap();
    ///             assert_eq!(weight.grad().unwrap().item().unwrap(), 3.0);
    ///         });
    ///     }
    /// });
    /// ```
    ///
    /// # Errors
    /// If ranks have different parameters, or one is lost; gradients of later buckets are then as they were.
    pub fn sync_grads(&self, parameters: &[Tensor], share: f64) -> Result<()> {
        check_share(share)?;
        self.agree(CALL, &described(parameters))?;
        let parameters: Vec<Tensor> = parameters.iter().map(Tensor::latest).collect();
        let present = self.presence(&parameters)?;
        for bucket in buckets(&parameters, |at| present[at], BUCKET_BYTES) {
            let flats = bucket.pack(&parameters, share)?;
            reduce(self, &flats)?;
            bucket.unpack(&parameters, &flats, |_| true)?;
        }
        Ok(())
    }

    /// Which parameters have a gradient on any rank.
    pub(super) fn presence(&self, parameters: &[Tensor]) -> Result<Vec<bool>> {
        let mut present: Vec<u8> = parameters.iter().map(|parameter| parameter.grad().is_some().into()).collect();
        self.all_reduce_bytes(CALL, &mut present, DType::U8, Reduce::Max)?;
        Ok(present.into_iter().map(|present| present == 1).collect())
    }
}

/// Makes the gradients of replicas on several devices of one process the mean over the replicas. A parameter without a gradient on some
/// replica counts as zeros there; one without on all stays so.
///
/// # Errors
/// For replicas that are not alike, and for one whose parameters lie on several devices.
pub fn sync_grads(replicas: &[Vec<Tensor>]) -> Result<()> {
    let replicas: Vec<Vec<Tensor>> =
        replicas.iter().map(|replica| replica.iter().map(Tensor::latest).collect()).collect();
    let Some((first, others)) = replicas.split_first().filter(|(_, others)| !others.is_empty()) else { return Ok(()) };
    for (k, other) in others.iter().enumerate() {
        let alike = |(a, b): (&Tensor, &Tensor)| a.shape() == b.shape() && a.dtype() == b.dtype();
        if other.len() != first.len() || !first.iter().zip(other).all(alike) {
            let what = format!("replica {} has {}, but replica 0 {}", k + 1, described(other), described(first));
            return Err(Error::argument(CALL, what));
        }
    }
    let present = |at: usize| replicas.iter().any(|replica| replica[at].grad().is_some());
    for bucket in buckets(first, present, BUCKET_BYTES) {
        let mut flats = Vec::new();
        for (k, replica) in replicas.iter().enumerate() {
            let [flat] = <[Tensor; 1]>::try_from(bucket.pack(replica, 1.0)?).map_err(|_| {
                Error::argument(CALL, format!("the parameters of replica {k} lie on several devices: move them to one"))
            })?;
            flats.push(flat);
        }
        let raw: Vec<RawTensor> = flats.iter().map(|flat| flat.raw().clone()).collect();
        crate::collectives::all_reduce(&raw, Reduce::Mean)?;
        for (replica, flat) in replicas.iter().zip(flats) {
            bucket.unpack(replica, &[flat], |_| true)?;
        }
    }
    Ok(())
}

pub(super) fn check_share(share: f64) -> Result<()> {
    if share.is_finite() && share >= 0.0 {
        return Ok(());
    }
    Err(Error::argument(CALL, format!("share {share} is not a part of a batch: give a number from 0 to 1")))
}

/// The call as ranks compare it.
pub(super) fn described(parameters: &[Tensor]) -> String {
    let list: Vec<String> = parameters.iter().map(|one| format!("{} {}", one.dtype(), one.shape())).collect();
    format!("{CALL} of {} parameters: {}", parameters.len(), list.join(", "))
}

/// Parameters of one dtype whose gradients are exchanged together.
pub(super) struct Bucket {
    /// Their places in the list of parameters.
    pub(super) members: Vec<usize>,
    dtype: DType,
    bytes: usize,
}

/// The wanted parameters in buckets, the last first, because backward makes their gradients first. Ranks with the same parameters have
/// the same buckets, whatever devices they lie on.
pub(super) fn buckets(parameters: &[Tensor], wanted: impl Fn(usize) -> bool, limit: usize) -> Vec<Bucket> {
    let mut found: Vec<Bucket> = Vec::new();
    for at in (0..parameters.len()).rev().filter(|&at| wanted(at)) {
        let (dtype, bytes) = (parameters[at].dtype(), parameters[at].size() * parameters[at].dtype().size());
        let last = found.iter_mut().rev().find(|bucket| bucket.dtype == dtype);
        match last.filter(|bucket| bucket.bytes + bytes <= limit) {
            Some(bucket) => {
                bucket.members.push(at);
                bucket.bytes += bytes;
            }
            None => found.push(Bucket { members: vec![at], dtype, bytes }),
        }
    }
    found
}

impl Bucket {
    /// Neighbours that lie on one device.
    fn runs<'b>(&'b self, parameters: &'b [Tensor]) -> impl Iterator<Item = &'b [usize]> {
        self.members.chunk_by(|&a, &b| parameters[a].queue().same_device(parameters[b].queue()))
    }

    /// The gradients times the rank's share, one flat tensor per run; zeros where there is none.
    pub(super) fn pack(&self, parameters: &[Tensor], share: f64) -> Result<Vec<Tensor>> {
        let _plain = (no_grad(), autocast::suspend());
        let gradient = |&at: &usize| match parameters[at].grad() {
            Some(gradient) => Ok(gradient.cast(self.dtype)?),
            None => Ok(Tensor::from_shape(parameters[at].queue(), parameters[at].shape().clone(), self.dtype)?),
        };
        let pack = |run: &[usize]| {
            let flat = joined(run.iter().map(gradient).collect::<Result<Vec<Tensor>>>()?.into_iter())?;
            match (run, share) {
                // Its own memory: what fails on the way must leave the gradient as it is.
                ([_], 1.0) => Ok(flat.raw().duplicate()?.into()),
                (_, 1.0) => Ok(flat),
                _ => Ok(mul(&flat, share)?),
            }
        };
        self.runs(parameters).map(pack).collect()
    }

    /// Makes the parts of flat tensors, as [`Bucket::pack`] gave them, the gradients of the parameters that `wanted` names.
    pub(super) fn unpack(&self, parameters: &[Tensor], flats: &[Tensor], wanted: impl Fn(usize) -> bool) -> Result<()> {
        let _plain = no_grad();
        for (run, flat) in self.runs(parameters).zip(flats) {
            let parts = parted(flat, run.iter().map(|&at| &parameters[at]))?;
            for (&at, part) in run.iter().zip(parts) {
                parameters[at].set_grad(wanted(at).then_some(part));
            }
        }
        Ok(())
    }
}

/// Overwrites flat tensors with their sums over ranks.
pub(super) fn reduce(group: &Group, flats: &[Tensor]) -> Result<()> {
    let raw: Vec<&RawTensor> = flats.iter().map(Tensor::raw).collect();
    group.in_place(CALL, &raw, |group, flats| {
        if let [flat] = flats {
            return group.all_reduce_flat(CALL, flat, Reduce::Sum);
        }
        let lengths: Vec<usize> = flats.iter().map(|flat| flat.size() * flat.dtype().size()).collect();
        let mut bytes = vec![0; lengths.iter().sum()];
        let mut rest = &mut bytes[..];
        for (flat, &length) in flats.iter().zip(&lengths) {
            let (own, after) = rest.split_at_mut(length);
            flat.read_bytes(own)?;
            rest = after;
        }
        group.all_reduce_bytes(CALL, &mut bytes, flats[0].dtype(), Reduce::Sum)?;
        let mut rest = &bytes[..];
        for (flat, &length) in flats.iter().zip(&lengths) {
            flat.write_bytes(&rest[..length], flat.dtype())?;
            rest = &rest[length..];
        }
        Ok(())
    })
}
