//! Launches of `attention.cl` and `attention_backward.cl`.

use std::cell::Cell;

use netcl_core::backend::opencl::{Grid, Kernel, Stream};
use netcl_core::device::DeviceType;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Access, Arg, Scalar, Work};
use netcl_core::random::PHILOX_CL;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use super::problem::{Backward, Problem, Saved};
use crate::elements::{element_defines, kernel_source};
use crate::indexing::opencl::buffer;

pub(super) type Args = SmallVec<[Arg; 8]>;

/// The three kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Forward,
    OfQueries,
    OfKeys,
}

/// How a work-group is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tile {
    queries: usize,
    keys: usize,
    tx: usize,
    ty: usize,
}

impl Tile {
    /// The elements of local memory a pass takes: the arrays its kernel declares.
    fn elements(self, pass: Pass, d: usize, dv: usize) -> usize {
        let Tile { queries, keys, tx, .. } = self;
        // Where a group is one work-item, some tiles exist in two forms.
        let twice = usize::from(tx == 1);
        match pass {
            Pass::Forward => queries * d + keys * (d.max(dv) + 1) + queries * keys + 2 * queries * tx,
            Pass::OfQueries => queries * (d + dv) + keys * (d + dv + 2 + twice * d) + queries * keys + queries * tx,
            Pass::OfKeys => keys * (d + dv) + queries * (d + dv) * (1 + twice) + 2 * queries * (1 + keys),
        }
    }

    /// The largest tile that the device has room for.
    fn choose(problem: &Problem, stream: &Stream, pass: Pass) -> Result<Tile> {
        let info = stream.device().info();
        let cpu_device = stream.device().device_type() == DeviceType::Cpu;
        let most = FORCED.get().unwrap_or(if cpu_device { 1 } else { 16 });
        let side = 1 << (info.max_work_group_size.max(1).ilog2() / 2).min(most.max(1).ilog2());
        let tiles: SmallVec<[Tile; 7]> = SIDES
            .into_iter()
            // What a work-item alone keeps should stay in the first-level cache.
            .filter(|&(queries, _)| side > 1 || queries <= 32)
            .map(|(queries, keys)| Tile { queries, keys, tx: side.min(keys), ty: side.min(keys) })
            .collect();
        // Both passes of backward take one tile, so that they come from one program.
        let passes: &[Pass] = if pass == Pass::Forward { &[Pass::Forward] } else { &[Pass::OfQueries, Pass::OfKeys] };
        let size = problem.q.dtype().accumulator().size();
        let bytes = |tile: &Tile| {
            passes.iter().map(|&pass| tile.elements(pass, problem.d, problem.dv) * size).max().unwrap_or(0)
        };
        let fits = |tile: &&Tile| bytes(tile) as u64 <= info.local_mem_size;
        tiles.iter().find(fits).copied().ok_or_else(|| {
            let why = format!(
                "widths of {} and {} take {} bytes of local memory at least, it has {}; use more and narrower heads",
                problem.d,
                problem.dv,
                tiles.last().map_or(0, bytes),
                info.local_mem_size
            );
            Error::Unsupported { op: problem.op, device: stream.device().name().to_owned(), why }
        })
    }
}

/// Queries and keys of a tile, best first.
const SIDES: [(usize, usize); 7] = [(64, 32), (32, 32), (32, 16), (16, 16), (8, 8), (4, 4), (1, 1)];

thread_local! {
    static FORCED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Whether this thread is inside of [`force_group`].
pub(super) fn is_forced() -> bool {
    FORCED.get().is_some()
}

/// Runs a closure in which attention on OpenCL devices takes work-groups of at most `side` x `side` work-items, also on
/// CPU devices, which otherwise take one, and no matrix units: for tests and measurements.
pub fn force_group<R>(side: usize, f: impl FnOnce() -> R) -> R {
    struct Scope(Option<usize>);
    impl Drop for Scope {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    let _scope = Scope(FORCED.replace(Some(side)));
    f()
}

fn kernel(problem: &Problem, stream: &Stream, pass: Pass) -> Result<(Kernel, Tile)> {
    let tile = Tile::choose(problem, stream, pass)?;
    let name = match pass {
        Pass::Forward => "attention_forward",
        Pass::OfQueries => "attention_backward_q",
        Pass::OfKeys => "attention_backward_kv",
    };
    let dtype = problem.q.dtype();
    let Tile { queries, keys, tx, ty } = tile;
    let (d, dv, dropout) = (problem.d, problem.dv, u8::from(problem.drop.is_some()));
    let kernel = stream.kernel(&(name, dtype, tile, [d, dv], dropout), || {
        let random = if dropout == 1 { PHILOX_CL } else { "" };
        let defines = format!(
            "#define QUERIES {queries}\n#define KEYS {keys}\n#define TX {tx}\n#define TY {ty}\n#define D {d}\n\
             #define DV {dv}\n#define DROPOUT {dropout}\n{}",
            if pass == Pass::Forward { "" } else { "#define BACKWARD\n" }
        );
        let backward = if pass == Pass::Forward { "" } else { include_str!("attention_backward.cl") };
        (kernel_source(&(element_defines(dtype) + &defines), &[random, include_str!("attention.cl"), backward]), name)
    })?;
    Ok((kernel, tile))
}

/// A tensor's memory and the distances of its batches, heads and rows.
pub(super) fn tensor(t: &Tensor, access: Access) -> impl Iterator<Item = Arg> + use<> {
    let strides: SmallVec<[i64; 3]> = t.layout().strides().iter().take(3).map(|&s| s as i64).collect();
    buffer(t, access).into_iter().chain(strides.into_iter().map(|s| Arg::Scalar(Scalar::I64(s))))
}

/// The arguments of `PROBLEM`; `keys` says what happens to keys and values.
pub(super) fn arguments(problem: &Problem, keys: Access) -> Args {
    let mut args = Args::new();
    let mask = problem.mask.as_ref().unwrap_or(&problem.q);
    for (t, access) in [(&problem.q, Access::Read), (&problem.k, keys), (&problem.v, keys), (mask, Access::Read)] {
        args.extend(tensor(t, access));
    }
    let number = |v: f64| match problem.q.dtype() {
        DType::F64 => Scalar::F64(v),
        _ => Scalar::F32(v as f32),
    };
    let counts =
        [usize::from(problem.mask.is_some()), usize::from(problem.causal), problem.heads, problem.l, problem.s];
    let none = || [Scalar::U64(0), Scalar::U64(0)];
    let [seed, block] = problem.drop.as_ref().map_or_else(none, |drop| drop.place.scalars());
    let (below, scale) = problem.drop.as_ref().map_or((0, 1.0), |drop| (drop.below, drop.scale));
    args.push(Arg::Scalar(Scalar::I64(mask.layout().strides()[3] as i64)));
    args.extend(counts.map(|n| Arg::Scalar(Scalar::U32(n as u32))));
    args.extend([number(problem.scale), seed, block, Scalar::U32(below), number(scale)].map(Arg::Scalar));
    args
}

/// A work-group for each block of `rows` rows of every batch and head.
fn work(problem: &Problem, (kernel, tile): (Kernel, Tile), length: usize, rows: usize) -> Work {
    let grid = Grid::new([length.div_ceil(rows) * tile.tx, problem.batch * problem.heads * tile.ty]);
    Work::OpenCl(kernel, grid.local([tile.tx, tile.ty]))
}

pub(super) fn check(problem: &Problem, stream: &Stream) -> Result<()> {
    if problem.l.max(problem.s) < 1 << 31 {
        return Ok(());
    }
    let why = format!("{} queries and {} keys are more than it can count", problem.l, problem.s);
    Err(Error::Unsupported { op: problem.op, device: stream.device().name().to_owned(), why })
}

pub(super) fn forward(problem: &Problem, stream: &Stream, saved: Saved<'_>) -> Result<(Work, Args)> {
    check(problem, stream)?;
    let (kernel, tile) = kernel(problem, stream, Pass::Forward)?;
    let mut args = arguments(problem, Access::Read);
    args.extend(buffer(saved.out, Access::Write));
    args.extend(buffer(saved.logsumexp, Access::Write));
    Ok((work(problem, (kernel, tile), problem.l, tile.queries), args))
}

/// The gradient of q, which also writes what the gradients of k and v need; then those.
pub(super) fn backward(problem: &Problem, stream: &Stream, backward: &Backward<'_>) -> Result<Vec<(Work, Args)>> {
    check(problem, stream)?;
    let [dq, dk, dv] = backward.gradients;
    let (of_queries, tile) = kernel(problem, stream, Pass::OfQueries)?;
    let mut args = arguments(problem, Access::Read);
    args.extend(tensor(backward.grad, Access::Read));
    args.extend(tensor(backward.out, Access::Read));
    args.extend(buffer(backward.logsumexp, Access::Read));
    args.extend(buffer(backward.delta, Access::Write));
    args.extend(buffer(dq, Access::Write));
    let first = (work(problem, (of_queries, tile), problem.l, tile.queries), args);
    let (of_keys, tile) = kernel(problem, stream, Pass::OfKeys)?;
    let mut args = arguments(problem, Access::Read);
    args.extend(tensor(backward.grad, Access::Read));
    args.extend(buffer(backward.logsumexp, Access::Read));
    args.extend(buffer(backward.delta, Access::Read));
    args.extend(buffer(dk, Access::Write));
    args.extend(buffer(dv, Access::Write));
    Ok(vec![first, (work(problem, (of_keys, tile), problem.s, tile.keys), args)])
}
