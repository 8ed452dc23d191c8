//! What the ranks of a run tell each other besides gradients: small numbers and texts, through the memory of the host.

use netcl_core::dtype::Element;
use netcl_distributed::{Group, Reduce};
use netcl_nn::Module;
use netcl_nn::autograd::{Generator, RawTensor, Tensor, default_generator, manager, set_default_generator};
use serde::{Deserialize, Serialize};

use super::loader::{Loader, Sharing};
use crate::error::{Error, Result};

/// The sums over ranks.
pub(crate) fn sums(group: &Group, own: &[f64]) -> Result<Vec<f64>> {
    let values = RawTensor::from_host(&manager().cpu().queue, own, [own.len()])?;
    group.all_reduce(&values, Reduce::Sum)?;
    Ok(values.to_host::<f64>()?)
}

/// The sums over ranks of a few numbers.
pub(crate) fn sum<const N: usize>(group: &Group, own: [f64; N]) -> Result<[f64; N]> {
    let sums = sums(group, &own)?;
    Ok(std::array::from_fn(|i| sums[i]))
}

/// What every rank has, in their order; lengths may differ.
fn gather<T: Element>(group: &Group, own: &[T]) -> Result<Vec<Vec<T>>> {
    let parts = group.all_gather(&RawTensor::from_host(&manager().cpu().queue, own, [own.len()])?)?;
    parts.iter().map(|part| Ok(part.to_host::<T>()?)).collect()
}

/// The numbers of every rank.
pub(crate) fn numbers(group: &Group, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    gather(group, own)
}

/// The texts of every rank.
pub(crate) fn texts(group: &Group, own: &str) -> Result<Vec<String>> {
    let gathered = gather(group, own.as_bytes())?;
    Ok(gathered.into_iter().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect())
}

/// What rank 0 has.
pub(crate) fn first<T: Serialize + for<'d> Deserialize<'d>>(group: &Group, own: &T) -> Result<T> {
    let failed = |error| Error::setting(format!("what rank 0 has decided cannot be passed on: {error}"));
    let own = if group.rank() == 0 { serde_json::to_string(own).map_err(failed)? } else { String::new() };
    serde_json::from_str(&texts(group, &own)?[0]).map_err(failed)
}

/// Writes the sums over all ranks into a metric's tensors; `false` where no rank has any. A rank without tensors only listens.
pub(crate) fn add_sums(metric: &str, sums: &[Tensor], group: &Group) -> Result<bool> {
    let Some(totals) = total(metric, sums, group)? else { return Ok(false) };
    let mut totals = &totals[..];
    for sum in sums {
        let (own, rest) = totals.split_at(sum.size());
        let own = Tensor::from_host(&manager().cpu().queue, own, sum.shape().clone())?.cast(sum.dtype())?;
        sum.assign(own.to(sum.queue())?.raw())?;
        totals = rest;
    }
    Ok(true)
}

/// The sums over all ranks, one tensor after the other.
pub(crate) fn total(metric: &str, sums: &[Tensor], group: &Group) -> Result<Option<Vec<f64>>> {
    let mut own = Vec::new();
    for sum in sums {
        own.extend(sum.to_f64_vec()?);
    }
    let mut all = numbers(group, &own)?.into_iter().filter(|sums| !sums.is_empty());
    let Some(mut totals) = all.next() else { return Ok(None) };
    for sums in all {
        if sums.len() != totals.len() {
            return Err(Error::setting(format!(
                "{metric}: ranks have {} and {} sums; all must see the same classes",
                totals.len(),
                sums.len()
            )));
        }
        totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
    }
    Ok(Some(totals))
}

/// Gives every rank the tensors of rank 0.
pub(crate) fn broadcast(group: &Group, tensors: &[Tensor]) -> Result<()> {
    Ok(tensors.iter().try_for_each(|tensor| group.broadcast(tensor.raw(), 0))?)
}

/// What a model keeps besides its parameters.
pub(crate) fn buffers(model: &dyn Module) -> Vec<Tensor> {
    model.named_buffers().into_iter().map(|(_, buffer)| buffer).collect()
}

/// Seed and offset of every rank's process-wide generator.
pub(crate) fn generators(group: &Group) -> Result<Vec<(u64, u64)>> {
    let Generator { seed, offset } = default_generator();
    let failed = |error| Error::setting(format!("a rank's random state cannot be read: {error}"));
    let all = texts(group, &serde_json::to_string(&(seed, offset)).map_err(failed)?)?;
    all.iter().map(|text| serde_json::from_str(text).map_err(failed)).collect()
}

/// Goes on with this rank's generator of a checkpoint. Ranks that the checkpoint does not know, and those that begin with what rank 0
/// has, get one of their own: the same dropout on every rank would be that of a smaller batch.
pub(crate) fn set_generator(rank: usize, kept: &[(u64, u64)]) {
    let Some(&(first, _)) = kept.first() else { return };
    let own = match kept.get(rank) {
        Some(own) if rank == 0 || *own != kept[0] => *own,
        _ => (first.wrapping_add((rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)), 0),
    };
    set_default_generator(Generator { seed: own.0, offset: own.1 });
}

/// This rank's batches of an update.
pub(super) struct Taken<B> {
    pub(super) group: Vec<B>,
    /// How far the loader has moved on, in batches.
    pub(super) moved: usize,
}

/// Takes this rank's share of the next `count` batches per rank. `at` is where the loader is.
pub(super) fn take<B>(
    loader: &mut dyn Loader<Batch = B>,
    count: usize,
    at: usize,
    group: Option<&Group>,
) -> Result<Taken<B>> {
    let mut taken = Taken { group: Vec::with_capacity(count), moved: 0 };
    let (rank, size) = group.map_or((0, 1), |group| (group.rank(), group.size()));
    match (loader.sharing(), loader.batches()) {
        (Sharing::Turns, _) => {
            for turn in 0..count.saturating_mul(size) {
                let own = turn % size == rank;
                let more = if own {
                    loader.next_batch()?.map(|batch| taken.group.push(batch)).is_some()
                } else {
                    loader.skip_batch()?
                };
                if !more {
                    break;
                }
                taken.moved += 1;
            }
        }
        (Sharing::Parts, Some(batches)) => {
            taken.moved = count.min(batches.saturating_sub(at));
            for _ in 0..taken.moved {
                taken.group.extend(loader.next_batch()?);
            }
        }
        (Sharing::Parts, None) => {
            return Err(Error::setting("a loader that gives parts of batches must know how many batches there are"));
        }
        (Sharing::Own, _) => {
            while taken.group.len() < count
                && let Some(batch) = loader.next_batch()?
            {
                taken.group.push(batch);
            }
            taken.moved = taken.group.len();
        }
    }
    Ok(taken)
}
