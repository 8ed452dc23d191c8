//! What happened in a run, step by step.

use serde::{Deserialize, Serialize};

/// One update of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The number of the step in the whole run, from 1.
    pub step: usize,
    /// The number of the epoch, from 1.
    pub epoch: usize,
    /// The mean loss of the batch, before the update.
    pub loss: f64,
    /// The share of the batch that was classified right.
    pub accuracy: f64,
    /// The learning rate of the update.
    pub lr: f64,
    /// The number of images in the batch.
    pub images: usize,
}

/// One pass over the training images.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Its number, from 1.
    pub epoch: usize,
    /// The number of steps so far.
    pub steps: usize,
    /// The mean loss over the epoch.
    pub loss: f64,
    /// The share of training images that were classified right while they were learned.
    pub accuracy: f64,
    /// The mean loss over the test images afterwards.
    pub test_loss: f64,
    /// The share of test images that are classified right afterwards.
    pub test_accuracy: f64,
    /// How long training and testing took, in seconds.
    pub seconds: f64,
    /// Bytes of device memory in use at its end, and the most so far.
    #[serde(default)]
    pub memory: Option<(usize, usize)>,
}

/// A whole run so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Every step.
    pub steps: Vec<Step>,
    /// Every finished epoch.
    pub epochs: Vec<Epoch>,
}

impl History {
    /// The time all epochs took together, in seconds.
    pub fn seconds(&self) -> f64 {
        self.epochs.iter().map(|epoch| epoch.seconds).sum()
    }

    /// Means over the steps of an epoch: loss and accuracy, each image counted once.
    pub(crate) fn means(&self, epoch: usize) -> (f64, f64) {
        let (mut images, mut loss, mut right) = (0.0, 0.0, 0.0);
        for step in self.steps.iter().rev().take_while(|step| step.epoch == epoch) {
            let weight = step.images as f64;
            images += weight;
            loss += step.loss * weight;
            right += step.accuracy * weight;
        }
        if images == 0.0 { (0.0, 0.0) } else { (loss / images, right / images) }
    }
}
