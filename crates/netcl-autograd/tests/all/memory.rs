//! What a walk backwards keeps in memory, in exact bytes of the pools.

use netcl_autograd::autocast::autocast;
use netcl_autograd::ops::matmul::linear;
use netcl_autograd::{Tensor, checkpoint, no_grad};
use netcl_core::backend::{Queue, cpu::buffer};
use netcl_core::dtype::DType;

use crate::support::{devices, leaf};

const LAYERS: usize = 50;
const WIDTH: usize = 64;
const BATCH: usize = 256;
/// Bytes of one activation and of one weight.
const ACTIVATION: usize = BATCH * WIDTH * 4;
const WEIGHT: usize = WIDTH * WIDTH * 4;

/// Bytes in use now, and the most since the last reset.
fn in_use(queue: &Queue) -> (usize, usize) {
    match queue {
        Queue::Cpu(_) => (buffer::stats().live_bytes, buffer::stats().peak_bytes),
        Queue::OpenCl(stream) => {
            let stats = stream.pool().stats();
            (stats.bytes_in_use, stats.peak_bytes_in_use)
        }
    }
}

fn reset_peak(queue: &Queue) {
    match queue {
        Queue::Cpu(_) => buffer::reset_peak(),
        Queue::OpenCl(stream) => stream.pool().reset_peak(),
    }
}

fn weights(queue: &Queue) -> Vec<Tensor> {
    (0..LAYERS).map(|i| leaf(queue, DType::F32, &[WIDTH, WIDTH], i as u64, (-0.2, 0.2))).collect()
}

#[test]
fn the_backward_pass_of_fifty_layers_needs_little_more_than_the_forward_pass_kept() {
    for device in devices() {
        let queue = &device.queue;
        let weights = weights(queue);
        let x = leaf(queue, DType::F32, &[BATCH, WIDTH], 99, (-1.0, 1.0)).detach();
        let forward = || {
            let last = weights.iter().fold(x.clone(), |y, w| linear(&y, w, None).unwrap().tanh().unwrap());
            last.mean((), false).unwrap()
        };
        // Once to build kernels and to fill pools.
        forward().backward().unwrap();
        weights.iter().for_each(|w| w.set_grad(None));
        queue.finish().unwrap();

        let (before, _) = in_use(queue);
        let loss = forward();
        let kept = in_use(queue).0 - before;
        // tanh keeps its input, linear keeps its own: two activations per layer.
        assert!(
            (2 * (LAYERS - 1) * ACTIVATION..=2 * (LAYERS + 1) * ACTIVATION).contains(&kept),
            "{kept} bytes are kept"
        );
        reset_peak(queue);
        loss.backward().unwrap();
        queue.finish().unwrap();
        let (after, peak) = in_use(queue);
        drop(loss);
        let (extra, left) = (peak - before - kept, after - before);
        println!(
            "{}: {kept} bytes kept by the forward pass, {extra} more at the peak, {left} left",
            device.platform_name
        );
        // While gradients of weights appear, activations go: at no time more than a few of either on top.
        assert!(
            extra <= 4 * ACTIVATION + 2 * WEIGHT,
            "{}: {extra} bytes more than the forward pass kept",
            device.platform_name
        );
        assert!(left <= LAYERS * WEIGHT + 2 * ACTIVATION, "{}: {left} bytes are left", device.platform_name);
        assert!(weights.iter().all(|w| w.grad().is_some()));
        weights.iter().for_each(|w| w.set_grad(None));

        // In pieces of ten layers, only the pieces' inputs are kept.
        let (before, _) = in_use(queue);
        let mut y = x.clone();
        for piece in weights.chunks(10) {
            let piece = piece.to_vec();
            let run = move |t: &[&Tensor]| piece.iter().try_fold(t[0].clone(), |y, w| linear(&y, w, None)?.tanh());
            y = checkpoint(run, &[&y]).unwrap();
        }
        let loss = y.mean((), false).unwrap();
        drop(y);
        let kept = in_use(queue).0 - before;
        assert!(kept <= 7 * ACTIVATION, "{}: {kept} bytes are kept in spite of checkpoints", device.platform_name);
        reset_peak(queue);
        loss.backward().unwrap();
        queue.finish().unwrap();
        let peak = in_use(queue).1 - before;
        assert!(
            peak <= (2 * 10 + 10) * ACTIVATION + LAYERS * WEIGHT,
            "{}: {peak} bytes at the peak",
            device.platform_name
        );
    }
}

#[test]
fn an_inference_loop_keeps_nothing() {
    for device in devices() {
        let queue = &device.queue;
        let weights = weights(queue);
        let x = leaf(queue, DType::F32, &[BATCH, WIDTH], 99, (-1.0, 1.0)).detach();
        let pass = || weights.iter().fold(x.clone(), |y, w| linear(&y, w, None).unwrap().tanh().unwrap());
        drop(pass());
        let (before, _) = in_use(queue);
        for _ in 0..20 {
            drop(pass());
        }
        assert_eq!(in_use(queue).0, before, "{}: recorded and dropped", device.platform_name);
        let _scope = no_grad();
        reset_peak(queue);
        for _ in 0..20 {
            drop(pass());
        }
        assert!(in_use(queue).1 - before <= 4 * ACTIVATION, "{}: nothing is recorded", device.platform_name);
        queue.finish().unwrap();
    }
}

#[test]
fn autocast_keeps_copies_of_weights_until_the_scope_ends_or_the_weights_do() {
    for device in devices() {
        let queue = &device.queue;
        let x = Tensor::full(queue, [1, WIDTH], DType::F16, 1.0).unwrap();
        let weights = weights(queue);
        let before = in_use(queue).0;
        {
            let _scope = autocast(DType::F16).unwrap();
            for weight in &weights {
                linear(&x, weight, None).unwrap();
            }
            assert_eq!(in_use(queue).0 - before, LAYERS * WEIGHT / 2);
        }
        assert_eq!(in_use(queue).0, before);
        let _scope = autocast(DType::F16).unwrap();
        for i in 0..LAYERS {
            linear(&x, &leaf(queue, DType::F32, &[WIDTH, WIDTH], i as u64, (-0.2, 0.2)), None).unwrap();
        }
        assert!(in_use(queue).0 - before <= 2 * WEIGHT, "copies of weights that are gone");
    }
}
