//! Times of convolutions and their gradients on the native CPU and on every OpenCL device.
//!
//! `cargo bench -p netcl-ops --bench conv` prints a table. Options after `--`: `--device <part of a name>` and `--case <name>` narrow
//! it, `--variant <name>` forces one on OpenCL devices, `--json` prints one line per cell for `benches/conv_peers.py`. Times are
//! the best of several, so that a busy machine shows the code and not its neighbours.
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run should stop")]

use std::time::{Duration, Instant};

use netcl_core::device::{DeviceHandle, manager};
use netcl_core::tensor::Tensor;
use netcl_ops::conv::{
    ConvOptions, ConvParams, Variant, conv2d, conv2d_backward_data, conv2d_backward_weight, symmetric,
};

/// A name that says it, the input, and filters, kernel, stride, padding, groups.
type Case = (&'static str, [usize; 4], [usize; 5]);

/// `benches/conv_peers.py` has the same.
const CASES: [Case; 17] = [
    ("n1_3x3_64_32", [1, 64, 32, 32], [64, 3, 1, 1, 1]),
    ("3x3_64_32", [16, 64, 32, 32], [64, 3, 1, 1, 1]),
    ("3x3_3_32", [32, 3, 32, 32], [32, 3, 1, 1, 1]),
    ("3x3_1_28", [64, 1, 28, 28], [16, 3, 1, 1, 1]),
    ("5x5_16_14", [64, 16, 14, 14], [32, 5, 1, 2, 1]),
    ("3x3_s2_64_32", [16, 64, 32, 32], [128, 3, 2, 1, 1]),
    ("7x7_s2_3_112", [4, 3, 112, 112], [64, 7, 2, 3, 1]),
    ("1x1_128_16", [16, 128, 16, 16], [256, 1, 1, 0, 1]),
    ("3x3_128_16", [16, 128, 16, 16], [128, 3, 1, 1, 1]),
    ("3x3_s2_128_16", [16, 128, 16, 16], [256, 3, 2, 1, 1]),
    ("1x1_s2_128_16", [16, 128, 16, 16], [256, 1, 2, 0, 1]),
    ("3x3_256_8", [16, 256, 8, 8], [256, 3, 1, 1, 1]),
    ("3x3_s2_256_8", [16, 256, 8, 8], [512, 3, 2, 1, 1]),
    ("3x3_512_4", [16, 512, 4, 4], [512, 3, 1, 1, 1]),
    ("3x3_1_32_28", [64, 1, 28, 28], [32, 3, 1, 1, 1]),
    ("3x3_32_14", [64, 32, 14, 14], [64, 3, 1, 1, 1]),
    ("depthwise_64_32", [16, 64, 32, 32], [64, 3, 1, 1, 64]),
];

#[derive(Default)]
struct Options {
    device: String,
    case: String,
    variant: Option<Variant>,
    json: bool,
}

fn options() -> Options {
    let mut options = Options::default();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--device" => options.device = args.next().unwrap().to_lowercase(),
            "--case" => options.case = args.next().unwrap(),
            "--variant" => {
                let name = args.next().unwrap().to_lowercase();
                options.variant = Variant::ALL.into_iter().find(|v| format!("{v:?}").to_lowercase() == name);
            }
            "--json" => options.json = true,
            // Cargo's own.
            "--bench" => {}
            other => eprintln!("unknown option {other}"),
        }
    }
    options
}

/// Seconds of the best of as many runs as fit into half a second, at least five.
fn seconds(device: &DeviceHandle, body: impl Fn()) -> f64 {
    let once = || {
        let start = Instant::now();
        body();
        device.queue.finish().unwrap();
        start.elapsed().as_secs_f64()
    };
    once();
    let start = Instant::now();
    let (mut best, mut runs) = (f64::INFINITY, 0);
    while runs < 5 || start.elapsed() < Duration::from_millis(500) {
        best = best.min(once());
        runs += 1;
    }
    best
}

fn main() {
    let options = options();
    let mut devices = vec![manager().cpu()];
    devices.extend(manager().discover().unwrap().iter().map(|d| manager().handle(d).unwrap()));
    for device in &devices {
        let name = format!("{} {}", device.platform_name, device.device_name);
        if !name.to_lowercase().contains(&options.device) {
            continue;
        }
        for (case, shape, [filters, kernel, stride, pad, groups]) in CASES {
            if !case.contains(&options.case) {
                continue;
            }
            let make = |shape: &[usize]| {
                let n: usize = shape.iter().product();
                let values: Vec<f32> = (0..n).map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5).collect();
                Tensor::from_host(&device.queue, &values, shape).unwrap()
            };
            let params = ConvParams { stride: [stride; 2], padding: symmetric([pad; 2]), groups, ..Default::default() };
            let conv = ConvOptions { params, variant: options.variant, ..Default::default() };
            let (x, weight) = (make(&shape), make(&[filters, shape[1] / groups, kernel, kernel]));
            let Ok(out) = conv2d(&x, &weight, None, &conv) else { continue };
            let grad = make(out.shape());
            let forward = || drop(std::hint::black_box(conv2d(&x, &weight, None, &conv).unwrap()));
            let data = || {
                drop(std::hint::black_box(conv2d_backward_data(&grad, &weight, x.shape(), &conv).unwrap()));
            };
            let weights = || {
                drop(std::hint::black_box(conv2d_backward_weight(&grad, &x, weight.shape(), &conv).unwrap()));
            };
            let all = || {
                forward();
                data();
                weights();
            };
            let flops = 2.0 * out.size() as f64 * (weight.size() / filters) as f64;
            let cells: [(&str, f64, &dyn Fn()); 4] =
                [("forward", 1.0, &forward), ("data", 1.0, &data), ("weight", 1.0, &weights), ("all", 3.0, &all)];
            for (what, times, body) in cells {
                let t = seconds(device, body);
                if options.json {
                    println!(r#"{{"device": "{name}", "case": "{case}", "what": "{what}", "seconds": {t:e}}}"#);
                } else {
                    let rate = times * flops / t / 1e9;
                    println!("{name:<50.50} {case:<16} {what:<8} {:>11.1} us {rate:>8.1} GFLOP/s", t * 1e6);
                }
            }
        }
    }
}
