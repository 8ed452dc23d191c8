//! Launches of `take.cl` and `add_rows.cl`.

use netcl_core::backend::opencl::{Grid, Kernel, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::VECTOR_BYTES;
use netcl_core::kernels::expr::opencl::{IndexWidth, bits_type};
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::tensor::{Tensor, reshape};
use netcl_core::{Error, Result};
use smallvec::smallvec;

use super::order::Pairs;
use super::problem::{Args, Rows, check, host};
use crate::elements::{element_defines, kernel_source};
use crate::row_tile::RowTile;

pub(super) fn take(rows: &Rows, stream: &Stream, x: &Tensor, at: &Tensor, out: &Tensor) -> Result<(Work, Args)> {
    let uint = IndexWidth::for_span(x.size().max(out.size()));
    let size = x.dtype().size();
    let width = if rows.along { 1 } else { whole_vectors(rows.inner, &[x, out]) };
    let bits = bits_type(size * width);
    let (index, uint_type) = (at.dtype().cl_type(), uint.names().0);
    let kernel = stream.kernel(&("take.cl:take", bits, index, uint_type), || {
        let outside = if bits == "uint4" { "#define OUTSIDE(bits) as_uint4((ulong2)(bits))\n" } else { "" };
        let defines = format!("#define BITS {bits}\n#define INDEX {index}\n#define UINT {uint_type}\n{outside}");
        (kernel_source(&defines, &[include_str!("take.cl")]), "take")
    })?;
    // As often as it fits into eight bytes.
    let nan = match x.dtype() {
        DType::F32 => u64::from(f32::NAN.to_bits()) * 0x1_0000_0001,
        DType::F64 => f64::NAN.to_bits(),
        DType::F16 => u64::from(half::f16::NAN.to_bits()) * 0x1_0001_0001_0001,
        DType::BF16 => u64::from(half::bf16::NAN.to_bits()) * 0x1_0001_0001_0001,
        _ => 0,
    };
    let mut args = Args::new();
    let units = |[memory, first]: [Arg; 2], tensor: &Tensor| match width {
        1 => [memory, first],
        _ => [memory, Arg::Scalar(Scalar::U64((tensor.layout().offset() / width) as u64))],
    };
    args.extend(units(buffer(x, Access::Read), x));
    args.extend(buffer(at, Access::Read));
    args.extend(units(buffer(out, Access::Write), out));
    args.extend([out.size() / width, rows.n, rows.k, rows.inner / width].map(|v| uint.unsigned(v)));
    args.extend([Scalar::U32(u32::from(rows.along)), Scalar::U64(nan)].map(Arg::Scalar));
    Ok((work(kernel, out.size() / width)?, args))
}

/// The elements that a work-item moves at once: as many as make 16 bytes, where whole rows are such; else one.
fn whole_vectors(inner: usize, tensors: &[&Tensor]) -> usize {
    let width = VECTOR_BYTES / tensors[0].dtype().size();
    let whole = inner.is_multiple_of(width) && tensors.iter().all(|t| t.layout().offset().is_multiple_of(width));
    if whole { width } else { 1 }
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
    let sorted = sorted(rows, stream, at, out)?;
    if out.size() == 0 {
        return Ok(None);
    }
    let (_, n, k, inner) = rows.destinations();
    // A source without elements has no memory; nothing reads it.
    let source = if source.size() == 0 { out } else { source };
    let uint = IndexWidth::for_span(source.size().max(out.size()));
    let from = base.unwrap_or(source);
    let width = whole_vectors(inner, &[source, out, from]);
    let kernel = typed(stream, "add_rows", out.dtype(), sorted.types(), uint, width)?;
    let mut args = Args::new();
    args.extend(buffer(source, Access::Read));
    args.extend(buffer(&sorted.keys, Access::Read));
    args.extend(buffer(&sorted.places, Access::Read));
    args.extend(buffer(out, Access::Write));
    args.extend([out.size() / width, n, k, inner / width].map(|v| uint.unsigned(v)));
    args.push(Arg::Scalar(Scalar::U32(sorted.count as u32)));
    args.extend(buffer(from, Access::Read));
    args.push(Arg::Scalar(Scalar::U32(u32::from(base.is_some()))));
    Ok(Some((work(kernel, out.size() / width)?, args)))
}

/// Destinations in order and the sources that go there, in device memory.
pub(super) struct Order {
    pub(super) keys: Tensor,
    pub(super) places: Tensor,
    pub(super) count: usize,
}

/// The sources of a result by their destinations there.
pub(super) fn sorted(rows: &Rows, stream: &Stream, at: &Tensor, out: &Tensor) -> Result<Order> {
    match launch::check_readable(rows.op) {
        Ok(()) => sort_on_host(rows, stream, at, out),
        Err(_) if at.size() > 0 && out.size() > 0 => sort_on_device(rows, stream, at),
        Err(_) => Order::none(out),
    }
}

impl Order {
    /// No sources. Nothing is read of the tensors, but a kernel wants buffers.
    fn none(out: &Tensor) -> Result<Order> {
        let keys = Tensor::uninit(out.queue(), [1], DType::I32)?;
        Ok(Order { places: keys.clone(), keys, count: 0 })
    }

    pub(super) fn types(&self) -> [&'static str; 2] {
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
        let uint = IndexWidth::for_span(count);
        let (index, uint_type) = (at.dtype().cl_type(), uint.names().0);
        let kernel = stream.kernel(&("take.cl:destinations", index, uint_type), || {
            let defines = format!("#define INDEX {index}\n#define UINT {uint_type}\n");
            (kernel_source(&defines, &[include_str!("take.cl")]), "destinations")
        })?;
        let keys = Tensor::uninit(at.queue(), [count], DType::I64)?;
        let mut args = Args::new();
        args.extend(buffer(at, Access::Read));
        args.extend(buffer(&keys, Access::Write));
        args.extend([count, rows.n, rows.k, rows.inner].map(|v| uint.unsigned(v)));
        let cost = Cost { flops: 0.0, bytes: (count * (8 + at.dtype().size())) as f64 };
        let work = work(kernel, count)?;
        launch::submit(Launch { name: "destinations".into(), queue: at.queue().clone(), work, args, cost })?;
        keys
    } else {
        reshape(at, [count])?
    };
    if count == 1 {
        // One destination is in order, and its source is the first.
        return Ok(Order { keys, places: Tensor::from_shape(at.queue(), [1], DType::I32)?, count });
    }
    let sorted = crate::sort::sort(&keys, 0, false)?;
    Ok(Order { keys: sorted.values, places: sorted.indices.tensor().clone(), count })
}

pub(super) fn one_hot(stream: &Stream, at: &Tensor, out: &Tensor, classes: usize) -> Result<(Work, Args)> {
    let uint = IndexWidth::for_span(out.size());
    let index = at.dtype().cl_type();
    let kernel = typed(stream, "one_hot", out.dtype(), [index, index], uint, 1)?;
    let mut args: Args = smallvec![];
    args.extend(buffer(at, Access::Read));
    args.extend(buffer(out, Access::Write));
    args.extend([out.size(), classes].map(|v| uint.unsigned(v)));
    Ok((work(kernel, out.size())?, args))
}

/// A kernel of `add_rows.cl` for elements of a dtype, these types of destinations and sources, and vectors of so many elements.
fn typed(
    stream: &Stream,
    name: &'static str,
    dtype: DType,
    [keys, places]: [&str; 2],
    uint: IndexWidth,
    width: usize,
) -> Result<Kernel> {
    let uint = uint.names().0;
    stream.kernel(&("add_rows.cl", name, dtype, [keys, places], uint, width), || {
        let (elements, vectors) = (element_defines(dtype), RowTile::vectors(width).defines(dtype));
        let defines = format!("{elements}{vectors}#define KEYS {keys}\n#define PLACES {places}\n#define UINT {uint}\n");
        (kernel_source(&defines, &[include_str!("add_rows.cl")]), name)
    })
}

/// A buffer and the place of its first element.
pub(crate) fn buffer(tensor: &Tensor, access: Access) -> [Arg; 2] {
    [Arg::Buffer(tensor.storage().clone(), access), Arg::Scalar(Scalar::U64(tensor.layout().offset() as u64))]
}

/// One work-item for each of `n` elements.
pub(crate) fn work(kernel: Kernel, n: usize) -> Result<Work> {
    let local = kernel.group_up_to(256)?;
    Ok(Work::OpenCl(kernel, Grid::new([n.next_multiple_of(local)]).local([local])))
}
