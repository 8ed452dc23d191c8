//! How good a model is.

use netcl_data::{ImageSet, Normalization};
use netcl_nn::autograd::{Queue, no_grad};
use netcl_nn::{Module, functional as F};

use crate::batches::{Batch, BatchOptions, batches};
use crate::error::Result;

/// An image that was classified wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mistake {
    /// The number of the image.
    pub index: usize,
    /// What it is.
    pub label: usize,
    /// What the model takes it for.
    pub guess: usize,
    /// How sure the model is of that, from 0 to 1.
    pub probability: f32,
}

/// The result of a test.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The mean loss.
    pub loss: f64,
    /// How often images of a class (first index) are taken for a class (second index).
    pub confusion: Vec<Vec<usize>>,
    /// Every wrong guess, in the order of the images.
    pub mistakes: Vec<Mistake>,
}

impl Evaluation {
    /// The number of images.
    pub fn images(&self) -> usize {
        self.confusion.iter().flatten().sum()
    }

    /// The share of images that are classified right.
    pub fn accuracy(&self) -> f64 {
        1.0 - self.mistakes.len() as f64 / self.images().max(1) as f64
    }

    /// The classes of which most images are missed, as (class, share that is right, what it is most often taken for), the worst
    /// first; classes without a mistake are left out.
    pub fn worst(&self, count: usize) -> Vec<(usize, f64, usize)> {
        let mut classes: Vec<(usize, f64, usize)> = Vec::new();
        for (class, row) in self.confusion.iter().enumerate() {
            let total: usize = row.iter().sum();
            let others = row.iter().enumerate().filter(|&(other, &count)| other != class && count > 0);
            // The first of equals.
            let Some((taken_for, _)) = others.rev().max_by_key(|&(_, &count)| count) else { continue };
            classes.push((class, row[class] as f64 / total as f64, taken_for));
        }
        classes.sort_by(|a, b| a.1.total_cmp(&b.1));
        classes.truncate(count);
        classes
    }
}

/// Tests a model on images, without gradients. The model is left in the mode in which it was.
pub fn evaluate(
    model: &mut dyn Module,
    queue: &Queue,
    set: &ImageSet,
    classes: usize,
    normalization: Normalization,
    batch_size: usize,
) -> Result<Evaluation> {
    let was_training = model.training();
    model.eval();
    let result = test(model, queue, set, classes, normalization, batch_size);
    if was_training {
        model.train();
    }
    result
}

fn test(
    model: &dyn Module,
    queue: &Queue,
    set: &ImageSet,
    classes: usize,
    normalization: Normalization,
    batch_size: usize,
) -> Result<Evaluation> {
    let _scope = no_grad();
    let transforms = vec![normalization.transform(set.shape()[0])];
    let options = BatchOptions { batch_size, shuffle: false, transforms, seed: 0, epoch: 0, skipped: 0 };
    let mut evaluation = Evaluation { loss: 0.0, confusion: vec![vec![0; classes]; classes], mistakes: Vec::new() };
    for batch in batches(set, queue, options)? {
        let Batch { images, classes: expected, labels, indices } = batch?;
        let logits = model.forward(&images)?;
        let loss = F::cross_entropy(&logits, &expected, &F::CrossEntropyOptions::default())?;
        let probabilities = F::softmax(&logits, 1)?.to_host::<f32>()?;
        evaluation.loss += loss.item()? * labels.len() as f64;
        let rows = probabilities.chunks_exact(classes.max(1));
        for ((row, label), index) in rows.zip(labels).zip(indices) {
            let (guess, probability) = best(row);
            let label = label as usize;
            evaluation.confusion[label][guess] += 1;
            if guess != label {
                evaluation.mistakes.push(Mistake { index, label, guess, probability });
            }
        }
    }
    evaluation.loss /= set.len() as f64;
    Ok(evaluation)
}

/// The largest of some probabilities, the first of equals.
pub(crate) fn best(probabilities: &[f32]) -> (usize, f32) {
    let mut best = (0, f32::NEG_INFINITY);
    for (class, &probability) in probabilities.iter().enumerate() {
        if probability > best.1 {
            best = (class, probability);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_classes_come_first() {
        let mistake = Mistake { index: 0, label: 0, guess: 1, probability: 0.5 };
        let evaluation = Evaluation {
            loss: 0.1,
            confusion: vec![vec![8, 1, 1], vec![0, 5, 0], vec![0, 5, 5]],
            mistakes: vec![mistake; 7],
        };
        assert_eq!((evaluation.images(), evaluation.accuracy()), (25, 1.0 - 7.0 / 25.0));
        assert_eq!(evaluation.worst(9), [(2, 0.5, 1), (0, 0.8, 1)]);
        assert_eq!(evaluation.worst(1).len(), 1);
        assert_eq!(best(&[0.2, 0.4, 0.4]), (1, 0.4));
    }
}
