//! Recurrent networks of several layers and directions: what is computed from what, without any layer's settings.

use netcl_autograd::ops::dropout::dropout;
use netcl_autograd::ops::layout::{cat, select, squeeze, stack, transpose, unsqueeze};
use netcl_autograd::ops::matmul::linear;
use netcl_autograd::ops::recurrent::{Cell, Recurrent, RecurrentOutput, recurrent};
use netcl_autograd::{Error, Result, Tensor};

/// The weights of one layer in one direction.
pub(super) struct Weights {
    pub(super) weight_ih: Tensor,
    pub(super) weight_hh: Tensor,
    pub(super) bias_ih: Option<Tensor>,
    pub(super) bias_hh: Option<Tensor>,
}

/// The states between steps; `None` are zeros, or a memory that the cell does not have.
#[derive(Clone, Copy, Default)]
pub(super) struct States<'t> {
    pub(super) hidden: Option<&'t Tensor>,
    pub(super) memory: Option<&'t Tensor>,
}

impl States<'_> {
    /// A view of each, and a closure's result for the views.
    fn with<R>(self, view: impl Fn(&Tensor) -> Result<Tensor>, run: impl FnOnce(States<'_>) -> Result<R>) -> Result<R> {
        let [hidden, memory] = [self.hidden, self.memory].map(|state| state.map(&view).transpose());
        let (hidden, memory) = (hidden?, memory?);
        run(States { hidden: hidden.as_ref(), memory: memory.as_ref() })
    }
}

impl Weights {
    /// All steps of `[length, batch, width]`, the input's part of the gates in one product.
    pub(super) fn walk(&self, cell: Cell, x: &Tensor, states: States<'_>, reverse: bool) -> Result<RecurrentOutput> {
        let input = linear(x, &self.weight_ih, self.bias_ih.as_ref())?;
        let States { hidden, memory } = states;
        let (weight, bias) = (&self.weight_hh, self.bias_hh.as_ref());
        recurrent(&Recurrent { cell, input: &input, weight, bias, hidden, memory, reverse })
    }

    /// One step of `[batch, width]`, or of a single sample; the next states.
    pub(super) fn step(
        &self,
        op: &'static str,
        cell: Cell,
        x: &Tensor,
        states: States<'_>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        if x.ndim() == 1 {
            let (hidden, memory) =
                states.with(|state| unsqueeze(state, 0), |states| self.step(op, cell, &unsqueeze(x, 0)?, states))?;
            return Ok((squeeze(&hidden, &[0])?, memory.map(|memory| squeeze(&memory, &[0])).transpose()?));
        }
        let &[batch, _] = &x.shape()[..] else {
            return Err(Error::shape(op, x.shape(), "it takes (batch, width), or (width,)"));
        };
        check_states(op, states, &[batch, self.weight_hh.shape()[1]], "batch, hidden")?;
        let found = self.walk(cell, &unsqueeze(x, 0)?, states, false)?;
        Ok((found.hidden, found.memory))
    }
}

/// A network: its layers, one after the other, forwards before backwards.
pub(super) struct Network<'w> {
    pub(super) op: &'static str,
    pub(super) cell: Cell,
    pub(super) weights: &'w [Weights],
    pub(super) directions: usize,
    pub(super) input_size: usize,
    pub(super) batch_first: bool,
    /// The probability with which a result of a layer but the last is dropped.
    pub(super) dropout: f64,
}

/// What a network computes; states are `[layers * directions, batch, hidden]`.
pub(super) struct Results {
    pub(super) out: Tensor,
    pub(super) hidden: Tensor,
    pub(super) memory: Option<Tensor>,
}

impl Network<'_> {
    /// All results and the last states, from given states or zeros.
    pub(super) fn run(&self, input: &Tensor, states: States<'_>) -> Result<Results> {
        let &Network { op, cell, weights, directions, batch_first, .. } = self;
        if input.ndim() == 2 {
            let axis = isize::from(!batch_first);
            let raised = unsqueeze(input, axis)?;
            let found = states.with(|state| unsqueeze(state, 1), |states| self.run(&raised, states))?;
            let memory = found.memory.map(|memory| squeeze(&memory, &[1])).transpose()?;
            return Ok(Results { out: squeeze(&found.out, &[axis])?, hidden: squeeze(&found.hidden, &[1])?, memory });
        }
        let &[first, second, width] = &input.shape()[..] else { return Err(self.takes(input)) };
        if width != self.input_size {
            return Err(self.takes(input));
        }
        let (length, batch) = if batch_first { (second, first) } else { (first, second) };
        if length == 0 {
            return Err(Error::argument(op, format!("the sequence is empty; the input has shape {}", input.shape())));
        }
        let hidden = weights.first().map_or(0, |weights| weights.weight_hh.shape()[1]);
        check_states(op, states, &[weights.len(), batch, hidden], "layers * directions, batch, hidden")?;
        let mut x = if batch_first { transpose(input, 0, 1)? } else { input.clone() };
        let (mut last_hidden, mut last_memory) = (Vec::new(), Vec::new());
        for (layer, pair) in weights.chunks(directions).enumerate() {
            if layer > 0 && self.dropout > 0.0 {
                x = dropout(&x, self.dropout, None)?;
            }
            let mut both = Vec::with_capacity(directions);
            for (direction, weights) in pair.iter().enumerate() {
                let at = (layer * directions + direction) as isize;
                let found = states
                    .with(|state| select(state, 0, at), |states| weights.walk(cell, &x, states, direction == 1))?;
                both.push(found.out);
                last_hidden.push(found.hidden);
                last_memory.extend(found.memory);
            }
            x = match &both[..] {
                [forwards, backwards] => cat(&[forwards, backwards], 2)?,
                _ => both.remove(0),
            };
        }
        let out = if batch_first { transpose(&x, 0, 1)? } else { x };
        let joined = |all: &[Tensor]| stack(&all.iter().collect::<Vec<_>>(), 0);
        let memory = (!last_memory.is_empty()).then(|| joined(&last_memory)).transpose()?;
        Ok(Results { out, hidden: joined(&last_hidden)?, memory })
    }
}

impl Network<'_> {
    fn takes(&self, input: &Tensor) -> Error {
        let &Network { op, input_size: width, batch_first, .. } = self;
        let axes = if batch_first { "batch, length" } else { "length, batch" };
        Error::input(format!("{op}(input_size={width})"), format!("({axes}, {width})"), input.shape())
    }
}

fn check_states(op: &'static str, states: States<'_>, wanted: &[usize], axes: &str) -> Result<()> {
    let wrong = [states.hidden, states.memory].into_iter().flatten().find(|state| state.shape()[..] != *wanted);
    let Some(state) = wrong else { return Ok(()) };
    let wanted = wanted.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Err(Error::argument(op, format!("a first state has shape {}; it must be ({wanted}): {axes}", state.shape())))
}
