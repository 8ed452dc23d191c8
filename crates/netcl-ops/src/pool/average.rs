//! Averages of windows.

use netcl_core::backend::Queue;
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::geometry::{Plane, Window};
use super::{as_lines, as_planes, beside, cost, cpu, launch, planes, shape_as_planes, with_plane};
use crate::dense::{Args, Job, Number, as_images, check_shape, uninit_like};

/// What the sum over a window is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Averaging {
    /// Whether zeros of the padding count as elements of a window, as in PyTorch's default.
    pub count_include_pad: bool,
    /// A divisor of its own, instead of the number of elements.
    pub divisor: Option<usize>,
}

impl Default for Averaging {
    fn default() -> Self {
        Averaging { count_include_pad: true, divisor: None }
    }
}

impl Averaging {
    fn check(&self, op: &'static str, window: &Window<2>) -> Result<()> {
        if self.divisor == Some(0) {
            return Err(Error::argument(op, "the divisor is 0; use at least 1, or None for the number of elements"));
        }
        if window.dilation != [1, 1] {
            let what = format!("averages have no dilation, and {:?} was asked for", window.dilation);
            return Err(Error::argument(op, what));
        }
        Ok(())
    }
}

/// The average of each window of the last two axes.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::pool::{Averaging, Window, avg_pool2d};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 5.0, 2.0, 4.0], [1, 2, 2])?;
/// assert_eq!(avg_pool2d(&x, &Window::new([2, 2]), Averaging::default())?.to_host::<f32>()?, [3.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn avg_pool2d(x: &Tensor, window: &Window<2>, averaging: Averaging) -> Result<Tensor> {
    fixed("avg_pool2d", x, window, averaging)
}

/// The gradient of the input of [`avg_pool2d`], whose shape is `shape`.
pub fn avg_pool2d_backward(grad: &Tensor, shape: &Shape, window: &Window<2>, averaging: Averaging) -> Result<Tensor> {
    fixed_backward("avg_pool2d_backward", grad, shape, window, averaging)
}

/// [`avg_pool2d`] over the last axis alone.
pub fn avg_pool1d(x: &Tensor, window: &Window<1>, averaging: Averaging) -> Result<Tensor> {
    as_lines(&fixed("avg_pool1d", &as_planes("avg_pool1d", x)?, &window.flat(), averaging)?)
}

/// The gradient of the input of [`avg_pool1d`], whose shape is `shape`.
pub fn avg_pool1d_backward(grad: &Tensor, shape: &Shape, window: &Window<1>, averaging: Averaging) -> Result<Tensor> {
    let op = "avg_pool1d_backward";
    as_lines(&fixed_backward(op, &as_planes(op, grad)?, &shape_as_planes(op, shape)?, &window.flat(), averaging)?)
}

/// The average of each of `output` windows that cover the last two axes evenly, whatever their lengths.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::pool::adaptive_avg_pool2d;
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 5.0, 2.0, 4.0], [1, 2, 2])?;
/// assert_eq!(adaptive_avg_pool2d(&x, [1, 1])?.to_host::<f32>()?, [3.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn adaptive_avg_pool2d(x: &Tensor, output: [usize; 2]) -> Result<Tensor> {
    adaptive("adaptive_avg_pool2d", x, output)
}

/// The gradient of the input of [`adaptive_avg_pool2d`], whose shape is `shape`.
pub fn adaptive_avg_pool2d_backward(grad: &Tensor, shape: &Shape) -> Result<Tensor> {
    adaptive_backward("adaptive_avg_pool2d_backward", grad, shape)
}

/// [`adaptive_avg_pool2d`] over the last axis alone.
pub fn adaptive_avg_pool1d(x: &Tensor, output: usize) -> Result<Tensor> {
    let op = "adaptive_avg_pool1d";
    as_lines(&adaptive(op, &as_planes(op, x)?, [1, output])?)
}

/// The gradient of the input of [`adaptive_avg_pool1d`], whose shape is `shape`.
pub fn adaptive_avg_pool1d_backward(grad: &Tensor, shape: &Shape) -> Result<Tensor> {
    let op = "adaptive_avg_pool1d_backward";
    as_lines(&adaptive_backward(op, &as_planes(op, grad)?, &shape_as_planes(op, shape)?)?)
}

fn fixed(op: &'static str, x: &Tensor, window: &Window<2>, averaging: Averaging) -> Result<Tensor> {
    averaging.check(op, window)?;
    let plane = Plane::fixed(op, x.shape(), planes(op, x.shape())?.1, window)?;
    forward(op, x, plane, averaging)
}

fn fixed_backward(
    op: &'static str,
    grad: &Tensor,
    shape: &Shape,
    window: &Window<2>,
    averaging: Averaging,
) -> Result<Tensor> {
    averaging.check(op, window)?;
    let plane = Plane::fixed(op, shape, planes(op, shape)?.1, window)?;
    backward(op, grad, shape, plane, averaging)
}

fn adaptive(op: &'static str, x: &Tensor, output: [usize; 2]) -> Result<Tensor> {
    let plane = Plane::adaptive(op, x.shape(), planes(op, x.shape())?.1, output)?;
    forward(op, x, plane, Averaging::default())
}

fn adaptive_backward(op: &'static str, grad: &Tensor, shape: &Shape) -> Result<Tensor> {
    let plane = Plane::adaptive(op, shape, planes(op, shape)?.1, planes(op, grad.shape())?.1)?;
    backward(op, grad, shape, plane, Averaging::default())
}

/// The scalars of the kernels that follow those of the geometry.
fn further(averaging: Averaging) -> [Number; 2] {
    // 0: the number of elements.
    let divisor = averaging.divisor.unwrap_or(0) as f64;
    [Number::Flag(usize::from(averaging.count_include_pad)), Number::Real(divisor)]
}

fn forward(op: &'static str, x: &Tensor, plane: Plane, averaging: Averaging) -> Result<Tensor> {
    x.check_float(op)?;
    let count = planes(op, x.shape())?.0;
    let x = as_images(x)?;
    let output = uninit_like(&x, with_plane(x.shape(), plane.outputs()), x.dtype())?;
    if output.size() == 0 {
        return Ok(output);
    }
    let (args, cost) = (Args::default().read(&x).write(&output), cost(&plane, count, x.dtype()));
    let job = Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost, args };
    match x.queue() {
        Queue::Cpu(_) => cpu::average(job, plane, averaging, count)?,
        Queue::OpenCl(stream) => launch(stream, job, "avg_pool", &plane, beside(&x), &output, &further(averaging))?,
    }
    Ok(output)
}

fn backward(op: &'static str, grad: &Tensor, shape: &Shape, plane: Plane, averaging: Averaging) -> Result<Tensor> {
    grad.check_float(op)?;
    check_shape(op, "the output's gradient", grad, &with_plane(shape, plane.outputs()))?;
    let count = planes(op, shape)?.0;
    let grad = as_images(grad)?;
    let input = uninit_like(&grad, shape.clone(), grad.dtype())?;
    if input.size() == 0 {
        return Ok(input);
    }
    let (args, cost) = (Args::default().read(&grad).write(&input), cost(&plane, count, grad.dtype()));
    let job = Job { name: op, queue: grad.queue().clone(), dtype: grad.dtype(), cost, args };
    match grad.queue() {
        Queue::Cpu(_) => cpu::average_backward(job, plane, averaging, count)?,
        Queue::OpenCl(stream) => {
            launch(stream, job, "avg_pool_backward", &plane, beside(&grad), &input, &further(averaging))?;
        }
    }
    Ok(input)
}
