//! Regions on the native CPU: threads take blocks of rows, and each loop over a block is one program over memory that stays
//! in the cache.
//!
//! ```text
//!   block of rows      short rows: as many as fill BLOCK elements     long rows: one, cut into segments of BLOCK elements
//!     row program      one value per row of the block, into `rows`
//!     loop program     operands of reductions into `temporary`, values that wait into `kept`, outputs where they belong
//!     fold             each row of an operand into one value, into `rows`
//! ```
//!
//! Segments follow from the length of a row alone, so the number of threads changes nothing but the time.

use std::cell::RefCell;
use std::slice;
use std::sync::Arc;
use std::thread::LocalKey;

use smallvec::SmallVec;

use super::geometry::{Geometry, Strides};
use super::native::{Loop, Native, Operand, Step};
use super::plan::Keep;
use super::spec::Extent;
use super::{OP, Region, fold};
use crate::backend::cpu::threads::{SharedPtr, parallel_for};
use crate::backend::cpu::{CpuArgs, CpuKernel};
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::kernels::described::Combine;
use crate::kernels::elementwise::Number;
use crate::kernels::expr::cpu::{Nest, Registers, Source, Target};
use crate::kernels::expr::vecmath::Real;
use crate::kernels::expr::{Id, Node};
use crate::kernels::launch::{Arg, Work};

/// Elements of a block: a handful of temporaries of so many floats share a core's second-level cache.
const BLOCK: usize = 1 << 14;
/// Rows of a block at most.
const MAX_ROWS: usize = 512;
/// Values of longer rows do not wait between loops: they would leave the cache.
const KEEP_UP_TO: usize = 1 << 17;
/// Elements that one task should have at least, so that waking a thread pays.
const TASK: usize = 1 << 14;

/// Where an operand lies in its storage, and how it is laid out.
struct Place {
    offset: usize,
    end: usize,
    dtype: DType,
    outer: Strides,
    inner: Strides,
}

/// A region over some operands, ready to run any number of times.
struct Job {
    native: Arc<Native>,
    /// Which extents, nodes and reductions the region has.
    inputs: Vec<Extent>,
    nodes: Vec<Node>,
    combines: Vec<Combine>,
    /// Full outputs in the order in which the last loop writes them, then row outputs with their nodes.
    full_outputs: Vec<usize>,
    row_outputs: Vec<(usize, Id)>,
    kept: Vec<Id>,
    places: SmallVec<[Place; 6]>,
    outer: SmallVec<[usize; 4]>,
    inner: SmallVec<[usize; 4]>,
    compute: DType,
    scalars: usize,
}

pub(super) fn work(region: &Region, geometry: &Geometry, scalars: &[Number]) -> Result<(Work, SmallVec<[Arg; 8]>)> {
    let keep = if geometry.length() <= KEEP_UP_TO { Keep::Costly } else { Keep::Nothing };
    let plan = region.spec.plan(keep);
    let cell = &region.native[usize::from(keep == Keep::Costly) * 2 + usize::from(geometry.compute == DType::F64)];
    let native = match cell.get() {
        Some(native) => native.clone(),
        None => {
            let made = Arc::new(Native::compile(&region.spec, plan, geometry.compute)?);
            cell.get_or_init(|| made).clone()
        }
    };
    let mut args: SmallVec<[Arg; 8]> = (0..geometry.operands.len()).map(|i| geometry.buffer(i)).collect();
    args.extend(scalars.iter().map(|number| number.arg(geometry.compute)));
    let places = geometry.operands.iter().map(|o| {
        let (layout, dtype) = (o.tensor.layout(), o.tensor.dtype());
        let (offset, end) = (layout.offset() * dtype.size(), layout.end() * dtype.size());
        Place { offset, end, dtype, outer: o.outer.clone(), inner: o.inner.clone() }
    });
    let rows = region.spec.outputs.iter().enumerate().filter(|(_, e)| **e == Extent::Row);
    let job = Job {
        native,
        inputs: region.spec.inputs.clone(),
        nodes: region.spec.expr.nodes().to_vec(),
        combines: region.spec.reductions.iter().map(|r| r.combine).collect(),
        full_outputs: plan.phases.last().map(|phase| phase.outputs.clone()).unwrap_or_default(),
        row_outputs: rows.map(|(o, _)| (o, region.spec.result(o))).collect(),
        kept: plan.kept().collect(),
        places: places.collect(),
        outer: geometry.outer.clone(),
        inner: geometry.inner.clone(),
        compute: geometry.compute,
        scalars: scalars.len(),
    };
    let kernel = CpuKernel::new(move |args| match job.compute {
        DType::F64 => job.run::<f64>(args),
        _ => job.run::<f32>(args),
    });
    Ok((Work::Cpu(kernel), args))
}

impl Job {
    fn run<T: Scratch>(&self, args: &CpuArgs<'_>) -> Result<()> {
        let memory = self
            .places
            .iter()
            .enumerate()
            .map(|(i, place)| Ok(SharedPtr::new(args.checked_memory(i, place.end)?.wrapping_add(place.offset))))
            .collect::<Result<SmallVec<[SharedPtr<u8>; 6]>>>()?;
        let count = self.places.len();
        let scalars = (count..count + self.scalars).map(|i| args.float(i)).collect::<Result<SmallVec<[f64; 8]>>>()?;
        let rows: usize = self.outer.iter().product();
        let length: usize = self.inner.iter().product();
        // Blocks never cross the innermost of the outer axes, along which rows have one distance.
        let line = self.outer.last().copied().unwrap_or(1);
        let together = (BLOCK / length).clamp(1, MAX_ROWS).min(line).min(rows.div_ceil(8));
        let per_line = line.div_ceil(together);
        let grain = (TASK / (together * length)).max(1);
        parallel_for(OP, rows / line * per_line, grain, |range| {
            let mut block = Block::<T>::new(self, &memory, &scalars, together, length);
            for i in range {
                let start = i % per_line * together;
                block.run(i / per_line * line + start, together.min(line - start));
            }
        })
    }
}

/// Memory that a thread keeps from run to run, up to so many elements each: fresh pages cost more than what is done with them.
const KEPT_ELEMENTS: usize = 1 << 19;

/// A type with such memory.
trait Scratch: Real + Element {
    fn pool() -> &'static LocalKey<RefCell<Vec<Vec<Self>>>>;

    /// At least `len` elements of any value.
    fn take(len: usize) -> Vec<Self> {
        let mut memory = Self::pool().with_borrow_mut(Vec::pop).unwrap_or_default();
        if memory.len() < len {
            memory.resize(len, Self::ZERO);
        }
        memory
    }

    fn give_back(memory: Vec<Self>) {
        if memory.len() <= KEPT_ELEMENTS {
            Self::pool().with_borrow_mut(|pool| pool.push(memory));
        }
    }
}

macro_rules! scratch {
    ($($ty:ty)*) => {$(
        impl Scratch for $ty {
            fn pool() -> &'static LocalKey<RefCell<Vec<Vec<$ty>>>> {
                thread_local! {
                    static POOL: RefCell<Vec<Vec<$ty>>> = const { RefCell::new(Vec::new()) };
                }
                &POOL
            }
        }
    )*};
}

scratch!(f32 f64);

/// The memory of a thread, and where the current rows lie.
struct Block<'j, T: Scratch> {
    job: &'j Job,
    memory: &'j [SharedPtr<u8>],
    scalars: &'j [f64],
    /// Room for so many rows.
    together: usize,
    length: usize,
    segment: usize,
    rooms: usize,
    registers: Registers,
    /// For each node `together` row values, where it is one.
    rows: Vec<T>,
    kept: Vec<T>,
    temporary: Vec<T>,
    /// For each reduction of a loop and each row the value so far.
    partials: Vec<f64>,
}

/// The part of the rows that a step works on.
#[derive(Clone, Copy)]
struct Part {
    first_row: usize,
    rows: usize,
    start: usize,
    len: usize,
}

impl<T: Scratch> Drop for Block<'_, T> {
    fn drop(&mut self) {
        for memory in [&mut self.rows, &mut self.kept, &mut self.temporary] {
            T::give_back(std::mem::take(memory));
        }
    }
}

impl<'j, T: Scratch> Block<'j, T> {
    fn new(job: &'j Job, memory: &'j [SharedPtr<u8>], scalars: &'j [f64], together: usize, length: usize) -> Self {
        // Segments need one distance between elements.
        let segment = if job.inner.len() == 1 { length.min(BLOCK.max(together)) } else { length };
        // One room for each reduction of a loop, and one for inputs that must be converted first.
        let rooms = job.native.phases.iter().map(|p| p.reductions.len()).max().unwrap_or(0) + 1;
        Block {
            job,
            memory,
            scalars,
            together,
            length,
            segment,
            registers: Registers::default(),
            rooms,
            rows: T::take(job.nodes.len() * together),
            kept: T::take(job.kept.len() * together * length),
            temporary: T::take(rooms * together * segment),
            partials: Vec::new(),
        }
    }

    /// Computes `rows` rows from `first_row` on, which lie along the innermost of the outer axes.
    fn run(&mut self, first_row: usize, rows: usize) {
        let job = self.job;
        let whole = Part { first_row, rows, start: 0, len: self.length };
        for phase in &job.native.phases {
            if let Some(step) = &phase.rows {
                self.row_step(step, whole);
            }
            self.partials.clear();
            for (k, _) in &phase.reductions {
                self.partials.extend(std::iter::repeat_n(job.combines[*k].identity(), rows));
            }
            for start in (0..self.length).step_by(self.segment) {
                let part = Part { start, len: self.segment.min(self.length - start), ..whole };
                if let Some(step) = &phase.body {
                    self.loop_step(phase, step, part);
                }
                for (n, (k, operand)) in phase.reductions.iter().enumerate() {
                    self.fold(n, job.combines[*k], operand, part);
                }
            }
            for (n, (k, _)) in phase.reductions.iter().enumerate() {
                let result = Node::Input((job.inputs.len() + k) as u16);
                // A reduction whose result nothing but a later loop's absence needs has no node.
                if let Some(node) = job.nodes.iter().position(|node| *node == result) {
                    for (row, &partial) in self.partials[n * rows..(n + 1) * rows].iter().enumerate() {
                        self.rows[node * self.together + row] = <T as Real>::from_f64(partial);
                    }
                }
            }
        }
        if let Some(step) = &job.native.last {
            self.row_step(step, whole);
        }
        for &(output, id) in &job.row_outputs {
            self.store_rows(output, id, whole);
        }
    }

    /// The first element of an operand in a part.
    fn place(&self, operand: usize, part: Part) -> *mut u8 {
        let place = &self.job.places[operand];
        let (mut at, mut rest) = (0, part.first_row);
        for (&n, &stride) in self.job.outer.iter().zip(&place.outer).rev() {
            at += (rest % n) as isize * stride;
            rest /= n;
        }
        at += part.start as isize * place.inner.last().copied().unwrap_or(0);
        self.memory[operand].get().wrapping_offset(at * place.dtype.size() as isize)
    }

    /// The distance between the rows of an operand, and between its elements.
    fn strides(&self, operand: usize) -> SmallVec<[isize; 6]> {
        let place = &self.job.places[operand];
        place.outer.last().copied().into_iter().chain(place.inner.iter().copied()).collect()
    }

    /// The region's input that a node is.
    fn input(&self, id: Id) -> Option<usize> {
        match self.job.nodes[id.index()] {
            Node::Input(i) if usize::from(i) < self.job.inputs.len() => Some(usize::from(i)),
            _ => None,
        }
    }

    fn kept_at(&self, id: Id) -> Option<usize> {
        self.job.kept.iter().position(|k| *k == id).map(|k| k * self.together * self.length)
    }

    fn loop_step(&mut self, phase: &Loop, step: &Step, part: Part) {
        let job = self.job;
        let axes = job.inner.len();
        let shape: SmallVec<[usize; 6]> = if axes == 1 {
            [part.rows, part.len].into_iter().collect()
        } else {
            [part.rows].into_iter().chain(job.inner.iter().copied()).collect()
        };
        let dense = |row: usize| -> SmallVec<[isize; 6]> {
            let mut strides = crate::shape::Shape::from(&shape[1..]).contiguous_strides();
            strides.insert(0, row as isize);
            strides
        };
        let (kept, temporary) = (self.kept.as_mut_ptr(), self.temporary.as_mut_ptr());
        let mut strides: SmallVec<[SmallVec<[isize; 6]>; 8]> = SmallVec::new();
        let mut places: SmallVec<[(*mut u8, DType); 8]> = SmallVec::new();
        for &id in &step.inputs {
            if let Some(operand) = self.input(id) {
                places.push((self.place(operand, part), job.places[operand].dtype));
                strides.push(self.strides(operand));
            } else if let Some(at) = self.kept_at(id) {
                places.push((kept.wrapping_add(at + part.start).cast(), T::DTYPE));
                strides.push(dense(self.length));
            } else {
                let row = self.rows.as_mut_ptr().wrapping_add(id.index() * self.together);
                places.push((row.cast(), T::DTYPE));
                strides.push(std::iter::once(1).chain(std::iter::repeat_n(0, axes)).collect());
            }
        }
        let first_output = step.outputs.len() - phase.outputs;
        for (o, &id) in step.outputs.iter().enumerate() {
            if o >= first_output {
                let operand = job.inputs.len() + job.full_outputs[o - first_output];
                places.push((self.place(operand, part), job.places[operand].dtype));
                strides.push(self.strides(operand));
            } else if let Some(at) = self.kept_at(id) {
                places.push((kept.wrapping_add(at + part.start).cast(), T::DTYPE));
                strides.push(dense(self.length));
            } else {
                let at = o * self.together * self.segment;
                places.push((temporary.wrapping_add(at).cast(), T::DTYPE));
                strides.push(dense(part.len));
            }
        }
        // SAFETY: the operands' layouts lie inside their memory (checked when the launch began), and the rows of this block
        // and this part of them inside the layouts; `kept` has a row of `length`, `temporary` one of `segment` elements for each
        // of the `together` rows and each value. Outputs do not overlap each other or an input other than element by element
        // (`Region::run`), and only this thread has these rows.
        unsafe { self.run_step(step, &shape, &places, &strides) };
    }

    /// Runs the program of a step over a nest; its outputs are the last operands.
    ///
    /// # Safety
    /// As for [`Program::run_nest_in`].
    unsafe fn run_step<S: AsRef<[isize]>>(
        &mut self,
        step: &Step,
        shape: &[usize],
        places: &[(*mut u8, DType)],
        strides: &[S],
    ) {
        let operands = || places.iter().zip(strides).map(|(&(data, dtype), strides)| (data, dtype, strides.as_ref()));
        let sources: SmallVec<[Source<'_>; 8]> =
            operands().take(step.inputs.len()).map(|(data, dtype, strides)| Source { data, dtype, strides }).collect();
        let targets: SmallVec<[Target<'_>; 8]> =
            operands().skip(step.inputs.len()).map(|(data, dtype, strides)| Target { data, dtype, strides }).collect();
        let size = shape.iter().product();
        // SAFETY: the caller's promise.
        unsafe {
            step.program.run_nest_in(&mut self.registers, Nest { shape }, &sources, &targets, self.scalars, 0..size)
        };
    }

    fn row_step(&mut self, step: &Step, part: Part) {
        let rows = self.rows.as_mut_ptr();
        let own = |id: Id| rows.wrapping_add(id.index() * self.together).cast::<u8>();
        let mut strides: SmallVec<[[isize; 1]; 8]> = SmallVec::new();
        let mut places: SmallVec<[(*mut u8, DType); 8]> = SmallVec::new();
        for &id in &step.inputs {
            if let Some(operand) = self.input(id) {
                let place = &self.job.places[operand];
                places.push((self.place(operand, part), place.dtype));
                strides.push([place.outer.last().copied().unwrap_or(0)]);
            } else {
                places.push((own(id), T::DTYPE));
                strides.push([1]);
            }
        }
        places.extend(step.outputs.iter().map(|&id| (own(id), T::DTYPE)));
        strides.resize(places.len(), [1]);
        // SAFETY: as in `loop_step`; every node has `together` row values of its own, and inputs and outputs are different nodes.
        unsafe { self.run_step(step, &[part.rows], &places, &strides) };
    }

    /// Writes row values to an output.
    fn store_rows(&mut self, output: usize, id: Id, part: Part) {
        let operand = self.job.inputs.len() + output;
        let to = self.place(operand, part);
        let place = &self.job.places[operand];
        let target = [place.outer.last().copied().unwrap_or(0)];
        let (data, dtype, from) = match (self.input(id), self.job.nodes[id.index()]) {
            (Some(input), _) => {
                let place = &self.job.places[input];
                (self.place(input, part).cast_const(), place.dtype, [place.outer.last().copied().unwrap_or(0)])
            }
            (None, Node::Const(c)) => {
                self.rows[id.index() * self.together..][..part.rows].fill(<T as Real>::from_f64(c.value()));
                (self.rows[id.index() * self.together..].as_ptr().cast(), T::DTYPE, [1])
            }
            (None, Node::Scalar(s)) => {
                let value = <T as Real>::from_f64(self.scalars[usize::from(s)]);
                self.rows[id.index() * self.together..][..part.rows].fill(value);
                (self.rows[id.index() * self.together..].as_ptr().cast(), T::DTYPE, [1])
            }
            _ => (self.rows[id.index() * self.together..].as_ptr().cast(), T::DTYPE, [1]),
        };
        let source = Source { data, dtype, strides: &from };
        let target = Target { data: to, dtype: place.dtype, strides: &target };
        let shape = [part.rows];
        let same = &self.job.native.same;
        // SAFETY: as in `row_step`; the output's rows are those of this block.
        unsafe {
            same.run_nest_in(&mut self.registers, Nest { shape: &shape }, &[source], &[target], &[], 0..part.rows);
        }
    }

    /// Combines a part of each row with what reduction `n` of the loop has so far.
    fn fold(&mut self, n: usize, combine: Combine, operand: &Operand, part: Part) {
        let (first, step): (*const T, isize) = match operand {
            Operand::Kept(id) => {
                let at = self.kept_at(*id).unwrap_or_default() + part.start;
                (self.kept.as_ptr().wrapping_add(at), self.length as isize)
            }
            Operand::Temporary(t) => {
                (self.temporary.as_ptr().wrapping_add(t * self.together * self.segment), part.len as isize)
            }
            Operand::Input(input) => {
                let place = &self.job.places[*input];
                let dense = place.inner.len() == 1 && (place.inner[0] == 1 || part.len == 1) && place.dtype == T::DTYPE;
                if !dense {
                    return self.fold_copied(n, combine, *input, part);
                }
                (self.place(*input, part).cast_const().cast(), place.outer.last().copied().unwrap_or(0))
            }
        };
        for row in 0..part.rows {
            // SAFETY: `part.len` elements of a row that lies densely: in memory of this block, which the loop's program has
            // filled, or in an input, whose layout lies inside its memory and which nobody writes before the last loop.
            let values = unsafe { slice::from_raw_parts(first.wrapping_offset(row as isize * step), part.len) };
            let partial = &mut self.partials[n * part.rows + row];
            *partial = fold::fold(combine, *partial, values);
        }
    }

    /// As `fold`, for an input that does not lie densely in the type of the computation.
    fn fold_copied(&mut self, n: usize, combine: Combine, input: usize, part: Part) {
        let job = self.job;
        let axes = job.inner.len();
        let shape: SmallVec<[usize; 6]> =
            if axes == 1 { [part.len].into_iter().collect() } else { job.inner.iter().copied().collect() };
        let dense = crate::shape::Shape::from(&shape[..]).contiguous_strides();
        let place = &job.places[input];
        let first = self.place(input, part);
        let step = place.outer.last().copied().unwrap_or(0) * place.dtype.size() as isize;
        // The last room, which no program fills.
        let at = (self.rooms - 1) * self.together * self.segment;
        for row in 0..part.rows {
            let data = first.wrapping_offset(row as isize * step);
            let room = &mut self.temporary[at..at + part.len];
            let source = Source { data, dtype: place.dtype, strides: &place.inner };
            let target = Target { data: room.as_mut_ptr().cast(), dtype: T::DTYPE, strides: &dense };
            // SAFETY: one part of a row of the input, inside its layout, into memory of its own.
            unsafe {
                let registers = &mut self.registers;
                job.native.same.run_nest_in(registers, Nest { shape: &shape }, &[source], &[target], &[], 0..part.len);
            }
            let partial = &mut self.partials[n * part.rows + row];
            *partial = fold::fold(combine, *partial, &self.temporary[at..at + part.len]);
        }
    }
}
