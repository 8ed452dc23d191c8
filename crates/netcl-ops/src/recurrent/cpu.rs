//! Recurrent layers on the native CPU: one launch for all steps.
//!
//! Rows of the batch need nothing of each other, so a block of them is one task that walks through all steps alone, without waiting
//! for other threads. A batch too small to share is cut into columns instead, and threads meet after every step. How a batch is
//! cut depends on its shape alone, so that the bits do not depend on the number of threads.
//!
//! The weights are packed into panels once per call: a product of a few rows reads them in the order in which they lie.

use std::ops::Range;
use std::sync::Arc;

use netcl_core::backend::cpu::interrupt::checkpoint;
use netcl_core::backend::cpu::threads::{SharedPtr, parallel_for};
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::cpu::{Nest, Program, Registers, Source, Target};
use netcl_core::kernels::launch::Access;
use netcl_core::{Result, simd};
use smallvec::{SmallVec, smallvec};

use super::cell::Cell;
use super::{Backward, Problem, Written};
use crate::dense::{Args, Job, Views};
use crate::epilogue;
use crate::matmul::{PANEL, Sum, View, panel_product};

/// Rows of a task, at least: what the product's register tile has.
const ROWS: usize = 8;
/// Rows of a task, at most: their gates stay in the second-level cache.
const MOST_ROWS: usize = 32;
/// Tasks to aim for.
const ENOUGH_TASKS: usize = 8;
/// Columns of a task where a batch is not shared: whole panels, in rows long enough to be read in place.
const COLUMNS: usize = 3 * PANEL;

/// Everything about a call but its memory.
struct Geometry {
    op: &'static str,
    cell: Cell,
    batch: usize,
    hidden: usize,
    /// The steps in the order of the walk: each with the one before it in time.
    order: Vec<(usize, Option<usize>)>,
    program: Arc<Program>,
}

impl Geometry {
    fn new(problem: &Problem, order: Vec<(usize, Option<usize>)>, program: Arc<Program>) -> Geometry {
        let Problem { op, cell, batch, hidden, .. } = *problem;
        Geometry { op, cell, batch, hidden, order, program }
    }

    fn width(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// Runs `step` for every step, block of rows and block of columns, in an order in which a step comes after all that it reads.
    fn walk<T>(&self, step: impl Fn(usize, Range<usize>, Range<usize>, &mut Scratch<T>) + Sync) -> Result<()> {
        let rows = self.batch.div_ceil(ENOUGH_TASKS).next_multiple_of(ROWS).min(MOST_ROWS);
        if self.batch > ROWS {
            return parallel_for(self.op, self.batch.div_ceil(rows), 1, |blocks| {
                let mut scratch = Scratch::default();
                for block in blocks {
                    let rows = block * rows..self.batch.min((block + 1) * rows);
                    for at in 0..self.order.len() {
                        checkpoint();
                        step(at, rows.clone(), 0..self.hidden, &mut scratch);
                    }
                }
            });
        }
        (0..self.order.len()).try_for_each(|at| {
            parallel_for(self.op, self.hidden.div_ceil(COLUMNS), 1, |blocks| {
                let mut scratch = Scratch::default();
                for block in blocks {
                    let columns = block * COLUMNS..self.hidden.min((block + 1) * COLUMNS);
                    step(at, 0..self.batch, columns, &mut scratch);
                }
            })
        })
    }
}

/// Memory of one thread, kept from step to step.
struct Scratch<T> {
    sums: Vec<T>,
    registers: Registers,
}

impl<T> Default for Scratch<T> {
    fn default() -> Self {
        Scratch { sums: Vec::new(), registers: Registers::default() }
    }
}

/// A matrix of `terms` rows as panels of [`PANEL`] columns, one after the other.
struct Panels<T> {
    data: Vec<T>,
    terms: usize,
    columns: usize,
}

impl<T: Sum> Panels<T> {
    /// Packs a matrix whose rows and columns have these distances.
    fn pack(op: &'static str, from: &[T], terms: usize, columns: usize, strides: (usize, usize)) -> Result<Panels<T>> {
        let mut data = vec![T::ZERO; terms * columns];
        let to = SharedPtr::new(data.as_mut_ptr());
        parallel_for(op, columns.div_ceil(PANEL), 1, |panels| {
            for panel in panels {
                let (start, width) = (panel * PANEL, PANEL.min(columns - panel * PANEL));
                // SAFETY: the panel's part of the matrix, which no other task writes.
                let to = unsafe { std::slice::from_raw_parts_mut(to.get().add(start * terms), width * terms) };
                copy_panel(&from[start * strides.1..], strides, width, to);
            }
        })?;
        Ok(Panels { data, terms, columns })
    }

    /// `out = a x b` for some columns, which begin with a panel.
    ///
    /// # Safety
    /// `a` has `rows` rows of as many elements as the matrix has rows, `out` room for `rows` rows of the columns.
    unsafe fn multiply(&self, rows: usize, a: View<T>, columns: Range<usize>, out: View<T>) {
        for start in columns.clone().step_by(PANEL) {
            let width = PANEL.min(self.columns - start);
            let b = View { data: self.data[start * self.terms..].as_ptr().cast_mut(), rs: width as isize, cs: 1 };
            // SAFETY: the panel's terms x width elements, and the caller's promise for the others.
            unsafe {
                let out = View { data: out.data.add(start - columns.start), ..out };
                panel_product((rows, width, self.terms), a, b, out);
            }
        }
    }
}

simd! {
    fn copy_panel<T: Copy>(from: &[T], strides: (usize, usize), width: usize, to: &mut [T]) {
        let (row, column) = strides;
        for (term, to) in to.chunks_exact_mut(width).enumerate() {
            for (i, to) in to.iter_mut().enumerate() {
                *to = from[term * row + i * column];
            }
        }
    }
}

/// A tensor of a launch with rows for the batch, one below the other; zeros where there is none.
#[derive(Clone, Copy)]
struct Rows<T> {
    data: Option<SharedPtr<T>>,
    /// The distance of two rows, and of two elements: nothing where there are zeros.
    strides: [isize; 2],
}

impl<T: Sum> Rows<T> {
    fn new(views: &Views<'_, '_>, tensor: usize, width: usize) -> Result<Rows<T>> {
        if !views.has(tensor) {
            return Ok(Rows { data: None, strides: [0, 0] });
        }
        // SAFETY: an empty part; whoever goes on from there answers for what is accessed.
        let start = unsafe { views.output::<T>(tensor)?.part(0, 0) };
        Ok(Rows { data: Some(SharedPtr::new(start.as_mut_ptr())), strides: [width as isize, 1] })
    }

    /// The tensor from an element on.
    fn at(&self, row: usize, column: usize) -> Rows<T> {
        let element = row as isize * self.strides[0] + column as isize;
        Rows { data: self.data.map(|data| SharedPtr::new(data.get().wrapping_offset(element))), ..*self }
    }

    fn view(&self) -> Option<View<T>> {
        self.data.map(|data| View { data: data.get(), rs: self.strides[0], cs: 1 })
    }

    fn source<'s>(&'s self, zero: &'s T) -> Source<'s> {
        let data = self.data.map_or(std::ptr::from_ref(zero), |data| data.get().cast_const());
        Source { data: data.cast(), dtype: T::DTYPE, strides: &self.strides }
    }

    /// Where results go; `None` where there is no tensor.
    fn target(&self) -> Option<Target<'_>> {
        self.data.map(|data| Target { data: data.get().cast(), dtype: T::DTYPE, strides: &self.strides })
    }
}

type List<T> = SmallVec<[Rows<T>; 16]>;

/// Applies a cell to a block.
///
/// # Safety
/// The rows and columns of the block exist in every tensor, and nobody else touches those that are written.
unsafe fn apply<T: Sum>(program: &Program, size: [usize; 2], from: &List<T>, to: &List<T>, registers: &mut Registers) {
    let zero = T::ZERO;
    let sources: SmallVec<[Source<'_>; 16]> = from.iter().map(|rows| rows.source(&zero)).collect();
    let targets: SmallVec<[Target<'_>; 8]> = to.iter().filter_map(Rows::target).collect();
    let all = size[0] * size[1];
    // SAFETY: the caller's promise; an output is at most the very memory of an input.
    unsafe { program.run_nest_in(registers, Nest { shape: &size }, &sources, &targets, &[], 0..all) };
}

/// Runs a body with the type that a dtype is computed in.
macro_rules! with_sums {
    ($dtype:expr, $run:ident($($arg:expr),*)) => {
        match $dtype {
            DType::F64 => $run::<f64>($($arg),*),
            _ => $run::<f32>($($arg),*),
        }
    };
}

pub(super) fn forward(problem: &Problem, written: &Written<'_>) -> Result<()> {
    let dtype = problem.input.dtype();
    let args = Args::default().read(&problem.input).read(&problem.weight);
    let args = [&problem.bias, &problem.first_hidden, &problem.first_memory]
        .into_iter()
        .fold(args, |args, tensor| args.maybe(tensor.as_ref(), Access::Read))
        .write(written.out)
        .maybe(written.memories, Access::Write)
        .maybe(written.saved, Access::Write);
    let program = epilogue::program(&problem.cell.forward(written.saved.is_some()), dtype)?;
    let geometry = Geometry::new(problem, problem.order().collect(), program);
    let (queue, cost) = (problem.input.queue().clone(), problem.cost(problem.steps));
    let job = Job { name: problem.op, queue, dtype, cost, args };
    job.run_cpu(move |views| with_sums!(dtype, run_forward(&geometry, views)))
}

fn run_forward<T: Sum>(g: &Geometry, views: &Views<'_, '_>) -> Result<()> {
    let (batch, hidden, gates) = (g.batch, g.hidden, g.cell.gates());
    let weight: &[T] = views.input(1)?;
    let panels = (0..gates)
        .map(|gate| Panels::pack(g.op, &weight[gate * hidden * hidden..], hidden, hidden, (1, hidden)))
        .collect::<Result<Vec<_>>>()?;
    let rows_of = |tensor: usize, width: usize| Rows::<T>::new(views, tensor, width);
    let (input, first_hidden, first_memory) = (rows_of(0, g.width())?, rows_of(3, hidden)?, rows_of(4, hidden)?);
    let bias = rows_of(2, 0)?;
    let (out, memories, saved) = (rows_of(5, hidden)?, rows_of(6, hidden)?, rows_of(7, g.cell.saved() * hidden)?);
    g.walk(|at, rows, columns, scratch: &mut Scratch<T>| {
        let (now, before) = g.order[at];
        let (count, width) = (rows.len(), columns.len());
        let earlier = |all: &Rows<T>, first: &Rows<T>, column: usize| match before {
            Some(before) => all.at(before * batch + rows.start, column),
            None => first.at(rows.start, column),
        };
        scratch.sums.resize(count * gates * width, T::ZERO);
        let mut sums = Rows { data: None, strides: [0, 0] };
        if let Some(state) = earlier(&out, &first_hidden, 0).view() {
            let pitch = (gates * width) as isize;
            sums = Rows { data: Some(SharedPtr::new(scratch.sums.as_mut_ptr())), strides: [pitch, 1] };
            for (gate, panels) in panels.iter().enumerate() {
                let to = View { data: scratch.sums[gate * width..].as_mut_ptr(), rs: pitch, cs: 1 };
                // SAFETY: the state's rows are complete and nobody writes them; the sums are this thread's own.
                unsafe { panels.multiply(count, state, columns.clone(), to) };
            }
        }
        let row = now * batch + rows.start;
        let mut from: List<T> = (0..gates).map(|gate| sums.at(0, gate * width)).collect();
        from.extend((0..gates).map(|gate| input.at(row, gate * hidden + columns.start)));
        from.extend((0..gates).map(|gate| bias.at(0, gate * hidden + columns.start)));
        from.push(if g.cell.has_memory() {
            earlier(&memories, &first_memory, columns.start)
        } else {
            earlier(&out, &first_hidden, columns.start)
        });
        let mut to: List<T> = smallvec![out.at(row, columns.start)];
        to.extend((0..g.cell.saved()).map(|i| saved.at(row, i * hidden + columns.start)));
        to.push(memories.at(row, columns.start));
        // SAFETY: this step's rows and columns are this task's alone.
        unsafe { apply(&g.program, [count, width], &from, &to, &mut scratch.registers) };
    })
}

pub(super) fn backward(problem: &Problem, backward: &Backward<'_>) -> Result<()> {
    let dtype = problem.input.dtype();
    let args = Args::default().read(&problem.weight).read(backward.out);
    let read = [backward.memories, backward.saved, backward.upstream, backward.last];
    let first = [problem.first_hidden.as_ref(), problem.first_memory.as_ref()];
    let args = read.into_iter().chain(first).fold(args, |args, tensor| args.maybe(tensor, Access::Read));
    let args = args.write(backward.input).maybe(backward.gates, Access::Write).maybe(backward.carried, Access::Write);
    let program = epilogue::program(&problem.cell.backward(), dtype)?;
    let geometry = Geometry::new(problem, problem.order().rev().collect(), program);
    let (queue, cost) = (problem.input.queue().clone(), problem.cost(problem.steps));
    let job = Job { name: problem.op, queue, dtype, cost, args };
    job.run_cpu(move |views| with_sums!(dtype, run_backward(&geometry, views)))
}

fn run_backward<T: Sum>(g: &Geometry, views: &Views<'_, '_>) -> Result<()> {
    let (cell, batch, hidden, gates) = (g.cell, g.batch, g.hidden, g.cell.gates());
    let panels = Panels::<T>::pack(g.op, views.input(0)?, g.width(), hidden, (hidden, 1))?;
    let rows_of = |tensor: usize, width: usize| Rows::<T>::new(views, tensor, width);
    let (out, memories, saved) = (rows_of(1, hidden)?, rows_of(2, hidden)?, rows_of(3, cell.saved() * hidden)?);
    let (upstream, last) = (rows_of(4, hidden)?, rows_of(5, hidden)?);
    let (first_hidden, first_memory) = (rows_of(6, hidden)?, rows_of(7, hidden)?);
    let (input, apart, carried) = (rows_of(8, g.width())?, rows_of(9, g.width())?, rows_of(10, hidden)?);
    let recurrent = if cell.parts_differ() { apart } else { input };
    g.walk(|at, rows, columns, scratch: &mut Scratch<T>| {
        let (now, before) = g.order[at];
        let (count, width, start) = (rows.len(), columns.len(), columns.start);
        let row = now * batch + rows.start;
        let through = match at.checked_sub(1).map(|at| g.order[at].0) {
            None => last.at(rows.start, start),
            Some(after) => {
                scratch.sums.resize(count * width, T::ZERO);
                let to = View { data: scratch.sums.as_mut_ptr(), rs: width as isize, cs: 1 };
                if let Some(from) = recurrent.at(after * batch + rows.start, 0).view() {
                    // SAFETY: the gates' gradients of these rows are complete; the sums are this thread's own.
                    unsafe { panels.multiply(count, from, columns.clone(), to) };
                }
                Rows { data: Some(SharedPtr::new(to.data)), strides: [to.rs, 1] }
            }
        };
        let earlier = |all: &Rows<T>, first: &Rows<T>| match before {
            Some(before) => all.at(before * batch + rows.start, start),
            None => first.at(rows.start, start),
        };
        let carried = carried.at(rows.start, start);
        let (before, now) = if cell.has_memory() {
            (earlier(&memories, &first_memory), memories.at(row, start))
        } else {
            (earlier(&out, &first_hidden), out.at(row, start))
        };
        let mut from: List<T> = smallvec![through, upstream.at(row, start), carried, before, now];
        from.extend((0..cell.saved()).map(|i| saved.at(row, i * hidden + start)));
        let mut to: List<T> = (0..gates).map(|gate| input.at(row, gate * hidden + start)).collect();
        to.extend((0..gates).map(|gate| apart.at(row, gate * hidden + start)));
        to.push(carried);
        // SAFETY: this step's rows and columns are this task's alone.
        unsafe { apply(&g.program, [count, width], &from, &to, &mut scratch.registers) };
    })
}
