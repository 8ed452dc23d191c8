//! A line search by the strong Wolfe conditions, as PyTorch does it.

use netcl_autograd::{Result, Tensor};

use super::{dot, largest};

/// The share of the slope by which the loss must fall, and the share that the slope itself may keep.
const FALL: f64 = 1e-4;
const CURVATURE: f64 = 0.9;
/// A bracket is not made smaller than this.
const SMALLEST: f64 = 1e-9;

/// Loss and gradient somewhere.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) loss: f64,
    pub(super) gradient: Tensor,
}

/// Where a search has ended.
pub(super) struct Found {
    pub(super) t: f64,
    pub(super) point: Point,
    pub(super) evaluations: u64,
}

/// A place on the line.
#[derive(Clone)]
struct Trial {
    t: f64,
    slope: f64,
    point: Point,
}

/// A step length from `t` on along `d`, from a start with its slope; `at` evaluates a length.
pub(super) fn strong_wolfe(
    at: &mut dyn FnMut(f64) -> Result<Point>,
    t: f64,
    d: &Tensor,
    start: Point,
    slope: f64,
    most: u64,
) -> Result<Found> {
    let size = largest(d)?;
    let mut evaluations = 0;
    let mut evaluate = |t: f64| -> Result<Trial> {
        evaluations += 1;
        let point = at(t)?;
        Ok(Trial { t, slope: dot(&point.gradient, d)?, point })
    };
    let start = Trial { t: 0.0, slope, point: start };
    let is_low = |trial: &Trial| trial.point.loss <= start.point.loss + FALL * trial.t * slope;
    let is_flat = |trial: &Trial| trial.slope.abs() <= -CURVATURE * slope;
    let (mut before, mut now) = (start.clone(), evaluate(t)?);
    let mut iterations = 0;
    // Further out until two places hold one that fits between them.
    let mut bracket = loop {
        if iterations == most {
            break [start.clone(), now];
        }
        if !is_low(&now) || (iterations > 1 && now.point.loss >= before.point.loss) {
            break [before, now];
        }
        if is_flat(&now) {
            return Ok(Found { t: now.t, point: now.point, evaluations });
        }
        if now.slope >= 0.0 {
            break [before, now];
        }
        let bounds = (now.t + 0.01 * (now.t - before.t), now.t * 10.0);
        let next = evaluate(cubic(&before, &now, bounds))?;
        before = std::mem::replace(&mut now, next);
        iterations += 1;
    };
    let mut low = usize::from(bracket[0].point.loss > bracket[1].point.loss);
    let mut is_stuck = false;
    while iterations < most && (bracket[1].t - bracket[0].t).abs() * size >= SMALLEST {
        let (least, most_t) = (bracket[0].t.min(bracket[1].t), bracket[0].t.max(bracket[1].t));
        let mut t = cubic(&bracket[0], &bracket[1], (least, most_t));
        // A trial at the edge makes little progress: the second in a row moves a tenth inwards.
        let edge = 0.1 * (most_t - least);
        if (most_t - t).min(t - least) < edge {
            if is_stuck || t >= most_t || t <= least {
                t = if (t - most_t).abs() < (t - least).abs() { most_t - edge } else { least + edge };
                is_stuck = false;
            } else {
                is_stuck = true;
            }
        } else {
            is_stuck = false;
        }
        let trial = evaluate(t)?;
        iterations += 1;
        if !is_low(&trial) || trial.point.loss >= bracket[low].point.loss {
            bracket[1 - low] = trial;
            low = usize::from(bracket[0].point.loss > bracket[1].point.loss);
            continue;
        }
        let is_done = is_flat(&trial);
        if !is_done && trial.slope * (bracket[1 - low].t - bracket[low].t) >= 0.0 {
            bracket[1 - low] = bracket[low].clone();
        }
        bracket[low] = trial;
        if is_done {
            break;
        }
    }
    let [first, second] = bracket;
    let Trial { t, point, .. } = if low == 0 { first } else { second };
    Ok(Found { t, point, evaluations })
}

/// The lowest place of the cubic through two trials, within bounds; their middle where there is none.
fn cubic(a: &Trial, b: &Trial, (least, most): (f64, f64)) -> f64 {
    let d1 = a.slope + b.slope - 3.0 * (a.point.loss - b.point.loss) / (a.t - b.t);
    let square = d1 * d1 - a.slope * b.slope;
    if square.is_nan() || square < 0.0 {
        return (least + most) / 2.0;
    }
    let (a, b) = if a.t <= b.t { (a, b) } else { (b, a) };
    let d2 = square.sqrt();
    let lowest = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2.0 * d2));
    lowest.max(least).min(most)
}
