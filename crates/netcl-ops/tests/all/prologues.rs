//! Operands that are computed while they are read: the numbers of operands in memory, in as few launches as a plain product or
//! convolution takes, at the edges of tiles and around images.

use std::rc::Rc;

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Elementwise;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::kernels::launch::{Counter, with_sink};
use netcl_core::tensor::Tensor;
use netcl_ops::conv::{self, ConvOptions, ConvParams, conv2d, symmetric};
use netcl_ops::matmul::{self, MatmulOptions, matmul_with};

use crate::matmul_support::{Form, operand, reference};
use crate::support::{Grid, Tolerance, devices, epsilon, random, supports, tensor};

/// What the scalar of [`scaled`] is.
const LEAST: f64 = 0.25;

/// `max(x * scale + shift, least)`: an expression that makes something of a zero.
fn scaled() -> Expr {
    let g = Graph::new();
    g.finish(&[(g.input(0) * g.input(1) + g.input(2)).max(g.scalar(0))])
}

/// The same in memory.
fn computed(expr: &Expr, x: &Tensor, inputs: &[Tensor]) -> Tensor {
    let out = Tensor::uninit(x.queue(), x.shape().clone(), x.dtype()).unwrap();
    let inputs: Vec<Tensor> =
        std::iter::once(x.clone()).chain(inputs.iter().map(|t| t.expand(x.shape()).unwrap())).collect();
    Elementwise::new("scaled", expr.clone()).run(&inputs.iter().collect::<Vec<_>>(), &[LEAST.into()], &[&out]).unwrap();
    out
}

fn counted(f: impl FnOnce() -> Result<Tensor>) -> (Tensor, Vec<(String, usize)>) {
    let counter = Rc::new(Counter::default());
    let out = with_sink(counter.clone(), f).unwrap();
    // A process that ends while a kernel runs is a test of the driver.
    out.queue().finish().unwrap();
    (out, counter.names())
}

fn bits(t: &Tensor) -> Vec<u64> {
    t.to_f64_vec().unwrap().into_iter().map(f64::to_bits).collect()
}

/// Far from the sums in f64 by no more than the rounding of so many terms.
fn close(got: &Tensor, expected: &[f64], terms: usize) -> Result<(), String> {
    let eps = epsilon(got.dtype().accumulator()) * terms as f64 + epsilon(got.dtype());
    let tolerance = Tolerance { relative: 4.0 * eps, absolute: 4.0 * eps };
    tolerance.check(&got.to_f64_vec().unwrap(), expected)
}

/// The same values on the native CPU in f64.
fn exact(t: &Tensor) -> Tensor {
    tensor(&manager().cpu().queue, &t.to_f64_vec().unwrap(), t.shape().clone(), DType::F64).0
}

fn portable(device: &DeviceHandle) -> bool {
    device.platform_name.contains("Portable")
}

/// Shapes of operands and of what the first or the second is computed from.
type Case = (&'static [usize], &'static [usize], [&'static [usize]; 2], [&'static [usize]; 2], Form);

/// Edges inside tiles, whole vectors along either axis, batches, operands and tensors that broadcast over them.
const PRODUCTS: [Case; 6] = [
    (&[4, 6], &[6, 5], [&[6], &[4, 1]], [&[5], &[6, 1]], Form::Dense),
    (&[37, 29], &[29, 35], [&[29], &[37, 1]], [&[35], &[29, 1]], Form::Dense),
    (&[64, 48], &[48, 64], [&[48], &[64, 48]], [&[1], &[48, 1]], Form::Dense),
    (&[33, 64], &[64, 36], [&[64], &[33, 1]], [&[36], &[64, 36]], Form::Transposed),
    (&[2, 21, 17], &[17, 40], [&[2, 1, 17], &[21, 1]], [&[40], &[17, 1]], Form::Strided),
    (&[8, 6, 40], &[40, 34], [&[8, 1, 1], &[40]], [&[40, 1], &[34]], Form::Dense),
];

#[test]
fn products_compute_an_operand() {
    use matmul::Variant::{Naive, RegisterTiled, Tiled, Vectorized};
    let expr = scaled();
    let mut grid = Grid::new("prologues of products");
    for device in devices() {
        let on_opencl = device.backend.name() == "cl";
        let variants = if on_opencl { &[Naive, Tiled, RegisterTiled, Vectorized].map(Some)[..] } else { &[None] };
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (at, (variant, first)) in variants.iter().flat_map(|v| [(v, true), (v, false)]).enumerate() {
                for (i, &(a, b, of_a, of_b, form)) in PRODUCTS.iter().enumerate() {
                    // A kernel costs PoCL up to seconds.
                    let sampled = (at + i + dtype as usize).is_multiple_of(5);
                    let slow = portable(&device) && (dtype != DType::F32 || !matches!(i, 0 | 1));
                    if slow || (dtype != DType::F32 && on_opencl && !sampled) {
                        continue;
                    }
                    let what = format!("{dtype} {variant:?} operand {} of {a:?} x {b:?}", usize::from(!first));
                    grid.cell(&device, what, || {
                        let (a, b) =
                            (operand(&device.queue, a, form, 1, dtype), operand(&device.queue, b, form, 2, dtype));
                        let further = (if first { of_a } else { of_b })
                            .map(|shape| operand(&device.queue, shape, Form::Dense, 3, dtype));
                        let prologue = matmul::Prologue {
                            operand: usize::from(!first),
                            expr: &expr,
                            inputs: further.to_vec(),
                            scalars: vec![LEAST.into()],
                        };
                        let plain = MatmulOptions { variant: *variant, ..Default::default() };
                        let led = MatmulOptions { prologue: Some(prologue), ..plain.clone() };
                        let (got, launches) = counted(|| matmul_with(&a, &b, &led));
                        let side = if first { &a } else { &b };
                        let side = computed(&expr, side, &further);
                        let (left, right) = if first { (&side, &b) } else { (&a, &side) };
                        let (expected, fewest) = counted(|| matmul_with(left, right, &plain));
                        // One result at a time would compute elements again and again; panels are for many rows. The native
                        // CPU has another path for computed operands.
                        let wide = dtype.accumulator() == dtype;
                        let fused = match variant {
                            Some(Naive) => true,
                            Some(Vectorized) => (1..4).contains(&i),
                            Some(_) => true,
                            None => false,
                        };
                        if fused && launches != fewest {
                            return Err(format!("{launches:?} instead of {fewest:?}"));
                        }
                        if on_opencl && wide && bits(&got) != bits(&expected) {
                            return Err("other bits than with the operand in memory".to_owned());
                        }
                        let inputs: Vec<Tensor> = further.iter().map(exact).collect();
                        let side = computed(&expr, &exact(if first { &a } else { &b }), &inputs);
                        let (left, right) = if first { (side, exact(&b)) } else { (exact(&a), side) };
                        close(&got, &reference(&left, &right).0, a.shape()[a.ndim() - 1])
                    });
                }
            }
        }
    }
    grid.finish(48);
}

/// Tiles end with zeros behind the last term, of which an expression may make anything: here infinities, which would make the sums
/// no numbers.
#[test]
fn zeros_behind_the_last_term_stay_zeros() {
    use matmul::Variant::{RegisterTiled, Tiled};
    let g = Graph::new();
    let reciprocal = g.finish(&[1.0 / g.input(0)]);
    let mut grid = Grid::new("zeros behind the last term");
    for device in devices().into_iter().filter(|device| device.backend.name() == "cl") {
        for (variant, first) in [(Tiled, true), (RegisterTiled, true), (RegisterTiled, false)] {
            grid.cell(&device, format!("{variant:?} operand {}", usize::from(!first)), || {
                // No zeros among them; vectors of four in both operands, and a tile that ends inside the terms.
                let make = |shape: [usize; 2], seed| {
                    let values = random(shape[0] * shape[1], seed, (1.0, 2.0));
                    tensor(&device.queue, &values, shape, DType::F32).0
                };
                let (a, b) = (make([8, 36], 1), make([36, 12], 2));
                let prologue = matmul::Prologue {
                    operand: usize::from(!first),
                    expr: &reciprocal,
                    inputs: vec![],
                    scalars: vec![],
                };
                let options = MatmulOptions { variant: Some(variant), prologue: Some(prologue), ..Default::default() };
                let got = matmul_with(&a, &b, &options).unwrap();
                device.queue.finish().unwrap();
                let inverse = |t: &Tensor| {
                    let values: Vec<f64> = t.to_f64_vec().unwrap().iter().map(|x| 1.0 / x).collect();
                    tensor(&manager().cpu().queue, &values, t.shape().clone(), DType::F64).0
                };
                let (left, right) = if first { (inverse(&a), exact(&b)) } else { (exact(&a), inverse(&b)) };
                close(&got, &reference(&left, &right).0, 36)
            });
        }
    }
    grid.finish(0);
}

/// Kernel, geometry, and what the images [2, 6, 9, 8] are computed from beside themselves.
type ConvCase = ([usize; 4], ConvParams, [&'static [usize]; 2]);

fn convolutions() -> Vec<ConvCase> {
    let by_channel: [&[usize]; 2] = [&[6, 1, 1], &[6, 1, 1]];
    let plain = ConvParams::default();
    vec![
        ([5, 6, 3, 3], ConvParams { padding: symmetric([1, 1]), ..plain }, by_channel),
        ([4, 6, 3, 2], ConvParams { stride: [2, 1], padding: [1, 0, 1, 2], ..plain }, [&[2, 6, 1, 1], &[9, 8]]),
        ([6, 3, 3, 3], ConvParams { padding: symmetric([2, 2]), dilation: [2, 2], groups: 2, ..plain }, by_channel),
        ([6, 1, 5, 5], ConvParams { stride: [2, 2], padding: symmetric([2, 2]), groups: 6, ..plain }, [&[1], &[8]]),
        ([7, 6, 1, 1], plain, by_channel),
        ([7, 6, 1, 1], ConvParams { stride: [2, 2], padding: symmetric([1, 0]), ..plain }, by_channel),
    ]
}

fn image(queue: &Queue, shape: &[usize], seed: u64, dtype: DType) -> Tensor {
    tensor(queue, &random(shape.iter().product(), seed, (-1.0, 1.0)), shape, dtype).0
}

#[test]
fn convolutions_compute_their_images() {
    use conv::Variant::{Depthwise, Im2col, ImplicitGemm, Naive, TiledLocal, Winograd};
    let expr = scaled();
    let mut grid = Grid::new("prologues of convolutions");
    for device in devices() {
        let on_opencl = device.backend.name() == "cl";
        let all = [Naive, Im2col, ImplicitGemm, TiledLocal, Winograd, Depthwise].map(Some);
        let variants: Vec<_> = std::iter::once(None).chain(all).take(if on_opencl { 7 } else { 1 }).collect();
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (at, &variant) in variants.iter().enumerate() {
                for (i, (kernel, params, further)) in convolutions().into_iter().enumerate() {
                    let unfit = match variant {
                        Some(Winograd) => i != 0 || dtype != DType::F32,
                        Some(Depthwise) => kernel[1] != 1,
                        _ => false,
                    };
                    if unfit {
                        continue;
                    }
                    let sampled = (at + i + dtype as usize).is_multiple_of(5);
                    let slow = portable(&device) && (dtype != DType::F32 || i != at % 6 && i > 0);
                    if slow || (dtype != DType::F32 && on_opencl && !sampled) {
                        continue;
                    }
                    // Images as they are, and with channels side by side.
                    let last = i % 2 == 1;
                    let what = format!("{dtype} {variant:?} {kernel:?} {params:?}");
                    grid.cell(&device, what, || {
                        let q = &device.queue;
                        let shape: [usize; 4] = if last { [2, 9, 8, 6] } else { [2, 6, 9, 8] };
                        let x = image(q, &shape, 1, dtype);
                        let x = if last { x.permute(&[0, 3, 1, 2]).unwrap() } else { x };
                        let weight = image(q, &kernel, 2, dtype);
                        let further = further.map(|shape| image(q, shape, 3, dtype));
                        let plain = ConvOptions { params, variant, ..Default::default() };
                        let prologue = conv::Prologue {
                            operand: 0,
                            expr: &expr,
                            inputs: further.to_vec(),
                            scalars: vec![LEAST.into()],
                        };
                        let led = ConvOptions { prologue: Some(prologue), ..plain.clone() };
                        let (got, launches) = counted(|| conv2d(&x, &weight, None, &led));
                        let in_memory = computed(&expr, &x, &further);
                        let (expected, fewest) = counted(|| conv2d(&in_memory, &weight, None, &plain));
                        let count = |names: &[(String, usize)]| names.iter().map(|(_, n)| n).sum::<usize>();
                        // One result at a time computes a pixel again and again, and so may a tiny product.
                        let exempt = matches!(variant, Some(Naive | Depthwise))
                            || (variant.is_none() && (on_opencl || kernel[2] == 1));
                        if !exempt && count(&launches) != count(&fewest) {
                            return Err(format!("{launches:?} instead of {fewest:?}"));
                        }
                        if count(&launches) > count(&fewest) + 1 {
                            return Err(format!("{launches:?} where {fewest:?} and one more would do"));
                        }
                        let wide = dtype.accumulator() == dtype;
                        if wide && (on_opencl || kernel[2] > 1) && bits(&got) != bits(&expected) {
                            return Err("other bits than with the images in memory".to_owned());
                        }
                        let inputs: Vec<Tensor> = further.iter().map(exact).collect();
                        let image = computed(&expr, &exact(&x), &inputs);
                        let sums = conv2d(&image, &exact(&weight), None, &params.into()).unwrap();
                        close(&got, &sums.to_f64_vec().unwrap(), kernel[1..].iter().product())
                    });
                }
            }
        }
    }
    grid.finish(24);
}

/// An elementary function that every tile would compute again, and the same where there is one tile.
#[test]
fn what_costs_much_is_computed_once() {
    let g = Graph::new();
    let tanh = g.finish(&[g.input(0).tanh()]);
    for device in devices().into_iter().filter(|device| device.backend.name() == "cl") {
        let more_launches = |n: usize| {
            let (a, b) = (
                operand(&device.queue, &[64, 256], Form::Dense, 1, DType::F32),
                operand(&device.queue, &[256, n], Form::Dense, 2, DType::F32),
            );
            let prologue = matmul::Prologue { operand: 0, expr: &tanh, inputs: vec![], scalars: vec![] };
            let plain = MatmulOptions { variant: Some(matmul::Variant::Tiled), ..Default::default() };
            let led = MatmulOptions { prologue: Some(prologue), ..plain.clone() };
            let [plain, led] = [plain, led]
                .map(|options| counted(|| matmul_with(&a, &b, &options)).1.iter().map(|(_, n)| n).sum::<usize>());
            led - plain
        };
        assert_eq!((more_launches(8), more_launches(1024)), (0, 1), "{device:?}");
    }
}
