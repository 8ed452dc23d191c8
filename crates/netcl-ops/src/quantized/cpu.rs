//! The native CPU: a row of the weight is unpacked into the first-level cache, and multiplied by all rows of x.

use netcl_core::backend::cpu::parallel_for;
use netcl_core::dtype::Element;
use netcl_core::{Result, simd};

use super::Lengths;
use crate::dense::{Job, with_stored};
use crate::matmul::{Operand, Sum, dot};

/// Weights that one task should unpack at least.
const TASK: usize = 1 << 14;

/// Tensors: packed weight, scale, result.
pub(super) fn dequantize(job: Job, lengths: Lengths) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| {
        with_stored!(dtype, E => {
            let (weight, out) = (Weight::<E>::new(views.input(0)?, views.input(1)?, lengths), views.output::<E>(2)?);
            parallel_for(op, lengths.n, TASK.div_ceil(lengths.k), |range| {
                let mut row = vec![Sum::ZERO; lengths.k];
                for at in range {
                    weight.row(at, &mut row);
                    // SAFETY: every row belongs to one task.
                    let to = unsafe { out.part(at * lengths.k, lengths.k) };
                    to.iter_mut().zip(&row).for_each(|(to, &weight)| *to = narrow(weight));
                }
            })
        })
    })
}

/// Tensors: x, packed weight, scale, bias, result.
pub(super) fn multiply(job: Job, lengths: Lengths) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    let Lengths { m, n, k, .. } = lengths;
    job.run_cpu(move |views| {
        with_stored!(dtype, E => {
            let (weight, out) = (Weight::<E>::new(views.input(1)?, views.input(2)?, lengths), views.output::<E>(4)?);
            let mut wide = vec![Sum::ZERO; m * k];
            let (x, bias) = (<E as Operand>::widen(views.input(0)?, &mut wide), views.input::<E>(3)?);
            parallel_for(op, n, TASK.div_ceil(k), |range| {
                let mut row = vec![Sum::ZERO; k];
                for at in range {
                    weight.row(at, &mut row);
                    for (i, x) in x.chunks_exact(k).enumerate() {
                        let sum = dot(x, &row) + bias.get(at).map_or(Sum::ZERO, |bias| bias.wide());
                        // SAFETY: every column belongs to one task.
                        let to = unsafe { out.part(i * n + at, 1) };
                        to[0] = narrow(sum);
                    }
                }
            })
        })
    })
}

/// A sum, rounded once.
fn narrow<S: Sum, E: Element>(sum: S) -> E {
    E::from_f64(sum.to_f64())
}

struct Weight<'v, E> {
    packed: &'v [i32],
    scale: &'v [E],
    lengths: Lengths,
}

impl<'v, E: Operand> Weight<'v, E> {
    fn new(packed: &'v [i32], scale: &'v [E], lengths: Lengths) -> Self {
        Weight { packed, scale, lengths }
    }

    /// A row, dequantised.
    fn row(&self, at: usize, to: &mut [E::Sum]) {
        let Lengths { k, packing, .. } = self.lengths;
        let words = &self.packed[at * packing.words(k)..][..packing.words(k)];
        let scales = &self.scale[at * packing.scales(k)..][..packing.scales(k)];
        let group = packing.group.unwrap_or(k);
        let words = words.chunks(group.div_ceil(packing.per_word()));
        for ((to, words), scale) in to.chunks_mut(group).zip(words).zip(scales) {
            match packing.bits {
                8 => eight(words, scale.wide(), to),
                _ => four(words, scale.wide(), to),
            }
        }
    }
}

#[inline(always)]
fn value<S: Sum>(word: i32, bits: usize, i: usize) -> S {
    S::from_f64(f64::from(((word >> (bits * i)) & ((1 << bits) - 1)) - (1 << (bits - 1))))
}

simd! {
    fn eight<S: Sum>(words: &[i32], scale: S, to: &mut [S]) {
        let (whole, rest) = to.as_chunks_mut::<4>();
        for (to, &word) in whole.iter_mut().zip(words) {
            to.iter_mut().enumerate().for_each(|(i, to)| *to = value::<S>(word, 8, i) * scale);
        }
        if let [.., last] = words {
            rest.iter_mut().enumerate().for_each(|(i, to)| *to = value::<S>(*last, 8, i) * scale);
        }
    }

    fn four<S: Sum>(words: &[i32], scale: S, to: &mut [S]) {
        let (whole, rest) = to.as_chunks_mut::<8>();
        for (to, &word) in whole.iter_mut().zip(words) {
            to.iter_mut().enumerate().for_each(|(i, to)| *to = value::<S>(word, 4, i) * scale);
        }
        if let [.., last] = words {
            rest.iter_mut().enumerate().for_each(|(i, to)| *to = value::<S>(*last, 4, i) * scale);
        }
    }
}
