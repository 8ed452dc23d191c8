//! What a compiled function costs beside its kernels, and its rows beside the kernels that were written for them.
//!
//! `cargo bench -p netcl-autograd --bench jit`: a chain of six operations on 1024 floats (microseconds a call: op by op, compiled,
//! and as one hand-written expression) on every device, and softmax by hand, compiled, beside the operation on the native CPU.

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first surprise")]

use std::time::Instant;

use netcl_autograd::jit::jit;
use netcl_autograd::{Result, Tensor, no_grad};
use netcl_core::backend::Queue;
use netcl_core::device::manager;
use netcl_core::kernels::elementwise::Elementwise;
use netcl_core::kernels::expr::Graph;
use netcl_core::tensor::Tensor as Raw;

/// The fastest round of each of several ways, measured in turns, in microseconds a call.
fn race<const N: usize>(queue: &Queue, calls: usize, ways: [(&str, &dyn Fn()); N]) {
    let mut best = [f64::INFINITY; N];
    for round in 0..20 {
        for (best, (_, way)) in best.iter_mut().zip(&ways) {
            let start = Instant::now();
            (0..calls).for_each(|_| way());
            queue.finish().unwrap();
            let time = start.elapsed().as_secs_f64() / calls as f64 * 1e6;
            if round > 0 {
                *best = best.min(time);
            }
        }
    }
    for (best, (name, _)) in best.iter().zip(&ways) {
        println!("  {name:<34} {best:10.2} us");
    }
}

fn values(queue: &Queue, shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_host(queue, &(0..n).map(|i| (i % 101) as f32 / 50.0 - 1.0).collect::<Vec<_>>(), shape).unwrap()
}

fn chain(t: &[&Tensor]) -> Result<Tensor> {
    let (x, y) = (t[0], t[1]);
    &(&(&(x * y)? + 1.0)?.tanh()? * &x.sigmoid()?)? + &y.relu()?
}

fn written_softmax(t: &[&Tensor]) -> Result<Tensor> {
    let shifted = (t[0] - &t[0].max(-1, true)?)?.exp()?;
    &shifted / &shifted.sum(-1, true)?
}

fn main() {
    let _scope = no_grad();
    let found = manager().discover().unwrap();
    let handles = found.iter().map(|device| manager().handle(device).unwrap());
    for queue in handles.chain([manager().cpu()]).map(|handle| handle.queue) {
        println!("six operations on 1024 floats, {}", queue.device_name());
        let (x, y) = (values(&queue, &[1024]), values(&queue, &[1024]));
        let g = Graph::new();
        let (a, b) = (g.input(0), g.input(1));
        let by_hand = Elementwise::new("chain", g.finish(&[(a * b + g.scalar(0)).tanh() * a.sigmoid() + b.relu()]));
        let compiled = jit(chain);
        let hand = || {
            let out = Raw::uninit(&queue, [1024], x.dtype()).unwrap();
            by_hand.run(&[x.raw(), y.raw()], &[1.0.into()], &[&out]).unwrap();
        };
        race(
            &queue,
            200,
            [
                ("op by op", &|| drop(chain(&[&x, &y]).unwrap())),
                ("compiled", &|| drop(compiled.call(&[&x, &y]).unwrap())),
                ("one expression by hand", &hand),
            ],
        );
    }
    let queue = manager().cpu().queue;
    for shape in [[4096, 64], [1024, 1024], [64, 16384]] {
        println!("softmax of {shape:?}, native CPU");
        let x = values(&queue, &shape);
        let compiled = jit(written_softmax);
        race(
            &queue,
            5,
            [
                ("the operation", &|| drop(x.softmax(-1).unwrap())),
                ("written by hand, compiled", &|| drop(compiled.call(&[&x]).unwrap())),
            ],
        );
    }
}
