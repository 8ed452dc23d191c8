//! The cells: what one hidden element computes from the sums of the products, forwards and backwards, as expressions.
//!
//! Both backends compile them, so that a formula stands here and nowhere else.

use netcl_core::kernels::expr::{Expr, Graph, Val};

/// What a recurrent layer does at every step. Formulas and the order of the gates are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// Long short-term memory: input, forget, candidate and output gates, and a memory beside the hidden state.
    Lstm,
    /// Gated recurrent unit: reset, update and candidate gates. The reset gate multiplies `weight h + bias` of the candidate.
    Gru,
    /// `tanh(input + weight h + bias)`
    Tanh,
    /// `relu(input + weight h + bias)`
    Relu,
}

impl Cell {
    /// All of them.
    pub const ALL: [Cell; 4] = [Cell::Lstm, Cell::Gru, Cell::Tanh, Cell::Relu];

    /// How many blocks of `hidden` rows the weight has.
    pub const fn gates(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::Gru => 3,
            Cell::Tanh | Cell::Relu => 1,
        }
    }

    /// Whether there is a memory beside the hidden state.
    pub const fn has_memory(self) -> bool {
        matches!(self, Cell::Lstm)
    }

    /// How many values of each hidden element backward wants to see again, beside the states.
    pub(super) const fn saved(self) -> usize {
        match self {
            Cell::Lstm | Cell::Gru => 4,
            Cell::Tanh | Cell::Relu => 0,
        }
    }

    /// Whether the gates' gradients differ between the input's part and the recurrent one: the reset gate lies between them.
    pub(super) const fn parts_differ(self) -> bool {
        matches!(self, Cell::Gru)
    }

    /// Whether a part of the state's gradient goes round the weights.
    pub(super) const fn carries(self) -> bool {
        matches!(self, Cell::Lstm | Cell::Gru)
    }

    /// A step forwards.
    ///
    /// Inputs: for each gate the recurrent sum, then for each the input's part, then for each the bias; the state before (the memory, or
    /// the hidden state). Outputs: the hidden state, what is saved (with `save`), the memory.
    pub(super) fn forward(self, save: bool) -> Expr {
        let g = Graph::new();
        let n = self.gates();
        let sum = |i: usize| g.input(i) + g.input(2 * n + i);
        let gate = |i: usize| sum(i) + g.input(n + i);
        let before = g.input(3 * n);
        let (hidden, saved, memory): (Val<'_>, Vec<Val<'_>>, Option<Val<'_>>) = match self {
            Cell::Lstm => {
                let (i, f, c, o) = (gate(0).sigmoid(), gate(1).sigmoid(), gate(2).tanh(), gate(3).sigmoid());
                let memory = f * before + i * c;
                (o * memory.tanh(), vec![i, f, c, o], Some(memory))
            }
            Cell::Gru => {
                let (r, z, own) = (gate(0).sigmoid(), gate(1).sigmoid(), sum(2));
                let candidate = (g.input(n + 2) + r * own).tanh();
                (candidate + z * (before - candidate), vec![r, z, candidate, own], None)
            }
            Cell::Tanh => (gate(0).tanh(), vec![], None),
            Cell::Relu => (gate(0).relu(), vec![], None),
        };
        let saved = if save { saved } else { vec![] };
        let outputs: Vec<Val<'_>> = [hidden].into_iter().chain(saved).chain(memory).collect();
        g.finish_with(&outputs, 3 * n + 1, 0)
    }

    /// A step backwards.
    ///
    /// Inputs: the hidden state's gradient through the weights and from outside, what goes round the weights, the state before, the
    /// state of this step (the memory, or the hidden state), what was saved. Outputs: the gates' gradients of the input's part, where
    /// the parts differ those of the recurrent part, where there is one the next value to go round the weights.
    pub(super) fn backward(self) -> Expr {
        let g = Graph::new();
        let [through, outside, carried, before, now] = [0, 1, 2, 3, 4].map(|i| g.input(i));
        let [a, b, c, d] = [5, 6, 7, 8].map(|i| g.input(i));
        let grad = through + outside;
        let outputs = match self {
            Cell::Lstm => {
                let (i, f, c, o, memory) = (a, b, c, d, now.tanh());
                let grad_memory = carried + grad * o * tanh_slope(memory);
                vec![
                    grad_memory * c * sigmoid_slope(i),
                    grad_memory * before * sigmoid_slope(f),
                    grad_memory * i * tanh_slope(c),
                    grad * memory * sigmoid_slope(o),
                    grad_memory * f,
                ]
            }
            Cell::Gru => {
                let (r, z, candidate, own) = (a, b, c, d);
                let grad = grad + carried;
                let grad_candidate = grad * (1.0 - z) * tanh_slope(candidate);
                let reset = grad_candidate * own * sigmoid_slope(r);
                let update = grad * (before - candidate) * sigmoid_slope(z);
                vec![reset, update, grad_candidate, reset, update, grad_candidate * r, grad * z]
            }
            Cell::Tanh => vec![grad * tanh_slope(now)],
            // The slope at 0 is 0; NaN stays.
            Cell::Relu => vec![now.le(0.0).select(0.0, grad)],
        };
        g.finish_with(&outputs, 5 + self.saved(), 0)
    }
}

/// The slope of the sigmoid, by its value.
fn sigmoid_slope(y: Val<'_>) -> Val<'_> {
    y * (1.0 - y)
}

/// The slope of the hyperbolic tangent, by its value.
fn tanh_slope(y: Val<'_>) -> Val<'_> {
    1.0 - y * y
}
