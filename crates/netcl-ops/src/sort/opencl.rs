//! Launches of `sort.cl` and `put.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Kernel, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::opencl::{IndexWidth, bits_type};
use netcl_core::kernels::group_limit::largest_group;
use netcl_core::kernels::launch::{Access, Arg, Scalar, Work};
use netcl_core::tensor::Tensor;
use smallvec::smallvec;

use super::{Args, Lines};
use crate::elements::kernel_source;
use crate::indexing::opencl::{buffer, work};

/// Slots of a group at most: a GPU has room for several such groups on a compute unit.
const SLOTS: usize = 4096;
/// Slots that a work-item holds in registers, and those of a group that shares local memory among few pieces.
const HELD: usize = 16;
const FEWEST: usize = 64 * HELD;
/// Bytes of local memory that are left to the driver.
const RESERVED: usize = 1024;

/// Keys and positions in device memory.
struct Pairs {
    keys: Tensor,
    places: Tensor,
}

/// How one call is sorted.
struct Sorter<'s> {
    lines: Lines,
    stream: &'s Stream,
    x: &'s Tensor,
    values: &'s Tensor,
    indices: &'s Tensor,
    descending: bool,
    uint: IndexWidth,
    /// Slots of local memory that a group sorts.
    slots: usize,
    group: usize,
    works: Vec<(Work, Args)>,
}

pub(super) fn sort(
    lines: Lines,
    stream: &Stream,
    x: &Tensor,
    values: &Tensor,
    indices: &Tensor,
    descending: bool,
) -> Result<Vec<(Work, Args)>> {
    let info = stream.device().info();
    let pair = key_dtype(x.dtype()).size() + 4;
    // Drivers keep some for themselves: NVIDIA's refuses a kernel that asks for all of the 48 KB that it names.
    let local = (info.local_mem_size as usize).saturating_sub(RESERVED);
    let slots = (local / pair).clamp(HELD, SLOTS);
    let slots = 1 << slots.ilog2();
    let sorter = Sorter {
        lines,
        stream,
        x,
        values,
        indices,
        descending,
        // Pieces are padded to whole slots.
        uint: IndexWidth::for_span(2 * x.size().max(slots)),
        slots,
        group: 1 << largest_group(stream.device()).min(SLOTS / HELD).ilog2(),
        works: Vec::new(),
    };
    sorter.run()
}

impl Sorter<'_> {
    fn run(mut self) -> Result<Vec<(Work, Args)>> {
        let Lines { n, k, .. } = self.lines;
        if n <= self.slots {
            self.pieces(None, n, k)?;
        } else if k <= self.slots / 2 {
            self.keep_best()?;
        } else {
            self.merge()?;
        }
        Ok(self.works)
    }

    /// Few of many: the best of each piece, and of what is left again.
    fn keep_best(&mut self) -> Result<()> {
        let k = self.lines.k;
        let (mut n, mut pairs) = (self.lines.n, None);
        while n > self.slots {
            pairs = self.pieces(pairs.as_ref(), n, k)?;
            n = n.div_ceil(self.slots) * k;
        }
        self.pieces(pairs.as_ref(), n, k)?;
        Ok(())
    }

    /// All of many: pieces in order, then longer and longer runs.
    fn merge(&mut self) -> Result<()> {
        let Lines { count, n, k, .. } = self.lines;
        let padded = n.next_multiple_of(self.slots);
        let Some(mut pairs) = self.pieces(None, n, self.slots)? else { return Ok(()) };
        let mut next = self.pairs(count * padded)?;
        let mut run = self.slots;
        while run < padded {
            let mut args: Args = [&pairs.keys, &pairs.places].into_iter().map(|t| memory(t, Access::Read)).collect();
            args.extend([&next.keys, &next.places].map(|t| memory(t, Access::Write)));
            args.extend([count * padded, padded, run].map(|v| self.uint.unsigned(v)));
            self.works.push((work(self.kernel("merge_runs")?, count * padded)?, args));
            std::mem::swap(&mut pairs, &mut next);
            run *= 2;
        }
        let mut args = Args::new();
        args.extend(buffer(self.x, Access::Read));
        args.push(memory(&pairs.places, Access::Read));
        args.extend(buffer(self.values, Access::Write));
        args.extend(buffer(self.indices, Access::Write));
        args.extend([count * k, n, k, padded].map(|v| self.uint.unsigned(v)));
        self.works.push((work(self.kernel("sort_finish")?, count * k)?, args));
        Ok(())
    }

    /// Sorts the pieces of lines of `n` elements (or pairs) and keeps the first `keep` of each. Lines of one piece are done
    /// with it; else the kept pairs come back.
    fn pieces(&mut self, from: Option<&Pairs>, n: usize, keep: usize) -> Result<Option<Pairs>> {
        let Lines { count, n: whole, .. } = self.lines;
        let piece = n.next_power_of_two().clamp(HELD, self.slots);
        let span = n.min(piece);
        let pieces = count * n.div_ceil(span);
        let last = pieces == count && keep == self.lines.k;
        let to = if last { None } else { Some(self.pairs(pieces * keep)?) };
        // A group takes several short pieces.
        let slots = self.slots.min(FEWEST.max(piece));
        // What a pass does not use is not looked at: any buffer will do.
        let unused = || memory(self.x, Access::Read);
        let mut args = Args::new();
        args.extend(buffer(self.x, Access::Read));
        let read = |t: &Tensor| memory(t, Access::Read);
        let write = |t: &Tensor| memory(t, Access::Write);
        args.extend([from.map_or_else(unused, |p| read(&p.keys)), from.map_or_else(unused, |p| read(&p.places))]);
        args.extend([
            to.as_ref().map_or_else(unused, |p| write(&p.keys)),
            to.as_ref().map_or_else(unused, |p| write(&p.places)),
        ]);
        args.extend(buffer(self.values, Access::Write));
        args.extend(buffer(self.indices, Access::Write));
        args.extend([count, n, span, keep, whole].map(|v| self.uint.unsigned(v)));
        let flags = [slots, piece, usize::from(from.is_some()), usize::from(last), usize::from(self.descending)];
        args.extend(flags.map(|v| Arg::Scalar(Scalar::U32(v as u32))));
        args.extend([Arg::Local(slots * key_dtype(self.x.dtype()).size()), Arg::Local(slots * 4)]);
        let groups = pieces.div_ceil(slots / piece);
        let kernel = self.kernel("sort_pieces")?;
        let group = 1 << kernel.group_up_to(self.group.min(slots / HELD))?.max(1).ilog2();
        self.works.push((Work::OpenCl(kernel, Grid::new([groups * group]).local([group])), args));
        Ok(to)
    }

    fn pairs(&self, n: usize) -> Result<Pairs> {
        let make = |dtype: DType| Tensor::uninit(self.x.queue(), [n], dtype);
        Ok(Pairs { keys: make(key_dtype(self.x.dtype()))?, places: make(DType::I32)? })
    }

    fn kernel(&self, name: &'static str) -> Result<Kernel> {
        let (dtype, uint) = (self.x.dtype(), self.uint.names().0);
        self.stream.kernel(&("sort.cl", name, dtype, uint), || {
            let (bits, key, to_key, is_nan) = match dtype {
                DType::F64 => {
                    ("ulong", "ulong", "double_key(b)", "((b) & 0x7fffffffffffffffUL) > 0x7ff0000000000000UL")
                }
                DType::F16 => ("ushort", "uint", "float_key(as_uint(half_value(b)))", "((b) & 0x7fff) > 0x7c00"),
                DType::BF16 => ("ushort", "uint", "float_key((uint)(b) << 16)", "((b) & 0x7fff) > 0x7f80"),
                DType::I32 => ("uint", "uint", "((b) ^ 0x80000000u)", "0"),
                DType::I64 => ("ulong", "ulong", "((b) ^ 0x8000000000000000UL)", "0"),
                _ => ("uint", "uint", "float_key(b)", "((b) & 0x7fffffffu) > 0x7f800000u"),
            };
            let half = if dtype == DType::F16 { HALF_VALUE } else { "" };
            let defines = format!(
                "#define BITS {bits}\n#define KEY {key}\n#define TO_KEY(b) {to_key}\n#define IS_NAN(b) ({is_nan})\n\
                 #define UINT {uint}\n{half}"
            );
            (kernel_source(&defines, &[include_str!("sort.cl")]), name)
        })
    }
}

/// A half by its bits.
const HALF_VALUE: &str = "float half_value(ushort bits) { return vload_half(0, (const __private half *)&bits); }\n";

/// What holds the keys of a dtype; they are not numbers to compute with, only its size matters.
fn key_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 | DType::I64 => DType::I64,
        _ => DType::I32,
    }
}

fn memory(t: &Tensor, access: Access) -> Arg {
    Arg::Buffer(t.storage().clone(), access)
}

pub(super) fn put(lines: Lines, stream: &Stream, from: &Tensor, at: &Tensor, out: &Tensor) -> Result<(Work, Args)> {
    let uint = IndexWidth::for_span(out.size().max(from.size()));
    let bits = bits_type(from.dtype().size());
    let (index, uint_type) = (at.dtype().cl_type(), uint.names().0);
    let kernel = stream.kernel(&("put.cl:put_lines", bits, index, uint_type), || {
        let defines = format!("#define BITS {bits}\n#define INDEX {index}\n#define UINT {uint_type}\n");
        (kernel_source(&defines, &[include_str!("put.cl")]), "put")
    })?;
    let mut args: Args = smallvec![];
    args.extend(buffer(from, Access::Read));
    args.extend(buffer(at, Access::Read));
    args.extend(buffer(out, Access::Write));
    args.extend([from.size(), lines.n, lines.k].map(|v| uint.unsigned(v)));
    Ok((work(kernel, from.size())?, args))
}
