//! The sum of the squares of all elements of many tensors, as partial sums that stay on the device.

use std::sync::{Arc, LazyLock};

use smallvec::{SmallVec, smallvec};

use super::opencl::{Shape, Sums, batches};
use super::segments::Chunk;
use super::{Many, OP, Operands, Segments};
use crate::backend::Queue;
use crate::backend::cpu::CpuKernel;
use crate::backend::cpu::threads::{SharedPtr, parallel_for};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::kernels::expr::Graph;
use crate::kernels::launch::{self, Access, Arg, Cost, Launch, Work};
use crate::tensor::Tensor;

const LABEL: &str = "sum_of_squares";
/// Accumulators of a native loop: independent, so that it vectorises.
const LANES: usize = 16;

static SQUARE: LazyLock<Arc<Many>> = LazyLock::new(|| {
    let g = Graph::new();
    Many::new(LABEL, g.finish(&[g.input(0) * g.input(0)]), 1, 0, Vec::new())
});

/// Partial sums of the squares of all elements, for [`verdict`](super::verdict): one launch per part, which is a list of dense
/// tensors of one dtype. All parts are on one device.
///
/// Sums are kept in double precision wherever the device has it, and in a fixed order everywhere.
pub fn sum_of_squares(parts: &[(&Segments, &[Tensor])]) -> Result<Tensor> {
    let parts: SmallVec<[_; 2]> = parts.iter().filter(|(segments, _)| segments.elements() > 0).collect();
    let Some(first) = parts.first().and_then(|(_, list)| list.first()) else {
        return Err(Error::argument(OP, "there are no elements to square"));
    };
    let queue = first.queue();
    for (segments, list) in &parts {
        check(segments, list, queue)?;
    }
    let cost =
        |elements: usize, dtype: DType| Cost { flops: 2.0 * elements as f64, bytes: (elements * dtype.size()) as f64 };
    match queue {
        Queue::Cpu(_) => {
            let counts: SmallVec<[usize; 2]> = parts.iter().map(|(segments, _)| segments.cpu_chunks().len()).collect();
            let sums = Tensor::uninit(queue, [counts.iter().sum::<usize>()], DType::F64)?;
            let mut at = 0;
            for ((segments, list), count) in parts.iter().zip(counts) {
                let (work, args) = native(segments, list, &sums, at);
                let cost = cost(segments.elements(), list[0].dtype());
                launch::submit(Launch { name: LABEL.into(), queue: queue.clone(), work, args, cost })?;
                at += count;
            }
            Ok(sums)
        }
        Queue::OpenCl(stream) => {
            let double = queue.check_dtype(OP, DType::F64).is_ok();
            let compute = if double { DType::F64 } else { DType::F32 };
            let mut counts: SmallVec<[usize; 2]> = SmallVec::new();
            for (segments, _) in &parts {
                let shape = Shape::of(stream, queue, segments.elements(), compute)?;
                counts.push(segments.all().iter().map(|s| s.count.div_ceil(shape.chunk)).sum());
            }
            let sums = Tensor::uninit(queue, [counts.iter().sum::<usize>()], compute)?;
            let mut first = 0;
            for ((segments, list), count) in parts.iter().zip(counts) {
                let operands = Operands { lists: &[list], flat: None, sets: &[Vec::new()] };
                let to = Sums { to: &sums, first };
                for batch in batches(&SQUARE, stream, segments, &operands, compute, Some(&to))? {
                    let cost = cost(batch.elements, list[0].dtype());
                    let (work, args) = (batch.work, batch.args);
                    launch::submit(Launch { name: LABEL.into(), queue: queue.clone(), work, args, cost })?;
                }
                first += count;
            }
            Ok(sums)
        }
    }
}

fn check(segments: &Segments, list: &[Tensor], queue: &Queue) -> Result<()> {
    if list.len() != segments.len() {
        let what = format!("{} segments need as many tensors, got {}", segments.len(), list.len());
        return Err(Error::argument(OP, what));
    }
    for (tensor, segment) in list.iter().zip(segments.all()) {
        tensor.check_float(OP)?;
        queue.check_same_device(OP, tensor.queue())?;
        if tensor.dtype() != list[0].dtype() {
            return Err(Error::DtypeMismatch { op: OP, lhs: list[0].dtype(), rhs: tensor.dtype() });
        }
        if tensor.size() != segment.count || !tensor.layout().is_contiguous() {
            let why = format!("{LABEL} needs a dense tensor of {} elements here", segment.count);
            return Err(Error::Shape { op: OP, shape: tensor.shape().clone(), why });
        }
    }
    Ok(())
}

/// One sum per chunk, from `at` on.
fn native(segments: &Segments, list: &[Tensor], sums: &Tensor, at: usize) -> (Work, SmallVec<[Arg; 8]>) {
    let mut args: SmallVec<[Arg; 8]> = smallvec![Arg::Buffer(sums.storage().clone(), Access::Write)];
    args.extend(list.iter().map(|tensor| Arg::Buffer(tensor.storage().clone(), Access::Read)));
    let chunks = segments.cpu_chunks();
    let dtype = list[0].dtype();
    let places: Vec<(usize, usize)> =
        list.iter().map(|t| (t.layout().offset() * dtype.size(), t.layout().end() * dtype.size())).collect();
    let work = CpuKernel::new(move |args| {
        let end = (at + chunks.len()) * size_of::<f64>();
        let sums = SharedPtr::new(args.checked_memory(0, end)?.cast::<f64>().wrapping_add(at));
        let pointers = places
            .iter()
            .enumerate()
            .map(|(i, &(offset, end))| Ok(SharedPtr::new(args.checked_memory(i + 1, end)?.wrapping_add(offset))))
            .collect::<Result<Vec<SharedPtr<u8>>>>()?;
        parallel_for(LABEL, chunks.len(), 1, |range| {
            for (i, &Chunk { segment, start, len }) in range.clone().zip(&chunks[range]) {
                let first = pointers[segment].get().wrapping_add(start * dtype.size());
                let sum = crate::with_element!(dtype, T => {
                    // SAFETY: the chunk lies inside its tensor, which is dense and lies inside its memory (checked above); the
                    // launch holds it, and nobody writes it meanwhile.
                    squares(unsafe { std::slice::from_raw_parts(first.cast::<T>(), len) })
                });
                // SAFETY: there is one sum per chunk (checked above), and each chunk is one thread's.
                unsafe { *sums.get().add(i) = sum };
            }
        })
    });
    (Work::Cpu(work), args)
}

/// The sum of squares in double precision, in lanes that are added in halves.
fn squares<T: Element>(values: &[T]) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for block in whole {
        for (lane, value) in lanes.iter_mut().zip(block) {
            let value = value.to_f64();
            *lane += value * value;
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        let value = value.to_f64();
        *lane += value * value;
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}
