//! An optimizer whose state is divided among ranks (ZeRO stage 1).

use netcl_nn::autograd::{DType, RawTensor, Result as AutogradResult, Tensor, manager, no_grad};
use netcl_optim::{Optimizer, Shards, State};

use super::gradients::{BUCKET_BYTES, buckets};
use super::replicas::{joined, parted};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::reduction::Reduce;

/// Divides an optimizer's state among ranks: each updates the parameters that it owns, keeps state for those alone, and gives them to all
/// others. Whole parameters are owned, so that ranks have about as many elements each. The results are those of the undivided
/// optimizer, bit for bit, also with a largest norm and with a loss scale.
///
/// All ranks must have the same gradients, as [`Group::sync_grads`] makes them, and step together. [`Optimizer::gathered_state`] is the
/// state of all, which loads on any number of ranks, divided or not.
///
/// ```
/// use netcl_distributed::{Group, data_parallel::shard_optimizer};
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_optim::{Adam, Optimizer};
///
/// let group = Group::alone();
/// let weight = Tensor::from_host(&manager().cpu().queue, &[1.0f32], [1])?.with_grad();
/// let mut optimizer = Adam::new([weight.clone()], 0.25)?;
/// shard_optimizer(&mut optimizer, &group)?;
/// weight.set_grad(Some(weight.detach()));
/// group.sync_grads(&[weight.clone()], 1.0)?;
/// optimizer.step()?;
/// assert!((weight.item()? - 0.75).abs() < 1e-6);
/// # Ok::<(), netcl_distributed::Error>(())
/// ```
///
/// # Errors
/// If it is divided already; what the device says.
pub fn shard_optimizer(optimizer: &mut dyn Optimizer, group: &Group) -> Result<()> {
    let shards = ByRank { group: group.clone(), owners: Vec::new(), loads: vec![0; group.size()] };
    Ok(optimizer.base_mut().shard(Box::new(shards))?)
}

/// Which rank owns what.
#[derive(Debug)]
struct ByRank {
    group: Group,
    /// The rank of each parameter.
    owners: Vec<usize>,
    /// How many elements each rank has.
    loads: Vec<usize>,
}

impl ByRank {
    /// Gives every rank the parameters that a rank owns, those of a dtype in one exchange.
    fn spread_from(&self, owner: usize, parameters: &[Tensor]) -> Result<()> {
        if self.group.size() == 1 {
            return Ok(());
        }
        let _plain = no_grad();
        for bucket in buckets(parameters, |at| self.owners[at] == owner, BUCKET_BYTES) {
            let members = || bucket.members.iter().map(|&at| &parameters[at]);
            let home = members().next().map_or_else(|| manager().cpu().queue, |first| first.queue().clone());
            if self.group.rank() == owner {
                let moved =
                    members().map(|parameter| parameter.detach().to(&home)).collect::<AutogradResult<Vec<_>>>()?;
                self.group.broadcast(joined(moved.into_iter())?.raw(), owner)?;
                continue;
            }
            let (length, dtype) =
                (members().map(|parameter| parameter.size()).sum::<usize>(), parameters[bucket.members[0]].dtype());
            let flat = Tensor::from(RawTensor::uninit(&home, [length], dtype)?);
            self.group.broadcast(flat.raw(), owner)?;
            for (parameter, part) in members().zip(parted(&flat, members())?) {
                parameter.assign(part.to(parameter.queue())?.raw())?;
            }
        }
        Ok(())
    }

    fn gathered(&self, mut own: State, names: &[&str], parameters: &[Tensor]) -> Result<State> {
        let host = manager().cpu().queue;
        // One place for each parameter: only its owner has counted steps.
        let step = |at: usize| own.numbers.get(&format!("{at}.step")).copied().unwrap_or(0.0);
        let steps: Vec<f64> = (0..parameters.len()).map(step).collect();
        let steps = RawTensor::from_host(&host, &steps, [steps.len()])?;
        self.group.all_reduce(&steps, Reduce::Sum)?;
        for (at, steps) in steps.to_f64_vec()?.into_iter().enumerate().filter(|(_, steps)| *steps > 0.0) {
            own.numbers.insert(format!("{at}.step"), steps);
            for name in names.iter().map(|name| format!("{at}.{name}")) {
                let parameter = &parameters[at];
                let dtype = if parameter.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
                // In the memory of the host: the device has room for a part of it.
                let tensor = match own.tensors.get(&name) {
                    Some(kept) => kept.detach().to(&host)?,
                    None => RawTensor::uninit(&host, parameter.shape().clone(), dtype)?.into(),
                };
                self.group.broadcast(tensor.raw(), self.owners[at])?;
                own.tensors.insert(name, tensor);
            }
        }
        Ok(own)
    }
}

impl Shards for ByRank {
    fn add(&mut self, parameters: &[Tensor]) {
        // The largest first, each to the rank that has least: the first of equals.
        let mut order: Vec<usize> = (0..parameters.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(parameters[at].size()));
        let known = self.owners.len();
        self.owners.resize(known + parameters.len(), 0);
        for at in order {
            let least = (0..self.loads.len()).min_by_key(|&rank| self.loads[rank]).unwrap_or(0);
            self.owners[known + at] = least;
            self.loads[least] += parameters[at].size();
        }
    }

    fn owns(&self, parameter: usize) -> bool {
        self.owners.get(parameter) == Some(&self.group.rank())
    }

    fn spread(&self, parameters: &[Tensor]) -> AutogradResult<()> {
        (0..self.group.size()).try_for_each(|owner| self.spread_from(owner, parameters)).map_err(Error::into_autograd)
    }

    fn gather(&self, own: State, names: &[&str], parameters: &[Tensor]) -> AutogradResult<State> {
        self.gathered(own, names, parameters).map_err(Error::into_autograd)
    }
}
