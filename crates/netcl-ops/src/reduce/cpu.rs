//! Reductions on the native CPU: tiles, tasks and threads.
//!
//! ```text
//!            reduced: outer axes x r (innermost), cut into `splits` parts
//!          +----------------+----------------+---
//!   kept   | task           |                |      rows mode:    a tile is kept x r, one partial result per row
//!   (block)|   tile  tile   |                |      columns mode: a tile is r x kept, one partial result per column
//!          +----------------+----------------+---
//! ```
//!
//! Blocks and splits follow from the shapes alone, and partial results are merged in a fixed tree: the number of threads
//! changes nothing but the time.

use std::ops::Range;
use std::sync::Arc;

use netcl_core::Result;
use netcl_core::backend::cpu::threads::SharedPtr;
use netcl_core::backend::cpu::{CpuArgs, CpuKernel, parallel_for};
use netcl_core::dtype::{DType, Element};
use netcl_core::kernels::expr::cpu::{Nest as CpuNest, Source, Target};
use netcl_core::kernels::launch::{Access, Arg, Work};
use netcl_core::tensor::Tensor;
use smallvec::SmallVec;

use super::engine::{Args, Carry, Combine, Programs, Run};
use super::fold::{Fold, Found, Lane, MAX_COLUMNS, Max, Min, Plain, Position, Prod, Sum};
use super::plan::{Nest, Plan};

/// Elements that one task should have at least, so that waking a thread pays.
const TASK: usize = 1 << 16;
/// Elements of a tile that goes through memory of its own.
const TILE: usize = 8192;
/// Enough tasks for any machine; with fewer, reductions themselves are cut.
const TASKS: usize = 64;
/// Partial results per result at most.
const MAX_SPLITS: usize = 1024;

/// Where an operand lies in its storage.
#[derive(Clone, Copy)]
struct Place {
    offset: usize,
    end: usize,
    dtype: DType,
}

impl Place {
    fn of(tensor: &Tensor) -> Place {
        let size = tensor.dtype().size();
        Place { offset: tensor.layout().offset() * size, end: tensor.layout().end() * size, dtype: tensor.dtype() }
    }
}

/// A reduction, ready to run any number of times.
struct Job {
    plan: Arc<Plan>,
    programs: Programs,
    carry: Carry,
    /// Inputs are read as they are.
    plain: bool,
    /// Combined values are the results, in the type of the computation.
    direct: bool,
    compute: DType,
    /// Inputs, output, extras: the order of the kept nest's operands.
    places: SmallVec<[Place; 4]>,
    inputs: usize,
    prologue_scalars: usize,
    scalars: usize,
}

/// The work of a launch and its arguments: the operands in the order of the kept nest, then the scalars.
pub(super) fn work(run: &Run<'_>) -> Result<(Work, Args)> {
    let operands = || run.inputs.iter().chain([run.out]).chain(run.extras);
    let mut args: Args = run.inputs.iter().map(|t| Arg::Buffer(t.storage().clone(), Access::Read)).collect();
    args.push(Arg::Buffer(run.out.storage().clone(), Access::Write));
    args.extend(run.extras.iter().map(|t| Arg::Buffer(t.storage().clone(), Access::Read)));
    args.extend(run.scalars.iter().cloned().map(Arg::Scalar));
    let programs = run.op.programs(run.compute)?;
    let job = Job {
        plan: run.plan.clone(),
        carry: run.op.carry,
        plain: run.op.prologue.is_none(),
        direct: run.op.epilogue.is_none() && run.out.dtype() == run.compute,
        compute: run.compute,
        places: operands().map(Place::of).collect(),
        inputs: run.inputs.len(),
        prologue_scalars: programs.prologue.scalars(),
        scalars: run.scalars.len(),
        programs,
    };
    let kernel = CpuKernel::new(move |args| match job.compute {
        DType::F64 => job.run::<f64>(args),
        _ => job.run::<f32>(args),
    });
    Ok((Work::Cpu(kernel), args))
}

impl Job {
    fn run<T: Lane>(&self, args: &CpuArgs<'_>) -> Result<()> {
        let memory = self
            .places
            .iter()
            .enumerate()
            .map(|(i, place)| Ok(SharedPtr::new(args.checked_memory(i, place.end)?.wrapping_add(place.offset))))
            .collect::<Result<SmallVec<[SharedPtr<u8>; 4]>>>()?;
        let count = self.places.len();
        let scalars = (count..count + self.scalars).map(|i| args.float(i)).collect::<Result<SmallVec<[f64; 4]>>>()?;
        let body = Body { job: self, memory, scalars };
        let value = |block: Block, partials: &[f64]| body.finish::<T>(block, partials);
        match self.carry {
            Carry::Value(Combine::Sum) => body.reduce::<T, Plain<Sum>>(value),
            Carry::Value(Combine::Prod) => body.reduce::<T, Plain<Prod>>(value),
            Carry::Value(Combine::Max) => body.reduce::<T, Plain<Max>>(value),
            Carry::Value(Combine::Min) => body.reduce::<T, Plain<Min>>(value),
            Carry::Position(true) => body.reduce::<T, Position<Max>>(|b, found| body.finish_positions(b, found)),
            Carry::Position(false) => body.reduce::<T, Position<Min>>(|b, found| body.finish_positions(b, found)),
        }
    }
}

/// Neighbouring results along the innermost kept axis.
#[derive(Clone, Copy)]
struct Block {
    /// The first one, counted in row-major order of the kept nest.
    first: usize,
    len: usize,
}

/// One run: a job and where its memory is now.
struct Body<'j> {
    job: &'j Job,
    memory: SmallVec<[SharedPtr<u8>; 4]>,
    scalars: SmallVec<[f64; 4]>,
}

impl Body<'_> {
    /// Reduces everything and hands the partial results of each block to `finish`.
    fn reduce<T: Lane, F: Fold<T>>(&self, finish: impl Fn(Block, &[F::Partial]) + Sync) -> Result<()> {
        let Plan { kept, reduced, columns } = &*self.job.plan;
        let (k, total) = (kept.inner(), reduced.size());
        let width = if *columns { k.min(MAX_COLUMNS) } else { k.min((TASK / total).max(1)) };
        let blocks_per_row = k.div_ceil(width);
        let blocks = kept.size() / k * blocks_per_row;
        let block = |i: usize| {
            let start = i % blocks_per_row * width;
            Block { first: i / blocks_per_row * k + start, len: width.min(k - start) }
        };
        // Cuts fall between whole runs of the innermost loops.
        let wanted = if blocks >= TASKS { 1 } else { (width * total / TASK).clamp(1, MAX_SPLITS) };
        let part = total.div_ceil(wanted).next_multiple_of(512);
        let splits = total.div_ceil(part);
        let grain = (TASK / (width * part.min(total))).max(1);
        if splits == 1 {
            return parallel_for("reduce", blocks, grain, |range| {
                let mut scratch = Scratch::new();
                for block in range.map(block) {
                    let mut partials = vec![F::nothing(); block.len];
                    self.block::<T, F>(block, 0..total, &mut scratch, &mut partials);
                    finish(block, &partials);
                }
            });
        }
        let results = kept.size();
        let mut partials = vec![F::nothing(); splits * results];
        let base = SharedPtr::new(partials.as_mut_ptr());
        parallel_for("reduce", blocks * splits, grain, |range| {
            let mut scratch = Scratch::new();
            for task in range {
                let (block, split) = (block(task / splits), task % splits);
                // SAFETY: every task has its own block of its own split, inside the vector, which outlives the loop.
                let own =
                    unsafe { std::slice::from_raw_parts_mut(base.get().add(split * results + block.first), block.len) };
                self.block::<T, F>(block, split * part..total.min((split + 1) * part), &mut scratch, own);
            }
        })?;
        parallel_for("reduce", blocks, (TASK / (width * splits)).max(1), |range| {
            for block in range.map(block) {
                let merged: Vec<F::Partial> = (block.first..block.first + block.len)
                    .map(|at| tree::<T, F>(&partials, results, at, 0..splits))
                    .collect();
                finish(block, &merged);
            }
        })
    }

    /// Merges the elements `range` of the reduced nest into the partial results of a block.
    fn block<T: Lane, F: Fold<T>>(
        &self,
        block: Block,
        range: Range<usize>,
        scratch: &mut Scratch<T>,
        partials: &mut [F::Partial],
    ) {
        let reduced = &self.job.plan.reduced;
        let r = reduced.inner();
        let mut at = range.start;
        while at < range.end {
            // A piece of one row of the reduced nest.
            let len = (r - at % r).min(range.end - at);
            self.piece::<T, F>(block, at, len, scratch, partials);
            at += len;
        }
    }

    fn piece<T: Lane, F: Fold<T>>(
        &self,
        block: Block,
        at: usize,
        len: usize,
        scratch: &mut Scratch<T>,
        partials: &mut [F::Partial],
    ) {
        let Plan { kept, reduced, columns } = &*self.job.plan;
        let (along_kept, along_reduced) = (kept.inner_stride(0), reduced.inner_stride(0));
        let (rows, cols, step, inner) = match columns {
            true => (len, block.len, along_reduced, along_kept),
            false => (block.len, len, along_kept, along_reduced),
        };
        let place = self.job.places[0];
        let readable =
            self.job.plain && place.dtype == T::DTYPE && (inner == 1 || cols == 1) && (step >= 0 || rows == 1);
        if readable {
            let from = kept.place(0, block.first) + reduced.place(0, at);
            let step = if rows == 1 { 0 } else { step as usize };
            // SAFETY: rows of `cols` neighbouring elements, `step` apart, are elements of input 0 (a plain reduction has
            // one), whose layout lies inside its memory; nobody writes it while the launch runs; its dtype is T's.
            let tile = unsafe {
                let first = self.memory[0].get().cast::<T>().offset(from);
                std::slice::from_raw_parts(first.cast_const(), (rows - 1) * step + cols)
            };
            return if *columns {
                F::columns(tile, step, rows, at, partials);
            } else {
                F::rows(tile, step, cols, at, partials);
            };
        }
        // Everything else passes through the prologue into a tile of its own.
        let (high, wide) = if *columns {
            ((TILE / cols).next_multiple_of(16).min(rows), cols)
        } else {
            let wide = cols.min(TILE);
            ((TILE / wide).min(rows), wide)
        };
        for top in (0..rows).step_by(high) {
            let high = high.min(rows - top);
            for left in (0..cols).step_by(wide) {
                let wide = wide.min(cols - left);
                let (result, element) = if *columns { (left, top) } else { (top, left) };
                let tile = scratch.take(high * wide);
                self.evaluate(block.first + result, at + element, [high, wide], tile);
                if *columns {
                    F::columns(tile, wide, high, at + element, &mut partials[left..left + wide]);
                } else {
                    F::rows(tile, wide, wide, at + element, &mut partials[top..top + high]);
                }
            }
        }
    }

    /// The prologue's values from result `result` and element `element` on.
    fn evaluate<T: Lane>(&self, result: usize, element: usize, shape: [usize; 2], tile: &mut [T]) {
        let Plan { kept, reduced, columns } = &*self.job.plan;
        let inputs = self.job.inputs;
        let strides: SmallVec<[[isize; 2]; 4]> = (0..inputs)
            .map(|i| {
                let (a, b) = (kept.inner_stride(i), reduced.inner_stride(i));
                if *columns { [b, a] } else { [a, b] }
            })
            .collect();
        let sources: SmallVec<[Source<'_>; 4]> = (0..inputs)
            .map(|i| Source {
                data: self.at(i, kept.place(i, result) + reduced.place(i, element)),
                dtype: self.job.places[i].dtype,
                strides: &strides[i],
            })
            .collect();
        let target = Target { data: tile.as_mut_ptr().cast(), dtype: T::DTYPE, strides: &[shape[1] as isize, 1] };
        let scalars = &self.scalars[..self.job.prologue_scalars];
        let size = shape[0] * shape[1];
        debug_assert_eq!(tile.len(), size);
        // SAFETY: the engine has checked the counts; positions lie inside the inputs' layouts, which lie inside their memory
        // (checked by `run`), and nobody writes it while the launch runs; the tile holds `shape` elements and is ours alone.
        unsafe { self.job.programs.prologue.run_nest(CpuNest { shape: &shape }, &sources, &[target], scalars, 0..size) }
    }

    /// The address of a position of an operand.
    fn at(&self, operand: usize, position: isize) -> *mut u8 {
        self.memory[operand].get().wrapping_offset(position * self.job.places[operand].dtype.size() as isize)
    }

    /// The epilogue: combined values of a block into the output.
    fn finish<T: Lane>(&self, block: Block, partials: &[f64]) {
        let kept = &self.job.plan.kept;
        let out = self.job.inputs;
        if self.job.direct {
            let (first, stride) = (self.at(out, kept.place(out, block.first)).cast::<T>(), kept.inner_stride(out));
            for (i, &partial) in partials.iter().enumerate() {
                // SAFETY: the block lies inside the output's layout, which lies inside its memory of this type; blocks are disjoint.
                unsafe { *first.offset(i as isize * stride) = <T as Element>::from_f64(partial) };
            }
            return;
        }
        let values: Vec<T> = partials.iter().map(|&p| <T as Element>::from_f64(p)).collect();
        let strides: SmallVec<[[isize; 1]; 4]> = (out..self.job.places.len()).map(|i| [kept.inner_stride(i)]).collect();
        let data = |i: usize| self.at(i, kept.place(i, block.first));
        let mut sources: SmallVec<[Source<'_>; 4]> = SmallVec::new();
        sources.push(Source { data: values.as_ptr().cast(), dtype: T::DTYPE, strides: &[1] });
        sources.extend((out + 1..self.job.places.len()).map(|i| Source {
            data: data(i),
            dtype: self.job.places[i].dtype,
            strides: &strides[i - out],
        }));
        let target = Target { data: data(out), dtype: self.job.places[out].dtype, strides: &strides[0] };
        let scalars = &self.scalars[self.job.prologue_scalars..];
        // SAFETY: the engine has checked the counts; the block lies inside the kept nest, so every position lies inside the
        // operands' layouts and memory; blocks are disjoint and the output, which is new, overlaps nothing.
        unsafe {
            let program = &self.job.programs.epilogue;
            program.run_nest(CpuNest { shape: &[block.len] }, &sources, &[target], scalars, 0..block.len);
        }
    }

    /// Positions of a block into the output of int64.
    fn finish_positions(&self, block: Block, found: &[Found]) {
        let (kept, out): (&Nest, usize) = (&self.job.plan.kept, self.job.inputs);
        let stride = kept.inner_stride(out);
        let first = self.at(out, kept.place(out, block.first)).cast::<i64>();
        for (i, found) in found.iter().enumerate() {
            let position = found.map_or(0, |(_, at)| at as i64);
            // SAFETY: the block lies inside the output's layout, which lies inside its memory of int64; blocks are disjoint.
            unsafe { *first.offset(i as isize * stride) = position };
        }
    }
}

/// Merges the partial results of one result, in halves: the order never changes, and roundings stay few.
fn tree<T: Lane, F: Fold<T>>(partials: &[F::Partial], results: usize, at: usize, splits: Range<usize>) -> F::Partial {
    if splits.len() <= 1 {
        return partials[splits.start * results + at];
    }
    let middle = splits.start + splits.len() / 2;
    let low = tree::<T, F>(partials, results, at, splits.start..middle);
    F::merge(low, tree::<T, F>(partials, results, at, middle..splits.end))
}

/// Memory for tiles, made when first needed.
struct Scratch<T>(Vec<T>);

impl<T: Lane> Scratch<T> {
    fn new() -> Self {
        Scratch(Vec::new())
    }

    fn take(&mut self, n: usize) -> &mut [T] {
        if self.0.len() < n {
            self.0.resize(n, T::ZERO);
        }
        &mut self.0[..n]
    }
}
