//! Products on OpenCL devices: which kernel, how its terms are split, and its launches.
//!
//! Sizes, strides and offsets are arguments; only types, tiles and the epilogue are compiled in, so that a network needs few
//! programs.

mod choice;
mod source;
mod stage;
mod wgmma;

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::{Grid, Kernel, Program, Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::KernelSelector;
use netcl_core::kernels::expr::opencl::IndexWidth;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::precision::MatmulPrecision;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::{SmallVec, smallvec};

use super::Variant;
use super::problem::{Matrix, Problem};
use crate::prelude::Prelude;
use choice::{Device, Tile};
use source::{Outcome, result};
pub(super) use wgmma::{Arithmetic, available as wgmma_available};

/// Batch axes that the kernels have arguments for; products with more are launched slice by slice.
const BATCH_AXES: usize = 2;

type Args = SmallVec<[Arg; 8]>;

/// The kernel for a product where nobody forces one.
pub(super) fn variant(
    stream: &Stream,
    selector: &KernelSelector,
    problem: &Problem<'_>,
    precision: MatmulPrecision,
) -> Variant {
    let portable = || {
        let selected = selector.select_matmul_kernel(problem.m, problem.n, problem.k, problem.a.tensor.dtype());
        choice::choose(&Device::new(stream), problem, selected.variant)
    };
    wgmma::choose(stream, selector, problem, precision).unwrap_or_else(portable)
}

pub(super) fn run(
    stream: &Stream,
    mut problem: Problem<'_>,
    variant: Variant,
    precision: MatmulPrecision,
) -> Result<()> {
    let device = Device::new(stream);
    let arithmetic = Arithmetic::of(variant, problem.a.tensor.dtype(), precision);
    let flip = match arithmetic {
        Some(arithmetic) => arithmetic.flips(&problem),
        // Vectors run along the columns: let them be the longer side.
        None => variant == Variant::Vectorized && problem.n < problem.m && problem.n < 64,
    };
    if flip {
        problem.transpose();
    }
    let outer = problem.batch.len().saturating_sub(BATCH_AXES);
    let lengths: SmallVec<[usize; 4]> = problem.batch[..outer].iter().copied().collect();
    let slices: usize = lengths.iter().product();
    for slice in 0..slices {
        let this = Multiplication::new(stream, &device, &problem, &lengths, slice);
        match arithmetic {
            None => this.launch(variant, None)?,
            Some(arithmetic) => {
                if let Some(flag) = this.launch_wgmma(arithmetic)? {
                    // Does nothing unless the flag is raised; the host never waits for it.
                    this.launch(Variant::RegisterTiled, Some(&flag))?;
                }
            }
        }
    }
    Ok(())
}

/// The program of the tiled kernel for operands of a dtype, built for a queue's device: for those who launch it themselves.
///
/// ```
/// use netcl_ops::core::{device::manager, dtype::DType};
///
/// if let Some(device) = manager().default("opencl")? {
///     let program = netcl_ops::build_matmul_kernel(&device.queue, DType::F32)?;
///     assert_eq!(program.kernel_names(), ["matmul_tiled"]);
/// }
/// # Ok::<(), netcl_ops::core::Error>(())
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
    let problem = Problem::new(&rule, &one, &one, &one, &[], None)?;
    let device = Device::new(stream);
    let this = Multiplication::new(stream, &device, &problem, &[], 0);
    let kernel = this.tiled_kernel(choice::square_tile(&device, problem.sum.size()), Outcome::Final)?;
    Ok(kernel.program().clone())
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

/// How the terms of a product are shared out.
#[derive(Clone, Copy)]
struct Split {
    parts: usize,
    depth: usize,
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
        let ends = [&p.a, &p.b, &p.c].into_iter().chain(&p.inputs).map(|matrix| matrix.tensor.layout().end());
        // Packed panels and staged rows are padded, and partial results come in up to `MAX_PARTS` copies.
        let matrices: usize = batch.iter().product();
        let panels = matrices * (p.k + stage::PITCH) * (p.m.max(p.n) + choice::LARGEST_PANEL);
        let partial = matrices * p.m * p.n * choice::MAX_PARTS;
        let span = ends.chain([panels, partial]).max().unwrap_or(0);
        Multiplication { stream, device, problem, batch, outer, slice, index: IndexWidth::for_span(span) }
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
        let p = self.problem;
        let tile = choice::tile(self.device, variant, p, self.matrices());
        let groups = p.m.div_ceil(tile.rows()) * p.n.div_ceil(tile.cols()) * self.matrices();
        let split = match (flag, tile) {
            // Work-groups that share out the terms among themselves leave none to others.
            (Some(_), _) | (_, Tile::Dots(_)) => Split { parts: 1, depth: p.k },
            (None, _) => choice::split(self.device, p, self.matrices(), groups),
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
                let kernel = self.build(Variant::Naive, self.plain_prelude(what), include_str!("matmul_naive.cl"))?;
                let local = choice::flat_group(self.device);
                let global = [p.n.next_multiple_of(local[0]), p.m.next_multiple_of(local[1]), self.z(split)];
                let grid = Grid::new(global).local([local[0], local[1], 1]);
                self.submit(variant, kernel, grid, [a, b, c], split, (what, flag))?;
            }
            Tile::Dots(items) => {
                let mut prelude = self.plain_prelude(what);
                prelude.define("ITEMS", items);
                let kernel = self.build(Variant::Dots, prelude, include_str!("matmul_dots.cl"))?;
                let global = [p.n.div_ceil(tile.cols()) * items, p.m.div_ceil(tile.rows()), self.z(split)];
                self.submit(variant, kernel, Grid::new(global).local([items, 1, 1]), [a, b, c], split, (what, flag))?;
            }
            Tile::Square(side) => {
                let kernel = self.tiled_kernel(side, what)?;
                let global = [p.n.next_multiple_of(side), p.m.next_multiple_of(side), self.z(split)];
                self.submit(variant, kernel, Grid::new(global).local([side, side, 1]), [a, b, c], split, (what, flag))?;
            }
            Tile::Registers { rows, cols, depth, r, c: columns } => {
                let mut prelude = self.plain_prelude(what);
                for (name, value) in [("ROWS", rows), ("COLS", cols), ("DEPTH", depth), ("R", r), ("C", columns)] {
                    prelude.define(name, value);
                }
                prelude.define("GUARDED", u8::from(flag.is_some()));
                prelude.define("A_BY_ROWS", u8::from(a.rs.abs() < a.cs.abs()));
                prelude.define("B_BY_COLS", u8::from(b.rs.abs() < b.cs.abs()));
                let kernel = self.build(variant, prelude, include_str!("matmul_register_tiled.cl"))?;
                let (x, y) = (cols / columns, rows / r);
                let grid = Grid::new([p.n.div_ceil(cols) * x, p.m.div_ceil(rows) * y, self.z(split)]).local([x, y, 1]);
                self.submit(variant, kernel, grid, [a, b, c], split, (what, flag))?;
            }
            Tile::Vectors { rows, width, vectors, pack_a, pack_b } => {
                let a = if pack_a { self.pack(&a, rows, p.m, (a.rs, a.cs))? } else { a };
                let b = if pack_b { self.pack(&b, width * vectors, p.n, (b.cs, b.rs))? } else { b };
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

    fn plain_prelude(&self, what: Outcome) -> Prelude {
        let mut prelude = Prelude::with_sums(self.problem.sum, self.index);
        prelude.loads("T", "LOAD", self.problem.a.tensor.dtype(), self.problem.sum);
        result(&mut prelude, self.problem, what);
        prelude
    }

    fn tiled_kernel(&self, side: usize, what: Outcome) -> Result<Kernel> {
        let mut prelude = self.plain_prelude(what);
        prelude.define("TILE", side);
        self.build(Variant::Tiled, prelude, include_str!("matmul_tiled.cl"))
    }

    fn vectorized_kernel(
        &self,
        (rows, width, vectors): (usize, usize, usize),
        (pack_a, pack_b): (bool, bool),
        what: Outcome,
    ) -> Result<Kernel> {
        let p = self.problem;
        let mut prelude = Prelude::with_sums(p.sum, self.index);
        let a = if pack_a { p.sum } else { p.a.tensor.dtype() };
        prelude.loads("A", "LOAD_A", a, p.sum);
        result(&mut prelude, p, what);
        prelude.define("VEC", format_args!("{}{width}", p.sum.cl_type()));
        prelude.define("VLOAD", format_args!("vload{width}"));
        prelude.define("VSTORE", format_args!("vstore{width}"));
        for (name, value) in [("WIDTH", width), ("ROWS", rows), ("VECTORS", vectors)] {
            prelude.define(name, value);
        }
        prelude.define("PACKED_A", u8::from(pack_a));
        prelude.define("PACKED_B", u8::from(pack_b));
        let plain = what == Outcome::Partial || (p.epilogue.is_none() && p.c.tensor.dtype() == p.sum);
        prelude.define("PLAIN", u8::from(plain));
        self.build(Variant::Vectorized, prelude, include_str!("matmul_vectorized.cl"))
    }

    fn build(&self, variant: Variant, prelude: Prelude, text: &str) -> Result<Kernel> {
        self.build_named(variant.kernel_name(), prelude, text)
    }

    fn build_named(&self, name: &str, prelude: Prelude, text: &str) -> Result<Kernel> {
        let key = format!("{name}{}", prelude.key);
        self.stream.kernel(&key, || (Source::new(prelude.text + text, ""), name))
    }

    fn number(&self, value: isize) -> Arg {
        Arg::Scalar(match self.index {
            IndexWidth::Bits32 => Scalar::I32(value as i32),
            IndexWidth::Bits64 => Scalar::I64(value as i64),
        })
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
        let p = self.problem;
        let mut args: Args = SmallVec::new();
        for operand in &operands {
            args.extend([operand.arg.clone(), Arg::Scalar(Scalar::U64(operand.at as u64))]);
        }
        args.extend([p.m, p.n, p.k, self.batch[1], split.parts, split.depth].map(|value| self.count(value)));
        for operand in &operands {
            args.extend(self.place(operand));
        }
        args.push(self.count(self.matrices() * p.m * p.n));
        if what == Outcome::Final {
            self.epilogue_args(&mut args);
        }
        if let Some(flag) = flag {
            args.push(Arg::Buffer(flag.storage().clone(), Access::Read));
            return self.send(variant.kernel_name(), kernel, grid, args, Cost::default());
        }
        let slices: usize = self.outer.iter().product();
        let cost = Cost { flops: p.cost.flops / slices as f64, bytes: p.cost.bytes / slices as f64 };
        self.send(variant.kernel_name(), kernel, grid, args, cost)
    }

    fn send(&self, name: &'static str, kernel: Kernel, grid: Grid, args: Args, cost: Cost) -> Result<()> {
        let queue = self.problem.c.tensor.queue().clone();
        launch::submit(Launch { name: name.into(), queue, work: Work::OpenCl(kernel, grid), args, cost })
    }

    /// Copies an operand into panels of so many lines, which lie `strides.0` apart.
    fn pack(&self, from: &Operand, panel: usize, lines: usize, strides: (isize, isize)) -> Result<Operand> {
        let p = self.problem;
        // A broadcast operand is packed once.
        let batch =
            [(self.batch[0], from.b0), (self.batch[1], from.b1)].map(|(n, stride)| if stride == 0 { 1 } else { n });
        let panels = lines.div_ceil(panel);
        let matrices: usize = batch.iter().product();
        let packed = Tensor::uninit(p.c.tensor.queue(), [matrices, panels, p.k, panel], p.sum)?;
        let mut prelude = Prelude::with_sums(p.sum, self.index);
        let dtype = p.a.tensor.dtype();
        prelude.loads("T", "LOAD", dtype, p.sum);
        prelude.define("PANEL", panel);
        let kernel = self.build_named("matmul_pack", prelude, include_str!("matmul_pack.cl"))?;
        let arg = Arg::Buffer(packed.storage().clone(), Access::Write);
        let mut args: Args = smallvec![from.arg.clone(), Arg::Scalar(Scalar::U64(from.at as u64)), arg];
        args.extend([lines, p.k, batch[1]].map(|value| self.count(value)));
        args.extend([strides.0, strides.1, from.b0, from.b1].map(|stride| self.number(stride)));
        let group = self.device.group.min(64);
        let grid = Grid::new([p.k.next_multiple_of(group), panels, matrices]).local([group, 1, 1]);
        let elements = (matrices * lines * p.k) as f64;
        let cost = Cost { flops: 0.0, bytes: elements * (dtype.size() + p.sum.size()) as f64 };
        self.send("matmul_pack", kernel, grid, args, cost)?;
        let size = (panels * p.k * panel) as isize;
        let step = |n: usize, by: isize| if n == 1 { 0 } else { by };
        Ok(Operand {
            arg: Arg::Buffer(packed.storage().clone(), Access::Read),
            at: 0,
            // The kernel knows how panels are laid out.
            rs: 0,
            cs: 0,
            b0: step(batch[0], size * batch[1] as isize),
            b1: step(batch[1], size),
        })
    }

    /// Adds partial results and applies the epilogue.
    fn reduce(&self, parts: &Tensor, split: Split) -> Result<()> {
        const NAME: &str = "matmul_splitk_reduce";
        let p = self.problem;
        let mut prelude = Prelude::with_sums(p.sum, self.index);
        result(&mut prelude, p, Outcome::Final);
        let kernel = self.build_named(NAME, prelude, include_str!("matmul_splitk_reduce.cl"))?;
        let c = self.operand(&p.c, Access::Write);
        let mut args: Args = smallvec![
            Arg::Buffer(parts.storage().clone(), Access::Read),
            c.arg.clone(),
            Arg::Scalar(Scalar::U64(c.at as u64)),
        ];
        let part = self.matrices() * p.m * p.n;
        args.extend([p.m, p.n, self.batch[1], split.parts, part].map(|value| self.count(value)));
        args.extend(self.place(&c));
        self.epilogue_args(&mut args);
        let local = choice::flat_group(self.device);
        let global = [p.n.next_multiple_of(local[0]), p.m.next_multiple_of(local[1]), self.matrices()];
        let elements = (part * (split.parts + 1) * p.sum.size()) as f64;
        let cost = Cost { flops: (part * split.parts) as f64, bytes: elements };
        self.send(NAME, kernel, Grid::new(global).local([local[0], local[1], 1]), args, cost)
    }
}
