//! Reductions: devices x dtypes x odd sizes around the variants' limits x {dense, broadcast, permuted, strided, several axes},
//! against f64.

use std::collections::BTreeMap;
use std::rc::Rc;

use netcl_core::backend::Queue;
use netcl_core::backend::cpu::set_num_threads;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Counter, with_sink};
use netcl_core::kernels::region::{Combine, RegionBuilder};
use netcl_core::shape::{Shape, Slice};
use netcl_core::tensor::{Tensor, reshape};
use netcl_ops::reduce::{Variant, force_variant};
use netcl_ops::{self as ops, Axes};

use crate::support::{Grid, Tolerance, devices, epsilon, in_child, is_child, random, supports, tensor};

/// The elements that belong to each result, in row-major order of results and of elements.
fn groups(values: &[f64], shape: &Shape, axes: Axes<'_>) -> Vec<Vec<f64>> {
    let reduced: Vec<bool> = (0..shape.ndim())
        .map(|a| match axes {
            Axes::All => true,
            Axes::One(axis) => shape.axis("test", axis).unwrap() == a,
            Axes::Several(axes) => axes.iter().any(|&axis| shape.axis("test", axis).unwrap() == a),
        })
        .collect();
    let mut out: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for (i, &value) in values.iter().enumerate() {
        let (mut rest, mut result, mut scale) = (i, 0, 1);
        for a in (0..shape.ndim()).rev() {
            let index = rest % shape[a];
            rest /= shape[a];
            if !reduced[a] {
                result += index * scale;
                scale *= shape[a];
            }
        }
        out.entry(result).or_default().push(value);
    }
    out.into_values().collect()
}

type Reduce = fn(&Tensor, Axes<'_>, bool) -> netcl_core::Result<Tensor>;
type Reference = fn(&[f64]) -> f64;

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

fn var(x: &[f64]) -> f64 {
    let m = mean(x);
    x.iter().map(|v| (v - m).powi(2)).sum::<f64>() / (x.len() as f64 - 1.0)
}

/// Name, operation, reference, and the range of values it is tested on.
const OPS: [(&str, Reduce, Reference, (f64, f64)); 13] = [
    ("sum", |x, a, k| ops::sum(x, a, k), |x| x.iter().sum(), (-1.0, 1.0)),
    ("mean", |x, a, k| ops::mean(x, a, k), mean, (-1.0, 2.0)),
    ("prod", |x, a, k| ops::prod(x, a, k), |x| x.iter().product(), (0.9999, 1.0001)),
    ("max", |x, a, k| ops::max(x, a, k), |x| x.iter().copied().fold(f64::NEG_INFINITY, f64::max), (-1.0, 1.0)),
    ("min", |x, a, k| ops::min(x, a, k), |x| x.iter().copied().fold(f64::INFINITY, f64::min), (-1.0, 1.0)),
    ("var", |x, a, k| ops::var(x, a, 1.0, k), var, (-1.0, 1.0)),
    ("std", |x, a, k| ops::std(x, a, 1.0, k), |x| var(x).sqrt(), (-1.0, 1.0)),
    ("norm 1", |x, a, k| ops::norm(x, 1.0, a, k), |x| x.iter().map(|v| v.abs()).sum(), (-0.01, 0.01)),
    ("norm 2", |x, a, k| ops::norm(x, 2.0, a, k), |x| x.iter().map(|v| v * v).sum::<f64>().sqrt(), (-1.0, 1.0)),
    (
        "norm 3",
        |x, a, k| ops::norm(x, 3.0, a, k),
        |x| x.iter().map(|v| v.abs().powi(3)).sum::<f64>().cbrt(),
        (-1.0, 1.0),
    ),
    ("logsumexp", |x, a, k| ops::logsumexp(x, a, k), |x| x.iter().map(|v| v.exp()).sum::<f64>().ln(), (-2.0, 3.0)),
    ("any", |x, a, k| ops::any(x, a, k), |x| f64::from(u8::from(x.iter().any(|&v| v != 0.0))), (0.0, 1e-12)),
    ("all", |x, a, k| ops::all(x, a, k), |x| f64::from(u8::from(x.iter().all(|&v| v != 0.0))), (0.0, 1.0)),
];

/// A tensor of a case, and the axes to reduce.
fn cases(small: bool) -> Vec<(&'static str, Vec<usize>, Axes<'static>)> {
    let mut cases = vec![
        ("scalar", vec![], Axes::All),
        ("one", vec![1], Axes::All),
        ("row", vec![5, 255], Axes::One(-1)),
        ("row", vec![5, 256], Axes::One(-1)),
        ("row", vec![3, 257], Axes::One(1)),
        ("column", vec![300, 37], Axes::One(0)),
        ("column", vec![7, 1030], Axes::One(0)),
        ("middle", vec![3, 129, 5], Axes::One(1)),
        ("outer and inner", vec![6, 5, 7], Axes::Several(&[0, -1])),
        ("none", vec![3, 4], Axes::Several(&[])),
        ("permuted", vec![6, 5, 70], Axes::One(0)),
        ("permuted", vec![6, 5, 70], Axes::Several(&[1, 2])),
        ("strided", vec![9, 300], Axes::One(1)),
        ("strided", vec![301, 9], Axes::One(0)),
        ("expanded", vec![4, 33], Axes::One(0)),
        ("expanded", vec![4, 33], Axes::One(1)),
        ("expanded", vec![4, 33], Axes::All),
        ("all", vec![13, 21, 5], Axes::All),
    ];
    if !small {
        cases.extend([
            ("all", vec![65535], Axes::All),
            ("row", vec![2, 65537], Axes::One(1)),
            ("column", vec![65537, 3], Axes::One(0)),
            ("all", vec![3, 131_101], Axes::All),
        ]);
    }
    cases
}

/// A view of the named kind with the given shape.
fn view(kind: &str, device: &DeviceHandle, shape: &[usize], range: (f64, f64), dtype: DType) -> Tensor {
    let q = &device.queue;
    let n: usize = shape.iter().product();
    match kind {
        "permuted" => {
            let (t, _) = tensor(q, &random(n, 3, range), [shape[2], shape[0], shape[1]], dtype);
            t.permute(&[1, 2, 0]).unwrap()
        }
        "strided" => {
            let (t, _) = tensor(q, &random(4 * n, 4, range), [2 * shape[0], 2 * shape[1]], dtype);
            let t = t.slice(0, Slice::new(Some(1), None, 2)).unwrap();
            t.slice(1, Slice::new(None, None, -2)).unwrap()
        }
        "expanded" => {
            let (t, _) = tensor(q, &random(shape[1], 5, range), [1, shape[1]], dtype);
            t.expand(shape).unwrap()
        }
        _ => tensor(q, &random(n, 6, range), shape, dtype).0,
    }
}

/// Rounding of the result, of the computation over so many terms, and of cancellation against their magnitude.
fn tolerance(name: &str, dtype: DType, terms: &[f64]) -> Tolerance {
    let compute = if dtype == DType::F64 { epsilon(DType::F64) * 8.0 } else { epsilon(DType::F32) };
    let size: f64 = match name {
        "sum" | "mean" | "norm 1" => terms.iter().map(|v| v.abs()).sum(),
        "prod" => terms.len() as f64,
        _ => 1.0,
    };
    let size = if name == "mean" { size / terms.len() as f64 } else { size };
    let own = if matches!(dtype, DType::F16 | DType::BF16) { epsilon(dtype) } else { 0.0 };
    Tolerance { relative: own + 8.0 * compute, absolute: 8.0 * compute * size + 1e-12 }
}

fn check(
    device: &DeviceHandle,
    op: usize,
    case: usize,
    small: bool,
    dtype: DType,
    keepdims: bool,
) -> Result<(), String> {
    let (name, run, reference, range) = OPS[op];
    let (kind, shape, axes) = cases(small)[case].clone();
    let x = view(kind, device, &shape, range, dtype);
    let groups = groups(&x.to_f64_vec().unwrap(), x.shape(), axes);
    let got = run(&x, axes, keepdims).map_err(|e| e.to_string())?;
    let ndim = if keepdims { shape.len() } else { shape.len() - reduced_axes(axes, shape.len()) };
    if (got.ndim(), got.dtype()) != (ndim, dtype) {
        return Err(format!("shape {} dtype {}", got.shape(), got.dtype()));
    }
    let got = got.to_f64_vec().unwrap();
    if got.len() != groups.len() {
        return Err(format!("{} results instead of {}", got.len(), groups.len()));
    }
    got.iter().zip(&groups).enumerate().try_for_each(|(i, (&g, terms))| {
        if terms.len() == 1 && matches!(name, "var" | "std") {
            return if g.is_nan() { Ok(()) } else { Err(format!("{name} of one element is {g}")) };
        }
        tolerance(name, dtype, terms).check(&[g], &[reference(terms)]).map_err(|e| format!("result {i}: {e}"))
    })
}

fn reduced_axes(axes: Axes<'_>, ndim: usize) -> usize {
    match axes {
        Axes::All => ndim,
        Axes::One(_) => 1,
        Axes::Several(axes) => axes.len(),
    }
}

/// PoCL takes up to a second for a kernel: there, all cases run for one sum, and a sample of everything else. Other OpenCL
/// devices run all of float32 and a third of the other types, and a fourth of that where they pretend to be small; the native engine
/// runs everything.
fn sampled(device: &DeviceHandle, dtype: DType, (op, case): (usize, usize), small: bool) -> bool {
    let every = match device.platform_name.as_str() {
        platform if platform.contains("Portable") => 59,
        _ if device.backend.name() == "cl" => (if dtype == DType::F32 { 1 } else { 3 }) * (if small { 4 } else { 1 }),
        _ => 1,
    };
    (op == 0 && dtype == DType::F32) || (op * 7 + case * 3 + dtype as usize * 5).is_multiple_of(every)
}

fn whole_grid(name: &'static str, small: bool, at_least: usize) {
    let mut grid = Grid::new(name);
    for device in devices() {
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (op, (name, ..)) in OPS.iter().enumerate() {
                for (case, (kind, shape, axes)) in cases(small).into_iter().enumerate() {
                    if sampled(&device, dtype, (op, case), small) {
                        let what = format!("{name} {dtype} {kind} {shape:?} {axes:?}");
                        grid.cell(&device, what, || {
                            check(&device, op, case, small, dtype, (op + case).is_multiple_of(2))
                        });
                    }
                }
            }
        }
    }
    grid.finish(at_least);
}

#[test]
fn every_reduction_on_every_device_and_dtype() {
    whole_grid("reduce", false, 13 * 4 * 22);
}

/// The same on a device that pretends to be small, in a process of its own: limits are read once.
#[test]
fn small_devices() {
    if is_child() {
        return whole_grid("reduce on small devices", true, 13 * 4 * 18);
    }
    let text = in_child("reduce_grid::small_devices", "NETCL_LIMITS", "wg=64,local=16k,alloc=64M");
    assert!(text.contains("grid reduce on small devices"), "{text}");
}

#[test]
fn every_variant_computes_the_same() {
    let names = |counter: &Counter| counter.names().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    for device in devices().iter().filter(|d| d.backend.name() == "cl") {
        for (shape, axis) in [([3, 1000], 1), ([1000, 70], 0), ([2, 65537], 1)] {
            let values = random(shape[0] * shape[1], 9, (-1.0, 1.0));
            let (x, values) = tensor(&device.queue, &values, shape, DType::F32);
            let groups = groups(&values, x.shape(), Axes::One(axis));
            for variant in [Variant::Sequential, Variant::Parallel, Variant::Workgroup] {
                let counter = Rc::new(Counter::default());
                let (sum, at) = with_sink(counter.clone(), || {
                    force_variant(variant, || {
                        (ops::sum(&x, axis, false).unwrap(), ops::argmin(&x, Some(axis), false).unwrap())
                    })
                });
                let mut expected = vec![format!("argmin_{}", variant.name()), format!("sum_{}", variant.name())];
                if variant == Variant::Workgroup {
                    // Along a dense axis the last group finishes the sum.
                    expected = vec!["argmin_finish".into(), "argmin_workgroup".into(), "sum_workgroup".into()];
                }
                assert_eq!(names(&counter), expected, "{device:?}");
                for (i, terms) in groups.iter().enumerate() {
                    let total: f64 = terms.iter().sum();
                    let got = sum.to_f64_vec().unwrap()[i];
                    assert!((got - total).abs() < 1e-4, "{variant:?} {shape:?}: {got} {total}");
                    let lowest = terms.iter().copied().fold(f64::INFINITY, f64::min);
                    let first = terms.iter().position(|&v| v == lowest).unwrap();
                    assert_eq!(at.to_host().unwrap()[i], first as i64, "{variant:?} {shape:?}");
                }
            }
        }
        // Without force, size decides.
        for (n, expected) in
            [(255, vec!["sum_sequential"]), (65535, vec!["sum_parallel"]), (65536, vec!["sum_workgroup"])]
        {
            let x = Tensor::full(&device.queue, [n], DType::F32, 1.0).unwrap();
            let counter = Rc::new(Counter::default());
            let total = with_sink(counter.clone(), || ops::sum(&x, (), false)).unwrap();
            assert_eq!(
                (names(&counter), total.item().unwrap()),
                (expected.iter().map(|n| n.to_string()).collect(), n as f64)
            );
        }
    }
}

#[test]
fn positions_follow_numpy() {
    let nan = f64::NAN;
    let inf = f64::INFINITY;
    let rows = [
        ([1.0, 3.0, 3.0, 2.0], 1, 0),
        ([nan, 3.0, nan, 2.0], 0, 0),
        ([1.0, -1.0, nan, nan], 2, 2),
        ([-inf, -inf, -inf, -inf], 0, 0),
        ([inf, inf, -0.0, 0.0], 0, 2),
        ([5.0, 5.0, 5.0, 5.0], 0, 0),
    ];
    for device in devices() {
        let values: Vec<f64> = rows.iter().flat_map(|r| r.0).collect();
        let (x, _) = tensor(&device.queue, &values, [6, 4], DType::F32);
        for variant in [Variant::Sequential, Variant::Parallel, Variant::Workgroup] {
            force_variant(variant, || {
                let (largest, smallest) =
                    (ops::argmax(&x, Some(1), false).unwrap(), ops::argmin(&x, Some(-1), true).unwrap());
                assert_eq!(largest.to_host().unwrap(), rows.map(|r| r.1), "{device:?} {variant:?}");
                assert_eq!(smallest.to_host().unwrap(), rows.map(|r| r.2), "{device:?} {variant:?}");
                assert_eq!(smallest.tensor().shape(), &Shape::from([6, 1]));
                // The same along columns, and over everything.
                let transposed = x.permute(&[1, 0]).unwrap().contiguous().unwrap();
                assert_eq!(ops::argmax(&transposed, Some(0), false).unwrap().to_host().unwrap(), rows.map(|r| r.1));
                assert_eq!(ops::argmax(&x, None, false).unwrap().to_host().unwrap(), [4]);
                let view = x.permute(&[1, 0]).unwrap();
                assert_eq!(ops::argmin(&view, None, false).unwrap().to_host().unwrap(), [1]);
                assert!(ops::max(&x, 1, false).unwrap().to_f64_vec().unwrap()[1].is_nan());
                assert!(ops::min(&x, (), false).unwrap().item().unwrap().is_nan());
            });
        }
        // Large: the first of two equal maxima far apart, in rows and columns.
        let mut values = random(200_000, 11, (-1.0, 1.0));
        (values[150_001], values[70_003]) = (2.0, 2.0);
        let (x, _) = tensor(&device.queue, &values, [200_000], DType::F32);
        assert_eq!(ops::argmax(&x, None, false).unwrap().to_host().unwrap(), [70_003], "{device:?}");
        let columns = ops::argmax(&reshape(&x, [100_000, 2]).unwrap(), Some(0), false).unwrap().to_host().unwrap();
        let expected = |c: usize| {
            (0..100_000).max_by(|&a, &b| values[2 * a + c].total_cmp(&values[2 * b + c]).then(b.cmp(&a))).unwrap()
        };
        assert_eq!(columns, [expected(0) as i64, 35_001], "{device:?}");
    }
}

#[test]
fn sums_of_special_values() {
    for device in devices() {
        let q = &device.queue;
        for n in [3, 300, 70_000] {
            let mut values = vec![1.0; n];
            values[n / 2] = f64::INFINITY;
            let (x, _) = tensor(q, &values, [n], DType::F32);
            assert_eq!(ops::sum(&x, (), false).unwrap().item().unwrap(), f64::INFINITY, "{device:?} {n}");
            values[0] = f64::NEG_INFINITY;
            let (x, _) = tensor(q, &values, [n], DType::F32);
            assert!(ops::sum(&x, (), false).unwrap().item().unwrap().is_nan(), "{device:?} {n}");
        }
        let (x, _) = tensor(q, &[f64::NEG_INFINITY; 4], [4], DType::F32);
        assert_eq!(ops::logsumexp(&x, (), false).unwrap().item().unwrap(), f64::NEG_INFINITY);
        let (x, _) = tensor(q, &[f64::NEG_INFINITY, 1e4, 1e4, -1e4], [4], DType::F32);
        assert!((ops::logsumexp(&x, 0, false).unwrap().item().unwrap() - 1e4 - 2f64.ln()).abs() < 1e-3);
        let (x, _) = tensor(q, &[f64::NAN, 0.0], [2], DType::F32);
        assert_eq!(ops::any(&x, (), false).unwrap().item().unwrap(), 1.0);
        assert_eq!(ops::all(&x, (), false).unwrap().item().unwrap(), 0.0);
        // A mean of 10^4 costs the variance no digits.
        let values: Vec<f64> = random(10_000, 2, (-1.0, 1.0)).iter().map(|v| v + 1e4).collect();
        let (x, values) = tensor(q, &values, [10_000], DType::F32);
        let got = ops::var(&x, (), 1.0, false).unwrap().item().unwrap();
        assert!((got / var(&values) - 1.0).abs() < 1e-5, "{device:?} {got}");
    }
}

#[test]
fn nothing_and_mistakes() {
    for device in devices() {
        let q = &device.queue;
        let empty = Tensor::from_shape(q, [2, 0, 3], DType::F32).unwrap();
        let values = |t: netcl_core::Result<Tensor>| t.unwrap().to_f64_vec().unwrap();
        assert_eq!(values(ops::sum(&empty, 1, false)), [0.0; 6]);
        assert_eq!(values(ops::prod(&empty, (), true)), [1.0]);
        assert!(values(ops::mean(&empty, 1, false)).iter().all(|v| v.is_nan()));
        assert!(values(ops::var(&empty, (), 1.0, false))[0].is_nan());
        assert_eq!(values(ops::logsumexp(&empty, (), false)), [f64::NEG_INFINITY]);
        assert_eq!((values(ops::any(&empty, (), false)), values(ops::all(&empty, (), false))), (vec![0.0], vec![1.0]));
        assert_eq!(ops::max(&empty, 0, false).unwrap().shape(), &Shape::from([0, 3]), "no result needs an element");
        for text in
            [ops::max(&empty, 1, false), ops::min(&empty, (), false), ops::norm(&empty, f64::INFINITY, (), false)]
                .map(|r| r.unwrap_err().to_string())
        {
            assert!(text.contains("of no elements has no value"), "{text}");
        }
        assert!(ops::argmax(&empty, None, false).unwrap_err().to_string().starts_with("argmax:"));
        let x = Tensor::from_shape(q, [2, 3], DType::F32).unwrap();
        assert!(ops::sum(&x, 2, false).unwrap_err().to_string().contains("axis 2 is out of range"));
        assert!(ops::sum(&x, &[0, -2], false).unwrap_err().to_string().contains("named twice"));
        assert!(ops::norm(&x, f64::NAN, (), false).unwrap_err().to_string().contains("p is NaN"));
        let whole = Tensor::from_host(q, &[1i64, 2], [2]).unwrap();
        assert!(ops::sum(&whole, (), false).unwrap_err().to_string().contains("got a tensor of int64"));
    }
}

#[test]
fn a_hundred_million_equal_values() {
    const N: usize = 100_000_000;
    for device in devices() {
        if let Queue::OpenCl(stream) = &device.queue
            && stream.device().info().max_mem_alloc_size < 4 * N as u64
        {
            println!("{}: not run, its largest allocation is too small", device.device_name);
            continue;
        }
        let values: &[f32] = if device.backend.name() == "cl" { &[0.1] } else { &[0.1, 1.0, 3.3e-5] };
        for &value in values {
            let x = Tensor::full(&device.queue, [N], DType::F32, f64::from(value)).unwrap();
            let exact = N as f64 * f64::from(value);
            for (what, got) in [("sum", ops::sum(&x, (), false)), ("mean", ops::mean(&x, (), false))] {
                let got = got.unwrap().item().unwrap() * if what == "mean" { N as f64 } else { 1.0 };
                assert!((got / exact - 1.0).abs() <= 1e-6, "{device:?} {what} of {value}: {got} instead of {exact}");
            }
        }
    }
}

#[test]
fn the_same_bits_with_any_number_of_threads() {
    let device = netcl_core::device::manager().cpu();
    let (x, _) = tensor(&device.queue, &random(3_000_000, 8, (-1.0, 1.0)), [1000, 3000], DType::F32);
    let bits = || -> Vec<u32> {
        [Axes::All, Axes::One(0), Axes::One(1)]
            .into_iter()
            .flat_map(|axes| {
                [ops::sum(&x, axes, false), ops::var(&x, axes, 1.0, false), ops::logsumexp(&x, axes, false)]
            })
            .flat_map(|t| t.unwrap().to_host::<f32>().unwrap())
            .map(f32::to_bits)
            .collect()
    };
    set_num_threads(1);
    let one = bits();
    for threads in [2, 3, 7] {
        set_num_threads(threads);
        assert!(one == bits(), "{threads} threads give other bits");
    }
    set_num_threads(0);
}

#[test]
fn devices_repeat_their_bits() {
    for device in devices() {
        let (x, _) = tensor(&device.queue, &random(300_000, 8, (-1.0, 1.0)), [100, 3000], DType::F32);
        for axes in [Axes::All, Axes::One(0), Axes::One(1)] {
            let bits = || ops::sum(&x, axes, false).unwrap().to_host::<f32>().unwrap();
            let first = bits();
            assert!((0..5).all(|_| bits() == first), "{device:?} {axes:?}");
        }
    }
}

/// The row engine adds up runs by the same loops: lengths around their edges.
#[test]
fn rows_of_regions_agree_with_reductions() {
    let queue = manager().cpu().queue;
    for (n, dtype) in [1, 31, 32, 33, 511, 513, 1100].into_iter().flat_map(|n| [(n, DType::F32), (n, DType::F64)]) {
        let (x, _) = tensor(&queue, &random(3 * n, 4, (0.5, 1.5)), [3, n], dtype);
        for combine in [Combine::Sum, Combine::Prod, Combine::Max, Combine::Min] {
            let mut rows = RegionBuilder::new("rows");
            let value = rows.input();
            let total = rows.reduce(combine, value);
            rows.output(total);
            let got = Tensor::uninit(&queue, [3], dtype).unwrap();
            rows.finish().run(&[&x], &[], &[&got], 1).unwrap();
            let expected = match combine {
                Combine::Sum => ops::sum(&x, Axes::One(1), false),
                Combine::Prod => ops::prod(&x, Axes::One(1), false),
                Combine::Max => ops::max(&x, Axes::One(1), false),
                Combine::Min => ops::min(&x, Axes::One(1), false),
            };
            let close = Tolerance { relative: 512.0 * epsilon(dtype), absolute: 0.0 };
            let expected = expected.unwrap().to_f64_vec().unwrap();
            close.check(&got.to_f64_vec().unwrap(), &expected).unwrap();
        }
    }
}
