//! Launches of `take.cl` and `add_rows.cl`.

use netcl_core::backend::opencl::{Grid, Kernel, Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::tensor::{Tensor, reshape};
use netcl_core::{Error, Result};
use smallvec::smallvec;

use super::order::Pairs;
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
    let (index, uint_type) = (at.dtype().cl_type(), uint.name());
    let kernel = stream.kernel(&format!("take.cl:take:{bits}:{index}:{uint_type}"), || {
        let defines = format!("#define BITS {bits}\n#define INDEX {index}\n#define UINT {uint_type}\n");
        (Source::new(defines + include_str!("take.cl"), ""), "take")
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
    args.extend([Scalar::U32(u32::from(rows.along)), Scalar::U64(nan)].map(Arg::Scalar));
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
    let sorted = match launch::check_readable(rows.op) {
        Ok(()) => sort_on_host(rows, stream, at, out)?,
        Err(_) if at.size() > 0 && out.size() > 0 => sort_on_device(rows, stream, at)?,
        Err(_) => Order::none(out)?,
    };
    if out.size() == 0 {
        return Ok(None);
    }
    let (_, n, k, inner) = rows.destinations();
    // A source without elements has no memory; nothing reads it.
    let source = if source.size() == 0 { out } else { source };
    let uint = Uint::for_span(source.size().max(out.size()));
    let kernel = typed(stream, "add_rows", out.dtype(), sorted.types(), uint)?;
    let mut args = Args::new();
    args.extend(buffer(source, Access::Read));
    args.extend(buffer(&sorted.keys, Access::Read));
    args.extend(buffer(&sorted.places, Access::Read));
    args.extend(buffer(out, Access::Write));
    args.extend([out.size(), n, k, inner].map(|v| uint.arg(v)));
    args.push(Arg::Scalar(Scalar::U32(sorted.count as u32)));
    args.extend(buffer(base.unwrap_or(source), Access::Read));
    args.push(Arg::Scalar(Scalar::U32(u32::from(base.is_some()))));
    Ok(Some((work(kernel, out.size())?, args)))
}

/// Destinations in order and the sources that go there, in device memory.
struct Order {
    keys: Tensor,
    places: Tensor,
    count: usize,
}

impl Order {
    /// No sources. Nothing is read of the tensors, but a kernel wants buffers.
    fn none(out: &Tensor) -> Result<Order> {
        let keys = Tensor::uninit(out.queue(), [1], DType::I32)?;
        Ok(Order { places: keys.clone(), keys, count: 0 })
    }

    fn types(&self) -> [&'static str; 2] {
        [&self.keys, &self.places].map(|t| t.dtype().cl_type())
    }
}

/// The indices are read to be checked, so they are sorted here, too.
fn sort_on_host(rows: &Rows, stream: &Stream, at: &Tensor, out: &Tensor) -> Result<Order> {
    let values = host(at)?;
    check(rows.op, &values, at.shape(), rows.n)?;
    let (_, n, k, _) = rows.destinations();
    if n.max(k) > i32::MAX as usize {
        let why = format!("{n} destinations and {k} indices need more than 31 bits; cut the tensor along another axis");
        return Err(Error::Unsupported { op: rows.op, device: stream.device().name().to_owned(), why });
    }
    let pairs = Pairs::new(rows, &values, |index| index as u64).0;
    if pairs.is_empty() || out.size() == 0 {
        return Order::none(out);
    }
    let upload = |pick: fn(&(u64, u64)) -> u64| {
        let values: Vec<i32> = pairs.iter().map(|pair| pick(pair) as i32).collect();
        Tensor::from_host(out.queue(), &values, [values.len()])
    };
    Ok(Order { keys: upload(|pair| pair.0)?, places: upload(|pair| pair.1)?, count: pairs.len() })
}

/// While launches are only recorded, the device sorts at each replay. Wrong indices find no destination.
fn sort_on_device(rows: &Rows, stream: &Stream, at: &Tensor) -> Result<Order> {
    let count = at.size();
    let keys = if rows.along {
        let uint = Uint::for_span(count);
        let (index, uint_type) = (at.dtype().cl_type(), uint.name());
        let kernel = stream.kernel(&format!("take.cl:destinations:{index}:{uint_type}"), || {
            let defines = format!("#define INDEX {index}\n#define UINT {uint_type}\n");
            (Source::new(defines + include_str!("take.cl"), ""), "destinations")
        })?;
        let keys = Tensor::uninit(at.queue(), [count], DType::I64)?;
        let mut args = Args::new();
        args.extend(buffer(at, Access::Read));
        args.extend(buffer(&keys, Access::Write));
        args.extend([count, rows.n, rows.k, rows.inner].map(|v| uint.arg(v)));
        let cost = Cost { flops: 0.0, bytes: (count * (8 + at.dtype().size())) as f64 };
        let work = work(kernel, count)?;
        launch::submit(Launch { name: "destinations".into(), queue: at.queue().clone(), work, args, cost })?;
        keys
    } else {
        reshape(at, [count])?
    };
    let sorted = crate::sort::sort(&keys, 0, false)?;
    Ok(Order { keys: sorted.values, places: sorted.indices.tensor().clone(), count })
}

pub(super) fn one_hot(stream: &Stream, at: &Tensor, out: &Tensor, classes: usize) -> Result<(Work, Args)> {
    let uint = Uint::for_span(out.size());
    let index = at.dtype().cl_type();
    let kernel = typed(stream, "one_hot", out.dtype(), [index, index], uint)?;
    let mut args: Args = smallvec![];
    args.extend(buffer(at, Access::Read));
    args.extend(buffer(out, Access::Write));
    args.extend([out.size(), classes].map(|v| uint.arg(v)));
    Ok((work(kernel, out.size())?, args))
}

/// A kernel of `add_rows.cl` for elements of a dtype and these types of destinations and sources.
fn typed(stream: &Stream, name: &'static str, dtype: DType, [keys, places]: [&str; 2], uint: Uint) -> Result<Kernel> {
    let uint = uint.name();
    stream.kernel(&format!("add_rows.cl:{name}:{dtype}:{keys}:{places}:{uint}"), || {
        let defines = format!("#define KEYS {keys}\n#define PLACES {places}\n#define UINT {uint}\n");
        let source = [&element_defines(dtype), &defines, include_str!("add_rows.cl")];
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
