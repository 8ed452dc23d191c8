//! Dropout on the native CPU: bits, comparison and product, piece by piece.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use netcl_core::backend::cpu::threads::SharedPtr;
use netcl_core::backend::cpu::{CpuKernel, parallel_for};
use netcl_core::dtype::{DType, Element};
use netcl_core::kernels::launch::{Access, Arg, Work};
use netcl_core::random::{Generator, fill_bits};
use netcl_core::tensor::Tensor;
use netcl_core::{Result, simd};
use smallvec::{SmallVec, smallvec};

use super::{MaskPlace, keep_and_scale};

/// Elements handled at a time: their random bits stay in the first-level cache. A multiple of a block's four words.
const PIECE: usize = 2048;

pub(super) fn work(
    op: &'static str,
    x: &Tensor,
    out: &Tensor,
    p: f64,
    place: &MaskPlace,
) -> (Work, SmallVec<[Arg; 8]>) {
    let (keep, scale) = keep_and_scale(p);
    let [seed, offset] = place.scalars();
    let args = smallvec![
        Arg::Buffer(x.storage().clone(), Access::Read),
        Arg::Buffer(out.storage().clone(), Access::Write),
        Arg::Scalar(seed),
        Arg::Scalar(offset),
    ];
    let (dtype, n) = (x.dtype(), x.size());
    let starts = [x, out].map(|t| (t.layout().offset() * dtype.size(), t.layout().end() * dtype.size()));
    let threshold = keep_below(keep);
    let kernel = CpuKernel::new(move |args| {
        let memory = |i: usize| {
            let (start, end) = starts[i];
            Ok::<_, netcl_core::Error>(SharedPtr::new(args.checked_memory(i, end)?.wrapping_add(start)))
        };
        let place = Generator { seed: args.integer(2)? as u64, offset: args.integer(3)? as u64 };
        let run = Run { op, n, place, threshold, scale };
        let (x, out) = (memory(0)?, memory(1)?);
        match dtype {
            DType::F64 => run.run::<f64>(x, out),
            DType::F16 => run.run::<half::f16>(x, out),
            DType::BF16 => run.run::<half::bf16>(x, out),
            _ => run.run::<f32>(x, out),
        }
    });
    (Work::Cpu(kernel), args)
}

/// The number that the upper 24 bits of a word must stay below, so that the uniform float they make stays below `keep`.
///
/// `word * 2^-24 < keep` is `word < keep * 2^24`, and both products are exact.
pub(crate) fn keep_below(keep: f32) -> u32 {
    (f64::from(keep) * f64::from(1 << 24)).ceil() as u32
}

/// [`parallel_for`] for a body that may fail; one of the errors comes back.
pub(crate) fn try_parallel_for<F>(op: &'static str, n: usize, grain: usize, body: F) -> Result<()>
where
    F: Fn(Range<usize>) -> Result<()> + Sync,
{
    let failed = Mutex::new(None);
    parallel_for(op, n, grain, |range| {
        if let Err(error) = body(range) {
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    })?;
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

struct Run {
    op: &'static str,
    n: usize,
    place: Generator,
    threshold: u32,
    scale: f64,
}

impl Run {
    fn run<E: Scaled>(&self, x: SharedPtr<u8>, out: SharedPtr<u8>) -> Result<()> {
        try_parallel_for(self.op, self.n.div_ceil(PIECE), 8, |range| {
            let mut bits = vec![0u32; PIECE];
            for piece in range {
                let (start, end) = (piece * PIECE, self.n.min((piece + 1) * PIECE));
                let bits = &mut bits[..end - start];
                let place = Generator { offset: self.place.offset.wrapping_add((start / 4) as u64), ..self.place };
                fill_bits(bits, &place)?;
                // SAFETY: pieces are disjoint parts of two dense tensors of `n` elements, whose ends the launch checked.
                let (x, out) = unsafe {
                    (
                        std::slice::from_raw_parts(x.get().cast::<E>().add(start).cast_const(), end - start),
                        std::slice::from_raw_parts_mut(out.get().cast::<E>().add(start), end - start),
                    )
                };
                apply(x, bits, out, self.threshold, E::Compute::from_f64(self.scale));
            }
            Ok(())
        })
    }
}

/// An element and the type its product is computed in.
trait Scaled: Element {
    type Compute: Element + std::ops::Mul<Output = Self::Compute>;
    fn wide(self) -> Self::Compute;
    fn narrow(value: Self::Compute) -> Self;
}

macro_rules! scaled {
    ($($ty:ty, $compute:ty, $wide:expr, $narrow:expr;)*) => {$(
        impl Scaled for $ty {
            type Compute = $compute;
            #[inline(always)]
            fn wide(self) -> $compute { $wide(self) }
            #[inline(always)]
            fn narrow(value: $compute) -> $ty { $narrow(value) }
        }
    )*};
}

scaled! {
    f32, f32, |v| v, |v| v;
    f64, f64, |v| v, |v| v;
    half::f16, f32, half::f16::to_f32, half::f16::from_f32;
    half::bf16, f32, half::bf16::to_f32, half::bf16::from_f32;
}

simd! {
    fn apply<E: Scaled>(x: &[E], bits: &[u32], out: &mut [E], threshold: u32, scale: E::Compute) {
        for ((out, &x), &bits) in out.iter_mut().zip(x).zip(bits) {
            // A dropped element is zero whatever it was, also where it was infinite.
            *out = if bits >> 8 < threshold { E::narrow(x.wide() * scale) } else { E::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_the_comparison_of_uniform_floats() {
        for keep in [0.0f32, 1e-9, 0.1, 0.3, 0.5, 0.75, 0.9, 1.0 - f32::EPSILON, 1.0] {
            let threshold = keep_below(keep);
            for word in [0, 1, threshold.saturating_sub(1), threshold, threshold + 1, (1 << 24) - 1] {
                let word = word.min((1 << 24) - 1);
                assert_eq!(word < threshold, (word as f32) * (1.0 / (1 << 24) as f32) < keep, "{keep} {word}");
            }
        }
    }
}
