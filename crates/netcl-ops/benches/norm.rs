//! Milliseconds of normalisations, softmax and pooling, forward and forward with backward.
//!
//! `cargo bench -p netcl-ops --bench norm` prints every device; `--json --device <part of a name> --case <name>` prints one line
//! per case for `benches/norm_peers.py`.

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first surprise")]

use std::time::Instant;

use netcl_core::backend::Queue;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::random::Generator;
use netcl_core::tensor::Tensor;
use netcl_ops::norm::{
    Affine, Running, batch_norm, batch_norm_backward, batch_norm_eval, group_norm, group_norm_backward, layer_norm,
    layer_norm_backward, rms_norm, rms_norm_backward,
};
use netcl_ops::pool::{
    Averaging, Window, adaptive_avg_pool2d, adaptive_avg_pool2d_backward, avg_pool2d, avg_pool2d_backward, max_pool2d,
    max_pool2d_backward,
};
use netcl_ops::random::normal;
use netcl_ops::resample::{upsample_bilinear, upsample_nearest};
use netcl_ops::{log_softmax, log_softmax_backward, softmax, softmax_backward};

/// A case and the shape of its input.
const CASES: [(&str, &[usize]); 27] = [
    ("batch_norm", &[32, 64, 32, 32]),
    ("batch_norm+backward", &[32, 64, 32, 32]),
    ("batch_norm_small", &[32, 512, 4, 4]),
    ("batch_norm_small+backward", &[32, 512, 4, 4]),
    ("batch_norm_eval", &[32, 64, 32, 32]),
    ("batch_norm_1d", &[4096, 256]),
    ("batch_norm_1d+backward", &[4096, 256]),
    ("layer_norm", &[4096, 768]),
    ("layer_norm+backward", &[4096, 768]),
    ("rms_norm", &[4096, 768]),
    ("rms_norm+backward", &[4096, 768]),
    ("group_norm", &[32, 64, 32, 32]),
    ("group_norm+backward", &[32, 64, 32, 32]),
    ("softmax", &[4096, 1024]),
    ("softmax+backward", &[4096, 1024]),
    ("log_softmax", &[4096, 1024]),
    ("log_softmax+backward", &[4096, 1024]),
    ("max_pool_2x2", &[32, 64, 32, 32]),
    ("max_pool_2x2+backward", &[32, 64, 32, 32]),
    ("max_pool", &[32, 64, 32, 32]),
    ("max_pool+backward", &[32, 64, 32, 32]),
    ("avg_pool", &[32, 64, 32, 32]),
    ("avg_pool+backward", &[32, 64, 32, 32]),
    ("adaptive_avg_pool", &[32, 512, 7, 7]),
    ("adaptive_avg_pool+backward", &[32, 512, 7, 7]),
    ("nearest", &[8, 64, 32, 32]),
    ("bilinear", &[8, 64, 32, 32]),
];

/// One run of a case.
fn work(case: &str, shape: &[usize], queue: &Queue) -> Box<dyn Fn()> {
    let mut generator = Generator::new(1);
    let mut make = |shape: &[usize]| normal(queue, shape, DType::F32, 0.0, 1.0, Some(&mut generator)).unwrap();
    let (x, g) = (make(shape), make(shape));
    let channels = if case.contains("layer") || case.contains("rms") { shape[shape.len() - 1] } else { shape[1] };
    let [weight, bias, mean] = [make(&[channels]), make(&[channels]), make(&[channels])];
    let var = Tensor::full(queue, [channels], DType::F32, 1.0).unwrap();
    let (name, backward) = case.split_once('+').map_or((case, false), |(name, _)| (name, true));
    let queue = queue.clone();
    let window = if case.contains("2x2") {
        Window::new([2, 2])
    } else {
        Window { stride: [2, 2], padding: [1, 1], ..Window::new([3, 3]) }
    };
    let pooled = match case {
        _ if case.starts_with("adaptive") => Some(adaptive_avg_pool2d(&x, [1, 1]).unwrap()),
        _ if case.contains("pool") => Some(max_pool2d(&x, &window).unwrap().output),
        _ => None,
    };
    let name = name.to_owned();
    Box::new(move || {
        let affine = Affine { weight: Some(&weight), bias: Some(&bias) };
        match name.as_str() {
            "batch_norm" | "batch_norm_small" | "batch_norm_1d" => {
                let running = Running::new(&mean, &var, 0.1);
                let y = batch_norm(&x, affine, Some(running), 1e-5).unwrap();
                if backward {
                    batch_norm_backward(&g, &x, affine, &y.mean, &y.rstd, true).unwrap();
                }
            }
            "batch_norm_eval" => drop(batch_norm_eval(&x, affine, &mean, &var, 1e-5).unwrap()),
            "layer_norm" => {
                let y = layer_norm(&x, 1, affine, 1e-5).unwrap();
                if backward {
                    layer_norm_backward(&g, &x, 1, affine, &y.mean, &y.rstd).unwrap();
                }
            }
            "rms_norm" => {
                let y = rms_norm(&x, 1, affine.weight, 1e-5).unwrap();
                if backward {
                    rms_norm_backward(&g, &x, 1, affine.weight, &y.rstd).unwrap();
                }
            }
            "group_norm" => {
                let y = group_norm(&x, 32, affine, 1e-5).unwrap();
                if backward {
                    group_norm_backward(&g, &x, 32, affine, &y.mean, &y.rstd).unwrap();
                }
            }
            "softmax" => {
                let y = softmax(&x, -1).unwrap();
                if backward {
                    softmax_backward(&g, &y, -1).unwrap();
                }
            }
            "log_softmax" => {
                let y = log_softmax(&x, -1).unwrap();
                if backward {
                    log_softmax_backward(&g, &y, -1).unwrap();
                }
            }
            "max_pool" | "max_pool_2x2" => {
                let y = max_pool2d(&x, &window).unwrap();
                if backward {
                    max_pool2d_backward(pooled.as_ref().unwrap(), x.shape(), &y.indices, &window).unwrap();
                }
            }
            "avg_pool" => {
                avg_pool2d(&x, &window, Averaging::default()).unwrap();
                if backward {
                    let g = pooled.as_ref().unwrap();
                    avg_pool2d_backward(g, x.shape(), &window, Averaging::default()).unwrap();
                }
            }
            "adaptive_avg_pool" => {
                adaptive_avg_pool2d(&x, [1, 1]).unwrap();
                if backward {
                    adaptive_avg_pool2d_backward(pooled.as_ref().unwrap(), x.shape()).unwrap();
                }
            }
            "nearest" => drop(upsample_nearest(&x, 2.0).unwrap()),
            _ => drop(upsample_bilinear(&x, 2.0, false).unwrap()),
        }
        queue.finish().unwrap();
    })
}

/// The best of as many runs as fit into a third of a second, at least five.
fn seconds(run: &dyn Fn()) -> f64 {
    run();
    let (mut best, mut runs, start) = (f64::INFINITY, 0, Instant::now());
    while runs < 5 || start.elapsed().as_secs_f64() < 0.33 {
        let begin = Instant::now();
        run();
        best = best.min(begin.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let option = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)).cloned();
    let json = args.iter().any(|a| a == "--json");
    let (device, case) = (option("--device").unwrap_or_default(), option("--case"));
    let mut handles: Vec<DeviceHandle> = vec![manager().cpu()];
    handles.extend(manager().discover().unwrap().iter().map(|device| manager().handle(device).unwrap()));
    for handle in handles.iter().filter(|h| h.platform_name.contains(&device) || h.device_name.contains(&device)) {
        for (name, shape) in CASES.into_iter().filter(|(name, _)| case.as_ref().is_none_or(|case| case == name)) {
            let seconds = seconds(&work(name, shape, &handle.queue));
            if json {
                println!("{{\"case\": \"{name}\", \"seconds\": {seconds:e}}}");
            } else {
                println!("{:<24} {name:<28} {shape:?} {:9.3} ms", handle.device_name, seconds * 1e3);
            }
        }
    }
}
