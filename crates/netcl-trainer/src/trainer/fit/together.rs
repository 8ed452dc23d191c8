//! What the ranks of a run do together besides the update: begin, agree, and follow what rank 0's callbacks ask for.

use netcl_distributed::Group;
use netcl_nn::autograd::Tensor;
use netcl_optim::ParamGroup;

use super::super::progress::Progress;
use super::super::ranks::{self, Taken};
use super::super::trouble;
use super::{Run, Stepper};
use crate::error::{Error, Result};

/// What ranks know of an update before they begin it.
pub(super) struct Agreed {
    /// The samples of all ranks.
    pub(super) samples: usize,
    /// How far the loader has moved on, in batches.
    pub(super) moved: usize,
    /// Whether losses are read after it.
    pub(super) read: bool,
    /// Whether it is a captured step.
    pub(super) capture: bool,
}

impl<S: Stepper> Run<'_, S> {
    /// Ranks begin at the same place with the weights of rank 0, and each with random numbers of its own.
    pub(super) fn meet(&mut self) -> Result<()> {
        let Some(group) = &self.group else { return Ok(()) };
        let Progress { epochs, batches, history, .. } = &*self.progress;
        let place = |at: &[usize]| format!("update {} (epoch {}, batch {})", at[2], at[0] + 1, at[1]);
        let own = vec![*epochs, *batches, history.steps.len(), self.options.epochs];
        let other = self.stepper.wait(|| ranks::first(group, &own))?;
        if other[..3] != own[..3] {
            return Err(Error::setting(format!(
                "rank 0 begins after {}, rank {} after {}: resume all ranks from the same checkpoint, or none",
                place(&other),
                group.rank(),
                place(&own)
            )));
        }
        if other != own {
            return Err(Error::setting(format!(
                "rank 0 trains for {} epochs, rank {} for {}: all ranks must call fit alike",
                other[3],
                group.rank(),
                own[3]
            )));
        }
        ranks::set_generator(group.rank(), &self.stepper.wait(|| ranks::generators(group))?);
        let (mut tensors, optimizer, ema) = self.stepper.held(|held| {
            let tensors =
                held.model.parameters().into_iter().chain(ranks::buffers(held.model)).collect::<Vec<Tensor>>();
            Ok((tensors, held.optimizer.gathered_state()?, held.ema.map(|ema| ema.state()).transpose()?))
        })?;
        let states = optimizer.tensors.values().chain(ema.iter().flat_map(|ema| ema.tensors.values()));
        tensors.extend(states.cloned());
        self.stepper.wait(|| ranks::broadcast(group, &tensors))?;
        self.stepper.held(|held| {
            held.optimizer.load_state(&optimizer)?;
            match (held.ema, ema) {
                (Some(ema), Some(state)) => Ok(ema.load_state(&state)?),
                _ => Ok(()),
            }
        })
    }

    /// What rank 0's callbacks have asked for, on all ranks.
    pub(super) fn settle(&mut self) -> Result<()> {
        if let Some(group) = &self.group {
            let groups = self.stepper.show(|_, _, groups| Ok(groups.to_vec()))?;
            let rates: Vec<f64> = groups.iter().map(ParamGroup::learning_rate).collect();
            let own = (self.end.take(), std::mem::take(&mut self.keep), rates);
            let (end, keep, rates) = self.stepper.wait(|| ranks::first(group, &own))?;
            (self.end, self.keep) = (end, keep);
            groups.iter().zip(rates).for_each(|(group, rate)| group.set_learning_rate(rate));
        }
        Ok(())
    }

    /// What ranks must know of each other before an update: all of them read losses and stop after the same one, and all record, replay or
    /// run it as it is written.
    pub(super) fn agree(&mut self, taken: &Taken<S::Batch>, samples: &[usize], own: bool, due: bool) -> Result<Agreed> {
        let flag = |set: bool| f64::from(u8::from(set));
        let samples: usize = samples.iter().sum();
        // 53 bits of it are a number; below 0 for a rank that cannot capture.
        let kind = self.stepper.kind(&taken.group)?.map_or(-1.0, |kind| (kind >> 11) as f64);
        let stop = self.group.is_some() && (self.options.stop)();
        let forget = std::mem::take(&mut self.forget);
        let mut numbers = vec![samples as f64, taken.moved as f64, flag(stop), flag(due), flag(forget)];
        let rank = self.group.as_ref().map_or(0, Group::rank);
        let size = self.group.as_ref().map_or(1, Group::size);
        // One place for each rank's kind: in a sum over ranks all of them are seen.
        numbers.extend((0..size).map(|other| if other == rank { kind } else { 0.0 }));
        if let Some(group) = &self.group {
            numbers = self.stepper.wait(|| ranks::sums(group, &numbers))?;
        }
        let (all, kinds) = (numbers[0], numbers.split_off(5));
        if numbers[4] > 0.0 {
            self.stepper.recapture();
        }
        self.stop = numbers[2] > 0.0;
        let can_capture = kinds.iter().all(|kind| *kind >= 0.0);
        let kinds: Vec<u64> = kinds.iter().map(|kind| *kind as u64).collect();
        let capture = self.stepper.session(|session| {
            session.share = samples as f64 / all.max(1.0);
            Ok(can_capture && session.captures(&kinds))
        })?;
        let moved = if own { numbers[1] as usize } else { taken.moved };
        Ok(Agreed { samples: all as usize, moved, read: numbers[3] > 0.0, capture })
    }

    /// What gave a loss that is not finite, on whichever rank.
    pub(super) fn first_operation(&mut self, group: &[S::Batch]) -> Result<String> {
        let own = trouble::first_operation(self.stepper, group);
        let Some(group) = &self.group else { return Ok(own) };
        let found = self.stepper.wait(|| ranks::texts(group, &own))?;
        let at = found.iter().position(|text| text != trouble::FINITE).unwrap_or(0);
        Ok(format!("on rank {at} {}", found[at]))
    }
}
