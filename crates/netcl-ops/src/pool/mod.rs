//! Pooling over windows of the last axis or the last two: maximum and average, with fixed or adaptive windows.
//!
//! On devices every backward pass gathers: an input element collects from the windows that cover it, in a fixed order and
//! without atomics. On the CPU a plane belongs to one thread, which adds in a fixed order as well.
//!
//! | file | subject |
//! |---|---|
//! | `geometry.rs` | [`Window`] and what it means for an axis |
//! | `max.rs`, `average.rs` | the operations: checks, results, launches on either backend |
//! | `cpu.rs`, `by_two.rs` | the native loops |
//! | `pool.cl` | the kernels |

mod average;
mod by_two;
mod cpu;
mod geometry;
mod max;

use netcl_core::backend::opencl::Stream;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::Cost;
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use crate::dense::{ClCode, Job, Number};
use geometry::Plane;

pub use average::{
    Averaging, adaptive_avg_pool1d, adaptive_avg_pool1d_backward, adaptive_avg_pool2d, adaptive_avg_pool2d_backward,
    avg_pool1d, avg_pool1d_backward, avg_pool2d, avg_pool2d_backward,
};
pub use geometry::Window;
pub use max::{
    MaxPooled, adaptive_max_pool1d, adaptive_max_pool1d_backward, adaptive_max_pool2d, adaptive_max_pool2d_backward,
    max_pool1d, max_pool1d_backward, max_pool2d, max_pool2d_backward,
};

/// How many planes of the last two axes a shape has, and its shape with other planes.
fn planes(op: &'static str, shape: &Shape) -> Result<(usize, [usize; 2])> {
    match &shape[..] {
        [outer @ .., height, width] => Ok((outer.iter().product(), [*height, *width])),
        _ => {
            let why = "it needs at least two axes, the last of which are height and width".to_owned();
            Err(Error::Shape { op, shape: shape.clone(), why })
        }
    }
}

/// A shape with another last two axes.
fn with_plane(shape: &Shape, [height, width]: [usize; 2]) -> Shape {
    let outer = shape.ndim() - 2;
    shape[..outer].iter().copied().chain([height, width]).collect()
}

/// A tensor of lines as planes of height 1, as a view.
fn as_planes(op: &'static str, x: &Tensor) -> Result<Tensor> {
    if x.ndim() == 0 {
        let why = "it needs at least one axis".to_owned();
        return Err(Error::Shape { op, shape: x.shape().clone(), why });
    }
    crate::unsqueeze(x, -2)
}

/// [`as_planes`] of a shape.
fn shape_as_planes(op: &'static str, shape: &Shape) -> Result<Shape> {
    match &shape[..] {
        [outer @ .., length] => Ok(outer.iter().copied().chain([1, *length]).collect()),
        [] => Err(Error::Shape { op, shape: shape.clone(), why: "it needs at least one axis".to_owned() }),
    }
}

/// Planes of height 1 as lines, as a view.
fn as_lines(x: &Tensor) -> Result<Tensor> {
    crate::squeeze(x, &[-2])
}

/// How many planes lie side by side, element by element: the channels of channels-last images.
fn beside(x: &Tensor) -> usize {
    if x.layout().is_channels_last() { x.shape()[1] } else { 1 }
}

/// Runs a kernel of `pool.cl` with a work-item for each element of `out`; `further` follow the scalars of the geometry.
fn launch(
    stream: &Stream,
    job: Job,
    kernel: &'static str,
    plane: &Plane,
    beside: usize,
    out: &Tensor,
    further: &[Number],
) -> Result<()> {
    let items = out.size();
    let mut scalars = scalars(items, plane);
    scalars.push(Number::Count(beside));
    scalars.extend_from_slice(further);
    let text = include_str!("pool.cl");
    let code = ClCode { file: "pool.cl", text, kernel, scalars: &scalars, items, group: None, local: 0, wide: None };
    job.run_cl(stream, &code)
}

/// The scalars that every kernel of `pool.cl` begins with.
fn scalars(items: usize, plane: &Plane) -> Vec<Number> {
    let mut list = vec![Number::Count(items)];
    for axis in plane.axes {
        list.extend(
            [axis.input, axis.output, axis.kernel, axis.stride, axis.padding, axis.dilation]
                .map(|n| Number::Signed(n as isize)),
        );
    }
    list.push(Number::Flag(usize::from(plane.adaptive)));
    list
}

/// The cost of a pooling: every element passed over once, and every window's elements combined.
fn cost(plane: &Plane, planes: usize, dtype: DType) -> Cost {
    let [height, width] = plane.axes;
    let (elements, results) = (height.input * width.input, height.output * width.output);
    let window = if plane.adaptive { elements as f64 / results as f64 } else { (height.kernel * width.kernel) as f64 };
    let bytes = (planes * (elements + results) * dtype.size()) as f64;
    Cost { flops: (planes * results) as f64 * window, bytes }
}
