//! GFLOP/s of matrix products on the native CPU and on every OpenCL device.
//!
//! `cargo bench -p netcl-ops --bench matmul` prints a table. Options after `--`: `--device <part of a name>` and `--size <n>` or
//! `--size <m>x<n>x<k>` (of `--dtype <name>`), as often as wanted, narrow it, `--layout nt` or `tn` transposes an operand,
//! `--json` prints one line per product for `benches/matmul_peers.py`, `--skinny` adds products with few rows or columns,
//! `--precision <name>` and `--kernel <name>` say how to multiply, `--bunch <n>` gives the device so many products at once. Times
//! are the best of several, so that a busy machine shows the code and not its neighbours; the median stands beside it.
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run should stop")]

use std::time::{Duration, Instant};

use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::precision::MatmulPrecision;
use netcl_core::tensor::{HostOptions, Tensor};
use netcl_ops::matmul::{MatmulOptions, Variant, matmul_with};

struct Options {
    device: String,
    sizes: Vec<(usize, usize, usize)>,
    layout: String,
    dtype: DType,
    json: bool,
    skinny: bool,
    precision: Option<MatmulPrecision>,
    kernel: Option<Variant>,
    bunch: usize,
}

fn options() -> Options {
    let mut options = Options {
        device: String::new(),
        sizes: Vec::new(),
        layout: "nn".to_owned(),
        dtype: DType::F32,
        json: false,
        skinny: false,
        precision: None,
        kernel: None,
        bunch: 1,
    };
    let kernels = || Variant::PORTABLE.into_iter().chain(Variant::MATRIX_UNITS);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--device" => options.device = args.next().unwrap().to_lowercase(),
            "--size" => {
                let lengths: Vec<usize> = args.next().unwrap().split('x').map(|n| n.parse().unwrap()).collect();
                options.sizes.push(match lengths[..] {
                    [m, n, k] => (m, n, k),
                    _ => (lengths[0], lengths[0], lengths[0]),
                });
            }
            "--layout" => options.layout = args.next().unwrap(),
            "--dtype" => {
                let name = args.next().unwrap();
                options.dtype = DType::FLOATS.into_iter().find(|dtype| dtype.name() == name).unwrap();
            }
            "--precision" => options.precision = Some(args.next().unwrap().parse().unwrap()),
            "--kernel" => {
                let name = args.next().unwrap();
                options.kernel = Some(kernels().find(|kernel| kernel.kernel_name() == name).unwrap());
            }
            "--bunch" => options.bunch = args.next().unwrap().parse().unwrap(),
            "--json" => options.json = true,
            "--skinny" => options.skinny = true,
            // Cargo's own.
            "--bench" => {}
            other => eprintln!("unknown option {other}"),
        }
    }
    options
}

/// Seconds of one product: the best and the median of as many as fit into half a second, at least five.
fn seconds(options: &Options, device: &DeviceHandle, (m, n, k): (usize, usize, usize), dtype: DType) -> (f64, f64) {
    let (transpose_a, transpose_b) = (options.layout.starts_with('t'), options.layout.ends_with('t'));
    let how = MatmulOptions {
        variant: options.kernel,
        precision: options.precision,
        transpose_a,
        transpose_b,
        ..Default::default()
    };
    let make = |rows: usize, cols: usize, transposed: bool| {
        let (rows, cols) = if transposed { (cols, rows) } else { (rows, cols) };
        let values: Vec<f32> = (0..rows * cols).map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5).collect();
        let cast = HostOptions { dtype: Some(dtype), ..Default::default() };
        Tensor::from_host_with(&device.queue, &values, [rows, cols], cast).unwrap()
    };
    let (a, b) = (make(m, k, transpose_a), make(k, n, transpose_b));
    // Tiny products are timed in bunches.
    let bunch = (200_000 / (m * n * k)).max(options.bunch);
    let once = || {
        let start = Instant::now();
        for _ in 0..bunch {
            std::hint::black_box(matmul_with(&a, &b, &how).unwrap());
        }
        device.queue.finish().unwrap();
        start.elapsed().as_secs_f64() / bunch as f64
    };
    once();
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || start.elapsed() < Duration::from_millis(500) {
        times.push(once());
    }
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

fn main() {
    let options = options();
    let mut devices = vec![manager().cpu()];
    devices.extend(manager().discover().unwrap().iter().map(|d| manager().handle(d).unwrap()));
    let mut cells: Vec<((usize, usize, usize), DType)> =
        [8, 16, 32, 64, 128, 256, 512, 1024, 2048].map(|n| ((n, n, n), DType::F32)).to_vec();
    cells.extend([DType::F16, DType::BF16, DType::F64].map(|dtype| ((1024, 1024, 1024), dtype)));
    if !options.sizes.is_empty() {
        cells = options.sizes.iter().map(|&size| (size, options.dtype)).collect();
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
            let (t, median) = seconds(&options, device, (m, n, k), dtype);
            let rate = 2.0 * (m * n * k) as f64 / t / 1e9;
            if options.json {
                println!(
                    r#"{{"device": "{name}", "m": {m}, "n": {n}, "k": {k}, "dtype": "{dtype}", "seconds": {t:e}}}"#
                );
            } else {
                let (best, median) = (t * 1e6, median * 1e6);
                println!(
                    "{name:<60.60} {dtype:<9} {m:>5} x {n:>5} x {k:>5} {best:>12.2} us (median {median:.2}) {rate:>9.1} GFLOP/s"
                );
            }
        }
    }
}
