//! How kernels over dense tensors read memory: rows in registers and vectors of 16 bytes on GPUs, wide vectors on processors.

use netcl_core::backend::opencl::{Grid, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::form::{Form, VECTOR_BYTES};

use crate::dense::{Args, ClCode};
use crate::reduce::opencl::{load_aligned, load_vector, store};

/// How the rows of a tensor are held in the registers of work-items: each has some vectors, side by side with its neighbours'.
///
/// A row is read once and written once, whatever happens to it in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wide {
    /// Elements of a vector; 1 where rows do not begin at multiples of 16 bytes.
    pub(crate) width: usize,
    /// Vectors of a work-item.
    pub(crate) vectors: usize,
    /// Work-items of a row.
    pub(crate) lanes: usize,
    /// Work-items of a group, which may have several rows.
    pub(crate) group: usize,
}

/// Elements that a work-item holds of one tensor: few enough for registers, many enough to keep memory busy.
const HELD: usize = 16;
/// Most work-items of a row; more are slower for meeting at barriers.
const MOST_LANES: usize = 512;
/// Work-items of a group.
const WIDE_GROUP: usize = 256;
/// Rows that so few work-items can hold in short shares get these: their neighbours read what lies side by side.
const SHORT: usize = 16;

impl Wide {
    /// For rows of `n` elements, if the device is one for it and the rows are short enough. `aligned` says whether every row
    /// begins at a multiple of 16 bytes, given that `n` elements are one.
    pub(crate) fn new(stream: &Stream, dtype: DType, n: usize, aligned: impl Fn(usize) -> bool) -> Option<Wide> {
        if Form::of(stream.device()) != Form::Groups || n == 0 {
            return None;
        }
        let vector = VECTOR_BYTES / dtype.size();
        let width = if n.is_multiple_of(vector) && aligned(vector) { vector } else { 1 };
        let short = (4 / width).max(1);
        let lanes = |vectors: usize| n.div_ceil(width * vectors).next_power_of_two();
        let vectors = if lanes(short) <= SHORT { short } else { HELD / width };
        let lanes = lanes(vectors);
        let most = stream.device().info().max_work_group_size;
        let group = 1 << most.clamp(1, WIDE_GROUP.max(lanes)).ilog2();
        (lanes <= group && lanes <= MOST_LANES).then_some(Wide { width, vectors, lanes, group })
    }

    /// For rows of any length, in as many pieces as it takes: a group has one row, of which it holds a piece at a time.
    pub(crate) fn long(stream: &Stream, dtype: DType, n: usize, aligned: impl Fn(usize) -> bool) -> Option<Wide> {
        if Form::of(stream.device()) != Form::Groups || n == 0 {
            return None;
        }
        let vector = VECTOR_BYTES / dtype.size();
        let width = if n.is_multiple_of(vector) && aligned(vector) { vector } else { 1 };
        let lanes = 1 << stream.device().info().max_work_group_size.clamp(1, MOST_LANES).ilog2();
        Some(Wide { width, vectors: HELD / width, lanes, group: lanes })
    }

    /// [`Wide::new`] for the dense tensors of a launch, whose rows or elements of parameters all have `n` elements.
    pub(crate) fn for_rows(stream: &Stream, dtype: DType, n: usize, args: &Args) -> Option<Wide> {
        Wide::new(stream, dtype, n, |width| args.aligned(width))
    }

    /// A kernel that has a slot of local memory for each work-item, over so many rows.
    pub(crate) fn code<'s>(&self, code: ClCode<'s>, rows: usize) -> ClCode<'s> {
        ClCode { items: self.items(rows), group: Some(self.group), local: self.group, wide: Some(*self), ..code }
    }

    /// For whole vectors of the `beside` neighbours that a channel has in dense tensors; a group has one row of any length.
    pub(crate) fn for_planes(stream: &Stream, dtype: DType, beside: usize, args: &Args) -> Option<Wide> {
        let wide = Wide::long(stream, dtype, beside, |width| args.aligned(width)).filter(|wide| wide.width > 1)?;
        let group = wide.group.min(WIDE_GROUP);
        Some(Wide { lanes: group, group, ..wide })
    }

    /// One vector of so many elements for each work-item, which need nobody else.
    pub(crate) fn vectors(width: usize) -> Wide {
        Wide { width, vectors: 1, lanes: 1, group: WIDE_GROUP }
    }

    /// A kernel with a work-item for each vector.
    pub(crate) fn elementwise<'s>(&self, code: ClCode<'s>, size: usize) -> ClCode<'s> {
        ClCode { items: size / self.width, group: Some(self.group), wide: Some(*self), ..code }
    }

    /// The work-items of a launch over so many rows.
    pub(crate) fn items(&self, rows: usize) -> usize {
        rows.div_ceil(self.group / self.lanes) * self.group
    }

    /// What the macros depend on.
    pub(crate) fn key(&self) -> String {
        format!(":{}:{}:{}", self.width, self.vectors, self.group)
    }

    /// `GROUP`, `WIDTH`, `VECTORS`, `VCOMPUTE`, `LOADV(p)`, `STOREV(v, p)`, `ALL(join, v)`; `LOADC(p)` and `STOREC(v, p)` for
    /// parameters and statistics.
    pub(crate) fn defines(&self, dtype: DType) -> String {
        let Wide { width, vectors, group, .. } = *self;
        let compute = if dtype == DType::F64 { "double" } else { "float" };
        let vector = if width == 1 { compute.to_owned() } else { format!("{compute}{width}") };
        let all = match width {
            1 => "(v_)",
            2 => "j_((v_).s0, (v_).s1)",
            4 => "j_(j_((v_).s0, (v_).s1), j_((v_).s2, (v_).s3))",
            _ => "j_(j_(j_((v_).s0, (v_).s1), j_((v_).s2, (v_).s3)), j_(j_((v_).s4, (v_).s5), j_((v_).s6, (v_).s7)))",
        };
        let bits = match (dtype, width) {
            (DType::BF16, 2..) => bf16_vector(width),
            _ => String::new(),
        };
        format!(
            "{bits}#define GROUP {group}\n#define WIDTH {width}\n#define VECTORS {vectors}\n#define VCOMPUTE {vector}\n\
             #define LOADV(p_) ({})\n#define STOREV(v_, p_) {}\n#define ALL(j_, v_) {all}\n\
             #define LOADC(p_) (*(__global const {vector} *)(p_))\n#define STOREC(v_, p_) *(__global {vector} *)(p_) = (v_)\n",
            load_aligned(dtype, "p_", width),
            store_aligned(dtype, width),
        )
    }
}

/// Work-items for each compute unit of a processor: enough that one which starts late leaves little to wait for.
pub(crate) const ITEMS_PER_UNIT: usize = 8;
/// Elements of a processor's work-item at least: fewer take less time than it takes to start it.
pub(crate) const SMALLEST_ITEM: usize = 2048;

/// How many of `count` things, of `size` elements each, a processor's work-item takes, and how many work-items there are.
pub(crate) fn deal(stream: &Stream, count: usize, size: usize) -> (usize, usize) {
    let items = stream.device().info().compute_units as usize * ITEMS_PER_UNIT;
    let per = count.div_ceil(items).max(SMALLEST_ITEM.div_ceil(size.max(1)).min(count)).max(1);
    (per, count.div_ceil(per))
}

/// For processors: work-items, so many per compute unit, that have a long stretch of `n` elements each, a multiple of `whole`. The grid
/// and the length of a stretch.
pub(crate) fn stretches(stream: &Stream, n: usize, per_unit: usize, whole: usize) -> (Grid, usize) {
    let items = stream.device().info().compute_units as usize * per_unit;
    let per = n.div_ceil(items).max(SMALLEST_ITEM).next_multiple_of(whole);
    (Grid::new([n.div_ceil(per)]).local([1]), per)
}

/// Lanes of a vector on processors: float16 or double8, which compilers split for narrower registers.
pub(crate) fn vector_width(dtype: DType) -> usize {
    64 / dtype.accumulator().size()
}

/// For kernels on processors: `VCOMPUTE`, `WIDTH` and `LOOSE`, a vector that lies anywhere in memory.
///
/// Such a one is written at once: some drivers make several stores of `vstore`.
pub(crate) fn loose_types(dtype: DType) -> String {
    let (width, size) = (vector_width(dtype), dtype.accumulator().size());
    let compute = if dtype == DType::F64 { "double" } else { "float" };
    let bits = if dtype == DType::BF16 { bf16_vector(width) } else { String::new() };
    format!(
        "{bits}typedef {compute}{width} LOOSE __attribute__((aligned({size})));\n\
         #define VCOMPUTE {compute}{width}\n#define WIDTH {width}\n"
    )
}

/// The statement, without a semicolon, that writes vector `v_` of elements to any place.
pub(crate) fn loose_store(dtype: DType, at: &str) -> String {
    let width = vector_width(dtype);
    match dtype {
        DType::F16 => format!("vstore_half{width}_rte(v_, 0, {at})"),
        DType::BF16 => format!("vstore{width}(bf16_vector(v_), 0, {at})"),
        _ => format!("*(__global LOOSE *)({at}) = (v_)"),
    }
}

/// [`loose_types`], and `LOADV(p)`, `STOREV(v, p)`; `LOADC(p)` and `STOREC(v, p)` for parameters and statistics.
pub(crate) fn loose_defines(dtype: DType) -> String {
    let width = vector_width(dtype);
    format!(
        "{}#define LOADV(p_) ({})\n#define STOREV(v_, p_) {}\n#define LOADC(p_) vload{width}(0, p_)\n\
         #define STOREC(v_, p_) *(__global LOOSE *)(p_) = (v_)\n",
        loose_types(dtype),
        load_vector(dtype, "p_", width),
        loose_store(dtype, "p_"),
    )
}

/// The statement, without a semicolon, that writes vector `v_` to place `p_`, a multiple of its length.
fn store_aligned(dtype: DType, width: usize) -> String {
    match dtype {
        _ if width == 1 => store(dtype, "p_", "(v_)").trim_end_matches(';').to_owned(),
        DType::F16 => format!("vstorea_half{width}_rte(v_, 0, p_)"),
        DType::BF16 => format!("*(__global ushort{width} *)(p_) = bf16_vector(v_)"),
        _ => format!("*(__global {}{width} *)(p_) = (v_)", dtype.cl_type()),
    }
}

/// `bf16_bits` for a vector.
fn bf16_vector(width: usize) -> String {
    format!(
        "ushort{width} bf16_vector(float{width} x) {{
    const uint{width} bits = as_uint{width}(x);
    const uint{width} rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, quiet = (bits >> 16) | 0x40u;
    return convert_ushort{width}(x != x ? quiet : rounded);
}}
"
    )
}
