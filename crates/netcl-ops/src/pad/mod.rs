//! Padding of the last axes: with a constant, by reflection, by repeating the edge or by going round; negative constant padding
//! crops.
//!
//! Axes are padded in groups of three, which is the same as all at once. On devices the backward pass gathers: an input
//! element collects from the places it was copied to, in a fixed order and without atomics.

mod cpu;

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::Stream;
use netcl_core::kernels::launch::Cost;
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use crate::dense::{Args, ClCode, Job, Number, check_shape};

/// What stands in the padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// A value.
    Constant(f64),
    /// The input mirrored at its first and last element, which are not repeated.
    Reflect,
    /// The first or last element.
    Replicate,
    /// What stands at the other end of the axis, as if it were a circle.
    Circular,
}

/// The axes that one launch pads.
const GROUP: usize = 3;

/// One axis.
#[derive(Clone, Copy, Debug)]
struct Axis {
    input: usize,
    output: usize,
    /// Negative where elements are cut off.
    before: isize,
}

impl Axis {
    /// The element that stands at place `o` of the result, if any.
    fn source(&self, o: usize, mode: PadMode) -> Option<usize> {
        let (at, n) = (o as isize - self.before, self.input as isize);
        let at = match mode {
            PadMode::Constant(_) if at < 0 || at >= n => return None,
            PadMode::Constant(_) => at,
            PadMode::Reflect if at < 0 => -at,
            PadMode::Reflect if at >= n => 2 * (n - 1) - at,
            PadMode::Reflect => at,
            PadMode::Replicate => at.clamp(0, n - 1),
            PadMode::Circular => at.rem_euclid(n),
        };
        Some(at as usize)
    }
}

/// A tensor seen as outer x three padded axes x inner.
#[derive(Clone, Copy, Debug)]
struct Plan {
    outer: usize,
    axes: [Axis; GROUP],
    inner: usize,
    mode: PadMode,
}

/// One group of axes: its plan and the shapes before and after it.
struct Step {
    plan: Plan,
    from: Shape,
    to: Shape,
}

/// Checks the padding and cuts it into groups, the last axes first.
fn steps(op: &'static str, shape: &Shape, pads: &[(isize, isize)], mode: PadMode) -> Result<Vec<Step>> {
    if pads.len() > shape.ndim() {
        let why = format!("{} pairs of padding were given; use at most one for each axis", pads.len());
        return Err(Error::Shape { op, shape: shape.clone(), why });
    }
    let first = shape.ndim() - pads.len();
    let mut axes = Vec::with_capacity(pads.len());
    for (&n, &(before, after)) in shape[first..].iter().zip(pads) {
        let fail = |why: String| Err(Error::Shape { op, shape: shape.clone(), why });
        // Kernels compute places with 32-bit numbers wherever tensors are that small.
        if before.unsigned_abs().max(after.unsigned_abs()) > 1 << 30 {
            return fail(format!("padding by ({before}, {after}) is more than 2^30"));
        }
        let Ok(output) = usize::try_from(before + after + n as isize) else {
            return fail(format!("padding an axis of length {n} by ({before}, {after}) cuts off more than there is"));
        };
        let most = match mode {
            PadMode::Constant(_) => isize::MAX,
            // A mirror image reaches to the other end of the axis.
            PadMode::Reflect => n as isize - 1,
            // Once round, as in PyTorch: the kernels of gradients look for one image on either side.
            PadMode::Circular => n as isize,
            PadMode::Replicate if n == 0 => 0,
            PadMode::Replicate => isize::MAX,
        };
        let least = if matches!(mode, PadMode::Constant(_)) { isize::MIN } else { 0 };
        for by in [before, after] {
            if by != 0 && !(least..=most).contains(&by) {
                return fail(match mode {
                    _ if by < 0 => format!("({before}, {after}): only constant padding may be negative"),
                    PadMode::Reflect => format!("an axis of length {n} can be reflected by at most {most}, not {by}"),
                    PadMode::Circular => format!("an axis of length {n} can go round by at most {most}, not {by}"),
                    _ => format!("an axis of length {n} has no edge to repeat"),
                });
            }
        }
        axes.push(Axis { input: n, output, before });
    }
    let mut from = shape.clone();
    let mut list = Vec::new();
    let mut end = shape.ndim();
    for group in axes.rchunks(GROUP) {
        let start = end - group.len();
        let mut to = from.to_vec();
        let mut three = [Axis { input: 1, output: 1, before: 0 }; GROUP];
        for (slot, (axis, length)) in three[GROUP - group.len()..].iter_mut().zip(group.iter().zip(&mut to[start..end]))
        {
            (*slot, *length) = (*axis, axis.output);
        }
        let plan =
            Plan { outer: from[..start].iter().product(), axes: three, inner: from[end..].iter().product(), mode };
        let to = Shape::from(to);
        list.push(Step { plan, from: from.clone(), to: to.clone() });
        (from, end) = (to, start);
    }
    Ok(list)
}

/// Pads the last axes: one pair (before, after) for each, in the order of the axes.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::pad::{PadMode, pad};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0, 3.0], [3])?;
/// assert_eq!(pad(&x, &[(2, 1)], PadMode::Constant(0.0))?.to_host::<f32>()?, [0.0, 0.0, 1.0, 2.0, 3.0, 0.0]);
/// assert_eq!(pad(&x, &[(2, 1)], PadMode::Reflect)?.to_host::<f32>()?, [3.0, 2.0, 1.0, 2.0, 3.0, 2.0]);
/// assert_eq!(pad(&x, &[(2, 1)], PadMode::Replicate)?.to_host::<f32>()?, [1.0, 1.0, 1.0, 2.0, 3.0, 3.0]);
/// assert_eq!(pad(&x, &[(2, 1)], PadMode::Circular)?.to_host::<f32>()?, [2.0, 3.0, 1.0, 2.0, 3.0, 1.0]);
/// assert_eq!(pad(&x, &[(-1, 1)], PadMode::Constant(9.0))?.to_host::<f32>()?, [2.0, 3.0, 9.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn pad(x: &Tensor, pads: &[(isize, isize)], mode: PadMode) -> Result<Tensor> {
    let op = "pad";
    x.check_float(op)?;
    let mut now = x.contiguous()?;
    for step in steps(op, x.shape(), pads, mode)? {
        let to = Tensor::uninit(x.queue(), step.to, x.dtype())?;
        if now.size() == 0 {
            // There is nothing to copy, and only a constant can pad it.
            if let PadMode::Constant(value) = mode {
                to.fill(value)?;
            }
        } else {
            run(op, &now, &to, step.plan, false)?;
        }
        now = to;
    }
    Ok(now)
}

/// The gradient of the input of [`pad`], whose shape is `shape`.
pub fn pad_backward(grad: &Tensor, shape: &Shape, pads: &[(isize, isize)], mode: PadMode) -> Result<Tensor> {
    let op = "pad_backward";
    grad.check_float(op)?;
    let steps = steps(op, shape, pads, mode)?;
    check_shape(op, "the output's gradient", grad, steps.last().map_or(shape, |step| &step.to))?;
    let mut now = grad.contiguous()?;
    for step in steps.into_iter().rev() {
        let to = Tensor::uninit(grad.queue(), step.from, grad.dtype())?;
        if now.size() == 0 {
            // Everything was cut off.
            to.fill(0.0)?;
        } else {
            run(op, &now, &to, step.plan, true)?;
        }
        now = to;
    }
    Ok(now)
}

fn run(op: &'static str, from: &Tensor, to: &Tensor, plan: Plan, backward: bool) -> Result<()> {
    if to.size() == 0 {
        return Ok(());
    }
    let cost = Cost { flops: 0.0, bytes: ((from.size() + to.size()) * from.dtype().size()) as f64 };
    let args = Args::default().read(from).write(to);
    let job = Job { name: op, queue: from.queue().clone(), dtype: from.dtype(), cost, args };
    match from.queue() {
        Queue::Cpu(_) if backward => cpu::backward(job, plan),
        Queue::Cpu(_) => cpu::forward(job, plan),
        Queue::OpenCl(stream) => on_device(stream, job, plan, to.size(), backward),
    }
}

fn on_device(stream: &Stream, job: Job, plan: Plan, items: usize, backward: bool) -> Result<()> {
    let mut scalars = vec![Number::Count(items)];
    for axis in plan.axes {
        scalars.extend([axis.input as isize, axis.output as isize, axis.before].map(Number::Signed));
    }
    scalars.push(Number::Count(plan.inner));
    let (mode, value) = match plan.mode {
        PadMode::Constant(value) => (0, value),
        PadMode::Reflect => (1, 0.0),
        PadMode::Replicate => (2, 0.0),
        PadMode::Circular => (3, 0.0),
    };
    scalars.push(Number::Flag(mode));
    let kernel = if backward {
        "pad_backward"
    } else {
        scalars.push(Number::Real(value));
        "pad"
    };
    let text = include_str!("pad.cl");
    let code = ClCode { file: "pad.cl", text, kernel, scalars: &scalars, items, group: None, local: 0, wide: None };
    job.run_cl(stream, &code)
}
