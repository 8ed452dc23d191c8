//! Attention, indexing, sorting and dropout: milliseconds on the native CPU and on every OpenCL device, and attention's memory.
//!
//! `cargo bench -p netcl-ops --bench sequence [attention | memory | others]`

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first surprise")]

use std::time::Instant;

use netcl_core::backend::Queue;
use netcl_core::backend::cpu::buffer;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::random::{Generator, fill_below_i64};
use netcl_core::tensor::Tensor;
use netcl_ops::attention::{
    AttentionOptions, scaled_dot_product_attention as attend, scaled_dot_product_attention_backward as attend_backward,
};

/// The fastest of several runs, in milliseconds; the queue has finished when the time is taken.
fn measure(queue: &Queue, mut run: impl FnMut()) -> f64 {
    run();
    queue.finish().unwrap();
    let time = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        queue.finish().unwrap();
        start.elapsed().as_secs_f64() * 1e3
    };
    (0..5).map(|_| time(&mut run)).fold(f64::INFINITY, f64::min)
}

fn uniform(queue: &Queue, shape: &[usize], dtype: DType) -> Tensor {
    netcl_ops::random::uniform(queue, shape, dtype, -1.0, 1.0, Some(&mut Generator::new(1))).unwrap()
}

fn attention(device: &DeviceHandle) {
    let queue = &device.queue;
    let processor = device.backend.name() == "cpu" || queue.profile().device_type.eq_ignore_ascii_case("cpu");
    let sizes: &[[usize; 4]] =
        if processor { &[[1, 8, 512, 64], [1, 8, 2048, 64]] } else { &[[8, 16, 512, 64], [8, 16, 2048, 64]] };
    for &[b, h, l, d] in sizes {
        for (dtype, causal) in [(DType::F32, false), (DType::F32, true), (DType::F16, true)] {
            let [q, k, v, grad] = [0; 4].map(|_| uniform(queue, &[b, h, l, d], dtype));
            let options = AttentionOptions { causal, ..Default::default() };
            let forward = measure(queue, || drop(attend(&q, &k, &v, &options).unwrap()));
            let saved = attend(&q, &k, &v, &options).unwrap();
            let backward = measure(queue, || drop(attend_backward(&grad, &q, &k, &v, &saved, &options).unwrap()));
            let flops = 4.0 * (b * h * l * l * d) as f64 * if causal { 0.5 } else { 1.0 };
            println!(
                "  attention {b}x{h}x{l}x{d} {dtype:<8} causal {causal:<5} forward {forward:9.3} ms ({:7.1} GFLOP/s), backward \
                 {backward:9.3} ms ({:7.1} GFLOP/s)",
                flops / forward / 1e6,
                2.5 * flops / backward / 1e6
            );
        }
    }
}

/// Bytes at the peak of forward and backward beside the inputs, for growing sequences.
fn memory(device: &DeviceHandle) {
    let queue = &device.queue;
    for length in [256, 512, 1024, 2048, 4096, 8192] {
        let [q, k, v, grad] = [0; 4].map(|_| uniform(queue, &[1, 2, length, 64], DType::F32));
        queue.finish().unwrap();
        buffer::reset_peak();
        let in_use = || match queue {
            Queue::Cpu(_) => (buffer::stats().live_bytes, buffer::stats().peak_bytes),
            Queue::OpenCl(stream) => (stream.pool().stats().bytes_in_use, stream.pool().stats().peak_bytes_in_use),
        };
        let before = in_use().0;
        let options = AttentionOptions { causal: true, ..Default::default() };
        let saved = attend(&q, &k, &v, &options).unwrap();
        let gradients = attend_backward(&grad, &q, &k, &v, &saved, &options).unwrap();
        queue.finish().unwrap();
        println!("  attention 1x2x{length}x64: {:10} bytes", in_use().1 - before);
        drop((saved, gradients));
    }
}

fn others(device: &DeviceHandle) {
    let queue = &device.queue;
    let report = |name: &str, ms: f64| println!("  {name:<40} {ms:9.3} ms");
    let mut tokens = vec![0i64; 8192];
    fill_below_i64(&mut tokens, 50_000, &Generator::new(2)).unwrap();
    let indices = IndexTensor::from_host(queue, &tokens, [8192]).unwrap();
    let weight = uniform(queue, &[50_000, 256], DType::F32);
    report("embedding 8192 of 50000 x 256", measure(queue, || drop(netcl_ops::embedding(&weight, &indices).unwrap())));
    let grad = uniform(queue, &[8192, 256], DType::F32);
    let backward = || drop(netcl_ops::embedding_backward(&grad, &indices, 50_000, None).unwrap());
    report("embedding_backward", measure(queue, backward));
    let x = uniform(queue, &[4096, 4096], DType::F32);
    report("dropout 16M", measure(queue, || drop(netcl_ops::dropout(&x, 0.1, None).unwrap())));
    let lines = uniform(queue, &[1024, 1024], DType::F32);
    report("sort 1024 x 1024", measure(queue, || drop(netcl_ops::sort(&lines, 1, false).unwrap())));
    let line = uniform(queue, &[1 << 20], DType::F32);
    report("sort 1 x 1M", measure(queue, || drop(netcl_ops::sort(&line, 0, false).unwrap())));
    let logits = uniform(queue, &[64, 50_000], DType::F32);
    report("topk 50 of 64 x 50000", measure(queue, || drop(netcl_ops::topk(&logits, 50, 1, true).unwrap())));
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wants = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    let mut devices = vec![manager().cpu()];
    devices.extend(manager().discover().unwrap().iter().map(|device| manager().handle(device).unwrap()));
    for device in &devices {
        println!("{} ({})", device.device_name, device.platform_name);
        if wants("attention") {
            attention(device);
        }
        if wants("memory") {
            memory(device);
        }
        if wants("others") {
            others(device);
        }
    }
}
