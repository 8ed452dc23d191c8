//! Writing at indices, and indices of several axes as positions in all of them.

use netcl_core::backend::cpu::{CpuKernel, parallel_for};
use netcl_core::backend::{Queue, opencl::Stream};
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::expr::opencl::{IndexWidth, bits_type};
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::smallvec;

use super::cpu::{Indices, Place};
use super::opencl::{buffer, sorted, work};
use super::order::Pairs;
use super::problem::{Args, Rows, look};
use super::{check_axis, check_same, check_vector};
use crate::elements::kernel_source;

/// Elements that one task should write at least.
const TASK: usize = 1 << 13;

/// Overwrites the slices of a dense tensor at some indices along an axis with those of a source. Where an index occurs several
/// times the last one counts. Tensors may be of any dtype.
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1i32, 2, 3], [3])?;
/// let at = IndexTensor::from_host(&queue, &[2i64, 0, 2], [3])?;
/// netcl_ops::index_put(&x, 0, &at, &Tensor::from_host(&queue, &[7i32, 8, 9], [3])?)?;
/// assert_eq!(x.to_host::<i32>()?, [8, 2, 9]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn index_put(x: &Tensor, axis: isize, indices: &IndexTensor, source: &Tensor) -> Result<()> {
    const OP: &str = "index_put";
    let axis = check_axis(OP, x.shape(), axis)?;
    let k = check_vector(OP, indices)?;
    check_same(OP, x, source)?;
    x.queue().check_same_device(OP, indices.tensor().queue())?;
    if !x.layout().is_contiguous() {
        return Err(Error::shape(OP, x.shape(), "the tensor that is written to must be dense"));
    }
    let rows = Rows::new(OP, x.shape(), axis, k);
    let expected = rows.with_length(x.shape(), k);
    if source.shape() != &expected {
        let why = format!("the source must have shape {expected} to be written to {} at {k} indices", x.shape());
        return Err(Error::shape(OP, source.shape(), why));
    }
    let at = indices.tensor().contiguous()?;
    let source = source.contiguous()?;
    if source.size() == 0 || x.size() == 0 {
        return look(OP, &at, rows.n, false);
    }
    let (work, args) = match x.queue() {
        Queue::Cpu(_) => put_on_cpu(rows, &at, &source, x),
        Queue::OpenCl(stream) => put_on_opencl(&rows, stream, &at, &source, x)?,
    };
    let cost =
        Cost { flops: 0.0, bytes: (2 * source.size() * x.dtype().size() + at.size() * at.dtype().size()) as f64 };
    launch::submit(Launch { name: OP.into(), queue: x.queue().clone(), work, args, cost })
}

fn put_on_cpu(rows: Rows, at: &Tensor, source: &Tensor, x: &Tensor) -> (Work, Args) {
    let args = smallvec![
        Arg::Buffer(at.storage().clone(), Access::Read),
        Arg::Buffer(source.storage().clone(), Access::Read),
        Arg::Buffer(x.storage().clone(), Access::Write),
    ];
    let indices = Indices::new(rows.op, 0, at, rows.n);
    let (from, to, width) = (Place::new(1, source), Place::new(2, x), rows.inner * x.dtype().size());
    let kernel = CpuKernel::new(move |args| {
        let order = Pairs::new(&rows, &indices.read(args)?, |index| index as u64);
        let segments = order.segments();
        let (from, to) = (from.pointer(args)?, to.pointer(args)?);
        parallel_for(rows.op, rows.outer * segments.len(), (TASK / rows.inner.max(1)).max(1), |range| {
            for task in range {
                let (place, segment) = (task / segments.len(), segments[task % segments.len()]);
                let Some(&(destination, source)) = segment.last() else { continue };
                // SAFETY: destinations are below `n` (checked when they were read) and sources below `k`, both tensors are
                // dense and end where the launch checked; they do not overlap, and a destination belongs to one segment.
                unsafe {
                    let from = from.get().add((place * rows.k + source as usize) * width);
                    let to = to.get().add((place * rows.n + destination as usize) * width);
                    std::ptr::copy_nonoverlapping(from, to, width);
                }
            }
        })
    });
    (Work::Cpu(kernel), args)
}

fn put_on_opencl(rows: &Rows, stream: &Stream, at: &Tensor, source: &Tensor, x: &Tensor) -> Result<(Work, Args)> {
    let order = sorted(rows, stream, at, x)?;
    let total = rows.outer * order.count * rows.inner;
    let uint = IndexWidth::for_span(total.max(source.size()).max(x.size()));
    let bits = bits_type(x.dtype().size());
    let ([keys, places], count) = (order.types(), uint.names().0);
    let kernel = stream.kernel(&("put.cl:put_rows", bits, keys, places, count), || {
        let defines =
            format!("#define BITS {bits}\n#define KEYS {keys}\n#define PLACES {places}\n#define UINT {count}\n");
        (kernel_source(&defines, &[include_str!("put.cl")]), "put_rows")
    })?;
    let mut args = Args::new();
    args.extend(buffer(source, Access::Read));
    args.extend(buffer(&order.keys, Access::Read));
    args.extend(buffer(&order.places, Access::Read));
    args.extend(buffer(x, Access::Write));
    args.extend([total, rows.n, rows.k, rows.inner, order.count].map(|v| uint.unsigned(v)));
    Ok((work(kernel, total)?, args))
}

/// Positions in an axis of `length` elements after `base`, positions in the axes before it: `base * length + index`. An index
/// below 0 counts from the end. What lies outside gets position -1, which nothing reads or writes at; values are not looked at.
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor};
///
/// let queue = manager().cpu().queue;
/// let rows = IndexTensor::from_host(&queue, &[1i64, 0, 1], [3])?;
/// let columns = IndexTensor::from_host(&queue, &[-1i32, 2, 4], [3])?;
/// assert_eq!(netcl_ops::positions(&rows, &columns, 4)?.to_host()?, [7, 2, -1]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn positions(base: &IndexTensor, indices: &IndexTensor, length: usize) -> Result<IndexTensor> {
    const OP: &str = "indexing";
    let (base, at) = (base.tensor(), indices.tensor());
    base.queue().check_same_device(OP, at.queue())?;
    let shape = base.shape().broadcast(OP, at.shape())?;
    let base = base.cast(DType::I64)?.expand(&shape)?.contiguous()?;
    let at = at.expand(&shape)?.contiguous()?;
    let out = Tensor::uninit(base.queue(), shape, DType::I64)?;
    let total = out.size();
    if total == 0 {
        return IndexTensor::from_tensor(out);
    }
    let (work, args) = match out.queue() {
        Queue::Cpu(_) => positions_on_cpu(&base, &at, &out, length as i64),
        Queue::OpenCl(stream) => {
            let index = at.dtype().cl_type();
            let kernel = stream.kernel(&("put.cl:positions", index), || {
                (kernel_source(&format!("#define INDEX {index}\n"), &[include_str!("put.cl")]), "positions")
            })?;
            let mut args = Args::new();
            args.extend(buffer(&base, Access::Read));
            args.extend(buffer(&at, Access::Read));
            args.extend(buffer(&out, Access::Write));
            args.extend([total, length].map(|v| Arg::Scalar(Scalar::U64(v as u64))));
            (work(kernel, total)?, args)
        }
    };
    let cost = Cost { flops: 0.0, bytes: (3 * total * DType::I64.size()) as f64 };
    launch::submit(Launch { name: "positions".into(), queue: out.queue().clone(), work, args, cost })?;
    IndexTensor::from_tensor(out)
}

fn positions_on_cpu(base: &Tensor, at: &Tensor, out: &Tensor, length: i64) -> (Work, Args) {
    let args = smallvec![
        Arg::Buffer(base.storage().clone(), Access::Read),
        Arg::Buffer(at.storage().clone(), Access::Read),
        Arg::Buffer(out.storage().clone(), Access::Write),
    ];
    let places = [Place::new(0, base), Place::new(1, at), Place::new(2, out)];
    let (narrow, total) = (at.dtype() == DType::I32, out.size());
    let kernel = CpuKernel::new(move |args| {
        let [base, at, out] = [places[0].pointer(args)?, places[1].pointer(args)?, places[2].pointer(args)?];
        parallel_for("indexing", total, TASK, |range| {
            for i in range {
                // SAFETY: all three are dense, aligned and `total` elements long (`pointer` saw their ends); ranges of threads
                // are disjoint, and nobody else writes the result.
                unsafe {
                    let before = *base.get().cast::<i64>().add(i);
                    let v = match narrow {
                        true => i64::from(*at.get().cast::<i32>().add(i)),
                        false => *at.get().cast::<i64>().add(i),
                    };
                    let inside = before >= 0 && (-length..length).contains(&v);
                    let position = if inside { before * length + if v < 0 { v + length } else { v } } else { -1 };
                    *out.get().cast::<i64>().add(i) = position;
                }
            }
        })
    });
    (Work::Cpu(kernel), args)
}
