//! `pick` and `unpick`: devices x dtypes x label types x {dense, strided, expanded}, against a plain loop.

use netcl_core::backend::Queue;
use netcl_core::device::DeviceHandle;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_ops::{pick, unpick};

use crate::support::{Grid, Tolerance, devices, random, supports, tensor};

/// Shape, axis, how the source lies in memory.
const CASES: [(&[usize], usize, &str); 7] = [
    (&[1], 0, "dense"),
    (&[5, 3], 1, "dense"),
    (&[300, 257], 1, "dense"),
    (&[4, 7, 3, 5], 1, "dense"),
    (&[4, 7, 33], 0, "strided"),
    (&[6, 5, 9], 2, "strided"),
    (&[40, 11, 6], 1, "expanded"),
];

fn source(queue: &Queue, shape: &[usize], axis: usize, kind: &str, dtype: DType) -> Tensor {
    let n: usize = shape.iter().product();
    match kind {
        "strided" => {
            let doubled: Vec<usize> = shape.iter().map(|n| 2 * n).collect();
            let (mut t, _) = tensor(queue, &random(n << shape.len(), 3, (-4.0, 4.0)), doubled, dtype);
            for a in 0..shape.len() {
                t = t.slice(a as isize, Slice::new(None, None, if a == 0 { -2 } else { 2 })).unwrap();
            }
            t
        }
        "expanded" => {
            let mut own = vec![1; shape.len()];
            own[axis] = shape[axis];
            tensor(queue, &random(shape[axis], 3, (-4.0, 4.0)), own, dtype).0.expand(shape).unwrap()
        }
        _ => tensor(queue, &random(n, 3, (-4.0, 4.0)), shape, dtype).0,
    }
}

/// Whole numbers from -2 to `classes`: most are classes, -1 is ignored by the tests, the outermost are not allowed.
fn labels(n: usize, classes: usize) -> Vec<i64> {
    random(n, 17, (-1.4, classes as f64 + 0.4)).into_iter().map(|v| v.floor() as i64).collect()
}

fn check(device: &DeviceHandle, case: usize, dtype: DType, wide: bool) -> Result<(), String> {
    let (shape, axis, kind) = CASES[case];
    let queue = &device.queue;
    let x = source(queue, shape, axis, kind, dtype);
    let (classes, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let small = x.shape().without_axis(axis, false);
    let named = labels(small.size(), classes);
    let index = if wide {
        IndexTensor::from_host(queue, &named, small.clone())
    } else {
        IndexTensor::from_host(queue, &named.iter().map(|&l| l as i32).collect::<Vec<_>>(), small.clone())
    };
    let index = index.unwrap();
    let values = x.to_f64_vec().unwrap();
    let at = |line: usize, class: usize| (line / inner * classes + class) * inner + line % inner;
    let choose = |line: usize| match named[line] {
        -1 => 0.0,
        label if (0..classes as i64).contains(&label) => values[at(line, label as usize)],
        _ => f64::NAN,
    };
    let expected: Vec<f64> = (0..named.len()).map(choose).collect();
    let exact = Tolerance { relative: 0.0, absolute: 0.0 };
    let got = pick(&x, axis as isize, &index, Some(-1)).map_err(|e| e.to_string())?;
    if (got.shape(), got.dtype()) != (&small, dtype) {
        return Err(format!("pick: shape {} dtype {}", got.shape(), got.dtype()));
    }
    exact.check(&got.to_f64_vec().unwrap(), &expected).map_err(|e| format!("pick: {e}"))?;

    // Upstream gradients are often one number seen through an expanded view.
    let upstream = if kind == "expanded" {
        tensor(queue, &[0.75], (), dtype).0.expand(small.clone()).unwrap()
    } else {
        tensor(queue, &random(small.size(), 5, (-2.0, 2.0)), small.clone(), dtype).0
    };
    let given = upstream.to_f64_vec().unwrap();
    let mut expected = vec![0.0; x.size()];
    for (line, &label) in named.iter().enumerate() {
        for class in 0..classes {
            let outside = label != -1 && !(0..classes as i64).contains(&label);
            expected[at(line, class)] = match class as i64 == label {
                _ if outside => f64::NAN,
                true => given[line],
                false => 0.0,
            };
        }
    }
    let got = unpick(&upstream, axis as isize, &index, classes, Some(-1)).map_err(|e| e.to_string())?;
    if (got.shape(), got.dtype()) != (x.shape(), dtype) {
        return Err(format!("unpick: shape {} dtype {}", got.shape(), got.dtype()));
    }
    exact.check(&got.to_f64_vec().unwrap(), &expected).map_err(|e| format!("unpick: {e}"))
}

#[test]
fn every_device_and_dtype() {
    let mut grid = Grid::new("pick");
    for device in devices() {
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (case, described) in CASES.iter().enumerate() {
                for wide in [true, false] {
                    let what = format!("{described:?} {dtype} {}", if wide { "int64" } else { "int32" });
                    grid.cell(&device, what, || check(&device, case, dtype, wide));
                }
            }
        }
    }
    grid.finish(2 * 4 * CASES.len());
}

#[test]
fn labels_without_an_ignored_value_and_empty_tensors() {
    for device in devices() {
        let queue = &device.queue;
        let (x, _) = tensor(queue, &[1.0, 2.0, 3.0, 4.0], [2, 2], DType::F32);
        // 0 stands for "no ignored label" nowhere: it is an ordinary class.
        let index = IndexTensor::from_host(queue, &[0i64, i64::MIN], [2]).unwrap();
        let got = pick(&x, 1, &index, None).unwrap().to_f64_vec().unwrap();
        assert!(got[0] == 1.0 && got[1].is_nan(), "{device:?}: {got:?}");
        let got = pick(&x, -1, &index, Some(i64::MIN)).unwrap().to_f64_vec().unwrap();
        assert_eq!(got, [1.0, 0.0], "{device:?}");
        let none = IndexTensor::from_host(queue, &[0i64; 0], [0]).unwrap();
        let empty = Tensor::from_shape(queue, [0, 3], DType::F32).unwrap();
        assert_eq!(pick(&empty, 1, &none, None).unwrap().shape().to_vec(), [0]);
        let nothing = Tensor::from_shape(queue, [0], DType::F32).unwrap();
        assert_eq!(unpick(&nothing, 1, &none, 3, None).unwrap().shape().to_vec(), [0, 3]);
        let hollow = Tensor::from_shape(queue, [2, 0], DType::F32).unwrap();
        let text = pick(&hollow, 1, &index, None).unwrap_err().to_string();
        assert!(text.contains("axis 1 has no elements to pick from"), "{text}");
        let pair = Tensor::from_shape(queue, [2], DType::F32).unwrap();
        assert_eq!(unpick(&pair, 1, &index, 0, None).unwrap().shape().to_vec(), [2, 0]);
    }
}

#[test]
fn errors_name_both_shapes() {
    let queue = &devices()[0].queue;
    let x = Tensor::from_shape(queue, [2, 3], DType::F32).unwrap();
    let index = IndexTensor::from_host(queue, &[0i64, 1, 2], [3]).unwrap();
    let text = pick(&x, 1, &index, None).unwrap_err().to_string();
    assert!(text.contains("(3,)") && text.contains("(2,)") && text.contains("(2, 3)"), "{text}");
    let text = unpick(&x, 1, &index, 4, None).unwrap_err().to_string();
    assert!(text.contains("unpick") && text.contains("(3,)") && text.contains("(2, 3)"), "{text}");
    assert!(pick(&x, 2, &index, None).unwrap_err().to_string().contains("axis 2 is out of range"));
    let raw = Tensor::from_shape(queue, [2, 3], DType::I64).unwrap();
    assert!(pick(&raw, 1, &index, None).unwrap_err().to_string().contains("float tensor"));
}
