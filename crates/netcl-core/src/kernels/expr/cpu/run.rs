//! Running a program over a loop nest: which chunks there are, and where their operands lie.

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

use smallvec::SmallVec;

use super::exec::SPREAD;
#[cfg(target_arch = "x86_64")]
use super::fused;
use super::operand::{Compute, load, store};
use super::walk::Walk;
use super::{Program, exec};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::kernels::expr::vecmath::Real;
use crate::shape::{Layout, Shape};

/// Elements per chunk: 1 KB a register in f32, so that two dozen of them share a first-level cache with the operands, and that the
/// processor reaches the next instruction while a slow one (a division, a root) still runs.
const CHUNK: usize = 256;

/// The bytes of a cache line, and of the widest register.
const LINE: usize = 64;

/// Rows at least this long are run one by one, reading operands in place; shorter ones are gathered into full chunks.
const LONG_ROW: usize = 128;

/// A loop nest: the shape all operands share, as [`Layout::collapse`] gives it.
#[derive(Clone, Copy, Debug)]
pub struct Nest<'a> {
    /// The lengths of the axes, outermost first. No axes mean one element.
    pub shape: &'a [usize],
}

/// An input: where its first element lies and how far apart its elements are.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The first element.
    pub data: *const u8,
    /// Its type; anything but the program's compute type is converted on the way.
    pub dtype: DType,
    /// One stride per axis of the nest, in elements; zero where the input is broadcast.
    pub strides: &'a [isize],
}

/// An output.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The first element.
    pub data: *mut u8,
    /// Its type. Integers truncate and saturate.
    pub dtype: DType,
    /// One stride per axis of the nest, in elements.
    pub strides: &'a [isize],
}

/// Memory for the temporaries of runs; one after the other may use it.
#[derive(Debug, Default)]
pub struct Registers {
    single: Vec<f32>,
    double: Vec<f64>,
}

impl Program {
    /// Evaluates the elements `range` of a nest, counted in row-major order. Single-threaded: the caller hands disjoint
    /// ranges to its threads.
    ///
    /// # Safety
    /// * There are as many inputs, outputs and scalars as the program has, and each operand has one stride per axis.
    /// * Every position an operand's strides reach inside the nest is valid memory of its dtype, aligned for it:
    ///   initialised and not written by anyone else for inputs, writable and not accessed by anyone else for outputs.
    /// * No two positions of the outputs coincide. An output may be the very memory of an input (same first element,
    ///   dtype and strides: in-place), else it must not overlap any.
    /// * `range` lies inside the nest.
    pub unsafe fn run_nest(
        &self,
        nest: Nest<'_>,
        inputs: &[Source<'_>],
        outputs: &[Target<'_>],
        scalars: &[f64],
        range: Range<usize>,
    ) {
        // SAFETY: the caller's contract, passed on.
        unsafe { self.run_nest_in(&mut Registers::default(), nest, inputs, outputs, scalars, range) };
    }

    /// As [`Program::run_nest`], with memory that many small runs may share.
    ///
    /// # Safety
    /// As [`Program::run_nest`].
    pub unsafe fn run_nest_in(
        &self,
        registers: &mut Registers,
        nest: Nest<'_>,
        inputs: &[Source<'_>],
        outputs: &[Target<'_>],
        scalars: &[f64],
        range: Range<usize>,
    ) {
        if range.is_empty() {
            return;
        }
        // Small tensors are common and should not pay for large registers.
        let chunk = CHUNK.min(range.len().next_multiple_of(SPREAD));
        // SAFETY: the caller's contract, passed on.
        unsafe {
            match self.compute {
                DType::F64 => Run::new(self, &mut registers.double, nest, inputs, outputs, scalars, chunk).go(range),
                _ => Run::new(self, &mut registers.single, nest, inputs, outputs, scalars, chunk).go(range),
            }
        }
    }

    /// Evaluates over slices of one type: all as long as the outputs, or of length 1, which broadcasts.
    pub fn run_slices<E: Element>(&self, inputs: &[&[E]], scalars: &[f64], outputs: &mut [&mut [E]]) -> Result<()> {
        let n = outputs.first().map_or(0, |o| o.len());
        let layout = Layout::contiguous(Shape::from([n]));
        let one = Layout::contiguous(Shape::from([1])).expand("expression", layout.shape())?;
        let inputs: Vec<(&[E], &Layout)> =
            inputs.iter().map(|&i| (i, if i.len() == 1 && n != 1 { &one } else { &layout })).collect();
        let mut outputs: Vec<(&mut [E], &Layout)> = outputs.iter_mut().map(|o| (&mut **o, &layout)).collect();
        self.run_layouts(&inputs, scalars, &mut outputs)
    }

    /// Evaluates over slices seen through layouts of one shape (expand broadcast operands first).
    pub fn run_layouts<A: Element, B: Element>(
        &self,
        inputs: &[(&[A], &Layout)],
        scalars: &[f64],
        outputs: &mut [(&mut [B], &Layout)],
    ) -> Result<()> {
        let counts = [inputs.len(), outputs.len(), scalars.len()];
        let expected = [self.inputs, self.outputs, self.scalars];
        if counts != expected {
            let what = format!("takes (inputs, outputs, scalars) = {expected:?}, got {counts:?}");
            return Err(Error::argument("expression", what));
        }
        let ends = inputs.iter().map(|(d, l)| (d.len(), *l)).chain(outputs.iter().map(|(d, l)| (d.len(), *l)));
        let shape = outputs.first().map(|(_, l)| l.shape().clone()).unwrap_or_default();
        for (len, layout) in ends {
            if layout.shape() != &shape || layout.end() > len {
                let why = format!("it must equal the output's shape {shape} and stay inside its {len} values");
                return Err(Error::Shape { op: "expression", shape: layout.shape().clone(), why });
            }
        }
        if let Some((_, layout)) = outputs.iter().find(|(_, l)| l.overlaps_itself()) {
            let why = "two of its elements share one place, which cannot be written".to_owned();
            return Err(Error::Shape { op: "expression", shape: layout.shape().clone(), why });
        }
        let layouts: Vec<&Layout> = inputs.iter().map(|(_, l)| *l).chain(outputs.iter().map(|(_, l)| *l)).collect();
        let (nest, strides) = Layout::collapse(&layouts);
        let sources: Vec<Source<'_>> = inputs
            .iter()
            .zip(&strides)
            .filter(|_| shape.size() > 0)
            .map(|((data, layout), strides)| Source {
                data: data[layout.offset()..].as_ptr().cast(),
                dtype: A::DTYPE,
                strides,
            })
            .collect();
        let targets: Vec<Target<'_>> = outputs
            .iter_mut()
            .zip(&strides[inputs.len()..])
            .filter(|_| shape.size() > 0)
            .map(|((data, layout), strides)| Target {
                data: data[layout.offset()..].as_mut_ptr().cast(),
                dtype: B::DTYPE,
                strides,
            })
            .collect();
        // SAFETY: counts, shapes and reaches were checked above; the slices borrow shared and exclusively, so outputs
        // overlap nothing; an output does not overlap itself; collapsed strides reach what the layouts reach.
        unsafe { self.run_nest(Nest { shape: &nest }, &sources, &targets, scalars, 0..shape.size()) };
        Ok(())
    }
}

/// One run: its registers and where each slot of the current chunk lies.
struct Run<'a, T> {
    program: &'a Program,
    nest: Nest<'a>,
    /// Elements per slot.
    chunk: usize,
    /// From how many elements on all are done at once, however many there are; fewer are done in chunks.
    at_once_from: usize,
    /// Whether no operand is ever staged.
    in_place: bool,
    inputs: &'a [Source<'a>],
    outputs: &'a [Target<'a>],
    /// A chunk for each slot: staging for inputs and outputs, then the registers. Borrowed for the whole run; all access
    /// goes through `base`, because the slots point into it.
    _memory: PhantomData<&'a mut [T]>,
    base: *mut T,
    slots: SmallVec<[*mut T; 16]>,
    /// Which operands lie densely over the whole nest, inputs first.
    dense: SmallVec<[bool; 16]>,
    /// Which slots hold one number in the current chunk.
    uniform: SmallVec<[bool; 16]>,
    /// The element an input's staging chunk is filled with, for inputs that are constant along the innermost axis.
    filled: SmallVec<[*const u8; 8]>,
}

impl<'a, T: Compute> Run<'a, T> {
    /// # Safety
    /// As [`Program::run_nest`].
    unsafe fn new(
        program: &'a Program,
        memory: &'a mut Vec<T>,
        nest: Nest<'a>,
        inputs: &'a [Source<'a>],
        outputs: &'a [Target<'a>],
        scalars: &[f64],
        chunk: usize,
    ) -> Self {
        let needed = program.slots * chunk + LINE / size_of::<T>();
        if memory.len() < needed {
            memory.resize(needed, T::ZERO);
        }
        // SAFETY: the room for it was asked for. (A type of floats is aligned to its size, so that the offset is in elements.)
        let base = unsafe { memory.as_mut_ptr().add(memory.as_ptr().align_offset(LINE).min(LINE / size_of::<T>())) };
        // SAFETY: slot s has the chunk at s * chunk of memory, which is large enough.
        let slots: SmallVec<[*mut T; 16]> = (0..program.slots).map(|s| unsafe { base.add(s * chunk) }).collect();
        let given = program
            .constants
            .iter()
            .map(|&(slot, c)| (slot, c.value()))
            .chain(program.parameters.iter().map(|&(slot, i)| (slot, scalars[i])));
        for (slot, value) in given {
            // SAFETY: a part of the slot's own chunk, which nothing borrows.
            unsafe { slice::from_raw_parts_mut(slots[usize::from(slot)], SPREAD) }.fill(<T as Real>::from_f64(value));
        }
        // SAFETY: every slot is a chunk of memory, and compilation never makes a target one of its sources.
        unsafe { exec::execute(program.level, &program.prologue, &slots, &program.uniform, SPREAD) };
        for (&slot, _) in slots.iter().zip(program.uniform.iter().zip(&program.spread)).filter(|(_, (u, s))| **u && **s)
        {
            // SAFETY: the slot's own chunk, whose first element stands since the prologue at the latest.
            unsafe {
                let value = *slot;
                slice::from_raw_parts_mut(slot, chunk).fill(value);
            }
        }
        let contiguous = Shape::from(nest.shape).contiguous_strides();
        let dense = |strides: &[isize]| strides == contiguous.as_slice();
        let dense = inputs.iter().map(|i| dense(i.strides)).chain(outputs.iter().map(|o| dense(o.strides))).collect();
        let filled = SmallVec::from_elem(std::ptr::null(), inputs.len());
        let uniform = SmallVec::from_slice(&program.uniform);
        let mut run = Run {
            program,
            nest,
            chunk,
            at_once_from: usize::MAX,
            in_place: false,
            inputs,
            outputs,
            _memory: PhantomData,
            base,
            slots,
            dense,
            uniform,
            filled,
        };
        run.in_place = run.needs_no_staging();
        if run.in_place {
            run.at_once_from = program.takes_any_length_from().unwrap_or(usize::MAX);
        }
        run
    }

    /// Whether every operand is a number or is read and written where it lies, in every chunk.
    fn needs_no_staging(&self) -> bool {
        let rows = self.nest.shape.last().is_none_or(|&row| row >= LONG_ROW);
        let inner = |strides: &[isize]| strides.last().copied().unwrap_or(1);
        let (read, written) = self.dense.split_at(self.inputs.len());
        let reads = self.inputs.iter().zip(read).all(|(input, &dense)| {
            let number = rows && inner(input.strides) == 0;
            number || input.dtype == T::DTYPE && (dense || rows && inner(input.strides) == 1)
        });
        reads
            && self.outputs.iter().zip(written).enumerate().all(|(o, (output, &dense))| {
                output.dtype == T::DTYPE && (dense || rows && inner(output.strides) == 1) && self.may_write_at_once(o)
            })
    }

    /// Whether an output may be written before all instructions are done: in place, a later one may still want the input.
    fn may_write_at_once(&self, output: usize) -> bool {
        let to = self.outputs[output].data;
        self.inputs.iter().enumerate().all(|(i, input)| input.data != to || self.program.may_overwrite(output, i))
    }

    /// The body over the first `n` elements of the slots.
    ///
    /// # Safety
    /// As [`exec::execute`], but registers hold a chunk, and `n` is no more than that or at least `self.at_once_from`.
    unsafe fn execute(&mut self, n: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise, passed on.
        let n = n - unsafe { self.execute_fused(n) };
        if n > 0 {
            // SAFETY: the caller's promise for what is left: less than a block, less than a chunk, or one instruction's, which
            // needs no registers.
            unsafe { exec::execute(self.program.level, &self.program.body, &self.slots, &self.uniform, n) };
        }
    }

    /// The fused steps over the whole blocks of the first `n` elements, where there are steps; returns how many elements are
    /// done and moves the operands past them.
    ///
    /// # Safety
    /// As [`Self::execute`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn execute_fused(&mut self, n: usize) -> usize {
        let Some(steps) = self.program.fused.as_ref().filter(|_| n >= fused::WORTHWHILE) else {
            return 0;
        };
        // SAFETY: only programs in f32 are fused, so that T is f32.
        let slots = unsafe { slice::from_raw_parts(self.slots.as_ptr().cast::<*mut f32>(), self.slots.len()) };
        let operands = self.inputs.len() + self.outputs.len();
        // SAFETY: the caller's promise, passed on; steps are made where the processor has AVX-512 alone.
        let done = unsafe { fused::run(steps, slots, &self.uniform, operands, n) };
        for (slot, _) in self.slots[..operands].iter_mut().zip(&self.uniform).filter(|(_, uniform)| !**uniform) {
            *slot = slot.wrapping_add(done);
        }
        done
    }

    /// # Safety
    /// As [`Program::run_nest`].
    unsafe fn go(mut self, range: Range<usize>) {
        let row = self.nest.shape.last().copied().unwrap_or(1);
        let mut walk = Walk::at(self.nest.shape, range.start);
        let mut at = range.start;
        while at < range.end {
            let in_row = row - walk.index.last().copied().unwrap_or(0);
            let left = range.end - at;
            let n = if row >= LONG_ROW { left.min(in_row) } else { left };
            let n = if n >= self.at_once_from { n } else { n.min(self.chunk) };
            // SAFETY: the chunk lies inside the range, so all its positions are valid; n is at most self.chunk, or registers
            // need not hold as many.
            unsafe {
                if self.in_place {
                    self.chunk_in_place(&walk, at, n);
                } else {
                    self.chunk(&walk, at, n, n <= in_row);
                }
            }
            at += n;
            walk.advance(self.nest.shape, n);
        }
    }

    /// What [`Run::chunk`](Self) does where nothing is staged: the slots of operands point to them.
    ///
    /// # Safety
    /// As [`Program::run_nest`], for `n` elements from `at`: no more than a chunk has, or at least `self.at_once_from`.
    unsafe fn chunk_in_place(&mut self, walk: &Walk, at: usize, n: usize) {
        let first = self.inputs.len();
        for (i, input) in self.inputs.iter().enumerate() {
            let offset = walk.offset(input.strides, at, self.dense[i]) * input.dtype.size() as isize;
            // SAFETY: the position of an element of the range.
            let from = unsafe { input.data.offset(offset) };
            self.uniform[i] = !self.dense[i] && input.strides.last() == Some(&0);
            if !self.uniform[i] {
                self.slots[i] = from.cast_mut().cast();
            } else if self.filled[i] != from {
                // SAFETY: one element of the input, and slot i.
                unsafe { self.fill(i, from) };
            }
        }
        for (o, output) in self.outputs.iter().enumerate() {
            let offset = walk.offset(output.strides, at, self.dense[first + o]) * output.dtype.size() as isize;
            // SAFETY: the position of an element of the range.
            self.slots[first + o] = unsafe { output.data.offset(offset) }.cast();
        }
        // SAFETY: every slot points to n elements of an operand, or to a number; outputs in place are written when nothing reads
        // the input any more (`needs_no_staging`).
        unsafe { self.execute(n) };
    }

    /// Fills an input's staging chunk with one number.
    ///
    /// # Safety
    /// `from` is an element of the input.
    unsafe fn fill(&mut self, input: usize, from: *const u8) {
        // SAFETY: the input has this chunk to itself, and nothing borrows it now.
        let staging = unsafe { slice::from_raw_parts_mut(self.base.add(input * self.chunk), self.chunk) };
        let mut value = [T::ZERO];
        // SAFETY: one element of the input.
        unsafe { load(self.inputs[input].dtype, from, 1, &mut value) };
        let needed = if self.program.spread[input] { self.chunk } else { SPREAD };
        staging[..needed].fill(value[0]);
        self.slots[input] = staging.as_mut_ptr();
        self.filled[input] = from;
    }

    /// # Safety
    /// As [`Program::run_nest`], for the `n <= self.chunk` elements from `at`.
    unsafe fn chunk(&mut self, walk: &Walk, at: usize, n: usize, one_row: bool) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        for (i, input) in inputs.iter().enumerate() {
            let inner = input.strides.last().copied().unwrap_or(1);
            let dense = self.dense[i];
            // SAFETY: the position of an element of the range.
            let from =
                unsafe { input.data.offset(walk.offset(input.strides, at, dense) * input.dtype.size() as isize) };
            let straight = dense || (one_row && inner == 1);
            self.uniform[i] = one_row && inner == 0;
            if straight && input.dtype == T::DTYPE {
                self.slots[i] = from.cast_mut().cast();
                continue;
            }
            // SAFETY: slot i has the chunk at i * self.chunk to itself, and nothing borrows it now.
            let staging = unsafe { slice::from_raw_parts_mut(self.base.add(i * self.chunk), self.chunk) };
            self.slots[i] = staging.as_mut_ptr();
            if one_row && inner == 0 {
                if self.filled[i] != from {
                    // SAFETY: one element of the input.
                    unsafe { self.fill(i, from) };
                }
            } else if straight || one_row {
                // SAFETY: a dense run, or the elements of one row.
                unsafe { load(input.dtype, from, if dense { 1 } else { inner }, &mut staging[..n]) };
            } else {
                let staging = &mut staging[..n];
                // SAFETY: each piece is part of one row of the range.
                walk.pieces(self.nest.shape, input.strides, n, |offset, start, len| unsafe {
                    let from = input.data.offset(offset * input.dtype.size() as isize);
                    load(input.dtype, from, inner, &mut staging[start..start + len]);
                });
            }
        }
        let first = inputs.len();
        let mut staged: SmallVec<[bool; 8]> = SmallVec::new();
        for (o, output) in outputs.iter().enumerate() {
            let dense = self.dense[first + o];
            // SAFETY: the position of an element of the range.
            let to =
                unsafe { output.data.offset(walk.offset(output.strides, at, dense) * output.dtype.size() as isize) };
            let straight = dense || (one_row && output.strides.last().copied().unwrap_or(1) == 1);
            let direct = straight && output.dtype == T::DTYPE && self.may_write_at_once(o);
            // SAFETY: every slot has a chunk of its own.
            self.slots[first + o] = if direct { to.cast() } else { unsafe { self.base.add((first + o) * self.chunk) } };
            staged.push(!direct);
        }
        // SAFETY: every slot points to n elements: operands of the chunk in memory or chunks of our own. A target is a
        // register or an output; neither overlaps a source, but for outputs in place, which are staged where that matters.
        unsafe { self.execute(n) };
        for (o, output) in outputs.iter().enumerate().filter(|&(o, _)| staged[o]) {
            // SAFETY: the output's own chunk, which the program has filled.
            let values = unsafe { slice::from_raw_parts(self.base.add((first + o) * self.chunk), n) };
            let inner = output.strides.last().copied().unwrap_or(1);
            let dense = self.dense[first + o];
            if dense || one_row {
                let offset = walk.offset(output.strides, at, dense) * output.dtype.size() as isize;
                // SAFETY: a dense run, or the elements of one row.
                unsafe { store(output.dtype, values, output.data.offset(offset), if dense { 1 } else { inner }) };
            } else {
                // SAFETY: each piece is part of one row of the range.
                walk.pieces(self.nest.shape, output.strides, n, |offset, start, len| unsafe {
                    let to = output.data.offset(offset * output.dtype.size() as isize);
                    store(output.dtype, &values[start..start + len], to, inner);
                });
            }
        }
    }
}
