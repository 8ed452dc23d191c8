//! Attention and rotary embedding: devices x dtypes x shapes x {causal, masked, dropped, strided}, against plain f64.

use std::collections::HashMap;
use std::rc::Rc;

use netcl_core::backend::Queue;
use netcl_core::backend::cpu::{buffer, set_num_threads};
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch::{Counter, Recorder, Slot, with_sink};
use netcl_core::random::Generator;
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_ops::attention::{
    Append, AttentionOptions, RotaryForm, RotaryTables, attention_append, attention_blocks, force_group, force_split,
    rotary, rotary_backward, scaled_dot_product_attention as attend,
    scaled_dot_product_attention_backward as attend_backward,
};
use netcl_ops::dropout::MaskPlace;

use crate::attention_support::{Case, GENERATOR, Inputs, Layout, cases, operand, reference};
use crate::support::{Grid, Tolerance, devices, epsilon, in_child, is_child, random, supports, tensor};

fn check(device: &DeviceHandle, case: &Case, dtype: DType) -> Result<(), String> {
    let inputs = Inputs::new(case, &device.queue, dtype);
    let [q, k, v, grad] = &inputs.values;
    let expected = reference(case, q, k, v, inputs.mask.as_ref().map(|(_, v)| &v[..]), grad);
    let (attention, gradients) = inputs.run(case).map_err(|e| e.to_string())?;
    let compute = epsilon(if dtype == DType::F64 { DType::F64 } else { DType::F32 });
    let own = epsilon(dtype);
    for (name, got, expected) in [
        ("out", &attention.out, &expected.out),
        ("dq", &gradients.q, &expected.gradients[0]),
        ("dk", &gradients.k, &expected.gradients[1]),
        ("dv", &gradients.v, &expected.gradients[2]),
    ] {
        if got.dtype() != dtype {
            return Err(format!("{name} is of {}", got.dtype()));
        }
        // Backward reads the rounded output, whose error the sum over all queries carries along.
        let size = expected.iter().fold(0.0f64, |m, v| m.max(v.abs())).max(0.1);
        let tolerance = Tolerance { relative: own + 32.0 * compute, absolute: size * (2.0 * own + 32.0 * compute) };
        tolerance.check(&got.to_f64_vec().unwrap(), expected).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(())
}

fn whole_grid(name: &'static str, dtypes: &[DType], chosen: impl Fn(&DeviceHandle, usize, DType) -> bool) {
    let mut grid = Grid::new(name);
    for device in devices() {
        for &dtype in dtypes {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (i, case) in cases().iter().enumerate() {
                if device.backend.name() == "cpu" || chosen(&device, i, dtype) {
                    let what = format!("{dtype} {} {:?}", case.name, case.sizes);
                    grid.cell(&device, what, || check(&device, case, dtype));
                }
            }
        }
    }
    grid.finish(dtypes.len() * cases().len());
}

#[test]
fn every_case_on_every_device_and_dtype() {
    // A program takes a second or two: everything in f32, else what the same two programs can do; less on PoCL, the slowest.
    whole_grid("attention", &DType::FLOATS, |device, i, dtype| match device.platform_name.contains("Portable") {
        true => dtype == DType::F32 || (dtype == DType::F16 && i < 5),
        false => dtype == DType::F32 || i < 5,
    });
}

/// What only devices with matrix units compute in a way of its own: widths up to 128, tiles that are not full, masks in both orders. The
/// native CPU shows that the cases are right.
#[test]
fn matrix_units() {
    let case = |name, sizes, causal, layout| Case { name, sizes, causal, layout, ..Default::default() };
    let masked = |case: Case, mask| Case { mask: Some(mask), ..case };
    let cases = [
        case("one key", [1, 1, 1, 1, 8, 8], false, Layout::Dense),
        case("narrow", [2, 2, 130, 259, 32, 40], false, Layout::Heads),
        case("causal", [2, 3, 333, 333, 64, 64], true, Layout::Heads),
        case("more keys", [1, 2, 65, 400, 64, 64], true, Layout::Transposed),
        case("more queries", [1, 2, 400, 65, 128, 72], true, Layout::Dense),
        case("wide", [1, 3, 257, 300, 128, 128], false, Layout::Heads),
        masked(case("masked", [2, 2, 140, 150, 64, 64], false, Layout::Heads), [2, 1, 140, 150]),
        masked(case("masked keys", [2, 2, 200, 99, 128, 128], true, Layout::Dense), [2, 1, 1, 99]),
    ];
    let mut grid = Grid::new("attention on matrix units");
    let units = |device: &DeviceHandle| device.backend.name() == "cpu" || device.platform_name.contains("NVIDIA");
    for device in devices().into_iter().filter(units) {
        for dtype in [DType::F16, DType::BF16] {
            for case in &cases {
                grid.cell(&device, format!("{dtype} {} {:?}", case.name, case.sizes), || check(&device, case, dtype));
            }
        }
    }
    grid.finish(2 * cases.len());
}

/// Keys shared by work-groups: fewer keys than groups, the last group's keys few or none, rows of queries in several blocks, all keys
/// of a query hidden, widths that are not read in fours.
#[test]
fn keys_shared_by_groups() {
    let case = |name, sizes, layout| Case { name, sizes, layout, ..Default::default() };
    let masked = |case: Case, mask| Case { mask: Some(mask), ..case };
    let cases = [
        case("one key", [1, 2, 1, 1, 16, 16], Layout::Dense),
        case("one query", [2, 3, 1, 301, 64, 64], Layout::Heads),
        masked(case("a hidden row", [2, 2, 5, 90, 16, 8], Layout::Heads), [1, 2, 5, 90]),
        masked(case("one mask for all", [2, 3, 16, 70, 16, 16], Layout::Dense), [2, 1, 1, 70]),
        Case { causal: true, ..case("causal", [1, 2, 40, 33, 16, 16], Layout::Transposed) },
        Case { scale: Some(-0.3), ..case("odd widths", [1, 3, 3, 45, 5, 3], Layout::Heads) },
        case("wide", [1, 1, 4, 40, 256, 200], Layout::Dense),
    ];
    let mut grid = Grid::new("attention with shared keys");
    for device in devices() {
        for (i, case) in cases.iter().enumerate() {
            for dtype in DType::FLOATS {
                // PoCL takes seconds for a program.
                let slow = device.platform_name.contains("Portable") && i != 2 && dtype != DType::F32;
                if !supports(&device, dtype) || slow {
                    continue;
                }
                for parts in if device.backend.name() == "cpu" { &[1][..] } else { &[1, 3, 40] } {
                    let what = format!("{dtype} {} in {parts} parts", case.name);
                    grid.cell(&device, what, || force_split(*parts, || check(&device, case, dtype)));
                }
            }
        }
    }
    grid.finish(4 * cases.len());
}

/// A key and a value that the launch of attention writes: as when they are written before, and nothing else is.
#[test]
fn appended_keys() {
    let mut grid = Grid::new("attention that appends");
    for device in devices() {
        let queue = &device.queue;
        let native = device.backend.name() == "cpu";
        for (dtype, widths) in [(DType::F32, [8, 8]), (DType::BF16, [16, 16]), (DType::F16, [7, 5])] {
            for place in [0usize, 1, 30, 69, 99] {
                grid.cell(&device, format!("{dtype} {widths:?} at {place}"), || {
                    let (seen, capacity) = (70, 100);
                    let new: Vec<Tensor> = (0..2)
                        .map(|i| operand(queue, [2, 3, 1, widths[i]], 5 + i as u64, dtype, Layout::Heads).0)
                        .collect();
                    let q = operand(queue, [2, 3, 1, widths[0]], 4, dtype, Layout::Heads).0;
                    let cache = |i: usize| {
                        let mut values = random(2 * 3 * capacity * widths[i], 7 + i as u64, (-1.0, 1.0));
                        // What nobody has written yet is not looked at.
                        for (at, value) in values.iter_mut().enumerate() {
                            if at / widths[i] % capacity >= place {
                                *value = f64::NAN;
                            }
                        }
                        tensor(queue, &values, [2, 3, capacity, widths[i]], dtype).0
                    };
                    let caches = [cache(0), cache(1)];
                    let part =
                        |t: &Tensor, count: usize| t.slice(2, Slice::new(Some(0), Some(count as isize), 1)).unwrap();
                    let at = IndexTensor::from_host(queue, &[place as i64], [1]).unwrap();
                    let append = Append { key: &new[0], value: &new[1], place: &at };
                    let mask = tensor(queue, &random(2 * seen, 9, (-1.0, 1.0)), [2, 1, 1, seen], dtype).0;
                    let options = AttentionOptions { mask: Some(&mask), ..Default::default() };
                    let [k, v] = [part(&caches[0], seen), part(&caches[1], seen)];
                    let out = force_split(3, || attention_append(&q, &k, &v, &append, &options)).unwrap();
                    let Some(out) = out else {
                        return if native { Ok(()) } else { Err("it does not append".to_owned()) };
                    };
                    let expected: Vec<Tensor> = (0..2)
                        .map(|i| {
                            let expected = cache(i);
                            if place < seen {
                                netcl_ops::index_put(&expected, 2, &at, &new[i]).unwrap();
                            }
                            expected
                        })
                        .collect();
                    for (found, expected) in caches.iter().zip(&expected) {
                        let bits =
                            |t: &Tensor| t.to_f64_vec().unwrap().into_iter().map(f64::to_bits).collect::<Vec<_>>();
                        if bits(found) != bits(expected) {
                            return Err("the cache differs".to_owned());
                        }
                    }
                    let visible = seen.min(place + 1);
                    let [k, v] = [part(&expected[0], visible), part(&expected[1], visible)];
                    let mask = mask.slice(3, Slice::new(Some(0), Some(visible as isize), 1)).unwrap();
                    let options = AttentionOptions { mask: Some(&mask), ..Default::default() };
                    let expected = attend(&q, &k, &v, &options).unwrap().out.to_f64_vec().unwrap();
                    let close = Tolerance { relative: 2.0 * epsilon(dtype), absolute: 4.0 * epsilon(dtype) };
                    close.check(&out.to_f64_vec().unwrap(), &expected)
                });
            }
        }
        if native {
            continue;
        }
        let make = |shape: [usize; 4]| Tensor::full(queue, shape, DType::F32, 1.0).unwrap();
        let (q, k, wrong) = (make([1, 2, 1, 4]), make([1, 2, 6, 4]), make([1, 2, 2, 4]));
        let at = IndexTensor::from_host(queue, &[0i64], [1]).unwrap();
        let append = Append { key: &wrong, value: &q, place: &at };
        let text = attention_append(&q, &k, &k, &append, &AttentionOptions::default()).unwrap_err().to_string();
        assert!(text.contains("the new key must have shape (1, 2, 1, 4)"), "{text}");
        queue.finish().unwrap();
    }
    grid.finish(15);
}

/// With groups of work-items on processors, too, and on devices that pretend to be small: limits are read once per process.
#[test]
fn small_devices() {
    if is_child() {
        return force_group(16, || {
            whole_grid("attention on small devices", &[DType::F32], |device, i, _| {
                // PoCL takes several seconds for these.
                if device.platform_name.contains("Portable") { i == 3 } else { [2, 3, 5, 7].contains(&i) }
            });
        });
    }
    let text = in_child("attention_grid::small_devices", "NETCL_LIMITS", "wg=64,local=16k,alloc=64M");
    assert!(text.contains("grid attention on small devices"), "{text}");
}

/// Numeric gradients in f64 on the CPU.
#[test]
fn backward_agrees_with_finite_differences() {
    let cpu = manager().cpu();
    let case = Case::default();
    for case in [
        Case { sizes: [1, 2, 5, 6, 3, 4], mask: Some([1, 1, 5, 6]), ..case.clone() },
        Case { sizes: [2, 1, 6, 4, 3, 2], causal: true, dropout: 0.3, scale: Some(0.7), ..case },
    ] {
        let inputs = Inputs::new(&case, &cpu.queue, DType::F64);
        let (_, gradients) = inputs.run(&case).unwrap();
        let loss = |which: usize, at: usize, by: f64| {
            let tensors: Vec<Tensor> = (0..3)
                .map(|i| {
                    let mut values = inputs.values[i].clone();
                    if i == which {
                        values[at] += by;
                    }
                    tensor(&cpu.queue, &values, inputs.tensors[i].shape().clone(), DType::F64).0
                })
                .collect();
            let out = attend(&tensors[0], &tensors[1], &tensors[2], &inputs.options(&case)).unwrap().out;
            out.to_f64_vec().unwrap().iter().zip(&inputs.values[3]).map(|(o, g)| o * g).sum::<f64>()
        };
        for (which, gradient) in [&gradients.q, &gradients.k, &gradients.v].into_iter().enumerate() {
            let numeric: Vec<f64> =
                (0..gradient.size()).map(|at| (loss(which, at, 1e-6) - loss(which, at, -1e-6)) / 2e-6).collect();
            let tolerance = Tolerance { relative: 1e-3, absolute: 1e-5 };
            tolerance.check(&gradient.to_f64_vec().unwrap(), &numeric).unwrap();
        }
    }
}

/// What PyTorch computes (golden/attention.py).
#[test]
fn agrees_with_pytorch() {
    /// Shapes and values by name.
    type Tensors<'g> = HashMap<&'g str, (Vec<usize>, Vec<f64>)>;
    let mut golden: HashMap<&str, Tensors<'_>> = HashMap::new();
    for line in include_str!("golden/attention.txt").lines() {
        let (head, values) = line.split_once(" : ").unwrap();
        let mut head = head.split(' ');
        let (case, name) = head.next().unwrap().split_once('.').unwrap();
        let shape = head.map(|n| n.parse().unwrap()).collect();
        let values = values.split(' ').map(|v| v.parse().unwrap()).collect();
        golden.entry(case).or_default().insert(name, (shape, values));
    }
    assert_eq!(golden.len(), 4);
    for device in devices() {
        for (case, tensors) in &golden {
            let dtype = if device.backend.name() == "cpu" { DType::F64 } else { DType::F32 };
            let make = |name: &str| {
                let (shape, values) = &tensors[name];
                tensor(&device.queue, values, &shape[..], dtype).0
            };
            let [q, k, v, grad] = ["q", "k", "v", "grad"].map(make);
            let mask = tensors.contains_key("mask").then(|| make("mask"));
            let options = AttentionOptions {
                causal: *case == "causal",
                mask: mask.as_ref(),
                scale: (*case == "bias").then_some(0.3),
                ..Default::default()
            };
            let attention = attend(&q, &k, &v, &options).unwrap();
            let gradients = attend_backward(&grad, &q, &k, &v, &attention, &options).unwrap();
            let tolerance = match dtype {
                DType::F64 => Tolerance { relative: 1e-10, absolute: 1e-10 },
                _ => Tolerance { relative: 1e-5, absolute: 1e-5 },
            };
            for (name, got) in
                [("out", &attention.out), ("dq", &gradients.q), ("dk", &gradients.k), ("dv", &gradients.v)]
            {
                let check = tolerance.check(&got.to_f64_vec().unwrap(), &tensors[name].1);
                check.unwrap_or_else(|e| panic!("{device:?} {case} {name}: {e}"));
            }
        }
    }
}

/// Bytes in use at the most during forward and backward, beside the inputs.
fn peak(device: &DeviceHandle, length: usize) -> usize {
    let case = Case { sizes: [1, 2, length, length, 16, 16], causal: true, ..Default::default() };
    let inputs = Inputs::new(&case, &device.queue, DType::F32);
    device.queue.finish().unwrap();
    let bytes = |reset: bool| match &device.queue {
        Queue::Cpu(_) => {
            if reset {
                buffer::reset_peak();
            }
            (buffer::stats().live_bytes, buffer::stats().peak_bytes)
        }
        Queue::OpenCl(stream) => (stream.pool().stats().bytes_in_use, stream.pool().stats().peak_bytes_in_use),
    };
    let (before, _) = bytes(true);
    let results = inputs.run(&case).unwrap();
    device.queue.finish().unwrap();
    let (_, peak) = bytes(false);
    drop(results);
    peak - before
}

/// Every length in a process of its own: pools remember their highest peak.
#[test]
fn memory_is_linear() {
    let variable = "NETCL_TEST_ATTENTION_LENGTH";
    if let Some(length) = std::env::var(variable).ok().and_then(|v| v.parse().ok()) {
        for device in devices() {
            println!("peak,{},{}", device.device_name, peak(&device, length));
        }
        return;
    }
    let measure = |length: usize| -> Vec<(String, f64)> {
        let text = in_child("attention_grid::memory_is_linear", variable, &length.to_string());
        let lines = text.lines().filter_map(|line| line.split_once("peak,").map(|(_, rest)| rest));
        lines.map(|l| l.rsplit_once(',').map(|(name, n)| (name.to_owned(), n.parse().unwrap())).unwrap()).collect()
    };
    let (short, long) = (measure(256), measure(2048));
    assert_eq!(short.len(), devices().len());
    for ((name, short), (_, long)) in short.iter().zip(&long) {
        // Eight times as long; blocks of a pool are up to a quarter larger than what is asked for.
        assert!(long / short < 10.0, "{name}: {short} bytes at 256 tokens, {long} at 2048");
        // A matrix of scores alone would take 32 MiB.
        assert!(*long < 4e6, "{name}: {long} bytes at 2048 tokens");
    }
}

/// Bytes at the peak for growing sequences: `cargo test -p netcl-ops --test all memory_table -- --ignored --nocapture`.
#[test]
#[ignore = "a table for people"]
fn memory_table() {
    for device in devices() {
        println!("{}", device.device_name);
        for length in [256, 512, 1024, 2048, 4096, 8192] {
            println!("  {length:>5} tokens {:>12} bytes", peak(&device, length));
        }
    }
}

#[test]
fn the_same_bits_with_any_number_of_threads_and_on_every_run() {
    for device in devices() {
        for case in [&cases()[3], &cases()[5]] {
            let inputs = Inputs::new(case, &device.queue, DType::F32);
            let run = || {
                let (a, g) = inputs.run(case).unwrap();
                [a.out, a.logsumexp, g.q, g.k, g.v].map(|t| t.to_host::<f32>().unwrap())
            };
            let first = run();
            for threads in [1, 3, 0] {
                set_num_threads(threads);
                assert!(run() == first, "{device:?} {} with {threads} threads", case.name);
            }
        }
    }
}

#[test]
fn hidden_rows_are_zero_and_nan_stays_in_its_row() {
    for device in devices() {
        let queue = &device.queue;
        let x = tensor(queue, &random(96, 1, (-1.0, 1.0)), [1, 1, 6, 16], DType::F32).0;
        let hidden = Tensor::full(queue, [1, 1, 1, 6], DType::F32, f64::NEG_INFINITY).unwrap();
        let options = AttentionOptions { mask: Some(&hidden), ..Default::default() };
        let attention = attend(&x, &x, &x, &options).unwrap();
        assert_eq!(attention.out.to_host::<f32>().unwrap(), [0.0; 96], "{device:?}");
        assert_eq!(attention.logsumexp.to_host::<f32>().unwrap(), [f32::NEG_INFINITY; 6]);
        let gradients = attend_backward(&x, &x, &x, &x, &attention, &options).unwrap();
        for gradient in [gradients.q, gradients.k, gradients.v] {
            assert_eq!(gradient.to_host::<f32>().unwrap(), [0.0; 96], "{device:?}");
        }
        let mut values = random(96, 1, (-1.0, 1.0));
        values[35] = f64::NAN;
        let q = tensor(queue, &values, [1, 1, 6, 16], DType::F32).0;
        let out = attend(&q, &x, &x, &AttentionOptions::default()).unwrap().out.to_host::<f32>().unwrap();
        for (i, v) in out.iter().enumerate() {
            assert_eq!(v.is_nan(), i / 16 == 2, "{device:?} element {i}");
        }
        // Scores far beyond what exp can take.
        let large = tensor(queue, &[1e4; 96], [1, 1, 6, 16], DType::F32).0;
        let out = attend(&large, &large, &x, &AttentionOptions::default()).unwrap().out;
        assert!(out.to_host::<f32>().unwrap().iter().all(|v| v.is_finite()));
        // Nothing may be under way when the process ends.
        device.queue.finish().unwrap();
    }
}

#[test]
fn empty_sequences() {
    for device in devices() {
        let make = |shape: [usize; 4]| Tensor::full(&device.queue, shape, DType::F32, 1.0).unwrap();
        let options = AttentionOptions::default();
        for (q, k) in [([2, 1, 0, 4], [2, 1, 3, 4]), ([0, 1, 2, 4], [0, 1, 3, 4]), ([2, 1, 2, 4], [2, 1, 0, 4])] {
            let (q, k) = (make(q), make(k));
            let attention = attend(&q, &k, &k, &options).unwrap();
            assert_eq!(attention.out.shape(), q.shape());
            assert!(attention.out.to_host::<f32>().unwrap().iter().all(|v| *v == 0.0));
            let gradients = attend_backward(&attention.out, &q, &k, &k, &attention, &options).unwrap();
            for (gradient, of) in [(gradients.q, &q), (gradients.k, &k), (gradients.v, &k)] {
                assert_eq!(gradient.shape(), of.shape());
                assert!(gradient.to_host::<f32>().unwrap().iter().all(|v| *v == 0.0));
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let queue = manager().cpu().queue;
    let make = |shape: &[usize]| Tensor::full(&queue, shape, DType::F32, 1.0).unwrap();
    let (q, k) = (make(&[2, 3, 5, 4]), make(&[2, 3, 7, 4]));
    let plain = AttentionOptions::default();
    let mask = make(&[5, 6]);
    let double = q.cast(DType::F64).unwrap();
    let with_mask = AttentionOptions { mask: Some(&mask), ..Default::default() };
    let with_double = AttentionOptions { mask: Some(&double), ..Default::default() };
    let dropped = AttentionOptions { dropout: Some((1.5, MaskPlace::from(GENERATOR))), ..Default::default() };
    let endless = AttentionOptions { scale: Some(f64::INFINITY), ..Default::default() };
    for (result, words) in [
        (attend(&make(&[3, 5, 4]), &k, &k, &plain), "q must have the four axes batch, heads, length and width"),
        (
            attend(&q, &make(&[2, 3, 7, 5]), &k, &plain),
            "k must have the batch, heads and width of q, whose shape is (2, 3, 5, 4)",
        ),
        (attend(&q, &k, &q, &plain), "v must have the batch, heads and length of k, whose shape is (2, 3, 7, 4)"),
        (attend(&q, &k, &make(&[2, 3, 7, 0]), &plain), "v must have a width of at least 1"),
        (attend(&q, &k.cast(DType::F16).unwrap(), &k, &plain), "mixes float32 and float16"),
        (attend(&q, &k, &k, &with_mask), "shapes (5, 6) and (2, 3, 5, 7) do not broadcast"),
        (attend(&q, &k, &k, &with_double), "mixes float32 and float64"),
        (attend(&q, &k, &k, &dropped), "1.5 is not a probability"),
        (attend(&q, &k, &k, &endless), "the scale inf must be finite"),
    ] {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(words), "{text:?} does not contain {words:?}");
    }
    let attention = attend(&q, &k, &k, &plain).unwrap();
    let text = attend_backward(&k, &q, &k, &k, &attention, &plain).unwrap_err().to_string();
    assert!(text.contains("the gradient must have shape (2, 3, 5, 4)"), "{text}");
}

#[test]
fn launches_and_replays() {
    let case = Case { sizes: [1, 2, 9, 13, 16, 16], dropout: 0.5, ..Default::default() };
    for device in devices() {
        let inputs = Inputs::new(&case, &device.queue, DType::F32);
        let [q, k, v, _] = &inputs.tensors;
        let counter = Rc::new(Counter::default());
        with_sink(counter.clone(), || inputs.run(&case).unwrap());
        let backward = if device.backend.name() == "cpu" { 1 } else { 2 };
        assert_eq!(counter.launches(), 1 + backward, "{:?}", counter.names());
        // Options reserve what they need, and a slot moves the mask on.
        let mut generator = Generator::new(5);
        let options = AttentionOptions::default().with_dropout(0.5, q, k, Some(&mut generator));
        assert_eq!(generator.offset, attention_blocks(18, 13));
        assert_eq!(generator.offset, 18 * 4);
        let slot = Slot::integer(0);
        let replayed =
            AttentionOptions { dropout: Some((0.5, MaskPlace::in_slot(5, slot.clone()))), ..Default::default() };
        let recorder = Rc::new(Recorder::default());
        let out = with_sink(recorder.clone(), || attend(q, k, v, &replayed).unwrap().out);
        recorder.replay().unwrap();
        let first = out.to_host::<f32>().unwrap();
        assert_eq!(first, attend(q, k, v, &options).unwrap().out.to_host::<f32>().unwrap());
        slot.set_integer(generator.offset);
        recorder.replay().unwrap();
        assert_ne!(first, out.to_host::<f32>().unwrap());
        // Nothing may be under way when the process ends.
        device.queue.finish().unwrap();
    }
}

#[test]
fn rotary_turns_pairs_and_back() {
    let mut grid = Grid::new("rotary");
    for device in devices() {
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for form in [RotaryForm::Interleaved, RotaryForm::HalfSplit] {
                grid.cell(&device, format!("{dtype} {form:?}"), || {
                    let (length, width, start) = (9, 6, 100);
                    let (x, values) = operand(&device.queue, [2, 3, length, width], 1, dtype, Layout::Heads);
                    let tables = RotaryTables::new(&device.queue, start, length, width, 10000.0, dtype).unwrap();
                    let mut expected = values.clone();
                    for (row, line) in expected.chunks_mut(width).enumerate() {
                        for pair in 0..width / 2 {
                            let (a, b) = match form {
                                RotaryForm::Interleaved => (2 * pair, 2 * pair + 1),
                                RotaryForm::HalfSplit => (pair, pair + width / 2),
                            };
                            let angle = (start + row % length) as f64 / 10000f64.powf(2.0 * pair as f64 / width as f64);
                            let (sin, cos) = angle.sin_cos();
                            (line[a], line[b]) = (line[a] * cos - line[b] * sin, line[b] * cos + line[a] * sin);
                        }
                    }
                    let y = rotary(&x, &tables, form).map_err(|e| e.to_string())?;
                    // Angles around 100 radians are themselves rounded.
                    let absolute = if dtype == DType::F64 { 128.0 } else { 2.0 } * epsilon(dtype);
                    let tolerance = Tolerance { relative: epsilon(dtype), absolute };
                    tolerance.check(&y.to_f64_vec().unwrap(), &expected)?;
                    let back = rotary_backward(&y, &tables, form).map_err(|e| e.to_string())?;
                    Tolerance { absolute: 2.0 * absolute, ..tolerance }.check(&back.to_f64_vec().unwrap(), &values)
                });
            }
        }
        let odd = RotaryTables::new(&device.queue, 0, 4, 5, 10000.0, DType::F32).unwrap_err().to_string();
        assert!(odd.contains("the width 5 is odd"), "{odd}");
        let tables = RotaryTables::new(&device.queue, 0, 4, 6, 10000.0, DType::F32).unwrap();
        let x = Tensor::full(&device.queue, [5, 6], DType::F32, 1.0).unwrap();
        let text = rotary(&x, &tables, RotaryForm::HalfSplit).unwrap_err().to_string();
        assert!(text.contains("must be 4 positions and width 6"), "{text}");
        let none = Tensor::from_shape(&device.queue, [0, 4, 6], DType::F32).unwrap();
        assert_eq!(rotary(&none, &tables, RotaryForm::HalfSplit).unwrap().size(), 0);
        // Nothing may be under way when the process ends.
        device.queue.finish().unwrap();
    }
    grid.finish(8);
}

/// Whole matrices or two passes, as the number of threads has it: the same sums.
#[test]
fn native_gradients_do_not_depend_on_the_number_of_threads() {
    let q = &manager().cpu().queue;
    for (heads, queries, keys, causal) in
        [(2, 257, 257, true), (3, 130, 300, false), (3, 300, 129, true), (1, 520, 40, false)]
    {
        let draw = |length: usize, seed: u64| {
            let shape = [2, heads, length, 24];
            tensor(q, &random(shape.iter().product(), seed, (-1.0, 1.0)), shape, DType::F32).0
        };
        let (query, key, value, grad) = (draw(queries, 1), draw(keys, 2), draw(keys, 3), draw(queries, 4));
        let options = AttentionOptions { causal, ..Default::default() };
        let options = options.with_dropout(0.25, &query, &key, Some(&mut Generator::new(5)));
        let saved = attend(&query, &key, &value, &options).unwrap();
        let bits = |threads: usize| {
            set_num_threads(threads);
            let found = attend_backward(&grad, &query, &key, &value, &saved, &options).unwrap();
            [found.q, found.k, found.v].map(|t| t.to_host::<f32>().unwrap())
        };
        let one = bits(1);
        for threads in [2, 4, 5, 7] {
            assert!(bits(threads) == one, "{heads} heads, {queries} x {keys}: {threads} threads give other numbers");
        }
        set_num_threads(0);
    }
}
