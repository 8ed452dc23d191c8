//! Microseconds per small op: raw, recorded, and recorded with its backward pass, on every device.
//!
//! `cargo bench -p netcl-autograd --bench overhead`; `benches/autograd_overhead.py --rust <this binary>` times single ops from Rust
//! and from Python beside PyTorch, in one run.

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first surprise")]

use std::time::Instant;

use netcl_autograd::ops::elementwise::add;
use netcl_autograd::{Tensor, no_grad};
use netcl_core::device::manager;

const OPS: usize = 1000;

/// The fastest of several runs of a chain of ops, in microseconds per op.
fn measure(name: &str, queue: &netcl_core::backend::Queue, run: impl Fn()) {
    run();
    let best = (0..15)
        .map(|_| {
            let start = Instant::now();
            run();
            queue.finish().unwrap();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    println!("  {name:<34} {:8.3} us per op", best / OPS as f64 * 1e6);
}

/// Answers each workload named on standard input with its best microseconds of a short run: a worker of the Python benchmark,
/// with its workloads.
fn answer() {
    let queue = manager().cpu().queue;
    let leaf = || Tensor::from_host(&queue, &[1.0f32; 8], [8]).unwrap().with_grad();
    let (x, y, ones) = (leaf(), leaf(), leaf().detach());
    let (plain, other) = (x.detach(), y.detach());
    for name in std::io::stdin().lines() {
        let name = name.unwrap();
        let run: Box<dyn Fn()> = match name.as_str() {
            "add, nothing to record" => Box::new(|| drop(add(&plain, &other).unwrap())),
            "add, recorded" => Box::new(|| drop(add(&x, &y).unwrap())),
            "add inside no_grad()" => Box::new(|| {
                let _scope = no_grad();
                drop(add(&x, &y).unwrap());
            }),
            "add and its backward" => Box::new(|| {
                [&x, &y].iter().for_each(|t| t.set_grad(None));
                add(&x, &y).unwrap().backward_with(Some(&ones), Default::default()).unwrap();
            }),
            "the same, gradients accumulate" => {
                Box::new(|| add(&x, &y).unwrap().backward_with(Some(&ones), Default::default()).unwrap())
            }
            _ => {
                println!("null");
                continue;
            }
        };
        const CALLS: u32 = 100;
        let round = || {
            let start = Instant::now();
            (0..CALLS).for_each(|_| run());
            start.elapsed().as_secs_f64()
        };
        let best = (0..100).map(|_| round()).fold(f64::INFINITY, f64::min);
        println!("{}", best / f64::from(CALLS) * 1e6);
    }
}

fn main() {
    if std::env::args().any(|argument| argument == "--worker") {
        return answer();
    }
    let found = manager().discover().unwrap();
    let handles = found.iter().map(|device| manager().handle(device).unwrap());
    for handle in std::iter::once(manager().cpu()).chain(handles) {
        println!("{} ({})", handle.device_name, handle.platform_name);
        let queue = &handle.queue;
        let x = Tensor::from_host(queue, &[0.5f32; 8], [8]).unwrap().with_grad();
        let y = Tensor::from_host(queue, &[0.25f32; 8], [8]).unwrap();
        let chain = || (0..OPS).fold(x.clone(), |sum, _| add(&sum, &y).unwrap());
        measure("netcl_ops::add", queue, || {
            (0..OPS).fold(x.raw().clone(), |sum, _| netcl_ops::add(&sum, y.raw()).unwrap());
        });
        measure("add under no_grad", queue, || {
            let _scope = no_grad();
            chain();
        });
        measure("add, recorded", queue, || drop(chain()));
        let seed = y.clone();
        measure("add, recorded, and backward", queue, || {
            chain().backward_with(Some(&seed), Default::default()).unwrap();
        });
        let mul_chain = || (0..OPS).fold(x.clone(), |sum, _| (&sum * &y).unwrap());
        measure("mul, recorded, and backward", queue, || {
            mul_chain().backward_with(Some(&seed), Default::default()).unwrap();
        });
    }
}
