//! Sorting along any axis: [`sort`], [`argsort`], [`topk`] and their gradient.
//!
//! Elements are ordered by a whole number made of their bits, and among equal ones by their position: every order is stable, and
//! there is only one, so that all devices agree. 0 and -0 are equal. NaN comes last, ascending and descending.
//!
//! | file | subject |
//! |---|---|
//! | `cpu.rs` | native: keys and positions packed into numbers, lines in parallel |
//! | `opencl.rs`, `sort.cl` | pieces sorted in local memory, then merged (or, for a few of many, the best of each kept) |

mod cpu;
mod opencl;

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch::{self, Arg, Cost, Launch, Work};
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

/// Elements in order, and where they were.
#[derive(Clone, Debug)]
pub struct Sorted {
    /// The elements.
    pub values: Tensor,
    /// Their positions along the axis, in int64.
    pub indices: IndexTensor,
}

/// The elements in order along an axis. Stable; NaN comes last.
///
/// Takes floats and whole numbers. Its gradient is [`sort_backward`].
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[2.0f32, f32::NAN, -1.0, 2.0], [4])?;
/// let sorted = netcl_ops::sort(&x, 0, false)?;
/// assert_eq!(sorted.values.to_host::<f32>()?[..3], [-1.0, 2.0, 2.0]);
/// assert_eq!(sorted.indices.to_host()?, [2, 0, 3, 1]);
/// assert_eq!(netcl_ops::argsort(&x, 0, true)?.to_host()?, [0, 3, 2, 1]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn sort(x: &Tensor, axis: isize, descending: bool) -> Result<Sorted> {
    const OP: &str = "sort";
    let axis = check_axis(OP, x.shape(), axis)?;
    run(OP, x, axis, x.shape()[axis], descending)
}

/// The positions that put the elements in order along an axis; see [`sort`].
pub fn argsort(x: &Tensor, axis: isize, descending: bool) -> Result<IndexTensor> {
    const OP: &str = "argsort";
    let axis = check_axis(OP, x.shape(), axis)?;
    Ok(run(OP, x, axis, x.shape()[axis], descending)?.indices)
}

/// The `k` largest (or smallest) elements along an axis, the best first. Of equal ones the first come first; NaN is the worst.
///
/// Its gradient is [`sort_backward`].
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 5.0, 3.0, 4.0], [2, 2])?;
/// let best = netcl_ops::topk(&x, 1, -1, true)?;
/// assert_eq!((best.values.to_host::<f32>()?, best.indices.to_host()?), (vec![5.0, 4.0], vec![1, 1]));
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn topk(x: &Tensor, k: usize, axis: isize, largest: bool) -> Result<Sorted> {
    const OP: &str = "topk";
    let at = check_axis(OP, x.shape(), axis)?;
    if k > x.shape()[at] {
        let what = format!("{k} elements asked for, but axis {axis} of shape {} has {}", x.shape(), x.shape()[at]);
        return Err(Error::argument(OP, what));
    }
    run(OP, x, at, k, largest)
}

/// The gradient of [`sort`] and [`topk`] for their tensor, whose axis had `length` elements: every gradient goes back to where its
/// element was, the others are zero. The indices must be those of the result: distinct in each line.
pub fn sort_backward(grad: &Tensor, axis: isize, indices: &IndexTensor, length: usize) -> Result<Tensor> {
    const OP: &str = "sort_backward";
    grad.check_float(OP)?;
    let axis = check_axis(OP, grad.shape(), axis)?;
    let at = indices.tensor();
    grad.queue().check_same_device(OP, at.queue())?;
    if grad.shape() != at.shape() {
        let why = format!("the gradient must have the shape of the indices, {}", at.shape());
        return Err(Error::Shape { op: OP, shape: grad.shape().clone(), why });
    }
    let k = grad.shape()[axis];
    if k > length {
        let what = format!("{k} gradients cannot come from an axis of {length} elements");
        return Err(Error::argument(OP, what));
    }
    let (from, at) = (to_last(grad, axis)?, to_last(at, axis)?);
    let out = Tensor::uninit(grad.queue(), with_last(from.shape(), length), grad.dtype())?;
    if out.size() > 0 && k < length {
        out.fill(0.0)?;
    }
    if from.size() > 0 {
        let lines = Lines { op: OP, count: from.size() / k, n: length, k };
        let (work, args) = match grad.queue() {
            Queue::Cpu(_) => cpu::put(lines, &from, &at, &out),
            Queue::OpenCl(stream) => opencl::put(lines, stream, &from, &at, &out)?,
        };
        let bytes = from.size() * (2 * from.dtype().size() + at.dtype().size());
        submit(OP, &out, (work, args), bytes)?;
    }
    from_last(&out, axis)
}

type Args = SmallVec<[Arg; 8]>;

/// Dense lines of `n` elements, of which the first `k` in order are wanted.
#[derive(Clone, Copy, Debug)]
struct Lines {
    op: &'static str,
    count: usize,
    n: usize,
    k: usize,
}

fn run(op: &'static str, x: &Tensor, axis: usize, k: usize, descending: bool) -> Result<Sorted> {
    if x.dtype() == DType::U8 {
        return Err(Error::Dtype { op, expected: "floats, int32 or int64".to_owned(), got: x.dtype() });
    }
    let n = x.shape()[axis];
    if n >= u32::MAX as usize {
        let why = format!("lines of {n} elements are longer than can be sorted");
        return Err(Error::Shape { op, shape: x.shape().clone(), why });
    }
    let x = to_last(x, axis)?;
    let shape = with_last(x.shape(), k);
    let values = Tensor::uninit(x.queue(), shape.clone(), x.dtype())?;
    let indices = Tensor::uninit(x.queue(), shape, DType::I64)?;
    if values.size() > 0 {
        let lines = Lines { op, count: x.size() / n, n, k };
        let works = match x.queue() {
            Queue::Cpu(_) => vec![cpu::sort(lines, &x, &values, &indices, descending)],
            Queue::OpenCl(stream) => opencl::sort(lines, stream, &x, &values, &indices, descending)?,
        };
        let bytes = (x.size() * x.dtype().size() + values.size() * (x.dtype().size() + 8)) / works.len();
        works.into_iter().try_for_each(|prepared| submit(op, &values, prepared, bytes))?;
    }
    let indices = IndexTensor::from_tensor(from_last(&indices, axis)?)?;
    Ok(Sorted { values: from_last(&values, axis)?, indices })
}

fn submit(op: &'static str, out: &Tensor, (work, args): (Work, Args), bytes: usize) -> Result<()> {
    let cost = Cost { flops: 0.0, bytes: bytes as f64 };
    launch::submit(Launch { name: op.into(), queue: out.queue().clone(), work, args, cost })
}

/// The axis as a number; a scalar has none.
fn check_axis(op: &'static str, shape: &Shape, axis: isize) -> Result<usize> {
    if shape.ndim() == 0 {
        let why = "a scalar has no axis to sort along; reshape it to (1,) first".to_owned();
        return Err(Error::Shape { op, shape: shape.clone(), why });
    }
    shape.axis(op, axis)
}

/// The tensor with an axis moved to the end, dense.
fn to_last(x: &Tensor, axis: usize) -> Result<Tensor> {
    let mut axes: Vec<isize> = (0..x.ndim() as isize).collect();
    axes.remove(axis);
    axes.push(axis as isize);
    x.permute(&axes)?.contiguous()
}

/// The inverse of [`to_last`].
fn from_last(x: &Tensor, axis: usize) -> Result<Tensor> {
    let last = x.ndim() - 1;
    let mut axes: Vec<isize> = (0..last as isize).collect();
    axes.insert(axis, last as isize);
    x.permute(&axes)?.contiguous()
}

fn with_last(shape: &Shape, length: usize) -> Shape {
    let last = shape.ndim() - 1;
    (0..=last).map(|a| if a == last { length } else { shape[a] }).collect()
}
