//! A run's history on its way to the page: columns instead of records, no more points than a chart can show.

use crate::trainer::{Epoch, History, Step};

/// More updates than this are thinned: a chart is a thousand pixels wide and can be zoomed into.
const MOST_STEPS: usize = 6000;

/// Adds the perplexity, which is what losses of language models are read as, where only the loss was recorded.
pub(super) fn add_perplexity(history: &mut History) {
    for epoch in &mut history.epochs {
        for (loss, perplexity) in [("loss", "perplexity"), ("val_loss", "val_perplexity")] {
            if let Some(value) = epoch.values.get(loss).map(|loss| loss.exp()) {
                epoch.values.entry(perplexity.to_owned()).or_insert(value);
            }
        }
    }
}

/// Updates as many as can be shown: of each stretch, those with the smallest and the largest loss.
fn thinned(steps: &[Step]) -> Vec<&Step> {
    if steps.len() <= MOST_STEPS {
        return steps.iter().collect();
    }
    let stretch = steps.len().div_ceil(MOST_STEPS / 2);
    let ends = |part: &'_ [Step]| {
        let by_loss = |&a: &usize, &b: &usize| part[a].loss.total_cmp(&part[b].loss);
        let low = (0..part.len()).min_by(by_loss).unwrap_or(0);
        let high = (0..part.len()).max_by(by_loss).unwrap_or(0);
        (low.min(high), low.max(high))
    };
    let mut kept = Vec::with_capacity(MOST_STEPS);
    for part in steps.chunks(stretch) {
        let (first, second) = ends(part);
        kept.push(&part[first]);
        if second != first {
            kept.push(&part[second]);
        }
    }
    kept
}

/// A history as JSON: the updates in columns, which is a third of the size of records.
pub(super) mod columns {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Epoch, History, Step, thinned};

    #[derive(Default, Serialize, Deserialize)]
    #[serde(default)]
    struct Columns {
        step: Vec<usize>,
        epoch: Vec<usize>,
        /// JSON has no number for infinite and NaN: `null`.
        loss: Vec<Option<f64>>,
        lr: Vec<Option<f64>>,
        samples: Vec<usize>,
    }

    #[derive(Default, Serialize, Deserialize)]
    #[serde(default)]
    struct Page {
        steps: Columns,
        epochs: Vec<PageEpoch>,
    }

    /// An [`Epoch`] whose values may be missing.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(default)]
    struct PageEpoch {
        epoch: usize,
        steps: usize,
        samples: usize,
        seconds: Option<f64>,
        values: BTreeMap<String, Option<f64>>,
    }

    /// Six digits: more cannot be seen, and a page of several runs stays small.
    fn short(value: f64) -> Option<f64> {
        format!("{value:.5e}").parse().ok().filter(|value: &f64| value.is_finite())
    }

    pub(crate) fn serialize<S: Serializer>(history: &History, serializer: S) -> Result<S::Ok, S::Error> {
        let steps = thinned(&history.steps);
        let columns = Columns {
            step: steps.iter().map(|step| step.step).collect(),
            epoch: steps.iter().map(|step| step.epoch).collect(),
            loss: steps.iter().map(|step| short(step.loss)).collect(),
            lr: steps.iter().map(|step| short(step.lr)).collect(),
            samples: steps.iter().map(|step| step.samples).collect(),
        };
        let epoch = |epoch: &Epoch| PageEpoch {
            epoch: epoch.epoch,
            steps: epoch.steps,
            samples: epoch.samples,
            seconds: short(epoch.seconds),
            values: epoch.values.iter().map(|(name, &value)| (name.clone(), short(value))).collect(),
        };
        Page { steps: columns, epochs: history.epochs.iter().map(epoch).collect() }.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<History, D::Error> {
        let Page { steps: Columns { step, epoch, loss, lr, samples }, epochs } = Page::deserialize(deserializer)?;
        let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
        let steps = step.into_iter().zip(epoch).zip(loss).zip(lr).zip(samples);
        let steps = steps.map(|((((step, epoch), loss), lr), samples)| Step {
            step,
            epoch,
            loss: number(loss),
            lr: number(lr),
            samples,
        });
        let epochs = epochs.into_iter().map(|epoch| Epoch {
            epoch: epoch.epoch,
            steps: epoch.steps,
            samples: epoch.samples,
            seconds: number(epoch.seconds),
            values: epoch.values.into_iter().map(|(name, value)| (name, number(value))).collect(),
        });
        Ok(History { steps: steps.collect(), epochs: epochs.collect() })
    }
}
