//! Launches of `indexing.cl`.

use netcl_core::backend::opencl::{Grid, Kernel, Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Access, Arg, Scalar, Work};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::smallvec;

use super::order::Order;
use super::problem::{Args, Rows, check, host};
use crate::reduce::opencl::BF16_BITS;

pub(super) fn take(rows: &Rows, stream: &Stream, x: &Tensor, at: &Tensor, out: &Tensor) -> Result<(Work, Args)> {
    let uint = Uint::for_span(x.size().max(out.size()));
    let bits = match x.dtype().size() {
        1 => "uchar",
        2 => "ushort",
        4 => "uint",
        _ => "ulong",
    };
    let name = if rows.along { "take_along" } else { "take" };
    let (index, uint_type) = (at.dtype().cl_type(), uint.name());
    let kernel = stream.kernel(&format!("indexing.cl:{name}:{bits}:{index}:{uint_type}"), || {
        let defines = format!("#define BITS {bits}\n#define INDEX {index}\n#define UINT {uint_type}\n");
        (Source::new(defines + include_str!("indexing.cl"), ""), name)
    })?;
    let nan = match x.dtype() {
        DType::F32 => u64::from(f32::NAN.to_bits()),
        DType::F64 => f64::NAN.to_bits(),
        DType::F16 => u64::from(half::f16::NAN.to_bits()),
        DType::BF16 => u64::from(half::bf16::NAN.to_bits()),
        _ => 0,
    };
    let mut args = Args::new();
    args.extend(buffer(x, Access::Read));
    args.extend(buffer(at, Access::Read));
    args.extend(buffer(out, Access::Write));
    args.extend([out.size(), rows.n, rows.k, rows.inner].map(|v| uint.arg(v)));
    args.push(Arg::Scalar(Scalar::U64(nan)));
    Ok((work(kernel, out.size())?, args))
}

/// `None` where there is nothing to compute.
pub(super) fn add(
    rows: &Rows,
    stream: &Stream,
    base: Option<&Tensor>,
    at: &Tensor,
    source: &Tensor,
    out: &Tensor,
) -> Result<Option<(Work, Args)>> {
    let values = host(at)?;
    check(rows.op, &values, at.shape(), rows.n)?;
    if out.size() == 0 {
        return Ok(None);
    }
    let (outer, n, k, inner) = match rows.along {
        true => (1, rows.outer * rows.n * rows.inner, rows.outer * rows.k * rows.inner, 1),
        false => (rows.outer, rows.n, rows.k, rows.inner),
    };
    debug_assert_eq!(outer * n * inner, out.size(), "the result has the shape of the rows");
    if n.max(k) >= u32::MAX as usize {
        let why = format!("{n} destinations and {k} indices need more than 32 bits; cut the tensor along another axis");
        return Err(Error::Unsupported { op: rows.op, device: stream.device().name().to_owned(), why });
    }
    let order = Order::new(rows, &values, |index| index as u64);
    let (keys, order): (Vec<i32>, Vec<i32>) =
        order.0.into_iter().map(|(key, source)| (key as i32, source as i32)).unzip();
    let count = keys.len();
    let upload = |values: &[i32]| match values {
        // Nothing is read of it, but a kernel wants a buffer.
        [] => Tensor::from_host(out.queue(), &[0i32], [1]),
        values => Tensor::from_host(out.queue(), values, [values.len()]),
    };
    let (keys, order) = (upload(&keys)?, upload(&order)?);
    // A source without elements has no memory; nothing reads it.
    let source = if source.size() == 0 { out } else { source };
    let uint = Uint::for_span(source.size().max(out.size()));
    let with_base = base.is_some();
    let kernel = typed(stream, "add_rows", out.dtype(), &format!("#define WITH_BASE {}\n", u8::from(with_base)), uint)?;
    let mut args = Args::new();
    args.extend(buffer(source, Access::Read));
    args.extend([&keys, &order].map(|t| Arg::Buffer(t.storage().clone(), Access::Read)));
    args.extend(buffer(out, Access::Write));
    args.extend([out.size(), n, k, inner].map(|v| uint.arg(v)));
    args.push(Arg::Scalar(Scalar::U32(count as u32)));
    if let Some(base) = base {
        args.extend(buffer(base, Access::Read));
    }
    Ok(Some((work(kernel, out.size())?, args)))
}

pub(super) fn one_hot(stream: &Stream, at: &Tensor, out: &Tensor, classes: usize) -> Result<(Work, Args)> {
    let uint = Uint::for_span(out.size());
    let index = format!("#define INDEX {}\n", at.dtype().cl_type());
    let kernel = typed(stream, "one_hot", out.dtype(), &index, uint)?;
    let mut args: Args = smallvec![];
    args.extend(buffer(at, Access::Read));
    args.extend(buffer(out, Access::Write));
    args.extend([out.size(), classes].map(|v| uint.arg(v)));
    Ok((work(kernel, out.size())?, args))
}

/// A kernel that loads and stores elements of a dtype.
fn typed(stream: &Stream, name: &'static str, dtype: DType, more: &str, uint: Uint) -> Result<Kernel> {
    stream.kernel(&format!("indexing.cl:{name}:{dtype}:{}:{more}", uint.name()), || {
        let source = [&element_defines(dtype), more, "#define UINT ", uint.name(), "\n", include_str!("indexing.cl")];
        (Source::new(source.concat(), ""), name)
    })
}

/// `TYPE`, `COMPUTE`, `LOAD(p, i)` and `STORE(v, p, i)` for a float dtype.
pub(crate) fn element_defines(dtype: DType) -> String {
    let (compute, load, store) = match dtype {
        DType::F64 => ("double", "((p)[i])", "((p)[i] = (v))"),
        DType::F16 => ("float", "vload_half(i, p)", "vstore_half_rte(v, i, p)"),
        DType::BF16 => ("float", "as_float((uint)(p)[i] << 16)", "((p)[i] = bf16_bits(v))"),
        _ => ("float", "((p)[i])", "((p)[i] = (v))"),
    };
    let bits = if dtype == DType::BF16 { BF16_BITS } else { "" };
    let ty = dtype.cl_type();
    format!(
        "{bits}#define TYPE {ty}\n#define COMPUTE {compute}\n#define LOAD(p, i) {load}\n#define STORE(v, p, i) {store}\n"
    )
}

/// A buffer and the place of its first element.
pub(crate) fn buffer(tensor: &Tensor, access: Access) -> [Arg; 2] {
    [Arg::Buffer(tensor.storage().clone(), access), Arg::Scalar(Scalar::U64(tensor.layout().offset() as u64))]
}

/// One work-item for each of `n` elements.
pub(crate) fn work(kernel: Kernel, n: usize) -> Result<Work> {
    let local = kernel.work_group_info()?.max_size.min(256);
    Ok(Work::OpenCl(kernel, Grid::new([n.next_multiple_of(local)]).local([local])))
}

/// The type that counts a kernel's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uint {
    Bits32,
    Bits64,
}

impl Uint {
    /// The narrowest for so many elements, with room for a grid's last group.
    pub(crate) fn for_span(n: usize) -> Uint {
        if n < 1 << 31 { Uint::Bits32 } else { Uint::Bits64 }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Uint::Bits32 => "uint",
            Uint::Bits64 => "ulong",
        }
    }

    pub(crate) fn arg(self, n: usize) -> Arg {
        Arg::Scalar(match self {
            Uint::Bits32 => Scalar::U32(n as u32),
            Uint::Bits64 => Scalar::U64(n as u64),
        })
    }
}
