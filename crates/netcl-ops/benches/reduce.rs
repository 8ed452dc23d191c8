//! GB/s of reductions and softmax: native beside plain loops written by hand, then on every OpenCL device.
//!
//! `cargo bench -p netcl-ops --bench reduce`

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first surprise")]

use std::hint::black_box;
use std::time::Instant;

use netcl_core::backend::Queue;
use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::tensor::{Tensor, reshape};

/// The fastest of several runs, as bytes per nanosecond.
fn measure(name: &str, bytes: usize, mut run: impl FnMut()) {
    run();
    let best = (0..9)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    println!("{name:<28} {:9.3} ms {:7.1} GB/s", best * 1e3, bytes as f64 / best / 1e9);
}

/// The same on an OpenCL device, which must have finished when the time is taken.
fn on_device(queue: &Queue) {
    println!("{}", queue.device_name());
    let n = 4096;
    let x = Tensor::full(queue, [4 * n, n], DType::F32, 0.5).unwrap();
    let all = 4 * x.size();
    let timed = |name: &str, bytes: usize, run: &dyn Fn() -> Tensor| {
        measure(name, bytes, || {
            let _result = run();
            queue.finish().unwrap();
        });
    };
    timed("copy 16384x4096", 2 * all, &|| x.duplicate().unwrap());
    timed("sum all", all, &|| netcl_ops::sum(&x, (), false).unwrap());
    timed("sum axis 0", all, &|| netcl_ops::sum(&x, 0, false).unwrap());
    timed("sum axis 1", all, &|| netcl_ops::sum(&x, 1, false).unwrap());
    timed("softmax axis 1", 2 * all, &|| netcl_ops::softmax(&x, 1).unwrap());
    timed("softmax axis 0", 2 * all, &|| netcl_ops::softmax(&x, 0).unwrap());
    timed("log_softmax axis 1", 2 * all, &|| netcl_ops::log_softmax(&x, 1).unwrap());
    let x = Tensor::full(queue, [n, n], DType::F32, 0.5).unwrap();
    let all = 4 * x.size();
    timed("sum 16M", all, &|| netcl_ops::sum(&x, (), false).unwrap());
    timed("max 16M", all, &|| netcl_ops::max(&x, (), false).unwrap());
    timed("var 4096x4096 axis 1", 2 * all, &|| netcl_ops::var(&x, 1, 1.0, false).unwrap());
    let x = Tensor::full(queue, [n, n / 4], DType::F32, 0.5).unwrap();
    let all = 4 * x.size();
    timed("copy 4096x1024", 2 * all, &|| x.duplicate().unwrap());
    timed("softmax 4096x1024 axis 1", 2 * all, &|| netcl_ops::softmax(&x, 1).unwrap());
    timed("softmax 4096x1024 axis 0", 2 * all, &|| netcl_ops::softmax(&x, 0).unwrap());
    timed("cumsum axis 1", 2 * all, &|| netcl_ops::cumsum(&x, 1).unwrap());
}

fn main() {
    native();
    for device in manager().discover().unwrap() {
        on_device(&manager().handle(&device).unwrap().queue);
    }
}

fn native() {
    let n = 4096;
    let host: Vec<f32> = (0..n * n).map(|i| (i % 4001) as f32 * 0.002 - 4.0).collect();
    let queue = manager().cpu().queue;
    let x = Tensor::from_host(&queue, &host, [n, n]).unwrap();
    let all = 4 * n * n;
    println!("{} threads; reading 64 MiB", netcl_core::backend::cpu::num_threads());

    let mut sink = vec![0.0f32; n];
    measure("sum by hand", all, || {
        black_box(black_box(&host).iter().sum::<f32>());
    });
    measure("sum all", all, || drop(netcl_ops::sum(&x, (), false).unwrap()));
    measure("axis 0 by hand", all, || {
        sink.fill(0.0);
        for row in black_box(&host).chunks_exact(n) {
            sink.iter_mut().zip(row).for_each(|(s, v)| *s += v);
        }
    });
    measure("sum axis 0", all, || drop(netcl_ops::sum(&x, 0, false).unwrap()));
    measure("axis 1 by hand", all, || {
        for (s, row) in sink.iter_mut().zip(black_box(&host).chunks_exact(n)) {
            *s = row.iter().sum();
        }
    });
    measure("sum axis 1", all, || drop(netcl_ops::sum(&x, 1, false).unwrap()));
    measure("max all", all, || drop(netcl_ops::max(&x, (), false).unwrap()));
    measure("argmax axis 1", all, || drop(netcl_ops::argmax(&x, Some(1), false).unwrap()));
    measure("argmax axis 0", all, || drop(netcl_ops::argmax(&x, Some(0), false).unwrap()));
    measure("norm 2", all, || drop(netcl_ops::norm(&x, 2.0, (), false).unwrap()));
    measure("var axis 1 (reads twice)", 2 * all, || drop(netcl_ops::var(&x, 1, 1.0, false).unwrap()));

    let rows =
        reshape(&x, [4 * n, n / 4]).unwrap().slice(0, netcl_core::shape::Slice::new(None, Some(4096), 1)).unwrap();
    let bytes = 2 * 4 * 4096 * 1024;
    let mut out = vec![0.0f32; 4096 * 1024];
    measure("softmax 4096x1024 by hand", bytes, || {
        for (y, x) in out.chunks_exact_mut(1024).zip(black_box(&host).chunks_exact(1024)) {
            let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - top).exp());
            let total: f32 = y.iter().sum();
            y.iter_mut().for_each(|y| *y /= total);
        }
    });
    measure("copy of 4096x1024", bytes, || drop(rows.duplicate().unwrap()));
    measure("softmax 4096x1024 axis 1", bytes, || drop(netcl_ops::softmax(&rows, 1).unwrap()));
    measure("softmax 4096x1024 axis 0", bytes, || drop(netcl_ops::softmax(&rows, 0).unwrap()));
    measure("log_softmax axis 1", bytes, || drop(netcl_ops::log_softmax(&rows, 1).unwrap()));
    measure("cumsum axis 1", bytes, || drop(netcl_ops::cumsum(&rows, 1).unwrap()));
    measure("cumsum axis 0", bytes, || drop(netcl_ops::cumsum(&rows, 0).unwrap()));
}
