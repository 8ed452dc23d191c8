//! Comparisons of indices, exact over all of int64: the elementwise table computes in floats, which are not.

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::backend::cpu::threads::SharedPtr;
use netcl_core::backend::cpu::{CpuKernel, parallel_for};
use netcl_core::backend::opencl::{Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use smallvec::{SmallVec, smallvec};

use crate::indexing::opencl::{buffer, work};

/// Elements that one task should compare at least.
const TASK: usize = 1 << 15;

/// Which comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

impl Comparison {
    /// The name of the float operation that compares alike.
    pub fn name(self) -> &'static str {
        match self {
            Comparison::Eq => "eq",
            Comparison::Ne => "ne",
            Comparison::Lt => "lt",
            Comparison::Le => "le",
            Comparison::Gt => "gt",
            Comparison::Ge => "ge",
        }
    }

    fn symbol(self) -> &'static str {
        match self {
            Comparison::Eq => "==",
            Comparison::Ne => "!=",
            Comparison::Lt => "<",
            Comparison::Le => "<=",
            Comparison::Gt => ">",
            Comparison::Ge => ">=",
        }
    }

    fn holds(self, x: i64, y: i64) -> bool {
        match self {
            Comparison::Eq => x == y,
            Comparison::Ne => x != y,
            Comparison::Lt => x < y,
            Comparison::Le => x <= y,
            Comparison::Gt => x > y,
            Comparison::Ge => x >= y,
        }
    }
}

/// 1 where the comparison of two index tensors, broadcast together, holds, else 0; float32. int32 and int64 mix.
///
/// ```
/// use netcl_ops::compare::{Comparison, compare};
/// use netcl_core::{device::manager, index::IndexTensor};
///
/// let queue = manager().cpu().queue;
/// let x = IndexTensor::from_host(&queue, &[1i64, 2, 3], [3])?;
/// let y = IndexTensor::from_host(&queue, &[2i32], [1])?;
/// assert_eq!(compare(Comparison::Ge, &x, &y)?.to_host::<f32>()?, [0.0, 1.0, 1.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn compare(comparison: Comparison, x: &IndexTensor, y: &IndexTensor) -> Result<Tensor> {
    let (op, x, y) = (comparison.name(), x.tensor(), y.tensor());
    x.queue().check_same_device(op, y.queue())?;
    let shape = x.shape().broadcast(op, y.shape())?;
    let (x, y) = (dense(x, &shape)?, dense(y, &shape)?);
    let out = Tensor::uninit(x.queue(), shape, DType::F32)?;
    let n = out.size();
    if n == 0 {
        return Ok(out);
    }
    let (work, args) = match x.queue() {
        Queue::Cpu(_) => on_cpu(comparison, &x, &y, &out),
        Queue::OpenCl(stream) => on_opencl(comparison, stream, &x, &y, &out)?,
    };
    let cost = Cost { flops: 0.0, bytes: (n * (2 * DType::I64.size() + DType::F32.size())) as f64 };
    launch::submit(Launch { name: op.into(), queue: out.queue().clone(), work, args, cost })?;
    Ok(out)
}

fn dense(index: &Tensor, shape: &Shape) -> Result<Tensor> {
    index.cast(DType::I64)?.expand(shape)?.contiguous()
}

type Args = SmallVec<[Arg; 8]>;

fn on_cpu(comparison: Comparison, x: &Tensor, y: &Tensor, out: &Tensor) -> (Work, Args) {
    let tensors = [(x, Access::Read), (y, Access::Read), (out, Access::Write)];
    let args = tensors.iter().map(|(t, access)| Arg::Buffer(t.storage().clone(), *access)).collect();
    let places = tensors.map(|(t, _)| {
        let (layout, size) = (t.layout(), t.dtype().size());
        (layout.offset() * size, layout.end() * size)
    });
    let n = out.size();
    let kernel = CpuKernel::new(move |args| {
        let pointer = |i: usize| {
            let (start, end) = places[i];
            Ok::<_, netcl_core::Error>(SharedPtr::new(args.checked_memory(i, end)?.wrapping_add(start)))
        };
        let (x, y, out) = (pointer(0)?, pointer(1)?, pointer(2)?);
        parallel_for(comparison.name(), n, TASK, |range| {
            for at in range {
                // SAFETY: all three are dense, aligned and `n` elements long (`checked_memory` saw their ends); ranges of threads
                // are disjoint, and nobody else writes the result.
                unsafe {
                    let holds = comparison.holds(*x.get().cast::<i64>().add(at), *y.get().cast::<i64>().add(at));
                    *out.get().cast::<f32>().add(at) = f32::from(u8::from(holds));
                }
            }
        })
    });
    (Work::Cpu(kernel), args)
}

fn on_opencl(comparison: Comparison, stream: &Stream, x: &Tensor, y: &Tensor, out: &Tensor) -> Result<(Work, Args)> {
    let symbol = comparison.symbol();
    let kernel = stream.kernel(&format!("compare.cl:{symbol}"), || {
        (Source::new(format!("#define OPERATOR {symbol}\n{}", include_str!("compare.cl")), ""), "compare")
    })?;
    let mut args: Args = smallvec![];
    args.extend(buffer(x, Access::Read));
    args.extend(buffer(y, Access::Read));
    args.extend(buffer(out, Access::Write));
    args.push(Arg::Scalar(Scalar::U64(out.size() as u64)));
    Ok((work(kernel, out.size())?, args))
}
