//! The learning rate of every step.

use std::f64::consts::PI;

/// A learning rate as a function of the step, so that there is nothing to save: a run that goes on later asks again.
pub trait Schedule {
    /// The learning rate of a step, counted from 0; nothing leaves the optimizer's as it is.
    fn rate(&self, step: usize) -> Option<f64>;
}

/// The optimizer's own learning rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Constant;

impl Schedule for Constant {
    fn rate(&self, _step: usize) -> Option<f64> {
        None
    }
}

/// Up to a peak along half a cosine, then down to almost nothing along another (Smith and Topin, 2018).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneCycle {
    /// The largest learning rate.
    pub peak: f64,
    /// The number of steps of the whole run.
    pub steps: usize,
    /// The share of the steps that goes up.
    pub warmup: f64,
    /// The first learning rate is the peak divided by this.
    pub start_divisor: f64,
    /// The last learning rate is the first divided by this.
    pub end_divisor: f64,
}

impl OneCycle {
    /// The usual shape for a number of steps.
    pub fn new(peak: f64, steps: usize) -> OneCycle {
        OneCycle { peak, steps, warmup: 0.3, start_divisor: 25.0, end_divisor: 1e4 }
    }
}

impl Schedule for OneCycle {
    fn rate(&self, step: usize) -> Option<f64> {
        let (first, last) = (self.peak / self.start_divisor, self.peak / self.start_divisor / self.end_divisor);
        let top = (self.warmup * self.steps as f64 - 1.0).max(0.0);
        let end = (self.steps as f64 - 1.0).max(top);
        let step = (step as f64).min(end);
        let cosine = |from: f64, to: f64, part: f64| to + (from - to) / 2.0 * (1.0 + (PI * part).cos());
        Some(if step <= top && top > 0.0 {
            cosine(first, self.peak, step / top)
        } else if end > top {
            cosine(self.peak, last, (step - top) / (end - top))
        } else {
            self.peak
        })
    }
}
