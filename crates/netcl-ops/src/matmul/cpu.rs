//! Products on the native CPU: tiles of the result for the threads of netcl-core's pool, each one a single-threaded `gemm`.
//!
//! How a result is cut depends on its shape alone, so that the bits do not depend on the number of threads. The `gemm` crate
//! packs each tile's operands and dispatches on what the machine can run; 16-bit operands are widened block by block before it sees
//! them. Products with a few rows, which are all about memory, are done by [`skinny`] without packing, and small ones of
//! f32 by [`direct`], where the processor has AVX-512.

mod direct;
mod gemm;
mod panels;
mod prologue;
mod skinny;

use std::sync::Arc;

use netcl_core::backend::cpu::interrupt::checkpoint;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_for};
use netcl_core::backend::cpu::{CpuArgs, CpuKernel};
use netcl_core::dtype::DType;
use netcl_core::host;
use netcl_core::kernels::described::CanFuse;
use netcl_core::kernels::expr::Expr;
use netcl_core::kernels::expr::cpu::{Nest, Program, Source, Target};
use netcl_core::kernels::launch::{self, Access, Arg, Launch, Work};
use netcl_core::{Error, Result};
use smallvec::{SmallVec, smallvec};

use super::problem::{Matrix, Problem};
use crate::epilogue;
pub(crate) use direct::PANEL;
pub(crate) use gemm::{Multiply, gemm};
use panels::Scratch;
pub(crate) use panels::{Operand, Sum, View};
use prologue::BoundPrologue;
pub(crate) use skinny::dot;

/// The largest tile: each pass over a panel of the second operand serves as many rows as its cache lines last.
const TILE: (usize, usize) = (1024, 512);
/// The smallest one that still reuses what it packs often enough.
const SMALLEST: (usize, usize) = (96, 128);
/// Multiply-adds below which another thread costs more than it brings.
const GRAIN: usize = 1 << 18;
/// Multiply-adds of the largest tile, some tenths of a second: between tiles an interrupt can end the product.
const LARGEST: usize = 1 << 32;
/// Tiles to aim for: one for each of many threads costs more in packing than a few idle threads do.
const ENOUGH_TILES: usize = 8;

/// Few columns are few rows of the transposed product; `gemm` itself also likes the longer side to be the columns.
fn flips(problem: &Problem<'_>) -> bool {
    problem.n < problem.m && problem.n <= skinny::ROWS
}

/// Whether an operand may be computed while it is read: blocks of it are, for every tile, where `gemm` packs.
pub(super) fn can_fuse(p: &Problem<'_>, first: bool, expr: &Expr) -> CanFuse {
    let flip = flips(p);
    let (m, n, b) = if flip { (p.n, p.m, (p.a.cs, p.a.rs)) } else { (p.m, p.n, (p.b.rs, p.b.cs)) };
    if skinny::fits(m, n, p.k, b) {
        return CanFuse::No("a product of a few rows reads its operands once, where they lie");
    }
    let tile = tile(m, n, p.k, p.matrices());
    let (times, other) = if first != flip { (n.div_ceil(tile.1), n) } else { (m.div_ceil(tile.0), m) };
    if times > 1 && times * expr.effort() > other / 8 {
        return CanFuse::No("it would be computed again for every tile of the product");
    }
    CanFuse::Yes
}

pub(super) fn run(mut problem: Problem<'_>) -> Result<()> {
    if flips(&problem) {
        problem.transpose();
    }
    let in_place = problem.c.tensor.dtype() == problem.sum
        && problem.compute == problem.sum
        && !problem.inputs.iter().any(|i| i.tensor.shares_storage(problem.c.tensor));
    let program = match problem.epilogue {
        Some(expr) => Some(epilogue::program(expr, problem.compute)?),
        None if in_place => None,
        None => Some(epilogue::program(&epilogue::COPY, problem.compute)?),
    };
    let mut args: SmallVec<[Arg; 8]> = smallvec![
        Arg::Buffer(problem.a.tensor.storage().clone(), Access::Read),
        Arg::Buffer(problem.b.tensor.storage().clone(), Access::Read),
        Arg::Buffer(problem.c.tensor.storage().clone(), Access::Write),
    ];
    args.extend(problem.inputs.iter().map(|i| Arg::Buffer(i.tensor.storage().clone(), Access::Read)));
    args.extend(problem.scalars.iter().map(|number| number.arg(problem.compute)));
    if let Some(prologue) = &problem.prologue {
        args.extend(prologue.inputs.iter().map(|i| Arg::Buffer(i.tensor.storage().clone(), Access::Read)));
        args.extend(prologue.scalars.iter().map(|number| number.arg(prologue.compute)));
    }
    let (queue, cost) = (problem.c.tensor.queue().clone(), problem.cost);
    let geometry = Geometry::new(problem, in_place)?;
    let kernel = CpuKernel::new(move |args| match geometry.dtype {
        DType::F32 => multiply::<f32, f32>(args, &geometry, program.as_deref()),
        DType::F64 => multiply::<f64, f64>(args, &geometry, program.as_deref()),
        DType::F16 => multiply::<half::f16, f32>(args, &geometry, program.as_deref()),
        _ => multiply::<half::bf16, f32>(args, &geometry, program.as_deref()),
    });
    launch::submit(Launch { name: super::OP.into(), queue, work: Work::Cpu(kernel), args, cost })
}

/// `out = a x b` on the calling thread, for a few rows and at most [`PANEL`] columns, whose elements lie side by side: a part of a
/// larger operation.
///
/// # Safety
/// As [`Operand::multiply`].
pub(crate) unsafe fn panel_product<S: Sum>(size: (usize, usize, usize), a: View<S>, b: View<S>, out: View<S>) {
    let direct = || direct::kind(size, (a.rs, a.cs), (b.rs, b.cs), (out.rs, out.cs));
    match (S::DTYPE == DType::F32).then(direct).flatten() {
        // SAFETY: the caller's promise; the elements are f32.
        Some(kind) => unsafe { direct::multiply(kind, size, a.cast(), b.cast(), out.cast()) },
        // SAFETY: the caller's promise.
        None => unsafe { gemm(size, a, b, out, false, Sum::ONE) },
    }
}

/// Where a matrix lies; the memory itself comes with the launch.
struct Place {
    dtype: DType,
    offset: usize,
    end: usize,
    rs: isize,
    cs: isize,
    batch: SmallVec<[isize; 6]>,
}

impl Place {
    fn new(matrix: Matrix<'_>) -> Place {
        let layout = matrix.tensor.layout();
        let (offset, end, dtype) = (layout.offset(), layout.end(), matrix.tensor.dtype());
        Place { dtype, offset, end, rs: matrix.rs, cs: matrix.cs, batch: matrix.batch }
    }

    fn pointer(&self, args: &CpuArgs<'_>, at: usize) -> Result<SharedPtr<u8>> {
        let size = self.dtype.size();
        Ok(SharedPtr::new(args.checked_memory(at, self.end * size)?.wrapping_add(self.offset * size)))
    }

    /// The distance in elements of an element of the matrix at a batch index.
    fn at(&self, lengths: &[usize], mut index: usize, row: usize, col: usize) -> isize {
        let mut at = row as isize * self.rs + col as isize * self.cs;
        for (&n, &stride) in lengths.iter().zip(&self.batch).rev() {
            at += (index % n) as isize * stride;
            index /= n;
        }
        at
    }
}

/// Everything about a product but its memory.
struct Geometry {
    m: usize,
    n: usize,
    k: usize,
    batch: SmallVec<[usize; 4]>,
    dtype: DType,
    a: Place,
    b: Place,
    c: Place,
    inputs: Vec<Place>,
    scalars: usize,
    /// The tile's sides, and how many tiles there are in each direction.
    tile: (usize, usize),
    tiles: (usize, usize),
    /// Sums may be built up in the result itself: it has their type, and no input of the epilogue lies there.
    in_place: bool,
    path: Path,
    prologue: Option<ProloguePlace>,
}

/// Who multiplies a tile.
#[derive(Clone, Copy)]
enum Path {
    Skinny,
    Direct(direct::Kind),
    Packed,
}

/// An operand that is computed while it is read.
struct ProloguePlace {
    first: bool,
    program: Arc<Program>,
    /// The program's inputs beside the operand itself.
    inputs: Vec<Place>,
    scalars: usize,
}

impl Geometry {
    fn new(p: Problem<'_>, in_place: bool) -> Result<Geometry> {
        let size = (p.m, p.n, p.k);
        let strides = |matrix: &Matrix<'_>| (matrix.rs, matrix.cs);
        // Sums that are built up elsewhere lie densely there.
        let out = if in_place { strides(&p.c) } else { (p.n as isize, 1) };
        let path = if p.prologue.is_some() {
            // What is computed as it is packed is packed.
            Path::Packed
        } else if skinny::fits(p.m, p.n, p.k, strides(&p.b)) {
            Path::Skinny
        } else {
            let f32s = p.a.tensor.dtype() == DType::F32 && p.b.tensor.dtype() == DType::F32;
            let direct = f32s.then(|| direct::kind(size, strides(&p.a), strides(&p.b), out)).flatten();
            direct.map_or(Path::Packed, Path::Direct)
        };
        if matches!(path, Path::Skinny) {
            // Its scratch holds the rows of the first operand and a column: views may be longer than any memory.
            host::check::<f64>(super::OP, p.m.saturating_add(1).saturating_mul(p.k))?;
        }
        let tile = match path {
            Path::Skinny => skinny::tile(p.m, p.n, p.k),
            Path::Direct(kind) => direct::tile(kind, size, p.matrices()),
            Path::Packed => tile(p.m, p.n, p.k, p.matrices()),
        };
        let prologue = p.prologue.map(|prologue| {
            let program = epilogue::program(prologue.expr, prologue.compute)?;
            let (first, scalars) = (prologue.first, prologue.scalars.len());
            Ok::<_, Error>(ProloguePlace {
                first,
                program,
                inputs: prologue.inputs.into_iter().map(Place::new).collect(),
                scalars,
            })
        });
        let prologue = prologue.transpose()?;
        Ok(Geometry {
            m: p.m,
            n: p.n,
            k: p.k,
            dtype: p.a.tensor.dtype(),
            a: Place::new(p.a),
            b: Place::new(p.b),
            c: Place::new(p.c),
            inputs: p.inputs.into_iter().map(Place::new).collect(),
            batch: p.batch,
            scalars: p.scalars.len(),
            tile,
            tiles: (p.m.div_ceil(tile.0), p.n.div_ceil(tile.1)),
            in_place,
            path,
            prologue,
        })
    }
}

/// The sides of a tile: as large as the caches like, smaller where there would be too few tiles, evenly cut.
fn tile(m: usize, n: usize, k: usize, matrices: usize) -> (usize, usize) {
    let (mut rows, mut cols) = (m.min(TILE.0), n.min(TILE.1));
    let few = |rows: usize, cols: usize| matrices * m.div_ceil(rows) * n.div_ceil(cols) < ENOUGH_TILES;
    let long = |rows: usize, cols: usize| rows * cols > LARGEST / k.max(1);
    while long(rows, cols) || few(rows, cols) && (rows * cols).saturating_mul(k) > 16 * GRAIN {
        // Tall tiles are the better ones, to a point.
        if cols > SMALLEST.1 && (rows <= 2 * cols || rows <= SMALLEST.0) {
            cols = cols.div_ceil(2);
        } else if rows > SMALLEST.0 {
            rows = rows.div_ceil(2);
        } else {
            break;
        }
    }
    // Whole blocks of the micro-kernels: 6 or 4 rows, and 64 columns or a divisor.
    let even = |length: usize, side: usize, unit: usize| {
        length.div_ceil(length.div_ceil(side)).next_multiple_of(unit).min(length.max(1))
    };
    (even(m, rows, 12), even(n, cols, 64))
}

/// Multiplies operands of `E` with sums of `S`.
fn multiply<E, S>(args: &CpuArgs<'_>, g: &Geometry, program: Option<&Program>) -> Result<()>
where
    E: Operand<Sum = S>,
    S: Sum,
{
    let (a, b, c) = (g.a.pointer(args, 0)?, g.b.pointer(args, 1)?, g.c.pointer(args, 2)?);
    let inputs: SmallVec<[SharedPtr<u8>; 2]> =
        g.inputs.iter().enumerate().map(|(i, place)| place.pointer(args, 3 + i)).collect::<Result<_>>()?;
    let first = 3 + g.inputs.len();
    let scalars: SmallVec<[f64; 4]> = (0..g.scalars).map(|i| args.float(first + i)).collect::<Result<_>>()?;
    let prologue =
        g.prologue.as_ref().map(|prologue| BoundPrologue::new(prologue, args, first + g.scalars)).transpose()?;
    let per_matrix = g.tiles.0 * g.tiles.1;
    let matrices: usize = g.batch.iter().product();
    let work = g.tile.0.saturating_mul(g.tile.1).saturating_mul(g.k).max(1);
    let grain = if matches!(g.path, Path::Skinny) { GRAIN / 8 } else { GRAIN } / work;
    parallel_for(super::OP, per_matrix * matrices, grain, |range| {
        let mut scratch = Scratch::<S>::default();
        for index in range {
            checkpoint();
            let (matrix, tile) = (index / per_matrix, index % per_matrix);
            // Down the rows first: neighbouring tiles share a panel of the second operand.
            let (row, col) = ((tile % g.tiles.0) * g.tile.0, (tile / g.tiles.0) * g.tile.1);
            let (m, n) = (g.tile.0.min(g.m - row), g.tile.1.min(g.n - col));
            let size = size_of::<E>() as isize;
            let at = |place: &Place, row, col| place.at(&g.batch, matrix, row, col);
            // SAFETY: every matrix lies inside its storage (`Place::pointer` checked the end, layouts the start), the launch
            // holds the storages, and no tile of the result meets another tile, an operand, or an input elsewhere than
            // in the very same elements (`matmul_with` moved what would).
            unsafe {
                let a = View { data: a.get().offset(at(&g.a, row, 0) * size).cast::<E>(), rs: g.a.rs, cs: g.a.cs };
                let b = View { data: b.get().offset(at(&g.b, 0, col) * size).cast::<E>(), rs: g.b.rs, cs: g.b.cs };
                let c_size = g.c.dtype.size() as isize;
                let target = c.get().offset(at(&g.c, row, col) * c_size);
                let (sums, rs, cs) = if g.in_place {
                    (target.cast::<S>(), g.c.rs, g.c.cs)
                } else {
                    scratch.sums.resize(m * n, S::default());
                    (scratch.sums.as_mut_ptr(), n as isize, 1)
                };
                let out = View { data: sums, rs, cs };
                let size = (m, n, g.k);
                match (&prologue, g.path) {
                    (Some(prologue), _) => {
                        let operand = if prologue.place.first { &g.a } else { &g.b };
                        let (row, col) = if prologue.place.first { (row, 0) } else { (0, col) };
                        prologue.multiply(
                            size,
                            a,
                            b,
                            out,
                            &mut scratch,
                            (operand, |place: &Place| at(place, row, col)),
                        );
                    }
                    (None, Path::Skinny) => skinny::multiply(size, a, b, out, &mut scratch.values),
                    // Only f32 takes this path.
                    (None, Path::Direct(kind)) => direct::multiply(kind, size, a.cast(), b.cast(), out.cast()),
                    (None, Path::Packed) => E::multiply(size, a, b, out, &mut scratch),
                }
                let Some(program) = program else { continue };
                let shape = [m, n];
                let sum = Source { data: sums.cast::<u8>(), dtype: S::DTYPE, strides: &[rs, cs] };
                let target = Target { data: target, dtype: g.c.dtype, strides: &[g.c.rs, g.c.cs] };
                let strides: SmallVec<[[isize; 2]; 2]> = g.inputs.iter().map(|i| [i.rs, i.cs]).collect();
                let sources: SmallVec<[Source<'_>; 4]> = std::iter::once(sum)
                    .chain(g.inputs.iter().zip(&inputs).zip(&strides).map(|((place, data), strides)| Source {
                        data: data.get().offset(at(place, row, col) * place.dtype.size() as isize),
                        dtype: place.dtype,
                        strides,
                    }))
                    .collect();
                let sources = &sources[..program.inputs()];
                program.run_nest(Nest { shape: &shape }, sources, &[target], &scalars, 0..m * n);
            }
        }
    })
}
