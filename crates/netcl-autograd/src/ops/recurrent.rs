//! The elementwise part of a step of a recurrent network: one launch for all gates.

use std::sync::{Arc, LazyLock};

use netcl_core::kernels::expr::Graph;

use crate::error::Result;
use crate::ops::elementwise::ExprOp;
use crate::tensor::Tensor;

/// The memory of an LSTM after a step: `sigmoid(f) * c + sigmoid(i) * tanh(g)`.
#[track_caller]
pub fn lstm_cell(i: &Tensor, f: &Tensor, g: &Tensor, c: &Tensor) -> Result<Tensor> {
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let graph = Graph::new();
        let [i, f, g, c] = [0, 1, 2, 3].map(|input| graph.input(input));
        ExprOp::new("lstm_cell", graph.finish(&[f.sigmoid() * c + i.sigmoid() * g.tanh()]))
    });
    OP.apply(&[i, f, g, c], &[])
}

/// The state of an LSTM after a step: `sigmoid(o) * tanh(c)`.
#[track_caller]
pub fn lstm_output(o: &Tensor, c: &Tensor) -> Result<Tensor> {
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let graph = Graph::new();
        ExprOp::new("lstm_output", graph.finish(&[graph.input(0).sigmoid() * graph.input(1).tanh()]))
    });
    OP.apply(&[o, c], &[])
}

/// The state of gated recurrent units after a step: `n + sigmoid(z) * (h - n)` with `n = tanh(x + sigmoid(r) * y)`.
#[track_caller]
pub fn gru_cell(r: &Tensor, z: &Tensor, x: &Tensor, y: &Tensor, h: &Tensor) -> Result<Tensor> {
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let graph = Graph::new();
        let [r, z, x, y, h] = [0, 1, 2, 3, 4].map(|input| graph.input(input));
        let n = (x + r.sigmoid() * y).tanh();
        ExprOp::new("gru_cell", graph.finish(&[n + z.sigmoid() * (h - n)]))
    });
    OP.apply(&[r, z, x, y, h], &[])
}
