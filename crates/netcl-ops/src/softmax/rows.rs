//! Softmax and its gradients on the row engine: on OpenCL devices, lines that do not lie densely and rows of gradients that are
//! too long for registers.
//!
//! The native CPU keeps loops of its own (`cpu.rs`), which take 0.25 to 0.5 of the row engine's time along the last axis and
//! 0.06 to 0.12 of it along others (16 x 10 to 4096 x 1024 and 16 x 21 x 4096 floats, AVX-512, interleaved runs).

use std::sync::{Arc, OnceLock};

use netcl_core::Result;
use netcl_core::kernels::described::{AlongAxis, Combine};
use netcl_core::kernels::expr::{Expr, Graph, Val};
use netcl_core::kernels::region::{Region, RegionBuilder, Value};
use netcl_core::tensor::Tensor;

static REGIONS: [OnceLock<Arc<Region>>; 4] = [const { OnceLock::new() }; 4];

/// Runs one of the four operations along an axis; all tensors have one shape.
pub(super) fn run(along: AlongAxis, axis: usize, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
    let (at, name) = match along {
        AlongAxis::Softmax => (0, "softmax"),
        AlongAxis::LogSoftmax => (1, "log_softmax"),
        AlongAxis::SoftmaxBackward => (2, "softmax_backward"),
        _ => (3, "log_softmax_backward"),
    };
    let region = REGIONS[at].get_or_init(|| if at < 2 { forward(name, at == 1) } else { backward(name, at == 3) });
    let axes: Vec<isize> = (0..out.ndim()).filter(|&a| a != axis).chain([axis]).map(|a| a as isize).collect();
    let inputs = inputs.iter().map(|tensor| tensor.permute(&axes)).collect::<Result<Vec<_>>>()?;
    region.run(&inputs.iter().collect::<Vec<_>>(), &[], &[&out.permute(&axes)?], 1)
}

fn expr(build: impl for<'g> Fn(&'g Graph) -> Val<'g>) -> Expr {
    let g = Graph::new();
    let value = build(&g);
    g.finish(&[value])
}

fn map(rows: &mut RegionBuilder, expr: &Expr, inputs: &[Value]) -> Value {
    rows.map(expr, inputs, &[])[0]
}

fn forward(name: &str, log: bool) -> Arc<Region> {
    let mut rows = RegionBuilder::new(name);
    let x = rows.input();
    let top = rows.reduce(Combine::Max, x);
    let shifted = map(&mut rows, &expr(|g| g.input(0) - g.input(1)), &[x, top]);
    let power = map(&mut rows, &expr(|g| g.input(0).exp()), &[shifted]);
    let total = rows.reduce(Combine::Sum, power);
    let y = match log {
        true => map(&mut rows, &expr(|g| g.input(0) - g.input(1).log()), &[shifted, total]),
        false => map(&mut rows, &expr(|g| g.input(0) / g.input(1)), &[power, total]),
    };
    rows.output(y);
    rows.finish()
}

/// Of the gradient of the result, and the result.
fn backward(name: &str, log: bool) -> Arc<Region> {
    let mut rows = RegionBuilder::new(name);
    let [g, y] = [rows.input(), rows.input()];
    let term = if log { g } else { map(&mut rows, &expr(|e| e.input(0) * e.input(1)), &[g, y]) };
    let total = rows.reduce(Combine::Sum, term);
    let gradient = match log {
        true => expr(|e| e.input(0) - e.input(1).exp() * e.input(2)),
        false => expr(|e| e.input(1) * (e.input(0) - e.input(2))),
    };
    let gradient = map(&mut rows, &gradient, &[g, y, total]);
    rows.output(gradient);
    rows.finish()
}
