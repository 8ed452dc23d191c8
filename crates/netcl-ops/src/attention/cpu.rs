//! Attention on the native CPU: a block of scores is a single-threaded `gemm`, blocks of queries (or keys) are the tasks.

mod tile;

use netcl_core::Result;
use netcl_core::backend::cpu::CpuKernel;
use netcl_core::backend::cpu::interrupt::checkpoint;
use netcl_core::backend::cpu::threads::num_threads;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Access, Arg, Scalar, Work};
use netcl_core::tensor::Tensor;
use smallvec::SmallVec;

use super::problem::{Backward, Problem, Saved};
use crate::dropout::cpu::try_parallel_for;
use crate::reduce::Lane;
use tile::{Geometry, Memory, Tile, multiply_rows, product};

/// Queries and keys of a block: scores that stay in the second-level cache.
const QUERIES: usize = 128;
const KEYS: usize = 256;

type Args = SmallVec<[Arg; 8]>;

fn read(t: &Tensor) -> Arg {
    Arg::Buffer(t.storage().clone(), Access::Read)
}

fn write(t: &Tensor) -> Arg {
    Arg::Buffer(t.storage().clone(), Access::Write)
}

/// The arguments that forward and backward share: tensors, then where the dropout's random numbers begin.
fn arguments(problem: &Problem) -> Args {
    let [seed, block] = problem.drop.as_ref().map_or([Scalar::U64(0), Scalar::U64(0)], |drop| drop.place.scalars());
    let mask = problem.mask.as_ref().unwrap_or(&problem.q);
    let mut args: Args = [&problem.q, &problem.k, &problem.v, mask].into_iter().map(read).collect();
    args.extend([seed, block].map(Arg::Scalar));
    args
}

pub(super) fn forward(problem: &Problem, saved: Saved<'_>) -> (Work, Args) {
    let mut args = arguments(problem);
    args.extend([write(saved.out), write(saved.logsumexp)]);
    let geometry = Geometry::new(problem, &[saved.out, saved.logsumexp]);
    let kernel = CpuKernel::new(move |args| match geometry.dtype {
        DType::F64 => run_forward::<f64>(&geometry, &Memory::new(&geometry, args)?),
        _ => run_forward::<f32>(&geometry, &Memory::new(&geometry, args)?),
    });
    (Work::Cpu(kernel), args)
}

fn run_forward<T: Lane>(g: &Geometry, memory: &Memory<T>) -> Result<()> {
    let blocks = g.l.div_ceil(QUERIES);
    try_parallel_for(g.op, g.matrices * blocks, 1, |range| {
        let mut tile = Tile::new(g, QUERIES, KEYS);
        let mut sums = vec![T::ZERO; QUERIES * g.dv];
        let (mut tops, mut totals) = (vec![0.0f64; QUERIES], vec![0.0f64; QUERIES]);
        for task in range {
            // The last blocks of a causal matrix have most to do: they come first.
            let (matrix, block) = (task / blocks, blocks - 1 - task % blocks);
            let queries = block * QUERIES..g.l.min((block + 1) * QUERIES);
            let rows = queries.len();
            tops.fill(f64::NEG_INFINITY);
            totals.fill(0.0);
            let mut first = true;
            for keys in g.keys(&queries, KEYS) {
                checkpoint();
                tile.scores(g, memory, matrix, &queries, &keys);
                for row in 0..rows {
                    let scores = tile.row(row, keys.len());
                    let before = tops[row];
                    let (top, sum) = tile::exponentials(scores, before);
                    // Nothing was added up yet where the maximum still was minus infinity.
                    let shrink = if before == f64::NEG_INFINITY { 0.0 } else { (before - top).exp() };
                    tops[row] = top;
                    totals[row] = totals[row] * shrink + sum;
                    if !first && shrink != 1.0 {
                        multiply_rows(&mut sums[row * g.dv..][..g.dv], shrink);
                    }
                }
                tile.drop_probabilities(g, memory, matrix, &queries, &keys)?;
                // SAFETY: the tile holds rows x keys probabilities, `v` has these keys, `sums` rows x dv elements.
                unsafe {
                    let v = memory.v(g, matrix, keys.start);
                    let p = (tile.scores.as_ptr(), keys.len() as isize, 1);
                    product((rows, g.dv, keys.len()), p, v, (sums.as_mut_ptr(), g.dv as isize, 1), !first, T::ONE);
                }
                first = false;
            }
            for (row, query) in queries.enumerate() {
                // SAFETY: the query is one of the matrix's, and no other task writes its row.
                unsafe {
                    let sums = &sums[row * g.dv..][..g.dv];
                    memory.write_outputs(g, (matrix, query), sums, (tops[row], totals[row]));
                }
            }
        }
        Ok(())
    })
}

pub(super) fn backward(problem: &Problem, backward: &Backward<'_>) -> (Work, Args) {
    let mut args = arguments(problem);
    let [dq, dk, dv] = backward.gradients;
    args.extend([read(backward.out), read(backward.logsumexp), read(backward.grad), write(backward.delta)]);
    args.extend([dq, dk, dv].map(write));
    let others = [backward.out, backward.logsumexp, backward.grad, backward.delta, dq, dk, dv];
    let geometry = Geometry::new(problem, &others);
    let kernel = CpuKernel::new(move |args| match geometry.dtype {
        DType::F64 => run_backward::<f64>(&geometry, &Memory::new(&geometry, args)?),
        _ => run_backward::<f32>(&geometry, &Memory::new(&geometry, args)?),
    });
    (Work::Cpu(kernel), args)
}

/// Matrices per thread from which each is one task: fewer could leave threads idle at the end.
const MATRICES_PER_THREAD: usize = 4;

fn run_backward<T: Lane>(g: &Geometry, memory: &Memory<T>) -> Result<()> {
    let threads = num_threads();
    if g.matrices.is_multiple_of(threads) || g.matrices >= MATRICES_PER_THREAD * threads {
        return of_matrices(g, memory);
    }
    of_queries(g, memory)?;
    of_keys(g, memory)
}

/// All three gradients, a matrix at a time: five products for each tile, where two passes need seven and the exponentials twice.
/// Every sum adds the same terms in the same order as in two passes.
fn of_matrices<T: Lane>(g: &Geometry, memory: &Memory<T>) -> Result<()> {
    let scale = <T as netcl_core::dtype::Element>::from_f64(g.scale);
    try_parallel_for(g.op, g.matrices, 1, |range| {
        let mut tile = Tile::new(g, QUERIES, KEYS);
        for matrix in range {
            // SAFETY: this task has the matrix to itself.
            unsafe { memory.clear_keys(g, matrix, &(0..g.s)) };
            for start in (0..g.l).step_by(QUERIES) {
                let queries = start..g.l.min(start + QUERIES);
                for query in queries.clone() {
                    // SAFETY: as above.
                    unsafe { memory.write_delta(g, matrix, query) };
                }
                for keys in g.keys(&queries, KEYS) {
                    checkpoint();
                    tile.gradients(g, memory, matrix, &queries, &keys)?;
                    // SAFETY: the tile holds rows x keys probabilities and gradients of scores; the matrix has these queries
                    // and keys, and its gradients are this task's alone.
                    unsafe {
                        tile.add_to_queries(g, memory, (matrix, &queries, &keys), keys.start > 0, scale);
                        tile.add_to_keys(g, memory, (matrix, &queries, &keys), true, scale);
                    }
                }
            }
        }
        Ok(())
    })
}

/// The gradient of q, block by block of queries, after each query's sum of output times gradient.
fn of_queries<T: Lane>(g: &Geometry, memory: &Memory<T>) -> Result<()> {
    let blocks = g.l.div_ceil(QUERIES);
    let scale = <T as netcl_core::dtype::Element>::from_f64(g.scale);
    try_parallel_for(g.op, g.matrices * blocks, 1, |range| {
        let mut tile = Tile::new(g, QUERIES, KEYS);
        for task in range {
            let (matrix, block) = (task / blocks, blocks - 1 - task % blocks);
            let queries = block * QUERIES..g.l.min((block + 1) * QUERIES);
            for query in queries.clone() {
                // SAFETY: the query is one of the matrix's, and no other task writes its sum.
                unsafe { memory.write_delta(g, matrix, query) };
            }
            for keys in g.keys(&queries, KEYS) {
                checkpoint();
                tile.gradients(g, memory, matrix, &queries, &keys)?;
                // SAFETY: the tile holds rows x keys gradients of scores, and the rows of `dq` are this task's alone.
                unsafe { tile.add_to_queries(g, memory, (matrix, &queries, &keys), keys.start > 0, scale) };
            }
        }
        Ok(())
    })
}

/// The gradients of k and v, block by block of keys.
fn of_keys<T: Lane>(g: &Geometry, memory: &Memory<T>) -> Result<()> {
    let blocks = g.s.div_ceil(KEYS);
    let scale = <T as netcl_core::dtype::Element>::from_f64(g.scale);
    try_parallel_for(g.op, g.matrices * blocks, 1, |range| {
        let mut tile = Tile::new(g, QUERIES, KEYS);
        for task in range {
            let (matrix, block) = (task / blocks, task % blocks);
            let keys = block * KEYS..g.s.min((block + 1) * KEYS);
            let mut first = true;
            for queries in g.queries(&keys, QUERIES) {
                checkpoint();
                tile.gradients(g, memory, matrix, &queries, &keys)?;
                // SAFETY: as in `of_queries`, with the rows of `dk` and `dv` that belong to these keys.
                unsafe { tile.add_to_keys(g, memory, (matrix, &queries, &keys), !first, scale) };
                first = false;
            }
            if first {
                // Keys that no query sees.
                // SAFETY: as above.
                unsafe { memory.clear_keys(g, matrix, &keys) };
            }
        }
        Ok(())
    })
}
