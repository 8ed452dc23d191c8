//! Recurrent layers: a launch per step both ways, and time and memory linear in the number of steps.

pub use netcl_ops::recurrent::Cell;
use netcl_ops::recurrent::{self as raw, Recurrence, RecurrentUpstream};
use smallvec::{SmallVec, smallvec};

use super::elementwise::{add, mul, relu, sigmoid, sub, tanh};
use super::layout::{select, split, stack};
use super::matmul::linear;
use crate::autocast;
use crate::error::Result;
use crate::graph::{BackwardOptions, Edge, Gradients, RuleContext, grad_enabled, joint_grad_up_to, record_several};
use crate::tensor::Tensor;
use crate::trace;

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

/// What [`recurrent`] computes.
#[derive(Clone, Debug)]
pub struct RecurrentOutput {
    /// The hidden states of all steps, `[steps, batch, hidden]`.
    pub out: Tensor,
    /// The hidden state after the last step, `[batch, hidden]`: a view of `out`.
    pub hidden: Tensor,
    /// The memory after the last step, for cells that have one.
    pub memory: Option<Tensor>,
}

/// Which of the inputs were given, so that they can be told apart again.
#[derive(Clone, Copy)]
struct Kind {
    cell: Cell,
    bias: bool,
    hidden: bool,
    memory: bool,
    reverse: bool,
}

impl<'t> Recurrent<'t> {
    fn list(&self) -> SmallVec<[&'t Tensor; 5]> {
        [Some(self.input), Some(self.weight), self.bias, self.hidden, self.memory].into_iter().flatten().collect()
    }

    fn kind(&self) -> Kind {
        let Recurrent { cell, bias, hidden, memory, reverse, .. } = *self;
        Kind { cell, bias: bias.is_some(), hidden: hidden.is_some(), memory: memory.is_some(), reverse }
    }

    fn raw(&self) -> raw::Recurrent<'t> {
        let Recurrent { cell, input, weight, bias, hidden, memory, reverse } = *self;
        let [bias, hidden, memory] = [bias, hidden, memory].map(|tensor| tensor.map(Tensor::raw));
        raw::Recurrent { cell, input: input.raw(), weight: weight.raw(), bias, hidden, memory, reverse }
    }
}

impl Kind {
    fn of(self, inputs: &[Tensor]) -> Recurrent<'_> {
        let mut rest = inputs[2..].iter();
        let mut next = |given: bool| if given { rest.next() } else { None };
        let [bias, hidden, memory] = [next(self.bias), next(self.hidden), next(self.memory)];
        let Kind { cell, reverse, .. } = self;
        Recurrent { cell, input: &inputs[0], weight: &inputs[1], bias, hidden, memory, reverse }
    }
}

/// A recurrent layer over all steps of a sequence, in one direction; the input's part of the gates is a
/// [`linear`] of all steps at once. Names, formulas and the order of the gates are PyTorch's.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::recurrent::{Cell, Recurrent, recurrent}};
///
/// let queue = manager().cpu().queue;
/// let input = Tensor::from_host(&queue, &[1.0f32, 0.0, 0.0], [3, 1, 1])?;
/// let weight = Tensor::from_host(&queue, &[0.5f32], [1, 1])?.with_grad();
/// let layer =
///     Recurrent { cell: Cell::Relu, input: &input, weight: &weight, bias: None, hidden: None, memory: None, reverse: false };
/// let found = recurrent(&layer)?;
/// assert_eq!(found.out.to_host::<f32>()?, [1.0, 0.5, 0.25]);
/// found.hidden.sum((), false)?.backward()?;
/// assert_eq!(weight.grad().unwrap().to_host::<f32>()?, [1.0]); // of weight^2
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn recurrent(layer: &Recurrent<'_>) -> Result<RecurrentOutput> {
    let (inputs, kind) = (layer.list(), layer.kind());
    if let Some(casts) = autocast::enter("recurrent", inputs.iter().copied()) {
        let inputs = inputs.iter().map(|input| casts.of(input)).collect::<Result<SmallVec<[Tensor; 5]>>>()?;
        return recurrent(&kind.of(&inputs));
    }
    let save = grad_enabled() && inputs.iter().any(|input| input.needs_grad());
    let result = raw::recurrent(&layer.raw(), save)?;
    let outputs = [Some(result.out.clone()), Some(result.hidden()?), result.memory()?].into_iter().flatten().collect();
    trace::settings("recurrent", || {
        let cell = match kind.cell {
            Cell::Lstm => "lstm",
            Cell::Gru => "gru",
            Cell::Tanh => "tanh",
            Cell::Relu => "relu",
        };
        [
            ("cell", cell.into()),
            ("bias", kind.bias.into()),
            ("hidden", kind.hidden.into()),
            ("memory", kind.memory.into()),
            ("reverse", kind.reverse.into()),
        ]
    });
    let mut recorded = record_several("recurrent", &inputs, outputs, || {
        Box::new(move |context, upstream| kind.gradients(context, upstream, &result))
    })?;
    let memory = kind.cell.has_memory().then(|| recorded.remove(2));
    Ok(RecurrentOutput { hidden: recorded.remove(1), out: recorded.remove(0), memory })
}

impl Kind {
    fn gradients(
        self,
        context: &RuleContext<'_>,
        upstream: &[Option<Tensor>],
        result: &Recurrence,
    ) -> Result<Gradients> {
        let count = 2 + [self.bias, self.hidden, self.memory].into_iter().filter(|given| *given).count();
        let inputs = (0..count).map(|i| context.input(i)).collect::<Result<SmallVec<[Tensor; 5]>>>()?;
        let layer = self.of(&inputs);
        if grad_enabled() {
            let places: Vec<Edge> =
                inputs.iter().enumerate().map(|(i, t)| if context.wants(i) { t.edge() } else { Edge::None }).collect();
            let outputs = in_steps(&layer)?;
            let roots =
                outputs.iter().zip(upstream).filter_map(|(output, upstream)| Some((output.edge(), upstream.clone()?)));
            let options = BackwardOptions { create_graph: true, ..Default::default() };
            return joint_grad_up_to(roots.collect(), &places, options);
        }
        // Backward reads the result: an error if it was overwritten.
        context.output()?;
        let arrived = |i: usize| upstream.get(i).and_then(Option::as_ref).map(Tensor::raw);
        let arrived = RecurrentUpstream { out: arrived(0), hidden: arrived(1), memory: arrived(2) };
        let found = raw::recurrent_backward(&layer.raw(), result, &arrived)?;
        let mut all: Gradients = smallvec![Some(found.input.clone().into())];
        all.push(context.if_wanted(1, || Ok(found.weight()?.into()))?);
        if self.bias {
            all.push(context.if_wanted(all.len(), || Ok(found.bias()?.into()))?);
        }
        if self.hidden {
            all.push(context.if_wanted(all.len(), || Ok(found.hidden()?.into()))?);
        }
        if self.memory {
            all.push(found.memory()?.map(Tensor::from));
        }
        Ok(all)
    }
}

/// The same step by step with small ops: what second derivatives are taken of.
fn in_steps(layer: &Recurrent<'_>) -> Result<SmallVec<[Tensor; 3]>> {
    let Recurrent { cell, input, weight, bias, reverse, .. } = *layer;
    let (steps, batch, hidden) = (input.shape()[0], input.shape()[1], weight.shape()[1]);
    let given = |state: Option<&Tensor>| match state {
        Some(state) => Ok(state.clone()),
        None => Tensor::from_shape(input.queue(), [batch, hidden], input.dtype()),
    };
    let (mut state, mut memory) = (given(layer.hidden)?, given(layer.memory)?);
    let mut out = Vec::with_capacity(steps);
    for time in 0..steps {
        let part = select(input, 0, if reverse { steps - 1 - time } else { time } as isize)?;
        let own = linear(&state, weight, bias)?;
        state = match cell {
            Cell::Lstm => {
                let gates = split(&add(&part, &own)?, &[hidden; 4], 1)?;
                let kept = mul(&sigmoid(&gates[1])?, &memory)?;
                memory = add(&kept, &mul(&sigmoid(&gates[0])?, &tanh(&gates[2])?)?)?;
                mul(&sigmoid(&gates[3])?, &tanh(&memory)?)?
            }
            Cell::Gru => {
                let (part, own) = (split(&part, &[hidden; 3], 1)?, split(&own, &[hidden; 3], 1)?);
                let gate = |i: usize| sigmoid(&add(&part[i], &own[i])?);
                let candidate = tanh(&add(&part[2], &mul(&gate(0)?, &own[2])?)?)?;
                add(&candidate, &mul(&gate(1)?, &sub(&state, &candidate)?)?)?
            }
            Cell::Tanh => tanh(&add(&part, &own)?)?,
            Cell::Relu => relu(&add(&part, &own)?)?,
        };
        out.push(state.clone());
    }
    if reverse {
        out.reverse();
    }
    let out = stack(&out.iter().collect::<Vec<_>>(), 0)?;
    Ok(if cell.has_memory() { smallvec![out, state, memory] } else { smallvec![out, state] })
}
