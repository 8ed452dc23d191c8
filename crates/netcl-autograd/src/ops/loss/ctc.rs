//! Connectionist temporal classification: labels without their places in time.

use netcl_core::dtype::DType;
use netcl_core::host;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch;
use netcl_core::shape::Shape;
use netcl_core::tensor::{HostOptions, Tensor as Raw};
use smallvec::smallvec;

use super::Reduction;
use crate::autocast;
use crate::error::{Error, Result};
use crate::graph::{Save, grad_enabled, record, record_without_gradient};
use crate::ops::elementwise::{div, mul};
use crate::ops::layout::reshape;
use crate::tensor::Tensor;

/// Which class of [`ctc_loss`] means that there is no label, and what becomes of the losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtcOptions {
    /// The class that stands for no label.
    pub blank: usize,
    /// What becomes of the samples' losses. [`Reduction::Mean`] divides each by the length of its target first.
    pub reduction: Reduction,
    /// Counts a target that does not fit into its input as 0, without a gradient, instead of as infinity.
    pub zero_infinity: bool,
}

const OP: &str = "ctc_loss";

/// The negative log-likelihood of sequences of labels under log-probabilities of shape `(T, N, C)`, over all ways to spread each
/// over its input with blanks in between and labels repeated. One sample may have the shape `(T, C)`; its loss has the shape `()`.
///
/// Targets are padded, of shape `(N, S)`, or stand one after the other, of shape `(sum of target_lengths,)`. They may be on any
/// device: the loss is computed on the host, in float64. The gradient is that of log-probabilities that are free of each other;
/// PyTorch's presumes a [`log_softmax`](crate::ops::softmax::log_softmax) before them, after which both are the same. It cannot be
/// differentiated again.
///
/// ```
/// use netcl_autograd::{IndexTensor, Tensor, manager, ops::loss::{CtcOptions, ctc_loss}};
///
/// let queue = manager().cpu().queue;
/// // Two steps, one sample, blank and one label, all equally likely: "1-", "-1" and "11" of four sequences spell "1".
/// let log_probs = Tensor::full(&queue, [2, 1, 2], netcl_autograd::DType::F32, 0.5f64.ln())?.with_grad();
/// let targets = IndexTensor::from_host(&queue, &[1i64], [1, 1])?;
/// let loss = ctc_loss(&log_probs, &targets, &[2], &[1], &CtcOptions::default())?;
/// assert!((loss.item()? + 0.75f64.ln()).abs() < 1e-6);
/// loss.backward()?;
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
///
/// # Errors
/// Shapes, lengths and labels that do not fit, with the sample's number; and while launches are recorded, when nothing can be read.
#[track_caller]
pub fn ctc_loss(
    log_probs: &Tensor,
    targets: &IndexTensor,
    input_lengths: &[usize],
    target_lengths: &[usize],
    options: &CtcOptions,
) -> Result<Tensor> {
    if let Some(casts) = autocast::enter(OP, [log_probs]) {
        return ctc_loss(&casts.of(log_probs)?, targets, input_lengths, target_lengths, options);
    }
    log_probs.check_float(OP)?;
    let (steps, samples, classes) = match log_probs.shape()[..] {
        [steps, samples, classes] => (steps, samples, classes),
        [steps, classes] => {
            let batch = reshape(log_probs, [steps, 1, classes])?;
            let loss = ctc_loss(&batch, targets, input_lengths, target_lengths, options)?;
            return reshape(&loss, Shape::from([]));
        }
        _ => {
            return Err(Error::shape(
                OP,
                log_probs.shape(),
                "log-probabilities are (T, N, C), or (T, C) of one sample",
            ));
        }
    };
    let CtcOptions { blank, reduction, zero_infinity } = *options;
    if blank >= classes {
        return Err(Error::argument(OP, format!("blank is {blank}, and there are the classes 0..{classes}")));
    }
    check_lengths("input_lengths", input_lengths, samples, steps, "steps of the log-probabilities")?;
    launch::check_readable(OP)?;
    let targets = Targets::read(targets, target_lengths, samples, classes, blank)?;

    let values = log_probs.raw().to_f64_vec()?;
    let wanted = grad_enabled() && log_probs.needs_grad();
    let mut slopes = host::collect(OP, (0..if wanted { values.len() } else { 0 }).map(|_| 0.0))?;
    let mut losses = host::collect(OP, (0..samples).map(|_| 0.0))?;
    for (sample, loss) in losses.iter_mut().enumerate() {
        let place = |step: usize, class: usize| (step * samples + sample) * classes + class;
        let paths = Paths { labels: targets.of(sample), blank, steps: input_lengths[sample] };
        let emitted = |step: usize, class: usize| values[place(step, class)];
        *loss = match wanted {
            false => -paths.likelihood(emitted, |_| ())?,
            true => -paths.posteriors(emitted, |step, class, p| slopes[place(step, class)] -= p)?,
        };
        if *loss == f64::INFINITY && wanted {
            let slope = if zero_infinity { 0.0 } else { f64::NAN };
            for step in 0..paths.steps {
                slopes[place(step, 0)..][..classes].fill(slope);
            }
        }
        if *loss == f64::INFINITY && zero_infinity {
            *loss = 0.0;
        }
    }

    let upload = |values: &[f64], shape: Shape, dtype: DType| {
        let options = HostOptions { dtype: Some(dtype), ..HostOptions::default() };
        Raw::from_host_with(log_probs.queue(), values, shape, options)
    };
    let dtype = log_probs.dtype();
    let slopes = if wanted { Some(upload(&slopes, log_probs.shape().clone(), dtype)?) } else { None };
    let losses = upload(&losses, Shape::from([samples]), dtype)?;
    let losses = record(OP, &[log_probs], losses, Save { inputs: 1, output: false }, || {
        Box::new(move |context, up| {
            let Some(slopes) = &slopes else { return Ok(smallvec![None]) };
            let slopes = record_without_gradient("ctc_loss_backward", &[&context.input(0)?], slopes.clone())?;
            Ok(smallvec![Some(mul(&reshape(up, [1, samples, 1])?, &slopes)?)])
        })
    })?;
    match reduction {
        Reduction::Mean => {
            let lengths = host::collect(OP, target_lengths.iter().map(|&length| length.max(1) as f64))?;
            let lengths = upload(&lengths, Shape::from([samples]), dtype)?;
            reduction.apply(div(&losses, &Tensor::from(lengths))?)
        }
        _ => reduction.apply(losses),
    }
}

fn check_lengths(name: &str, lengths: &[usize], samples: usize, most: usize, of: &str) -> Result<()> {
    if lengths.len() != samples {
        let what = format!("{name} has {} lengths, and there are {samples} samples", lengths.len());
        return Err(Error::argument(OP, what));
    }
    match lengths.iter().position(|&length| length > most) {
        None => Ok(()),
        Some(at) => {
            Err(Error::argument(OP, format!("{name} of sample {at} is {}, more than the {most} {of}", lengths[at])))
        }
    }
}

/// The labels of all samples.
struct Targets {
    labels: Vec<usize>,
    /// Where the labels of each sample begin, and how many they are.
    ranges: Vec<(usize, usize)>,
}

impl Targets {
    fn read(targets: &IndexTensor, lengths: &[usize], samples: usize, classes: usize, blank: usize) -> Result<Targets> {
        let (shape, all) = (targets.tensor().shape(), targets.tensor().size());
        let padded = match shape[..] {
            [rows, columns] if rows == samples => Some(columns),
            [_] => None,
            _ => {
                let why = format!("targets are padded, of shape ({samples}, S), or one after the other, of one axis");
                return Err(Error::shape(OP, shape, why));
            }
        };
        check_lengths("target_lengths", lengths, samples, padded.unwrap_or(all), "labels of the targets")?;
        let total = lengths.iter().fold(0, |sum: usize, &length| sum.saturating_add(length));
        if padded.is_none() && total != all {
            let why = format!("targets one after the other are as many as target_lengths say, {total}");
            return Err(Error::shape(OP, shape, why));
        }
        let mut next = 0;
        let ranges = host::collect(
            OP,
            lengths.iter().enumerate().map(|(sample, &length)| {
                let start = padded.map_or(next, |columns| sample * columns);
                next += length;
                (start, length)
            }),
        )?;
        let read = targets.to_host()?;
        for (sample, &(start, length)) in ranges.iter().enumerate() {
            let wrong = |&label: &i64| label < 0 || label as u64 >= classes as u64 || label as u64 == blank as u64;
            if let Some(label) = read[start..start + length].iter().find(|label| wrong(label)) {
                let what =
                    format!("label {label} of sample {sample} is none of 0..{classes} without the blank, {blank}");
                return Err(Error::argument(OP, what));
            }
        }
        // What is between the labels is never looked at.
        let labels = host::collect(OP, read.into_iter().map(|label| label as usize))?;
        Ok(Targets { labels, ranges })
    }

    fn of(&self, sample: usize) -> &[usize] {
        let (start, length) = self.ranges[sample];
        &self.labels[start..start + length]
    }
}

/// The ways to spread labels over steps. There is a state for each label and for the blank before, between and after them; a step
/// stays in a state, goes to the next one, or from a label to the next where the two differ.
struct Paths<'t> {
    labels: &'t [usize],
    blank: usize,
    steps: usize,
}

const NEVER: f64 = f64::NEG_INFINITY;

impl Paths<'_> {
    fn states(&self) -> usize {
        2 * self.labels.len() + 1
    }

    fn class(&self, state: usize) -> usize {
        if state.is_multiple_of(2) { self.blank } else { self.labels[state / 2] }
    }

    /// Whether the blank before a state may be left out.
    fn skips(&self, state: usize) -> bool {
        state % 2 == 1 && state >= 3 && self.class(state) != self.class(state - 2)
    }

    /// No path is long enough.
    fn is_impossible(&self) -> bool {
        let repeated = self.labels.windows(2).filter(|pair| pair[0] == pair[1]).count();
        self.labels.len() + repeated > self.steps
    }

    /// The logarithm of the likelihood of all paths. `row` sees the logarithms of reaching each state, step by step.
    fn likelihood(&self, emitted: impl Fn(usize, usize) -> f64, mut row: impl FnMut(&[f64])) -> Result<f64> {
        if self.is_impossible() {
            return Ok(NEVER);
        }
        let states = self.states();
        // As if there were a step before the first one that ends before the first state.
        let mut now = host::collect(OP, (0..states).map(|state| if state == 0 { 0.0 } else { NEVER }))?;
        for step in 0..self.steps {
            // From the last state down, so that those before are still the step before.
            for state in (0..states).rev() {
                let mut sum = now[state];
                if state >= 1 {
                    sum = add(sum, now[state - 1]);
                }
                if self.skips(state) {
                    sum = add(sum, now[state - 2]);
                }
                now[state] = sum + emitted(step, self.class(state));
            }
            row(&now);
        }
        Ok(if states == 1 { now[0] } else { add(now[states - 1], now[states - 2]) })
    }

    /// [`Paths::likelihood`], and the probability of each class at each step under the condition of the labels, in parts.
    fn posteriors(
        &self,
        emitted: impl Fn(usize, usize) -> f64,
        mut part: impl FnMut(usize, usize, f64),
    ) -> Result<f64> {
        let states = self.states();
        let cells = if self.is_impossible() { 0 } else { self.steps.saturating_mul(states) };
        let mut reached = host::with_capacity(OP, cells)?;
        let total = self.likelihood(&emitted, |row| reached.extend_from_slice(row))?;
        if total == NEVER {
            return Ok(total);
        }
        // The logarithm of going on from each state to the end.
        let mut after = host::collect(OP, (0..states).map(|state| if state + 2 >= states { 0.0 } else { NEVER }))?;
        for step in (0..self.steps).rev() {
            for state in 0..states {
                part(step, self.class(state), (reached[step * states + state] + after[state] - total).exp());
            }
            for (state, after) in after.iter_mut().enumerate() {
                *after += emitted(step, self.class(state));
            }
            for state in 0..states {
                let mut sum = after[state];
                if state + 1 < states {
                    sum = add(sum, after[state + 1]);
                }
                if state + 2 < states && self.skips(state + 2) {
                    sum = add(sum, after[state + 2]);
                }
                after[state] = sum;
            }
        }
        Ok(total)
    }
}

/// `log(exp(a) + exp(b))`; NaN if one of them is.
fn add(a: f64, b: f64) -> f64 {
    if a == NEVER {
        return b;
    }
    if b == NEVER {
        return a;
    }
    a.max(b) + (-(a - b).abs()).exp().ln_1p()
}
