//! How kernels over dense tensors read memory: rows in registers, vectors of 16 bytes.

use netcl_core::backend::opencl::Stream;
use netcl_core::dtype::DType;
use netcl_core::kernels::VECTOR_BYTES;
use netcl_core::kernels::group_limit::largest_group;

use crate::dense::{Args, ClCode};
use crate::elements::{load_aligned, rounding, store_aligned};

/// How the rows of a tensor are held in the registers of work-items: each has some vectors, side by side with its neighbours'.
///
/// A row is read once and written once, whatever happens to it in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowTile {
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

impl RowTile {
    /// For rows of `n` elements, if they are short enough for the device's work-groups. `aligned` says whether every row
    /// begins at a multiple of 16 bytes, given that `n` elements are one.
    pub(crate) fn new(stream: &Stream, dtype: DType, n: usize, aligned: impl Fn(usize) -> bool) -> Option<RowTile> {
        if n == 0 {
            return None;
        }
        let vector = VECTOR_BYTES / dtype.size();
        let width = if n.is_multiple_of(vector) && aligned(vector) { vector } else { 1 };
        let short = (4 / width).max(1);
        let lanes = |vectors: usize| n.div_ceil(width * vectors).next_power_of_two();
        let vectors = if lanes(short) <= SHORT { short } else { HELD / width };
        let lanes = lanes(vectors);
        let group = 1 << largest_group(stream.device()).min(WIDE_GROUP.max(lanes)).ilog2();
        (lanes <= group && lanes <= MOST_LANES).then_some(RowTile { width, vectors, lanes, group })
    }

    /// For rows of any length, in as many pieces as it takes: a group has one row, of which it holds a piece at a time.
    pub(crate) fn long(stream: &Stream, dtype: DType, n: usize, aligned: impl Fn(usize) -> bool) -> Option<RowTile> {
        if n == 0 {
            return None;
        }
        let vector = VECTOR_BYTES / dtype.size();
        let width = if n.is_multiple_of(vector) && aligned(vector) { vector } else { 1 };
        let lanes = 1 << largest_group(stream.device()).min(MOST_LANES).ilog2();
        Some(RowTile { width, vectors: HELD / width, lanes, group: lanes })
    }

    /// [`RowTile::new`] for the dense tensors of a launch, whose rows or elements of parameters all have `n` elements.
    pub(crate) fn for_rows(stream: &Stream, dtype: DType, n: usize, args: &Args) -> Option<RowTile> {
        RowTile::new(stream, dtype, n, |width| args.aligned(width))
    }

    /// A kernel that has a slot of local memory for each work-item, over so many rows.
    pub(crate) fn code<'s>(&self, code: ClCode<'s>, rows: usize) -> ClCode<'s> {
        ClCode { items: self.items(rows), group: Some(self.group), local: self.group, wide: Some(*self), ..code }
    }

    /// For whole vectors of the `beside` neighbours that a channel has in dense tensors; a group has one row of any length.
    pub(crate) fn for_planes(stream: &Stream, dtype: DType, beside: usize, args: &Args) -> Option<RowTile> {
        let wide = RowTile::long(stream, dtype, beside, |width| args.aligned(width)).filter(|wide| wide.width > 1)?;
        let group = wide.group.min(WIDE_GROUP);
        Some(RowTile { lanes: group, group, ..wide })
    }

    /// Independent work-items: each has one vector of so many elements.
    pub(crate) fn vectors(width: usize) -> RowTile {
        RowTile { width, vectors: 1, lanes: 1, group: WIDE_GROUP }
    }

    /// The work-items of a launch over so many rows.
    pub(crate) fn items(&self, rows: usize) -> usize {
        rows.div_ceil(self.group / self.lanes) * self.group
    }

    /// `GROUP`, `WIDTH`, `VECTORS`, `VCOMPUTE`, `LOADV(p)`, `STOREV(v, p)`; `LOADC(p)` and `STOREC(v, p)` for
    /// parameters and statistics.
    pub(crate) fn defines(&self, dtype: DType) -> String {
        let RowTile { width, vectors, group, .. } = *self;
        let compute = if dtype == DType::F64 { "double" } else { "float" };
        let vector = if width == 1 { compute.to_owned() } else { format!("{compute}{width}") };
        // The kernel's own elements bring that of a single one.
        let bits = if width > 1 { rounding(dtype, width) } else { String::new() };
        format!(
            "{bits}#define GROUP {group}\n#define WIDTH {width}\n#define VECTORS {vectors}\n#define VCOMPUTE {vector}\n\
             #define LOADV(p_) ({})\n#define STOREV(v_, p_) {}\n\
             #define LOADC(p_) (*(__global const {vector} *)(p_))\n#define STOREC(v_, p_) *(__global {vector} *)(p_) = (v_)\n",
            load_aligned(dtype, "p_", width),
            store_aligned(dtype, width),
        )
    }
}
