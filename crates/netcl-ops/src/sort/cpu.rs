//! Sorting on the native CPU: a key made of an element's bits and its position are one number, and lines are sorted in parallel.

use half::{bf16, f16};
use netcl_core::Result;
use netcl_core::backend::cpu::threads::{SharedPtr, num_threads, parallel_chunks_mut};
use netcl_core::backend::cpu::{CpuArgs, CpuKernel, parallel_for};
use netcl_core::dtype::{DType, Element};
use netcl_core::kernels::launch::{Access, Arg, Work};
use netcl_core::tensor::Tensor;
use smallvec::smallvec;

use super::{Args, Lines};
use crate::dropout::cpu::try_parallel_for;

/// Elements that one task should have at least.
const TASK: usize = 1 << 12;
/// Lines longer than this are sorted by several threads if there are too few of them.
const LONG: usize = 1 << 16;

/// An element that can be sorted.
trait Sortable: Element {
    /// A key and a position as one number.
    type Packed: Ord + Copy + Default + Send + Sync;

    /// Elements are in order when these are. The lower half of the number is the position.
    fn pack(self, descending: bool, position: usize) -> Self::Packed;
    fn position(packed: Self::Packed) -> usize;
}

/// The bits of a float as a number that grows with it; NaN is the largest.
#[inline(always)]
fn float_key(value: f32, descending: bool) -> u32 {
    // Also turns -0 into 0.
    let bits = (value + 0.0).to_bits();
    let key = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    match (value.is_nan(), descending) {
        (true, _) => u32::MAX,
        (_, true) => !key,
        (_, false) => key,
    }
}

/// The same for float64.
#[inline(always)]
fn double_key(value: f64, descending: bool) -> u64 {
    let bits = (value + 0.0).to_bits();
    let key = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
    match (value.is_nan(), descending) {
        (true, _) => u64::MAX,
        (_, true) => !key,
        (_, false) => key,
    }
}

macro_rules! sortable {
    ($($ty:ty, $packed:ty, $bits:literal, $key:expr;)*) => {$(
        impl Sortable for $ty {
            type Packed = $packed;

            #[inline(always)]
            fn pack(self, descending: bool, position: usize) -> $packed {
                <$packed>::from($key(self, descending)) << $bits | position as $packed
            }

            #[inline(always)]
            fn position(packed: $packed) -> usize {
                (packed & ((1 << $bits) - 1)) as usize
            }
        }
    )*};
}

sortable! {
    f32, u64, 32, float_key;
    f16, u64, 32, |v: f16, descending| float_key(v.to_f32(), descending);
    bf16, u64, 32, |v: bf16, descending| float_key(v.to_f32(), descending);
    i32, u64, 32, |v: i32, descending: bool| (v as u32 ^ 1 << 31) ^ if descending { u32::MAX } else { 0 };
    f64, u128, 64, double_key;
    i64, u128, 64, |v: i64, descending: bool| (v as u64 ^ 1 << 63) ^ if descending { u64::MAX } else { 0 };
}

/// A dense tensor of a launch, but for its memory.
#[derive(Clone, Copy)]
struct Place {
    argument: usize,
    start: usize,
    end: usize,
}

impl Place {
    fn new(argument: usize, t: &Tensor) -> Place {
        Place { argument, start: t.layout().offset(), end: t.layout().end() }
    }

    fn pointer<T>(self, args: &CpuArgs<'_>) -> Result<SharedPtr<T>> {
        let memory = args.checked_memory(self.argument, self.end * size_of::<T>())?;
        Ok(SharedPtr::new(memory.cast::<T>().wrapping_add(self.start)))
    }
}

pub(super) fn sort(lines: Lines, x: &Tensor, values: &Tensor, indices: &Tensor, descending: bool) -> (Work, Args) {
    let args = smallvec![
        Arg::Buffer(x.storage().clone(), Access::Read),
        Arg::Buffer(values.storage().clone(), Access::Write),
        Arg::Buffer(indices.storage().clone(), Access::Write),
    ];
    let places = [Place::new(0, x), Place::new(1, values), Place::new(2, indices)];
    let dtype = x.dtype();
    let kernel = CpuKernel::new(move |args| match dtype {
        DType::F64 => run::<f64>(lines, places, descending, args),
        DType::F16 => run::<f16>(lines, places, descending, args),
        DType::BF16 => run::<bf16>(lines, places, descending, args),
        DType::I32 => run::<i32>(lines, places, descending, args),
        DType::I64 => run::<i64>(lines, places, descending, args),
        _ => run::<f32>(lines, places, descending, args),
    });
    (Work::Cpu(kernel), args)
}

fn run<T: Sortable>(lines: Lines, places: [Place; 3], descending: bool, args: &CpuArgs<'_>) -> Result<()> {
    let Lines { op, count, n, k } = lines;
    let (x, values, indices) =
        (places[0].pointer::<T>(args)?, places[1].pointer::<T>(args)?, places[2].pointer::<i64>(args)?);
    let line = |line: usize, packed: &mut Vec<T::Packed>, together: bool| {
        // SAFETY: line `line` of dense tensors whose ends the launch checked; a line belongs to one task.
        let (x, values, indices) = unsafe {
            (
                std::slice::from_raw_parts(x.get().add(line * n).cast_const(), n),
                std::slice::from_raw_parts_mut(values.get().add(line * k), k),
                std::slice::from_raw_parts_mut(indices.get().add(line * k), k),
            )
        };
        packed.clear();
        packed.extend(x.iter().enumerate().map(|(i, v)| v.pack(descending, i)));
        if k < n {
            packed.select_nth_unstable(k - 1);
            packed.truncate(k);
        }
        if together {
            sort_together(op, packed)?;
        } else {
            packed.sort_unstable();
        }
        for ((value, index), &packed) in values.iter_mut().zip(indices).zip(&*packed) {
            let at = T::position(packed);
            *value = x[at];
            *index = at as i64;
        }
        Ok(())
    };
    if count < num_threads() && n >= LONG {
        let mut packed = Vec::new();
        return (0..count).try_for_each(|i| line(i, &mut packed, true));
    }
    try_parallel_for(op, count, (TASK / n).max(1), |mut range| {
        let mut packed = Vec::new();
        range.try_for_each(|i| line(i, &mut packed, false))
    })
}

/// Sorts a long line with all threads: pieces, then merges of neighbours. The order of distinct numbers is unique, so the
/// result does not depend on how many threads there are.
fn sort_together<P: Ord + Copy + Default + Send + Sync>(op: &'static str, packed: &mut Vec<P>) -> Result<()> {
    let n = packed.len();
    let piece = n.div_ceil(num_threads()).max(TASK);
    parallel_chunks_mut(op, packed, piece, |_, part| part.chunks_mut(piece).for_each(|part| part.sort_unstable()))?;
    let mut other = vec![P::default(); n];
    let mut run = piece;
    while run < n {
        let from = &*packed;
        parallel_chunks_mut(op, &mut other, 2 * run, |start, to| {
            for (i, to) in to.chunks_mut(2 * run).enumerate() {
                let pair = &from[start + i * 2 * run..][..to.len()];
                let (left, right) = pair.split_at(run.min(pair.len()));
                merge(left, right, to);
            }
        })?;
        std::mem::swap(packed, &mut other);
        run *= 2;
    }
    Ok(())
}

fn merge<P: Ord + Copy>(left: &[P], right: &[P], out: &mut [P]) {
    let (mut l, mut r) = (0, 0);
    for out in out {
        let take_left = r == right.len() || (l < left.len() && left[l] < right[r]);
        if take_left {
            *out = left[l];
            l += 1;
        } else {
            *out = right[r];
            r += 1;
        }
    }
}

pub(super) fn put(lines: Lines, from: &Tensor, at: &Tensor, out: &Tensor) -> (Work, Args) {
    let args = smallvec![
        Arg::Buffer(from.storage().clone(), Access::Read),
        Arg::Buffer(at.storage().clone(), Access::Read),
        Arg::Buffer(out.storage().clone(), Access::Write),
    ];
    let places = [Place::new(0, from), Place::new(1, at), Place::new(2, out)];
    let (dtype, narrow) = (from.dtype(), at.dtype() == DType::I32);
    let kernel = CpuKernel::new(move |args| match dtype.size() {
        2 => run_put::<u16>(lines, places, narrow, args),
        4 => run_put::<u32>(lines, places, narrow, args),
        _ => run_put::<u64>(lines, places, narrow, args),
    });
    (Work::Cpu(kernel), args)
}

fn run_put<T: Copy + Send>(lines: Lines, places: [Place; 3], narrow: bool, args: &CpuArgs<'_>) -> Result<()> {
    let Lines { op, count, n, k } = lines;
    let (from, out) = (places[0].pointer::<T>(args)?, places[2].pointer::<T>(args)?);
    let (at_narrow, at_wide) = match narrow {
        true => (Some(places[1].pointer::<i32>(args)?), None),
        false => (None, Some(places[1].pointer::<i64>(args)?)),
    };
    parallel_for(op, count, (TASK / k).max(1), |range| {
        for place in range.start * k..range.end * k {
            // SAFETY: dense tensors whose ends the launch checked; a position outside the line is left out, and lines belong to
            // one task each.
            unsafe {
                let at = match (at_narrow, at_wide) {
                    (Some(at), _) => i64::from(*at.get().add(place)),
                    (_, Some(at)) => *at.get().add(place),
                    _ => -1,
                };
                if let Some(at) = usize::try_from(at).ok().filter(|&at| at < n) {
                    *out.get().add(place / k * n + at) = *from.get().add(place);
                }
            }
        }
    })
}
