//! Arithmetic of whole numbers and truth values, exact over all of int64: the elementwise table computes in floats, which are not.
//!
//! Every operation computes in 64 bits. Operands are int32, int64 or truth values (bytes of 0 and 1) in any mixture.

use std::ops::Range;

use netcl_core::backend::Queue;
use netcl_core::backend::cpu::threads::SharedPtr;
use netcl_core::backend::cpu::{CpuKernel, parallel_for};
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::shape::Shape;
use netcl_core::tensor::{Tensor, reshape};
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use crate::elements::kernel_source;
use crate::indexing::opencl::{buffer, work};
use crate::reduce::Axes;
use crate::reduce::plan::resolve;

/// Elements that one task of the native CPU should compute at least.
const TASK: usize = 1 << 14;
/// Neighbours that one work-item of a reduction combines.
const PIECE: usize = 64;

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident $name:literal $arity:literal $source:literal, $native:expr;)*) => {
        /// An operation on whole numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum IntegerOp {$($(#[$doc])* $variant,)*}

        impl IntegerOp {
            /// The operation of a name: that of the elementwise table where floats have it as well.
            pub fn of_name(name: &str) -> Option<IntegerOp> {
                Some(match name { $($name => IntegerOp::$variant,)* _ => return None })
            }

            /// The name.
            pub fn name(self) -> &'static str {
                match self { $(IntegerOp::$variant => $name,)* }
            }

            /// The number of operands.
            pub fn arity(self) -> usize {
                match self { $(IntegerOp::$variant => $arity,)* }
            }

            fn source(self) -> &'static str {
                match self { $(IntegerOp::$variant => $source,)* }
            }

            fn native(self) -> fn(i64, i64, i64) -> i64 {
                match self { $(IntegerOp::$variant => $native,)* }
            }
        }
    };
}

operations! {
    /// `x + y`, wrapping around.
    Add "add" 2 "wrap_add(x, y)", |x, y, _| x.wrapping_add(y);
    /// `x - y`, wrapping around.
    Sub "sub" 2 "wrap_sub(x, y)", |x, y, _| x.wrapping_sub(y);
    /// `x * y`, wrapping around.
    Mul "mul" 2 "wrap_mul(x, y)", |x, y, _| x.wrapping_mul(y);
    /// The quotient rounded down; 0 where the divisor is 0.
    FloorDivide "floor_divide" 2 "floor_divide(x, y)", |x, y, _| floor_divide(x, y);
    /// What the quotient rounded down leaves, with the divisor's sign; 0 where the divisor is 0.
    Remainder "remainder" 2 "remainder_of(x, y)", |x, y, _| remainder(x, y);
    /// `x` to the power of `y`, wrapping around; 0 for a negative power of anything but 1 and -1.
    Pow "pow" 2 "power(x, y)", |x, y, _| power(x, y);
    /// The larger one.
    Maximum "maximum" 2 "max(x, y)", |x, y, _| x.max(y);
    /// The smaller one.
    Minimum "minimum" 2 "min(x, y)", |x, y, _| x.min(y);
    /// `==`
    Eq "eq" 2 "x == y", |x, y, _| i64::from(x == y);
    /// `!=`
    Ne "ne" 2 "x != y", |x, y, _| i64::from(x != y);
    /// `<`
    Lt "lt" 2 "x < y", |x, y, _| i64::from(x < y);
    /// `<=`
    Le "le" 2 "x <= y", |x, y, _| i64::from(x <= y);
    /// `>`
    Gt "gt" 2 "x > y", |x, y, _| i64::from(x > y);
    /// `>=`
    Ge "ge" 2 "x >= y", |x, y, _| i64::from(x >= y);
    /// Bit by bit.
    And "bitwise_and" 2 "x & y", |x, y, _| x & y;
    /// Bit by bit.
    Or "bitwise_or" 2 "x | y", |x, y, _| x | y;
    /// Bit by bit.
    Xor "bitwise_xor" 2 "x ^ y", |x, y, _| x ^ y;
    /// Bits moved up; 0 beyond 63.
    ShiftLeft "bitwise_left_shift" 2 "(ulong)y < 64 ? (long)((ulong)x << (ulong)y) : 0",
        |x, y, _| u32::try_from(y).ok().and_then(|y| x.checked_shl(y)).unwrap_or(0);
    /// Bits moved down; the sign stays.
    ShiftRight "bitwise_right_shift" 2 "x >> min((ulong)y, (ulong)63)", |x, y, _| x >> (y as u64).min(63);
    /// `-x`, wrapping around.
    Neg "neg" 1 "wrap_sub(0, x)", |x, _, _| x.wrapping_neg();
    /// Without its sign.
    Abs "abs" 1 "x < 0 ? wrap_sub(0, x) : x", |x, _, _| x.wrapping_abs();
    /// -1, 0 or 1.
    Sign "sign" 1 "(x > 0) - (x < 0)", |x, _, _| x.signum();
    /// `x * x`, wrapping around.
    Square "square" 1 "wrap_mul(x, x)", |x, _, _| x.wrapping_mul(x);
    /// Every bit the other one.
    Not "bitwise_not" 1 "~x", |x, _, _| !x;
    /// Whether it is 0.
    LogicalNot "logical_not" 1 "x == 0", |x, _, _| i64::from(x == 0);
    /// The second operand where the first is not 0, else the third.
    Select "where" 3 "x != 0 ? y : z", |x, y, z| if x != 0 { y } else { z };
}

impl IntegerOp {
    /// Whether results are truth values.
    pub fn is_predicate(self) -> bool {
        use IntegerOp::{Eq, Ge, Gt, Le, LogicalNot, Lt, Ne};
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge | LogicalNot)
    }
}

fn floor_divide(x: i64, y: i64) -> i64 {
    match y {
        0 => 0,
        _ => x.wrapping_div(y) - i64::from(x.wrapping_rem(y) != 0 && (x < 0) != (y < 0)),
    }
}

fn remainder(x: i64, y: i64) -> i64 {
    if y == 0 {
        return 0;
    }
    let rest = x.wrapping_rem(y);
    if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }
}

fn power(x: i64, y: i64) -> i64 {
    match (x, y) {
        (1, _) => 1,
        (-1, y) => 1 - 2 * (y & 1),
        (_, ..0) => 0,
        (x, y) => x.wrapping_pow(u32::try_from(y).unwrap_or(u32::MAX)),
    }
}

/// The result of an operation on tensors that broadcast together, in the given dtype (int32, int64, or bytes for truth values).
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
/// use netcl_ops::integer::{IntegerOp, integer};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1i64, 2, 3], [3])?;
/// let y = Tensor::from_host(&queue, &[2i32], [1])?;
/// assert_eq!(integer(IntegerOp::Ge, &[&x, &y], DType::U8)?.to_host::<u8>()?, [0, 1, 1]);
/// assert_eq!(integer(IntegerOp::FloorDivide, &[&x, &y], DType::I64)?.to_host::<i64>()?, [0, 1, 1]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn integer(op: IntegerOp, operands: &[&Tensor], dtype: DType) -> Result<Tensor> {
    let Some(&first) = operands.first().filter(|_| operands.len() == op.arity()) else {
        let what = format!("it takes {} operands, got {}", op.arity(), operands.len());
        return Err(Error::argument(op.name(), what));
    };
    let mut shape = first.shape().clone();
    for tensor in operands {
        first.queue().check_same_device(op.name(), tensor.queue())?;
        shape = shape.broadcast(op.name(), tensor.shape())?;
    }
    let out = Tensor::uninit(first.queue(), shape.clone(), dtype)?;
    let mut dense = operands.iter().map(|x| dense(op, x, &shape)).collect::<Result<SmallVec<[Tensor; 3]>>>()?;
    // Kernels have three operands; what an operation does not look at may be any memory of the right size.
    while dense.len() < 3 {
        dense.push(dense[0].clone());
    }
    let native = op.native();
    launch(
        op,
        "elements",
        &dense.iter().collect::<SmallVec<[&Tensor; 3]>>(),
        &out,
        out.size(),
        &[],
        move |a, out, at| {
            for i in at {
                // SAFETY: `launch` vouches for an element of each operand at every place of the range.
                let [x, y, z] = unsafe { [*a[0].add(i), *a[1].add(i), *a[2].add(i)] };
                out.put(i, native(x, y, z));
            }
        },
    )?;
    Ok(out)
}

/// The elements of some axes combined by an associative operation; `empty` is the result where there are none.
pub fn reduce<'a>(op: IntegerOp, x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool, empty: i64) -> Result<Tensor> {
    let (gone, shape) = resolve(op.name(), x.shape(), axes.into(), keepdims)?;
    let (last, first): (Vec<usize>, Vec<usize>) = (0..x.ndim()).partition(|&axis| gone[axis]);
    let order: Vec<isize> = first.iter().chain(&last).map(|&axis| axis as isize).collect();
    let n: usize = last.iter().map(|&axis| x.shape()[axis]).product();
    if n == 0 {
        return Tensor::full(x.queue(), shape, DType::I64, empty as f64);
    }
    let lines = x.permute(&order)?;
    let (mut sums, mut n, native) = (dense(op, &lines, lines.shape())?, n, op.native());
    while n > 1 {
        let pieces = n.div_ceil(PIECE);
        let out = Tensor::uninit(x.queue(), [shape.size() * pieces], DType::I64)?;
        launch(op, "fold", &[&sums], &out, out.size(), &[n, PIECE], move |a, out, at| {
            for g in at {
                let (line, first) = (g / pieces * n, g % pieces * PIECE);
                // SAFETY: `launch` vouches for whole lines of `n` elements.
                let value = |i: usize| unsafe { *a[0].add(line + i) };
                out.put(g, (first + 1..(first + PIECE).min(n)).fold(value(first), |sum, i| native(sum, value(i), 0)));
            }
        })?;
        (sums, n) = (out, pieces);
    }
    reshape(&sums, shape)
}

/// Each element combined with all before it along an axis.
pub fn scan(op: IntegerOp, x: &Tensor, axis: isize) -> Result<Tensor> {
    let axis = x.shape().axis(op.name(), axis)?;
    let out = Tensor::uninit(x.queue(), x.shape().clone(), DType::I64)?;
    if x.size() == 0 {
        return Ok(out);
    }
    let (n, inner) = (x.shape()[axis], x.shape()[axis + 1..].iter().product::<usize>());
    let native = op.native();
    let lines = dense(op, x, x.shape())?;
    launch(op, "scan", &[&lines], &out, x.size() / n, &[n, inner], move |a, out, at| {
        for g in at {
            let start = g / inner * n * inner + g % inner;
            let mut sum = 0;
            for i in 0..n {
                // SAFETY: `launch` vouches for all lines.
                let value = unsafe { *a[0].add(start + i * inner) };
                sum = if i == 0 { value } else { native(sum, value, 0) };
                out.put(start + i * inner, sum);
            }
        }
    })?;
    Ok(out)
}

/// An operand as kernels take it.
fn dense(op: IntegerOp, x: &Tensor, shape: &Shape) -> Result<Tensor> {
    if x.dtype().is_float() {
        let expected = "a tensor of whole numbers or truth values".to_owned();
        return Err(Error::Dtype { op: op.name(), expected, got: x.dtype() });
    }
    x.cast(DType::I64)?.expand(shape)?.contiguous()
}

/// Where native code writes results.
struct Results {
    memory: SharedPtr<u8>,
    dtype: DType,
}

impl Results {
    fn put(&self, at: usize, value: i64) {
        // SAFETY: `launch` vouches for the memory of each result of a range, which one task alone writes.
        unsafe {
            match self.dtype {
                DType::I64 => *self.memory.get().cast::<i64>().add(at) = value,
                DType::I32 => *self.memory.get().cast::<i32>().add(at) = value as i32,
                _ => *self.memory.get().add(at) = value as u8,
            }
        }
    }
}

/// Runs a kernel of `integer.cl` over dense operands: `items` work-items, or `native` over ranges of them.
fn launch(
    op: IntegerOp,
    kernel: &'static str,
    operands: &[&Tensor],
    out: &Tensor,
    items: usize,
    sizes: &[usize],
    native: impl Fn(&[*const i64], &Results, Range<usize>) + Send + Sync + 'static,
) -> Result<()> {
    if items == 0 {
        return Ok(());
    }
    let tensors: SmallVec<[&Tensor; 4]> = operands.iter().copied().chain([out]).collect();
    let access = |i: usize| if i < operands.len() { Access::Read } else { Access::Write };
    let mut args: SmallVec<[Arg; 8]> = SmallVec::new();
    let work = match out.queue() {
        Queue::Cpu(_) => {
            args.extend(tensors.iter().enumerate().map(|(i, t)| Arg::Buffer(t.storage().clone(), access(i))));
            let place = |t: &&Tensor| [t.layout().offset() * t.dtype().size(), t.layout().end() * t.dtype().size()];
            let places: SmallVec<[[usize; 2]; 4]> = tensors.iter().map(place).collect();
            let (last, dtype, grain) = (operands.len(), out.dtype(), TASK.div_ceil(out.size().div_ceil(items)).max(1));
            Work::Cpu(CpuKernel::new(move |args| {
                let pointer = |i: usize| {
                    let [start, end] = places[i];
                    Ok::<_, Error>(SharedPtr::new(args.checked_memory(i, end)?.wrapping_add(start)))
                };
                let inputs = (0..last).map(pointer).collect::<Result<SmallVec<[SharedPtr<u8>; 3]>>>()?;
                let results = Results { memory: pointer(last)?, dtype };
                parallel_for(op.name(), items, grain, |range| {
                    let inputs: SmallVec<[*const i64; 3]> =
                        inputs.iter().map(|p| p.get().cast::<i64>().cast_const()).collect();
                    native(&inputs, &results, range);
                })
            }))
        }
        Queue::OpenCl(stream) => {
            let (source, element) = (op.source(), out.dtype().cl_type());
            let compiled = stream.kernel(&("integer.cl", kernel, source, element), || {
                let defines = format!("#define EXPRESSION {source}\n#define OUT {element}\n");
                (kernel_source(&defines, &[include_str!("integer.cl")]), kernel)
            })?;
            args.extend(tensors.iter().enumerate().flat_map(|(i, t)| buffer(t, access(i))));
            args.push(Arg::Scalar(Scalar::U64(items as u64)));
            args.extend(sizes.iter().map(|&size| Arg::Scalar(Scalar::U64(size as u64))));
            work(compiled, items)?
        }
    };
    let bytes: usize = tensors.iter().map(|t| t.size() * t.dtype().size()).sum();
    let cost = Cost { flops: 0.0, bytes: bytes as f64 };
    launch::submit(Launch { name: op.name().into(), queue: out.queue().clone(), work, args, cost })
}
