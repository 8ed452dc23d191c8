//! GFLOP/s of matrix products on the native CPU and on every OpenCL device.
//!
//! `cargo bench -p netcl-ops --bench matmul` prints a table. Options after `--`: `--device <part of a name>` and
//! `--size <n>` narrow it, `--json` prints one line per product for `benches/matmul_peers.py`, `--skinny` adds products with few
//! rows or columns. Times are the best of several, so that a busy machine shows the code and not its neighbours.
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run should stop")]

use std::time::{Duration, Instant};

use netcl_ops::core::device::{DeviceHandle, manager};
use netcl_ops::core::dtype::DType;
use netcl_ops::core::tensor::{HostOptions, Tensor};
use netcl_ops::matmul::matmul;

struct Options {
    device: String,
    size: Option<usize>,
    json: bool,
    skinny: bool,
}

fn options() -> Options {
    let mut options = Options { device: String::new(), size: None, json: false, skinny: false };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--device" => options.device = args.next().unwrap().to_lowercase(),
            "--size" => options.size = Some(args.next().unwrap().parse().unwrap()),
            "--json" => options.json = true,
            "--skinny" => options.skinny = true,
            // Cargo's own.
            "--bench" => {}
            other => eprintln!("unknown option {other}"),
        }
    }
    options
}

/// Seconds of one product: the best of as many as fit into half a second, at least five.
fn seconds(device: &DeviceHandle, (m, n, k): (usize, usize, usize), dtype: DType) -> f64 {
    let make = |rows: usize, cols: usize| {
        let values: Vec<f32> = (0..rows * cols).map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5).collect();
        let cast = HostOptions { dtype: Some(dtype), ..Default::default() };
        Tensor::from_host_with(&device.queue, &values, [rows, cols], cast).unwrap()
    };
    let (a, b) = (make(m, k), make(k, n));
    // Tiny products are timed in bunches.
    let bunch = (200_000 / (m * n * k)).max(1);
    let once = || {
        let start = Instant::now();
        for _ in 0..bunch {
            std::hint::black_box(matmul(&a, &b).unwrap());
        }
        device.queue.finish().unwrap();
        start.elapsed().as_secs_f64() / bunch as f64
    };
    once();
    let start = Instant::now();
    let mut best = f64::INFINITY;
    let mut runs = 0;
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
    let mut cells: Vec<((usize, usize, usize), DType)> =
        [8, 16, 32, 64, 128, 256, 512, 1024, 2048].map(|n| ((n, n, n), DType::F32)).to_vec();
    cells.extend([DType::F16, DType::BF16, DType::F64].map(|dtype| ((1024, 1024, 1024), dtype)));
    if let Some(n) = options.size {
        cells = vec![((n, n, n), DType::F32)];
    }
    if options.skinny {
        let shapes =
            [(1, 4096, 4096), (4096, 1, 4096), (4, 4096, 4096), (8, 4096, 4096), (32, 4096, 1024), (64, 64, 65536)];
        cells.extend(shapes.map(|shape| (shape, DType::F32)));
        cells.push(((1, 4096, 4096), DType::BF16));
    }
    for device in &devices {
        let name = format!("{} {}", device.platform_name, device.device_name);
        if !name.to_lowercase().contains(&options.device) {
            continue;
        }
        for &((m, n, k), dtype) in &cells {
            if device.queue.check_dtype("bench", dtype).is_err() {
                continue;
            }
            let t = seconds(device, (m, n, k), dtype);
            let rate = 2.0 * (m * n * k) as f64 / t / 1e9;
            if options.json {
                println!(
                    r#"{{"device": "{name}", "m": {m}, "n": {n}, "k": {k}, "dtype": "{dtype}", "seconds": {t:e}}}"#
                );
            } else {
                println!("{name:<60.60} {dtype:<9} {m:>5} x {n:>5} x {k:>5} {:>12.2} us {rate:>9.1} GFLOP/s", t * 1e6);
            }
        }
    }
}
