//! Attention whose memory grows with the length of the sequences, not with its square, and rotary position embedding.
//!
//! Forward keeps, for each query, the output and the logarithm of the softmax's denominator; scores exist only for a block of
//! queries and keys at a time. Backward computes them again, block by block: one pass over keys for the gradient of the
//! queries, one over queries for those of keys and values, each element of a gradient owned by one task. No atomics, the same
//! bits on every run.
//!
//! ```text
//!                 keys ->                  forward, backward of q:  a task owns a row of blocks and walks to the right
//!            +----+----+----+----+
//!    queries | P  |    |    |    |         backward of k and v:     a task owns a column and walks down
//!       |    +----+----+----+----+
//!       v    |    |    |    |    |         P = exp(q k^T * scale + mask - logsumexp)
//!            +----+----+----+----+
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `problem.rs` | shapes, strides, checks |
//! | `cpu.rs`, `cpu/tile.rs` | native: blocks of scores as matrix products |
//! | `opencl.rs`, `attention.cl`, `attention_backward.cl` | the kernels and how they are launched |
//! | `split.rs`, `attention_split.cl` | few queries, as in decoding: work-groups share the keys |
//! | `units.rs`, `attention_units.cl` | 16-bit numbers and tf32 on Hopper's matrix units |
//! | `rotary.rs` | rotary position embedding |

mod cpu;
mod opencl;
mod problem;
mod rotary;
mod split;
mod units;

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::kernels::launch::{self, Cost, Launch, Work};
use netcl_core::random::Generator;
use netcl_core::tensor::Tensor;

use crate::dropout::{MaskPlace, reserve};
use problem::{Problem, Saved};
use split::Plan;

pub use opencl::force_group;
pub use rotary::{RotaryForm, RotaryTables, rotary, rotary_backward};
pub use split::{Append, force_split};

/// What changes the plain `softmax(q k^T / sqrt(width)) v`.
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions<'t> {
    /// Query i sees the keys 0 to i only (counted from the first key, as in PyTorch, also where there are more keys).
    pub causal: bool,
    /// Added to the scores; broadcast to `[batch, heads, queries, keys]`. Minus infinity hides a key. It has no gradient.
    pub mask: Option<&'t Tensor>,
    /// Drops probabilities: how likely, and where the random numbers begin (see [`AttentionOptions::with_dropout`]).
    pub dropout: Option<(f64, MaskPlace)>,
    /// What scores are multiplied by; `1 / sqrt(width)` if not given.
    pub scale: Option<f64>,
}

impl AttentionOptions<'_> {
    /// With a new dropout mask for these queries `[batch, heads, queries, width]` and keys: as many random blocks as it takes
    /// are reserved from the generator, or from the process-wide one.
    #[must_use]
    pub fn with_dropout(mut self, p: f64, q: &Tensor, k: &Tensor, generator: Option<&mut Generator>) -> Self {
        let keys = k.shape().get(2).copied().unwrap_or(0);
        let rows: usize = q.shape().iter().take(3).product();
        self.dropout = Some((p, reserve(generator, attention_blocks(rows, keys))));
        self
    }
}

/// How many random blocks a dropout mask over so many queries (of all batches and heads) and keys takes.
pub fn attention_blocks(queries: usize, keys: usize) -> u64 {
    // Every row starts with a block of its own, so that a tile of any row starts with a whole block.
    queries as u64 * keys.div_ceil(4) as u64
}

/// The result of [`scaled_dot_product_attention`], with what its gradient needs.
#[derive(Clone, Debug)]
pub struct Attention {
    /// `[batch, heads, queries, value width]`
    pub out: Tensor,
    /// The logarithm of each softmax's denominator, `[batch, heads, queries]`, in float32 (float64 for float64).
    pub logsumexp: Tensor,
}

/// The gradients of [`scaled_dot_product_attention`].
#[derive(Clone, Debug)]
pub struct AttentionGradients {
    /// For the queries.
    pub q: Tensor,
    /// For the keys.
    pub k: Tensor,
    /// For the values.
    pub v: Tensor,
}

/// `softmax(q k^T * scale + mask) v` for every batch and head, in memory linear in the number of queries and keys.
///
/// `q` is `[batch, heads, queries, width]`, `k` `[batch, heads, keys, width]`, `v` `[batch, heads, keys, value width]`. A query
/// whose keys are all hidden gives zeros. 16-bit tensors are computed in float32.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
/// use netcl_ops::attention::{AttentionOptions, scaled_dot_product_attention};
///
/// let queue = manager().cpu().queue;
/// let q = Tensor::full(&queue, [1, 1, 2, 4], DType::F32, 0.0)?;
/// let v = Tensor::from_host(&queue, &[1.0f32, 3.0], [1, 1, 2, 1])?;
/// let options = AttentionOptions { causal: true, ..Default::default() };
/// // The first query sees the first key, the second both, with equal weight.
/// let attention = scaled_dot_product_attention(&q, &q, &v, &options)?;
/// assert_eq!(attention.out.to_host::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn scaled_dot_product_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    options: &AttentionOptions<'_>,
) -> Result<Attention> {
    let problem = Problem::new("scaled_dot_product_attention", q, k, v, options)?;
    let plan = match q.queue() {
        Queue::Cpu(_) => None,
        Queue::OpenCl(stream) => Plan::of(&problem, stream, None),
    };
    let out = if plan.is_some() { dense(&problem)? } else { room(&problem, &problem.q, problem.dv)? };
    let logsumexp = statistics(&problem)?;
    if problem.rows() > 0 {
        if problem.s == 0 {
            // Nothing to attend to.
            out.fill(0.0)?;
            logsumexp.fill(f64::NEG_INFINITY)?;
        } else {
            let saved = Saved { out: &out, logsumexp: &logsumexp };
            let (work, args) = match q.queue() {
                Queue::Cpu(_) => cpu::forward(&problem, saved),
                Queue::OpenCl(stream) => match plan {
                    Some(plan) => split::forward(&problem, stream, plan, None, saved)?,
                    None if units::serves(&problem, stream) => units::forward(&problem, stream, saved)?,
                    None => opencl::forward(&problem, stream, saved)?,
                },
            };
            submit_forward(&problem, work, args)?;
        }
    }
    Ok(Attention { out: out.cast(q.dtype())?, logsumexp })
}

/// [`scaled_dot_product_attention`] after a key and a value were written into `k` and `v`, which is one launch; `None`, and nothing was
/// written, where no kernel does both. A mask must hide the keys after the new one.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, index::IndexTensor, tensor::Tensor};
/// use netcl_ops::attention::{Append, AttentionOptions, attention_append};
///
/// let queue = manager().cpu().queue;
/// let cache = Tensor::full(&queue, [1, 1, 8, 4], DType::F32, 0.0)?;
/// let new = Tensor::full(&queue, [1, 1, 1, 4], DType::F32, 1.0)?;
/// let place = IndexTensor::from_host(&queue, &[0i64], [1])?;
/// let append = Append { key: &new, value: &new, place: &place };
/// // The native CPU writes with a launch of its own.
/// assert!(attention_append(&new, &cache, &cache.duplicate()?, &append, &AttentionOptions::default())?.is_none());
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn attention_append(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    append: &Append<'_>,
    options: &AttentionOptions<'_>,
) -> Result<Option<Tensor>> {
    let Queue::OpenCl(stream) = q.queue() else { return Ok(None) };
    let problem = Problem::new("attention_append", q, k, v, options)?;
    let Some(plan) = split::plan_append(&problem, stream, k, v, append)? else { return Ok(None) };
    if problem.rows() == 0 || problem.s == 0 {
        return Ok(None);
    }
    let (out, logsumexp) = (dense(&problem)?, statistics(&problem)?);
    let saved = Saved { out: &out, logsumexp: &logsumexp };
    let (work, args) = split::forward(&problem, stream, plan, Some(append), saved)?;
    submit_forward(&problem, work, args)?;
    Ok(Some(out))
}

fn statistics(problem: &Problem) -> Result<Tensor> {
    Tensor::uninit(problem.q.queue(), problem.rows_shape(), problem.q.dtype().accumulator())
}

/// Memory for the result of forward, one head after the other.
fn dense(problem: &Problem) -> Result<Tensor> {
    let [batch, heads, length] = problem.rows_shape();
    Tensor::uninit(problem.q.queue(), [batch, heads, length, problem.dv], problem.q.dtype())
}

/// Memory for a result as long as `like`: in its memory order where the kernels write so, else dense.
fn room(problem: &Problem, like: &Tensor, width: usize) -> Result<Tensor> {
    let shape = [like.shape()[0], like.shape()[1], like.shape()[2], width];
    match like.queue() {
        Queue::OpenCl(stream) if units::serves(problem, stream) => units::room(shape, like),
        _ => Tensor::uninit(like.queue(), shape, like.dtype()),
    }
}

fn submit_forward(problem: &Problem, work: Work, args: opencl::Args) -> Result<()> {
    let cost = Cost { flops: problem.flops(2), bytes: problem.bytes() };
    launch::submit(Launch { name: problem.op.into(), queue: problem.q.queue().clone(), work, args, cost })
}

/// The gradients of [`scaled_dot_product_attention`] for the same tensors, its result and the gradient of that result.
///
/// The options must be those of the forward call, the dropout's place included.
pub fn scaled_dot_product_attention_backward(
    grad: &Tensor,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    saved: &Attention,
    options: &AttentionOptions<'_>,
) -> Result<AttentionGradients> {
    const OP: &str = "scaled_dot_product_attention_backward";
    let problem = Problem::new(OP, q, k, v, options)?;
    let (grad, out, logsumexp) = problem.check_saved(grad, saved)?;
    let queue = q.queue();
    let make = |t: &Tensor| room(&problem, t, t.shape()[3]);
    let (dq, dk, dv) = (make(&problem.q)?, make(&problem.k)?, make(&problem.v)?);
    if problem.rows() == 0 || problem.s == 0 {
        // No scores at all: nothing depends on anything.
        [&dq, &dk, &dv].into_iter().filter(|t| t.size() > 0).try_for_each(|t| t.fill(0.0))?;
    } else {
        let delta = Tensor::uninit(queue, problem.rows_shape(), logsumexp.dtype())?;
        let backward = problem::Backward {
            grad: &grad,
            out: &out,
            logsumexp: &logsumexp,
            delta: &delta,
            gradients: [&dq, &dk, &dv],
        };
        let works = match queue {
            Queue::Cpu(_) => vec![cpu::backward(&problem, &backward)],
            Queue::OpenCl(stream) if units::serves(&problem, stream) => units::backward(&problem, stream, &backward)?,
            Queue::OpenCl(stream) => opencl::backward(&problem, stream, &backward)?,
        };
        // Two products recomputed or formed for q's gradient and its own; four and two for those of k and v.
        let (products, count) = (7, works.len());
        for (work, args) in works {
            let cost =
                Cost { flops: problem.flops(products) / count as f64, bytes: 2.0 * problem.bytes() / count as f64 };
            launch::submit(Launch { name: OP.into(), queue: queue.clone(), work, args, cost })?;
        }
    }
    let narrow = |t: Tensor| t.cast(q.dtype());
    Ok(AttentionGradients { q: narrow(dq)?, k: narrow(dk)?, v: narrow(dv)? })
}
