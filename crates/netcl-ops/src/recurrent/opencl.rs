//! Launches of `recurrent.cl`: one for each step.

use std::fmt::Write as _;

use netcl_core::backend::opencl::{Grid, Kernel, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::Expr;
use netcl_core::kernels::expr::opencl::{CType, inline_c};
use netcl_core::kernels::group_limit::largest_group;
use netcl_core::kernels::launch::{self, Access, Arg, Launch, Scalar, Work};
use netcl_core::tensor::{Tensor, reshape};
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use super::{Backward, Problem, Written};
use crate::elements::{element_defines, kernel_source, load_aligned};
use crate::indexing::opencl::buffer;
use crate::pad::{PadMode, pad};

type Args = SmallVec<[Arg; 8]>;

/// Work-items of a group on GPUs. A step is bound by the latency of its reads, so more slices of fewer terms are faster: with 256 an
/// LSTM of 2 layers, 512 wide, batch 64, 128 steps takes 12.9 ms forwards and backwards on an H200, with 512 it takes 9.0.
const GROUP: usize = 512;
/// Terms of a slice, at least.
const FEWEST_TERMS: usize = 16;
/// Tiles in the order of their size, largest first: groups of four columns, groups of rows.
const TILES: [(usize, usize); 6] = [(8, 8), (8, 4), (4, 4), (4, 2), (4, 1), (1, 1)];

/// How a work-group is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tile {
    /// Rows of a work-item.
    rows: usize,
    x: usize,
    y: usize,
    slices: usize,
}

impl Tile {
    /// The largest tile of which there are enough for the device, and as many slices as fill a group.
    fn choose(problem: &Problem, stream: &Stream, groups: usize, terms: usize) -> Tile {
        let info = stream.device().info();
        // A row or two would waste most of four.
        let rows = if problem.batch < 3 { 1 } else { 4 };
        let by_memory = info.local_mem_size as usize / (rows * 4 * problem.input.dtype().accumulator().size());
        let most = GROUP.min(largest_group(stream.device())).min(by_memory).max(1);
        let fits = |&(x, y): &(usize, usize)| x * y <= most && (y == 1 || (y - 1) * rows < problem.batch);
        // A launch of a few groups less than there are units is as fast as one of as many.
        let enough = info.compute_units as usize * 3 / 4;
        let tiles = |&(x, y): &(usize, usize)| groups.div_ceil(x) * problem.batch.div_ceil(y * rows);
        let mut usable = TILES.into_iter().filter(fits);
        let (x, y) = usable.clone().find(|tile| tiles(tile) >= enough).or_else(|| usable.nth(2)).unwrap_or((1, 1));
        let slices = 1 << (most / (x * y)).min(terms / FEWEST_TERMS).max(1).ilog2();
        Tile { rows, x, y, slices }
    }

    fn items(self) -> usize {
        self.x * self.y * self.slices
    }
}

/// A kernel, and what all of its launches share.
struct Step<'p> {
    problem: &'p Problem,
    kernel: Kernel,
    grid: Grid,
    /// Arguments before those that change from step to step.
    tensors: Args,
    local: usize,
}

impl Step<'_> {
    /// Launches it with the numbers of one step; places are those of steps, in hidden states.
    fn launch(&self, places: &[usize], flags: &[bool]) -> Result<()> {
        let Problem { op, batch, hidden, .. } = *self.problem;
        let mut args = self.tensors.clone();
        args.extend(places.iter().map(|step| Arg::Scalar(Scalar::U64((step * batch * hidden) as u64))));
        args.extend(flags.iter().map(|&flag| Arg::Scalar(Scalar::U32(u32::from(flag)))));
        args.extend([batch, hidden].map(|n| Arg::Scalar(Scalar::U32(n as u32))));
        args.push(Arg::Local(self.local));
        let work = Work::OpenCl(self.kernel.clone(), self.grid);
        let queue = self.problem.input.queue().clone();
        launch::submit(Launch { name: op.into(), queue, work, args, cost: self.problem.cost(1) })
    }
}

/// What the source of a kernel depends on beside the problem.
struct Variant {
    name: &'static str,
    /// Values of each hidden element that are saved, or were.
    saved: usize,
    /// Columns of the weights in groups of four, and how many terms their products have.
    groups: usize,
    terms: usize,
    /// Whether rows of the other operand begin on boundaries of four.
    aligned: bool,
    cell: fn(&Problem, usize) -> Expr,
}

impl Variant {
    fn prepare<'p>(&self, problem: &'p Problem, stream: &Stream, tensors: Args) -> Result<Step<'p>> {
        let Problem { op, cell, batch, hidden, .. } = *problem;
        if batch.max(self.terms) >= 1 << 31 {
            let why = format!("a batch of {batch} and {hidden} hidden values are more than it can count");
            return Err(Error::Unsupported { op, device: stream.device().name().to_owned(), why });
        }
        let dtype = problem.input.dtype();
        let tile = Tile::choose(problem, stream, self.groups, self.terms);
        let Tile { rows, x, y, slices } = tile;
        let &Variant { name, saved, aligned, .. } = self;
        let kernel = stream.kernel(&(name, cell, saved, dtype, tile, aligned), || {
            let defines = format!(
                "{}#define COMPUTE4 {}4\n#define LOAD4(p, i) ({})\n#define ALIGNED {}\n#define ROWS {rows}\n#define X {x}\n\
                 #define Y {y}\n#define SLICES {slices}\n#define GATES {}\n#define SAVED {saved}\n#define MEMORY {}\n\
                 #define CARRIES {}\n#define APART {}\n",
                element_defines(dtype),
                dtype.accumulator().cl_type(),
                load_aligned(dtype, "(p) + (i)", 4),
                u8::from(aligned),
                cell.gates(),
                u8::from(cell.has_memory()),
                u8::from(cell.carries()),
                u8::from(cell.parts_differ()),
            );
            let cell = function(&(self.cell)(problem, saved), dtype);
            (kernel_source(&defines, &[&cell, include_str!("recurrent.cl")]), name)
        })?;
        let tiles = self.groups.div_ceil(x) * batch.div_ceil(y * rows);
        let grid = Grid::new([tiles * tile.items()]).local([tile.items()]);
        let local = tile.items() * rows * 4 * dtype.accumulator().size();
        Ok(Step { problem, kernel, grid, tensors, local })
    }
}

/// `CELL(v, y)`: an expression as a function of arrays.
fn function(expr: &Expr, dtype: DType) -> String {
    let ctype = if dtype == DType::F64 { CType::DOUBLE } else { CType::FLOAT };
    let names: Vec<String> = (0..expr.inputs()).map(|i| format!("v[{i}]")).collect();
    let inlined = inline_c(expr, &names.iter().map(String::as_str).collect::<Vec<_>>(), &[], ctype);
    let mut text: String = inlined.helpers.iter().map(|helper| helper.text.as_str()).collect();
    let _ = writeln!(text, "// {expr}\nvoid cell(const COMPUTE *v, COMPUTE *y) {{");
    for statement in &inlined.statements {
        let _ = writeln!(text, "    {statement}");
    }
    for (i, output) in inlined.outputs.iter().enumerate() {
        let _ = writeln!(text, "    y[{i}] = {output};");
    }
    text + "}\n#define CELL(v, y) cell(v, y)\n"
}

/// A buffer and its first element; a null pointer where there is no tensor.
fn maybe(tensor: Option<&Tensor>, access: Access) -> [Arg; 2] {
    tensor.map_or([Arg::Null, Arg::Scalar(Scalar::U64(0))], |tensor| buffer(tensor, access))
}

/// The memory of a tensor that was just made: it begins with its first element.
fn whole(tensor: Option<&Tensor>, access: Access) -> Arg {
    tensor.map_or(Arg::Null, |tensor| Arg::Buffer(tensor.storage().clone(), access))
}

fn is_aligned(tensor: &Tensor) -> bool {
    tensor.layout().offset().is_multiple_of(4)
}

/// The weight with the terms of a product down its rows, and the gates of a hidden element side by side, in groups of four.
fn pack(problem: &Problem) -> Result<Tensor> {
    let (gates, hidden) = (problem.cell.gates(), problem.hidden);
    let weight = reshape(&problem.weight, [gates, hidden, hidden])?.permute(&[2, 1, 0])?;
    match gates {
        1 => whole_groups(&reshape(&weight.contiguous()?, [hidden, hidden])?),
        _ => whole_groups(&weight),
    }
}

/// The tensor with rows of whole groups of four elements, on a boundary of four.
fn whole_groups(weight: &Tensor) -> Result<Tensor> {
    let width = weight.shape().last().copied().unwrap_or(0);
    if !width.is_multiple_of(4) {
        return pad(weight, &[(0, (width.next_multiple_of(4) - width) as isize)], PadMode::Constant(0.0));
    }
    let weight = weight.contiguous()?;
    if is_aligned(&weight) { Ok(weight) } else { weight.duplicate() }
}

pub(super) fn forward(problem: &Problem, stream: &Stream, written: &Written<'_>) -> Result<()> {
    let Problem { cell, hidden, .. } = *problem;
    let first = problem.first_hidden.as_ref();
    let weight = pack(problem)?;
    let mut tensors = Args::new();
    tensors.extend(buffer(&problem.input, Access::Read));
    tensors.extend(buffer(&weight, Access::Read));
    for tensor in [&problem.bias, &problem.first_hidden, &problem.first_memory] {
        tensors.extend(maybe(tensor.as_ref(), Access::Read));
    }
    for tensor in [Some(written.out), written.memories, written.saved] {
        tensors.push(whole(tensor, Access::Write));
    }
    let variant = Variant {
        name: "recurrent_forward",
        saved: if written.saved.is_some() { cell.saved() } else { 0 },
        groups: if cell.gates() == 1 { hidden.div_ceil(4) } else { hidden },
        terms: hidden,
        aligned: hidden.is_multiple_of(4) && first.is_none_or(is_aligned),
        cell: |problem, saved| problem.cell.forward(saved > 0),
    };
    let step = variant.prepare(problem, stream, tensors)?;
    problem.order().try_for_each(|(now, before)| step.launch(&[now, before.unwrap_or(0)], &[before.is_some()]))
}

pub(super) fn backward(problem: &Problem, stream: &Stream, backward: &Backward<'_>) -> Result<()> {
    let Problem { cell, hidden, .. } = *problem;
    let weight = whole_groups(&problem.weight)?;
    let mut tensors = Args::new();
    tensors.extend(buffer(&weight, Access::Read));
    tensors.extend(buffer(backward.out, Access::Read));
    tensors.extend([backward.memories, backward.saved].map(|tensor| whole(tensor, Access::Read)));
    for tensor in [backward.upstream, backward.last, problem.first_hidden.as_ref(), problem.first_memory.as_ref()] {
        tensors.extend(maybe(tensor, Access::Read));
    }
    for tensor in [Some(backward.input), backward.gates, backward.carried] {
        tensors.push(whole(tensor, Access::Write));
    }
    let variant = Variant {
        name: "recurrent_backward",
        saved: cell.saved(),
        groups: hidden.div_ceil(4),
        terms: problem.width(),
        aligned: problem.width().is_multiple_of(4),
        cell: |problem, _| problem.cell.backward(),
    };
    let step = variant.prepare(problem, stream, tensors)?;
    let mut after = None;
    problem.order().rev().try_for_each(|(now, before)| {
        let flags = [before.is_some(), after.is_some()];
        let places = [now, before.unwrap_or(0), after.unwrap_or(0)];
        after = Some(now);
        step.launch(&places, &flags)
    })
}
