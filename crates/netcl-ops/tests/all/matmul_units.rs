//! Products on matrix units: every arithmetic x {sizes around tile edges, forms, batches, epilogues, outputs}, the accuracy that is
//! promised for float32, and what becomes of infinities. Devices without matrix units are named and skipped.

use std::rc::Rc;

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::{self, Arg, Buffer, Deps, Grid as Grid3, MemFlags};
use netcl_core::device::DeviceHandle;
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::kernels::launch::{self, Counter};
use netcl_core::precision::MatmulPrecision;
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_ops::matmul::{Epilogue, MatmulOptions, Variant, matmul_with};

use crate::matmul_support::kinds::{Kind, kinds, numbers, plain_float32, splits};
use crate::matmul_support::{Form, operand, reference};
use crate::support::{self, Grid, random};

/// Devices with matrix units that some kernel of [`KINDS`] can use.
fn devices(grid: &mut Grid) -> Vec<DeviceHandle> {
    let (with, without): (Vec<_>, Vec<_>) = support::opencl().into_iter().partition(|device| !kinds(device).is_empty());
    for device in without {
        println!("NOT TESTED on {}: it has no matrix units", device.device_name);
        grid.skip("the device has no matrix units");
    }
    with
}

fn multiply(device: &DeviceHandle, kind: Kind, shapes: [&[usize]; 2], forms: [Form; 2]) -> Result<(), String> {
    let a = operand(&device.queue, shapes[0], forms[0], 1, kind.dtype);
    let b = operand(&device.queue, shapes[1], forms[1], 2, kind.dtype);
    let counter = Rc::new(Counter::default());
    let got = launch::with_sink(counter.clone(), || matmul_with(&a, &b, &kind.options())).map_err(|e| e.to_string())?;
    if counter.of(kind.variant.kernel_name()) == 0 {
        return Err(format!("launched {:?}", counter.names()));
    }
    let (sums, sizes, shape) = reference(&a, &b);
    if got.shape() != &shape || got.dtype() != kind.dtype {
        return Err(format!("{} of {}", got.shape(), got.dtype()));
    }
    kind.check(&got, &sums, &sizes, a.shape()[a.ndim() - 1])
}

#[test]
fn every_size_form_and_arithmetic() {
    use Form::{Dense, Strided, Transposed};
    let mut grid = Grid::new("matrix units");
    for device in devices(&mut grid) {
        for kind in kinds(&device) {
            for (m, n, k) in [
                (1, 1, 1),
                (2, 3, 1),
                (1, 129, 65),
                (129, 1, 63),
                (64, 64, 64),
                (128, 256, 128),
                (127, 255, 96),
                (130, 264, 200),
                (65, 63, 127),
                (200, 136, 72),
                (256, 512, 40),
                (300, 70, 1000),
            ] {
                for forms in [
                    [Dense, Dense],
                    [Dense, Transposed],
                    [Transposed, Dense],
                    [Transposed, Transposed],
                    [Strided, Strided],
                ] {
                    grid.cell(&device, format!("{kind:?} {m}x{n}x{k} {forms:?}"), || {
                        multiply(&device, kind, [&[m, k], &[k, n]], forms)
                    });
                }
            }
        }
    }
    grid.finish(0);
}

#[test]
fn tiles_of_every_width_cover_large_products() {
    let mut grid = Grid::new("matrix units, large");
    for device in devices(&mut grid) {
        for kind in kinds(&device) {
            // More rounds of tiles than compute units, with edges; one of few rows; one of few columns.
            for (m, n, k) in [(2051, 2310, 100), (1000, 1000, 257), (16, 5000, 130), (5000, 16, 130)] {
                grid.cell(&device, format!("{kind:?} {m}x{n}x{k}"), || {
                    multiply(&device, kind, [&[m, k], &[k, n]], [Form::Dense, Form::Transposed])
                });
            }
        }
    }
    grid.finish(0);
}

/// Tiles whose terms several units share: of a last round, of fewer tiles than there are units, of several matrices. Numbers in
/// halves, so that sums are exact whatever their order, and equal to those of the portable kernel.
#[test]
fn tiles_that_are_dealt_out_are_added_up_once() {
    let mut grid = Grid::new("matrix units, dealt out");
    let halves = |n: usize| (0..n).map(|i| ((i * 7 + i / 11) % 13) as f64 * 0.5 - 3.0).collect::<Vec<f64>>();
    for device in devices(&mut grid) {
        for kind in kinds(&device) {
            // The last ones are narrow: half of a tile's rows or more are missing, or it has few columns.
            for (batch, m, n, k) in [
                (1, 1000, 1100, 8200),
                (1, 260, 300, 12008),
                (2, 130, 264, 9000),
                (1, 64, 64, 30000),
                (2, 50, 300, 20008),
                (1, 5, 1000, 8200),
                (3, 300, 30, 8200),
            ] {
                grid.cell(&device, format!("{kind:?} {batch}x{m}x{n}x{k}"), || {
                    let make = |shape: [usize; 3]| {
                        support::tensor(&device.queue, &halves(shape.iter().product()), shape, kind.dtype).0
                    };
                    let (a, b) = (make([batch, m, k]), make([batch, k, n]));
                    let portable = MatmulOptions { variant: Some(Variant::RegisterTiled), ..Default::default() };
                    let of = |options: &MatmulOptions| matmul_with(&a, &b, options).and_then(|c| c.to_f64_vec());
                    let (got, expected) = (of(&kind.options()).unwrap(), of(&portable).unwrap());
                    let wrong = got.iter().zip(&expected).position(|(x, y)| x != y);
                    wrong.map_or(Ok(()), |i| Err(format!("element {i} is {} instead of {}", got[i], expected[i])))
                });
            }
        }
    }
    grid.finish(0);
}

/// Which kernel multiplies a few 16-bit rows where nobody forces one.
#[test]
fn few_rows_take_matrix_units_where_that_is_faster() {
    let mut grid = Grid::new("matrix units, few rows");
    for device in devices(&mut grid) {
        let whole = |kind: &Kind| kind.variant == Variant::Wgmma && kind.dtype.size() == 2;
        for kind in kinds(&device).into_iter().filter(whole) {
            let (units, strip) = (Variant::Wgmma, Variant::Strip);
            for (m, n, shift, expected) in [
                (8, 2048, 0, units),
                (2048, 8, 0, units),
                (2, 8192, 0, strip),
                (4, 2048, 0, strip),
                // The larger operand would have to be copied.
                (8, 2048, 1, strip),
            ] {
                grid.cell(&device, format!("{:?} {m}x{n} shifted by {shift}", kind.dtype), || {
                    let make = |rows: usize, cols: usize, seed: u64| {
                        let all = operand(&device.queue, &[rows, cols + shift], Form::Dense, seed, kind.dtype);
                        all.slice(1, Slice::new(Some(shift as isize), None, 1)).unwrap()
                    };
                    let (a, b) = (make(m, 2048, 1), make(2048, n, 2));
                    let counter = Rc::new(Counter::default());
                    let got = launch::with_sink(counter.clone(), || matmul_with(&a, &b, &MatmulOptions::default()));
                    if counter.of(expected.kernel_name()) != 1 {
                        return Err(format!("launched {:?}", counter.names()));
                    }
                    let (sums, sizes, _) = reference(&a, &b);
                    kind.check(&got.map_err(|e| e.to_string())?, &sums, &sizes, 2048)
                });
            }
        }
    }
    grid.finish(0);
}

#[test]
fn batches_broadcast() {
    let cases: [[&[usize]; 2]; 8] = [
        [&[3, 40, 72], &[3, 72, 48]],
        [&[3, 5, 7], &[7, 40]],
        [&[5, 7], &[3, 7, 4]],
        [&[2, 1, 130, 64], &[3, 64, 136]],
        [&[2, 3, 1, 7], &[2, 3, 7, 9]],
        [&[2, 1, 3, 1, 9, 5], &[1, 4, 1, 2, 5, 17]],
        [&[1, 2, 24, 24], &[2, 1, 24, 24]],
        [&[8, 65, 66], &[8, 66, 64]],
    ];
    let mut grid = Grid::new("matrix units, batches");
    for device in devices(&mut grid) {
        for kind in kinds(&device) {
            for shapes in cases {
                for forms in [[Form::Dense; 2], [Form::Transposed, Form::Dense], [Form::Transposed, Form::Strided]] {
                    grid.cell(&device, format!("{kind:?} {shapes:?} {forms:?}"), || {
                        multiply(&device, kind, shapes, forms)
                    });
                }
            }
        }
    }
    grid.finish(0);
}

/// relu(sum * s0 + bias) + residual
fn fused() -> Expr {
    let g = Graph::new();
    g.finish(&[(g.input(0) * g.scalar(0) + g.input(1)).relu() + g.input(2)])
}

fn epilogue_cell(
    device: &DeviceHandle,
    kind: Kind,
    to: DType,
    bias: &[usize],
    (m, n, k): (usize, usize, usize),
) -> Result<(), String> {
    let (q, expr) = (&device.queue, fused());
    let a = operand(q, &[2, m, k], Form::Transposed, 3, kind.dtype);
    let b = operand(q, &[k, n], Form::Dense, 4, kind.dtype);
    let bias = operand(q, &[&[1], bias].concat(), Form::Dense, 5, kind.dtype);
    let residual = operand(q, &[2, m, n], Form::Strided, 6, DType::F32);
    let inputs = vec![bias.clone(), residual.clone()];
    let epilogue = Epilogue { expr: &expr, inputs, scalars: vec![0.75.into()], dtype: Some(to) };
    let options = MatmulOptions { epilogue: Some(epilogue), ..kind.options() };
    let counter = Rc::new(Counter::default());
    let got = launch::with_sink(counter.clone(), || matmul_with(&a, &b, &options)).map_err(|e| e.to_string())?;
    if counter.of("elementwise") != 0 || got.dtype() != to {
        return Err(format!("launches {:?}, dtype {}", counter.names(), got.dtype()));
    }
    let (sums, sizes, shape) = reference(&a, &b);
    let rows = bias.expand(shape).unwrap().to_f64_vec().unwrap();
    let more = residual.to_f64_vec().unwrap();
    let apply = |i: usize| expr.eval(&[sums[i], rows[i], more[i]], &[0.75])[0];
    let expected: Vec<f64> = (0..sums.len()).map(apply).collect();
    let sizes: Vec<f64> = (0..sums.len()).map(|i| sizes[i] + rows[i].abs() + more[i].abs()).collect();
    kind.check(&got, &expected, &sizes, k)
}

#[test]
fn epilogues_are_applied_in_the_same_launch() {
    let mut grid = Grid::new("matrix units, epilogues");
    for device in devices(&mut grid) {
        for kind in kinds(&device) {
            for to in DType::FLOATS {
                for (m, n, k) in [(33, 36, 70), (130, 71, 40)] {
                    for bias in [vec![1, n], vec![m, 1]] {
                        grid.cell(&device, format!("{kind:?} to {to} {m}x{n}x{k} bias {bias:?}"), || {
                            epilogue_cell(&device, kind, to, &bias, (m, n, k))
                        });
                    }
                }
            }
        }
    }
    grid.finish(0);
}

#[test]
fn results_go_where_they_are_asked_to() {
    let mut grid = Grid::new("matrix units, outputs");
    for device in devices(&mut grid) {
        let q = &device.queue;
        for kind in kinds(&device) {
            let (m, n, k) = (96, 72, 48);
            let a = operand(q, &[m, k], Form::Dense, 1, kind.dtype);
            let b = operand(q, &[k, n], Form::Dense, 2, kind.dtype);
            let (sums, sizes, _) = reference(&a, &b);
            grid.cell(&device, format!("{kind:?} into a transposed view"), || {
                let into = Tensor::full(q, [n, m], kind.dtype, f64::NAN).unwrap().permute(&[1, 0]).unwrap();
                matmul_with(&a, &b, &MatmulOptions { out: Some(&into), ..kind.options() })
                    .map_err(|e| e.to_string())?;
                kind.check(&into, &sums, &sizes, k)
            });
            grid.cell(&device, format!("{kind:?} into a part of a tensor, from parts of tensors"), || {
                let inner = |t: &Tensor, shape: [usize; 2]| {
                    let whole = Tensor::full(q, [shape[0] + 3, shape[1] + 5], kind.dtype, 9.0).unwrap();
                    let rows = Slice::new(Some(1), Some(shape[0] as isize + 1), 1);
                    let cols = Slice::new(Some(3), Some(shape[1] as isize + 3), 1);
                    let part = whole.slice(0, rows).unwrap().slice(1, cols).unwrap();
                    part.assign(t).unwrap();
                    (whole, part)
                };
                let ((_, a), (_, b)) = (inner(&a, [m, k]), inner(&b, [k, n]));
                let (whole, into) = inner(&Tensor::full(q, [m, n], kind.dtype, 0.0).unwrap(), [m, n]);
                matmul_with(&a, &b, &MatmulOptions { out: Some(&into), ..kind.options() })
                    .map_err(|e| e.to_string())?;
                kind.check(&into, &sums, &sizes, k)?;
                let around = whole.to_f64_vec().unwrap().into_iter().filter(|&x| x == 9.0).count();
                let expected = (m + 3) * (n + 5) - m * n;
                if around < expected { Err(format!("wrote outside: {around} of {expected} are left")) } else { Ok(()) }
            });
            grid.cell(&device, format!("{kind:?} onto its own residual"), || {
                let g = Graph::new();
                let add = g.finish(&[g.input(0) + g.input(1)]);
                let total = Tensor::full(q, [m, n], kind.dtype, 1.0).unwrap();
                let epilogue = Epilogue { expr: &add, inputs: vec![total.clone()], scalars: vec![], dtype: None };
                let options = MatmulOptions { out: Some(&total), epilogue: Some(epilogue), ..kind.options() };
                matmul_with(&a, &b, &options).map_err(|e| e.to_string())?;
                let expected: Vec<f64> = sums.iter().map(|sum| sum + 1.0).collect();
                let sizes: Vec<f64> = sizes.iter().map(|size| size + 1.0).collect();
                kind.check(&total, &expected, &sizes, k)
            });
        }
    }
    grid.finish(0);
}

#[test]
fn split_products_are_as_accurate_as_float32() {
    let mut grid = Grid::new("matrix units, accuracy");
    for device in devices(&mut grid) {
        let (m, n) = (64, 200);
        for way in ["random", "positive", "wide"] {
            for k in [64, 256, 1000, 4096, 16384] {
                let make = |shape: [usize; 2], seed| {
                    support::tensor(&device.queue, &numbers(shape[0] * shape[1], seed, way), shape, DType::F32).0
                };
                let (a, b) = (make([m, k], 1), make([k, n], 2));
                let (sums, sizes, _) = reference(&a, &b);
                // The largest and the mean error, as parts of the sums of magnitudes.
                let errors = |got: &[f32]| {
                    let errors =
                        got.iter().zip(&sums).zip(&sizes).map(|((&g, e), size)| (f64::from(g) - e).abs() / size);
                    let (max, sum) = errors.fold((0.0, 0.0), |(max, sum), e| (f64::max(max, e), sum + e));
                    (max, sum / got.len() as f64)
                };
                let plain = errors(&plain_float32(&a, &b));
                for kind in splits(&device) {
                    let name = kind.variant.kernel_name();
                    grid.cell(&device, format!("{name} {way} K={k}"), || {
                        let got = matmul_with(&a, &b, &kind.options()).map_err(|e| e.to_string())?;
                        let split = errors(&got.to_host::<f32>().unwrap());
                        println!("{name} {way} K={k}: float32 {plain:?}, split {split:?}");
                        // A few roundings are allowed where float32 happens to be exact.
                        let within = |split: f64, plain: f64| split <= 2.0 * plain.max(2f64.powi(-25));
                        if within(split.0, plain.0) && within(split.1, plain.1) {
                            Ok(())
                        } else {
                            Err(format!("errors {split:?}, float32's {plain:?}"))
                        }
                    });
                }
            }
        }
    }
    grid.finish(0);
}

#[test]
fn what_is_not_finite_is_as_in_float32() {
    let mut grid = Grid::new("matrix units, Inf and NaN");
    for device in devices(&mut grid) {
        let q = &device.queue;
        let (m, n, k) = (150, 140, 100);
        for (what, values) in [
            ("Inf", vec![f32::INFINITY]),
            ("-Inf and Inf", vec![f32::NEG_INFINITY, f32::INFINITY]),
            ("NaN", vec![f32::NAN]),
            ("the largest", vec![f32::MAX, -f32::MAX]),
            ("sums that overflow", vec![1e38, 3e38]),
        ] {
            for kind in splits(&device) {
                grid.cell(&device, format!("{what} {}", kind.variant.kernel_name()), || {
                    let mut left: Vec<f32> = random(m * k, 1, (-1.0, 1.0)).into_iter().map(|x| x as f32).collect();
                    let mut right: Vec<f32> = random(k * n, 2, (-1.0, 1.0)).into_iter().map(|x| x as f32).collect();
                    for (i, &value) in values.iter().enumerate() {
                        left[(7 + 31 * i) * k + 3 + i] = value;
                        right[(3 + i) * n + 11 * i] = if i == 0 { 2.0 } else { value };
                    }
                    let a = Tensor::from_host(q, &left, [m, k]).unwrap();
                    let b = Tensor::from_host(q, &right, [k, n]).unwrap();
                    let bits = |variant| {
                        let options = MatmulOptions { variant: Some(variant), ..Default::default() };
                        matmul_with(&a, &b, &options).unwrap().to_host::<f32>().unwrap()
                    };
                    let (plain, split) = (bits(Variant::RegisterTiled), bits(kind.variant));
                    if plain.iter().all(|x| x.is_finite()) && what != "the largest" {
                        return Err("the case tests nothing: all results are finite".to_owned());
                    }
                    let close = |x: f32, y: f32| {
                        x.to_bits() == y.to_bits()
                            || (x.is_nan() && y.is_nan())
                            || (x.is_finite() && (x - y).abs() <= 1e-5 * x.abs().max(1.0))
                    };
                    let wrong = plain.iter().zip(&split).position(|(&x, &y)| !close(x, y));
                    wrong.map_or(Ok(()), |i| Err(format!("element {i} is {} instead of {}", split[i], plain[i])))
                });
            }
        }
        for kind in kinds(&device) {
            grid.cell(&device, format!("{kind:?} without parts"), || {
                let mut left = vec![1.0f32; 20 * 30];
                // NaN's in all bits must stay one when it is rounded, and the largest number become Inf.
                (left[0], left[31], left[65]) = (f32::INFINITY, f32::NAN, f32::MAX);
                (left[90], left[120]) = (f32::from_bits(0x7fff_ffff), f32::from_bits(0xffff_ffff));
                let cast = |t: Tensor| t.cast(kind.dtype).unwrap();
                let a = cast(Tensor::from_host(q, &left, [20, 30]).unwrap());
                let b = cast(Tensor::full(q, [30, 40], DType::F32, 2.0).unwrap());
                let got = matmul_with(&a, &b, &kind.options()).unwrap().to_f64_vec().unwrap();
                let right = got.iter().enumerate().all(|(i, x)| match i / 40 {
                    0 | 2 => *x == f64::INFINITY,
                    1 | 3 | 4 => x.is_nan(),
                    _ => *x == 60.0,
                });
                if right { Ok(()) } else { Err(format!("{:?}", got.iter().step_by(40).collect::<Vec<_>>())) }
            });
        }
    }
    grid.finish(0);
}

#[test]
fn small_numbers_are_not_flushed() {
    let mut grid = Grid::new("matrix units, subnormal numbers");
    for device in devices(&mut grid) {
        // Powers of two: a subnormal operand, a subnormal sum, both.
        for (left, right) in [(-130, 20), (-75, -65), (-128, -10)] {
            for kind in kinds(&device).into_iter().filter(|kind| kind.dtype == DType::BF16 || kind.by_parts()) {
                grid.cell(&device, format!("{kind:?} 2^{left} x 2^{right}"), || {
                    let full = |shape: [usize; 2], exponent: i32| {
                        Tensor::full(&device.queue, shape, kind.dtype, 2f64.powi(exponent)).unwrap()
                    };
                    let g = Graph::new();
                    let keep = g.finish(&[g.input(0)]);
                    let epilogue = Epilogue { expr: &keep, inputs: vec![], scalars: vec![], dtype: Some(DType::F32) };
                    let options = MatmulOptions { epilogue: Some(epilogue), ..kind.options() };
                    let got = matmul_with(&full([64, 64], left), &full([64, 64], right), &options).unwrap();
                    let expected = 2f64.powi(left + right + 6);
                    let wrong = got.to_f64_vec().unwrap().into_iter().find(|&x| x != expected);
                    wrong.map_or(Ok(()), |x| Err(format!("{x:e} instead of {expected:e}")))
                });
            }
        }
    }
    grid.finish(0);
}

#[test]
fn the_precision_decides_which_kernel_runs() {
    let mut grid = Grid::new("matrix units, choice");
    for device in devices(&mut grid) {
        let square = |n: usize, dtype| Tensor::full(&device.queue, [n, n], dtype, 1.0).unwrap();
        let launched = |t: &Tensor, precision| {
            let counter = Rc::new(Counter::default());
            let options = MatmulOptions { precision: Some(precision), ..Default::default() };
            let got = launch::with_sink(counter.clone(), || matmul_with(t, t, &options)).unwrap();
            assert_eq!(got.to_f64_vec().unwrap()[..5], [t.shape()[0] as f64; 5]);
            counter.names().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let [highest, high, medium] = MatmulPrecision::ALL;
        let hopper = Variant::Wgmma.runs_on(&device.queue, DType::F32);
        let (whole, parts) =
            if hopper { ("matmul_wgmma", "matmul_wgmma_split") } else { ("matmul_mma", "matmul_mma_split") };
        for (n, dtype, precision, mut expected) in [
            (1024, DType::F32, highest, vec!["matmul_register_tiled", "matmul_split", parts]),
            (1024, DType::F32, high, vec![whole]),
            (1024, DType::F32, medium, vec!["matmul_split", whole]),
            (256, DType::BF16, highest, vec![whole]),
            (8, DType::BF16, highest, vec!["matmul_naive"]),
            (8, DType::F32, high, vec!["matmul_naive"]),
        ] {
            grid.cell(&device, format!("{n} {dtype} {precision}"), || {
                let names = launched(&square(n, dtype), precision);
                expected.sort_unstable();
                // Products of parts do not pay on every chip.
                let plain =
                    !hopper && dtype == DType::F32 && precision == highest && names == ["matmul_register_tiled"];
                if plain || names == expected { Ok(()) } else { Err(format!("launched {names:?}")) }
            });
        }
        for kind in kinds(&device) {
            grid.cell(&device, format!("{kind:?}: the same bits every time"), || {
                let a = operand(&device.queue, &[700, 700], Form::Dense, 1, kind.dtype);
                let bits = || matmul_with(&a, &a, &kind.options()).unwrap().to_f64_vec().unwrap();
                let first = bits();
                if (0..5).all(|_| bits() == first) { Ok(()) } else { Err("other bits".to_owned()) }
            });
        }
    }
    grid.finish(0);
}

/// The kernels that prepare operands are portable, so every device tests them.
#[test]
fn operands_are_cut_into_parts_and_turned() {
    for device in support::opencl() {
        let Queue::OpenCl(stream) = &device.queue else { continue };
        let (context, queue) = (stream.context(), stream.queue());
        let kernel = |source: &str, name: &str| {
            let source = [include_str!("../../src/common.cl"), source].concat();
            let options = "-D VECTOR=float8 -D PART=ushort -D PARTS=3 -D ALIGNED=0";
            opencl::build(context, stream.device(), &source, options).unwrap().kernel(name).unwrap()
        };
        let filled = |bytes: usize| {
            let buffer = Buffer::new(context, MemFlags::READ_WRITE, bytes).unwrap();
            queue.fill(&buffer, 0..bytes, 0xff_u8, Deps::NONE).unwrap();
            buffer
        };
        // Two matrices of 5 lines of 13 elements, every second one, lines 30 apart, from the third on.
        let (length, lines, pitch) = (13_usize, 5, 16);
        let mut values: Vec<f32> = random(320, 5, (-1.0, 1.0)).into_iter().map(|x| x as f32).collect();
        (values[3], values[5], values[7]) = (3.4e38, f32::NAN, 1e-30);
        let (from, to, flag) = (filled(320 * 4), filled(3 * 2 * lines * pitch * 2), filled(4));
        queue.write(&from, 0, &values).unwrap();
        let number = |value: usize| Arg::from(value as i64);
        let part = 2 * lines * pitch;
        let mut args = vec![Arg::Buffer(&from), Arg::from(3_u64), Arg::Buffer(&to)];
        args.extend([length, lines, pitch, 2, 2, 30, 0, 155].map(number));
        args.extend([Arg::from(part as u64), Arg::Buffer(&flag)]);
        let split = kernel(include_str!("../../src/matmul/matmul_split.cl"), "matmul_split");
        queue.launch(&split, Grid3::new([2, lines, 2]).local([1, 1, 1]), &args, Deps::NONE).unwrap();
        let (mut parts, mut lowered) = (vec![0_u16; 3 * part], [7_u32]);
        queue.read(&to, 0, &mut parts).unwrap();
        queue.read(&flag, 0, &mut lowered).unwrap();
        assert_eq!(lowered, [0]);
        for at in 0..part {
            let (matrix, line, i) = (at / (lines * pitch), at / pitch % lines, at % pitch);
            let got = [0, 1, 2].map(|p| f32::from_bits(u32::from(parts[p * part + at]) << 16));
            let x = if i < length { values[3 + matrix * 155 + line * 30 + i * 2] } else { 0.0 };
            let sum = got.iter().map(|&p| f64::from(p)).sum::<f64>();
            if x.is_nan() || x > 3e38 {
                assert!(!sum.is_finite(), "{x} in parts is {got:?} on {}", device.device_name);
            } else {
                assert_eq!(sum, f64::from(x), "{x} in parts is {got:?} on {}", device.device_name);
                assert!(got[0].abs() >= got[1].abs() && got[1].abs() >= got[2].abs());
            }
        }
        // Two matrices of 45 terms of 37 lines each become lines of 48, of which 45 are terms.
        let (terms, lines, pitch) = (45_usize, 37, 48);
        if stream.device().info().max_work_group_size < 256 {
            continue;
        }
        let numbers: Vec<u32> = (0..2 * terms * 40).map(|i| i as u32).collect();
        let (from, to) = (filled(numbers.len() * 4), filled(2 * lines * pitch * 4));
        queue.write(&from, 0, &numbers).unwrap();
        let mut args = vec![Arg::Buffer(&from), Arg::from(1_u64), Arg::Buffer(&to)];
        args.extend([terms, lines, pitch, 2, 40, 0, terms * 40].map(number));
        let turn = kernel(include_str!("../../src/matmul/matmul_turn.cl"), "matmul_turn");
        queue.launch(&turn, Grid3::new([64, 16, 2]).local([32, 8, 1]), &args, Deps::NONE).unwrap();
        let mut got = vec![0_u32; 2 * lines * pitch];
        queue.read(&to, 0, &mut got).unwrap();
        for (at, &x) in got.iter().enumerate() {
            let (matrix, line, term) = (at / (lines * pitch), at / pitch % lines, at % pitch);
            let expected = if term < terms { (1 + matrix * terms * 40 + term * 40 + line) as u32 } else { u32::MAX };
            assert_eq!(x, expected, "element {at} on {}", device.device_name);
        }
    }
}

#[test]
fn devices_without_matrix_units_say_so() {
    for device in support::devices() {
        for variant in Variant::MATRIX_UNITS {
            assert!(!variant.runs_on(&device.queue, DType::F64));
            let a = Tensor::full(&device.queue, [4, 4], DType::F32, 1.0).unwrap();
            let options = MatmulOptions { variant: Some(variant), ..Default::default() };
            match matmul_with(&a, &a, &options) {
                Ok(got) => assert_eq!(got.to_f64_vec().unwrap(), [4.0; 16]),
                Err(error) => {
                    let text = error.to_string();
                    assert!(!variant.runs_on(&device.queue, DType::F32), "{text}");
                    assert!(text.contains(variant.kernel_name()) && text.contains("runs_on"), "{text}");
                }
            }
        }
    }
}
