//! A block of scores, from tensors to probabilities and their gradients.

use std::ops::Range;

use netcl_core::Result;
use netcl_core::backend::cpu::CpuArgs;
use netcl_core::backend::cpu::simd::{Level, level};
use netcl_core::backend::cpu::threads::SharedPtr;
use netcl_core::dtype::{DType, Element};
use netcl_core::kernels::expr::vecmath::Real;
use netcl_core::random::{Generator, fill_bits};
use netcl_core::simd;
use netcl_core::tensor::Tensor;

use super::super::problem::Problem;
use crate::matmul::{View, gemm};
use crate::reduce::{Lane, Max, Sum, plain_row};

/// A tensor of a launch, but for its memory: distances in elements, for batch, head, row and column.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    end: usize,
    strides: [isize; 4],
}

impl Place {
    fn new(t: &Tensor) -> Place {
        let mut strides = [0; 4];
        strides[..t.ndim()].copy_from_slice(t.layout().strides());
        Place { start: t.layout().offset(), end: t.layout().end(), strides }
    }
}

/// Everything about a call but its memory.
pub(super) struct Geometry {
    pub(super) op: &'static str,
    pub(super) dtype: DType,
    heads: usize,
    /// Batches times heads.
    pub(super) matrices: usize,
    pub(super) l: usize,
    pub(super) s: usize,
    pub(super) d: usize,
    pub(super) dv: usize,
    pub(super) scale: f64,
    causal: bool,
    masked: bool,
    /// Threshold and scale of dropout.
    drop: Option<(u32, f64)>,
    /// q, k, v and the mask, then what follows the random place among the arguments.
    places: Vec<Place>,
}

impl Geometry {
    pub(super) fn new(problem: &Problem, others: &[&Tensor]) -> Geometry {
        let mask = problem.mask.as_ref().unwrap_or(&problem.q);
        let places = [&problem.q, &problem.k, &problem.v, mask].into_iter().chain(others.iter().copied());
        Geometry {
            op: problem.op,
            dtype: problem.q.dtype(),
            heads: problem.heads,
            matrices: problem.batch * problem.heads,
            l: problem.l,
            s: problem.s,
            d: problem.d,
            dv: problem.dv,
            scale: problem.scale,
            causal: problem.causal,
            masked: problem.mask.is_some(),
            drop: problem.drop.as_ref().map(|drop| (drop.below, drop.scale)),
            places: places.map(Place::new).collect(),
        }
    }

    /// The blocks of keys that some of the queries see.
    pub(super) fn keys(&self, queries: &Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let end = if self.causal { self.s.min(queries.end) } else { self.s };
        (0..end).step_by(step).map(move |start| start..end.min(start + step))
    }

    /// The blocks of queries that see some of the keys.
    pub(super) fn queries(&self, keys: &Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (start, end) = (if self.causal { keys.start } else { 0 }, self.l);
        (start..end).step_by(step).map(move |start| start..end.min(start + step))
    }
}

/// A matrix for [`product`]: its first element and the distances between rows and columns.
pub(super) type Matrix<T> = (*const T, isize, isize);

/// The memory of a running launch. Results are read and written through methods whose callers vouch for the rows.
pub(super) struct Memory<T> {
    tensors: Vec<SharedPtr<T>>,
    random: Generator,
}

impl<T: Lane> Memory<T> {
    pub(super) fn new(g: &Geometry, args: &CpuArgs<'_>) -> Result<Memory<T>> {
        let random = Generator { seed: args.integer(4)? as u64, offset: args.integer(5)? as u64 };
        let tensors = g.places.iter().enumerate().map(|(i, place)| {
            // Two numbers stand between the first four tensors and the others.
            let argument = if i < 4 { i } else { i + 2 };
            let memory = args.checked_memory(argument, place.end * size_of::<T>())?;
            Ok(SharedPtr::new(memory.cast::<T>().wrapping_add(place.start)))
        });
        Ok(Memory { tensors: tensors.collect::<Result<_>>()?, random })
    }

    /// The first element of a row of a tensor.
    fn row(&self, g: &Geometry, tensor: usize, matrix: usize, row: usize) -> *mut T {
        let [b, h, r, _] = g.places[tensor].strides;
        let at = (matrix / g.heads) as isize * b + (matrix % g.heads) as isize * h + row as isize * r;
        self.tensors[tensor].get().wrapping_offset(at)
    }

    fn matrix(&self, g: &Geometry, tensor: usize, matrix: usize, row: usize) -> Matrix<T> {
        (self.row(g, tensor, matrix, row).cast_const(), g.places[tensor].strides[2], 1)
    }

    pub(super) fn q(&self, g: &Geometry, matrix: usize, query: usize) -> Matrix<T> {
        self.matrix(g, 0, matrix, query)
    }

    pub(super) fn k(&self, g: &Geometry, matrix: usize, key: usize) -> Matrix<T> {
        self.matrix(g, 1, matrix, key)
    }

    pub(super) fn v(&self, g: &Geometry, matrix: usize, key: usize) -> Matrix<T> {
        self.matrix(g, 2, matrix, key)
    }

    /// The gradient of the output.
    pub(super) fn grad(&self, g: &Geometry, matrix: usize, query: usize) -> Matrix<T> {
        self.matrix(g, 6, matrix, query)
    }

    /// Rows of the gradient of q, k or v.
    pub(super) fn gradient(&self, g: &Geometry, which: usize, matrix: usize, row: usize) -> (*mut T, isize, isize) {
        (self.row(g, 8 + which, matrix, row), g.places[8 + which].strides[2], 1)
    }

    /// Writes forward's results for a query: sums over their total, and the logarithm of that total.
    ///
    /// # Safety
    /// The query must exist and belong to nobody else.
    pub(super) unsafe fn write_outputs(&self, g: &Geometry, at: (usize, usize), sums: &[T], (top, total): (f64, f64)) {
        let (matrix, query) = at;
        // SAFETY: both tensors hold a row for every query of every matrix; the caller has this one to itself.
        unsafe {
            divide(sums, total, std::slice::from_raw_parts_mut(self.row(g, 4, matrix, query), g.dv));
            *self.row(g, 5, matrix, query) = <T as Element>::from_f64(top + total.ln());
        }
    }

    /// Computes the sum of output times gradient of a query.
    ///
    /// # Safety
    /// The query must exist and belong to nobody else.
    pub(super) unsafe fn write_delta(&self, g: &Geometry, matrix: usize, query: usize) {
        // SAFETY: rows of tensors with a dense last axis; the caller has the sum to itself.
        unsafe {
            let out = std::slice::from_raw_parts(self.row(g, 4, matrix, query).cast_const(), g.dv);
            let grad = std::slice::from_raw_parts(self.row(g, 6, matrix, query).cast_const(), g.dv);
            *self.row(g, 7, matrix, query) = <T as Element>::from_f64(dot(out, grad));
        }
    }

    /// Zeroes the gradients of keys and values.
    ///
    /// # Safety
    /// The keys must exist and belong to nobody else.
    pub(super) unsafe fn clear_keys(&self, g: &Geometry, matrix: usize, keys: &Range<usize>) {
        for key in keys.clone() {
            for (which, width) in [(1, g.d), (2, g.dv)] {
                // SAFETY: the gradients are dense and hold a row for every key; the caller has this one to itself.
                unsafe { std::slice::from_raw_parts_mut(self.gradient(g, which, matrix, key).0, width) }.fill(T::ZERO);
            }
        }
    }

    /// What backward needs to know of a query: logsumexp, and the sum of output times gradient.
    fn query(&self, g: &Geometry, matrix: usize, query: usize) -> (f64, T) {
        // SAFETY: both tensors hold an element for every query, and the sums were written before anyone asks.
        unsafe { ((*self.row(g, 5, matrix, query)).to_f64(), *self.row(g, 7, matrix, query)) }
    }
}

/// `out = a x b * scale`, or that added to `out`, on the calling thread.
///
/// # Safety
/// The size is (m, n, k). All elements of the m x k, k x n and m x n matrices must be valid; nobody else touches those of `out`.
pub(super) unsafe fn product<T: Lane>(
    (m, n, k): (usize, usize, usize),
    a: Matrix<T>,
    b: Matrix<T>,
    out: (*mut T, isize, isize),
    add: bool,
    scale: T,
) {
    let operand = |(data, rs, cs): Matrix<T>| View { data: data.cast_mut(), rs, cs };
    // SAFETY: the caller's promise.
    unsafe { gemm((m, n, k), operand(a), operand(b), View { data: out.0, rs: out.1, cs: out.2 }, add, scale) };
}

/// Buffers of one thread for a block of scores.
pub(super) struct Tile<T> {
    /// Scores, then probabilities; rows of the block's number of keys.
    pub(super) scores: Vec<T>,
    /// Gradients of the probabilities, then of the scores.
    pub(super) gradients: Vec<T>,
    bits: Vec<u32>,
}

impl<T: Lane> Tile<T> {
    pub(super) fn new(g: &Geometry, queries: usize, keys: usize) -> Tile<T> {
        let size = queries.min(g.l) * keys.min(g.s);
        // Only backward has gradients: it has more tensors.
        let backward = g.places.len() > 6;
        Tile {
            scores: vec![T::ZERO; size],
            gradients: vec![T::ZERO; if backward { size } else { 0 }],
            bits: vec![0; if g.drop.is_some() { keys } else { 0 }],
        }
    }

    /// A row of the scores of a block with so many keys.
    pub(super) fn row(&mut self, row: usize, keys: usize) -> &mut [T] {
        &mut self.scores[row * keys..][..keys]
    }

    /// `q k^T * scale + mask`, minus infinity where a query does not see a key.
    pub(super) fn scores(
        &mut self,
        g: &Geometry,
        memory: &Memory<T>,
        matrix: usize,
        queries: &Range<usize>,
        keys: &Range<usize>,
    ) {
        let (rows, n) = (queries.len(), keys.len());
        let (k, k_row, _) = memory.k(g, matrix, keys.start);
        let out = (self.scores.as_mut_ptr(), n as isize, 1);
        // SAFETY: these queries and keys exist, the tile has room for a block, and is this thread's own. `k` is transposed.
        unsafe {
            let scale = <T as Element>::from_f64(g.scale);
            product((rows, n, g.d), memory.q(g, matrix, queries.start), (k, 1, k_row), out, false, scale);
        }
        let hidden = <T as Element>::from_f64(f64::NEG_INFINITY);
        for (row, query) in queries.clone().enumerate() {
            let scores = &mut self.scores[row * n..][..n];
            if g.masked {
                let step = g.places[3].strides[3];
                let mask = memory.row(g, 3, matrix, query).wrapping_offset(keys.start as isize * step);
                if step == 1 {
                    // SAFETY: the mask was expanded to the scores' shape: it has these keys of this query, side by side.
                    add(scores, unsafe { std::slice::from_raw_parts(mask.cast_const(), n) });
                } else {
                    for (i, score) in scores.iter_mut().enumerate() {
                        // SAFETY: as above, `step` apart.
                        *score = *score + unsafe { *mask.wrapping_offset(i as isize * step) };
                    }
                }
            }
            if g.causal && query + 1 < keys.end {
                scores[(query + 1).saturating_sub(keys.start)..].fill(hidden);
            }
        }
    }

    /// Drops probabilities of a block and scales up the others.
    pub(super) fn drop_probabilities(
        &mut self,
        g: &Geometry,
        memory: &Memory<T>,
        matrix: usize,
        queries: &Range<usize>,
        keys: &Range<usize>,
    ) -> Result<()> {
        let Some((below, scale)) = g.drop else { return Ok(()) };
        for (row, query) in queries.clone().enumerate() {
            draw(g, &memory.random, matrix, query, keys, &mut self.bits)?;
            let row = &mut self.scores[row * keys.len()..][..keys.len()];
            keep(row, &self.bits, below, <T as Element>::from_f64(scale));
        }
        Ok(())
    }

    /// Leaves the gradients of the scores (but for the scale) in `gradients` and the dropped probabilities in `scores`.
    pub(super) fn gradients(
        &mut self,
        g: &Geometry,
        memory: &Memory<T>,
        matrix: usize,
        queries: &Range<usize>,
        keys: &Range<usize>,
    ) -> Result<()> {
        self.scores(g, memory, matrix, queries, keys);
        let (rows, n) = (queries.len(), keys.len());
        let (v, v_row, _) = memory.v(g, matrix, keys.start);
        let out = (self.gradients.as_mut_ptr(), n as isize, 1);
        // SAFETY: as for the scores; `v` is transposed.
        unsafe {
            product((rows, n, g.dv), memory.grad(g, matrix, queries.start), (v, 1, v_row), out, false, T::ONE);
        }
        for (row, query) in queries.clone().enumerate() {
            let (logsumexp, delta) = memory.query(g, matrix, query);
            let (p, ds) = (&mut self.scores[row * n..][..n], &mut self.gradients[row * n..][..n]);
            if logsumexp == f64::NEG_INFINITY {
                // A query that sees nothing.
                p.fill(T::ZERO);
                ds.fill(T::ZERO);
                continue;
            }
            powers(p, logsumexp);
            match g.drop {
                Some((below, scale)) => {
                    let scale = <T as Element>::from_f64(scale);
                    draw(g, &memory.random, matrix, query, keys, &mut self.bits)?;
                    keep(ds, &self.bits, below, scale);
                    times(ds, p, delta);
                    keep(p, &self.bits, below, scale);
                }
                None => times(ds, p, delta),
            }
        }
        Ok(())
    }
}

/// The queries and keys of a block, and their matrix.
pub(super) type Block<'a> = (usize, &'a Range<usize>, &'a Range<usize>);

impl<T: Lane> Tile<T> {
    /// Writes the block's part of the queries' gradients, or adds it to them, after [`Self::gradients`].
    ///
    /// # Safety
    /// The tile must be this block's, and no other task may write the rows of these queries' gradients.
    pub(super) unsafe fn add_to_queries(
        &self,
        g: &Geometry,
        memory: &Memory<T>,
        block: Block<'_>,
        add: bool,
        scale: T,
    ) {
        let (matrix, queries, keys) = block;
        let ds = (self.gradients.as_ptr(), keys.len() as isize, 1);
        let to = memory.gradient(g, 0, matrix, queries.start);
        // SAFETY: the tile holds rows x keys gradients and `k` these keys; the caller has the rows to itself.
        unsafe {
            product((queries.len(), g.d, keys.len()), ds, memory.k(g, matrix, keys.start), to, add, scale);
        }
    }

    /// Writes the block's part of the gradients of keys and values, or adds it to them, after [`Self::gradients`].
    ///
    /// # Safety
    /// The tile must be this block's, and no other task may write the rows of these keys' gradients.
    pub(super) unsafe fn add_to_keys(&self, g: &Geometry, memory: &Memory<T>, block: Block<'_>, add: bool, scale: T) {
        let (matrix, queries, keys) = block;
        let (rows, n) = (queries.len(), keys.len());
        let (q, grad) = (memory.q(g, matrix, queries.start), memory.grad(g, matrix, queries.start));
        // Both factors on the left are read transposed.
        let (p, ds) = ((self.scores.as_ptr(), 1, n as isize), (self.gradients.as_ptr(), 1, n as isize));
        let (dk, dv) = (memory.gradient(g, 1, matrix, keys.start), memory.gradient(g, 2, matrix, keys.start));
        // SAFETY: the tile holds rows x keys probabilities and gradients; the caller has the rows to itself.
        unsafe {
            product((n, g.d, rows), ds, q, dk, add, scale);
            product((n, g.dv, rows), p, grad, dv, add, T::ONE);
        }
    }
}

/// The random words of some keys of a query. Blocks of keys start with a whole random block.
fn draw(
    g: &Geometry,
    random: &Generator,
    matrix: usize,
    query: usize,
    keys: &Range<usize>,
    bits: &mut [u32],
) -> Result<()> {
    let row = (matrix * g.l + query) as u64 * g.s.div_ceil(4) as u64;
    let offset = random.offset.wrapping_add(row + keys.start as u64 / 4);
    fill_bits(&mut bits[..keys.len()], &Generator { offset, ..*random })
}

/// Turns scores into exponentials around the new maximum, and returns that maximum and their sum.
pub(super) fn exponentials<T: Lane>(scores: &mut [T], before: f64) -> (f64, f64) {
    match level() {
        Level::Avx2 => exponentials_of(Yes, scores, before),
        Level::Baseline => exponentials_of(No, scores, before),
    }
}

fn powers<T: Lane>(scores: &mut [T], logsumexp: f64) {
    let top = <T as Element>::from_f64(logsumexp);
    match level() {
        Level::Avx2 => powers_of(Yes, scores, top),
        Level::Baseline => powers_of(No, scores, top),
    }
}

/// Whether a fused multiply-add is one instruction, as a type: `simd!` knows no constants.
trait Fused: Copy {
    const FMA: bool;
}

#[derive(Clone, Copy)]
struct Yes;
#[derive(Clone, Copy)]
struct No;

impl Fused for Yes {
    const FMA: bool = true;
}

impl Fused for No {
    const FMA: bool = cfg!(target_arch = "aarch64");
}

#[inline(always)]
fn exp<T: Real, F: Fused>(x: T) -> T {
    if F::FMA { x.exp::<true>() } else { x.exp::<false>() }
}

simd! {
    fn exponentials_of<F: Fused, T: Lane>(_fused: F, scores: &mut [T], before: f64) -> (f64, f64) {
        let found = plain_row::<T, Max>(scores);
        // NaN stays: a maximum that forgot it would turn the row into zeros.
        let top = if found.is_nan() || found > before { found } else { before };
        // Where everything is hidden so far, any finite number turns minus infinity into 0.
        let shift = <T as Element>::from_f64(if top == f64::NEG_INFINITY { 0.0 } else { top });
        for score in scores.iter_mut() {
            *score = exp::<T, F>(*score - shift);
        }
        (top, plain_row::<T, Sum>(scores))
    }

    fn powers_of<F: Fused, T: Lane>(_fused: F, scores: &mut [T], top: T) {
        for score in scores.iter_mut() {
            *score = exp::<T, F>(*score - top);
        }
    }

    /// The sum of the products, in float64.
    fn dot<T: Lane>(a: &[T], b: &[T]) -> f64 {
        const LANES: usize = 8;
        let mut sums = [0.0f64; LANES];
        let whole = a.len() / LANES * LANES;
        for (a, b) in a[..whole].chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
            for lane in 0..LANES {
                sums[lane] += a[lane].to_f64() * b[lane].to_f64();
            }
        }
        let rest: f64 = a[whole..].iter().zip(&b[whole..]).map(|(a, b)| a.to_f64() * b.to_f64()).sum();
        sums.iter().sum::<f64>() + rest
    }

    fn add<T: Lane>(to: &mut [T], from: &[T]) {
        for (to, &from) in to.iter_mut().zip(from) {
            *to = *to + from;
        }
    }

    /// `ds = p * (ds - delta)`
    fn times<T: Lane>(ds: &mut [T], p: &[T], delta: T) {
        for (ds, &p) in ds.iter_mut().zip(p) {
            *ds = p * (*ds - delta);
        }
    }

    fn keep<T: Lane>(values: &mut [T], bits: &[u32], below: u32, scale: T) {
        for (value, &bits) in values.iter_mut().zip(bits) {
            *value = if bits >> 8 < below { *value * scale } else { T::ZERO };
        }
    }

    pub(super) fn multiply_rows<T: Lane>(row: &mut [T], factor: f64) {
        let factor = <T as Element>::from_f64(factor);
        for value in row.iter_mut() {
            *value = *value * factor;
        }
    }

    /// The sums over their total; zeros where there was nothing to sum.
    fn divide<T: Lane>(sums: &[T], total: f64, out: &mut [T]) {
        let factor = <T as Element>::from_f64(if total == 0.0 { 0.0 } else { total.recip() });
        for (out, &sum) in out.iter_mut().zip(sums) {
            *out = sum * factor;
        }
    }
}
