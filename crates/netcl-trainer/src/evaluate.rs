//! How good a model is on data that it was not trained with.

use std::collections::BTreeMap;

use netcl_nn::autograd::{Queue, no_grad};
use netcl_nn::{Module, functional as F};

use crate::error::Result;
use crate::task::{Data, Goal, Task};

/// A sample whose class was not found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mistake {
    /// Its number in the data.
    pub index: usize,
    /// Its class.
    pub label: usize,
    /// What it was taken for.
    pub guess: usize,
    /// How sure the model is of that, from 0 to 1.
    pub probability: f32,
}

/// The result of a test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// The mean loss: of classes and tokens the cross-entropy in nats.
    pub loss: f64,
    /// The number of samples: images, rows, or tokens of a text.
    pub samples: usize,
    /// What else was measured, by name: `accuracy` of classes and tokens; `perplexity`, `nats_per_character` and
    /// `bits_per_character` of texts; `mae` and `rmse` of numbers, in their own unit.
    pub values: BTreeMap<String, f64>,
    /// How often samples of a class (first index) are taken for a class (second index).
    pub confusion: Vec<Vec<usize>>,
    /// Every wrong guess of a class, in the order of the samples.
    pub mistakes: Vec<Mistake>,
}

impl Evaluation {
    /// The share of samples whose class is found; 0 where there are no classes.
    pub fn accuracy(&self) -> f64 {
        self.values.get("accuracy").copied().unwrap_or(0.0)
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

/// Tests a model on the held-out part of some data, without gradients; at most so many samples, where a limit is given. The model is
/// left in the mode in which it was.
///
/// # Errors
/// If the data does not fit the model, and what the device says.
pub fn evaluate(
    model: &mut dyn Module,
    task: &Task,
    data: &Data,
    limit: Option<usize>,
    queue: &Queue,
) -> Result<Evaluation> {
    let was_training = model.training();
    model.eval();
    let result = test(model, task, data, limit, queue);
    if was_training {
        model.train();
    }
    result
}

fn test(model: &dyn Module, task: &Task, data: &Data, limit: Option<usize>, queue: &Queue) -> Result<Evaluation> {
    let _scope = no_grad();
    let (goal, classes) = (task.goal(0.0), task.classes().len());
    let mut found = Evaluation { confusion: vec![vec![0; classes]; classes], ..Evaluation::default() };
    let (mut right, mut absolute, mut squared, mut numbers) = (0, 0.0, 0.0, 0);
    for batch in data.testing(task, limit, queue)?.epoch(0, 0)? {
        let Some(batch) = batch? else { continue };
        let output = goal.output(model, &batch)?;
        let Some((predictions, _)) = output.predictions else { continue };
        let count = predictions.shape()[0];
        match goal {
            Goal::Classes { .. } => {
                let probabilities = F::softmax(&predictions, 1)?.to_host::<f32>()?;
                let labels = batch.1.to_host::<i64>()?;
                for (at, (row, label)) in probabilities.chunks_exact(classes.max(1)).zip(labels).enumerate() {
                    let ((guess, probability), label) = (best(row), label as usize);
                    found.confusion[label][guess] += 1;
                    if guess == label {
                        right += 1;
                    } else {
                        found.mistakes.push(Mistake { index: found.samples + at, label, guess, probability });
                    }
                }
            }
            Goal::Tokens => {
                let guesses = F::argmax(&predictions, Some(1), false)?.to_host()?;
                right += guesses.iter().zip(batch.1.to_host::<i64>()?).filter(|(guess, token)| *guess == token).count();
            }
            Goal::Values => {
                let Task::Table(table) = task else { continue };
                let (predicted, wanted) = (predictions.to_host::<f32>()?, batch.1.to_host::<f32>()?);
                let scales = table.target_scales.iter().cycle();
                for ((predicted, wanted), [_, deviation]) in predicted.into_iter().zip(wanted).zip(scales) {
                    let error = f64::from(predicted - wanted) * f64::from(*deviation);
                    absolute += error.abs();
                    squared += error * error;
                    numbers += 1;
                }
            }
        }
        found.loss += output.loss.item()? * count as f64;
        found.samples += count;
    }
    let samples = found.samples.max(1) as f64;
    found.loss /= samples;
    let mut put = |name: &str, value: f64| found.values.insert(name.to_owned(), value);
    match (goal, data) {
        (Goal::Values, _) => {
            let numbers = f64::from(numbers).max(1.0);
            put("mae", absolute / numbers);
            put("rmse", (squared / numbers).sqrt());
        }
        (Goal::Tokens, Data::Text(text)) => {
            put("accuracy", right as f64 / samples);
            put("perplexity", found.loss.exp());
            let nats = found.loss * text.test.len() as f64 / text.test_characters.max(1) as f64;
            put("nats_per_character", nats);
            put("bits_per_character", nats / std::f64::consts::LN_2);
        }
        _ => {
            put("accuracy", right as f64 / samples);
        }
    }
    Ok(found)
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
            confusion: vec![vec![8, 1, 1], vec![0, 5, 0], vec![0, 5, 5]],
            mistakes: vec![mistake; 7],
            ..Evaluation::default()
        };
        assert_eq!(evaluation.worst(9), [(2, 0.5, 1), (0, 0.8, 1)]);
        assert_eq!(evaluation.worst(1).len(), 1);
        assert_eq!(best(&[0.2, 0.4, 0.4]), (1, 0.4));
    }
}
