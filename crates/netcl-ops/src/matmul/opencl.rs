//! Products on OpenCL devices: which kernel, how its terms are split, and its launches.
//!
//! Sizes, strides and offsets are arguments; only types, tiles and the epilogue are compiled in, so that a network needs few
//! programs.

mod arithmetic;
mod choice;
mod mma;
mod prologue;
mod source;
mod split;
mod stage;
mod strip;
mod tail;
mod tuned;
mod units;
mod wgmma;

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::{Grid, Kernel, Program, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::{Choice, KernelConfig, KernelVariant, get_kernel_selector};
use netcl_core::kernels::described::RowNorm;
use netcl_core::kernels::expr::opencl::IndexWidth;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::precision::MatmulPrecision;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use super::problem::{Matrix, Problem};
use super::{Variant, check_variant};
use crate::prelude::Prelude;
pub(crate) use arithmetic::Arithmetic;
use choice::{Device, RegisterTile, Tile};
pub(super) use prologue::can_fuse;
use source::{Outcome, result};
use split::Split;
pub(super) use stage::lies_evenly;
pub(crate) use units::define_units;
pub(crate) use wgmma::{Plan, ROWS, StreamK, define_tiles, map_args, wgmma_kernel};

/// Batch axes that the kernels have arguments for; products with more are launched slice by slice.
const BATCH_AXES: usize = 2;

type Args = SmallVec<[Arg; 8]>;

/// The kernel for a product where the call forces none, and its configuration where that is forced on the thread or was measured.
pub(super) fn variant(problem: &Problem<'_>, precision: MatmulPrecision) -> Result<(Variant, Option<KernelConfig>)> {
    let queue = problem.c.tensor.queue();
    let selector = get_kernel_selector(Some(queue))?;
    let spec = problem.spec(precision);
    tuned::measure_at_first_use(&selector, queue, &spec)?;
    let Choice { config, exact } = selector.choose_matmul(&spec)?;
    let variant = check_variant(Variant::of(config.variant), queue, spec.dtype)?;
    // Strips and matrix units have tiles that follow from the problem alone.
    let tiled = matches!(variant, Variant::Naive | Variant::Tiled | Variant::RegisterTiled | Variant::Vectorized);
    Ok((variant, (exact && tiled).then_some(config)))
}

/// Whether a portable kernel is given the transposed product of the transposed operands.
fn flips(variant: Variant, problem: &Problem<'_>) -> bool {
    match variant {
        // Vectors run along the columns: let them be the longer side.
        Variant::Vectorized => problem.n < problem.m && problem.n < 64,
        Variant::Strip => strip::flips(problem),
        _ => false,
    }
}

pub(super) fn run(
    stream: &Stream,
    mut problem: Problem<'_>,
    variant: Variant,
    precision: MatmulPrecision,
    config: Option<&KernelConfig>,
) -> Result<()> {
    let device = Device::new(stream);
    let arithmetic = Arithmetic::of(variant, problem.a.tensor.dtype(), precision);
    let flip = match arithmetic {
        Some(arithmetic) => units::flips(variant, arithmetic, &problem),
        None => flips(variant, &problem),
    };
    if flip {
        problem.transpose();
    }
    let outer = problem.batch.len().saturating_sub(BATCH_AXES);
    let lengths: SmallVec<[usize; 4]> = problem.batch[..outer].iter().copied().collect();
    let slices: usize = lengths.iter().product();
    for slice in 0..slices {
        let this = Multiplication { config, ..Multiplication::new(stream, &device, &problem, &lengths, slice) };
        match arithmetic {
            None => this.launch(variant, None)?,
            Some(arithmetic) => {
                if let Some(flag) = this.launch_units(variant, arithmetic)? {
                    // Does nothing unless the flag is raised; the host never waits for it.
                    this.launch(Variant::RegisterTiled, Some(&flag))?;
                }
            }
        }
    }
    Ok(())
}

/// A product whose first operand's rows are normalised while they are read; `false`, and nothing was launched, where that is not one
/// launch with the same bits.
pub(super) fn run_normed(
    stream: &Stream,
    problem: &Problem<'_>,
    precision: MatmulPrecision,
    norm: &RowNorm,
) -> Result<bool> {
    let (variant, config) = variant(problem, precision)?;
    if variant != Variant::Strip || config.is_some() || flips(variant, problem) || problem.batch.len() > BATCH_AXES {
        return Ok(false);
    }
    let device = Device::new(stream);
    Multiplication::new(stream, &device, problem, &[], 0).launch_normed(norm)
}

/// The program of the tiled kernel for operands of a dtype, built for a queue's device: for those who launch it themselves.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType};
///
/// if let Some(device) = manager().default("opencl")? {
///     let program = netcl_ops::build_matmul_kernel(&device.queue, DType::F32)?;
///     assert_eq!(program.kernel_names(), ["matmul_tiled"]);
/// }
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn build_matmul_kernel(queue: &Queue, dtype: DType) -> Result<Program> {
    let Queue::OpenCl(stream) = queue else {
        return Err(Error::argument(
            "build_matmul_kernel",
            "the native CPU has no OpenCL kernels; use an OpenCL queue",
        ));
    };
    if !dtype.is_float() {
        return Err(Error::Dtype { op: "build_matmul_kernel", expected: "a float dtype".to_owned(), got: dtype });
    }
    queue.check_dtype("build_matmul_kernel", dtype)?;
    // A product of one by one: its kernel is the one of every shape.
    let one = Tensor::uninit(queue, [1, 1], dtype)?;
    let rule = super::ShapeRule::new(&one, &one)?;
    let problem = Problem::new(&rule, &one, &one, &one, &[], None, None)?;
    let device = Device::new(stream);
    let this = Multiplication::new(stream, &device, &problem, &[], 0);
    let kernel = this.tiled_kernel(choice::square_tile(&device, problem.sum.size()), Outcome::Final)?;
    Ok(kernel.program()?.clone())
}

/// One slice of a product, of at most [`BATCH_AXES`] batch axes.
struct Multiplication<'p> {
    stream: &'p Stream,
    device: &'p Device,
    problem: &'p Problem<'p>,
    /// The lengths of the two batch axes.
    batch: [usize; BATCH_AXES],
    /// Outer batch axes and which of their matrices this is.
    outer: &'p [usize],
    slice: usize,
    index: IndexWidth,
    /// Tiles that were measured, instead of those of the rules.
    config: Option<&'p KernelConfig>,
}

/// A matrix as a kernel sees it.
#[derive(Clone)]
struct Operand {
    arg: Arg,
    at: usize,
    rs: isize,
    cs: isize,
    b0: isize,
    b1: isize,
}

impl<'p> Multiplication<'p> {
    fn new(stream: &'p Stream, device: &'p Device, problem: &'p Problem<'p>, outer: &'p [usize], slice: usize) -> Self {
        let inner = &problem.batch[outer.len()..];
        let batch = match *inner {
            [] => [1, 1],
            [n] => [1, n],
            [n0, n1, ..] => [n0, n1],
        };
        let p = problem;
        let prologue = p.prologue.iter().flat_map(|prologue| &prologue.inputs);
        let ends =
            [&p.a, &p.b, &p.c].into_iter().chain(&p.inputs).chain(prologue).map(|matrix| matrix.tensor.layout().end());
        // Packed panels and staged rows are padded; the partial results of all parts are few (`choice::MOST_PARTIAL`).
        let matrices: usize = batch.iter().product();
        let panels = matrices * (p.k + stage::PITCH) * (p.m.max(p.n) + choice::LARGEST_PANEL);
        let span = ends.chain([panels]).max().unwrap_or(0);
        Multiplication { stream, device, problem, batch, outer, slice, index: IndexWidth::for_span(span), config: None }
    }

    fn matrices(&self) -> usize {
        self.batch.iter().product()
    }

    fn operand(&self, matrix: &Matrix<'_>, access: Access) -> Operand {
        let (outer, inner) = matrix.batch.split_at(self.outer.len());
        let mut at = matrix.offset() as isize;
        let mut slice = self.slice;
        for (&n, &stride) in self.outer.iter().zip(outer).rev() {
            at += (slice % n) as isize * stride;
            slice /= n;
        }
        let (b0, b1) = match *inner {
            [] => (0, 0),
            [b1] => (0, b1),
            [b0, b1, ..] => (b0, b1),
        };
        let arg = Arg::Buffer(matrix.tensor.storage().clone(), access);
        Operand { arg, at: at as usize, rs: matrix.rs, cs: matrix.cs, b0, b1 }
    }

    /// Launches a portable kernel; with a flag, one that does nothing while the flag is down.
    fn launch(&self, variant: Variant, flag: Option<&Tensor>) -> Result<()> {
        let tile = match (flag, self.config) {
            (Some(_), _) => choice::guarded_tile(self.device, self.problem.sum.size()),
            (None, Some(config)) => tuned::tile(config, self.problem),
            (None, None) => self.chosen_tile(variant)?,
        };
        self.launch_tile(variant, tile, flag)
    }

    fn chosen_tile(&self, variant: Variant) -> Result<Tile> {
        Ok(match variant {
            Variant::Naive | Variant::Tiled | Variant::Vectorized | Variant::Strip => self.tile(variant, None),
            _ => self.tile(variant, self.shipped_tile()?),
        })
    }

    /// By rule.
    fn tile(&self, variant: Variant, shipped: Option<RegisterTile>) -> Tile {
        choice::tile(self.device, variant, self.problem, self.matrices(), shipped)
    }

    fn launch_tile(&self, variant: Variant, tile: Tile, flag: Option<&Tensor>) -> Result<()> {
        let p = self.problem;
        if let (Tile::Registers(tile), None) = (tile, flag)
            && let Some((tail, fence)) = self.tail(tile)
        {
            return self.launch_tail_wave(variant, tile, tail, fence);
        }
        let split = match flag {
            None => choice::split(self.device, p, self.matrices(), tile),
            Some(_) => Split { parts: 1, depth: p.k },
        };
        let what = if split.parts > 1 { Outcome::Partial } else { Outcome::Final };
        let (a, b) = (self.operand(&p.a, Access::Read), self.operand(&p.b, Access::Read));
        let parts = match what {
            Outcome::Final => None,
            Outcome::Partial => {
                let shape = [split.parts, self.matrices(), p.m, p.n];
                Some(Tensor::uninit(p.c.tensor.queue(), shape, p.sum)?)
            }
        };
        let c = match &parts {
            None => self.operand(&p.c, Access::Write),
            Some(parts) => self.dense(parts, Access::Write, p.m, p.n),
        };
        match tile {
            Tile::One => {
                let kernel =
                    self.build("matmul_naive", include_str!("matmul_naive.cl"), |prelude| self.plain(prelude, what))?;
                let local = choice::flat_group(self.device);
                let global = [p.n.next_multiple_of(local[0]), p.m.next_multiple_of(local[1]), self.z(split)];
                let grid = Grid::new(global).local([local[0], local[1], 1]);
                self.submit(variant, kernel, grid, [a, b, c], split, (what, flag))?;
            }
            Tile::Square(side) => {
                let kernel = self.tiled_kernel(side, what)?;
                let global = [p.n.next_multiple_of(side), p.m.next_multiple_of(side), self.z(split)];
                self.submit(variant, kernel, Grid::new(global).local([side, side, 1]), [a, b, c], split, (what, flag))?;
            }
            Tile::Registers(tile) => {
                let kernel = self.register_tiled_kernel(
                    tile,
                    [&a, &b, &c],
                    what,
                    if flag.is_some() { &[("GUARDED", "1")] } else { &[] },
                )?;
                let items = tile.items();
                let grid = Grid::new([p.n.div_ceil(tile.cols) * items, p.m.div_ceil(tile.rows), self.z(split)]);
                self.submit(variant, kernel, grid.local([items, 1, 1]), [a, b, c], split, (what, flag))?;
            }
            // It adds up its parts itself.
            Tile::Strip(tile) => return self.launch_strip(tile, self.strip_split(tile), None),
            Tile::Vectors { rows, width, vectors, pack_a, pack_b } => {
                let a = if pack_a { self.pack(true, &a, rows)? } else { a };
                let b = if pack_b { self.pack(false, &b, width * vectors)? } else { b };
                let kernel = self.vectorized_kernel((rows, width, vectors), (pack_a, pack_b), what)?;
                let global = [p.m.div_ceil(rows), p.n.div_ceil(width * vectors), self.z(split)];
                self.submit(variant, kernel, Grid::new(global).local([1, 1, 1]), [a, b, c], split, (what, flag))?;
            }
        }
        parts.map_or(Ok(()), |parts| self.reduce(&parts, split))
    }

    /// Matrices that were just made, one after the other.
    fn dense(&self, tensor: &Tensor, access: Access, rows: usize, cols: usize) -> Operand {
        let size = (rows * cols) as isize;
        let arg = Arg::Buffer(tensor.storage().clone(), access);
        Operand { arg, at: 0, rs: cols as isize, cs: 1, b0: size * self.batch[1] as isize, b1: size }
    }

    fn z(&self, split: Split) -> usize {
        self.matrices() * split.parts
    }

    fn plain(&self, prelude: &mut Prelude<'_>, what: Outcome) {
        prelude.sums(self.problem.sum, self.index);
        prelude.loads("T", "LOAD", self.problem.a.tensor.dtype(), self.problem.sum);
        result(prelude, self.problem, what);
        self.define_prologue(prelude);
    }

    fn tiled_kernel(&self, side: usize, what: Outcome) -> Result<Kernel> {
        self.build("matmul_tiled", include_str!("matmul_tiled.cl"), |prelude| {
            self.plain(prelude, what);
            prelude.define("TILE", side);
        })
    }

    /// The tile of large products that the selector's table has for the device.
    fn shipped_tile(&self) -> Result<Option<RegisterTile>> {
        let selector = get_kernel_selector(Some(self.problem.c.tensor.queue()))?;
        Ok(RegisterTile::of(&selector.config(KernelVariant::MatmulRegisterTiled, self.problem.sum)))
    }

    fn register_tiled_kernel(
        &self,
        tile: RegisterTile,
        [a, b, c]: [&Operand; 3],
        what: Outcome,
        further: &[(&str, &str)],
    ) -> Result<Kernel> {
        let p = self.problem;
        let RegisterTile { rows, cols, depth, r, c: columns, slices } = tile;
        let (a_lines, b_lines) = (a.rs.abs() < a.cs.abs(), b.cs.abs() <= b.rs.abs());
        // Neighbours are loaded together where they always lie together, on a boundary of four.
        let width = |operand: &Operand, lines: (bool, usize, usize), steps: (isize, isize)| {
            let (along_lines, count, in_tile) = lines;
            let (step, other) = if along_lines { steps } else { (steps.1, steps.0) };
            let length = if along_lines { [count, in_tile] } else { [p.k, depth] };
            let others = [other, operand.b0, operand.b1, operand.at as isize];
            let whole = length.iter().all(|n| n.is_multiple_of(4)) && others.iter().all(|n| n % 4 == 0);
            if step == 1 && whole { 4 } else { 1 }
        };
        let plain = c.cs == 1 && [c.rs, c.b0, c.b1, c.at as isize, p.n as isize].iter().all(|n| n % 4 == 0);
        let same = what == Outcome::Partial || (p.c.tensor.dtype() == p.sum && p.compute == p.sum);
        let values = [
            ("ROWS", rows),
            ("COLS", cols),
            ("DEPTH", depth),
            ("R", r),
            ("C", columns),
            ("RUN", tile.run()),
            ("SLICES", slices),
            ("A_LINES", usize::from(a_lines)),
            ("B_LINES", usize::from(b_lines)),
            ("A_WIDTH", width(a, (a_lines, p.m, rows), (a.rs, a.cs))),
            ("B_WIDTH", width(b, (b_lines, p.n, cols), (b.cs, b.rs))),
            ("C_WIDTH", if plain && same && tile.run() == 4 { 4 } else { 1 }),
            ("UNROLLED", usize::from(!self.device.cpu_device)),
        ];
        self.build("matmul_register_tiled", include_str!("matmul_register_tiled.cl"), |prelude| {
            self.plain(prelude, what);
            prelude.loads4("LOAD4", p.a.tensor.dtype(), p.sum);
            prelude.defines(values);
            for (name, value) in further {
                prelude.define(name, value);
            }
        })
    }

    fn vectorized_kernel(
        &self,
        (rows, width, vectors): (usize, usize, usize),
        (pack_a, pack_b): (bool, bool),
        what: Outcome,
    ) -> Result<Kernel> {
        let p = self.problem;
        let a = if pack_a { p.sum } else { p.a.tensor.dtype() };
        let plain = what == Outcome::Partial || (p.epilogue.is_none() && p.c.tensor.dtype() == p.sum);
        self.build("matmul_vectorized", include_str!("matmul_vectorized.cl"), |prelude| {
            prelude.sums(p.sum, self.index);
            prelude.loads("A", "LOAD_A", a, p.sum);
            result(prelude, p, what);
            prelude.derive("VEC", format_args!("{}{width}", p.sum.cl_type()));
            prelude.derive("VLOAD", format_args!("vload{width}"));
            prelude.derive("VSTORE", format_args!("vstore{width}"));
            prelude.defines([("WIDTH", width), ("ROWS", rows), ("VECTORS", vectors)]);
            prelude.defines([("PACKED_A", pack_a), ("PACKED_B", pack_b), ("PLAIN", plain)].map(|(n, v)| (n, v.into())));
        })
    }

    fn build(&self, name: &'static str, file: &str, define: impl Fn(&mut Prelude<'_>)) -> Result<Kernel> {
        crate::prelude::kernel(self.stream, name, &[file], define)
    }

    fn number(&self, value: isize) -> Arg {
        self.index.signed(value)
    }

    fn count(&self, value: usize) -> Arg {
        self.number(value as isize)
    }

    fn place(&self, operand: &Operand) -> [Arg; 4] {
        [operand.rs, operand.cs, operand.b0, operand.b1].map(|stride| self.number(stride))
    }

    fn epilogue_args(&self, args: &mut Args) {
        let p = self.problem;
        if p.epilogue.is_none() {
            return;
        }
        for input in &p.inputs {
            let input = self.operand(input, Access::Read);
            args.push(input.arg.clone());
            args.push(Arg::Scalar(Scalar::U64(input.at as u64)));
            args.extend(self.place(&input));
        }
        args.extend(p.scalars.iter().map(|number| number.arg(p.compute)));
    }

    fn submit(
        &self,
        variant: Variant,
        kernel: Kernel,
        grid: Grid,
        operands: [Operand; 3],
        split: Split,
        (what, flag): (Outcome, Option<&Tensor>),
    ) -> Result<()> {
        let mut args = self.arguments(variant, &operands, split, what);
        let cost = match flag {
            None => self.slice_cost(),
            Some(flag) => {
                args.push(Arg::Buffer(flag.storage().clone(), Access::Read));
                Cost::default()
            }
        };
        self.send(variant.kernel_name(), kernel, grid, args, cost)
    }

    /// What every portable kernel takes.
    fn arguments(&self, variant: Variant, operands: &[Operand; 3], split: Split, what: Outcome) -> Args {
        let p = self.problem;
        let mut args: Args = SmallVec::new();
        for operand in operands {
            args.extend([operand.arg.clone(), Arg::Scalar(Scalar::U64(operand.at as u64))]);
        }
        args.extend([p.m, p.n, p.k, self.batch[1], split.parts, split.depth].map(|value| self.count(value)));
        for operand in operands {
            args.extend(self.place(operand));
        }
        args.push(self.count(self.matrices() * p.m * p.n));
        if what == Outcome::Final {
            self.epilogue_args(&mut args);
        }
        // Packed operands are computed already.
        if variant != Variant::Vectorized {
            self.prologue_args(&mut args);
        }
        args
    }

    /// What one slice of the product costs.
    fn slice_cost(&self) -> Cost {
        let slices: usize = self.outer.iter().product();
        let cost = self.problem.cost;
        Cost { flops: cost.flops / slices as f64, bytes: cost.bytes / slices as f64 }
    }

    fn send(&self, name: &'static str, kernel: Kernel, grid: Grid, args: Args, cost: Cost) -> Result<()> {
        let queue = self.problem.c.tensor.queue().clone();
        launch::submit(Launch { name: name.into(), queue, work: Work::OpenCl(kernel, grid), args, cost })
    }
}

#[cfg(test)]
mod tests;
