//! Memory-bound operations on every OpenCL device: milliseconds, GB/s, and the share of what a copy reaches in the same run.
//!
//! `cargo bench -p netcl-ops --bench memory -- [--device <part of a name>] [--rows <n>] [--columns <n>] [--runs <n>]`
//!
//! A time is that of several runs in a row, divided by their number, so that the host's part hides behind the device's; the median
//! and the best of `--runs` such times are printed. Results are held against float64 on a sample of rows.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a benchmark stops at its first surprise")]

use std::time::Instant;

use netcl_core::backend::Queue;
use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::many::{Many, Operands, Segment, Segments, Target};
use netcl_core::shape::Slice;
use netcl_core::tensor::{Tensor, reshape};
use netcl_ops::norm::{self, Affine};

/// Runs whose time is taken together.
const IN_A_ROW: usize = 10;
/// Rows that are held against float64.
const SAMPLE: usize = 3;

#[derive(Clone)]
struct Options {
    device: String,
    rows: usize,
    columns: usize,
    runs: usize,
}

impl Options {
    /// The sizes of the project's goals, or those asked for.
    fn parse() -> Options {
        let mut options = Options { device: String::new(), rows: 16384, columns: 4096, runs: 9 };
        let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
        while let Some(name) = args.next() {
            let value = args.next().unwrap_or_else(|| panic!("{name} needs a value"));
            let number = || value.parse().unwrap_or_else(|_| panic!("{name} takes a number, not {value}"));
            match name.as_str() {
                "--device" => options.device = value.to_lowercase(),
                "--rows" => options.rows = number(),
                "--columns" => options.columns = number(),
                "--runs" => options.runs = number(),
                _ => panic!("{name} is none of --device, --rows, --columns, --runs"),
            }
        }
        options
    }
}

struct Bench {
    queue: Queue,
    runs: usize,
    /// What a copy reaches, in GB/s.
    ceiling: f64,
}

impl Bench {
    /// Times an operation that moves so many bytes at least, prints a line and returns GB/s.
    fn time<R>(&self, name: &str, bytes: usize, run: impl Fn() -> R) -> f64 {
        run();
        self.queue.finish().unwrap();
        let mut times: Vec<f64> = (0..self.runs)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..IN_A_ROW {
                    run();
                }
                self.queue.finish().unwrap();
                start.elapsed().as_secs_f64() / IN_A_ROW as f64
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let (median, best) = (times[times.len() / 2], times[0]);
        let rate = bytes as f64 / median / 1e9;
        let share = if self.ceiling > 0.0 { format!("{:5.1} %", 100.0 * rate / self.ceiling) } else { String::new() };
        println!("{name:<34} {:9.4} ms {:9.4} ms {rate:9.1} GB/s {share}", median * 1e3, best * 1e3);
        rate
    }

    /// The first, the middle and the last rows of a matrix.
    fn sample(&self, x: &Tensor) -> Vec<Vec<f64>> {
        let rows = x.shape()[0];
        (0..SAMPLE)
            .map(|i| {
                let at = (i * (rows - 1) / (SAMPLE - 1)) as isize;
                x.slice(0, Slice::new(Some(at), Some(at + 1), 1)).unwrap().contiguous().unwrap().to_f64_vec().unwrap()
            })
            .collect()
    }
}

/// Stops the run if values are off by more than a share of the largest.
fn check(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1e-300, |m: f64, v| m.max(v.abs()));
    let worst = got.iter().zip(expected).fold(0.0, |m: f64, (g, e)| m.max((g - e).abs()));
    assert!(worst <= tolerance * largest, "{what} is off by {worst:e}, the largest value is {largest:e}");
}

fn main() {
    let options = Options::parse();
    for device in manager().discover().unwrap() {
        let handle = manager().handle(&device).unwrap();
        if handle.device_name.to_lowercase().contains(&options.device) {
            println!("{} ({})", handle.device_name, handle.platform_name);
            println!("{:<34} {:>12} {:>12} {:>14} {:>7}", "", "median", "best", "", "copy");
            on_device(&handle.queue, &options);
        }
    }
}

fn on_device(queue: &Queue, options: &Options) {
    let &Options { rows, columns, runs, .. } = options;
    let generator = netcl_core::random::Generator::new(1);
    let mut host = vec![0.0f64; rows * columns];
    netcl_core::random::fill_uniform_f64(&mut host, &generator).unwrap();
    let host: Vec<f32> = host.into_iter().map(|u| (4.0 * u - 2.0) as f32).collect();
    let x = Tensor::from_host(queue, &host, [rows, columns]).unwrap();
    let y = x.duplicate().unwrap();
    let all = 4 * rows * columns;
    let mut bench = Bench { queue: queue.clone(), runs, ceiling: 0.0 };
    bench.ceiling = bench.time("copy", 2 * all, || y.assign(&x).unwrap());
    copies(&bench, &x, &y, all);
    reductions(&bench, &x, &host, all);
    softmaxes(&bench, &x, all);
    norms(&bench, &x, all);
    tables_and_updates(&bench, &x, all);
}

fn copies(bench: &Bench, x: &Tensor, y: &Tensor, all: usize) {
    let (rows, columns) = (x.shape()[0], x.shape()[1]);
    bench.time("fill", all, || y.fill(0.5).unwrap());
    bench.time("relu", 2 * all, || netcl_ops::relu(x).unwrap());
    bench.time("add", 3 * all, || netcl_ops::add(x, y).unwrap());
    bench.time("cast to bfloat16", all + all / 2, || x.cast(DType::BF16).unwrap());
    let half = x.slice(1, Slice::new(None, Some(columns as isize / 2), 1)).unwrap();
    bench.time("left half of each row", all, || half.contiguous().unwrap());
    let turned = x.permute(&[1, 0]).unwrap();
    bench.time("transpose", 2 * all, || turned.contiguous().unwrap());
    let got = bench.sample(&turned.contiguous().unwrap().permute(&[1, 0]).unwrap());
    assert_eq!(got, bench.sample(x), "transpose");
    let batched = reshape(x, [rows * columns / 4096, 64, 64]).unwrap().permute(&[0, 2, 1]).unwrap();
    bench.time("transpose of 64 x 64, batched", 2 * all, || batched.contiguous().unwrap());
}

fn reductions(bench: &Bench, x: &Tensor, host: &[f32], all: usize) {
    let columns = x.shape()[1];
    bench.time("sum", all, || netcl_ops::sum(x, (), false).unwrap());
    let total = netcl_ops::sum(x, (), false).unwrap().item().unwrap();
    let expected: f64 = host.iter().map(|v| f64::from(*v)).sum();
    let size: f64 = host.iter().map(|v| f64::from(v.abs())).sum();
    assert!((total - expected).abs() < 1e-6 * size, "sum is {total}, not {expected}");
    bench.time("max", all, || netcl_ops::max(x, (), false).unwrap());
    bench.time("sums of rows", all, || netcl_ops::sum(x, 1, false).unwrap());
    bench.time("sums of columns", all, || netcl_ops::sum(x, 0, false).unwrap());
    let sums = netcl_ops::sum(x, 0, false).unwrap().to_f64_vec().unwrap();
    let expected: Vec<f64> =
        (0..SAMPLE).map(|c| host.iter().skip(c).step_by(columns).map(|v| f64::from(*v)).sum()).collect();
    check("sums of columns", &sums[..SAMPLE], &expected, 1e-4);
    let images = reshape(x, [x.size() / 65536, 64, 1024]).unwrap();
    bench.time("sums of channels (N, 64, 32, 32)", all, || netcl_ops::sum(&images, &[0isize, 2][..], false).unwrap());
}

fn softmax_of(row: &[f64]) -> Vec<f64> {
    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = row.iter().map(|v| (v - top).exp()).sum();
    row.iter().map(|v| (v - top).exp() / total).collect()
}

fn softmaxes(bench: &Bench, x: &Tensor, all: usize) {
    let columns = x.shape()[1];
    bench.time("softmax", 2 * all, || netcl_ops::softmax(x, 1).unwrap());
    let y = netcl_ops::softmax(x, 1).unwrap();
    for (got, row) in bench.sample(&y).iter().zip(bench.sample(x)) {
        check("softmax", got, &softmax_of(&row), 1e-5);
    }
    bench.time("softmax backward", 3 * all, || netcl_ops::softmax_backward(x, &y, 1).unwrap());
    let rows = x.shape()[0];
    let labels: Vec<i64> = (0..rows).map(|r| (r * 7 % columns) as i64).collect();
    let labels = IndexTensor::from_host(&bench.queue, &labels, [rows]).unwrap();
    let loss = || {
        let log = netcl_ops::log_softmax(x, 1).unwrap();
        netcl_ops::mean(&netcl_ops::pick(&log, 1, &labels, None).unwrap(), (), false).unwrap()
    };
    bench.time("log_softmax, pick, mean", 2 * all, loss);
    bench.time("log_softmax backward", 3 * all, || netcl_ops::log_softmax_backward(x, &y, 1).unwrap());
    for n in [128, 1000] {
        let short = x.size() / n * n;
        let flat = reshape(x, [x.size()]).unwrap().slice(0, Slice::new(None, Some(short as isize), 1)).unwrap();
        let short = reshape(&flat, [short / n, n]).unwrap();
        bench.time(&format!("softmax of rows of {n}"), 2 * all, || netcl_ops::softmax(&short, 1).unwrap());
    }
    let long = reshape(x, [x.size() >> 16, 1 << 16]).unwrap();
    bench.time("softmax of rows of 65536", 2 * all, || netcl_ops::softmax(&long, 1).unwrap());
}

fn norms(bench: &Bench, x: &Tensor, all: usize) {
    let columns = x.shape()[1];
    let queue = &bench.queue;
    let weight = Tensor::full(queue, [columns], DType::F32, 1.5).unwrap();
    let bias = Tensor::full(queue, [columns], DType::F32, 0.5).unwrap();
    let affine = Affine { weight: Some(&weight), bias: Some(&bias) };
    bench.time("layer norm", 2 * all, || norm::layer_norm(x, 1, affine, 1e-5).unwrap());
    let saved = norm::layer_norm(x, 1, affine, 1e-5).unwrap();
    for (got, row) in bench.sample(&saved.output).iter().zip(bench.sample(x)) {
        let mean = row.iter().sum::<f64>() / columns as f64;
        let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / columns as f64;
        let expected: Vec<f64> = row.iter().map(|v| (v - mean) / (var + 1e-5).sqrt() * 1.5 + 0.5).collect();
        check("layer norm", got, &expected, 1e-5);
    }
    bench.time("layer norm backward", 3 * all, || {
        norm::layer_norm_backward(x, x, 1, affine, &saved.mean, &saved.rstd).unwrap()
    });
    bench.time("rms norm", 2 * all, || norm::rms_norm(x, 1, Some(&weight), 1e-5).unwrap());
    let images = reshape(x, [x.size() / 65536, 64, 32, 32]).unwrap();
    let weight = Tensor::full(queue, [64], DType::F32, 1.5).unwrap();
    let affine = Affine { weight: Some(&weight), bias: Some(&weight) };
    // The statistics are one pass over the input, applying them another.
    bench.time("batch norm (N, 64, 32, 32)", 3 * all, || norm::batch_norm(&images, affine, None, 1e-5).unwrap());
    let saved = norm::batch_norm(&images, affine, None, 1e-5).unwrap();
    bench.time("batch norm backward", 5 * all, || {
        norm::batch_norm_backward(&images, &images, affine, &saved.mean, &saved.rstd, true).unwrap()
    });
    bench.time("group norm, 32 groups", 2 * all, || norm::group_norm(&images, 32, affine, 1e-5).unwrap());
}

fn tables_and_updates(bench: &Bench, x: &Tensor, all: usize) {
    let rows = x.shape()[0];
    let queue = &bench.queue;
    let at: Vec<i64> = (0..rows).map(|r| (r * 7919 % rows) as i64).collect();
    let at = IndexTensor::from_host(queue, &at, [rows]).unwrap();
    bench.time("embedding (indices checked)", 2 * all, || netcl_ops::embedding(x, &at).unwrap());
    let got = bench.sample(&netcl_ops::embedding(x, &at).unwrap());
    assert_eq!(got[0], bench.sample(x)[0], "embedding");

    // Adam: reads gradient, parameter and two moments, writes all but the gradient.
    let size = x.size() / 4;
    let g = Graph::new();
    let [p, grad, m, v] = [0, 1, 2, 3].map(|i| g.input(i));
    let (m1, v1) = (m * 0.9 + grad * 0.1, v * 0.999 + grad * grad * 0.001);
    let update = g.finish(&[p - g.scalar(0) * m1 / (v1.sqrt() + 1e-8), m1, v1]);
    let adam = Many::new("adam", update, 2, 2, vec![Target::List(0), Target::Row(0), Target::Row(1)]);
    let parameters = [Tensor::full(queue, [size], DType::F32, 0.5).unwrap()];
    let gradients = [Tensor::full(queue, [size], DType::F32, 0.25).unwrap()];
    let moments = Tensor::full(queue, [2 * size], DType::F32, 0.0).unwrap();
    let segments = Segments::new(vec![Segment::of(size)]);
    let sets = [vec![Number::Value(1e-3)]];
    let operands = Operands { lists: &[&parameters, &gradients], flat: Some(&moments), sets: &sets };
    bench.time("Adam, a quarter of the elements", 7 * all / 4, || adam.run(&segments, &operands).unwrap());
}
