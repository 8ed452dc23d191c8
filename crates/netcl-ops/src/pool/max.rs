//! Maxima of windows, and where they were found.

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::geometry::{Plane, Window};
use super::{as_lines, as_planes, beside, cost, cpu, launch, planes, shape_as_planes, with_plane};
use crate::dense::{Args, Job, as_images, check_shape, uninit_like};

/// Maxima and their places.
#[derive(Clone, Debug)]
pub struct MaxPooled {
    /// The largest element of each window.
    pub output: Tensor,
    /// Where it stands in its plane, row by row (int32); -1 for a window without elements.
    pub indices: IndexTensor,
}

/// The windows of a maximum, which its backward pass needs again.
#[derive(Clone, Copy, Debug)]
enum Windows<'w> {
    Fixed(&'w Window<2>),
    Adaptive([usize; 2]),
}

impl Windows<'_> {
    fn plane(self, op: &'static str, shape: &Shape, lengths: [usize; 2]) -> Result<Plane> {
        let plane = match self {
            Windows::Fixed(window) => Plane::fixed(op, shape, lengths, window)?,
            Windows::Adaptive(outputs) => Plane::adaptive(op, shape, lengths, outputs)?,
        };
        if lengths[0] * lengths[1] > i32::MAX as usize {
            let why = "places in a plane must fit 32 bits".to_owned();
            return Err(Error::Shape { op, shape: shape.clone(), why });
        }
        Ok(plane)
    }
}

/// The maximum of each window of the last two axes. A window with a NaN gives NaN.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::pool::{Window, max_pool2d};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 5.0, 2.0, 3.0, 4.0, 0.0, 7.0, 6.0], [1, 2, 4])?;
/// let y = max_pool2d(&x, &Window::new([2, 2]))?;
/// assert_eq!(y.output.to_host::<f32>()?, [5.0, 7.0]);
/// assert_eq!(y.indices.to_host()?, [1, 6]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn max_pool2d(x: &Tensor, window: &Window<2>) -> Result<MaxPooled> {
    forward("max_pool2d", x, Windows::Fixed(window))
}

/// [`max_pool2d`] over the last axis alone.
pub fn max_pool1d(x: &Tensor, window: &Window<1>) -> Result<MaxPooled> {
    lines(forward("max_pool1d", &as_planes("max_pool1d", x)?, Windows::Fixed(&window.flat()))?)
}

/// The maximum of each of `output` windows that cover the last two axes evenly, whatever their lengths.
pub fn adaptive_max_pool2d(x: &Tensor, output: [usize; 2]) -> Result<MaxPooled> {
    forward("adaptive_max_pool2d", x, Windows::Adaptive(output))
}

/// [`adaptive_max_pool2d`] over the last axis alone.
pub fn adaptive_max_pool1d(x: &Tensor, output: usize) -> Result<MaxPooled> {
    let op = "adaptive_max_pool1d";
    lines(forward(op, &as_planes(op, x)?, Windows::Adaptive([1, output]))?)
}

fn lines(pooled: MaxPooled) -> Result<MaxPooled> {
    let indices = IndexTensor::from_tensor(as_lines(pooled.indices.tensor())?)?;
    Ok(MaxPooled { output: as_lines(&pooled.output)?, indices })
}

fn forward(op: &'static str, x: &Tensor, windows: Windows<'_>) -> Result<MaxPooled> {
    x.check_float(op)?;
    let (count, lengths) = planes(op, x.shape())?;
    let plane = windows.plane(op, x.shape(), lengths)?;
    let x = as_images(x)?;
    let shape = with_plane(x.shape(), plane.outputs());
    let output = uninit_like(&x, shape.clone(), x.dtype())?;
    let places = uninit_like(&x, shape, DType::I32)?;
    if output.size() > 0 {
        let args = Args::default().read(&x).write(&output).write(&places);
        let cost = cost(&plane, count, x.dtype());
        let job = Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost, args };
        match x.queue() {
            Queue::Cpu(_) => cpu::max(job, plane, count)?,
            Queue::OpenCl(stream) => launch(stream, job, "max_pool", &plane, beside(&x), &output, &[])?,
        }
    }
    Ok(MaxPooled { output, indices: IndexTensor::from_tensor(places)? })
}

/// The gradient of the input of [`max_pool2d`], whose shape is `shape`: each result's gradient goes to where it came from.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::pool::{Window, max_pool2d, max_pool2d_backward};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 5.0, 2.0, 3.0], [1, 2, 2])?;
/// let window = Window::new([2, 2]);
/// let y = max_pool2d(&x, &window)?;
/// let grad = max_pool2d_backward(&y.output, x.shape(), &y.indices, &window)?;
/// assert_eq!(grad.to_host::<f32>()?, [0.0, 5.0, 0.0, 0.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn max_pool2d_backward(grad: &Tensor, shape: &Shape, indices: &IndexTensor, window: &Window<2>) -> Result<Tensor> {
    backward("max_pool2d_backward", grad, shape, indices.tensor(), Some(window))
}

/// The gradient of the input of [`max_pool1d`], whose shape is `shape`.
pub fn max_pool1d_backward(grad: &Tensor, shape: &Shape, indices: &IndexTensor, window: &Window<1>) -> Result<Tensor> {
    backward_lines("max_pool1d_backward", grad, shape, indices, Some(&window.flat()))
}

/// The gradient of the input of [`adaptive_max_pool2d`], whose shape is `shape`.
pub fn adaptive_max_pool2d_backward(grad: &Tensor, shape: &Shape, indices: &IndexTensor) -> Result<Tensor> {
    backward("adaptive_max_pool2d_backward", grad, shape, indices.tensor(), None)
}

/// The gradient of the input of [`adaptive_max_pool1d`], whose shape is `shape`.
pub fn adaptive_max_pool1d_backward(grad: &Tensor, shape: &Shape, indices: &IndexTensor) -> Result<Tensor> {
    backward_lines("adaptive_max_pool1d_backward", grad, shape, indices, None)
}

fn backward_lines(
    op: &'static str,
    grad: &Tensor,
    shape: &Shape,
    indices: &IndexTensor,
    window: Option<&Window<2>>,
) -> Result<Tensor> {
    let (grad, places) = (as_planes(op, grad)?, as_planes(op, indices.tensor())?);
    as_lines(&backward(op, &grad, &shape_as_planes(op, shape)?, &places, window)?)
}

/// Without a window they are adaptive.
fn backward(
    op: &'static str,
    grad: &Tensor,
    shape: &Shape,
    places: &Tensor,
    window: Option<&Window<2>>,
) -> Result<Tensor> {
    grad.check_float(op)?;
    grad.queue().check_same_device(op, places.queue())?;
    let (count, lengths) = planes(op, shape)?;
    let windows = match window {
        Some(window) => Windows::Fixed(window),
        None => Windows::Adaptive(planes(op, grad.shape())?.1),
    };
    let plane = windows.plane(op, shape, lengths)?;
    let expected = with_plane(shape, plane.outputs());
    check_shape(op, "the output's gradient", grad, &expected)?;
    check_shape(op, "the tensor of indices", places, &expected)?;
    let grad = as_images(grad)?;
    let places = places.cast(DType::I32)?;
    let places = if grad.layout().is_channels_last() { places.channels_last()? } else { places.contiguous()? };
    let input = uninit_like(&grad, shape.clone(), grad.dtype())?;
    if input.size() == 0 {
        return Ok(input);
    }
    let args = Args::default().read(&grad).read(&places).write(&input);
    let cost = cost(&plane, count, grad.dtype());
    let job = Job { name: op, queue: grad.queue().clone(), dtype: grad.dtype(), cost, args };
    match grad.queue() {
        Queue::Cpu(_) => cpu::max_backward(job, plane, count)?,
        Queue::OpenCl(stream) => launch(stream, job, "max_pool_backward", &plane, beside(&grad), &input, &[])?,
    }
    Ok(input)
}
