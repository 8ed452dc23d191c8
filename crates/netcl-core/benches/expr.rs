//! Nanoseconds per element of elementwise programs over 16 Mi floats, one thread, beside loops written by hand.
//!
//! `cargo bench -p netcl-core --bench expr`

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first surprise")]

use std::hint::black_box;
use std::time::Instant;

use netcl_core::dtype::DType;
use netcl_core::kernels::expr::cpu::Program;
use netcl_core::kernels::expr::{Expr, Graph, table};

const N: usize = 16 << 20;

/// The fastest of several runs, in nanoseconds per element, and the bytes per nanosecond that makes.
fn measure(name: &str, floats_moved: usize, mut run: impl FnMut()) {
    run();
    let best = (0..7)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    let bytes = (floats_moved * N * size_of::<f32>()) as f64;
    println!("{name:<28} {:7.3} ns/element {:7.1} GB/s", best / N as f64 * 1e9, bytes / best / 1e9);
}

fn program(expr: &Expr) -> Program {
    Program::compile(expr, DType::F32).unwrap()
}

fn main() {
    let x: Vec<f32> = (0..N).map(|i| (i % 4001) as f32 * 0.002 - 4.0).collect();
    let y: Vec<f32> = (0..N).map(|i| (i % 3001) as f32 * 0.002 - 3.0).collect();
    let mut out = vec![0.0f32; N];

    measure("memcpy", 2, || black_box(&mut out).copy_from_slice(black_box(&x)));
    measure("add, by hand", 3, || {
        for ((o, a), b) in black_box(&mut out).iter_mut().zip(&x).zip(&y) {
            *o = a + b;
        }
    });
    for name in ["add", "mul"] {
        let p = program(&table::op(name).unwrap().expr());
        measure(name, 3, || p.run_slices(&[&x, &y], &[], &mut [black_box(&mut out)]).unwrap());
    }
    for name in ["relu", "exp", "log", "tanh", "sigmoid", "erf", "gelu", "gelu_tanh", "sin", "mish"] {
        let p = program(&table::op(name).unwrap().expr());
        measure(name, 2, || p.run_slices(&[&x], &[], &mut [black_box(&mut out)]).unwrap());
    }
    let p = program(&table::op("pow").unwrap().expr());
    measure("pow", 3, || p.run_slices(&[&x, &y], &[], &mut [black_box(&mut out)]).unwrap());

    // The arithmetic alone: operands that stay in the second-level cache.
    let few = 1 << 15;
    for op in table::ops().iter().filter(|op| op.ulp.native_f32 > 0.5 || op.name == "add" || op.name == "relu") {
        let p = program(&op.expr());
        let inputs: Vec<&[f32]> = [&x[..few], &y[..few], &x[..few]][..op.arity()].to_vec();
        let defaults = op.defaults();
        measure(&format!("{} in cache", op.name), op.arity() + 1, || {
            for _ in 0..N / few {
                p.run_slices(&inputs, &defaults, &mut [black_box(&mut out[..few])]).unwrap();
            }
        });
    }

    // An optimizer's update: Adam's, without what is the same for all elements.
    let g = Graph::new();
    let (p, d, m, v) = (g.input(0), g.input(1), g.input(2), g.input(3));
    let (mean, square) = ((d - m).fma(g.scalar(0), m), (d * d).fma(g.scalar(1), v * g.scalar(2)));
    let root = square.sqrt().fma(g.scalar(3), g.scalar(4));
    let update = program(&g.finish(&[(mean / root).fma(g.scalar(5), p), mean, square]));
    let (first, rest) = out.split_at_mut(few);
    let (second, third) = rest.split_at_mut(few);
    let (positive, third) = (vec![0.5f32; few], &mut third[..few]);
    measure("update in cache", 7, || {
        for _ in 0..N / few {
            let inputs = [&x[..few], &y[..few], &x[few..2 * few], &positive[..]];
            let outputs = &mut [black_box(&mut *first), &mut *second, &mut *third];
            update.run_slices(&inputs, &[0.1, 0.001, 0.999, 1.5, 1e-8, -1e-3], outputs).unwrap();
        }
    });

    let g = Graph::new();
    let (a, b) = (g.input(0), g.input(1));
    let chain = program(&g.finish(&[(a * b + 1.0).tanh() * a.sigmoid() + b.relu()]));
    measure("chain, one program", 3, || chain.run_slices(&[&x, &y], &[], &mut [black_box(&mut out)]).unwrap());
    measure("chain, by hand with std", 3, || {
        for ((o, &a), &b) in black_box(&mut out).iter_mut().zip(&x).zip(&y) {
            *o = (a * b + 1.0).tanh() * (1.0 / (1.0 + (-a).exp())) + b.max(0.0);
        }
    });
}
