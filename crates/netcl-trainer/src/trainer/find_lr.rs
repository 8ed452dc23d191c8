//! Which learning rate to begin with: the loss of a few updates with rates that rise, after which everything is as before.

use netcl_io::Checkpoint;
use serde_json::Map;

use super::fit::Stepper;
use super::loader::Loader;
use crate::error::{Error, Result};

/// What [`find_lr`] found.
#[derive(Clone, Debug, PartialEq)]
pub struct LrCurve {
    /// Learning rate and smoothed loss of each update.
    pub points: Vec<(f64, f64)>,
    /// Where the loss falls the fastest; a good first choice.
    pub suggestion: f64,
}

/// Runs updates with learning rates from `start` to `end`, spaced evenly by their logarithm, until all are done or the loss is four
/// times its least value. Model, optimizer and random numbers are then put back.
///
/// # Errors
/// For rates out of order, fewer than 5 updates, a loader without batches, and errors of the model.
pub fn find_lr<S: Stepper>(
    stepper: &mut S,
    loader: &mut dyn Loader<Batch = S::Batch>,
    start: f64,
    end: f64,
    updates: usize,
) -> Result<LrCurve> {
    if !(start > 0.0 && end > start && end.is_finite()) {
        return Err(Error::setting(format!("find_lr: rates rise from {start} to {end}; use 0 < start < end")));
    }
    if updates < 5 {
        return Err(Error::setting(format!("find_lr: {updates} updates show nothing; use 5 or more, such as 100")));
    }
    let (before, scaler) = stepper.held(|held| {
        let mut checkpoint = Checkpoint::new(held.model, Map::new())?;
        checkpoint.put("optimizer", held.optimizer.state())?;
        let scaler = held.scaler.map(|scaler| scaler.state()).transpose()?;
        Ok((checkpoint, scaler))
    })?;
    let training = stepper.is_training()?;
    stepper.set_training(true)?;
    let found = rise(stepper, loader, start, end, updates);
    stepper.held(|held| {
        held.optimizer.load_state(&before.state("optimizer")?)?;
        if let (Some(now), Some(then)) = (held.scaler, scaler) {
            now.load_state(&then)?;
        }
        Ok(before.restore(held.model)?)
    })?;
    stepper.session(|session| {
        session.losses.clear();
        session.training_values().or(Ok(Default::default())).map(drop)
    })?;
    stepper.recapture();
    stepper.set_training(training)?;
    let points = found?;
    let suggestion = steepest(&points);
    Ok(LrCurve { points, suggestion })
}

fn rise<S: Stepper>(
    stepper: &mut S,
    loader: &mut dyn Loader<Batch = S::Batch>,
    start: f64,
    end: f64,
    updates: usize,
) -> Result<Vec<(f64, f64)>> {
    let mut points: Vec<(f64, f64)> = Vec::with_capacity(updates);
    let (mut mean, mut least, mut epoch) = (0.0, f64::INFINITY, 1);
    loader.begin(epoch, 0)?;
    for i in 0..updates {
        let batch = match loader.next_batch()? {
            Some(batch) => batch,
            None => {
                epoch += 1;
                loader.begin(epoch, 0)?;
                let none = || Error::setting("find_lr: the loader has no batches");
                loader.next_batch()?.ok_or_else(none)?
            }
        };
        let lr = start * (end / start).powf(i as f64 / (updates - 1) as f64);
        stepper.held(|held| {
            held.optimizer.set_learning_rate(lr);
            Ok(())
        })?;
        let (samples, kind) = (stepper.samples(&batch)?, stepper.kind(std::slice::from_ref(&batch))?);
        let capture = stepper.session(|session| {
            Ok(session.group.is_none() && kind.is_some_and(|kind| session.captures(&[kind >> 11])))
        })?;
        stepper.update(&[batch], &[samples], capture)?;
        let loss = stepper.session(|session| session.losses.take())?.first().copied().unwrap_or(f64::NAN);
        if !loss.is_finite() {
            break;
        }
        // A mean that forgets, and that does not begin at 0.
        mean = 0.9 * mean + 0.1 * loss;
        let smooth = mean / (1.0 - 0.9f64.powi(i as i32 + 1));
        least = least.min(smooth);
        points.push((lr, smooth));
        if i > 5 && smooth > 4.0 * least {
            break;
        }
    }
    Ok(points)
}

/// The rate at which the loss falls the fastest over its logarithm, before its least value.
fn steepest(points: &[(f64, f64)]) -> f64 {
    let least = points.iter().enumerate().min_by(|a, b| a.1.1.total_cmp(&b.1.1)).map_or(0, |(at, _)| at);
    let slope = |i: usize| points[i + 1].1 - points[i - 1].1;
    (1..least.min(points.len().saturating_sub(1)))
        .min_by(|&a, &b| slope(a).total_cmp(&slope(b)))
        .map_or_else(|| points.first().map_or(0.0, |point| point.0), |i| points[i].0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suggestion_is_where_the_loss_falls_fastest() {
        let points = [(1e-4, 2.0), (1e-3, 1.9), (1e-2, 1.2), (1e-1, 0.9), (1.0, 3.0)];
        assert_eq!(steepest(&points), 1e-2);
        assert_eq!(steepest(&[(0.1, 1.0)]), 0.1);
        assert_eq!(steepest(&[]), 0.0);
    }
}
