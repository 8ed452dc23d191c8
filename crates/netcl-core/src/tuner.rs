//! Measuring which configuration of a kernel is the fastest, and keeping the answer.
//!
//! ```text
//!   candidates ──► once each: runs? right? ──► warm up ──► rounds: a sample of each, in turn ──► the fastest ──► kept on disk
//!                   │no          │no                        │ 1.5 times behind
//!                   ▼            ▼                          ▼
//!                 Failed       Wrong                      Behind            (all stay in the report, with the reason)
//! ```
//!
//! Samples are taken in turn, so that a clock that rises or a neighbour that computes hits all candidates alike. The time is
//! bounded; what was measured when it ends counts. This file knows nothing of products or convolutions: a [`Contest`] runs a
//! configuration and says whether its result is right, and `netcl-ops` has one for each operation.
//!
//! [`keep`] writes a result into the cache folder, one file for each device, driver, version of netcl and
//! [`Problem`]; every later process on that device finds it there. `NETCL_AUTOTUNE=1` measures when a class of problems is first
//! met; else only who asks (`netcl tune`) measures.

mod engine;
mod store;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::LazyLock;
use std::time::Duration;

use crate::env;
use crate::kernel_selector::{KernelConfig, KernelVariant, Problem};

pub use engine::{Contest, Limits, Phase, Step, tune};
pub(crate) use store::find;
pub use store::{Kept, clear, export, keep, list};

/// Whether `NETCL_AUTOTUNE=1` was set when the process first asked.
pub fn autotune() -> bool {
    static ON: LazyLock<bool> = LazyLock::new(|| env::AUTOTUNE.switch());
    *ON
}

/// How a candidate fared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Measured to the end.
    Measured,
    /// Too far behind to be measured to the end.
    Behind,
    /// Its result is wrong; the text says where.
    Wrong(String),
    /// It could not be built or run; the text says why.
    Failed(String),
    /// The time ran out before its turn.
    Unmeasured,
}

/// A candidate and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The candidate.
    pub config: KernelConfig,
    /// Seconds per call, a value for each sample.
    pub samples: Vec<f64>,
    /// How it fared.
    pub verdict: Verdict,
}

impl Trial {
    /// The middle of the samples; `None` without any.
    pub fn median(&self) -> Option<f64> {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let half = sorted.len() / 2;
        match sorted.len() {
            0 => None,
            even if even.is_multiple_of(2) => Some(0.5 * (sorted[half - 1] + sorted[half])),
            _ => Some(sorted[half]),
        }
    }

    /// The shortest sample; `None` without any.
    pub fn shortest(&self) -> Option<f64> {
        self.samples.iter().copied().min_by(f64::total_cmp)
    }

    /// Whether the candidate may be chosen.
    pub fn is_sound(&self) -> bool {
        matches!(self.verdict, Verdict::Measured | Verdict::Behind) && !self.samples.is_empty()
    }
}

/// A finished measurement.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// What was measured.
    pub problem: Problem,
    /// The device's name.
    pub device: String,
    /// Operations of a call, for rates.
    pub flops: f64,
    /// Every candidate, in the order of the list.
    pub trials: Vec<Trial>,
    /// How long all of it took.
    pub took: Duration,
    /// Whether every candidate had its turn: neither the time ran out nor was the tuner told to stop.
    pub complete: bool,
}

impl Tuning {
    /// The candidate with the shortest median among the sound ones.
    pub fn best(&self) -> Option<&Trial> {
        let sound = self.trials.iter().filter(|trial| trial.is_sound());
        sound.min_by(|a, b| a.median().unwrap_or(f64::MAX).total_cmp(&b.median().unwrap_or(f64::MAX)))
    }

    /// The trials, the fastest first, those without a time last.
    pub fn ranking(&self) -> Vec<&Trial> {
        let mut trials: Vec<&Trial> = self.trials.iter().collect();
        trials.sort_by(|a, b| a.median().unwrap_or(f64::MAX).total_cmp(&b.median().unwrap_or(f64::MAX)));
        trials.sort_by_key(|trial| !trial.is_sound());
        trials
    }
}

thread_local! {
    static FORCED: RefCell<Option<KernelConfig>> = const { RefCell::new(None) };
}

/// Runs `f` while operations on this thread use a configuration, if it is one of theirs, instead of what was chosen for them. A
/// configuration that does not fit the device or the problem is an error of the operation.
pub fn with_forced<R>(config: &KernelConfig, f: impl FnOnce() -> R) -> R {
    /// Puts back what was there, also when `f` panics.
    struct Restore(Option<KernelConfig>);
    impl Drop for Restore {
        fn drop(&mut self) {
            FORCED.set(self.0.take());
        }
    }
    let _restore = Restore(FORCED.replace(Some(config.clone())));
    f()
}

/// The configuration that is forced on this thread, if it is for one of these variants.
pub fn forced(concerns: impl FnOnce(KernelVariant) -> bool) -> Option<KernelConfig> {
    FORCED.with_borrow(|config| config.as_ref().filter(|config| concerns(config.variant)).cloned())
}
