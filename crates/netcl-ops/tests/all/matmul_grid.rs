//! Matrix products: devices x dtypes x {sizes around tile edges, transposes, strides, batches, epilogues, forced kernels}, held
//! against f64 with a bound that grows with the number of terms.

use std::rc::Rc;

use netcl_core::backend::cpu::threads::set_num_threads;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::kernels::launch::{self, Counter, Recorder, Slot};
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_ops::matmul::{Epilogue, MatmulOptions, Variant, build_matmul_kernel, linear, matmul, matmul_with};

use crate::matmul_support::{Form, operand, reference};
use crate::support::{Grid, devices, epsilon, every, in_child, opencl, supports};

/// m, n, k around the edges of every tile.
const SIZES: [(usize, usize, usize); 17] = [
    (1, 1, 1),
    (2, 3, 1),
    (3, 15, 16),
    (16, 16, 16),
    (17, 31, 33),
    (1, 129, 65),
    (129, 1, 63),
    (1, 300, 2),
    (64, 64, 64),
    (65, 63, 127),
    (127, 129, 33),
    (33, 2, 129),
    (4, 65, 255),
    (5, 257, 31),
    (96, 128, 17),
    (130, 70, 1),
    (3, 1100, 37),
];

/// Every element within the rounding errors of a sum of k terms and of the result's own type.
fn check(got: &Tensor, sums: &[f64], sizes: &[f64], k: usize, dtype: DType) -> Result<(), String> {
    let got_values = got.to_f64_vec().map_err(|e| e.to_string())?;
    if got_values.len() != sums.len() {
        return Err(format!("shape {} instead of {} elements", got.shape(), sums.len()));
    }
    let (sum_eps, out_eps) = (epsilon(dtype.accumulator()), epsilon(got.dtype()));
    for (i, ((&g, &e), &size)) in got_values.iter().zip(sums).zip(sizes).enumerate() {
        let bound = (k + 4) as f64 * sum_eps * size + out_eps * e.abs() + 1e-7 * f64::from(u8::from(out_eps > 1e-4));
        if g.is_nan() || (g - e).abs() > bound {
            return Err(format!("element {i} is {g:e}, expected {e:e} within {bound:e}"));
        }
    }
    Ok(())
}

fn multiply(device: &DeviceHandle, dtype: DType, shapes: [&[usize]; 2], forms: [Form; 2]) -> Result<(), String> {
    let a = operand(&device.queue, shapes[0], forms[0], 1, dtype);
    let b = operand(&device.queue, shapes[1], forms[1], 2, dtype);
    let (sums, sizes, shape) = reference(&a, &b);
    let got = matmul(&a, &b).map_err(|e| e.to_string())?;
    if got.shape() != &shape || got.dtype() != dtype {
        return Err(format!("{} of {}", got.shape(), got.dtype()));
    }
    check(&got, &sums, &sizes, a.shape()[a.ndim() - 1], dtype)
}

#[test]
fn every_size_form_dtype_and_device() {
    use Form::{Dense, Strided, Transposed};
    let mut grid = Grid::new("matmul");
    for device in devices() {
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (m, n, k) in SIZES {
                for forms in [
                    [Dense, Dense],
                    [Dense, Transposed],
                    [Transposed, Dense],
                    [Transposed, Transposed],
                    [Strided, Strided],
                ] {
                    grid.cell(&device, format!("{dtype} {m}x{n}x{k} {forms:?}"), || {
                        multiply(&device, dtype, [&[m, k], &[k, n]], forms)
                    });
                }
            }
        }
    }
    grid.finish(300);
}

#[test]
fn batches_broadcast() {
    let cases: [[&[usize]; 2]; 10] = [
        [&[3, 5, 7], &[3, 7, 4]],
        [&[3, 5, 7], &[7, 40]],
        [&[5, 7], &[3, 7, 4]],
        [&[2, 1, 5, 70], &[3, 70, 33]],
        [&[2, 3, 1, 7], &[7, 9]],
        [&[2, 3, 1, 7], &[2, 3, 7, 9]],
        [&[2, 1, 3, 1, 9, 5], &[1, 4, 1, 2, 5, 17]],
        [&[1, 1, 20, 20], &[2, 2, 20, 20]],
        [&[8, 65, 66], &[8, 66, 64]],
        [&[0, 3, 4], &[4, 5]],
    ];
    let mut grid = Grid::new("matmul batches");
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for shapes in cases {
                for forms in [[Form::Dense; 2], [Form::Transposed, Form::Strided]] {
                    grid.cell(&device, format!("{dtype} {shapes:?} {forms:?}"), || {
                        multiply(&device, dtype, shapes, forms)
                    });
                }
            }
        }
    }
    grid.finish(40);
}

#[test]
fn vectors_and_transposes_follow_numpy() {
    for device in devices() {
        let q = &device.queue;
        let a = Tensor::from_host(q, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]).unwrap();
        let x = Tensor::from_host(q, &[1.0f32, 10.0, 100.0], [3]).unwrap();
        let y = Tensor::from_host(q, &[1.0f32, 10.0], [2]).unwrap();
        let ax = matmul(&a, &x).unwrap();
        assert_eq!((ax.shape().to_vec(), ax.to_host::<f32>().unwrap()), (vec![2], vec![321.0, 654.0]));
        let ya = matmul(&y, &a).unwrap();
        assert_eq!((ya.shape().to_vec(), ya.to_host::<f32>().unwrap()), (vec![3], vec![41.0, 52.0, 63.0]));
        let xx = matmul(&x, &x).unwrap();
        assert_eq!((xx.shape(), xx.item().unwrap()), (&Shape::scalar(), 10101.0));
        let both = MatmulOptions { transpose_a: true, transpose_b: true, ..Default::default() };
        let wide = matmul_with(&x, &a, &both).unwrap();
        assert_eq!(wide.to_host::<f32>().unwrap(), [321.0, 654.0]);
        let gram = matmul_with(&a, &a, &MatmulOptions { transpose_b: true, ..Default::default() }).unwrap();
        assert_eq!(gram.to_host::<f32>().unwrap(), [14.0, 32.0, 32.0, 77.0]);
        let stack = Tensor::from_host(q, &[1.0f32, 2.0, 3.0, 4.0], [2, 1, 2]).unwrap();
        let by_vector = matmul(&stack, &y).unwrap();
        assert_eq!((by_vector.shape().to_vec(), by_vector.to_host::<f32>().unwrap()), (vec![2, 1], vec![21.0, 43.0]));
    }
}

/// relu(sum * s0 + bias) + residual
fn fused() -> Expr {
    let g = Graph::new();
    g.finish(&[(g.input(0) * g.scalar(0) + g.input(1)).relu() + g.input(2)])
}

fn epilogue_cell(
    device: &DeviceHandle,
    dtype: DType,
    to: DType,
    bias: &[usize],
    (m, n, k): (usize, usize, usize),
) -> Result<(), String> {
    let (q, expr) = (&device.queue, fused());
    let a = operand(q, &[2, m, k], Form::Transposed, 3, dtype);
    let b = operand(q, &[k, n], Form::Dense, 4, dtype);
    let bias = operand(q, &[&[1], bias].concat(), Form::Dense, 5, dtype);
    let residual = operand(q, &[2, m, n], Form::Strided, 6, DType::F32);
    let epilogue = Epilogue {
        expr: &expr,
        inputs: vec![bias.clone(), residual.clone()],
        scalars: vec![0.75.into()],
        dtype: Some(to),
    };
    let counter = Rc::new(Counter::default());
    let options = MatmulOptions { epilogue: Some(epilogue), ..Default::default() };
    let got = launch::with_sink(counter.clone(), || matmul_with(&a, &b, &options)).map_err(|e| e.to_string())?;
    if counter.of("elementwise") != 0 || got.dtype() != to {
        return Err(format!("launches {:?}, dtype {}", counter.names(), got.dtype()));
    }
    let (sums, sizes, shape) = reference(&a, &b);
    let rows = bias.expand(shape.clone()).unwrap().to_f64_vec().unwrap();
    let more = residual.to_f64_vec().unwrap();
    let apply = |i: usize| expr.eval(&[sums[i], rows[i], more[i]], &[0.75])[0];
    let expected: Vec<f64> = (0..sums.len()).map(apply).collect();
    // The epilogue's own roundings are of values of this size.
    let sizes: Vec<f64> = (0..sums.len()).map(|i| sizes[i] + rows[i].abs() + more[i].abs()).collect();
    check(&got, &expected, &sizes, k, dtype)
}

#[test]
fn epilogues_are_applied_in_the_same_launch() {
    let mut grid = Grid::new("matmul epilogues");
    for device in devices() {
        for (dtype, to) in [
            (DType::F32, DType::F32),
            (DType::F32, DType::F64),
            (DType::BF16, DType::F16),
            (DType::F16, DType::BF16),
            (DType::F64, DType::F32),
        ] {
            if !supports(&device, dtype) || !supports(&device, to) {
                grid.skip("the device has no float64");
                continue;
            }
            for (m, n, k) in [(5, 6, 7), (65, 33, 40), (3, 40, 700)] {
                for bias in [vec![1, n], vec![m, 1], vec![1, 1]] {
                    grid.cell(&device, format!("{dtype} to {to} {m}x{n}x{k} bias {bias:?}"), || {
                        epilogue_cell(&device, dtype, to, &bias, (m, n, k))
                    });
                }
            }
        }
    }
    grid.finish(45);
}

/// Runs a product with a forced kernel, checks the launch's name and the result.
fn forced(
    device: &DeviceHandle,
    dtype: DType,
    variant: Variant,
    (m, n, k): (usize, usize, usize),
    form: Form,
) -> Result<Counter, String> {
    let a = operand(&device.queue, &[2, m, k], form, 7, dtype);
    let b = operand(&device.queue, &[2, k, n], form, 8, dtype);
    let counter = Rc::new(Counter::default());
    let options = MatmulOptions { variant: Some(variant), ..Default::default() };
    let got = launch::with_sink(counter.clone(), || matmul_with(&a, &b, &options)).map_err(|e| e.to_string())?;
    if counter.of(variant.kernel_name()) != 1 {
        return Err(format!("launched {:?}", counter.names()));
    }
    let (sums, sizes, _) = reference(&a, &b);
    check(&got, &sums, &sizes, k, dtype)?;
    Rc::try_unwrap(counter).map_err(|_| "the sink is still in use".to_owned())
}

#[test]
fn each_variant_launches_its_own_kernel() {
    let mut grid = Grid::new("matmul variants");
    // Under the limits of `small_devices_are_respected` what matters is that tiles fit, which are those of the sums: two sizes
    // show it, and types that are summed in float32 need not.
    let limited = std::env::var_os("NETCL_LIMITS").is_some();
    for device in opencl() {
        for variant in Variant::PORTABLE {
            for dtype in DType::FLOATS.into_iter().filter(|dtype| !limited || dtype.size() > 2) {
                if !supports(&device, dtype) {
                    grid.skip("the device has no float64");
                    continue;
                }
                let sampled = dtype != DType::F32 && every(&device, 2, 1) > 1;
                let sizes = [(66, 130, 35), (7, 33, 20), (1, 1, 1), (64, 64, 64), (34, 5, 100)];
                let count = match (sampled, limited) {
                    (true, _) => 1,
                    (_, true) => 2,
                    _ => sizes.len(),
                };
                for size in sizes.into_iter().take(count) {
                    for form in [Form::Dense, Form::Transposed].into_iter().take(if sampled { 1 } else { 2 }) {
                        grid.cell(&device, format!("{variant:?} {dtype} {size:?} {form:?}"), || {
                            forced(&device, dtype, variant, size, form).map(|_| ())
                        });
                    }
                }
            }
        }
    }
    grid.finish(0);
}

#[test]
fn long_sums_are_split_and_added_in_order() {
    let mut grid = Grid::new("matmul split-K");
    for device in opencl() {
        for variant in Variant::PORTABLE {
            grid.cell(&device, format!("{variant:?}"), || {
                let counter = forced(&device, DType::F32, variant, (2, 2, 5000), Form::Dense)?;
                // Strips add up their parts in the launch that computes them.
                if counter.of("matmul_splitk_reduce") != usize::from(variant != Variant::Strip) {
                    return Err(format!("not split: {:?}", counter.names()));
                }
                Ok(())
            });
        }
        let (a, b) = (
            operand(&device.queue, &[6, 9000], Form::Dense, 1, DType::F32),
            operand(&device.queue, &[9000, 6], Form::Dense, 2, DType::F32),
        );
        let bits =
            || matmul(&a, &b).unwrap().to_host::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let first = bits();
        assert!((0..5).all(|_| bits() == first), "the same product gave other bits");
    }
    grid.finish(0);
}

#[test]
fn small_devices_are_respected() {
    if opencl().is_empty() {
        return;
    }
    for limits in ["wg=64,local=16k,alloc=64M,no_fp64", "wg=7,local=1k"] {
        for test in [
            "matmul_grid::each_variant_launches_its_own_kernel",
            "matmul_grid::long_sums_are_split_and_added_in_order",
            "matmul_grid::vectors_and_transposes_follow_numpy",
        ] {
            in_child(test, "NETCL_LIMITS", limits);
        }
    }
}

#[test]
fn native_results_do_not_depend_on_the_number_of_threads() {
    let queue = manager().cpu().queue;
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for (m, n, k) in [(300, 517, 260), (1, 3000, 700), (700, 3, 900), (64, 64, 4000), (513, 513, 513)] {
            let (a, b) =
                (operand(&queue, &[m, k], Form::Dense, 1, dtype), operand(&queue, &[k, n], Form::Dense, 2, dtype));
            let bits = |threads: usize| {
                set_num_threads(threads);
                matmul(&a, &b).unwrap().to_f64_vec().unwrap().into_iter().map(f64::to_bits).collect::<Vec<_>>()
            };
            let one = bits(1);
            for threads in [2, 3, 8] {
                assert!(bits(threads) == one, "{dtype} {m}x{n}x{k}: {threads} threads give other bits than one");
            }
            set_num_threads(0);
        }
    }
}

#[test]
fn large_native_products_are_right() {
    let device = manager().cpu();
    for (dtype, m, n, k) in [
        (DType::F32, 530, 700, 300),
        (DType::F16, 300, 290, 1100),
        (DType::BF16, 270, 530, 600),
        (DType::F64, 300, 280, 500),
    ] {
        for forms in [[Form::Dense, Form::Dense], [Form::Transposed, Form::Strided]] {
            multiply(&device, dtype, [&[m, k], &[k, n]], forms).unwrap();
        }
    }
}

#[test]
fn empty_products_and_empty_sums() {
    for device in devices() {
        let q = &device.queue;
        let zeros = |shape: &[usize]| Tensor::full(q, shape, DType::F32, 3.0).unwrap();
        assert_eq!(matmul(&zeros(&[0, 4]), &zeros(&[4, 5])).unwrap().shape().to_vec(), [0, 5]);
        assert_eq!(matmul(&zeros(&[2, 4]), &zeros(&[4, 0])).unwrap().shape().to_vec(), [2, 0]);
        assert_eq!(matmul(&zeros(&[2, 0]), &zeros(&[0, 3])).unwrap().to_host::<f32>().unwrap(), [0.0; 6]);
        let bias = Tensor::from_host(q, &[1.0f32, -2.0, 3.0], [3]).unwrap();
        let got = linear(&zeros(&[2, 0]), &zeros(&[3, 0]), Some(&bias)).unwrap();
        assert_eq!(got.to_host::<f32>().unwrap(), [1.0, -2.0, 3.0, 1.0, -2.0, 3.0]);
    }
}

#[test]
fn results_go_where_they_are_asked_to_even_over_an_operand() {
    for device in devices() {
        let q = &device.queue;
        let a = operand(q, &[40, 40], Form::Dense, 1, DType::F32);
        let b = operand(q, &[40, 40], Form::Dense, 2, DType::F32);
        let expected = matmul(&a, &b).unwrap().to_host::<f32>().unwrap();
        // Into a transposed view: the rows of the result are columns of the memory.
        let into = Tensor::full(q, [40, 40], DType::F32, f64::NAN).unwrap();
        let view = into.permute(&[1, 0]).unwrap();
        matmul_with(&a, &b, &MatmulOptions { out: Some(&view), ..Default::default() }).unwrap();
        assert_eq!(view.to_host::<f32>().unwrap(), expected);
        // Over the second operand.
        matmul_with(&a, &b, &MatmulOptions { out: Some(&b), ..Default::default() }).unwrap();
        assert_eq!(b.to_host::<f32>().unwrap(), expected);
        // A residual that is the output itself is read before it is written.
        let g = Graph::new();
        let add = g.finish(&[g.input(0) + g.input(1)]);
        let sum = Tensor::full(q, [40, 40], DType::F32, 1.0).unwrap();
        let c = operand(q, &[40, 40], Form::Dense, 2, DType::F32);
        let epilogue = Epilogue { expr: &add, inputs: vec![sum.clone()], scalars: vec![], dtype: None };
        matmul_with(&a, &c, &MatmulOptions { out: Some(&sum), epilogue: Some(epilogue), ..Default::default() })
            .unwrap();
        for (got, e) in sum.to_host::<f32>().unwrap().iter().zip(&expected) {
            assert!((got - (e + 1.0)).abs() <= 1e-6, "{got} instead of {}", e + 1.0);
        }
        // Neighbours in one buffer do not overlap, so nothing is copied.
        let both = Tensor::full(q, [2, 16, 16], DType::F32, 1.0).unwrap();
        let (x, y) = (both.select(0, 0).unwrap(), both.select(0, 1).unwrap());
        let counter = Rc::new(Counter::default());
        launch::with_sink(counter.clone(), || {
            matmul_with(&x, &x, &MatmulOptions { out: Some(&y), ..Default::default() })
        })
        .unwrap();
        assert_eq!(counter.of("copy"), 0);
        assert_eq!(y.to_host::<f32>().unwrap(), [16.0; 256]);
    }
}

#[test]
fn recorded_products_see_slots_of_the_moment() {
    for device in devices() {
        let q = &device.queue;
        let a = Tensor::full(q, [4, 4], DType::F32, 1.0).unwrap();
        let out = Tensor::from_shape(q, [4, 4], DType::F32).unwrap();
        let g = Graph::new();
        let scale = g.finish(&[g.input(0) * g.scalar(0)]);
        let slot = Slot::float(1.0);
        let epilogue =
            Epilogue { expr: &scale, inputs: vec![], scalars: vec![Number::Slot(slot.clone())], dtype: None };
        let recorder = Rc::new(Recorder::default());
        let options = MatmulOptions { epilogue: Some(epilogue), out: Some(&out), ..Default::default() };
        launch::with_sink(recorder.clone(), || matmul_with(&a, &a, &options)).unwrap();
        for factor in [2.0, -0.5] {
            slot.set_float(factor);
            recorder.replay().unwrap();
            assert_eq!(out.to_f64_vec().unwrap(), [4.0 * factor; 16]);
        }
    }
}

#[test]
fn a_shared_second_operand_makes_one_product() {
    let q = manager().cpu().queue;
    let (x, w) =
        (operand(&q, &[4, 5, 6], Form::Dense, 1, DType::F32), operand(&q, &[7, 6], Form::Dense, 2, DType::F32));
    let bias = operand(&q, &[1, 7], Form::Dense, 3, DType::F32);
    let bias = netcl_core::tensor::reshape(&bias, [7]).unwrap();
    let counter = Rc::new(Counter::default());
    let y = launch::with_sink(counter.clone(), || linear(&x, &w, Some(&bias))).unwrap();
    assert_eq!(counter.names(), [("matmul".to_owned(), 1)]);
    let plain = netcl_ops::bias_add(&matmul(&x, &w.permute(&[1, 0]).unwrap()).unwrap(), &bias).unwrap();
    assert_eq!(y.shape().to_vec(), [4, 5, 7]);
    for (a, b) in y.to_f64_vec().unwrap().iter().zip(plain.to_f64_vec().unwrap()) {
        assert!((a - b).abs() < 1e-6);
    }
}

#[test]
fn mistakes_are_named() {
    let q = manager().cpu().queue;
    let t = |shape: &[usize], dtype| Tensor::from_shape(&q, shape, dtype).unwrap();
    let text = |r: netcl_core::Result<Tensor>| r.unwrap_err().to_string();
    let (a, b) = (t(&[2, 3], DType::F32), t(&[4, 5], DType::F32));
    assert!(text(matmul(&a, &b)).contains("inner lengths 3 and 4 must be equal"));
    assert!(text(matmul(&t(&[], DType::F32), &b)).contains("at least one axis"));
    assert!(text(matmul(&t(&[2, 4], DType::F64), &b)).contains("float64"));
    assert!(text(matmul(&t(&[2, 4], DType::I32), &t(&[4, 2], DType::I32))).contains("float tensor"));
    assert!(text(matmul(&t(&[3, 2, 4], DType::F32), &t(&[2, 4, 5], DType::F32))).contains("do not broadcast"));
    let square = t(&[3, 3], DType::F32);
    let out = t(&[3, 4], DType::F32);
    let into = |out: &Tensor| matmul_with(&square, &square, &MatmulOptions { out: Some(out), ..Default::default() });
    assert!(text(into(&out)).contains("so out must have it too"));
    assert!(text(into(&t(&[1, 3], DType::F32).expand([3, 3]).unwrap())).contains("share memory"));
    assert!(text(into(&t(&[3, 3], DType::F64))).contains("out to be a tensor of float32"));
    let expr = fused();
    let epilogue = Epilogue { expr: &expr, inputs: vec![], scalars: vec![], dtype: None };
    let options = MatmulOptions { epilogue: Some(epilogue), ..Default::default() };
    assert!(text(matmul_with(&square, &square, &options)).contains("[3, 1, 1]"));
    assert!(text(linear(&a, &t(&[2, 2, 3], DType::F32), None)).contains("must be a matrix"));
    assert!(text(linear(&a, &t(&[5, 3], DType::F32), Some(&t(&[4], DType::F32)))).contains("5 output features"));
    assert!(text(netcl_ops::bias_add(&a, &t(&[2], DType::F32))).contains("as long as axis 1"));
    assert!(build_matmul_kernel(&q, DType::F32).unwrap_err().to_string().contains("OpenCL queue"));
}

#[test]
fn the_tiled_program_can_be_had_by_itself() {
    for device in opencl() {
        let program = build_matmul_kernel(&device.queue, DType::F32).unwrap();
        assert_eq!(program.kernel_names(), ["matmul_tiled"]);
    }
}
