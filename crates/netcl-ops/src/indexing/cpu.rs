//! The native loops.

use std::sync::atomic::{AtomicUsize, Ordering};

use netcl_core::backend::cpu::threads::{SharedPtr, parallel_chunks_mut};
use netcl_core::backend::cpu::{CpuArgs, CpuKernel, parallel_for};
use netcl_core::dtype::{DType, Element};
use netcl_core::kernels::launch::{Access, Arg, Work};
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Result, simd};
use smallvec::smallvec;

use super::order::Pairs;
use super::problem::{Args, Rows, outside};

/// Bytes that one task should move at least.
const TASK: usize = 1 << 15;

/// A dense tensor of a launch, but for its memory.
#[derive(Clone, Copy)]
pub(super) struct Place {
    argument: usize,
    start: usize,
    end: usize,
}

impl Place {
    pub(super) fn new(argument: usize, tensor: &Tensor) -> Place {
        let (layout, size) = (tensor.layout(), tensor.dtype().size());
        Place { argument, start: layout.offset() * size, end: layout.end() * size }
    }

    pub(super) fn pointer(self, args: &CpuArgs<'_>) -> Result<SharedPtr<u8>> {
        Ok(SharedPtr::new(args.checked_memory(self.argument, self.end)?.wrapping_add(self.start)))
    }
}

/// The indices of a launch.
pub(super) struct Indices {
    op: &'static str,
    place: Place,
    dtype: DType,
    shape: Shape,
    limit: usize,
}

impl Indices {
    pub(super) fn new(op: &'static str, argument: usize, tensor: &Tensor, limit: usize) -> Indices {
        let place = Place::new(argument, tensor);
        Indices { op, place, dtype: tensor.dtype(), shape: tensor.shape().clone(), limit }
    }

    /// All of them, checked.
    pub(super) fn read(&self, args: &CpuArgs<'_>) -> Result<Vec<usize>> {
        let memory = self.place.pointer(args)?;
        let mut out = vec![0usize; self.shape.size()];
        // The first that is wrong, whichever thread finds it.
        let wrong = AtomicUsize::new(usize::MAX);
        let value = |at: usize| {
            // SAFETY: `at` is one of the tensor's dense elements, whose end `pointer` checked; launches align their dtype.
            unsafe {
                match self.dtype {
                    DType::I32 => i64::from(*memory.get().cast::<i32>().add(at)),
                    _ => *memory.get().cast::<i64>().add(at),
                }
            }
        };
        parallel_chunks_mut(self.op, &mut out, TASK, |start, part| {
            for (i, out) in part.iter_mut().enumerate() {
                match usize::try_from(value(start + i)) {
                    Ok(index) if index < self.limit => *out = index,
                    _ => {
                        wrong.fetch_min(start + i, Ordering::Relaxed);
                    }
                }
            }
        })?;
        match wrong.into_inner() {
            usize::MAX => Ok(out),
            at => Err(outside(self.op, &self.shape, at, value(at), self.limit)),
        }
    }
}

/// Runs code with `T` standing for an unsigned number of an element's size.
macro_rules! with_bits {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype.size() {
            1 => {
                type $T = u8;
                $body
            }
            2 => {
                type $T = u16;
                $body
            }
            4 => {
                type $T = u32;
                $body
            }
            _ => {
                type $T = u64;
                $body
            }
        }
    };
}

pub(super) fn take(rows: Rows, x: &Tensor, at: &Tensor, out: &Tensor) -> (Work, Args) {
    let args = smallvec![
        Arg::Buffer(x.storage().clone(), Access::Read),
        Arg::Buffer(at.storage().clone(), Access::Read),
        Arg::Buffer(out.storage().clone(), Access::Write),
    ];
    let (from, to, dtype) = (Place::new(0, x), Place::new(2, out), x.dtype());
    let indices = Indices::new(rows.op, 1, at, rows.n);
    let kernel = CpuKernel::new(move |args| {
        let indices = indices.read(args)?;
        with_bits!(dtype, T => run_take::<T>(&rows, &indices, from.pointer(args)?, to.pointer(args)?))
    });
    (Work::Cpu(kernel), args)
}

fn run_take<T: Copy>(rows: &Rows, indices: &[usize], from: SharedPtr<u8>, to: SharedPtr<u8>) -> Result<()> {
    let Rows { op, n, k, inner, along, .. } = *rows;
    let width = (inner * size_of::<T>()).max(1);
    parallel_for(op, rows.outer * k, (TASK / width).max(1), |range| {
        for row in range {
            let (outer, j) = (row / k, row % k);
            let (from, to) = (from.get().cast::<T>(), to.get().cast::<T>());
            // SAFETY: indices are below `n` (checked when they were read), so that every element lies inside the dense
            // tensors, whose ends the launch checked; rows of the result belong to one task each.
            unsafe {
                let to = to.add(row * inner);
                if along {
                    for i in 0..inner {
                        *to.add(i) = *from.add((outer * n + indices[row * inner + i]) * inner + i);
                    }
                } else {
                    let from = from.add((outer * n + indices[j]) * inner);
                    match inner {
                        1 => *to = *from,
                        _ => std::ptr::copy_nonoverlapping(from, to, inner),
                    }
                }
            }
        }
    })
}

pub(super) fn add(rows: Rows, base: Option<&Tensor>, at: &Tensor, source: &Tensor, out: &Tensor) -> (Work, Args) {
    let mut args: Args = smallvec![
        Arg::Buffer(at.storage().clone(), Access::Read),
        Arg::Buffer(source.storage().clone(), Access::Read),
        Arg::Buffer(out.storage().clone(), Access::Write),
    ];
    args.extend(base.map(|base| Arg::Buffer(base.storage().clone(), Access::Read)));
    let (from, to, dtype) = (Place::new(1, source), Place::new(2, out), out.dtype());
    let base = base.map(|base| Place::new(3, base));
    let indices = Indices::new(rows.op, 0, at, rows.n);
    let kernel = CpuKernel::new(move |args| {
        let order = Pairs::new(&rows, &indices.read(args)?, |index| index as u64);
        let base = base.map(|base| base.pointer(args)).transpose()?;
        let memory = (base, from.pointer(args)?, to.pointer(args)?);
        match dtype {
            DType::F64 => run_add::<f64>(&rows, &order, memory),
            DType::F16 => run_add::<half::f16>(&rows, &order, memory),
            DType::BF16 => run_add::<half::bf16>(&rows, &order, memory),
            _ => run_add::<f32>(&rows, &order, memory),
        }
    });
    (Work::Cpu(kernel), args)
}

/// Base (or nothing), source and result.
type Memory = (Option<SharedPtr<u8>>, SharedPtr<u8>, SharedPtr<u8>);

fn run_add<E: Element>(rows: &Rows, order: &Pairs, (base, from, to): Memory) -> Result<()> {
    let (outer, n, k, inner) = rows.destinations();
    let size = size_of::<E>();
    parallel_for(rows.op, outer * n * inner, TASK / size, |range| {
        // SAFETY: ranges are disjoint parts of dense tensors of one shape, whose ends the launch checked.
        unsafe {
            let to = to.get().add(range.start * size);
            match base {
                Some(base) => std::ptr::copy_nonoverlapping(base.get().add(range.start * size), to, range.len() * size),
                None => std::ptr::write_bytes(to, 0, range.len() * size),
            }
        }
    })?;
    let segments = order.segments();
    // A task's share by the average number of sources; long segments stay whole, so that their order does.
    let width = (inner * size * order.0.len().div_ceil(segments.len().max(1))).max(1);
    parallel_for(rows.op, outer * segments.len(), (TASK / width).max(1), |range| {
        let mut sums = vec![0.0f64; inner];
        for task in range {
            let (place, segment) = (task / segments.len(), segments[task % segments.len()]);
            // SAFETY: destinations are below `n` and sources below `k`, both tensors are dense and end where the launch
            // checked; a destination belongs to one segment, a segment to one task.
            unsafe {
                let to = to.get().cast::<E>().add((place * n + segment[0].0 as usize) * inner);
                let to = std::slice::from_raw_parts_mut(to, inner);
                let row = |source: u64| {
                    let first = from.get().cast::<E>().add((place * k + source as usize) * inner);
                    std::slice::from_raw_parts(first.cast_const(), inner)
                };
                if inner == 1 {
                    let sum: f64 = segment.iter().map(|&(_, source)| row(source)[0].to_f64()).sum();
                    to[0] = E::from_f64(to[0].to_f64() + sum);
                    continue;
                }
                sums.fill(0.0);
                for &(_, source) in segment {
                    accumulate(row(source), &mut sums);
                }
                finish(&sums, to);
            }
        }
    })
}

simd! {
    fn accumulate<E: Element>(row: &[E], sums: &mut [f64]) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += value.to_f64();
        }
    }

    fn finish<E: Element>(sums: &[f64], out: &mut [E]) {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = E::from_f64(out.to_f64() + sum);
        }
    }
}

pub(super) fn one_hot(at: &Tensor, out: &Tensor, classes: usize) -> (Work, Args) {
    let args =
        smallvec![Arg::Buffer(at.storage().clone(), Access::Read), Arg::Buffer(out.storage().clone(), Access::Write),];
    let (to, dtype, n) = (Place::new(1, out), out.dtype(), out.size());
    let indices = Indices::new("one_hot", 0, at, classes);
    let kernel = CpuKernel::new(move |args| {
        let indices = indices.read(args)?;
        let memory = to.pointer(args)?;
        netcl_core::with_element!(dtype, T => {
            // SAFETY: the result is dense, `n` elements long (the launch checked its end) and this launch's alone.
            let out = unsafe { std::slice::from_raw_parts_mut(memory.get().cast::<T>(), n) };
            out.fill(T::from_f64(0.0));
            for (row, index) in indices.into_iter().enumerate() {
                out[row * classes + index] = T::from_f64(1.0);
            }
        });
        Ok(())
    });
    (Work::Cpu(kernel), args)
}
