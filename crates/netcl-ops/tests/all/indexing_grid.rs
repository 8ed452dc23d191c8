//! Reading and adding at indices: devices x dtypes x shapes x {dense, permuted, strided}, against plain loops in f64.

use std::rc::Rc;

use netcl_core::backend::Queue;
use netcl_core::backend::cpu::set_num_threads;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch::{Counter, Recorder, with_sink};
use netcl_core::random::{Generator, fill_below_i64};
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_ops as ops;

use crate::support::{Grid, Tolerance, devices, epsilon, random, supports, tensor};

fn below(n: usize, count: usize, seed: u64) -> Vec<i64> {
    let mut out = vec![0; count];
    if count > 0 {
        fill_below_i64(&mut out, n as i64, &Generator::new(seed)).unwrap();
    }
    out
}

/// Indices, as int32 where the count is odd.
fn index(queue: &Queue, values: &[i64], shape: &[usize]) -> IndexTensor {
    if values.len() % 2 == 1 {
        let narrow: Vec<i32> = values.iter().map(|&v| v as i32).collect();
        return IndexTensor::from_host(queue, &narrow, shape).unwrap();
    }
    IndexTensor::from_host(queue, values, shape).unwrap()
}

/// A tensor of a shape that lies in memory in some way.
fn view(kind: &str, device: &DeviceHandle, shape: &[usize], dtype: DType, seed: u64) -> Tensor {
    let n: usize = shape.iter().product();
    let make = |n: usize, shape: &[usize]| tensor(&device.queue, &random(n, seed, (-2.0, 2.0)), shape, dtype).0;
    match kind {
        "permuted" => {
            let reversed: Vec<usize> = shape.iter().rev().copied().collect();
            make(n, &reversed).permute(&(0..shape.len() as isize).rev().collect::<Vec<_>>()).unwrap()
        }
        "strided" => {
            let mut larger = shape.to_vec();
            larger[0] *= 2;
            make(2 * n, &larger).slice(0, Slice::new(None, None, -2)).unwrap()
        }
        // Dense, but not at the beginning of its memory.
        "offset" => {
            let mut larger = shape.to_vec();
            larger[0] += 1;
            make(n + n / shape[0], &larger).slice(0, Slice::new(Some(1), None, 1)).unwrap()
        }
        _ => make(n, shape),
    }
}

/// The flat positions of every element of a shape, with its indices along the axes.
fn positions(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    (0..shape.iter().product::<usize>()).map(move |mut at| {
        let mut position: Vec<usize> = shape
            .iter()
            .rev()
            .map(|&n| {
                let i = at % n;
                at /= n;
                i
            })
            .collect();
        position.reverse();
        position
    })
}

fn flat(shape: &[usize], position: &[usize]) -> usize {
    position.iter().zip(shape).fold(0, |at, (&i, &n)| at * n + i)
}

/// Sums of at most this many terms of size 2 or less, rounded to the dtype once.
fn sums(dtype: DType, terms: usize) -> Tolerance {
    let compute = if dtype == DType::F64 { epsilon(DType::F64) } else { epsilon(DType::F32) };
    let absolute = 4.0 * terms as f64 * compute;
    Tolerance { relative: epsilon(dtype), absolute }
}

const CASES: [(&str, &[usize], isize, usize); 12] = [
    ("dense", &[1], 0, 1),
    ("dense", &[5], 0, 9),
    ("dense", &[300, 7], 0, 1000),
    ("dense", &[7, 33], 1, 5),
    ("dense", &[3, 17, 5], 1, 40),
    ("permuted", &[6, 4, 9], -1, 31),
    ("strided", &[9, 65], 0, 4),
    ("dense", &[2, 3, 4, 5], 2, 3),
    // Several stretches of a processor: rows of tiles, vectors and elements; rows in several stretches; outer places; elements.
    ("offset", &[40, 99], 0, 70),
    ("offset", &[3, 2501], 0, 7),
    ("dense", &[5, 23, 37], 1, 30),
    ("offset", &[3001], 0, 1500),
];

/// `index_select`, `index_add` and `index_select_backward`.
fn rows(device: &DeviceHandle, case: usize, dtype: DType) -> Result<(), String> {
    let (kind, shape, axis, k) = CASES[case];
    let at = (axis + shape.len() as isize) as usize % shape.len();
    let values = below(shape[at], k, case as u64);
    let indices = index(&device.queue, &values, &[k]);
    let x = view(kind, device, shape, dtype, 1);
    let mut cut = shape.to_vec();
    cut[at] = k;
    let source = view(kind, device, &cut, dtype, 2);
    let (x_values, source_values) = (x.to_f64_vec().unwrap(), source.to_f64_vec().unwrap());
    let (mut taken, mut added, mut summed) = (Vec::new(), x_values.clone(), vec![0.0; x_values.len()]);
    for mut position in positions(&cut) {
        let from = source_values[flat(&cut, &position)];
        position[at] = values[position[at]] as usize;
        let to = flat(shape, &position);
        taken.push(x_values[to]);
        added[to] += from;
        summed[to] += from;
    }
    let text = |e: netcl_core::Error| e.to_string();
    let got = ops::index_select(&x, axis, &indices).map_err(text)?;
    if got.to_f64_vec().unwrap() != taken || got.shape()[..] != cut || got.dtype() != dtype {
        return Err(format!("index_select gave {got:?}"));
    }
    let got = ops::index_add(&x, axis, &indices, &source).map_err(text)?;
    sums(dtype, k + 1).check(&got.to_f64_vec().unwrap(), &added).map_err(|e| format!("index_add: {e}"))?;
    let got = ops::index_select_backward(&source, axis, &indices, shape[at]).map_err(text)?;
    sums(dtype, k).check(&got.to_f64_vec().unwrap(), &summed).map_err(|e| format!("index_select_backward: {e}"))
}

/// `gather`, `scatter_add` and `gather_backward`; the indices are one shorter than the tensor along every other axis.
fn table(device: &DeviceHandle, case: usize, dtype: DType) -> Result<(), String> {
    let (kind, shape, axis, k) = CASES[case];
    let at = (axis + shape.len() as isize) as usize % shape.len();
    let shorter = usize::from(case % 2 == 1);
    let cut: Vec<usize> = (0..shape.len()).map(|a| if a == at { k } else { (shape[a] - shorter).max(1) }).collect();
    let values = below(shape[at], cut.iter().product(), 7 + case as u64);
    let indices = index(&device.queue, &values, &cut);
    let (x, source) = (view(kind, device, shape, dtype, 3), view(kind, device, &cut, dtype, 4));
    let (x_values, source_values) = (x.to_f64_vec().unwrap(), source.to_f64_vec().unwrap());
    let (mut taken, mut added, mut summed) = (Vec::new(), x_values.clone(), vec![0.0; x_values.len()]);
    for (i, mut position) in positions(&cut).enumerate() {
        position[at] = values[i] as usize;
        let to = flat(shape, &position);
        taken.push(x_values[to]);
        added[to] += source_values[i];
        summed[to] += source_values[i];
    }
    let text = |e: netcl_core::Error| e.to_string();
    let got = ops::gather(&x, axis, &indices).map_err(text)?;
    if got.to_f64_vec().unwrap() != taken || got.shape()[..] != cut {
        return Err(format!("gather gave {got:?}"));
    }
    let got = ops::scatter_add(&x, axis, &indices, &source).map_err(text)?;
    sums(dtype, k + 1).check(&got.to_f64_vec().unwrap(), &added).map_err(|e| format!("scatter_add: {e}"))?;
    let got = ops::gather_backward(&source, axis, &indices, shape).map_err(text)?;
    sums(dtype, k).check(&got.to_f64_vec().unwrap(), &summed).map_err(|e| format!("gather_backward: {e}"))
}

/// `embedding` and `embedding_backward` of a batch of words.
fn words(device: &DeviceHandle, dtype: DType) -> Result<(), String> {
    let (count, width, shape) = (50, 24, [3, 41]);
    let values = below(count, 123, 5);
    let indices = index(&device.queue, &values, &shape);
    let weight = view("dense", device, &[count, width], dtype, 6);
    let grad = view("permuted", device, &[3, 41, width], dtype, 7);
    let (weights, grads) = (weight.to_f64_vec().unwrap(), grad.to_f64_vec().unwrap());
    let expected: Vec<f64> = values.iter().flat_map(|&v| weights[v as usize * width..][..width].to_vec()).collect();
    let got = ops::embedding(&weight, &indices).unwrap();
    if got.shape()[..] != [3, 41, width] || got.to_f64_vec().unwrap() != expected {
        return Err(format!("embedding gave {got:?}"));
    }
    for padding in [None, Some(values[0] as usize)] {
        let mut expected = vec![0.0; count * width];
        for (row, &v) in values.iter().enumerate().filter(|(_, v)| Some(**v as usize) != padding) {
            for c in 0..width {
                expected[v as usize * width + c] += grads[row * width + c];
            }
        }
        let got = ops::embedding_backward(&grad, &indices, count, padding).unwrap().to_f64_vec().unwrap();
        sums(dtype, 123).check(&got, &expected).map_err(|e| format!("embedding_backward {padding:?}: {e}"))?;
    }
    let got = ops::one_hot(&indices, count, dtype).unwrap();
    let hot = |i: usize| f64::from(u8::from(values[i / count] as usize == i % count));
    let expected: Vec<f64> = (0..123 * count).map(hot).collect();
    if got.shape()[..] != [3, 41, count] || got.to_f64_vec().unwrap() != expected {
        return Err(format!("one_hot gave {got:?}"));
    }
    let mask = tensor(&device.queue, &[0.0, 1.0, 0.0, 2.0, -1.0, 0.0], [3, 1, 2], DType::F32).0;
    let x = view("permuted", device, &[3, 4, 2], dtype, 8);
    let keep = [true, false, true, false, false, true];
    let expected: Vec<f64> = (x.to_f64_vec().unwrap().into_iter().enumerate())
        .map(|(i, v)| if keep[i / 8 * 2 + i % 2] { v } else { -0.5 })
        .collect();
    match ops::masked_fill(&x, &mask, -0.5).unwrap().to_f64_vec().unwrap() == expected {
        true => Ok(()),
        false => Err("masked_fill".to_owned()),
    }
}

#[test]
fn every_operation_on_every_device_and_dtype() {
    let mut grid = Grid::new("indexing");
    for device in devices() {
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (case, (kind, shape, axis, k)) in CASES.into_iter().enumerate() {
                let what = format!("{dtype} {kind} {shape:?} axis {axis}, {k} indices");
                grid.cell(&device, format!("rows {what}"), || rows(&device, case, dtype));
                grid.cell(&device, format!("table {what}"), || table(&device, case, dtype));
            }
            grid.cell(&device, format!("words {dtype}"), || words(&device, dtype));
        }
    }
    grid.finish(4 * (2 * CASES.len() + 1));
}

#[test]
fn wrong_indices_are_named() {
    for device in devices() {
        let queue = &device.queue;
        let x = Tensor::full(queue, [4, 3], DType::F32, 1.0).unwrap();
        let message = |result: netcl_core::Result<Tensor>| result.unwrap_err().to_string();
        let at = IndexTensor::from_host(queue, &[0i64, 1, 4, 9], [4]).unwrap();
        assert_eq!(
            message(ops::index_select(&x, 0, &at)),
            "index_select: indices[2] is 4, but must lie in 0..4",
            "{device:?}"
        );
        assert_eq!(
            message(ops::index_add(&x, 0, &at, &x)),
            "index_add: indices[2] is 4, but must lie in 0..4",
            "{device:?}"
        );
        let at = IndexTensor::from_host(queue, &[0i32, 1, 2, 0, -1, 2], [2, 3]).unwrap();
        let expected =
            "gather: indices[1, 1] is -1, but must lie in 0..4; negative indices do not count from the end here";
        assert_eq!(message(ops::gather(&x, 0, &at)), expected);
        assert_eq!(message(ops::scatter_add(&x, 0, &at, &x)), expected.replace("gather", "scatter_add"));
        assert!(message(ops::embedding(&x, &at)).starts_with("embedding: indices[1, 1] is -1"));
        assert!(
            message(ops::one_hot(&at, 2, DType::F32)).starts_with("one_hot: indices[0, 2] is 2, but must lie in 0..2")
        );
        // Also where there is nothing to compute.
        let empty = Tensor::from_shape(queue, [4, 0], DType::F32).unwrap();
        let at = IndexTensor::from_host(queue, &[7i64], [1]).unwrap();
        assert!(message(ops::index_select(&empty, 0, &at)).contains("indices[0] is 7"));
        assert!(message(ops::embedding(&empty, &at)).contains("indices[0] is 7"));
        // Nothing may be under way when the process ends.
        device.queue.finish().unwrap();
    }
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let queue = manager().cpu().queue;
    let x = Tensor::full(&queue, [4, 3], DType::F32, 1.0).unwrap();
    let scalar = Tensor::full(&queue, [0; 0], DType::F32, 1.0).unwrap();
    let row = IndexTensor::from_host(&queue, &[0i64, 1], [2]).unwrap();
    let pair = IndexTensor::from_host(&queue, &[0i64, 1], [1, 2]).unwrap();
    let tall = IndexTensor::from_host(&queue, &[0i64; 10], [5, 2]).unwrap();
    for (result, words) in [
        (ops::index_select(&x, 2, &row), "axis 2 is out of range for shape (4, 3)"),
        (ops::index_select(&scalar, 0, &row), "a scalar has no axis"),
        (ops::index_select(&x, 0, &pair), "the indices must have one axis"),
        (ops::gather(&x, 0, &row), "no longer except along 0"),
        (ops::gather(&x, 1, &tall), "shape (5, 2) does not fit"),
        (ops::index_add(&x, 0, &row, &x), "the source must have shape (2, 3)"),
        (ops::scatter_add(&x, 1, &pair, &x.select(0, 0).unwrap()), "the source must reach over the indices"),
        (ops::embedding(&scalar, &row), "the table must have two axes"),
        (ops::embedding_backward(&x, &row, 4, None), "it must have the shape of the indices, (2,)"),
        (
            ops::embedding_backward(&x.slice(0, Slice::new(None, Some(2), 1)).unwrap(), &row, 4, Some(4)),
            "padding row 4",
        ),
        (ops::index_add(&x, 0, &row, &x.cast(DType::F64).unwrap()), "mixes float32 and float64"),
        (
            ops::masked_fill(&x, &Tensor::full(&queue, [2, 4, 3], DType::U8, 1.0).unwrap(), 0.0),
            "the mask must broadcast",
        ),
        (ops::one_hot(&row, 3, DType::I32), "expected a float tensor"),
    ] {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(words), "{text:?} does not contain {words:?}");
    }
}

#[test]
fn nothing_to_do() {
    for device in devices() {
        let queue = &device.queue;
        let none = IndexTensor::from_host(queue, &[0i64; 0], [0]).unwrap();
        let x = tensor(queue, &random(6, 1, (0.0, 1.0)), [3, 2], DType::F32).0;
        assert_eq!(ops::index_select(&x, 0, &none).unwrap().shape().to_vec(), [0, 2]);
        assert_eq!(ops::embedding(&x, &none).unwrap().shape().to_vec(), [0, 2]);
        let source = Tensor::from_shape(queue, [0, 2], DType::F32).unwrap();
        assert_eq!(ops::index_add(&x, 0, &none, &source).unwrap().to_f64_vec().unwrap(), x.to_f64_vec().unwrap());
        assert_eq!(ops::embedding_backward(&source, &none, 3, None).unwrap().to_f64_vec().unwrap(), [0.0; 6]);
        assert_eq!(ops::one_hot(&none, 5, DType::F32).unwrap().shape().to_vec(), [0, 5]);
        let table = IndexTensor::from_host(queue, &[0i64; 0], [0, 2]).unwrap();
        assert_eq!(ops::gather(&x, 0, &table).unwrap().size(), 0);
        assert_eq!(ops::gather_backward(&source, 0, &table, [3, 2]).unwrap().to_f64_vec().unwrap(), [0.0; 6]);
        // Nothing may be under way when the process ends.
        device.queue.finish().unwrap();
    }
}

/// Other dtypes are moved bit by bit.
#[test]
fn whole_numbers_are_selected_too() {
    for device in devices() {
        let at = IndexTensor::from_host(&device.queue, &[2i64, 0], [2]).unwrap();
        let x = Tensor::from_host(&device.queue, &[i64::MAX, 2, i64::MIN], [3]).unwrap();
        assert_eq!(ops::index_select(&x, 0, &at).unwrap().to_host::<i64>().unwrap(), [i64::MIN, i64::MAX]);
        let x = Tensor::from_host(&device.queue, &[7u8, 8, 9], [3]).unwrap();
        assert_eq!(ops::index_select(&x, 0, &at).unwrap().to_host::<u8>().unwrap(), [9, 7]);
        // Rows longer than a vector of bytes, not at the beginning of their memory.
        let bytes: Vec<u8> = (0..5 * 131).map(|i| (i % 251) as u8).collect();
        let x = Tensor::from_host(&device.queue, &bytes, [5, 131]).unwrap();
        let x = x.slice(0, Slice::new(Some(1), None, 1)).unwrap();
        let expected = [&bytes[3 * 131..4 * 131], &bytes[131..2 * 131]].concat();
        assert_eq!(ops::index_select(&x, 0, &at).unwrap().to_host::<u8>().unwrap(), expected, "{device:?}");
    }
}

/// Sums in f32 of values that cancel: the order is that of the indices, whatever the device or the number of threads.
#[test]
fn additions_are_repeatable_and_exact() {
    let n = 20_000;
    let values: Vec<f64> = (0..n).map(|i| if i % 3 == 0 { 1e4 } else { -5e3 + 1e-3 * i as f64 }).collect();
    let at: Vec<i64> = below(3, n, 1).iter().map(|v| v * v).collect();
    let mut expected = vec![0.0f64; 5];
    for device in devices() {
        let (source, rounded) = tensor(&device.queue, &values, [n], DType::F32);
        let indices = IndexTensor::from_host(&device.queue, &at, [n]).unwrap();
        let base = Tensor::full(&device.queue, [5], DType::F32, 0.5).unwrap();
        let run = || ops::index_add(&base, 0, &indices, &source).unwrap().to_host::<f32>().unwrap();
        let first = run();
        expected.fill(0.5);
        at.iter().zip(&rounded).for_each(|(&i, v)| expected[i as usize] += v);
        let got: Vec<f64> = first.iter().map(|&v| f64::from(v)).collect();
        Tolerance { relative: epsilon(DType::F32), absolute: 2e-3 }.check(&got, &expected).unwrap();
        for threads in [1, 3, 0] {
            set_num_threads(threads);
            assert_eq!(run(), first, "{device:?} with {threads} threads");
        }
    }
}

#[test]
fn one_launch_each_and_recorded_reads() {
    for device in devices() {
        let queue = &device.queue;
        let table = tensor(queue, &[1.0, 2.0, 3.0, 4.0], [4, 1], DType::F32).0;
        let at = IndexTensor::from_host(queue, &[3i64, 0], [2]).unwrap();
        let counter = Rc::new(Counter::default());
        with_sink(counter.clone(), || {
            let rows = ops::embedding(&table, &at).unwrap();
            ops::embedding_backward(&rows, &at, 4, None).unwrap();
            ops::one_hot(&at, 4, DType::F32).unwrap();
        });
        let names: Vec<(String, usize)> = counter.names();
        let expected = ["embedding", "embedding_backward", "one_hot"].map(|name| (name.to_owned(), 1));
        assert_eq!(names, expected, "{device:?}");
        // What is recorded follows the indices of the moment; a wrong one is an error or NaN, never a stray read.
        let recorder = Rc::new(Recorder::default());
        let rows = with_sink(recorder.clone(), || ops::embedding(&table, &at).unwrap());
        at.tensor().assign(&Tensor::from_host(queue, &[1i64, 2], [2]).unwrap()).unwrap();
        recorder.replay().unwrap();
        assert_eq!(rows.to_host::<f32>().unwrap(), [2.0, 3.0]);
        at.tensor().assign(&Tensor::from_host(queue, &[1i64, 1 << 40], [2]).unwrap()).unwrap();
        match recorder.replay() {
            Ok(()) => assert!(rows.to_host::<f32>().unwrap()[1].is_nan(), "{device:?}"),
            Err(error) => assert!(error.to_string().contains("indices[1] is 1099511627776"), "{error}"),
        }
        // Nothing may be under way when the process ends.
        device.queue.finish().unwrap();
    }
}

/// Additions that were recorded follow the indices of the moment, with the bits of eager ones.
#[test]
fn recorded_additions() {
    for device in devices() {
        let queue = &device.queue;
        let source = view("dense", &device, &[40, 3], DType::F32, 1);
        let base = view("dense", &device, &[7, 3], DType::F32, 2);
        let rows = IndexTensor::from_host(queue, &below(7, 40, 1), [40]).unwrap();
        let table = IndexTensor::from_host(queue, &below(7, 120, 2), [40, 3]).unwrap();
        let run = || {
            [
                ops::embedding_backward(&source, &rows, 7, Some(2)).unwrap(),
                ops::index_add(&base, 0, &rows, &source).unwrap(),
                ops::scatter_add(&base, 0, &table, &source).unwrap(),
            ]
        };
        let recorder = Rc::new(Recorder::default());
        let recorded = with_sink(recorder.clone(), run);
        for seed in [3, 4] {
            for (indices, n) in [(&rows, 40), (&table, 120)] {
                let fresh = Tensor::from_host(queue, &below(7, n, seed), indices.tensor().shape().clone()).unwrap();
                indices.tensor().assign(&fresh).unwrap();
            }
            recorder.replay().unwrap();
            for (got, expected) in recorded.iter().zip(run()) {
                assert_eq!(got.to_host::<f32>().unwrap(), expected.to_host::<f32>().unwrap(), "{device:?}");
            }
        }
    }
}

/// Rows of two tables, with the bits that they have when they are added afterwards.
#[test]
fn sums_of_two_tables() {
    let mut grid = Grid::new("embedding_sum");
    for device in devices() {
        let queue = &device.queue;
        for dtype in DType::FLOATS.into_iter().filter(|&dtype| supports(&device, dtype)) {
            for (shape, places) in
                [(&[1, 1][..], &[1][..]), (&[3, 1], &[1]), (&[3, 1], &[3, 1]), (&[2, 3], &[2, 3]), (&[2, 3], &[3])]
            {
                grid.cell(&device, format!("{dtype} {shape:?} {places:?}"), || {
                    let [x, y] = [(7, 1), (5, 2)].map(|(rows, seed)| view("dense", &device, &[rows, 9], dtype, seed));
                    let at = index(queue, &below(7, shape.iter().product(), 3), shape);
                    let place = index(queue, &below(5, places.iter().product(), 4), places);
                    let counter = Rc::new(Counter::default());
                    let sum = with_sink(counter.clone(), || ops::embedding_sum((&x, &at), (&y, &place)));
                    let apart = |table: &Tensor, at: &IndexTensor| ops::embedding(table, at).unwrap();
                    let expected = ops::elementwise::add(&apart(&x, &at), &apart(&y, &place)).unwrap();
                    let one_launch = device.backend.name() != "cpu" && places != [3];
                    if one_launch && counter.launches() != 1 {
                        return Err(format!("{:?}", counter.names()));
                    }
                    match sum.unwrap().to_f64_vec().unwrap() == expected.to_f64_vec().unwrap() {
                        true => Ok(()),
                        false => Err("it differs".to_owned()),
                    }
                });
            }
        }
        let table = Tensor::full(queue, [2, 3], DType::F32, 1.0).unwrap();
        let [inside, outside] = [0i64, 2].map(|at| IndexTensor::from_host(queue, &[at], [1]).unwrap());
        let text = ops::embedding_sum((&table, &inside), (&table, &outside)).unwrap_err().to_string();
        assert!(text.contains("must lie in 0..2"), "{text}");
        queue.finish().unwrap();
    }
    grid.finish(20);
}
