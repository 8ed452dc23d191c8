//! Softmax, log_softmax, their gradients and cumsum: devices x dtypes x axes x {dense, permuted, strided, expanded}, against f64.

use std::rc::Rc;

use netcl_core::backend::cpu::set_num_threads;
use netcl_core::device::DeviceHandle;
use netcl_core::dtype::DType;
use netcl_core::kernels::group_limit::force_full_groups;
use netcl_core::kernels::launch::{Counter, with_sink};
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_ops as ops;

use crate::support::{Grid, Tolerance, devices, epsilon, every, in_child, is_child, random, supports, tensor};

type Along = fn(&Tensor, isize) -> netcl_core::Result<Tensor>;

fn log_sum(line: &[f64]) -> f64 {
    let top = line.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    top + line.iter().map(|v| (v - top).exp()).sum::<f64>().ln()
}

fn softmax(line: &[f64]) -> Vec<f64> {
    let total = log_sum(line);
    line.iter().map(|v| (v - total).exp()).collect()
}

fn log_softmax(line: &[f64]) -> Vec<f64> {
    let total = log_sum(line);
    line.iter().map(|v| v - total).collect()
}

fn cumsum(line: &[f64]) -> Vec<f64> {
    line.iter()
        .scan(0.0, |total, v| {
            *total += v;
            Some(*total)
        })
        .collect()
}

/// What stands for a result of softmax: small enough that no sum leaves a 16-bit float's range.
const SHARE: f64 = 1.0 / 256.0;

/// The gradient for an upstream gradient of `x` and a result of `SHARE * x`, in the way of the other operations.
fn backward(
    x: &Tensor,
    axis: isize,
    run: fn(&Tensor, &Tensor, isize) -> netcl_core::Result<Tensor>,
) -> netcl_core::Result<Tensor> {
    let shares: Vec<f64> = x.to_f64_vec()?.into_iter().map(|v| v * SHARE).collect();
    run(x, &tensor(x.queue(), &shares, &x.shape()[..], x.dtype()).0, axis)
}

fn softmax_gradient(line: &[f64]) -> Vec<f64> {
    let total: f64 = line.iter().map(|v| v * v * SHARE).sum();
    line.iter().map(|v| v * SHARE * (v - total)).collect()
}

fn log_softmax_gradient(line: &[f64]) -> Vec<f64> {
    let total: f64 = line.iter().sum();
    line.iter().map(|v| v - (v * SHARE).exp() * total).collect()
}

/// The same in f64, for one line.
type Reference = fn(&[f64]) -> Vec<f64>;

const OPS: [(&str, Along, Reference); 5] = [
    ("softmax", ops::softmax, softmax),
    ("log_softmax", ops::log_softmax, log_softmax),
    ("cumsum", ops::cumsum, cumsum),
    ("softmax_backward", |x, axis| backward(x, axis, ops::softmax_backward), softmax_gradient),
    ("log_softmax_backward", |x, axis| backward(x, axis, ops::log_softmax_backward), log_softmax_gradient),
];

/// Applies a function to every line of row-major values.
fn along(values: &[f64], shape: &[usize], axis: usize, f: fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let (n, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let mut out = vec![0.0; values.len()];
    for outer in 0..values.len() / (n * inner) {
        for i in 0..inner {
            let at = |r: usize| (outer * n + r) * inner + i;
            let line: Vec<f64> = (0..n).map(|r| values[at(r)]).collect();
            for (r, v) in f(&line).into_iter().enumerate() {
                out[at(r)] = v;
            }
        }
    }
    out
}

const CASES: [(&str, &[usize], isize); 17] = [
    ("dense", &[1], 0),
    ("dense", &[7, 1], 1),
    ("dense", &[1000, 3], 1),
    ("dense", &[5, 255], -1),
    ("dense", &[4, 257], 1),
    ("dense", &[3, 1024], 1),
    ("dense", &[2, 9001], 1),
    ("dense", &[255, 3], 0),
    ("dense", &[300, 129], 0),
    ("dense", &[3, 65, 5], 1),
    ("dense", &[2, 3, 4, 33], 2),
    ("permuted", &[20, 300, 6], 1),
    ("permuted", &[20, 30, 6], 0),
    ("strided", &[9, 300], 1),
    ("expanded", &[6, 70], 0),
    // Many long lines for each work-item of a processor, at equal distances and at others.
    ("dense", &[200, 333], 1),
    ("lines permuted", &[20, 10, 333], 2),
];

fn view(kind: &str, device: &DeviceHandle, shape: &[usize], dtype: DType) -> Tensor {
    let n: usize = shape.iter().product();
    let make = |n: usize, shape: &[usize]| tensor(&device.queue, &random(n, 3, (-4.0, 4.0)), shape, dtype).0;
    match kind {
        "permuted" => make(n, &[shape[2], shape[0], shape[1]]).permute(&[1, 2, 0]).unwrap(),
        "lines permuted" => make(n, &[shape[1], shape[0], shape[2]]).permute(&[1, 0, 2]).unwrap(),
        "strided" => {
            let t = make(4 * n, &[2 * shape[0], 2 * shape[1]]).slice(0, Slice::new(None, None, 2)).unwrap();
            t.slice(1, Slice::new(None, None, -2)).unwrap()
        }
        "expanded" => make(shape[1], &[1, shape[1]]).expand(shape).unwrap(),
        _ => make(n, shape),
    }
}

fn check(device: &DeviceHandle, op: usize, case: usize, dtype: DType) -> Result<(), String> {
    let ((name, run, reference), (kind, shape, axis)) = (OPS[op], CASES[case]);
    let x = view(kind, device, shape, dtype);
    let got = run(&x, axis).map_err(|e| e.to_string())?;
    if (got.shape(), got.dtype()) != (x.shape(), dtype) {
        return Err(format!("shape {} dtype {}", got.shape(), got.dtype()));
    }
    let expected = along(&x.to_f64_vec().unwrap(), shape, x.shape().axis("test", axis).unwrap(), reference);
    let compute = if dtype == DType::F64 { epsilon(DType::F64) * 8.0 } else { epsilon(DType::F32) };
    let own = if matches!(dtype, DType::F16 | DType::BF16) { epsilon(dtype) } else { 0.0 };
    let smallest = if dtype == DType::F16 { 2f64.powi(-24) } else { 0.0 };
    // A running sum and a gradient are only as exact as their largest value; the others are a few roundings off.
    let size = if name == "cumsum" || name.ends_with("backward") {
        expected.iter().fold(0.0, |m: f64, v| m.max(v.abs()))
    } else {
        1.0
    };
    let absolute = match name {
        "softmax" => smallest,
        _ => 16.0 * compute * size,
    };
    Tolerance { relative: own + 24.0 * compute, absolute }.check(&got.to_f64_vec().unwrap(), &expected)
}

fn whole_grid(name: &'static str) {
    let mut grid = Grid::new(name);
    for device in devices() {
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (op, (name, ..)) in OPS.iter().enumerate() {
                for (case, (kind, shape, axis)) in CASES.into_iter().enumerate() {
                    // PoCL takes up to a second for a kernel: a part of f32 and a sample of the rest.
                    let share = if dtype == DType::F32 { every(&device, 3, 1) } else { every(&device, 27, 1) };
                    if (case + op + dtype as usize).is_multiple_of(share) {
                        let what = format!("{name} {dtype} {kind} {shape:?} {axis}");
                        grid.cell(&device, what, || check(&device, op, case, dtype));
                    }
                }
            }
        }
    }
    grid.finish(OPS.len() * 4 * CASES.len());
}

/// The kernels of GPUs, by force: whole vectors and single elements, several rows to a group, rows of several items, and rows that
/// do not fit into registers.
#[test]
fn the_form_of_gpus() {
    let mut grid = Grid::new("lines as on GPUs");
    for device in devices().into_iter().filter(|d| d.backend.name() == "cl") {
        // PoCL takes seconds for groups of hundreds of work-items: one program of each kind.
        let portable = device.platform_name.contains("Portable");
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (op, (name, ..)) in OPS.iter().enumerate().filter(|(_, (name, ..))| *name != "cumsum") {
                for case in [2, 3, 5, 6] {
                    let (kind, shape, axis) = CASES[case];
                    let chosen = match (portable, dtype) {
                        (true, DType::F32) => matches!((*name, case), ("softmax" | "log_softmax_backward", 5)),
                        (true, _) => false,
                        (false, DType::F32) => true,
                        (false, _) => (case + op + dtype as usize).is_multiple_of(5),
                    };
                    if chosen {
                        let what = format!("{name} {dtype} {kind} {shape:?} {axis}");
                        grid.cell(&device, what, || force_full_groups(|| check(&device, op, case, dtype)));
                    }
                }
            }
        }
        // Infinities and NaN, in rows that are held in registers and in rows that are not.
        for n in [1024, 12_000] {
            grid.cell(&device, format!("special values in rows of {n}"), || {
                let row = |special: &[f64]| {
                    let mut row = vec![f64::NEG_INFINITY; n];
                    row[n - special.len()..].copy_from_slice(special);
                    row
                };
                let (inf, nan) = (f64::INFINITY, f64::NAN);
                let ends = [&[0.0, 0.0][..], &[], &[inf, 1.0], &[nan, 1.0]];
                let rows: Vec<f64> = ends.iter().flat_map(|special| row(special)).collect();
                let (x, _) = tensor(&device.queue, &rows, [4, n], DType::F32);
                let got = force_full_groups(|| ops::softmax(&x, 1)).unwrap().to_f64_vec().unwrap();
                let mut expected = vec![nan; 4 * n];
                expected[..n].fill(0.0);
                expected[n - 2..n].fill(0.5);
                Tolerance::strict(DType::F32).check(&got, &expected)
            });
        }
    }
    grid.finish(0);
}

#[test]
fn every_operation_on_every_device_and_dtype() {
    whole_grid("lines");
}

/// The same on a device that pretends to be small, in a process of its own: limits are read once.
#[test]
fn small_devices() {
    if is_child() {
        return whole_grid("lines on small devices");
    }
    let text = in_child("lines_grid::small_devices", "NETCL_LIMITS", "wg=64,local=16k,alloc=64M");
    assert!(text.contains("grid lines on small devices"), "{text}");
}

/// So many lines that the row engine gives each a work-item of its own.
#[test]
fn thousands_of_lines_across_memory() {
    let (n, lines) = (5, 4099);
    let [values, upstream] = [1, 2].map(|seed| random(n * lines, seed, (-3.0, 3.0)));
    for device in devices() {
        let [(x, x_values), (g, g_values)] =
            [&values, &upstream].map(|v| tensor(&device.queue, v, [n, lines], DType::F32));
        let close = Tolerance { relative: 16.0 * epsilon(DType::F32), absolute: 1e-6 };
        let y = ops::softmax(&x, 0).unwrap();
        let expected = along(&x_values, &[n, lines], 0, softmax);
        close.check(&y.to_f64_vec().unwrap(), &expected).unwrap();
        let sums: Vec<f64> =
            (0..lines).map(|o| (0..n).map(|i| expected[i * lines + o] * g_values[i * lines + o]).sum()).collect();
        let gradient: Vec<f64> = (0..n * lines).map(|i| expected[i] * (g_values[i] - sums[i % lines])).collect();
        let got = ops::softmax_backward(&g, &y, 0).unwrap().to_f64_vec().unwrap();
        close.check(&got, &gradient).unwrap();
    }
}

#[test]
fn extreme_logits() {
    let inf = f64::INFINITY;
    for device in devices() {
        let rows = [
            [1e4, 1e4, -1e4, 0.0],
            [-1e4, -1e4, -1e4, -1e4],
            [-inf, 0.0, 0.0, -inf],
            [-inf; 4],
            [88.0, 0.0, 0.0, -104.0],
        ];
        let values: Vec<f64> = rows.concat();
        let (x, _) = tensor(&device.queue, &values, [5, 4], DType::F32);
        for (name, view, axis) in
            [("rows", x.clone(), 1), ("columns", x.permute(&[1, 0]).unwrap().contiguous().unwrap(), 0)]
        {
            let by_row = |t: Tensor| if axis == 0 { t.permute(&[1, 0]).unwrap() } else { t }.to_f64_vec().unwrap();
            let got = by_row(ops::softmax(&view, axis).unwrap());
            assert_eq!(got[..4], [0.5, 0.5, 0.0, 0.0], "{device:?} {name}");
            assert_eq!(got[4..12], [0.25, 0.25, 0.25, 0.25, 0.0, 0.5, 0.5, 0.0], "{device:?} {name}");
            assert!(got[12..16].iter().all(|v| v.is_nan()) && got[16] == 1.0, "{device:?} {name}");
            let got = by_row(ops::log_softmax(&view, axis).unwrap());
            assert!((got[0] + 2f64.ln()).abs() < 1e-6 && (got[2] + 2e4 + 2f64.ln()).abs() < 2e-3, "{device:?} {name}");
            assert_eq!((got[8], got[19]), (-inf, -192.0), "{device:?} {name}");
        }
        let (x, _) = tensor(&device.queue, &[1.0, inf, 1.0, -inf, 1.0], [5], DType::F32);
        let got = ops::cumsum(&x, 0).unwrap().to_f64_vec().unwrap();
        assert_eq!(got[..3], [1.0, inf, inf]);
        assert!(got[3].is_nan() && got[4].is_nan());
    }
}

#[test]
fn the_largest_is_found_wherever_it_stands() {
    // In each of several vectors and behind the last of them; any other maximum would overflow.
    let length = 16 * 7 + 5;
    let identity: Vec<f64> = (0..length * length).map(|i| f64::from(u8::from(i % (length + 1) == 0))).collect();
    for device in devices() {
        let logits: Vec<f64> = identity.iter().map(|one| 1e4 * one).collect();
        let (x, _) = tensor(&device.queue, &logits, [length, length], DType::F32);
        for axis in [0, 1] {
            assert_eq!(ops::softmax(&x, axis).unwrap().to_f64_vec().unwrap(), identity, "{device:?} {axis}");
            let logs: Vec<f64> = logits.iter().map(|logit| logit - 1e4).collect();
            assert_eq!(ops::log_softmax(&x, axis).unwrap().to_f64_vec().unwrap(), logs, "{device:?} {axis}");
        }
    }
}

#[test]
fn small_probabilities_keep_their_digits() {
    // In vectors and behind the last of them, through all exponents down to results that are 0.
    let length = 16 * 7 + 5;
    let line: Vec<f64> = (0..length).map(|i| -0.97 * i as f64).collect();
    let expected = softmax(&line);
    for device in devices() {
        // Enough lines for a vector across them.
        let (x, _) = tensor(&device.queue, &line.repeat(20), [20, length], DType::F32);
        let columns = x.permute(&[1, 0]).unwrap().contiguous().unwrap();
        let columns = ops::softmax(&columns, 0).unwrap().permute(&[1, 0]).unwrap();
        for (name, y) in [("rows", ops::softmax(&x, 1).unwrap()), ("columns", columns)] {
            let y = y.to_f64_vec().unwrap();
            for (i, (&got, &want)) in y.iter().zip(expected.iter().cycle()).enumerate() {
                // Arguments were rounded to f32; a device may have no numbers below its smallest normal one.
                let tolerance =
                    if want < f64::from(f32::MIN_POSITIVE) { f64::from(f32::MIN_POSITIVE) } else { 1e-5 * want };
                assert!((got - want).abs() <= tolerance, "{device:?} {name} {i}: {got:e}, not {want:e}");
            }
        }
    }
}

#[test]
fn one_nan_spoils_its_whole_line_and_no_other() {
    for device in devices() {
        // Lines shorter and longer than a vector, the NaN in a vector and in the rest behind the last one.
        for (length, at) in [(5, 2), (100, 3), (100, 99)] {
            let mut values = vec![0.25; 2 * length];
            values[length + at] = f64::NAN;
            let (x, _) = tensor(&device.queue, &values, [2, length], DType::F32);
            for (name, y) in [("softmax", ops::softmax(&x, 1)), ("log_softmax", ops::log_softmax(&x, 1))] {
                let y = y.unwrap().to_f64_vec().unwrap();
                assert!(y[..length].iter().all(|v| v.is_finite()), "{device:?} {name} {length} {at}");
                assert!(y[length..].iter().all(|v| v.is_nan()), "{device:?} {name} {length} {at}");
            }
        }
    }
}

#[test]
fn one_launch_and_clear_errors() {
    for device in devices() {
        let x = Tensor::full(&device.queue, [3, 300], DType::F32, 1.0).unwrap();
        let counter = Rc::new(Counter::default());
        with_sink(counter.clone(), || ops::softmax(&x, 1).unwrap());
        assert_eq!(counter.names(), [("softmax".to_owned(), 1)]);
        let counter = Rc::new(Counter::default());
        with_sink(counter.clone(), || ops::softmax_backward(&x, &x, 0).unwrap());
        assert_eq!(counter.names(), [("softmax_backward".to_owned(), 1)]);
        let why =
            ops::softmax_backward(&x.slice(0, Slice::new(None, Some(2), 1)).unwrap(), &x, 1).unwrap_err().to_string();
        assert!(why.contains("the gradient of the result must have shape [3, 300]"), "{why}");
        let counter = Rc::new(Counter::default());
        with_sink(counter.clone(), || (ops::cumsum(&x, 1).unwrap(), ops::cumsum(&x, 0).unwrap()));
        let expected =
            if device.backend.name() == "cpu" { vec!["cumsum"] } else { vec!["cumsum_group", "cumsum_sequential"] };
        assert_eq!(counter.names().into_iter().map(|(n, _)| n).collect::<Vec<_>>(), expected);
        assert_eq!(ops::softmax(&Tensor::from_shape(&device.queue, [2, 0], DType::F32).unwrap(), 1).unwrap().size(), 0);
        assert!(ops::softmax(&x, 2).unwrap_err().to_string().contains("axis 2 is out of range"));
        let scalar = Tensor::from_shape(&device.queue, (), DType::F32).unwrap();
        assert!(ops::cumsum(&scalar, 0).unwrap_err().to_string().contains("a scalar has no axis"));
    }
}

#[test]
fn long_running_sums_stay_exact_and_repeat() {
    for device in devices() {
        let n = 500_000;
        let x = Tensor::full(&device.queue, [n], DType::F32, 0.1).unwrap();
        let got = ops::cumsum(&x, 0).unwrap().to_f64_vec().unwrap();
        for i in [1000, 123_456, n - 1] {
            let exact = (i + 1) as f64 * f64::from(0.1f32);
            assert!((got[i] / exact - 1.0).abs() < 1e-6, "{device:?} {i}: {} {exact}", got[i]);
        }
        let (y, _) = tensor(&device.queue, &random(300_000, 4, (-1.0, 1.0)), [100, 3000], DType::F32);
        let bits = || [ops::cumsum(&y, 1), ops::softmax(&y, 0)].map(|t| t.unwrap().to_host::<f32>().unwrap());
        set_num_threads(1);
        let first = bits();
        set_num_threads(5);
        assert!(bits() == first && bits() == first, "{device:?}");
        set_num_threads(0);
    }
}
