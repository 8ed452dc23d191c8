//! What the ranks of a run do together besides the update: begin, agree, and follow what rank 0's callbacks ask for.

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
}

impl<S: Stepper> Run<'_, S> {
    /// Ranks begin at the same place with the weights of rank 0, and each with random numbers of its own.
    pub(super) fn meet(&mut self) -> Result<()> {
        let Some(group) = &self.group else { return Ok(()) };
        let Progress { epochs, batches, history, .. } = &*self.progress;
        let place = |at: &[usize]| format!("update {} (epoch {}, batch {})", at[2], at[0] + 1, at[1]);
        let own = vec![*epochs, *batches, history.steps.len(), self.options.epochs];
        let other = ranks::first(group, &own)?;
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
        ranks::set_generator(group.rank(), &ranks::generators(group)?);
        self.stepper.held(|held| {
            ranks::broadcast(group, held.model)?;
            let mut state = held.optimizer.state();
            state.tensors.values_mut().try_for_each(|tensor| group.broadcast(tensor.raw(), 0))?;
            held.optimizer.load_state(&state)?;
            if let Some(ema) = held.ema {
                let state = ema.state()?;
                state.tensors.values().try_for_each(|tensor| group.broadcast(tensor.raw(), 0))?;
                ema.load_state(&state)?;
            }
            Ok(())
        })
    }

    /// What rank 0's callbacks have asked for, on all ranks.
    pub(super) fn settle(&mut self) -> Result<()> {
        if let Some(group) = &self.group {
            let groups = self.stepper.show(|_, _, groups| Ok(groups.to_vec()))?;
            let rates: Vec<f64> = groups.iter().map(ParamGroup::learning_rate).collect();
            let own = (self.end.take(), std::mem::take(&mut self.keep), rates);
            let (end, keep, rates) = ranks::first(group, &own)?;
            (self.end, self.keep) = (end, keep);
            groups.iter().zip(rates).for_each(|(group, rate)| group.set_learning_rate(rate));
        }
        Ok(())
    }

    /// What ranks must know of each other before an update; all of them read losses and stop after the same one.
    pub(super) fn agree(&mut self, taken: &Taken<S::Batch>, samples: &[usize], own: bool, due: bool) -> Result<Agreed> {
        let samples: usize = samples.iter().sum();
        let Some(group) = &self.group else { return Ok(Agreed { samples, moved: taken.moved, read: due }) };
        let flag = |set: bool| f64::from(u8::from(set));
        let stop = (self.options.stop)();
        let own_numbers = [samples as f64, taken.moved as f64, flag(stop), flag(due)];
        let [all, moved, stop, read] = self.stepper.wait(|| ranks::sum(group, own_numbers))?;
        self.stop = stop > 0.0;
        self.stepper.session(|session| {
            session.share = samples as f64 / all.max(1.0);
            Ok(())
        })?;
        Ok(Agreed { samples: all as usize, moved: if own { moved as usize } else { taken.moved }, read: read > 0.0 })
    }

    /// What gave a loss that is not finite, on whichever rank.
    pub(super) fn first_operation(&mut self, group: &[S::Batch]) -> Result<String> {
        let own = trouble::first_operation(self.stepper, group);
        let Some(group) = &self.group else { return Ok(own) };
        let found = ranks::texts(group, &own)?;
        let at = found.iter().position(|text| text != trouble::FINITE).unwrap_or(0);
        Ok(format!("on rank {at} {}", found[at]))
    }
}
