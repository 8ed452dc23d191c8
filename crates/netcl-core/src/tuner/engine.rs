//! The contest itself: who may take part, in what order samples are taken, when it ends.

use std::time::{Duration, Instant};

use super::{Trial, Verdict};
use crate::error::Result;
use crate::kernel_selector::KernelConfig;

/// What the engine measures: something that runs with any of the candidates.
pub trait Contest {
    /// Puts one call with a configuration on the device.
    fn call(&mut self, config: &KernelConfig) -> Result<()>;

    /// Waits until all calls are done.
    fn finish(&mut self) -> Result<()>;

    /// Compares the result of the last call with the reference; a text says what is wrong.
    fn verify(&mut self, config: &KernelConfig) -> Result<Option<String>>;
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// All of it takes at most about this long; a call that has begun is waited for.
    pub time: Duration,
    /// Calls before samples count, at least this long: clocks rise.
    pub warm_up: Duration,
    /// A sample takes at least this long, in several calls if need be.
    pub sample: Duration,
    /// Samples of each candidate.
    pub rounds: usize,
    /// Candidates that take so many times as long as the fastest are dropped.
    pub behind: f64,
    /// Seconds per call that cannot be beaten, such as the device's limit: a candidate within 3 % of it ends the contest.
    pub enough: Option<f64>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            time: Duration::from_secs(20),
            warm_up: Duration::from_millis(100),
            sample: Duration::from_millis(2),
            rounds: 9,
            behind: 1.5,
            enough: None,
        }
    }
}

/// What the engine is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Building candidates and checking their results.
    Checking,
    /// Taking samples.
    Measuring,
}

/// Where a measurement stands.
#[derive(Clone, Debug)]
pub struct Step<'s> {
    /// What is being done.
    pub phase: Phase,
    /// Steps done of this phase, and in all: candidates, then rounds.
    pub done: usize,
    /// How many there are.
    pub total: usize,
    /// The candidate whose turn it is.
    pub config: &'s KernelConfig,
    /// The shortest time of a call so far, in seconds.
    pub best: Option<f64>,
}

/// Measures candidates. `progress` is called at every step; when it returns `false` the contest ends with what is known.
///
/// Returns a trial for each candidate, and whether all had their turn.
///
/// ```
/// use netcl_core::kernel_selector::{KernelConfig, KernelVariant};
/// use netcl_core::tuner::{Contest, Limits, Verdict, tune};
///
/// struct Sleep;
/// impl Contest for Sleep {
///     fn call(&mut self, config: &KernelConfig) -> netcl_core::Result<()> {
///         std::thread::sleep(std::time::Duration::from_millis(config.tile_m as u64));
///         Ok(())
///     }
///     fn finish(&mut self) -> netcl_core::Result<()> {
///         Ok(())
///     }
///     fn verify(&mut self, config: &KernelConfig) -> netcl_core::Result<Option<String>> {
///         Ok((config.tile_m == 1).then(|| "nothing was computed".to_owned()))
///     }
/// }
///
/// let of = |tile_m| KernelConfig { tile_m, ..KernelConfig::new(KernelVariant::MatmulTiled) };
/// let (trials, _) = tune([9, 3, 1].map(of).to_vec(), &mut Sleep, &Limits::default(), &mut |_| true);
/// assert_eq!(trials[0].verdict, Verdict::Behind);
/// assert_eq!(trials[1].verdict, Verdict::Measured);
/// assert!(matches!(&trials[2].verdict, Verdict::Wrong(reason) if reason.contains("nothing")));
/// ```
pub fn tune(
    candidates: Vec<KernelConfig>,
    contest: &mut dyn Contest,
    limits: &Limits,
    progress: &mut dyn FnMut(&Step<'_>) -> bool,
) -> (Vec<Trial>, bool) {
    let unmeasured = |config| Trial { config, samples: Vec::new(), verdict: Verdict::Unmeasured };
    let trials = candidates.into_iter().map(unmeasured).collect();
    let mut engine = Engine { trials, contest, limits, progress, start: Instant::now() };
    let complete = engine.check() & engine.measure();
    (engine.trials, complete)
}

struct Engine<'e> {
    trials: Vec<Trial>,
    contest: &'e mut dyn Contest,
    limits: &'e Limits,
    progress: &'e mut dyn FnMut(&Step<'_>) -> bool,
    start: Instant,
}

impl Engine<'_> {
    /// Builds and runs every candidate once and looks at its result. At least half of the time is left for samples. A candidate
    /// that came through has a first sample, which says how long a call takes at most.
    fn check(&mut self) -> bool {
        let total = self.trials.len();
        for i in 0..total {
            let late = self.start.elapsed() >= self.limits.time / 2 && self.fastest().is_some();
            if late || !self.tell(Phase::Checking, i, total, i) {
                return false;
            }
            let trial = &mut self.trials[i];
            let outcome = self.contest.call(&trial.config).and_then(|()| self.contest.finish());
            let outcome = outcome.and_then(|()| self.contest.verify(&trial.config));
            trial.verdict = match outcome {
                Err(error) => Verdict::Failed(error.to_string()),
                Ok(Some(reason)) => Verdict::Wrong(reason),
                Ok(None) => Verdict::Measured,
            };
            if trial.verdict != Verdict::Measured {
                continue;
            }
            // The first call built the kernel; the second tells the time.
            match sample(self.contest, &self.trials[i].config, 1) {
                Ok(seconds) => self.trials[i].samples.push(seconds),
                Err(error) => self.trials[i].verdict = Verdict::Failed(error.to_string()),
            }
        }
        true
    }

    fn measure(&mut self) -> bool {
        let Some(first) = self.fastest() else { return true };
        let warm = Instant::now();
        while warm.elapsed() < self.limits.warm_up.min(self.limits.time / 4) {
            if sample(self.contest, &self.trials[first].config, 1).is_err() {
                break;
            }
        }
        // A candidate is far behind by what was measured cold, too, but only by more than clocks explain.
        self.drop_those_behind(2.0 * self.limits.behind);
        let cold: Vec<Option<f64>> = self.trials.iter_mut().map(|trial| trial.samples.pop()).collect();
        let mut complete = true;
        'rounds: for round in 0..self.limits.rounds {
            for (i, cold) in cold.iter().enumerate() {
                if self.trials[i].verdict != Verdict::Measured {
                    continue;
                }
                let out_of_time = self.start.elapsed() >= self.limits.time;
                if out_of_time || !self.tell(Phase::Measuring, round, self.limits.rounds, i) {
                    complete = false;
                    break 'rounds;
                }
                let known = self.trials[i].shortest().or(*cold).unwrap_or(1.0);
                let calls = (self.limits.sample.as_secs_f64() / known.max(1e-9)).ceil().clamp(1.0, 1000.0) as usize;
                match sample(self.contest, &self.trials[i].config, calls) {
                    Ok(seconds) => self.trials[i].samples.push(seconds),
                    Err(error) => self.trials[i].verdict = Verdict::Failed(error.to_string()),
                }
            }
            // One sample may be unlucky: look from the second round on.
            if round > 0 {
                self.drop_those_behind(self.limits.behind);
            }
            if self.is_enough() {
                break;
            }
        }
        // What had no turn after the warm-up is known by its first, cold time.
        for (trial, cold) in self.trials.iter_mut().zip(cold) {
            if trial.samples.is_empty() {
                trial.samples.extend(cold);
            }
        }
        complete
    }

    /// The candidate with the shortest sample so far.
    fn fastest(&self) -> Option<usize> {
        let timed = self.trials.iter().enumerate().filter(|(_, trial)| trial.is_sound());
        timed.filter_map(|(i, trial)| Some((i, trial.shortest()?))).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(i, _)| i)
    }

    fn drop_those_behind(&mut self, factor: f64) {
        let Some(best) = self.fastest().and_then(|i| self.trials[i].shortest()) else { return };
        for trial in self.trials.iter_mut().filter(|trial| trial.verdict == Verdict::Measured) {
            if trial.shortest().is_some_and(|time| time > factor * best) {
                trial.verdict = Verdict::Behind;
            }
        }
    }

    fn is_enough(&self) -> bool {
        let best = self.fastest().and_then(|i| self.trials[i].median());
        self.limits.enough.zip(best).is_some_and(|(enough, best)| best <= 1.03 * enough)
    }

    fn tell(&mut self, phase: Phase, done: usize, total: usize, i: usize) -> bool {
        let best = self.fastest().and_then(|i| self.trials[i].shortest());
        (self.progress)(&Step { phase, done, total, config: &self.trials[i].config, best })
    }
}

/// Seconds per call of several calls.
fn sample(contest: &mut dyn Contest, config: &KernelConfig, calls: usize) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..calls {
        contest.call(config)?;
    }
    contest.finish()?;
    Ok(start.elapsed().as_secs_f64() / calls as f64)
}
