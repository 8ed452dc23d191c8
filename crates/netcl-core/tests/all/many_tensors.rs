//! One launch over many tensors: values against the expression itself, batches, sets, reuse of tables, refusals.

use std::rc::Rc;
use std::sync::Arc;

use netcl_core::backend::Queue;
use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::kernels::launch::{Counter, Slot, with_sink};
use netcl_core::kernels::many::{
    CONTROLS, CastPair, Many, Operands, Segment, Segments, Target, Verdict, cast, sum_of_squares, verdict,
};
use netcl_core::shape::Slice;
use netcl_core::tensor::{HostOptions, Tensor};

use crate::region_support::devices;

/// Multiples of 1/8 between -4 and 4, which every float type holds exactly.
fn values(seed: usize, n: usize) -> Vec<f64> {
    (0..n).map(|k| ((k * 31 + seed * 17 + k * k) % 65) as f64 / 8.0 - 4.0).collect()
}

fn tensor(queue: &Queue, values: &[f64], dtype: DType) -> Tensor {
    let options = HostOptions { dtype: Some(dtype), ..Default::default() };
    Tensor::from_host_with(queue, values, [values.len()], options).unwrap()
}

/// `p - s0 * g * c0`, `r + g * s1`, where `s0` is a slot and `s1` a value.
fn formula() -> Expr {
    let g = Graph::new();
    let (p, d, row, control) = (g.input(0), g.input(1), g.input(2), g.input(3));
    g.finish(&[p - d * (g.scalar(0) * control), row + d * g.scalar(1)])
}

fn many() -> Arc<Many> {
    Many::new("test_many", formula(), 2, 1, vec![Target::List(0), Target::Row(0)])
}

/// Runs the formula over tensors of some lengths and compares every element.
fn check(queue: &Queue, dtype: DType, lengths: &[usize], sets: usize) {
    let compute = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let mut flat_at = 0;
    let mut segments = Vec::new();
    for (i, &count) in lengths.iter().enumerate() {
        segments.push(Segment { count, flat: flat_at, set: i % sets });
        flat_at += count.next_multiple_of(16);
    }
    let segments = Segments::new(segments);
    let make = |seed: usize| -> Vec<Tensor> {
        lengths.iter().enumerate().map(|(i, &n)| tensor(queue, &values(i + seed, n), dtype)).collect()
    };
    let (p, g) = (make(0), make(7));
    let start = values(3, segments.stride() + 1);
    let flat = tensor(queue, &start, compute);
    let control = start[segments.stride()];
    let numbers: Vec<Vec<Number>> =
        (0..sets).map(|s| vec![Number::Slot(Slot::float(0.25 + s as f64)), Number::Value(0.5 * s as f64)]).collect();
    many().run(&segments, &Operands { lists: &[&p, &g], flat: Some(&flat), sets: &numbers }).unwrap();
    let rows = flat.to_f64_vec().unwrap();
    let expr = formula();
    for (i, &n) in lengths.iter().enumerate() {
        let got = p[i].to_f64_vec().unwrap();
        let (before, grad, segment) = (values(i, n), values(i + 7, n), segments.all()[i]);
        for k in 0..n {
            let set = segment.set as f64;
            let inputs = [before[k], grad[k], start[segment.flat + k], control];
            let expected = expr.eval(&inputs, &[0.25 + set, 0.5 * set]);
            let rounded = match dtype {
                DType::F16 => f64::from(half::f16::from_f64(expected[0])),
                DType::BF16 => f64::from(half::bf16::from_f64(expected[0])),
                _ => expected[0],
            };
            assert_eq!(got[k], rounded, "{dtype} tensor {i} element {k} on {}", queue.device_name());
            assert_eq!(rows[segment.flat + k], expected[1], "{dtype} row of tensor {i} element {k}");
        }
    }
    assert_eq!(rows[segments.stride()], control, "controls are only read");
}

#[test]
fn every_element_of_every_tensor_is_updated() {
    let lengths = [1, 0, 3, 17, 1024, 5, 40_001];
    for device in devices() {
        check(&device.queue, DType::F32, &lengths, 1);
        check(&device.queue, DType::BF16, &lengths, 2);
        check(&device.queue, DType::F16, &lengths, 2);
        if device.queue.check_dtype("test", DType::F64).is_ok() {
            check(&device.queue, DType::F64, &lengths, 2);
        }
    }
}

#[test]
fn more_tensors_than_a_device_takes_at_once_are_split() {
    let lengths: Vec<usize> = (0..130).map(|i| 1 + i % 7).collect();
    for device in devices() {
        check(&device.queue, DType::F32, &lengths, 2);
    }
}

#[test]
fn tables_are_uploaded_once() {
    for device in devices() {
        let queue = &device.queue;
        let lists = [values(0, 100), values(1, 7)].map(|v| tensor(queue, &v, DType::F32));
        let segments = Segments::new(lists.iter().map(|t| Segment::of(t.size())).collect());
        let g = Graph::new();
        let scale = Many::new("test_scale", g.finish(&[g.input(0) * g.scalar(0)]), 1, 0, vec![Target::List(0)]);
        let run = |factor: f64| {
            let counter = Rc::new(Counter::default());
            let operands = Operands { lists: &[&lists], flat: None, sets: &[vec![Number::Value(factor)]] };
            with_sink(counter.clone(), || scale.run(&segments, &operands)).unwrap();
            (counter.launches(), counter.allocations().0)
        };
        run(2.0);
        assert_eq!(run(2.0), (1, 0), "{}", device.device_name);
        // A fixed number that changes is a new table, as is a tensor that starts elsewhere.
        let tables = usize::from(matches!(queue, Queue::OpenCl(_)));
        assert_eq!(run(0.25), (1, tables));
        assert_eq!(run(2.0), (1, 0), "the table from before is still there");
        assert_eq!(lists[1].to_f64_vec().unwrap(), values(1, 7).iter().map(|v| v * 2.0).collect::<Vec<f64>>());
    }
}

/// Numbers that round up, down and to even in either 16-bit type, beyond their range and below it, zeros, infinities.
fn hard_to_round(n: usize) -> Vec<f32> {
    let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-40, 65_519.0, 65_520.0];
    let special = special.into_iter().chain([1e-7, 3e-8, 2.9e-8, 1.003_906_2, 1.011_718_8, 1.000_488_3, 1.001_464_8]);
    special.cycle().zip(0..n).map(|(value, i)| if i % 3 == 0 { value } else { value * (i as f32).sin() }).collect()
}

#[test]
fn casts_in_one_launch_have_the_bits_of_single_ones() {
    for device in devices() {
        let queue = &device.queue;
        let dense = |shape: &[usize]| Tensor::from_host(queue, &hard_to_round(shape.iter().product()), shape).unwrap();
        let rows = dense(&[7, 33]);
        let sources = [
            dense(&[3]),
            dense(&[20_000]),
            dense(&[0]),
            dense(&[]),
            dense(&[2, 5, 3, 3]).channels_last().unwrap(),
            // A part of a larger tensor, and another one of the same memory.
            rows.slice(0, Slice::new(Some(2), Some(5), 1)).unwrap(),
            rows.slice(0, Slice::new(Some(5), None, 1)).unwrap(),
        ];
        for dtype in [DType::F16, DType::BF16] {
            let pairs: Vec<CastPair> =
                sources.iter().map(|source| CastPair::new(source.clone(), dtype).unwrap()).collect();
            let counter = Rc::new(Counter::default());
            with_sink(counter.clone(), || cast(&pairs)).unwrap();
            assert_eq!((counter.of("cast"), counter.launches()), (1, 1));
            for CastPair { source, target } in &pairs {
                let expected = source.cast(dtype).unwrap();
                assert_eq!(target.layout(), expected.layout());
                let bytes = |t: &Tensor| {
                    let mut bytes = vec![0u8; t.size() * 2];
                    t.read_bytes(&mut bytes).unwrap();
                    bytes
                };
                let (shape, device) = (source.shape(), &device.device_name);
                assert_eq!(bytes(target), bytes(&expected), "{shape} in {dtype} on {device}");
            }
        }
        let turned = dense(&[4, 6]).permute(&[1, 0]).unwrap();
        let pair = CastPair::new(turned, DType::F16).unwrap();
        let error = cast(&[pair]).unwrap_err().to_string();
        assert!(error.contains("dense floats"), "{error}");
    }
}

#[test]
fn verdicts_are_the_same_everywhere() {
    for device in devices() {
        let queue = &device.queue;
        let lists = [values(0, 5000), values(1, 3)].map(|v| tensor(queue, &v, DType::F32));
        let segments = Segments::new(lists.iter().map(|t| Segment::of(t.size())).collect());
        let norm: f64 = [values(0, 5000), values(1, 3)].concat().iter().map(|v| v * v).sum::<f64>().sqrt();
        let sums = sum_of_squares(&[(&segments, &lists)]).unwrap();
        let controls = Tensor::from_shape(queue, [2 + CONTROLS], DType::F32).unwrap();
        let one = |v: f64| tensor(queue, &[v], DType::F32);
        let (scale, found, fine) = (one(4.0), one(1.0), one(0.0));
        let by = Verdict {
            sums: Some(&sums),
            inverse_scale: Number::Value(0.5),
            scale: Some(&scale),
            max_norm: Some(Number::Value(1.0)),
            found_inf: Some(&fine),
            skip_non_finite: true,
        };
        let read = |by: &Verdict<'_>| {
            verdict(by, &controls, 2).unwrap();
            controls.to_f64_vec().unwrap()
        };
        let got = read(&by);
        assert_eq!(&got[..2], [0.0, 0.0]);
        let norm = norm / 8.0;
        let expected = [0.125 / (norm + 1e-6), 0.0, 0.0, norm];
        for (got, expected) in got[2..].iter().zip(expected) {
            assert!((got - expected).abs() <= 1e-6 * expected.abs(), "{got} {expected} on {}", device.device_name);
        }
        let got = read(&Verdict { found_inf: Some(&found), max_norm: None, ..by.clone() });
        assert_eq!(got[2..5], [0.125, 1.0, 1.0]);
        lists[1].fill(f64::INFINITY).unwrap();
        let sums = sum_of_squares(&[(&segments, &lists)]).unwrap();
        let got = read(&Verdict { sums: Some(&sums), ..by.clone() });
        assert_eq!((got[3], got[4]), (1.0, 2.0));
        let error = verdict(&Verdict { sums: None, ..by }, &controls, 2).unwrap_err().to_string();
        assert!(error.contains("sums of squares are needed"), "{error}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let queue = manager().cpu().queue;
    let make = |n: usize| tensor(&queue, &values(0, n), DType::F32);
    let segments = Segments::new(vec![Segment { count: 4, flat: 0, set: 0 }, Segment { count: 4, flat: 4, set: 0 }]);
    let flat = make(9);
    let numbers = [vec![Number::Value(1.0), Number::Value(1.0)]];
    let run = |p: &[Tensor], g: &[Tensor], flat: Option<&Tensor>| {
        let error = many().run(&segments, &Operands { lists: &[p, g], flat, sets: &numbers }).unwrap_err();
        error.to_string()
    };
    let (a, b) = ([make(4), make(4)], [make(4), make(4)]);
    assert!(run(&a[..1], &b, Some(&flat)).contains("2 lists of 2 tensors"));
    assert!(run(&[make(4), make(5)], &b, Some(&flat)).contains("4 elements"));
    assert!(run(&a, &b, None).contains("needs a flat tensor"));
    assert!(run(&a, &b, Some(&make(8))).contains("flat tensor of 9 elements"));
    assert!(run(&[a[0].clone(), a[0].clone()], &b, Some(&flat)).contains("shares memory"));
    assert!(run(&a, &[b[0].clone(), a[0].clone()], Some(&flat)).contains("shares memory"));
    let halves = tensor(&queue, &values(0, 4), DType::F16);
    assert!(run(&[a[0].clone(), halves], &b, Some(&flat)).contains("mixes"));
    let operands = Operands { lists: &[&a, &b], flat: Some(&flat), sets: &[vec![Number::Value(1.0)]] };
    assert!(many().run(&segments, &operands).unwrap_err().to_string().contains("1 sets of 2 numbers"));
    let clash = Segments::new(vec![Segment { count: 4, flat: 0, set: 0 }, Segment { count: 4, flat: 2, set: 0 }]);
    let operands = Operands { lists: &[&a, &b], flat: Some(&flat), sets: &numbers };
    assert!(many().run(&clash, &operands).unwrap_err().to_string().contains("share a part of the rows"));
    // The very same elements may be read and written.
    let operands = Operands { lists: &[&a, &a], flat: Some(&flat), sets: &numbers };
    many().run(&segments, &operands).unwrap();
}
