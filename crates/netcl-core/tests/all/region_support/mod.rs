//! Fused rows as users would write them from small operations, each with a reference in f64.

use std::sync::Arc;

use netcl_core::device::{DeviceHandle, manager};
use netcl_core::kernels::expr::{Expr, Graph, Val, table};
use netcl_core::kernels::region::{Combine, Region, RegionBuilder, Value};

/// The native CPU and every OpenCL device.
pub(crate) fn devices() -> Vec<DeviceHandle> {
    let found = manager().discover().unwrap();
    if found.is_empty() {
        eprintln!("NOT TESTED on OpenCL: there is no device here");
        assert!(std::env::var_os("CI").is_none(), "CI needs an OpenCL device: install pocl-opencl-icd");
    }
    let mut handles = vec![manager().cpu()];
    handles.extend(found.iter().map(|device| manager().handle(device).unwrap()));
    handles
}

/// Every how many cells of a grid run on a device: all of them, but on PoCL, where compiling takes most of the time, one of `pocl`
/// unless the run is a full one.
pub(crate) fn share(device: &DeviceHandle, pocl: usize) -> usize {
    let full = std::env::var_os("NETCL_TEST_FULL").is_some();
    if device.platform_name.contains("Portable") && !full { pocl } else { 1 }
}

/// An input of one row.
pub(crate) type Row<'a> = &'a [f64];

/// A region, and what it computes for one row: inputs, scalars, outputs. A row input or output has one element.
pub(crate) struct Pattern {
    pub(crate) name: &'static str,
    pub(crate) region: Arc<Region>,
    pub(crate) scalars: Vec<f64>,
    pub(crate) reference: fn(&[Row<'_>], &[f64]) -> Vec<Vec<f64>>,
}

fn op(name: &str) -> Expr {
    let g = Graph::new();
    let expr = table::op(name).unwrap().expr();
    let inputs: Vec<Val<'_>> = (0..expr.inputs()).map(|i| g.input(i)).collect();
    let out = g.inline(&expr, &inputs, &[])[0].named(name.to_owned());
    g.finish_with(&[out], expr.inputs(), expr.scalars())
}

/// Small operations by name, as an eager user has them.
trait Small {
    fn op(&mut self, name: &str, inputs: &[Value]) -> Value;
    fn scalar(&mut self, name: &str, input: Value, number: usize) -> Value;
}

impl Small for RegionBuilder {
    fn op(&mut self, name: &str, inputs: &[Value]) -> Value {
        self.map(&op(name), inputs, &[])[0]
    }
    /// An operation of two operands with a run-time scalar as the second.
    fn scalar(&mut self, name: &str, input: Value, number: usize) -> Value {
        self.map(&op(name).input_as_scalar(1), &[input], &[number])[0]
    }
}

fn total(v: impl Iterator<Item = f64>) -> f64 {
    v.sum()
}

fn largest(x: &[f64]) -> f64 {
    x.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b))
}

fn softmax_of(x: &[f64]) -> Vec<f64> {
    let top = largest(x);
    let sum = total(x.iter().map(|x| (x - top).exp()));
    x.iter().map(|x| (x - top).exp() / sum).collect()
}

pub(crate) fn softmax() -> Pattern {
    let mut b = RegionBuilder::new("softmax");
    let x = b.input();
    let top = b.reduce(Combine::Max, x);
    let shifted = b.op("sub", &[x, top]);
    let e = b.op("exp", &[shifted]);
    let sum = b.reduce(Combine::Sum, e);
    let y = b.op("div", &[e, sum]);
    b.name(y, "softmax");
    b.output(y);
    Pattern { name: "softmax", region: b.finish(), scalars: vec![], reference: |x, _| vec![softmax_of(x[0])] }
}

pub(crate) fn log_softmax() -> Pattern {
    let mut b = RegionBuilder::new("log_softmax");
    let x = b.input();
    let top = b.reduce(Combine::Max, x);
    let shifted = b.op("sub", &[x, top]);
    let e = b.op("exp", &[shifted]);
    let sum = b.reduce(Combine::Sum, e);
    let log = b.op("log", &[sum]);
    let y = b.op("sub", &[shifted, log]);
    b.output(y);
    // The logarithm of the sum of the exponentials, one per row.
    let lse = b.op("add", &[log, top]);
    b.output(lse);
    Pattern {
        name: "log_softmax",
        region: b.finish(),
        scalars: vec![],
        reference: |x, _| {
            let lse = largest(x[0]) + total(x[0].iter().map(|v| (v - largest(x[0])).exp())).ln();
            vec![x[0].iter().map(|v| v - lse).collect(), vec![lse]]
        },
    }
}

/// Inputs: x, weight and bias (the same for all rows). Scalars: 1 / n, epsilon. Outputs: y, mean, 1 / deviation.
pub(crate) fn layer_norm() -> Pattern {
    let mut b = RegionBuilder::new("layer_norm");
    let (x, weight, bias) = (b.input(), b.input(), b.input());
    let sum = b.reduce(Combine::Sum, x);
    b.name(sum, "layer_norm.total");
    let mean = b.scalar("mul", sum, 0);
    let centred = b.op("sub", &[x, mean]);
    let square = b.op("square", &[centred]);
    let squares = b.reduce(Combine::Sum, square);
    let variance = b.scalar("mul", squares, 0);
    let shifted = b.scalar("add", variance, 1);
    let rstd = b.op("rsqrt", &[shifted]);
    let normal = b.op("mul", &[centred, rstd]);
    let scaled = b.op("mul", &[normal, weight]);
    let y = b.op("add", &[scaled, bias]);
    b.name(y, "layer_norm");
    b.output(y);
    b.output(mean);
    b.output(rstd);
    Pattern {
        name: "layer_norm",
        region: b.finish(),
        scalars: vec![f64::NAN, 0.1],
        reference: |x, s| {
            let mean = total(x[0].iter().copied()) * s[0];
            let variance = total(x[0].iter().map(|v| (v - mean).powi(2))) * s[0];
            let rstd = 1.0 / (variance + s[1]).sqrt();
            let y = x[0].iter().zip(x[1]).zip(x[2]).map(|((v, w), b)| (v - mean) * rstd * w + b);
            vec![y.collect(), vec![mean], vec![rstd]]
        },
    }
}

pub(crate) fn rms_norm() -> Pattern {
    let mut b = RegionBuilder::new("rms_norm");
    let (x, weight) = (b.input(), b.input());
    let square = b.op("square", &[x]);
    let squares = b.reduce(Combine::Sum, square);
    let mean = b.scalar("mul", squares, 0);
    let shifted = b.scalar("add", mean, 1);
    let rstd = b.op("rsqrt", &[shifted]);
    let normal = b.op("mul", &[x, rstd]);
    let y = b.op("mul", &[normal, weight]);
    b.output(y);
    Pattern {
        name: "rms_norm",
        region: b.finish(),
        scalars: vec![f64::NAN, 0.1],
        reference: |x, s| {
            let rstd = 1.0 / (total(x[0].iter().map(|v| v * v)) * s[0] + s[1]).sqrt();
            vec![x[0].iter().zip(x[1]).map(|(v, w)| v * rstd * w).collect()]
        },
    }
}

/// Inputs: y, dy. Output: dx.
pub(crate) fn softmax_gradient() -> Pattern {
    let mut b = RegionBuilder::new("softmax_backward");
    let (y, dy) = (b.input(), b.input());
    let product = b.op("mul", &[y, dy]);
    let sum = b.reduce(Combine::Sum, product);
    let rest = b.op("sub", &[dy, sum]);
    let dx = b.op("mul", &[y, rest]);
    b.output(dx);
    Pattern {
        name: "softmax_backward",
        region: b.finish(),
        scalars: vec![],
        reference: |x, _| {
            let sum = total(x[0].iter().zip(x[1]).map(|(y, d)| y * d));
            vec![x[0].iter().zip(x[1]).map(|(y, d)| y * (d - sum)).collect()]
        },
    }
}

/// Inputs: x, dy, weight; mean and 1 / deviation of the row. Scalar: 1 / n. Output: dx.
pub(crate) fn layer_norm_gradient() -> Pattern {
    let mut b = RegionBuilder::new("layer_norm_backward");
    let (x, dy, weight) = (b.input(), b.input(), b.input());
    let (mean, rstd) = (b.row_input(), b.row_input());
    let centred = b.op("sub", &[x, mean]);
    let normal = b.op("mul", &[centred, rstd]);
    let g = b.op("mul", &[dy, weight]);
    let along = b.op("mul", &[g, normal]);
    let (a, c) = (b.reduce(Combine::Sum, g), b.reduce(Combine::Sum, along));
    let (a, c) = (b.scalar("mul", a, 0), b.scalar("mul", c, 0));
    let part = b.op("mul", &[normal, c]);
    let rest = b.op("sub", &[g, a]);
    let rest = b.op("sub", &[rest, part]);
    let dx = b.op("mul", &[rest, rstd]);
    b.output(dx);
    Pattern {
        name: "layer_norm_backward",
        region: b.finish(),
        scalars: vec![f64::NAN],
        reference: |x, s| {
            let (mean, rstd) = (x[3][0], x[4][0]);
            let n: Vec<f64> = x[0].iter().map(|v| (v - mean) * rstd).collect();
            let g: Vec<f64> = x[1].iter().zip(x[2]).map(|(d, w)| d * w).collect();
            let a = total(g.iter().copied()) * s[0];
            let c = total(g.iter().zip(&n).map(|(g, n)| g * n)) * s[0];
            vec![g.iter().zip(&n).map(|(g, n)| (g - a - n * c) * rstd).collect()]
        },
    }
}

/// Inputs: logits, the position of each element (the same for all rows), the target's position (one per row), the loss'
/// gradient (one per row). Outputs: the loss of each row, and the logits' gradient.
pub(crate) fn cross_entropy() -> Pattern {
    let mut b = RegionBuilder::new("cross_entropy");
    let (x, position) = (b.input(), b.input());
    let (target, gradient) = (b.row_input(), b.row_input());
    let top = b.reduce(Combine::Max, x);
    let shifted = b.op("sub", &[x, top]);
    let e = b.op("exp", &[shifted]);
    let sum = b.reduce(Combine::Sum, e);
    let g = Graph::new();
    let here = b.map(&g.finish(&[g.input(0).eq(g.input(1))]), &[position, target], &[])[0];
    let g = Graph::new();
    let chosen = g.finish(&[g.input(0).eq(g.input(1)).select(g.input(2), 0.0)]);
    let chosen = b.map(&chosen, &[position, target, shifted], &[])[0];
    let chosen = b.reduce(Combine::Sum, chosen);
    let log = b.op("log", &[sum]);
    let loss = b.op("sub", &[log, chosen]);
    let p = b.op("div", &[e, sum]);
    let less = b.op("sub", &[p, here]);
    let dx = b.op("mul", &[less, gradient]);
    b.output(loss);
    b.output(dx);
    Pattern {
        name: "cross_entropy",
        region: b.finish(),
        scalars: vec![],
        reference: |x, _| {
            let (target, gradient) = (x[2][0], x[3][0]);
            let p = softmax_of(x[0]);
            let log = total(x[0].iter().map(|v| (v - largest(x[0])).exp())).ln();
            let chosen = x[0].iter().zip(x[1]).find(|(_, k)| **k == target).map_or(0.0, |(v, _)| v - largest(x[0]));
            let hit = |k: f64| if k == target { 1.0 } else { 0.0 };
            let dx = p.iter().zip(x[1]).map(|(p, k)| (p - hit(*k)) * gradient).collect();
            vec![vec![log - chosen], dx]
        },
    }
}

/// Every way to combine, a reduced row value, and a full output of a row value. Input x and a row value.
pub(crate) fn everything() -> Pattern {
    let mut b = RegionBuilder::new("everything");
    let (x, r) = (b.input(), b.row_input());
    let (low, high) = (b.reduce(Combine::Min, x), b.reduce(Combine::Max, x));
    let near = b.scalar("mul", x, 0);
    let g = Graph::new();
    let near = b.map(&g.finish(&[g.input(0) + 1.0]), &[near], &[])[0];
    let product = b.reduce(Combine::Prod, near);
    let many = b.reduce(Combine::Sum, r);
    let range = b.op("sub", &[high, low]);
    b.output(product);
    b.output(many);
    b.output_full(range);
    Pattern {
        name: "everything",
        region: b.finish(),
        scalars: vec![1e-3],
        reference: |x, s| {
            let low = x[0].iter().fold(f64::INFINITY, |a, &b| a.min(b));
            let product = x[0].iter().map(|v| v * s[0] + 1.0).product();
            vec![vec![product], vec![x[0].len() as f64 * x[1][0]], vec![largest(x[0]) - low; x[0].len()]]
        },
    }
}

pub(crate) fn patterns() -> Vec<Pattern> {
    vec![
        softmax(),
        log_softmax(),
        layer_norm(),
        rms_norm(),
        softmax_gradient(),
        layer_norm_gradient(),
        cross_entropy(),
        everything(),
    ]
}
