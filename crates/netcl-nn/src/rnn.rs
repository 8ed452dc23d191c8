//! Recurrent layers and cells. What they compute is in `rnn/run.rs`.

mod run;

use netcl_autograd::ops::recurrent::Cell;
use netcl_autograd::{Error, Queue, Result, Tensor, host};

use crate::Module;
use crate::config::Build;
use crate::init::Init;
use crate::module::{Member, MemberMut, Role, Tensors};
use crate::settings::{Settings, depth, probability};
use run::{Network, Results, States, Weights};

crate::choices! {
    /// What an [`RNN`] or an [`RNNCell`] applies to the sum of its parts.
    pub enum Nonlinearity {
        /// The hyperbolic tangent.
        #[default]
        Tanh = "tanh",
        /// `max(x, 0)`
        Relu = "relu",
    }
}

/// The settings of networks and of cells; those of plain cells come with a nonlinearity, where PyTorch has it.
macro_rules! options {
    ($($network:ident, $cell:ident, $text:literal $(, $nonlinearity:ident)?;)*) => {$(
        #[doc = concat!("How ", $text, " is made.")]
        #[derive(Clone, Debug, Settings)]
        #[settings(check = $network::check)]
        pub struct $network {
            /// The width of the input.
            #[setting(least = 1)]
            pub input_size: usize,
            /// The length of a state.
            #[setting(least = 1)]
            pub hidden_size: usize,
            /// The number of layers, each of which reads the results of the one before.
            #[setting(default = 1, least = 1)]
            pub num_layers: usize,
            $(
                /// What is applied to the sum.
                #[setting(default)]
                pub $nonlinearity: Nonlinearity,
            )?
            /// Whether the gates add biases.
            #[setting(default = true)]
            pub bias: bool,
            /// Whether inputs and results are `[batch, length, width]` instead of `[length, batch, width]`.
            #[setting(default = false)]
            pub batch_first: bool,
            /// The probability with which a result of a layer but the last is dropped in training.
            #[setting(default = 0.0)]
            pub dropout: f64,
            /// Whether every layer also reads backwards; the results are joined.
            #[setting(default = false)]
            pub bidirectional: bool,
        }

        impl $network {
            fn check(&self, layer: &'static str) -> Result<()> {
                depth(layer, "num_layers", self.num_layers)?;
                probability(layer, "dropout", self.dropout)
            }

            fn directions(&self) -> usize {
                1 + usize::from(self.bidirectional)
            }
        }

        #[doc = concat!("How one step of ", $text, " is made.")]
        #[derive(Clone, Debug, Settings)]
        pub struct $cell {
            /// The width of the input.
            #[setting(least = 1)]
            pub input_size: usize,
            /// The length of a state.
            #[setting(least = 1)]
            pub hidden_size: usize,
            /// Whether the gates add biases.
            #[setting(default = true)]
            pub bias: bool,
            $(
                /// What is applied to the sum.
                #[setting(default)]
                pub $nonlinearity: Nonlinearity,
            )?
        }
    )*};
}

options! {
    RecurrentOptions, RecurrentCellOptions, "an [`LSTM`] or a [`GRU`]";
    RNNOptions, RNNCellOptions, "an [`RNN`]", nonlinearity;
}

/// The cell of a layer with these settings.
trait HasCell {
    fn cell(&self) -> Cell;
}

macro_rules! has_cell {
    ($($layer:ident: $cell:expr;)*) => {$(
        impl HasCell for $layer {
            fn cell(&self) -> Cell {
                let choose: fn(&$layer) -> Cell = $cell;
                choose(self)
            }
        }
    )*};
}

fn plain(nonlinearity: Nonlinearity) -> Cell {
    match nonlinearity {
        Nonlinearity::Tanh => Cell::Tanh,
        Nonlinearity::Relu => Cell::Relu,
    }
}

has_cell! {
    LSTM: |_| Cell::Lstm;
    LSTMCell: |_| Cell::Lstm;
    GRU: |_| Cell::Gru;
    GRUCell: |_| Cell::Gru;
    RNN: |layer| plain(layer.settings.nonlinearity);
    RNNCell: |layer| plain(layer.settings.nonlinearity);
}

impl Weights {
    /// Uniform between plus and minus `1 / sqrt(hidden)`.
    fn make(build: &mut Build<'_>, gates: usize, width: usize, hidden: usize, bias: bool) -> Result<Weights> {
        let bound = 1.0 / (hidden as f64).sqrt();
        let mut draw = |shape: &[usize]| build.parameter(Init::Uniform { low: -bound, high: bound }, shape);
        // Too many for any memory are refused where the tensor is made.
        let rows = hidden.saturating_mul(gates);
        Ok(Weights {
            weight_ih: draw(&[rows, width])?,
            weight_hh: draw(&[rows, hidden])?,
            bias_ih: bias.then(|| draw(&[rows])).transpose()?,
            bias_hh: bias.then(|| draw(&[rows])).transpose()?,
        })
    }

    fn see_all<'m>(&'m self, suffix: &str, role: Role, see: &mut dyn FnMut(&str, Member<'m>)) {
        self.weight_ih.see(&format!("weight_ih{suffix}"), role, see);
        self.weight_hh.see(&format!("weight_hh{suffix}"), role, see);
        self.bias_ih.see(&format!("bias_ih{suffix}"), role, see);
        self.bias_hh.see(&format!("bias_hh{suffix}"), role, see);
    }

    fn change_all<'m>(&'m mut self, suffix: &str, role: Role, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        self.weight_ih.change(&format!("weight_ih{suffix}"), role, see);
        self.weight_hh.change(&format!("weight_hh{suffix}"), role, see);
        self.bias_ih.change(&format!("bias_ih{suffix}"), role, see);
        self.bias_hh.change(&format!("bias_hh{suffix}"), role, see);
    }
}

/// The weights of a cell, under PyTorch's names.
impl Tensors for Weights {
    fn see<'m>(&'m self, _name: &str, role: Role, see: &mut dyn FnMut(&str, Member<'m>)) {
        self.see_all("", role, see);
    }
    fn change<'m>(&'m mut self, _name: &str, role: Role, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        self.change_all("", role, see);
    }
}

/// The weights of layer after layer, forwards before backwards, under PyTorch's names: `weight_ih_l0`, `bias_hh_l1_reverse`.
struct Layers {
    weights: Vec<Weights>,
    directions: usize,
}

impl Layers {
    fn suffix(directions: usize, at: usize) -> String {
        format!("_l{}{}", at / directions, if at % directions == 1 { "_reverse" } else { "" })
    }
}

impl Tensors for Layers {
    fn see<'m>(&'m self, _name: &str, role: Role, see: &mut dyn FnMut(&str, Member<'m>)) {
        for (i, weights) in self.weights.iter().enumerate() {
            weights.see_all(&Layers::suffix(self.directions, i), role, see);
        }
    }
    fn change<'m>(&'m mut self, _name: &str, role: Role, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        for (i, weights) in self.weights.iter_mut().enumerate() {
            weights.change_all(&Layers::suffix(self.directions, i), role, see);
        }
    }
}

macro_rules! networks {
    ($($(#[$doc:meta])* $name:ident($options:ident), $gates:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Module)]
        pub struct $name {
            #[module(parameter)]
            layers: Layers,
            #[module(settings)]
            settings: $options,
            training: bool,
        }

        impl $name {
            /// One float32 layer with biases.
            pub fn new(queue: &Queue, input_size: usize, hidden_size: usize) -> Result<$name> {
                $name::new_with(queue, $options::new(input_size, hidden_size))
            }

            fn make(build: &mut Build<'_>, settings: $options) -> Result<$name> {
                let $options { input_size, hidden_size: hidden, num_layers, bias, .. } = settings;
                let directions = settings.directions();
                let mut weights = host::with_capacity(stringify!($name), num_layers * directions)?;
                for i in 0..num_layers * directions {
                    let width = if i < directions { input_size } else { hidden.saturating_mul(directions) };
                    weights.push(Weights::make(build, $gates, width, hidden, bias)?);
                }
                Ok($name { layers: Layers { weights, directions }, settings, training: true })
            }

            /// The results of all steps, from states of zeros.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                crate::scope::run(self, || {
                    Ok(self.states(input, States::default())?.out)
                })
            }

            fn states(&self, input: &Tensor, states: States<'_>) -> Result<Results> {
                let $options { input_size, batch_first, dropout, .. } = self.settings;
                let network = Network {
                    op: stringify!($name),
                    cell: self.cell(),
                    weights: &self.layers.weights,
                    directions: self.layers.directions,
                    input_size,
                    batch_first,
                    dropout: if self.training { dropout } else { 0.0 },
                };
                network.run(input, states)
            }
        }
    )*};
}

networks! {
    /// Long short-term memory (Hochreiter and Schmidhuber, 1997) over `[length, batch, width]`, or a sequence
    /// `[length, width]`. Names, layouts and the order of the gates (input, forget, candidate, output) are PyTorch's.
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::{LSTM, Module, RecurrentOptions};
    ///
    /// let queue = manager().cpu().queue;
    /// let options = RecurrentOptions { num_layers: 2, bidirectional: true, ..RecurrentOptions::new(3, 4) };
    /// let lstm = LSTM::new_with(&queue, options)?;
    /// let x = Tensor::from_host(&queue, &[0.5f32; 30], [5, 2, 3])?;
    /// let (results, (h, c)) = lstm.run(&x, None)?;
    /// assert_eq!(results.shape()[..], [5, 2, 8]); // both directions
    /// assert_eq!((&h.shape()[..], &c.shape()[..]), (&[4, 2, 4][..], &[4, 2, 4][..])); // layers * directions
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    LSTM(RecurrentOptions), 4;
    /// Gated recurrent units (Cho et al., 2014) over `[length, batch, width]`, or a sequence `[length, width]`. Names, layouts,
    /// the order of the gates (reset, update, candidate) and the place of the candidate's bias are PyTorch's.
    GRU(RecurrentOptions), 3;
    /// `tanh` or `relu` of the input's part plus the state's (Elman, 1990) over `[length, batch, width]`, or a sequence
    /// `[length, width]`. Names and layouts are PyTorch's.
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::{Module, Nonlinearity, RNN, RNNOptions};
    ///
    /// let queue = manager().cpu().queue;
    /// let options = RNNOptions { nonlinearity: Nonlinearity::Relu, ..RNNOptions::new(3, 4) };
    /// let rnn = RNN::new_with(&queue, options)?;
    /// let (results, h) = rnn.run(&Tensor::from_host(&queue, &[0.5f32; 30], [5, 2, 3])?, None)?;
    /// assert_eq!((&results.shape()[..], &h.shape()[..]), (&[5, 2, 4][..], &[1, 2, 4][..]));
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    RNN(RNNOptions), 1;
}

macro_rules! cells {
    ($($(#[$doc:meta])* $name:ident($options:ident), $gates:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Module)]
        pub struct $name {
            #[module(parameter)]
            weights: Weights,
            #[module(settings)]
            settings: $options,
        }

        impl $name {
            /// A float32 cell with biases.
            pub fn new(queue: &Queue, input_size: usize, hidden_size: usize) -> Result<$name> {
                $name::new_with(queue, $options::new(input_size, hidden_size))
            }

            fn make(build: &mut Build<'_>, settings: $options) -> Result<$name> {
                let $options { input_size, hidden_size, bias, .. } = settings;
                Ok($name { weights: Weights::make(build, $gates, input_size, hidden_size, bias)?, settings })
            }

            /// The next hidden state, from states of zeros.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                crate::scope::run(self, || {
                    Ok(self.step(input, States::default())?.0)
                })
            }

            fn step(&self, input: &Tensor, states: States<'_>) -> Result<(Tensor, Option<Tensor>)> {
                self.weights.step(stringify!($name), self.cell(), input, states)
            }
        }
    )*};
}

cells! {
    /// One step of an [`LSTM`] over `[batch, width]`, or over a single sample `[width]`.
    LSTMCell(RecurrentCellOptions), 4;
    /// One step of a [`GRU`] over `[batch, width]`, or over a single sample `[width]`.
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::GRUCell;
    ///
    /// let queue = manager().cpu().queue;
    /// let cell = GRUCell::new(&queue, 3, 4)?;
    /// let x = Tensor::from_host(&queue, &[0.5f32; 6], [2, 3])?;
    /// let h = cell.run(&x, None)?;
    /// assert_eq!(cell.run(&x, Some(&h))?.shape()[..], [2, 4]);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    GRUCell(RecurrentCellOptions), 3;
    /// One step of an [`RNN`] over `[batch, width]`, or over a single sample `[width]`.
    RNNCell(RNNCellOptions), 1;
}

impl LSTM {
    /// The results of all steps, and the last states and memories, from given ones or from zeros.
    ///
    /// States and memories are `[layers * directions, batch, hidden]`.
    pub fn run(&self, input: &Tensor, initial: Option<(&Tensor, &Tensor)>) -> Result<(Tensor, (Tensor, Tensor))> {
        let states = States { hidden: initial.map(|(h, _)| h), memory: initial.map(|(_, c)| c) };
        let Results { out, hidden, memory } = self.states(input, states)?;
        Ok((out, (hidden, with_memory("LSTM", memory)?)))
    }
}

impl LSTMCell {
    /// The next state and memory (`[batch, hidden]`), from given ones or from zeros.
    pub fn run(&self, input: &Tensor, initial: Option<(&Tensor, &Tensor)>) -> Result<(Tensor, Tensor)> {
        let states = States { hidden: initial.map(|(h, _)| h), memory: initial.map(|(_, c)| c) };
        let (hidden, memory) = self.step(input, states)?;
        Ok((hidden, with_memory("LSTMCell", memory)?))
    }
}

/// The memory that every LSTM has.
fn with_memory(op: &'static str, memory: Option<Tensor>) -> Result<Tensor> {
    memory.ok_or_else(|| Error::argument(op, "its cell has no memory"))
}

/// Networks and cells whose state is one tensor.
macro_rules! without_memory {
    ($($network:ident, $cell:ident;)*) => {$(
        impl $network {
            /// The results of all steps, and the last states (`[layers * directions, batch, hidden]`), from given ones or from
            /// zeros.
            pub fn run(&self, input: &Tensor, initial: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
                let Results { out, hidden, .. } = self.states(input, States { hidden: initial, memory: None })?;
                Ok((out, hidden))
            }
        }

        impl $cell {
            /// The next state (`[batch, hidden]`), from a given one or from zeros.
            pub fn run(&self, input: &Tensor, initial: Option<&Tensor>) -> Result<Tensor> {
                Ok(self.step(input, States { hidden: initial, memory: None })?.0)
            }
        }
    )*};
}

without_memory! {
    GRU, GRUCell;
    RNN, RNNCell;
}
