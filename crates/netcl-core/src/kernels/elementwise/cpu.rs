//! Expressions on the native CPU.

use std::cell::RefCell;

use smallvec::SmallVec;

use super::{Args, Elementwise, Nest, Number, Prepared};
use crate::backend::cpu::threads::{SharedPtr, parallel_for};
use crate::backend::cpu::{CpuArgs, CpuKernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::expr::cpu::{Nest as CpuNest, Program, Registers, Source, Target};
use crate::kernels::launch::Work;
use crate::shape::Shape;

/// The work of one thread should outweigh waking it: elements times instructions.
const GRAIN_WORK: usize = 1 << 16;

/// Where an operand lies in its storage, and how it is laid out.
struct Place {
    offset: usize,
    end: usize,
    dtype: DType,
    strides: SmallVec<[isize; 6]>,
}

thread_local! {
    /// What runs of this thread keep temporaries in; a run that finds them taken makes its own.
    static REGISTERS: RefCell<Registers> = RefCell::default();
}

pub(super) fn work(op: &Elementwise, nest: Nest<'_>, scalars: &[Number]) -> Result<Prepared> {
    let program = op.program(nest.compute)?;
    let mut args: Args = (0..nest.operands.len()).map(|i| nest.buffer(i)).collect();
    args.extend(scalars.iter().map(|number| number.arg(nest.compute)));
    let places: SmallVec<[Place; 4]> = nest
        .operands
        .iter()
        .zip(nest.strides)
        .map(|(t, strides)| Place {
            offset: t.layout().offset() * t.dtype().size(),
            end: t.layout().end() * t.dtype().size(),
            dtype: t.dtype(),
            strides,
        })
        .collect();
    let (inputs, shape, count) = (nest.inputs, nest.shape, scalars.len());
    let kernel = CpuKernel::new(move |args| run(args, &program, &places, inputs, &shape, count));
    Ok((Work::Cpu(kernel), args))
}

fn run(
    args: &CpuArgs<'_>,
    program: &Program,
    places: &[Place],
    inputs: usize,
    shape: &Shape,
    count: usize,
) -> Result<()> {
    let pointers: SmallVec<[SharedPtr<u8>; 6]> = places
        .iter()
        .enumerate()
        .map(|(i, place)| {
            let start = args.checked_memory(i, place.end)?;
            Ok(SharedPtr::new(start.wrapping_add(place.offset)))
        })
        .collect::<Result<_>>()?;
    let scalars: SmallVec<[f64; 8]> = (0..count).map(|i| args.float(places.len() + i)).collect::<Result<_>>()?;
    let n = shape.size();
    let grain = (GRAIN_WORK / (program.cost().0 + 1)).clamp(2048, 1 << 16);
    parallel_for("elementwise", n, grain, |range| {
        let sources: SmallVec<[Source<'_>; 6]> = places[..inputs]
            .iter()
            .zip(&pointers)
            .map(|(place, data)| Source { data: data.get(), dtype: place.dtype, strides: &place.strides })
            .collect();
        let targets: SmallVec<[Target<'_>; 2]> = places[inputs..]
            .iter()
            .zip(&pointers[inputs..])
            .map(|(place, data)| Target { data: data.get(), dtype: place.dtype, strides: &place.strides })
            .collect();
        // SAFETY: every operand's layout lies inside its memory (checked above) and has one stride per axis; the launch holds
        // the buffers; outputs do not overlap themselves, each other, or an input other than element by element
        // (`Elementwise::run`); ranges of different threads are disjoint.
        let run = |registers: &mut Registers| unsafe {
            program.run_nest_in(registers, CpuNest { shape }, &sources, &targets, &scalars, range.clone());
        };
        REGISTERS.with(|own| match own.try_borrow_mut() {
            Ok(mut registers) => run(&mut registers),
            Err(_) => run(&mut Registers::default()),
        });
    })
}
