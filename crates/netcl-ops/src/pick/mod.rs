//! One element of every line, chosen by a label: what losses over class indices are made of.
//!
//! [`pick`] and [`unpick`] are linear and each other's adjoint, so each is the other's gradient. Elements are moved bit by
//! bit, whatever their dtype.

mod cpu;
mod opencl;

use half::{bf16, f16};
use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::described::{AlongAxis, Described, Meaning};
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar};
use netcl_core::shape::Shape;
use netcl_core::tensor::{Tensor, reshape};
use netcl_core::{Error, Result};
use smallvec::{SmallVec, smallvec};

/// For every index of the other axes, the element of `axis` that a label names: `(N, C, ...)` and labels `(N, ...)` give
/// `(N, ...)`.
///
/// A label equal to `ignore` gives 0. Any other label outside the axis gives NaN and reads nothing: callers who can read the
/// labels should check them first, which makes a better message.
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
/// let labels = IndexTensor::from_host(&queue, &[2i64, 0], [2])?;
/// assert_eq!(netcl_ops::pick(&x, 1, &labels, None)?.to_host::<f32>()?, [3.0, 4.0]);
/// assert_eq!(netcl_ops::pick(&x, 1, &labels, Some(2))?.to_host::<f32>()?, [0.0, 4.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn pick(x: &Tensor, axis: isize, labels: &IndexTensor, ignore: Option<i64>) -> Result<Tensor> {
    x.check_float("pick")?;
    let axis = x.shape().axis("pick", axis)?;
    let shape = x.shape().without_axis(axis, false);
    check_labels("pick", x, &shape, labels)?;
    if x.shape()[axis] == 0 && shape.size() > 0 {
        let why = format!("axis {axis} has no elements to pick from");
        return Err(Error::Shape { op: "pick", shape: x.shape().clone(), why });
    }
    let out = Tensor::uninit(x.queue(), shape, x.dtype())?;
    if offered(x, labels, &out, axis, AlongAxis::Pick { ignore })? {
        return Ok(out);
    }
    let plan = Plan::new("pick", x.shape(), axis, ignore, x.dtype());
    let source = reshape(x, [plan.outer, plan.classes, plan.inner])?;
    let strides = source.layout().strides();
    let strides = [strides[0], strides[1], strides[2]];
    plan.launch(&source, strides, labels, &out)?;
    Ok(out)
}

/// The adjoint of [`pick`]: zeros with a new axis of length `classes`, in which `x` is written where the labels point.
///
/// Lines with the label `ignore` are 0; lines with any other label outside the axis are NaN.
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[5.0f32, 7.0], [2])?;
/// let labels = IndexTensor::from_host(&queue, &[2i64, 0], [2])?;
/// let spread = netcl_ops::unpick(&x, 1, &labels, 3, None)?;
/// assert_eq!(spread.to_host::<f32>()?, [0.0, 0.0, 5.0, 7.0, 0.0, 0.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn unpick(x: &Tensor, axis: isize, labels: &IndexTensor, classes: usize, ignore: Option<i64>) -> Result<Tensor> {
    x.check_float("unpick")?;
    check_labels("unpick", x, x.shape(), labels)?;
    // The new axis is named by its place in the result, which has one axis more.
    let full = |axis: usize| -> Shape { [&x.shape()[..axis], &[classes], &x.shape()[axis..]].concat().into() };
    let axis = full(0).axis("unpick", axis)?;
    let out = Tensor::uninit(x.queue(), full(axis), x.dtype())?;
    if offered(x, labels, &out, axis, AlongAxis::Unpick { ignore })? {
        return Ok(out);
    }
    let plan = Plan::new("unpick", out.shape(), axis, ignore, x.dtype());
    let source = reshape(x, [plan.outer, plan.inner])?;
    let strides = source.layout().strides();
    let strides = [strides[0], 0, strides[1]];
    plan.launch(&source, strides, labels, &out)?;
    Ok(out)
}

fn offered(x: &Tensor, labels: &IndexTensor, out: &Tensor, axis: usize, along: AlongAxis) -> Result<bool> {
    let (inputs, meaning) = ([x, labels.tensor()], Meaning::AlongAxis(axis, along));
    Ok(out.size() > 0 && launch::offer(&Described { inputs: &inputs, outputs: &[out], meaning })?)
}

fn check_labels(op: &'static str, x: &Tensor, shape: &Shape, labels: &IndexTensor) -> Result<()> {
    let labels = labels.tensor();
    x.queue().check_same_device(op, labels.queue())?;
    if labels.shape() == shape {
        return Ok(());
    }
    let why = format!("labels of shape {shape} are needed beside a tensor of shape {}", x.shape());
    Err(Error::Shape { op, shape: labels.shape().clone(), why })
}

/// The numbers of a launch: the full tensor seen as (outer, classes, inner).
#[derive(Clone, Copy, Debug)]
struct Plan {
    op: &'static str,
    outer: usize,
    classes: usize,
    inner: usize,
    ignore: Option<i64>,
    dtype: DType,
}

impl Plan {
    fn new(op: &'static str, full: &Shape, axis: usize, ignore: Option<i64>, dtype: DType) -> Self {
        let (outer, inner) = (full[..axis].iter().product(), full[axis + 1..].iter().product());
        Plan { op, outer, classes: full[axis], inner, ignore, dtype }
    }

    /// The bits of a NaN of the dtype.
    fn nan(&self) -> u64 {
        match self.dtype {
            DType::F64 => f64::NAN.to_bits(),
            DType::F16 => f16::NAN.to_bits().into(),
            DType::BF16 => bf16::NAN.to_bits().into(),
            _ => f32::NAN.to_bits().into(),
        }
    }

    /// The same argument list for both backends: source, labels, destination, each with its offset, then the numbers.
    fn launch(&self, source: &Tensor, strides: [isize; 3], labels: &IndexTensor, out: &Tensor) -> Result<()> {
        if out.size() == 0 {
            return Ok(());
        }
        let labels = labels.tensor().contiguous()?;
        let number = |value: usize| Arg::Scalar(Scalar::U64(value as u64));
        let mut args: SmallVec<[Arg; 8]> = smallvec![
            Arg::Buffer(source.storage().clone(), Access::Read),
            number(source.layout().offset()),
            Arg::Buffer(labels.storage().clone(), Access::Read),
            number(labels.layout().offset()),
            Arg::Buffer(out.storage().clone(), Access::Write),
        ];
        args.extend(strides.map(|stride| Arg::Scalar(Scalar::I64(stride as i64))));
        args.extend([self.outer, self.classes, self.inner].map(number));
        // A label that is ignored is told apart by a flag: every value of an i64 could be one.
        args.push(Arg::Scalar(Scalar::I64(self.ignore.unwrap_or_default())));
        args.push(Arg::Scalar(Scalar::U32(self.ignore.is_some().into())));
        args.push(Arg::Scalar(Scalar::U64(self.nan())));
        let work = match out.queue() {
            Queue::Cpu(_) => cpu::work(*self, source, &labels, strides),
            Queue::OpenCl(stream) => opencl::work(stream, self, labels.dtype(), out.size())?,
        };
        let moved = self.outer * self.inner * self.dtype.size() + out.size() * self.dtype.size();
        let cost = Cost { flops: 0.0, bytes: (moved + labels.size() * labels.dtype().size()) as f64 };
        launch::submit(Launch { name: self.op.into(), queue: out.queue().clone(), work, args, cost })
    }
}
