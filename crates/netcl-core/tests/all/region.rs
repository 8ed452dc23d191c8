//! Fused rows on every device: each pattern against f64, for many shapes, strides, dtypes and sizes of groups.

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::Builder;
use netcl_core::device::DeviceHandle;
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::group_limit::force_full_groups;
use netcl_core::kernels::launch::{Counter, with_sink};
use netcl_core::kernels::region::{Extent, Region};
use netcl_core::shape::Slice;
use netcl_core::tensor::{HostOptions, Tensor};

use crate::opencl_support;
use crate::region_support::{Pattern, devices, layer_norm, patterns, share, softmax, softmax_gradient};

/// Without a pattern, between -2 and 2, on a grid that every dtype holds.
fn values(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|k| ((k * 7919 + seed * 104_729 + (k * k) % 977) % 257) as f64 / 64.0 - 2.0).collect()
}

/// How a test lays its full inputs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    Dense,
    /// Every second element of a larger tensor.
    Strided,
    /// Rows are columns in memory.
    Transposed,
    /// A part of a larger tensor that begins at an odd element.
    Shifted,
}

fn host(queue: &Queue, values: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    let options = HostOptions { dtype: Some(dtype), ..Default::default() };
    Tensor::from_host_with(queue, values, shape, options).unwrap()
}

fn full(queue: &Queue, rows: usize, cols: usize, seed: usize, dtype: DType, lie: Lie) -> Tensor {
    match lie {
        Lie::Dense => host(queue, &values(rows * cols, seed), &[rows, cols], dtype),
        Lie::Strided => {
            let all = host(queue, &values(rows * cols * 2, seed), &[rows, 2 * cols], dtype);
            all.slice(1, Slice::new(None, None, 2)).unwrap()
        }
        Lie::Transposed => host(queue, &values(rows * cols, seed), &[cols, rows], dtype).permute(&[1, 0]).unwrap(),
        Lie::Shifted => {
            let all = host(queue, &values(rows * (cols + 3), seed), &[rows, cols + 3], dtype);
            all.slice(1, Slice::new(Some(1), Some(cols as isize + 1), 1)).unwrap()
        }
    }
}

fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        _ => f64::from(f32::EPSILON),
    }
}

/// Inputs that a pattern needs beyond plain ones: weights and positions that all rows share.
fn inputs(pattern: &Pattern, queue: &Queue, rows: usize, cols: usize, dtype: DType, lie: Lie) -> Vec<Tensor> {
    let shared = |number: usize| match pattern.name {
        "layer_norm" => number >= 1,
        "rms_norm" => number == 1,
        "layer_norm_backward" => number == 2,
        "cross_entropy" => number == 1,
        _ => false,
    };
    let make = |(number, extent): (usize, &Extent)| match extent {
        Extent::Full if shared(number) => {
            let row = match pattern.name {
                "cross_entropy" => (0..cols).map(|k| k as f64).collect(),
                _ => values(cols, 90 + number),
            };
            // Positions must be exact, whatever the others are.
            let dtype = if pattern.name == "cross_entropy" { DType::I32 } else { dtype };
            host(queue, &row, &[cols], dtype).expand([rows, cols]).unwrap()
        }
        Extent::Full => full(queue, rows, cols, number + 1, dtype, lie),
        Extent::Row if pattern.name == "cross_entropy" && number == 2 => {
            let targets: Vec<f64> = (0..rows).map(|r| ((r * 5 + 3) % cols.max(1)) as f64).collect();
            host(queue, &targets, &[rows], DType::I32)
        }
        Extent::Row => host(queue, &values(rows, 50 + number), &[rows, 1], dtype),
    };
    pattern.region.inputs().iter().enumerate().map(make).collect()
}

fn check(pattern: &Pattern, device: &DeviceHandle, (rows, cols): (usize, usize), dtype: DType, lie: Lie) {
    let queue = &device.queue;
    let tensors = inputs(pattern, queue, rows, cols, dtype, lie);
    let scalars: Vec<f64> = pattern.scalars.iter().map(|s| if s.is_nan() { 1.0 / cols as f64 } else { *s }).collect();
    let numbers: Vec<Number> = scalars.iter().map(|&s| s.into()).collect();
    let outputs: Vec<Tensor> = (pattern.region.outputs().iter())
        .map(|extent| match extent {
            Extent::Full => Tensor::full(queue, [rows, cols], dtype, 77.0).unwrap(),
            Extent::Row => Tensor::full(queue, [rows], dtype, 77.0).unwrap(),
        })
        .collect();
    let counter = std::rc::Rc::new(Counter::default());
    let (ins, outs): (Vec<&Tensor>, Vec<&Tensor>) = (tensors.iter().collect(), outputs.iter().collect());
    with_sink(counter.clone(), || pattern.region.run(&ins, &numbers, &outs, 1)).unwrap();
    assert!(counter.launches() <= 1, "{:?}", counter.names());

    let given: Vec<Vec<f64>> = tensors.iter().map(|t| t.to_f64_vec().unwrap()).collect();
    let got: Vec<Vec<f64>> = outputs.iter().map(|t| t.to_f64_vec().unwrap()).collect();
    let width = |extent: &Extent| if *extent == Extent::Full { cols } else { 1 };
    for row in 0..rows {
        let part = |(all, extent): (&Vec<f64>, &Extent)| all[row * width(extent)..][..width(extent)].to_vec();
        let mine: Vec<Vec<f64>> = given.iter().zip(pattern.region.inputs()).map(part).collect();
        let mine: Vec<&[f64]> = mine.iter().map(Vec::as_slice).collect();
        let expected = (pattern.reference)(&mine, &scalars);
        for (o, (expected, extent)) in expected.iter().zip(pattern.region.outputs()).enumerate() {
            let got = &got[o][row * width(extent)..][..width(extent)];
            for (i, (g, e)) in got.iter().zip(expected).enumerate() {
                // A sum of n terms near 1, cancelling, is known to a few roundings of its terms.
                let tolerance = epsilon(dtype) * (16.0 + 24.0 * e.abs() + 2.0 * (cols as f64).sqrt());
                let same = g == e || (g.is_nan() && e.is_nan());
                assert!(
                    same || (g - e).abs() <= tolerance,
                    "{} on {}, {dtype} {rows}x{cols} {lie:?}: output {o}, row {row}, element {i} is {g:e}, expected {e:e}",
                    pattern.name,
                    device.device_name
                );
            }
        }
    }
}

const SHAPES: [(usize, usize); 9] = [(0, 7), (3, 0), (1, 1), (2, 2), (31, 7), (7, 31), (5, 257), (257, 2), (3, 1000)];

#[test]
fn every_pattern_in_f32() {
    for device in devices() {
        // PoCL compiles a kernel for each pattern and work-group size: there a pattern has three of the shapes, the next one others.
        let (share, patterns) = (share(&device, 3), patterns());
        for (number, pattern) in patterns.iter().enumerate() {
            for shape in SHAPES.into_iter().skip(number % share).step_by(share) {
                check(pattern, &device, shape, DType::F32, Lie::Dense);
            }
        }
    }
}

#[test]
fn long_rows_in_f32() {
    for device in devices() {
        // Groups as large as those of GPUs keep the shorter of the rows.
        force_full_groups(|| {
            for pattern in [softmax(), layer_norm()] {
                for shape in [(2, 5000), (1, 70_001)] {
                    check(&pattern, &device, shape, DType::F32, Lie::Dense);
                }
            }
        });
    }
    // Nothing waits between the loops of such a row on the native CPU.
    check(&softmax(), &devices()[0], (2, 200_003), DType::F32, Lie::Dense);
}

#[test]
fn other_dtypes() {
    for device in devices() {
        for pattern in [softmax(), layer_norm()] {
            for dtype in [DType::F64, DType::F16, DType::BF16] {
                if device.queue.check_dtype("region", dtype).is_ok() {
                    for shape in [(7, 31), (2, 2), (3, 1000)].into_iter().step_by(share(&device, 3)) {
                        check(&pattern, &device, shape, dtype, Lie::Dense);
                    }
                }
            }
        }
    }
}

#[test]
fn any_strides() {
    for device in devices() {
        for lie in [Lie::Strided, Lie::Transposed, Lie::Shifted] {
            check(&layer_norm(), &device, (7, 31), DType::F32, lie);
            check(&softmax(), &device, (5, 257), DType::F32, lie);
        }
    }
}

fn run(region: &Region, inputs: &[&Tensor], outputs: &[&Tensor], axes: usize) {
    region.run(inputs, &[], outputs, axes).unwrap();
}

fn close(got: &Tensor, expected: &Tensor) {
    let (got, expected) = (got.to_f64_vec().unwrap(), expected.to_f64_vec().unwrap());
    assert_eq!(got.len(), expected.len());
    for (g, e) in got.iter().zip(&expected) {
        assert!((g - e).abs() <= 1e-6, "{g} instead of {e}");
    }
}

#[test]
fn several_trailing_axes_are_one_row() {
    for device in devices() {
        let queue = &device.queue;
        let x = host(queue, &values(4 * 30, 3), &[4, 5, 6], DType::F32);
        let expected = Tensor::uninit(queue, [4, 30], DType::F32).unwrap();
        run(&softmax().region, &[&netcl_core::tensor::reshape(&x, [4, 30]).unwrap()], &[&expected], 1);
        let got = Tensor::uninit(queue, [4, 5, 6], DType::F32).unwrap();
        run(&softmax().region, &[&x], &[&got], 2);
        close(&got, &expected);
        // Axes that do not join: a permuted row, and rows that no single stride counts.
        let shuffled = host(queue, &values(4 * 30, 3), &[4, 5, 6], DType::F32).permute(&[1, 0, 2]).unwrap();
        let dense = shuffled.duplicate().unwrap();
        let (a, b) = (
            Tensor::uninit(queue, [5, 4, 6], DType::F32).unwrap(),
            Tensor::uninit(queue, [5, 4, 6], DType::F32).unwrap(),
        );
        for axes in [1, 2, 3] {
            run(&softmax().region, &[&shuffled], &[&a], axes);
            run(&softmax().region, &[&dense], &[&b], axes);
            close(&a, &b);
        }
    }
}

#[test]
fn outputs_may_take_the_place_of_inputs() {
    for device in devices() {
        let queue = &device.queue;
        let (rows, cols) = (9, 1000);
        let x = full(queue, rows, cols, 1, DType::F32, Lie::Dense);
        let expected = Tensor::uninit(queue, [rows, cols], DType::F32).unwrap();
        run(&softmax().region, &[&x], &[&expected], 1);
        run(&softmax().region, &[&x], &[&x], 1);
        close(&x, &expected);
        // Overlapping in another way: the input is moved out of the way first.
        let square = full(queue, 40, 40, 2, DType::F32, Lie::Dense);
        let turned = square.permute(&[1, 0]).unwrap();
        let expected = Tensor::uninit(queue, [40, 40], DType::F32).unwrap();
        run(&softmax().region, &[&turned.duplicate().unwrap()], &[&expected], 1);
        run(&softmax().region, &[&turned], &[&square], 1);
        close(&square, &expected);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let queue = &devices()[0].queue;
    let x = full(queue, 3, 4, 1, DType::F32, Lie::Dense);
    let y = Tensor::uninit(queue, [3, 4], DType::F32).unwrap();
    let region = softmax().region;
    let fails = |inputs: &[&Tensor], scalars: &[Number], outputs: &[&Tensor], axes: usize, part: &str| {
        let message = region.run(inputs, scalars, outputs, axes).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    };
    fails(&[], &[], &[&y], 1, "[1, 0, 1]");
    fails(&[&x], &[1.0.into()], &[&y], 1, "[1, 0, 1]");
    fails(&[&x], &[], &[&y], 3, "3 trailing axes");
    fails(&[&x], &[], &[&Tensor::uninit(queue, [4, 3], DType::F32).unwrap()], 1, "expanded to");
    let spread = Tensor::uninit(queue, [1, 4], DType::F32).unwrap().expand([3, 4]).unwrap();
    fails(&[&x], &[], &[&spread], 1, "share memory");
    let gradient = softmax_gradient().region;
    assert!(gradient.source(&[DType::F32], &[DType::F32]).is_err());
}

/// Programs are built for structures, dtypes and kinds of layout, and for nothing else.
#[test]
fn equal_regions_and_new_sizes_build_nothing() {
    for device in devices() {
        check(&softmax(), &device, (3, 40), DType::F32, Lie::Dense);
        // Lines that a small group cannot keep have a program of their own.
        check(&softmax(), &device, (3, 1204), DType::F32, Lie::Dense);
        let before = Builder::global().stats().builds;
        // Another region of the same structure, other numbers of rows, other lengths.
        for shape in [(3, 40), (1, 44), (100, 8), (17, 1200), (1, 4)] {
            check(&softmax(), &device, shape, DType::F32, Lie::Dense);
        }
        assert_eq!(softmax().region.key(), softmax().region.key());
        assert_eq!(*softmax().region, *softmax().region);
        assert_eq!(Builder::global().stats().builds, before, "on {}", device.device_name);
    }
    assert_ne!(*softmax().region, *softmax_gradient().region);
}

#[test]
fn small_devices() {
    let text = opencl_support::child_ok("region::on_a_small_device", &[("NETCL_LIMITS", "wg=64,local=16k")]);
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run by small_devices"]
fn on_a_small_device() {
    for device in devices().iter().skip(1).take(1) {
        for pattern in [softmax(), layer_norm()] {
            for shape in [(7, 31), (3, 1000), (1, 5000)] {
                check(&pattern, device, shape, DType::F32, Lie::Dense);
            }
        }
    }
}
