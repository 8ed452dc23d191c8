//! How long work takes: warmed up, in samples of several calls, told as median and best.

use std::time::{Duration, Instant};

use netcl_core::backend::Queue;
use netcl_core::error::Result;

/// How much time a measurement may take, and in what portions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Calls before the clock counts, at least this long: caches fill, clocks rise.
    pub warm_up: Duration,
    /// The samples together take about this long.
    pub budget: Duration,
    /// A sample takes at least this long, in as many calls as that needs; the device is waited for at its end only.
    pub sample: Duration,
    /// At least so many samples, whatever they take.
    pub least: usize,
    /// At most so many.
    pub most: usize,
}

impl Effort {
    /// For figures that are published.
    pub const THOROUGH: Effort = Effort {
        warm_up: Duration::from_millis(300),
        budget: Duration::from_millis(1500),
        sample: Duration::from_millis(5),
        least: 5,
        most: 200,
    };

    /// For a quick look, and for tests.
    pub const QUICK: Effort = Effort {
        warm_up: Duration::from_millis(10),
        budget: Duration::from_millis(60),
        sample: Duration::from_millis(1),
        least: 3,
        most: 20,
    };
}

/// What a measurement found, in seconds per call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// The middle of all samples.
    pub median: f64,
    /// The shortest.
    pub best: f64,
    /// How many samples there were.
    pub samples: usize,
    /// Calls in a sample.
    pub calls: usize,
}

/// Times calls that put work on a queue.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
/// use netcl_profiling::timing::{Effort, time};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::full(&queue, [1000], DType::F32, 1.0)?;
/// let timing = time(&queue, Effort::QUICK, || x.fill(2.0))?;
/// assert!(timing.best <= timing.median && timing.samples >= 3);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn time(queue: &Queue, effort: Effort, mut call: impl FnMut() -> Result<()>) -> Result<Timing> {
    let mut run = |calls: usize| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        queue.finish()?;
        Ok(start.elapsed().as_secs_f64())
    };
    // The first call builds kernels: it says nothing.
    run(1)?;
    let (began, mut calls, mut one) = (Instant::now(), 1, f64::MAX);
    loop {
        let took = run(calls)?;
        one = one.min(took / calls as f64);
        if began.elapsed() >= effort.warm_up {
            break;
        }
        // Growing portions, so that waiting for the device does not count as work.
        calls = (calls * 2).min(1 + (effort.sample.as_secs_f64() / one.max(1e-9)) as usize);
    }
    let calls = ((effort.sample.as_secs_f64() / one.max(1e-9)).ceil() as usize).clamp(1, 100_000);
    let began = Instant::now();
    let mut samples = Vec::new();
    while samples.len() < effort.least || (samples.len() < effort.most && began.elapsed() < effort.budget) {
        samples.push(run(calls)? / calls as f64);
    }
    Ok(Timing {
        median: median(&samples),
        best: samples.iter().copied().fold(f64::MAX, f64::min),
        samples: samples.len(),
        calls,
    })
}

/// The middle value, the mean of the two middle ones of an even number; NaN of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len() / 2, sorted.len() % 2) {
        (0, 0) => f64::NAN,
        (half, 1) => sorted[half],
        (half, _) => 0.5 * (sorted[half - 1] + sorted[half]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_call_takes_its_time() {
        let queue = netcl_core::device::manager().cpu().queue;
        let effort = Effort { least: 4, most: 4, ..Effort::QUICK };
        let mut count = 0;
        let timing = time(&queue, effort, || {
            count += 1;
            std::thread::sleep(Duration::from_millis(3));
            Ok(())
        })
        .unwrap();
        assert!(timing.best >= 0.003 && timing.median >= timing.best && timing.median < 0.3, "{timing:?}");
        assert_eq!((timing.samples, timing.calls), (4, 1));
        assert!(count >= 6, "warmed up before");
    }
}
