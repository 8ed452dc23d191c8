//! Recurrent networks.

use netcl_autograd::ops::dropout::dropout;
use netcl_autograd::ops::elementwise::add;
use netcl_autograd::ops::layout::{cat, reshape, select, split, squeeze, stack, transpose, unsqueeze};
use netcl_autograd::ops::matmul::linear;
use netcl_autograd::ops::recurrent::{gru_cell, lstm_cell, lstm_output};
use netcl_autograd::{DType, Error, Generator, Queue, Result, Tensor, host};

use crate::init::Init;
use crate::module::{Member, MemberMut, Module, Role, print_as_module};
use crate::settings::probability;

/// How an [`LSTM`] or a [`GRU`] is made.
#[derive(Debug)]
pub struct RecurrentOptions<'g> {
    /// The number of layers, each of which reads the results of the one before.
    pub num_layers: usize,
    /// Whether the gates add biases.
    pub bias: bool,
    /// Whether inputs and results are `[batch, length, width]` instead of `[length, batch, width]`.
    pub batch_first: bool,
    /// The probability with which a result of a layer but the last is dropped in training.
    pub dropout: f64,
    /// Whether every layer also reads backwards; the results are joined.
    pub bidirectional: bool,
    /// The parameters' dtype.
    pub dtype: DType,
    /// Where the first weights come from; the process-wide generator where none is given.
    pub generator: Option<&'g mut Generator>,
}

impl Default for RecurrentOptions<'_> {
    fn default() -> Self {
        RecurrentOptions {
            num_layers: 1,
            bias: true,
            batch_first: false,
            dropout: 0.0,
            bidirectional: false,
            dtype: DType::F32,
            generator: None,
        }
    }
}

/// The weights of one layer in one direction.
struct Cell {
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Option<Tensor>,
    bias_hh: Option<Tensor>,
}

/// What both kinds have: weights under PyTorch's names and the order of computation.
struct Recurrent {
    /// Layer after layer, forwards before backwards.
    cells: Vec<Cell>,
    hidden: usize,
    batch_first: bool,
    dropout: f64,
    bidirectional: bool,
    training: bool,
}

/// One step: the state from the input's part of the gates, the state before, and the cell's recurrent weights.
type Step = fn(&Tensor, &[Tensor], &Cell) -> Result<Vec<Tensor>>;

impl Recurrent {
    fn new(
        op: &'static str,
        queue: &Queue,
        inputs: usize,
        hidden: usize,
        gates: usize,
        options: RecurrentOptions<'_>,
    ) -> Result<Recurrent> {
        let RecurrentOptions { num_layers, bias, batch_first, dropout, bidirectional, dtype, mut generator } = options;
        if num_layers == 0 || hidden == 0 {
            let what = format!("{num_layers} layers of {hidden} values compute nothing; use at least 1 of each");
            return Err(Error::argument(op, what));
        }
        probability(op, "dropout", dropout)?;
        let bound = 1.0 / (hidden as f64).sqrt();
        let law = Init::Uniform { low: -bound, high: bound };
        let directions = 1 + usize::from(bidirectional);
        let mut cells = host::with_capacity(op, num_layers.saturating_mul(directions))?;
        for i in 0..num_layers * directions {
            let width = if i < directions { inputs } else { directions * hidden };
            let mut draw = |shape: &[usize]| {
                Ok::<_, Error>(law.tensor(queue, shape, dtype, generator.as_deref_mut())?.with_grad())
            };
            cells.push(Cell {
                weight_ih: draw(&[gates * hidden, width])?,
                weight_hh: draw(&[gates * hidden, hidden])?,
                bias_ih: bias.then(|| draw(&[gates * hidden])).transpose()?,
                bias_hh: bias.then(|| draw(&[gates * hidden])).transpose()?,
            });
        }
        Ok(Recurrent { cells, hidden, batch_first, dropout, bidirectional, training: true })
    }

    /// All results, and the last states of each kind (`[layers * directions, batch, hidden]`).
    fn run(
        &self,
        op: &'static str,
        input: &Tensor,
        initial: &[Option<&Tensor>],
        step: Step,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        if input.ndim() == 2 {
            let raised = |state: &Option<&Tensor>| state.map(|state| unsqueeze(state, 1)).transpose();
            let states = initial.iter().map(raised).collect::<Result<Vec<_>>>()?;
            let states: Vec<Option<&Tensor>> = states.iter().map(Option::as_ref).collect();
            let axis = isize::from(!self.batch_first);
            let (out, last) = self.run(op, &unsqueeze(input, axis)?, &states, step)?;
            let last = last.iter().map(|state| squeeze(state, &[1])).collect::<Result<_>>()?;
            return Ok((squeeze(&out, &[axis])?, last));
        }
        let &[first, second, _] = &input.shape()[..] else {
            let why = "it takes (length, batch, width), or (batch, length, width) with batch_first, or (length, width)";
            return Err(Error::shape(op, input.shape(), why));
        };
        let (length, batch) = if self.batch_first { (second, first) } else { (first, second) };
        if length == 0 {
            let why = "a sequence needs at least one element";
            return Err(Error::shape(op, input.shape(), why));
        }
        for state in initial.iter().flatten() {
            if state.shape()[..] != [self.cells.len(), batch, self.hidden] {
                let wanted = (self.cells.len(), batch, self.hidden);
                let why = format!("initial states are (layers * directions, batch, hidden), here {wanted:?}");
                return Err(Error::shape(op, state.shape(), why));
            }
        }
        let mut x = if self.batch_first { transpose(input, 0, 1)? } else { input.clone() };
        let directions = self.directions();
        let mut last: Vec<Vec<Tensor>> = vec![Vec::new(); initial.len()];
        for (layer, cells) in self.cells.chunks(directions).enumerate() {
            if layer > 0 && self.training && self.dropout > 0.0 {
                x = dropout(&x, self.dropout, None)?;
            }
            let mut both = Vec::with_capacity(directions);
            for (direction, cell) in cells.iter().enumerate() {
                let start = |state: &Option<&Tensor>| match state {
                    Some(state) => select(state, 0, (layer * directions + direction) as isize),
                    None => Tensor::from_shape(x.queue(), [batch, self.hidden], x.dtype()),
                };
                let mut state = initial.iter().map(start).collect::<Result<Vec<_>>>()?;
                // The input's part of all gates at once: one large product instead of many small ones.
                let mut parts = steps(&linear(&x, &cell.weight_ih, cell.bias_ih.as_ref())?)?;
                if direction == 1 {
                    parts.reverse();
                }
                let mut results = Vec::with_capacity(length);
                for part in &parts {
                    state = step(part, &state, cell)?;
                    results.push(state[0].clone());
                }
                if direction == 1 {
                    results.reverse();
                }
                last.iter_mut().zip(state).for_each(|(all, state)| all.push(state));
                both.push(stack(&results.iter().collect::<Vec<_>>(), 0)?);
            }
            x = match &both[..] {
                [forwards, backwards] => cat(&[forwards, backwards], 2)?,
                _ => both.remove(0),
            };
        }
        let out = if self.batch_first { transpose(&x, 0, 1)? } else { x };
        let last = last.iter().map(|all| stack(&all.iter().collect::<Vec<_>>(), 0)).collect::<Result<_>>()?;
        Ok((out, last))
    }

    fn directions(&self) -> usize {
        1 + usize::from(self.bidirectional)
    }

    /// The name of a weight: `weight_ih_l0`, `bias_hh_l1_reverse`.
    fn name(&self, kind: &str, cell: usize) -> String {
        let directions = self.directions();
        let suffix = if cell % directions == 1 { "_reverse" } else { "" };
        format!("{kind}_l{}{suffix}", cell / directions)
    }

    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        for (i, cell) in self.cells.iter().enumerate() {
            see(&self.name("weight_ih", i), Member::Parameter(&cell.weight_ih));
            see(&self.name("weight_hh", i), Member::Parameter(&cell.weight_hh));
            for (kind, bias) in [("bias_ih", &cell.bias_ih), ("bias_hh", &cell.bias_hh)] {
                if let Some(bias) = bias {
                    see(&self.name(kind, i), Member::Parameter(bias));
                }
            }
        }
        see("training", Member::Mode(self.training));
    }

    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        let names: Vec<[String; 4]> = (0..self.cells.len())
            .map(|i| ["weight_ih", "weight_hh", "bias_ih", "bias_hh"].map(|kind| self.name(kind, i)))
            .collect();
        for (cell, [weight_ih, weight_hh, bias_ih, bias_hh]) in self.cells.iter_mut().zip(&names) {
            see(weight_ih, MemberMut::Tensor(Role::Parameter, &mut cell.weight_ih));
            see(weight_hh, MemberMut::Tensor(Role::Parameter, &mut cell.weight_hh));
            for (name, bias) in [(bias_ih, &mut cell.bias_ih), (bias_hh, &mut cell.bias_hh)] {
                if let Some(bias) = bias {
                    see(name, MemberMut::Tensor(Role::Parameter, bias));
                }
            }
        }
        see("training", MemberMut::Mode(&mut self.training));
    }

    fn arguments(&self) -> String {
        let mut text = format!("input_size={}, hidden_size={}", self.cells[0].weight_ih.shape()[1], self.hidden);
        text += &format!(", num_layers={}", self.cells.len() / self.directions());
        text += &format!(", bias={}, batch_first={}", self.cells[0].bias_ih.is_some(), self.batch_first);
        text + &format!(", dropout={}, bidirectional={}", self.dropout, self.bidirectional)
    }
}

/// The elements of the first axis. It is halved again and again: the gradient of a view is as large as what it is a view of,
/// so that views of the whole would cost the square of the length.
fn steps(x: &Tensor) -> Result<Vec<Tensor>> {
    let length = x.shape()[0];
    if length <= 1 {
        return Ok(vec![reshape(x, &x.shape()[1..])?; length]);
    }
    let mut all = Vec::with_capacity(length);
    for half in split(x, &[length / 2, length - length / 2], 0)? {
        all.extend(steps(&half)?);
    }
    Ok(all)
}

fn lstm_step(part: &Tensor, state: &[Tensor], cell: &Cell) -> Result<Vec<Tensor>> {
    let gates = add(part, &linear(&state[0], &cell.weight_hh, cell.bias_hh.as_ref())?)?;
    let parts = split(&gates, &[state[0].shape()[1]; 4], 1)?;
    let memory = lstm_cell(&parts[0], &parts[1], &parts[2], &state[1])?;
    Ok(vec![lstm_output(&parts[3], &memory)?, memory])
}

fn gru_step(part: &Tensor, state: &[Tensor], cell: &Cell) -> Result<Vec<Tensor>> {
    let hidden = state[0].shape()[1];
    let own = linear(&state[0], &cell.weight_hh, cell.bias_hh.as_ref())?;
    // The gates are sums; the candidate's parts stay apart, because the reset gate multiplies one of them.
    let (x, y) = (split(part, &[2 * hidden, hidden], 1)?, split(&own, &[2 * hidden, hidden], 1)?);
    let gates = split(&add(&x[0], &y[0])?, &[hidden; 2], 1)?;
    Ok(vec![gru_cell(&gates[0], &gates[1], &x[1], &y[1], &state[0])?])
}

macro_rules! recurrent {
    ($($(#[$doc:meta])* $name:ident, $gates:literal;)*) => {$(
        $(#[$doc])*
        pub struct $name {
            inner: Recurrent,
        }

        impl $name {
            /// One float32 layer with biases.
            pub fn new(queue: &Queue, input_size: usize, hidden_size: usize) -> Result<$name> {
                $name::new_with(queue, input_size, hidden_size, RecurrentOptions::default())
            }

            /// Several layers, in both directions, with the batch first, with dropout, without biases, of another dtype, or from a
            /// generator of its own. All weights start uniform between plus and minus `1 / sqrt(hidden_size)`.
            ///
            /// # Errors
            /// Without layers or hidden values, or if the dropout is no probability.
            pub fn new_with(
                queue: &Queue,
                input_size: usize,
                hidden_size: usize,
                options: RecurrentOptions<'_>,
            ) -> Result<$name> {
                let inner = Recurrent::new(stringify!($name), queue, input_size, hidden_size, $gates, options)?;
                Ok($name { inner })
            }

            /// The width of the input.
            pub fn input_size(&self) -> usize {
                self.inner.cells[0].weight_ih.shape()[1]
            }

            /// The length of a state.
            pub fn hidden_size(&self) -> usize {
                self.inner.hidden
            }

            /// The number of layers.
            pub fn num_layers(&self) -> usize {
                self.inner.cells.len() / self.inner.directions()
            }

            /// Whether every layer also reads backwards.
            pub fn bidirectional(&self) -> bool {
                self.inner.bidirectional
            }

            /// Whether inputs are `[batch, length, width]`.
            pub fn batch_first(&self) -> bool {
                self.inner.batch_first
            }
        }

        impl Module for $name {
            /// The results of all steps, from states of zeros.
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                Ok(self.run(input, None)?.0)
            }

            fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
                self.inner.visit(see);
            }

            fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
                self.inner.visit_mut(see);
            }

            fn arguments(&self) -> String {
                self.inner.arguments()
            }
        }

        print_as_module!($name);
    )*};
}

recurrent! {
    /// Long short-term memory (Hochreiter and Schmidhuber, 1997) over `[length, batch, width]`, or a sequence
    /// `[length, width]`. Names, layouts and the order of the gates (input, forget, candidate, output) are PyTorch's.
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::{LSTM, Module, RecurrentOptions};
    ///
    /// let queue = manager().cpu().queue;
    /// let options = RecurrentOptions { num_layers: 2, bidirectional: true, ..Default::default() };
    /// let lstm = LSTM::new_with(&queue, 3, 4, options)?;
    /// let x = Tensor::from_host(&queue, &[0.5f32; 30], [5, 2, 3])?;
    /// let (results, (h, c)) = lstm.run(&x, None)?;
    /// assert_eq!(results.shape()[..], [5, 2, 8]); // both directions
    /// assert_eq!((&h.shape()[..], &c.shape()[..]), (&[4, 2, 4][..], &[4, 2, 4][..])); // layers * directions
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    LSTM, 4;
    /// Gated recurrent units (Cho et al., 2014) over `[length, batch, width]`, or a sequence `[length, width]`. Names, layouts,
    /// the order of the gates (reset, update, candidate) and the place of the candidate's bias are PyTorch's.
    GRU, 3;
}

impl LSTM {
    /// The results of all steps, and the last states and memories, from given ones or from zeros.
    ///
    /// States and memories are `[layers * directions, batch, hidden]`.
    pub fn run(&self, input: &Tensor, initial: Option<(&Tensor, &Tensor)>) -> Result<(Tensor, (Tensor, Tensor))> {
        let initial = [initial.map(|(h, _)| h), initial.map(|(_, c)| c)];
        let (out, mut last) = self.inner.run("LSTM", input, &initial, lstm_step)?;
        let memory = last.remove(1);
        Ok((out, (last.remove(0), memory)))
    }
}

impl GRU {
    /// The results of all steps, and the last states (`[layers * directions, batch, hidden]`), from given ones or from zeros.
    pub fn run(&self, input: &Tensor, initial: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let (out, mut last) = self.inner.run("GRU", input, &[initial], gru_step)?;
        Ok((out, last.remove(0)))
    }
}
