//! Sorting: devices x dtypes x lengths x axes, values and positions against a stable sort on the host.

use std::cmp::Ordering;
use std::rc::Rc;

use netcl_core::backend::cpu::set_num_threads;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch::{Recorder, with_sink};
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_ops as ops;

use crate::support::{Grid, devices, in_child, is_child, random, supports, tensor};

/// NaN last, else ascending or descending.
fn order(a: f64, b: f64, descending: bool) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        _ if descending => b.partial_cmp(&a).unwrap(),
        _ => a.partial_cmp(&b).unwrap(),
    }
}

/// The positions of every line's first `k` elements in order, in row-major order of the result.
fn positions(values: &[f64], shape: &[usize], axis: usize, k: usize, descending: bool) -> Vec<i64> {
    let (n, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let mut out = vec![0; values.len() / n * k];
    for line in 0..values.len() / n {
        let (outer, i) = (line / inner, line % inner);
        let mut found: Vec<usize> = (0..n).collect();
        let at = |r: usize| values[(outer * n + r) * inner + i];
        found.sort_by(|&a, &b| order(at(a), at(b), descending));
        for (r, &from) in found.iter().take(k).enumerate() {
            out[(outer * k + r) * inner + i] = from as i64;
        }
    }
    out
}

/// Few different values, so that there are many equal ones, with both zeros, infinities and NaN among them.
fn values(n: usize, seed: u64) -> Vec<f64> {
    let pick = |u: f64| match (u * 40.0) as usize {
        0 => f64::NAN,
        1 => -0.0,
        2 => 0.0,
        3 => f64::INFINITY,
        4 => f64::NEG_INFINITY,
        5 => 6e-8,
        _ => (u * 64.0).floor() / 8.0 - 4.0,
    };
    random(n, seed, (0.0, 1.0)).into_iter().map(pick).collect()
}

/// Kind, shape, axis, and how many are asked for (0: all).
const CASES: [(&str, &[usize], isize, usize); 12] = [
    ("dense", &[1], 0, 0),
    ("dense", &[7, 1], 1, 0),
    ("dense", &[1000, 3], 1, 0),
    ("dense", &[5, 33], -1, 4),
    ("dense", &[3, 1024], 1, 0),
    ("dense", &[2, 4097], 1, 0),
    ("dense", &[3, 20_000], 1, 0),
    ("dense", &[2, 30_000], 1, 7),
    ("dense", &[1, 9000], 1, 5000),
    ("dense", &[65, 5], 0, 3),
    ("permuted", &[6, 70, 5], 1, 0),
    ("strided", &[9, 100], 1, 0),
];

fn view(kind: &str, device: &DeviceHandle, shape: &[usize], dtype: DType) -> Tensor {
    let n: usize = shape.iter().product();
    let make = |n: usize, shape: &[usize]| tensor(&device.queue, &values(n, 3), shape, dtype).0;
    match kind {
        "permuted" => make(n, &[shape[2], shape[0], shape[1]]).permute(&[1, 2, 0]).unwrap(),
        "strided" => {
            let t = make(4 * n, &[2 * shape[0], 2 * shape[1]]).slice(0, Slice::new(None, None, 2)).unwrap();
            t.slice(1, Slice::new(None, None, -2)).unwrap()
        }
        _ => make(n, shape),
    }
}

fn same_bits(got: &[f64], expected: &[f64]) -> bool {
    let same = |(g, e): (&f64, &f64)| g.to_bits() == e.to_bits() || (g.is_nan() && e.is_nan());
    got.len() == expected.len() && got.iter().zip(expected).all(same)
}

fn check(device: &DeviceHandle, case: usize, dtype: DType, descending: bool) -> Result<(), String> {
    let (kind, shape, axis, k) = CASES[case];
    let x = view(kind, device, shape, dtype);
    let at = x.shape().axis("test", axis).unwrap();
    let all = if k == 0 { shape[at] } else { k };
    let input = x.to_f64_vec().unwrap();
    let expected = positions(&input, shape, at, all, descending);
    let sorted = match k {
        0 => ops::sort(&x, axis, descending),
        _ => ops::topk(&x, k, axis, descending),
    }
    .map_err(|e| e.to_string())?;
    let got = sorted.indices.to_host().unwrap();
    if let Some(i) = (0..expected.len()).find(|&i| got.get(i) != Some(&expected[i])) {
        return Err(format!("position {i} is {:?}, expected {}", got.get(i), expected[i]));
    }
    let inner: usize = shape[at + 1..].iter().product();
    let source = |i: usize| (i / inner / all * shape[at] + expected[i] as usize) * inner + i % inner;
    let expected: Vec<f64> = (0..got.len()).map(|i| input[source(i)]).collect();
    if sorted.values.dtype() != dtype || !same_bits(&sorted.values.to_f64_vec().unwrap(), &expected) {
        return Err("the values are not those at the positions".to_owned());
    }
    let (grad, grads) = tensor(&device.queue, &random(got.len(), 5, (-1.0, 1.0)), sorted.values.shape().clone(), dtype);
    let mut expected = vec![0.0; input.len()];
    (0..got.len()).for_each(|i| expected[source(i)] = grads[i]);
    let back = ops::sort_backward(&grad, axis, &sorted.indices, shape[at]).map_err(|e| e.to_string())?;
    match same_bits(&back.to_f64_vec().unwrap(), &expected) {
        true => Ok(()),
        false => Err("the gradients did not go back to where the elements were".to_owned()),
    }
}

fn whole_grid(name: &'static str, dtypes: &[DType]) {
    let mut grid = Grid::new(name);
    for device in devices() {
        for &dtype in dtypes {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (case, (kind, shape, axis, k)) in CASES.into_iter().enumerate() {
                for descending in [false, true] {
                    let what = format!("{dtype} {kind} {shape:?} axis {axis}, {k}, descending {descending}");
                    grid.cell(&device, what, || check(&device, case, dtype, descending));
                }
            }
        }
    }
    grid.finish(2 * dtypes.len() * CASES.len());
}

#[test]
fn every_device_and_dtype() {
    whole_grid("sort", &DType::FLOATS);
}

/// The same on a device that pretends to be small, in a process of its own: limits are read once.
#[test]
fn small_devices() {
    if is_child() {
        return whole_grid("sort on small devices", &[DType::F32]);
    }
    let text = in_child("sort_grid::small_devices", "NETCL_LIMITS", "wg=64,local=2k,alloc=64M");
    assert!(text.contains("grid sort on small devices"), "{text}");
}

#[test]
fn whole_numbers() {
    let numbers = [5i64, i64::MIN, -1, 0, i64::MAX, -1, 1 << 40];
    for device in devices() {
        let x = Tensor::from_host(&device.queue, &numbers, [7]).unwrap();
        assert_eq!(ops::argsort(&x, 0, false).unwrap().to_host().unwrap(), [1, 2, 5, 3, 0, 6, 4], "{device:?}");
        let sorted = ops::topk(&x, 3, 0, true).unwrap();
        assert_eq!(sorted.values.to_host::<i64>().unwrap(), [i64::MAX, 1 << 40, 5], "{device:?}");
        let narrow: Vec<i32> = vec![3, i32::MIN, -7, i32::MAX, -7];
        let x = Tensor::from_host(&device.queue, &narrow, [5]).unwrap();
        let sorted = ops::sort(&x, 0, true).unwrap();
        assert_eq!(sorted.values.to_host::<i32>().unwrap(), [i32::MAX, 3, -7, -7, i32::MIN], "{device:?}");
        assert_eq!(sorted.indices.to_host().unwrap(), [3, 0, 2, 4, 1], "{device:?}");
    }
}

#[test]
fn whole_numbers_of_many_digits() {
    let n = 5000;
    let wide: Vec<i64> = (0..n).map(|i: i64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15u64 as i64) >> (i % 60)).collect();
    let mut order: Vec<i64> = (0..n).collect();
    order.sort_by_key(|&i| wide[i as usize]);
    for device in devices() {
        let x = Tensor::from_host(&device.queue, &wide, [n as usize]).unwrap();
        assert!(ops::argsort(&x, 0, false).unwrap().to_host().unwrap() == order, "{device:?}");
    }
}

/// One long line by several threads gives what one thread gives.
#[test]
fn threads_do_not_matter() {
    let queue = manager().cpu().queue;
    let n = 300_001;
    let x = tensor(&queue, &values(n, 9), [n], DType::F32).0;
    let run = |threads: usize| {
        set_num_threads(threads);
        ops::argsort(&x, 0, false).unwrap().to_host().unwrap()
    };
    let one = run(1);
    assert_eq!(one, positions(&x.to_f64_vec().unwrap(), &[n], 0, n, false));
    for threads in [2, 3, 5] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
fn nothing_to_sort_and_clear_errors() {
    for device in devices() {
        let queue = &device.queue;
        let none = Tensor::from_shape(queue, [2, 0], DType::F32).unwrap();
        assert_eq!(ops::sort(&none, 1, false).unwrap().values.shape().to_vec(), [2, 0]);
        assert_eq!(ops::sort(&none, 0, false).unwrap().indices.tensor().shape().to_vec(), [2, 0]);
        let x = Tensor::full(queue, [2, 3], DType::F32, 1.0).unwrap();
        let best = ops::topk(&x, 0, 1, true).unwrap();
        assert_eq!(best.values.shape().to_vec(), [2, 0]);
        let back = ops::sort_backward(&best.values, 1, &best.indices, 3).unwrap();
        assert_eq!(back.to_f64_vec().unwrap(), [0.0; 6]);
        let scalar = Tensor::full(queue, [0; 0], DType::F32, 1.0).unwrap();
        let bytes = Tensor::full(queue, [2], DType::U8, 1.0).unwrap();
        let one = IndexTensor::from_host(queue, &[0i64], [1]).unwrap();
        for (text, words) in [
            (
                ops::topk(&x, 4, 1, true).unwrap_err().to_string(),
                "4 elements asked for, but axis 1 of shape (2, 3) has 3",
            ),
            (ops::sort(&x, 2, true).unwrap_err().to_string(), "axis 2 is out of range for shape (2, 3)"),
            (ops::sort(&scalar, 0, true).unwrap_err().to_string(), "a scalar has no axis"),
            (ops::sort(&bytes, 0, true).unwrap_err().to_string(), "expected floats, int32 or int64"),
            (ops::sort_backward(&x, 0, &one, 3).unwrap_err().to_string(), "must have the shape of the indices, (1,)"),
        ] {
            assert!(text.contains(words), "{text:?} does not contain {words:?}");
        }
        // Nothing may be under way when the process ends.
        device.queue.finish().unwrap();
    }
}

/// Nothing is read on the host, so that a recorded sort follows the values of the moment.
#[test]
fn a_recorded_sort_sorts_again() {
    for device in devices() {
        let x = tensor(&device.queue, &[3.0, 1.0, 2.0], [3], DType::F32).0;
        let recorder = Rc::new(Recorder::default());
        let order = with_sink(recorder.clone(), || ops::argsort(&x, 0, false).unwrap());
        for (values, expected) in [([3.0, 1.0, 2.0], [1, 2, 0]), ([1.0, 5.0, 2.0], [0, 2, 1])] {
            x.assign(&tensor(&device.queue, &values, [3], DType::F32).0).unwrap();
            recorder.replay().unwrap();
            assert_eq!(order.to_host().unwrap(), expected, "{device:?}");
        }
    }
}
