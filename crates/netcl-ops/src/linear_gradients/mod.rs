//! The gradients of a fully connected layer's weight and bias in one launch: the step of a small network on a GPU is as long as its
//! launches are many.

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::{Grid, Stream};
use netcl_core::device::DeviceType;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::smallvec;

use crate::elements::kernel_source;
use crate::matmul::{MatmulOptions, matmul_with};
use crate::reduce::sum;

const OP: &str = "linear_gradients";

/// The most rows, and elements of the weight, for which the one launch is as fast as two with better tiles.
const MOST_ROWS: usize = 256;
const MOST_ELEMENTS: usize = 1 << 18;
/// As in the kernel: the elements of a work-item, and the rows in local memory.
const TALL: usize = 2;
const WIDE: usize = 4;
const DEPTH: usize = 32;

/// Whether [`linear_gradients`] is faster than a product and a sum: few rows, a small weight, on a device where a launch costs
/// more than they do.
pub fn linear_gradients_pay(grad: &Tensor, x: &Tensor) -> bool {
    let Queue::OpenCl(stream) = grad.queue() else { return false };
    let ([rows, outputs], [_, features]) = (&grad.shape()[..], &x.shape()[..]) else { return false };
    stream.device().device_type() != DeviceType::Cpu
        && matches!(grad.dtype(), DType::F32 | DType::F64)
        && (1..=MOST_ROWS).contains(rows)
        && outputs.saturating_mul(*features) <= MOST_ELEMENTS
}

/// From the gradient `(rows, outputs)` of `x @ weight.T + bias` and `x` of `(rows, features)`, the gradients of the weight
/// `(outputs, features)` and of the bias `(outputs,)`. Float32 and float64.
///
/// One launch on OpenCL devices, for a few hundred rows ([`linear_gradients_pay`]); a product and a sum on the native CPU.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let queue = manager().get("auto")?.queue;
/// let grad = Tensor::from_host(&queue, &[1.0f32, 0.0, 2.0, 1.0], [2, 2])?;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
/// let (weight, bias) = netcl_ops::linear_gradients(&grad, &x)?;
/// assert_eq!(weight.to_host::<f32>()?, [9.0, 12.0, 15.0, 4.0, 5.0, 6.0]);
/// assert_eq!(bias.to_host::<f32>()?, [3.0, 1.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
///
/// # Errors
/// For tensors that are not matrices of as many rows, of other dtypes, or on two devices.
pub fn linear_gradients(grad: &Tensor, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let ([rows, outputs], [x_rows, features]) = (&grad.shape()[..], &x.shape()[..]) else {
        let tensor = if grad.ndim() == 2 { x } else { grad };
        let why = "a matrix with a row for each example is needed".to_owned();
        return Err(Error::Shape { op: OP, shape: tensor.shape().clone(), why });
    };
    let (rows, outputs, features) = (*rows, *outputs, *features);
    if rows != *x_rows {
        let why = format!("it has {x_rows} rows, the gradient has {rows}");
        return Err(Error::Shape { op: OP, shape: x.shape().clone(), why });
    }
    grad.queue().check_same_device(OP, x.queue())?;
    if grad.dtype() != x.dtype() {
        return Err(Error::DtypeMismatch { op: OP, lhs: grad.dtype(), rhs: x.dtype() });
    }
    if !matches!(grad.dtype(), DType::F32 | DType::F64) {
        return Err(Error::Dtype { op: OP, expected: "float32 or float64".to_owned(), got: grad.dtype() });
    }
    let stream = match grad.queue() {
        Queue::OpenCl(stream) if rows * outputs * features > 0 => stream,
        _ => {
            let options = MatmulOptions { transpose_a: true, ..Default::default() };
            return Ok((matmul_with(grad, x, &options)?, sum(grad, 0, false)?));
        }
    };
    let weight = Tensor::uninit(grad.queue(), [outputs, features], grad.dtype())?;
    let bias = Tensor::uninit(grad.queue(), [outputs], grad.dtype())?;
    let number = |value: isize| Arg::Scalar(Scalar::I64(value as i64));
    let count = |value: usize| Arg::Scalar(Scalar::U32(value as u32));
    let mut args: smallvec::SmallVec<[Arg; 8]> = smallvec![];
    for tensor in [grad, x] {
        args.push(Arg::Buffer(tensor.storage().clone(), Access::Read));
        args.push(Arg::Scalar(Scalar::U64(tensor.layout().offset() as u64)));
        args.extend(tensor.layout().strides().iter().map(|&stride| number(stride)));
    }
    args.extend([&weight, &bias].map(|tensor| Arg::Buffer(tensor.storage().clone(), Access::Write)));
    args.extend([rows, outputs, features].map(count));
    let work = work(stream, grad.dtype(), outputs, features)?;
    let elements = (outputs * features) as f64;
    let bytes = (grad.size() + x.size()) as f64 + elements;
    let cost = Cost { flops: 2.0 * rows as f64 * elements, bytes: bytes * grad.dtype().size() as f64 };
    launch::submit(Launch { name: OP.into(), queue: grad.queue().clone(), work, args, cost })?;
    Ok((weight, bias))
}

fn work(stream: &Stream, dtype: DType, outputs: usize, features: usize) -> Result<Work> {
    let info = stream.device().info();
    let local_bytes = usize::try_from(info.local_mem_size).unwrap_or(usize::MAX);
    let fits = |side: usize| {
        side * side <= info.max_work_group_size && DEPTH * side * (TALL + WIDE) * dtype.size() <= local_bytes
    };
    let side = [16, 8, 4, 2].into_iter().find(|&side| fits(side)).unwrap_or(1);
    let real = dtype.cl_type();
    let kernel = stream.kernel(&("linear_gradients.cl", real, side), || {
        let defines = format!("#define COMPUTE {real}\n#define SIDE {side}\n");
        (kernel_source(&defines, &[include_str!("linear_gradients.cl")]), OP)
    })?;
    let groups = [features.div_ceil(WIDE * side), outputs.div_ceil(TALL * side)];
    Ok(Work::OpenCl(kernel, Grid::new(groups.map(|n| n * side)).local([side, side])))
}
