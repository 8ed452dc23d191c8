//! Many tensors on the native CPU: threads take chunks of all tensors from one list.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::segments::Chunk;
use super::uniform::Split;
use super::{Many, Operands, Segments, Target};
use crate::backend::cpu::threads::{SharedPtr, parallel_for};
use crate::backend::cpu::{CpuArgs, CpuKernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::expr::cpu::{Nest, Program, Registers, Source, Target as CpuTarget};
use crate::kernels::launch::{Arg, Work};
use crate::tensor::Tensor;

/// Fewer elements than this are one thread's work.
const ALONE: usize = 1 << 13;

type Args = SmallVec<[Arg; 8]>;

/// Where an operand's first element lies in its storage, and where its last one ends, in bytes.
#[derive(Clone, Copy)]
struct Place {
    offset: usize,
    end: usize,
}

impl Place {
    pub(super) fn of(tensor: &Tensor) -> Place {
        let size = tensor.dtype().size();
        Place { offset: tensor.layout().offset() * size, end: tensor.layout().end() * size }
    }
}

/// Both parts of an expression, compiled once for each type.
#[derive(Debug, Default)]
pub(super) struct Programs {
    single: OnceLock<Arc<Parts>>,
    double: OnceLock<Arc<Parts>>,
}

#[derive(Debug)]
struct Parts {
    prologue: Program,
    body: Program,
}

impl Programs {
    fn of(&self, split: &Split, compute: DType) -> Result<Arc<Parts>> {
        let cell = if compute == DType::F64 { &self.double } else { &self.single };
        if let Some(parts) = cell.get() {
            return Ok(parts.clone());
        }
        let (prologue, body) = (Program::compile(&split.prologue, compute)?, Program::compile(&split.body, compute)?);
        Ok(cell.get_or_init(|| Arc::new(Parts { prologue, body })).clone())
    }
}

/// An expression over segments, ready to run any number of times.
struct Job {
    parts: Arc<Parts>,
    chunks: Arc<[Chunk]>,
    /// The tensors of the first list, of the second, ..., then the flat one.
    places: Vec<Place>,
    /// For each list its dtype.
    lists: SmallVec<[DType; 2]>,
    tensors: usize,
    rows: usize,
    controls: usize,
    targets: SmallVec<[Target; 4]>,
    /// For each segment where its part of a row starts, and its set.
    segments: Vec<(usize, usize)>,
    stride: usize,
    elements: usize,
    scalars: usize,
    sets: usize,
}

pub(super) fn map(many: &Many, segments: &Segments, operands: &Operands<'_>, compute: DType) -> Result<(Work, Args)> {
    let mut args: Args = SmallVec::new();
    let mut places = Vec::new();
    for (l, list) in operands.lists.iter().enumerate() {
        places.extend(list.iter().map(Place::of));
        args.extend(list.iter().map(|tensor| Arg::Buffer(tensor.storage().clone(), many.spec.list_access(l))));
    }
    if let Some(flat) = operands.flat {
        places.push(Place::of(flat));
        args.push(Arg::Buffer(flat.storage().clone(), many.spec.flat_access()));
    }
    args.extend(operands.sets.iter().flatten().map(|number| number.arg(compute)));
    let job = Job {
        parts: many.programs.of(&many.spec.split, compute)?,
        chunks: segments.cpu_chunks(),
        places,
        lists: operands.lists.iter().filter_map(|list| list.first()).map(Tensor::dtype).collect(),
        tensors: segments.len(),
        rows: many.spec.rows,
        controls: many.spec.controls(),
        targets: many.spec.targets.iter().copied().collect(),
        segments: segments.all().iter().map(|s| (s.flat, s.set)).collect(),
        stride: segments.stride(),
        elements: segments.elements(),
        scalars: many.spec.map.expr().scalars(),
        sets: operands.sets.len(),
    };
    Ok((Work::Cpu(CpuKernel::new(move |args| job.run(args))), args))
}

impl Job {
    fn run(&self, args: &CpuArgs<'_>) -> Result<()> {
        let pointers = self
            .places
            .iter()
            .enumerate()
            .map(|(i, place)| Ok(SharedPtr::new(args.checked_memory(i, place.end)?.wrapping_add(place.offset))))
            .collect::<Result<Vec<SharedPtr<u8>>>>()?;
        let numbers = (0..self.sets * self.scalars)
            .map(|i| args.float(self.places.len() + i))
            .collect::<Result<SmallVec<[f64; 16]>>>()?;
        let numbers = self.uniform(&pointers, &numbers);
        // A handful of small tensors is not worth waking a thread for.
        let grain = if self.elements < ALONE { self.chunks.len() } else { 1 };
        parallel_for("many tensors", self.chunks.len(), grain, |range| {
            let mut registers = Registers::default();
            let mut chunks = self.chunks[range].iter().copied().peekable();
            while let Some(mut chunk) = chunks.next() {
                // Neighbours are one run: starting one costs as much as hundreds of elements.
                while let Some(next) = chunks.next_if(|next| chunk.is_before(next)) {
                    chunk.len += next.len;
                }
                self.chunk(chunk, &pointers, &numbers, &mut registers);
            }
        })
    }

    /// Where an element of the flat tensor lies. (Without rows and controls nobody asks for one.)
    fn flat(&self, pointers: &[SharedPtr<u8>], at: usize) -> *mut u8 {
        let rows = pointers.get(self.lists.len() * self.tensors).map(|flat| flat.get());
        rows.unwrap_or(std::ptr::null_mut()).wrapping_add(at * self.parts.body.compute().size())
    }

    fn control(&self, pointers: &[SharedPtr<u8>], c: usize) -> Source<'static> {
        let data = self.flat(pointers, self.rows * self.stride + c);
        Source { data, dtype: self.parts.body.compute(), strides: &[0] }
    }

    /// The numbers that the body needs for each set, from its run-time scalars and the controls.
    fn uniform(&self, pointers: &[SharedPtr<u8>], scalars: &[f64]) -> SmallVec<[f64; 16]> {
        let Parts { prologue, .. } = &*self.parts;
        let nothing = [0.0f64];
        // What the prologue does not read is a number of our own.
        let unread = Source { data: nothing.as_ptr().cast(), dtype: DType::F64, strides: &[0] };
        let mut sources: SmallVec<[Source<'_>; 8]> = SmallVec::from_elem(unread, self.lists.len() + self.rows);
        sources.extend((0..self.controls).map(|c| self.control(pointers, c)));
        let mut numbers: SmallVec<[f64; 16]> = SmallVec::from_elem(0.0, self.sets * prologue.outputs());
        for set in 0..self.sets {
            let to = &mut numbers[set * prologue.outputs()..][..prologue.outputs()];
            let targets: SmallVec<[CpuTarget<'_>; 8]> = to
                .iter_mut()
                .map(|number| CpuTarget { data: std::ptr::from_mut(number).cast(), dtype: DType::F64, strides: &[1] })
                .collect();
            let scalars = &scalars[set * self.scalars..][..self.scalars];
            // SAFETY: the controls lie inside the flat tensor (see `chunk`), the rest is memory of this function.
            unsafe { prologue.run_nest(Nest { shape: &[1] }, &sources, &targets, scalars, 0..1) };
        }
        numbers
    }

    fn chunk(&self, chunk: Chunk, pointers: &[SharedPtr<u8>], numbers: &[f64], registers: &mut Registers) {
        let Chunk { segment, start, len } = chunk;
        let program = &self.parts.body;
        let compute = program.compute();
        let (flat, set) = self.segments[segment];
        let list = |l: usize| pointers[l * self.tensors + segment].get().wrapping_add(start * self.lists[l].size());
        let in_row = |r: usize| self.flat(pointers, r * self.stride + flat + start);
        let mut sources: SmallVec<[Source<'_>; 8]> = SmallVec::new();
        for (l, dtype) in self.lists.iter().enumerate() {
            sources.push(Source { data: list(l), dtype: *dtype, strides: &[1] });
        }
        sources.extend((0..self.rows).map(|r| Source { data: in_row(r), dtype: compute, strides: &[1] }));
        sources.extend((0..self.controls).map(|c| self.control(pointers, c)));
        let targets: SmallVec<[CpuTarget<'_>; 4]> = self
            .targets
            .iter()
            .map(|target| match *target {
                Target::List(l) => CpuTarget { data: list(l), dtype: self.lists[l], strides: &[1] },
                Target::Row(r) => CpuTarget { data: in_row(r), dtype: compute, strides: &[1] },
            })
            .collect();
        let scalars = &numbers[set * program.scalars()..][..program.scalars()];
        // SAFETY: `Many::check` has compared counts, lengths and dtypes, and `run` every operand's end with its memory; the
        // launch holds the buffers. A chunk lies inside its segment, chunks are disjoint, and an output is the very memory of an
        // input or of its own: the tensors of a launch are distinct (the contract of `Many::run`), rows do not overlap, and the
        // controls, which are only read, lie behind them.
        unsafe { program.run_nest_in(registers, Nest { shape: &[len] }, &sources, &targets, scalars, 0..len) };
    }
}
