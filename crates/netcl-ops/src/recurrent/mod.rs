//! Recurrent layers: LSTM, GRU and plain cells over all steps of a sequence, in one direction.
//!
//! ```text
//!             input's part of the gates, all steps: one product, made outside by `linear`
//!                  |            |            |
//!   hidden ->  [product  ]->[product  ]->[product  ]-> ...     forward: a launch per step has both the recurrent product
//!              [and cell ]  [and cell ]  [and cell ]           and the cell (natively all steps are one launch)
//!                  |            |            |
//!                 out          out          out                backward: the same, from the last step to the first
//! ```
//!
//! Backward leaves the gradients of the gates of all steps in one tensor, which is the gradient of the input's part; the weight's
//! gradient is one product over all steps, the bias's one sum. Time and memory grow linearly with the number of steps.
//!
//! | file | subject |
//! |---|---|
//! | `cell.rs` | the cells as expressions |
//! | `cpu.rs` | native: all steps of a block of the batch are one task |
//! | `opencl.rs`, `recurrent.cl` | the kernels and how they are launched |

mod cell;
mod cpu;
mod opencl;

use std::sync::LazyLock;

use netcl_core::backend::Queue;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::kernels::launch::Cost;
use netcl_core::shape::{Shape, Slice};
use netcl_core::tensor::{Tensor, reshape};
use netcl_core::{Error, Result};

use crate::dense::check_shape;
use crate::matmul::{Epilogue, MatmulOptions, matmul_with};
pub use cell::Cell;

const OP: &str = "recurrent";
const BACKWARD: &str = "recurrent_backward";

/// A layer in one direction and what it reads. All tensors share one float dtype.
#[derive(Clone, Copy, Debug)]
pub struct Recurrent<'t> {
    /// What happens at every step.
    pub cell: Cell,
    /// The input's part of the gates, `[steps, batch, gates * hidden]`.
    pub input: &'t Tensor,
    /// The recurrent weight, `[gates * hidden, hidden]`.
    pub weight: &'t Tensor,
    /// The recurrent bias, `[gates * hidden]`.
    pub bias: Option<&'t Tensor>,
    /// The hidden state before the first step, `[batch, hidden]`; zeros if not given.
    pub hidden: Option<&'t Tensor>,
    /// The memory before the first step, for cells that have one.
    pub memory: Option<&'t Tensor>,
    /// Whether the first step is the last element of the sequence.
    pub reverse: bool,
}

/// The result of [`recurrent`], with what its gradient needs.
#[derive(Clone, Debug)]
pub struct Recurrence {
    /// The hidden states of all steps, `[steps, batch, hidden]`.
    pub out: Tensor,
    /// The memories of all steps, in float32 (float64 for float64).
    memories: Option<Tensor>,
    /// What else backward needs, `[steps, batch, saved * hidden]`.
    saved: Option<Tensor>,
    reverse: bool,
}

impl Recurrence {
    /// The hidden state after the last step, `[batch, hidden]`: a view of `out`.
    pub fn hidden(&self) -> Result<Tensor> {
        self.out.select(0, self.last())
    }

    /// The memory after the last step, where the cell has one.
    pub fn memory(&self) -> Result<Option<Tensor>> {
        self.memories.as_ref().map(|all| all.select(0, self.last())?.cast(self.out.dtype())).transpose()
    }

    fn last(&self) -> isize {
        if self.reverse { 0 } else { -1 }
    }
}

/// The gradients that arrive at the results of [`recurrent`]; none is zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecurrentUpstream<'t> {
    /// For all hidden states.
    pub out: Option<&'t Tensor>,
    /// For the last hidden state.
    pub hidden: Option<&'t Tensor>,
    /// For the last memory.
    pub memory: Option<&'t Tensor>,
}

/// The gradients of [`recurrent`]. Those that take a further launch are computed when they are asked for.
#[derive(Clone, Debug)]
pub struct RecurrentGradients {
    /// For the input's part of the gates.
    pub input: Tensor,
    /// For the recurrent part of the gates.
    gates: Tensor,
    /// What goes round the weights to the states before the first step.
    carried: Option<Tensor>,
    problem: Problem,
    out: Tensor,
}

/// A checked layer: tensors that lie densely, in the dtypes that the backend computes with.
#[derive(Clone, Debug)]
struct Problem {
    op: &'static str,
    cell: Cell,
    steps: usize,
    batch: usize,
    hidden: usize,
    reverse: bool,
    input: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
    first_hidden: Option<Tensor>,
    first_memory: Option<Tensor>,
}

impl Problem {
    fn new(op: &'static str, layer: &Recurrent<'_>) -> Result<Problem> {
        let Recurrent { cell, input, weight, bias, hidden: first_hidden, memory: first_memory, reverse } = *layer;
        input.check_float(op)?;
        let gates = cell.gates();
        let &[steps, batch, width] = &input.shape()[..] else {
            let why = "the input's part of the gates must be (steps, batch, gates * hidden)".to_owned();
            return Err(Error::Shape { op, shape: input.shape().clone(), why });
        };
        if steps == 0 || !width.is_multiple_of(gates) {
            let why = format!("there must be at least one step and {gates} gates of equal width");
            return Err(Error::Shape { op, shape: input.shape().clone(), why });
        }
        let hidden = width / gates;
        check_shape(op, "the weight", weight, &[width, hidden])?;
        bias.map_or(Ok(()), |bias| check_shape(op, "the bias", bias, &[width]))?;
        first_hidden.map_or(Ok(()), |state| check_shape(op, "the first hidden state", state, &[batch, hidden]))?;
        first_memory.map_or(Ok(()), |state| check_shape(op, "the first memory", state, &[batch, hidden]))?;
        if first_memory.is_some() && !cell.has_memory() {
            return Err(Error::argument(op, format!("a {cell:?} cell has no memory; leave the first memory out")));
        }
        for tensor in [Some(weight), bias, first_hidden, first_memory].into_iter().flatten() {
            input.queue().check_same_device(op, tensor.queue())?;
            if tensor.dtype() != input.dtype() {
                return Err(Error::DtypeMismatch { op, lhs: input.dtype(), rhs: tensor.dtype() });
            }
        }
        Ok(Problem {
            op,
            cell,
            steps,
            batch,
            hidden,
            reverse,
            input: usable(input)?,
            weight: usable(weight)?,
            bias: bias.map(usable).transpose()?,
            first_hidden: first_hidden.map(usable).transpose()?,
            first_memory: first_memory.map(sums).transpose()?,
        })
    }

    /// The width of all gates.
    fn width(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// The steps in the order of time, each with the one before.
    fn order(&self) -> impl DoubleEndedIterator<Item = (usize, Option<usize>)> + use<> {
        let (steps, reverse) = (self.steps, self.reverse);
        let at = move |time: usize| if reverse { steps - 1 - time } else { time };
        (0..steps).map(move |time| (at(time), time.checked_sub(1).map(at)))
    }

    fn is_empty(&self) -> bool {
        self.batch * self.hidden == 0
    }

    /// What so many steps cost: a product, and the gates read and written.
    fn cost(&self, steps: usize) -> Cost {
        let (gates, weight) = (self.batch * self.width(), self.weight.size());
        let bytes = (steps * (3 * gates + weight)) * self.input.dtype().size();
        Cost { flops: 2.0 * (steps * gates) as f64 * self.hidden as f64, bytes: bytes as f64 }
    }

    /// A tensor for each hidden element of each step.
    fn all_steps(&self, values: usize) -> Result<Tensor> {
        Tensor::uninit(self.input.queue(), [self.steps, self.batch, values * self.hidden], self.input.dtype())
    }

    /// Checks a gradient's shape and dtype and makes it usable.
    fn upstream(&self, what: &str, gradient: Option<&Tensor>, shape: &[usize]) -> Result<Option<Tensor>> {
        let Some(gradient) = gradient else { return Ok(None) };
        check_shape(self.op, what, gradient, shape)?;
        self.input.queue().check_same_device(self.op, gradient.queue())?;
        let gradient = usable(gradient)?;
        if gradient.dtype() != self.input.dtype() {
            return Err(Error::DtypeMismatch { op: self.op, lhs: self.input.dtype(), rhs: gradient.dtype() });
        }
        Ok(Some(gradient))
    }
}

/// The native code computes with float32 or float64; kernels widen as they read.
fn usable(tensor: &Tensor) -> Result<Tensor> {
    match tensor.queue() {
        Queue::Cpu(_) => sums(tensor),
        Queue::OpenCl(_) => tensor.contiguous(),
    }
}

/// In the dtype that sums and memories have.
fn sums(tensor: &Tensor) -> Result<Tensor> {
    tensor.cast(tensor.dtype().accumulator())?.contiguous()
}

/// What forward writes.
struct Written<'t> {
    out: &'t Tensor,
    memories: Option<&'t Tensor>,
    saved: Option<&'t Tensor>,
}

/// A recurrent layer over all steps of a sequence, in one direction. Without `save` there is no backward pass.
///
/// The input's part of the gates is `linear(x, weight_ih, bias_ih)`. Names, formulas and the order of the gates are PyTorch's. Sums are
/// float32 for 16-bit floats, and so are the memories of an LSTM.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
/// use netcl_ops::recurrent::{Cell, Recurrent, recurrent};
///
/// let queue = manager().cpu().queue;
/// let input = Tensor::from_host(&queue, &[1.0f32, 0.0, 0.0], [3, 1, 1])?;
/// let weight = Tensor::from_host(&queue, &[0.5f32], [1, 1])?;
/// let layer =
///     Recurrent { cell: Cell::Relu, input: &input, weight: &weight, bias: None, hidden: None, memory: None, reverse: false };
/// assert_eq!(recurrent(&layer, false)?.out.to_host::<f32>()?, [1.0, 0.5, 0.25]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
///
/// # Errors
/// If shapes, dtypes or devices do not fit together.
pub fn recurrent(layer: &Recurrent<'_>, save: bool) -> Result<Recurrence> {
    let problem = Problem::new(OP, layer)?;
    let Problem { cell, steps, batch, hidden, reverse, .. } = problem;
    let out = problem.all_steps(1)?;
    let sums = out.dtype().accumulator();
    let memories = cell.has_memory().then(|| Tensor::uninit(out.queue(), [steps, batch, hidden], sums)).transpose()?;
    let saved = (save && cell.saved() > 0).then(|| problem.all_steps(cell.saved())).transpose()?;
    if !problem.is_empty() {
        let written = Written { out: &out, memories: memories.as_ref(), saved: saved.as_ref() };
        match out.queue() {
            Queue::Cpu(_) => cpu::forward(&problem, &written)?,
            Queue::OpenCl(stream) => opencl::forward(&problem, stream, &written)?,
        }
    }
    Ok(Recurrence { out: out.cast(layer.input.dtype())?, memories, saved, reverse })
}

/// What backward reads and writes.
struct Backward<'t> {
    out: &'t Tensor,
    memories: Option<&'t Tensor>,
    saved: Option<&'t Tensor>,
    upstream: Option<&'t Tensor>,
    /// The gradient of the last hidden state.
    last: Option<&'t Tensor>,
    input: &'t Tensor,
    /// The gradients of the recurrent part, where they differ.
    gates: Option<&'t Tensor>,
    carried: Option<&'t Tensor>,
}

/// The gradients of [`recurrent`] for the same layer, its result and the gradients that arrive there.
///
/// # Errors
/// If the result was not saved, or is another layer's.
pub fn recurrent_backward(
    layer: &Recurrent<'_>,
    result: &Recurrence,
    upstream: &RecurrentUpstream<'_>,
) -> Result<RecurrentGradients> {
    let problem = Problem::new(BACKWARD, layer)?;
    let Problem { op, cell, steps, batch, hidden, .. } = problem;
    check_shape(op, "the saved result", &result.out, &[steps, batch, hidden])?;
    if result.saved.is_none() && cell.saved() > 0 {
        return Err(Error::argument(op, "the result was computed without saving what backward needs"));
    }
    let queue = layer.input.queue();
    let out = usable(&result.out)?;
    let outside = problem.upstream("the gradient", upstream.out, &[steps, batch, hidden])?;
    let last = problem.upstream("the gradient of the hidden state", upstream.hidden, &[batch, hidden])?;
    let memory = problem.upstream("the gradient of the memory", upstream.memory, &[batch, hidden])?;
    let carried = cell.carries().then(|| match &memory {
        // Overwritten step by step.
        Some(memory) => sums(memory)?.duplicate(),
        None => Tensor::from_shape(queue, [batch, hidden], out.dtype().accumulator()),
    });
    let carried = carried.transpose()?;
    let input = problem.all_steps(cell.gates())?;
    let gates = cell.parts_differ().then(|| problem.all_steps(cell.gates())).transpose()?;
    if !problem.is_empty() {
        let backward = Backward {
            out: &out,
            memories: result.memories.as_ref(),
            saved: result.saved.as_ref(),
            upstream: outside.as_ref(),
            last: last.as_ref(),
            input: &input,
            gates: gates.as_ref(),
            carried: carried.as_ref(),
        };
        match queue {
            Queue::Cpu(_) => cpu::backward(&problem, &backward)?,
            Queue::OpenCl(stream) => opencl::backward(&problem, stream, &backward)?,
        }
    }
    let gates = gates.unwrap_or_else(|| input.clone());
    Ok(RecurrentGradients { input: input.cast(layer.input.dtype())?, gates, carried, problem, out })
}

/// Adds a tensor to a product.
fn plus(tensor: Tensor) -> Epilogue<'static> {
    static ADD: LazyLock<Expr> = LazyLock::new(|| {
        let g = Graph::new();
        g.finish(&[g.input(0) + g.input(1)])
    });
    Epilogue { expr: &ADD, inputs: vec![tensor], scalars: vec![], dtype: None }
}

impl RecurrentGradients {
    /// For the recurrent weight: one product over all steps (and another one where a first hidden state was given).
    pub fn weight(&self) -> Result<Tensor> {
        let Problem { steps, batch, reverse, ref first_hidden, .. } = self.problem;
        let rows = |t: &Tensor, from: usize, count: usize| {
            let some = t.slice(0, Slice::new(Some(from as isize), Some((from + count) as isize), 1))?;
            let width = some.shape()[2];
            reshape(&some, Shape::from([count * batch, width]))
        };
        // The gates of a step meet the hidden state before it.
        let gates = rows(&self.gates, usize::from(!reverse), steps - 1)?;
        let states = rows(&self.out, usize::from(reverse), steps - 1)?;
        let transposed = MatmulOptions { transpose_a: true, ..Default::default() };
        let mut product = matmul_with(&gates, &states, &transposed)?;
        if let Some(hidden) = first_hidden {
            let first = rows(&self.gates, if reverse { steps - 1 } else { 0 }, 1)?;
            product = matmul_with(&first, hidden, &MatmulOptions { epilogue: Some(plus(product)), ..transposed })?;
        }
        product.cast(self.input.dtype())
    }

    /// For the recurrent bias.
    pub fn bias(&self) -> Result<Tensor> {
        crate::reduce::sum(&self.gates, &[0, 1], false)?.cast(self.input.dtype())
    }

    /// For the hidden state before the first step.
    pub fn hidden(&self) -> Result<Tensor> {
        let Problem { cell, reverse, ref weight, .. } = self.problem;
        let first = self.gates.select(0, if reverse { -1 } else { 0 })?;
        let epilogue = self.carried.as_ref().filter(|_| !cell.has_memory()).cloned().map(plus);
        matmul_with(&first, weight, &MatmulOptions { epilogue, ..Default::default() })?.cast(self.input.dtype())
    }

    /// For the memory before the first step, where the cell has one.
    pub fn memory(&self) -> Result<Option<Tensor>> {
        let carried = self.carried.as_ref().filter(|_| self.problem.cell.has_memory());
        carried.map(|carried| carried.cast(self.input.dtype())).transpose()
    }
}
