//! Attention of a few queries, whose keys are shared by work-groups: launches of `attention_split.cl`.

use std::cell::Cell;

use netcl_core::backend::opencl::{COUNTERS, Grid, Kernel, Stream};
use netcl_core::device::DeviceType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::expr::opencl::bits_type;
use netcl_core::kernels::launch::{Access, Arg, Scalar, Work};
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::opencl::{Args, arguments, check, is_forced, tensor};
use super::problem::{Problem, Saved};
use crate::elements::{element_defines, kernel_source, load_aligned};
use crate::indexing::opencl::buffer;

/// Queries of a group at most; with more of them a tile of the plain kernel is not wasted.
const MOST_ROWS: usize = 16;
/// Work-items of a group, and those that share a key: four read 32 neighbouring bytes of 16-bit numbers.
const ITEMS: usize = 128;
const LANES: usize = 4;
/// Groups for each compute unit, so that many reads are under way.
const PER_UNIT: usize = 4;

/// A key and a value that are written into `k` and `v` before these are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Append<'t> {
    /// `[batch, heads, 1, width]`
    pub key: &'t Tensor,
    /// `[batch, heads, 1, value width]`
    pub value: &'t Tensor,
    /// Which key it is, `[1]`. Later ones are not looked at.
    pub place: &'t IndexTensor,
}

impl Append<'_> {
    /// Checks shapes and dtypes against the problem.
    fn check(&self, p: &Problem) -> Result<()> {
        let op = p.op;
        for (what, t, width) in [("the new key", self.key, p.d), ("the new value", self.value, p.dv)] {
            p.q.queue().check_same_device(op, t.queue())?;
            let shape = Shape::from([p.batch, p.heads, 1, width]);
            if t.shape() != &shape {
                let why = format!("{what} must have shape {shape}");
                return Err(Error::Shape { op, shape: t.shape().clone(), why });
            }
            if t.dtype() != p.q.dtype() {
                return Err(Error::DtypeMismatch { op, lhs: p.q.dtype(), rhs: t.dtype() });
            }
        }
        let place = self.place.tensor();
        p.q.queue().check_same_device(op, place.queue())?;
        if place.shape()[..] != [1] {
            return Err(Error::Shape { op, shape: place.shape().clone(), why: "the place must have shape (1)".into() });
        }
        Ok(())
    }

    /// Whether the kernel can read and write the tensors where they lie.
    fn lies_well(&self, k: &Tensor, v: &Tensor) -> bool {
        let dense = |t: &Tensor| t.layout().strides()[3] == 1 || t.shape()[3] == 1;
        [self.key, self.value, k, v].into_iter().all(dense)
            && !k.layout().overlaps_itself()
            && !v.layout().overlaps_itself()
    }
}

thread_local! {
    static FORCED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs a closure in which attention on OpenCL devices shares the keys of each head among so many work-groups, whatever the device
/// and the number of queries: for tests and measurements.
pub fn force_split<R>(parts: usize, f: impl FnOnce() -> R) -> R {
    struct Scope(Option<usize>);
    impl Drop for Scope {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    let _scope = Scope(FORCED.replace(Some(parts.max(1))));
    f()
}

/// How keys are shared and a work-group is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    rows: usize,
    items: usize,
    lanes: usize,
    cols: usize,
    /// Elements that are read at once.
    width: usize,
    parts: usize,
    /// Keys of a part.
    depth: usize,
}

impl Plan {
    /// For a few queries of fewer heads than fill the device; `None` leaves them to the other kernels.
    pub(super) fn of(p: &Problem, stream: &Stream, append: Option<&Append<'_>>) -> Option<Plan> {
        let info = stream.device().info();
        let (units, forced) = (info.compute_units.max(1) as usize, FORCED.get());
        let matrices = p.batch * p.heads;
        let gpu = stream.device().device_type() != DeviceType::Cpu;
        let few = p.l <= MOST_ROWS && matrices < PER_UNIT * units;
        if p.drop.is_some() || !(forced.is_some() || (gpu && few && !is_forced())) {
            return None;
        }
        let items = 1 << info.max_work_group_size.clamp(1, ITEMS).ilog2();
        let lanes = LANES.min(items);
        let keys = items / lanes;
        let read = [&p.q, &p.k, &p.v].into_iter().chain(append.iter().flat_map(|append| [append.key, append.value]));
        let width =
            if p.d.is_multiple_of(4) && p.dv.is_multiple_of(4) && read.into_iter().all(in_fours) { 4 } else { 1 };
        // As few slices as there are keys of a tile.
        let cols = (p.dv / width).next_power_of_two().clamp(lanes, items);
        let size = p.q.dtype().accumulator().size();
        let mut rows = p.l.next_power_of_two().min(MOST_ROWS);
        let bytes = |rows: usize| {
            let left = (p.dv / width).div_ceil(cols) * items * width;
            (rows * (p.d + items + keys + 3) + left) * size
        };
        while bytes(rows) as u64 + 16 > info.local_mem_size {
            if rows == 1 {
                return None;
            }
            rows /= 2;
        }
        let groups = matrices * p.l.div_ceil(rows);
        let tiles = p.s.div_ceil(keys);
        let (parts, depth) = match forced {
            _ if groups > COUNTERS => (1, p.s),
            Some(parts) => (parts, p.s.div_ceil(parts)),
            None => {
                let depth = tiles.div_ceil((PER_UNIT * units / groups).clamp(1, tiles)) * keys;
                (p.s.div_ceil(depth), depth)
            }
        };
        Some(Plan { rows, items, lanes, cols, width, parts, depth })
    }
}

/// Whether rows can be read four elements at a time.
fn in_fours(t: &Tensor) -> bool {
    let layout = t.layout();
    layout.offset().is_multiple_of(4) && layout.strides().iter().take(3).all(|stride| stride % 4 == 0)
}

fn kernel(p: &Problem, stream: &Stream, plan: Plan, append: Option<&Append<'_>>) -> Result<Kernel> {
    let Plan { rows, items, lanes, cols, width, parts, .. } = plan;
    let (name, dtype, split) = ("attention_split", p.q.dtype(), parts > 1);
    let place = append.map(|append| append.place.tensor().dtype().cl_type());
    let layout = [rows, items, lanes, cols, width, p.d, p.dv];
    stream.kernel(&(name, dtype, layout, split, place), || {
        let values = [
            ("ROWS", rows),
            ("TX", items),
            ("TY", 1),
            ("KEYS", items / lanes),
            ("LANES", lanes),
            ("COLS", cols),
            ("SLICES", items / cols),
            ("D", p.d),
            ("DV", p.dv),
            ("DROPOUT", 0),
            ("WIDTH", width),
            ("PARTS", usize::from(split)),
            ("APPEND", usize::from(place.is_some())),
        ];
        let mut defines = element_defines(dtype);
        defines.extend(values.map(|(name, value)| format!("#define {name} {value}\n")));
        let vector = if width == 1 { String::new() } else { width.to_string() };
        let (compute, load) = (dtype.accumulator().cl_type(), load_aligned(dtype, "(p)", width));
        defines += &format!(
            "#define SPLIT\n#define VCOMPUTE {compute}{vector}\n#define LOADV(p) ({load})\n#define FENCE {}\n#define PLACE {}\n#define BITS {}\n",
            stream.device_fence(),
            place.unwrap_or("long"),
            bits_type(dtype.size()),
        );
        (kernel_source(&defines, &[include_str!("attention.cl"), include_str!("attention_split.cl")]), name)
    })
}

pub(super) fn forward(
    p: &Problem,
    stream: &Stream,
    plan: Plan,
    append: Option<&Append<'_>>,
    saved: Saved<'_>,
) -> Result<(Work, Args)> {
    check(p, stream)?;
    let kernel = kernel(p, stream, plan, append)?;
    let (blocks, matrices) = (p.l.div_ceil(plan.rows), p.batch * p.heads);
    let mut args = arguments(p, if append.is_some() { Access::Write } else { Access::Read });
    args.extend(buffer(saved.out, Access::Write));
    args.extend(buffer(saved.logsumexp, Access::Write));
    args.push(Arg::Scalar(Scalar::U32(plan.depth as u32)));
    if let Some(Append { key, value, place }) = append {
        args.extend([key, value].into_iter().flat_map(|t| tensor(t, Access::Read)));
        args.extend(buffer(place.tensor(), Access::Read));
    }
    if plan.parts > 1 {
        let padded = (p.dv / plan.width).next_multiple_of(plan.cols) * plan.width;
        let make = |each: usize| {
            let shape = [matrices * blocks, plan.parts, plan.rows, each];
            Tensor::uninit(p.q.queue(), shape, p.q.dtype().accumulator())
        };
        let memory = [make(padded)?.storage().clone(), make(2)?.storage().clone(), stream.counters()?];
        args.extend(memory.map(|memory| Arg::Buffer(memory, Access::Write)));
    }
    let grid = Grid::new([plan.parts * plan.items, blocks, matrices]).local([plan.items, 1, 1]);
    Ok((Work::OpenCl(kernel, grid), args))
}

/// Whether attention with a new key and value is one launch for these tensors; checks them.
pub(super) fn plan_append(
    p: &Problem,
    stream: &Stream,
    k: &Tensor,
    v: &Tensor,
    append: &Append<'_>,
) -> Result<Option<Plan>> {
    append.check(p)?;
    Ok(if append.lies_well(k, v) { Plan::of(p, stream, Some(append)) } else { None })
}
