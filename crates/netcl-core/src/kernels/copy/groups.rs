//! Launches of `copy_groups.cl`: fills, copies and casts in vectors, and through tiles where two axes are exchanged.

use std::fmt::Write as _;

use smallvec::{SmallVec, smallvec};

use super::opencl::{Args, MAX_RANK, grid, scalar};
use crate::backend::opencl::{Grid, Source, Stream};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::VECTOR_BYTES;
use crate::kernels::expr::opencl::IndexWidth;
use crate::kernels::expr::opencl::{bf16_bits, bits_type};
use crate::kernels::launch::{Access, Arg, Scalar, Work};
use crate::tensor::Tensor;

/// Work-items of a group that exchanges axes.
const GROUP: usize = 256;
/// Axes at least this long are exchanged in tiles.
const WORTH_TILES: u64 = 16;

/// A copy between parts of two tensors that have at most [`MAX_RANK`] axes.
pub(super) struct Part<'a> {
    pub(super) src: &'a Tensor,
    pub(super) dst: &'a Tensor,
    /// Of the source and of the destination, in elements.
    pub(super) offsets: [u64; 2],
    /// Length and steps of each axis.
    pub(super) axes: SmallVec<[Axis; MAX_RANK]>,
}

/// One axis of a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) n: u64,
    /// In the source and in the destination, in elements.
    pub(super) steps: [i64; 2],
}

/// How a dense destination is cut into vectors.
struct Cut {
    width: usize,
    head: u64,
    vectors: u64,
}

impl Cut {
    fn new(offset: u64, n: u64, width: usize) -> Cut {
        let w = width as u64;
        let head = ((w - offset % w) % w).min(n);
        Cut { width, head, vectors: (n - head) / w }
    }

    /// Enough work-items for the vectors, the head and the tail.
    fn items(&self) -> u64 {
        self.vectors.max(self.width as u64)
    }
}

/// Sets dense elements to bits.
pub(super) fn fill(stream: &Stream, tensor: &Tensor, offset: u64, n: u64, bits: Arg) -> Result<(Work, Args)> {
    let size = tensor.dtype().size();
    let ty = bits_type(size);
    let cut = Cut::new(offset, n, VECTOR_BYTES / size);
    let kernel = stream.kernel(&("copy_groups.cl:fill_vectors", ty), || {
        let text = types(ty, ty, cut.width, true) + &identity(ty);
        (source(text, "fill_vectors"), "fill_vectors")
    })?;
    let args: Args = smallvec![
        Arg::Buffer(tensor.storage().clone(), Access::Write),
        scalar(offset),
        scalar(n),
        Arg::Scalar(Scalar::U32(cut.head as u32)),
        scalar(cut.vectors),
        bits,
    ];
    Ok((Work::OpenCl(kernel, grid(stream, cut.items())), args))
}

impl Part<'_> {
    /// `None` where the kernels for any layout do as well.
    pub(super) fn work(&self, stream: &Stream) -> Result<Option<(Work, Args)>> {
        if self.is_dense() {
            return self.vectors(stream).map(Some);
        }
        if self.src.dtype() != self.dst.dtype() {
            return Ok(None);
        }
        match self.tiles(stream)? {
            Some(work) => Ok(Some(work)),
            None => self.units(stream).map(Some),
        }
    }

    fn is_dense(&self) -> bool {
        let mut expected = 1;
        self.axes.iter().rev().all(|axis| {
            let dense = axis.steps == [expected, expected];
            expected *= axis.n as i64;
            dense
        })
    }

    fn size(&self) -> u64 {
        self.axes.iter().map(|axis| axis.n).product()
    }

    pub(super) fn buffers(&self) -> Args {
        smallvec![
            Arg::Buffer(self.src.storage().clone(), Access::Read),
            scalar(self.offsets[0]),
            Arg::Buffer(self.dst.storage().clone(), Access::Write),
            scalar(self.offsets[1]),
        ]
    }

    fn vectors(&self, stream: &Stream) -> Result<(Work, Args)> {
        let (from, to) = (self.src.dtype(), self.dst.dtype());
        let n = self.size();
        let cut = Cut::new(self.offsets[1], n, VECTOR_BYTES / from.size().max(to.size()));
        let aligned = (self.offsets[0] + cut.head).is_multiple_of(cut.width as u64);
        let bits = bits_type(from.size());
        let cast = (from != to).then_some((from, to));
        let kernel = stream.kernel(&("copy_groups.cl:copy_vectors", bits, cast, aligned), || {
            let text = match cast {
                None => types(bits, bits, cut.width, aligned) + &identity(bits),
                Some(_) => types(declared(from), declared(to), cut.width, aligned) + &conversion(from, to),
            };
            (source(text, "copy_vectors"), "copy_vectors")
        })?;
        let mut args = self.buffers();
        args.extend([scalar(n), Arg::Scalar(Scalar::U32(cut.head as u32)), scalar(cut.vectors)]);
        Ok((Work::OpenCl(kernel, grid(stream, cut.items())), args))
    }

    /// Elements of a vector that starts at a multiple of its length in every row of both sides, once the given axes (one per side)
    /// are dense; else 1.
    fn width(&self, dense: [usize; 2]) -> usize {
        let width = VECTOR_BYTES / self.src.dtype().size();
        let w = width as u64;
        let fits = (0..2).all(|side| {
            self.offsets[side].is_multiple_of(w)
                && self.axes[dense[side]].n.is_multiple_of(w)
                && self.axes.iter().enumerate().all(|(a, axis)| {
                    a == dense[side] || axis.n == 1 || axis.steps[side].unsigned_abs().is_multiple_of(w)
                })
        });
        if fits { width } else { 1 }
    }

    fn index(&self) -> IndexWidth {
        IndexWidth::for_span(self.src.layout().end().max(self.dst.layout().end()).max(self.size() as usize))
    }

    /// Vectors where the innermost axis is dense on both sides, else elements.
    fn units(&self, stream: &Stream) -> Result<(Work, Args)> {
        let size = self.src.dtype().size();
        let last = self.axes.len() - 1;
        let dense = self.axes[last].steps == [1, 1];
        let width = if dense { self.width([last, last]) } else { 1 };
        let w = width as u64;
        let mut axes = self.axes.clone();
        if width > 1 {
            for (a, axis) in axes.iter_mut().enumerate() {
                if a == last {
                    axis.n /= w;
                } else {
                    axis.steps = axis.steps.map(|s| s / width as i64);
                }
            }
        }
        let (bits, index, rank) = (bits_type(size), self.index(), axes.len());
        let unit = if width > 1 { "uint4" } else { bits };
        let kernel = stream.kernel(&("copy_groups.cl:copy_units", bits, unit, index, rank), || {
            let text = types(bits, bits, 1, true) + &identity(bits) + &places(rank, index);
            (source(format!("{text}#define UNIT {unit}\n"), "copy_units"), "copy_units")
        })?;
        let mut args = self.buffers();
        args[1] = scalar(self.offsets[0] / w);
        args[3] = scalar(self.offsets[1] / w);
        extend(&mut args, &axes, index);
        let n: u64 = axes.iter().map(|axis| axis.n).product();
        args.push(index.unsigned(n as usize));
        Ok((Work::OpenCl(kernel, grid(stream, n)), args))
    }

    /// `None` unless each side has a dense axis of its own that is long enough.
    fn tiles(&self, stream: &Stream) -> Result<Option<(Work, Args)>> {
        let dense = |side: usize| self.axes.iter().rposition(|axis| axis.steps[side] == 1 && axis.n >= WORTH_TILES);
        let (Some(q), Some(p)) = (dense(0), dense(1)) else { return Ok(None) };
        if p == q {
            return Ok(None);
        }
        let size = self.src.dtype().size();
        let width = self.width([q, p]);
        let side = if width == 1 || size == 8 { 32 } else { 64 };
        let info = stream.device().info();
        let group = 1 << info.max_work_group_size.clamp(1, GROUP).ilog2();
        if group * width < side || side * (side + 1) * size > info.local_mem_size as usize {
            return Ok(None);
        }
        let outer: SmallVec<[Axis; MAX_RANK]> =
            self.axes.iter().enumerate().filter(|(a, _)| *a != p && *a != q).map(|(_, axis)| *axis).collect();
        let (bits, index, rank) = (bits_type(size), self.index(), outer.len());
        let kernel = stream.kernel(&("copy_groups.cl:copy_tiles", bits, width, index, rank), || {
            let text = types(bits, bits, width, true) + &identity(bits) + &places(rank, index);
            (source(format!("{text}#define TILE {side}\n#define PITCH {}\n", side + 1), "copy_tiles"), "copy_tiles")
        })?;
        let (p, q) = (self.axes[p], self.axes[q]);
        let mut args = self.buffers();
        extend(&mut args, &outer, index);
        args.extend([
            index.unsigned(p.n as usize),
            index.unsigned(q.n as usize),
            index.signed(p.steps[0] as isize),
            index.signed(q.steps[1] as isize),
        ]);
        let tiles = |n: u64| n.div_ceil(side as u64) as usize;
        let outer: u64 = outer.iter().map(|axis| axis.n).product();
        let groups = tiles(p.n) * tiles(q.n) * outer as usize;
        Ok(Some((Work::OpenCl(kernel, Grid::new([groups * group]).local([group])), args)))
    }
}

/// The arguments of `AXES`.
fn extend(args: &mut Args, axes: &[Axis], index: IndexWidth) {
    args.extend(axes.iter().skip(1).map(|axis| index.unsigned(axis.n as usize)));
    for side in 0..2 {
        args.extend(axes.iter().map(|axis| index.signed(axis.steps[side] as isize)));
    }
}

/// `INDEX`, `SIGNED`, `AXES` and `PLACES(i)` for so many axes, which may be none.
fn places(rank: usize, index: IndexWidth) -> String {
    let (uint, int) = index.names();
    let mut axes: String = (1..rank).map(|a| format!("const {uint} n{a}, ")).collect();
    axes.extend(["s", "d"].iter().flat_map(|side| (0..rank).map(move |a| format!("const {int} {side}{a}, "))));
    let mut text = format!("{uint} rest_ = i_; {int} from = 0, to = 0; ");
    for a in (1..rank).rev() {
        let _ =
            write!(text, "from += ({int})(rest_ % n{a}) * s{a}; to += ({int})(rest_ % n{a}) * d{a}; rest_ /= n{a}; ");
    }
    if rank > 0 {
        let _ = write!(text, "from += ({int})rest_ * s0; to += ({int})rest_ * d0; ");
    }
    format!("#define INDEX {uint}\n#define SIGNED {int}\n#define AXES {axes}\n#define PLACES(i_) {text}\n")
}

/// `SRC`, `DST`, their vectors and the ways to read and write these.
fn types(src: &str, dst: &str, width: usize, aligned: bool) -> String {
    let (load, store) = match (width, aligned) {
        (1, _) => ("(v_)[0] = *(p_)".to_owned(), "*(p_) = (v_)[0]".to_owned()),
        (_, true) => (
            format!("vstore{width}(*(__global const {src}{width} *)(p_), 0, v_)"),
            format!("*(__global {dst}{width} *)(p_) = vload{width}(0, v_)"),
        ),
        (_, false) => (
            format!("for (uint k_ = 0; k_ < {width}; ++k_) (v_)[k_] = (p_)[k_]"),
            format!("*(__global {dst}{width} *)(p_) = vload{width}(0, v_)"),
        ),
    };
    format!(
        "#define SRC {src}\n#define DST {dst}\n#define WIDTH {width}\n#define LOADV(v_, p_) {load}\n\
         #define STOREV(p_, v_) {store}\n"
    )
}

/// The type in which a kernel can declare elements.
pub(super) fn declared(dtype: DType) -> &'static str {
    if dtype == DType::F16 { "ushort" } else { dtype.cl_type() }
}

fn identity(ty: &str) -> String {
    format!("{ty} convert_element({ty} v) {{ return v; }}\n")
}

/// `convert_element` between two dtypes. 16-bit floats pass through float.
pub(super) fn conversion(from: DType, to: DType) -> String {
    let (value, ty) = match from {
        DType::F16 => ("vload_half(0, (const __private half *)&v)", "float"),
        DType::BF16 => ("as_float((uint)v << 16)", "float"),
        _ => ("v", from.cl_type()),
    };
    let result = match to {
        DType::F16 if from == DType::F64 => "ushort h; vstore_half_rte(x, 0, (__private half *)&h); return h;",
        DType::F16 => "ushort h; vstore_half_rte(convert_float(x), 0, (__private half *)&h); return h;",
        DType::BF16 => "return bf16_bits(convert_float(x));",
        DType::F32 => "return convert_float(x);",
        DType::F64 => "return convert_double(x);",
        // Like Rust's `as`: towards zero, saturating, NaN to 0 (which drivers do not all do by themselves).
        DType::U8 => "return x != x ? (uchar)0 : convert_uchar_sat_rtz(x);",
        DType::I32 => "return x != x ? 0 : convert_int_sat_rtz(x);",
        DType::I64 => "return x != x ? 0L : convert_long_sat_rtz(x);",
    };
    let wide = "#ifdef cl_khr_fp64\n#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#endif\n";
    let bits = if to == DType::BF16 { bf16_bits(1).text } else { String::new() };
    format!(
        "{wide}{bits}{} convert_element({} v) {{ const {ty} x = {value}; {result} }}\n",
        declared(to),
        declared(from)
    )
}

fn source(mut defines: String, kernel: &str) -> Source {
    let _ = writeln!(defines, "#define KERNEL_{kernel}");
    defines.push_str(include_str!("copy_groups.cl"));
    Source::new(defines, "")
}
