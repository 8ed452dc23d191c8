//! The pointwise chain `tanh(x * y + 1) * sigmoid(x) + relu(y)` as one launch, and rows fused from small operations.
//!
//! `cargo bench -p netcl-core --bench chain` prints milliseconds and bandwidth on every device, beside a plain copy. With
//! `--worker <part of a device's name>` it answers lines such as `chain 16777216` or `softmax 4096 1024` on standard input
//! instead, for `benches/chain_peers.py`; the native CPU is called `netcl`.

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first surprise")]

use std::io::{BufRead, Write};
use std::time::Instant;

use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Elementwise;
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::region::{Combine, RegionBuilder};
use netcl_core::tensor::Tensor;

/// A run without arguments, and the bytes it moves.
type Call = (Box<dyn Fn()>, usize);

fn tensor(device: &DeviceHandle, shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| ((i * 37 + seed * 101) % 4001) as f32 * 0.002 - 4.0).collect();
    Tensor::from_host(&device.queue, &values, shape).unwrap()
}

fn copy(device: &DeviceHandle, n: usize) -> Call {
    let (x, y) = (tensor(device, &[n], 1), Tensor::uninit(&device.queue, [n], DType::F32).unwrap());
    (Box::new(move || y.assign(&x).unwrap()), 2 * 4 * n)
}

fn chain(device: &DeviceHandle, n: usize) -> Call {
    let g = Graph::new();
    let (a, b) = (g.input(0), g.input(1));
    let product = (a * b).named("mul") + 1.0;
    let out = product.named("add").tanh().named("tanh") * a.sigmoid().named("sigmoid");
    let op = Elementwise::new("chain", g.finish(&[(out + b.relu().named("relu")).named("add")]));
    let (x, y) = (tensor(device, &[n], 1), tensor(device, &[n], 2));
    let z = Tensor::uninit(&device.queue, [n], DType::F32).unwrap();
    (Box::new(move || op.run(&[&x, &y], &[], &[&z]).unwrap()), 3 * 4 * n)
}

fn softmax(device: &DeviceHandle, rows: usize, cols: usize) -> Call {
    let mut b = RegionBuilder::new("softmax");
    let g = Graph::new();
    let shifted_exp = g.finish(&[(g.input(0) - g.input(1)).named("sub").exp().named("exp")]);
    let divide = g.finish(&[(g.input(0) / g.input(1)).named("div")]);
    let x = b.input();
    let top = b.reduce(Combine::Max, x);
    let e = b.map(&shifted_exp, &[x, top], &[])[0];
    let sum = b.reduce(Combine::Sum, e);
    let y = b.map(&divide, &[e, sum], &[])[0];
    b.output(y);
    let region = b.finish();
    let x = tensor(device, &[rows, cols], 1);
    let y = Tensor::uninit(&device.queue, [rows, cols], DType::F32).unwrap();
    (Box::new(move || region.run(&[&x], &[], &[&y], 1).unwrap()), 2 * 4 * rows * cols)
}

fn layer_norm(device: &DeviceHandle, rows: usize, cols: usize) -> Call {
    let mut b = RegionBuilder::new("layer_norm");
    let g = Graph::new();
    let (x, y) = (g.input(0), g.input(1));
    let scaled = g.finish(&[x * g.scalar(0)]);
    let less = g.finish(&[x - y]);
    let square = g.finish(&[x * x]);
    let rstd = g.finish(&[(x * g.scalar(0) + g.scalar(1)).rsqrt()]);
    let affine = g.finish(&[x * y * g.input(2) + g.input(3)]);
    let (x, weight, bias) = (b.input(), b.input(), b.input());
    let sum = b.reduce(Combine::Sum, x);
    let mean = b.map(&scaled, &[sum], &[0])[0];
    let centred = b.map(&less, &[x, mean], &[])[0];
    let squares = b.map(&square, &[centred], &[])[0];
    let squares = b.reduce(Combine::Sum, squares);
    let rstd = b.map(&rstd, &[squares], &[0, 1])[0];
    let y = b.map(&affine, &[centred, rstd, weight, bias], &[])[0];
    b.output(y);
    let region = b.finish();
    let x = tensor(device, &[rows, cols], 1);
    let (w, c) = (tensor(device, &[cols], 2), tensor(device, &[cols], 3));
    let (w, c) = (w.expand([rows, cols]).unwrap(), c.expand([rows, cols]).unwrap());
    let y = Tensor::uninit(&device.queue, [rows, cols], DType::F32).unwrap();
    let run = move || region.run(&[&x, &w, &c], &[(1.0 / cols as f64).into(), 1e-5.into()], &[&y], 1).unwrap();
    (Box::new(run), 2 * 4 * rows * cols)
}

fn prepare(device: &DeviceHandle, line: &str) -> Option<Call> {
    let mut words = line.split_whitespace();
    let case = words.next()?;
    let sizes: Vec<usize> = words.map(|w| w.parse().ok()).collect::<Option<_>>()?;
    match (case, sizes.as_slice()) {
        ("copy", &[n]) => Some(copy(device, n)),
        ("chain", &[n]) => Some(chain(device, n)),
        ("softmax", &[rows, cols]) => Some(softmax(device, rows, cols)),
        ("layer_norm", &[rows, cols]) => Some(layer_norm(device, rows, cols)),
        _ => None,
    }
}

/// Milliseconds of runs, sorted.
fn measure(device: &DeviceHandle, call: &Call, seconds: f64) -> Vec<f64> {
    let run = || {
        let start = Instant::now();
        call.0();
        device.queue.finish().unwrap();
        start.elapsed().as_secs_f64() * 1e3
    };
    run();
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || (begin.elapsed().as_secs_f64() < seconds && times.len() < 200) {
        times.push(run());
    }
    times.sort_by(f64::total_cmp);
    times
}

fn devices() -> Vec<DeviceHandle> {
    let mut all = vec![manager().cpu()];
    if let Ok(found) = manager().discover() {
        all.extend(found.iter().filter_map(|device| manager().handle(device).ok()));
    }
    all
}

fn worker(name: &str) {
    let device = devices().into_iter().find(|d| {
        [&d.platform_name, &d.device_name].iter().any(|text| text.to_lowercase().contains(&name.to_lowercase()))
    });
    let device = device.unwrap();
    for line in std::io::stdin().lock().lines() {
        match prepare(&device, &line.unwrap()) {
            Some(call) => {
                let times = measure(&device, &call, 0.4);
                println!("{{\"best\": {}, \"median\": {}}}", times[0], times[times.len() / 2]);
            }
            None => println!("{{\"error\": \"no such case\"}}"),
        }
        std::io::stdout().flush().unwrap();
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|a| a == "--worker") {
        return worker(arguments.get(at + 1).unwrap());
    }
    for device in devices() {
        println!("{} ({})", device.device_name, device.platform_name);
        let cases = ["copy 16777216", "chain 16777216", "softmax 4096 1024", "softmax 65536 64", "layer_norm 4096 768"];
        let large = ["copy 67108864", "chain 67108864", "softmax 16384 4096", "layer_norm 16384 4096"];
        let gpu = device.device_type == netcl_core::device::DeviceType::Gpu;
        for line in cases.iter().chain(large.iter().filter(|_| gpu)) {
            let call = prepare(&device, line).unwrap();
            let times = measure(&device, &call, 1.0);
            let rate = call.1 as f64 / times[0] / 1e6;
            println!("  {line:<20} best {:9.3} ms  median {:9.3} ms {rate:8.1} GB/s", times[0], times[times.len() / 2]);
        }
    }
}
