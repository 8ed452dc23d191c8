//! Resampling of the last two axes: nearest, bilinear and (in `cubic.rs`, from gathers) bicubic, each with its backward pass.
//!
//! Positions are computed in the type of the computation (float32 for 16-bit types) with PyTorch's formulas, by single
//! rounded operations, so that the CPU and every device choose the same elements. The nearest element is chosen by a position
//! rounded to float32, as in PyTorch, also of float64 tensors: a factor next to a whole number repeats elements evenly. On devices the backward pass gathers: an
//! input element collects from the results it went into, in a fixed order and without atomics.

mod cpu;
mod cubic;

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::Stream;
use netcl_core::kernels::launch::Cost;
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use crate::dense::{Args, ClCode, Job, Number, check_shape};
pub use cubic::{upsample_bicubic, upsample_bicubic_backward};

/// The height and width that a resampling gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resize {
    /// These lengths.
    Size([usize; 2]),
    /// So many times the input's, rounded down. Positions follow the factor itself, not the rounded lengths.
    Scale([f64; 2]),
}

impl From<[usize; 2]> for Resize {
    fn from(size: [usize; 2]) -> Self {
        Resize::Size(size)
    }
}

impl From<f64> for Resize {
    fn from(factor: f64) -> Self {
        Resize::Scale([factor, factor])
    }
}

/// Where results look for their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// At one element.
    Nearest = 0,
    /// Between two, by the centres of elements.
    Centres = 1,
    /// Between two, the first and last of which are those of the input.
    Corners = 2,
}

/// One axis: result `o` stands at `o * scale`, or at `(o + 1/2) * scale - 1/2`.
#[derive(Clone, Copy, Debug)]
struct Axis {
    input: usize,
    output: usize,
    scale: f64,
}

/// Both axes, and the number of planes.
#[derive(Clone, Copy, Debug)]
struct Plan {
    planes: usize,
    axes: [Axis; 2],
    mode: Mode,
}

impl Plan {
    fn new(op: &'static str, shape: &Shape, to: Resize, mode: Mode) -> Result<Plan> {
        let &[ref outer @ .., height, width] = &shape[..] else {
            let why = "it needs at least two axes, the last of which are height and width".to_owned();
            return Err(Error::Shape { op, shape: shape.clone(), why });
        };
        let axis = |a: usize, input: usize| {
            let output = match to {
                Resize::Size(size) => size[a],
                Resize::Scale(by) if by[a].is_finite() && by[a] > 0.0 => (input as f64 * by[a]).floor() as usize,
                Resize::Scale(by) => {
                    return Err(Error::argument(op, format!("a factor of {} cannot be used; use one above 0", by[a])));
                }
            };
            // Positions are 32-bit numbers.
            if input == 0 || output == 0 || input.max(output) > 1 << 30 {
                let why = format!("an axis of length {input} cannot be resampled to {output}");
                return Err(Error::Shape { op, shape: shape.clone(), why });
            }
            let scale = match (mode, to) {
                (Mode::Corners, _) if output > 1 => (input - 1) as f64 / (output - 1) as f64,
                (Mode::Corners, _) => 0.0,
                (_, Resize::Scale(by)) => by[a].recip(),
                (_, Resize::Size(_)) => input as f64 / output as f64,
            };
            Ok(Axis { input, output, scale })
        };
        Ok(Plan { planes: outer.iter().product(), axes: [axis(0, height)?, axis(1, width)?], mode })
    }

    /// The shape of the results.
    fn outputs(&self, shape: &Shape) -> Shape {
        let outer = shape.ndim() - 2;
        shape[..outer].iter().copied().chain(self.axes.map(|axis| axis.output)).collect()
    }
}

/// The height and width that a tensor of this shape is resampled to.
pub fn resized(op: &'static str, shape: &Shape, to: Resize) -> Result<[usize; 2]> {
    Ok(Plan::new(op, shape, to, Mode::Centres)?.axes.map(|axis| axis.output))
}

/// Each result is the nearest element of the input: every element repeated, or some left out.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::resample::upsample_nearest;
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0], [1, 1, 2])?;
/// assert_eq!(upsample_nearest(&x, 2.0)?.to_host::<f32>()?, [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]);
/// assert_eq!(upsample_nearest(&x, [1, 3])?.to_host::<f32>()?, [1.0, 1.0, 2.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn upsample_nearest(x: &Tensor, to: impl Into<Resize>) -> Result<Tensor> {
    forward("upsample_nearest", x, to.into(), Mode::Nearest)
}

/// The gradient of the input of [`upsample_nearest`], whose shape is `shape`.
pub fn upsample_nearest_backward(grad: &Tensor, shape: &Shape, to: impl Into<Resize>) -> Result<Tensor> {
    backward("upsample_nearest_backward", grad, shape, to.into(), Mode::Nearest)
}

/// Each result lies between four elements of the input.
///
/// With `align_corners` the first and last elements keep their values and the others are spread evenly; without, elements
/// are squares whose centres are compared.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::resample::upsample_bilinear;
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[0.0f32, 4.0], [1, 1, 2])?;
/// assert_eq!(upsample_bilinear(&x, [1, 4], false)?.to_host::<f32>()?, [0.0, 1.0, 3.0, 4.0]);
/// assert_eq!(upsample_bilinear(&x, [1, 5], true)?.to_host::<f32>()?, [0.0, 1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn upsample_bilinear(x: &Tensor, to: impl Into<Resize>, align_corners: bool) -> Result<Tensor> {
    forward("upsample_bilinear", x, to.into(), bilinear(align_corners))
}

/// The gradient of the input of [`upsample_bilinear`], whose shape is `shape`.
pub fn upsample_bilinear_backward(
    grad: &Tensor,
    shape: &Shape,
    to: impl Into<Resize>,
    align_corners: bool,
) -> Result<Tensor> {
    backward("upsample_bilinear_backward", grad, shape, to.into(), bilinear(align_corners))
}

fn bilinear(align_corners: bool) -> Mode {
    if align_corners { Mode::Corners } else { Mode::Centres }
}

fn forward(op: &'static str, x: &Tensor, to: Resize, mode: Mode) -> Result<Tensor> {
    x.check_float(op)?;
    let plan = Plan::new(op, x.shape(), to, mode)?;
    let x = x.contiguous()?;
    let output = Tensor::uninit(x.queue(), plan.outputs(x.shape()), x.dtype())?;
    run(op, &x, output, "resample", |job| cpu::forward(job, plan), plan)
}

fn backward(op: &'static str, grad: &Tensor, shape: &Shape, to: Resize, mode: Mode) -> Result<Tensor> {
    grad.check_float(op)?;
    let plan = Plan::new(op, shape, to, mode)?;
    check_shape(op, "the output's gradient", grad, &plan.outputs(shape))?;
    let grad = grad.contiguous()?;
    let input = Tensor::uninit(grad.queue(), shape.clone(), grad.dtype())?;
    run(op, &grad, input, "resample_backward", |job| cpu::backward(job, plan), plan)
}

/// Launches the work that reads one tensor and writes the other.
fn run(
    op: &'static str,
    from: &Tensor,
    to: Tensor,
    kernel: &'static str,
    native: impl FnOnce(Job) -> Result<()>,
    plan: Plan,
) -> Result<Tensor> {
    if to.size() == 0 {
        return Ok(to);
    }
    let per_result = if plan.mode == Mode::Nearest { 0.0 } else { 6.0 };
    let bytes = (from.size() + to.size()) * from.dtype().size();
    let cost = Cost { flops: per_result * from.size().max(to.size()) as f64, bytes: bytes as f64 };
    let args = Args::default().read(from).write(&to);
    let job = Job { name: op, queue: from.queue().clone(), dtype: from.dtype(), cost, args };
    match from.queue() {
        Queue::Cpu(_) => native(job)?,
        Queue::OpenCl(stream) => on_device(stream, job, kernel, plan, to.size())?,
    }
    Ok(to)
}

fn on_device(stream: &Stream, job: Job, kernel: &'static str, plan: Plan, items: usize) -> Result<()> {
    let mut scalars = vec![Number::Count(items)];
    for axis in plan.axes {
        scalars.extend([axis.input, axis.output].map(|n| Number::Signed(n as isize)));
        scalars.push(Number::Real(axis.scale));
    }
    scalars.push(Number::Flag(plan.mode as usize));
    let text = include_str!("resample.cl");
    let code =
        ClCode { file: "resample.cl", text, kernel, scalars: &scalars, items, group: None, local: 0, wide: None };
    job.run_cl(stream, &code)
}
