//! Every family of kernels on tiny odd shapes and every OpenCL device, held against the native CPU.
//!
//! Made for oclgrind (`cargo xtask test --only oclgrind`), which interprets kernels thousands of times slower than a device runs
//! them and looks at every access to memory. Elsewhere these are ordinary quick tests. A new kernel belongs here, too.

use std::rc::Rc;

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::expr::{Graph, table};
use netcl_core::kernels::launch::{Counter, with_sink};
use netcl_core::random::Generator;
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_ops::elementwise::{Operand, apply};
use netcl_ops::matmul::{Epilogue, MatmulOptions, Prologue, Variant as Product, linear, matmul, matmul_with};
use netcl_ops::quantized::{Packing, QuantizedWeight};
use netcl_ops::reduce::{Variant as Reduction, force_variant};
use netcl_ops::{self as ops, Axes};

use crate::support::{Tolerance, opencl, random, supports, tensor};

/// Runs the same code on the native CPU and on a device, and holds the results against each other.
fn same(device: &DeviceHandle, dtype: DType, what: &str, run: impl Fn(&Queue) -> Result<Tensor>) {
    if !supports(device, dtype) {
        return;
    }
    let name = || format!("{what} of {dtype} on {}", device.device_name);
    let expected = run(&manager().cpu().queue).unwrap_or_else(|e| panic!("{what} of {dtype} on the CPU: {e}"));
    let got = run(&device.queue).unwrap_or_else(|e| panic!("{}: {e}", name()));
    assert_eq!((got.shape(), got.dtype()), (expected.shape(), expected.dtype()), "{}", name());
    let check = Tolerance::balanced(dtype).check(&got.to_f64_vec().unwrap(), &expected.to_f64_vec().unwrap());
    check.unwrap_or_else(|why| panic!("{}: {why}", name()));
}

/// How an operand lies in memory.
#[derive(Clone, Copy, Debug)]
enum Form {
    Dense,
    Transposed,
    /// Every second row backwards, every third column from the second on.
    Strided,
}

const FORMS: [Form; 3] = [Form::Dense, Form::Transposed, Form::Strided];

/// A tensor of two or more axes whose last two lie in memory in some form.
fn operand(queue: &Queue, shape: &[usize], form: Form, seed: u64, dtype: DType) -> Tensor {
    let (row, col) = (shape.len() - 2, shape.len() - 1);
    let mut stored = shape.to_vec();
    match form {
        Form::Dense => {}
        Form::Transposed => stored.swap(row, col),
        Form::Strided => (stored[row], stored[col]) = (shape[row] * 2 - 1, shape[col] * 3 - 1),
    }
    let values = random(stored.iter().product(), seed, (0.1, 1.0));
    let (t, _) = tensor(queue, &values, stored.as_slice(), dtype);
    match form {
        Form::Dense => t,
        Form::Transposed => ops::transpose(&t, row as isize, col as isize).unwrap(),
        Form::Strided => {
            let rows = t.slice(row as isize, Slice::new(None, None, -2)).unwrap();
            rows.slice(col as isize, Slice::new(Some(1), None, 3)).unwrap()
        }
    }
}

#[test]
fn fills_copies_and_casts() {
    let all = [DType::F32, DType::F16, DType::F64, DType::BF16, DType::U8, DType::I32, DType::I64];
    for device in opencl() {
        for (i, dtype) in all.into_iter().enumerate() {
            same(&device, dtype, "fill", |q| Tensor::full(q, [7], dtype, 3.0));
            same(&device, dtype, "fill of a view", |q| {
                let x = Tensor::full(q, [5, 7], dtype, 1.0)?;
                x.slice(0, Slice::new(None, None, 2))?.slice(1, Slice::new(Some(6), None, -3))?.fill(2.0)?;
                Ok(x)
            });
            same(&device, dtype, "copy of a view", |q| {
                let x = ops::reshape(&ops::arange(q, 0.0, 30.0, 1.0, dtype)?, [2, 3, 5])?;
                x.permute(&[2, 0, 1])?.slice(0, Slice::new(None, None, -2))?.duplicate()
            });
            same(&device, dtype, "assignment to a view", |q| {
                let x = Tensor::full(q, [4, 9], dtype, 1.0)?;
                let row = ops::arange(q, 0.0, 3.0, 1.0, dtype)?;
                x.slice(1, Slice::new(Some(2), None, 3))?.assign(&row.expand([4, 3])?)?;
                Ok(x)
            });
            let targets = [all[(i + 1) % all.len()], all[(i + 3) % all.len()]];
            for to in targets.into_iter().filter(|&to| supports(&device, to)) {
                same(&device, dtype, &format!("cast to {to}"), |q| ops::arange(q, 0.0, 37.0, 1.0, dtype)?.cast(to));
            }
        }
        same(&device, DType::F32, "cast of a view", |q| {
            operand(q, &[3, 5], Form::Strided, 1, DType::F32).cast(DType::F16)
        });
    }
}

const ELEMENTWISE: [&str; 12] =
    ["add", "div", "maximum", "le", "relu", "exp", "tanh", "gelu", "sigmoid", "sqrt", "leaky_relu", "fma"];

#[test]
fn elementwise_operations() {
    let run = |q: &Queue, name: &str, form: Form, dtype: DType, out: Option<&Tensor>| {
        let (_, op) = table::ops().iter().enumerate().find(|(_, op)| op.name == name).expect("the table has it");
        let inputs: Vec<Tensor> = (0..op.arity()).map(|i| operand(q, &[5, 7], form, i as u64, dtype)).collect();
        apply(name, &inputs.iter().map(Operand::from).collect::<Vec<_>>(), &[], out)
    };
    for device in opencl() {
        for name in ELEMENTWISE {
            same(&device, DType::F32, name, |q| run(q, name, Form::Dense, DType::F32, None));
        }
        for dtype in DType::FLOATS {
            for form in FORMS {
                same(&device, dtype, &format!("fma, {form:?}"), |q| run(q, "fma", form, dtype, None));
            }
        }
        for n in [1, 2, 3, 15, 16, 17, 64, 65, 257] {
            same(&device, DType::F32, &format!("{n} square roots"), |q| {
                ops::sqrt(&tensor(q, &random(n, 3, (0.0, 9.0)), [n], DType::F32).0)
            });
        }
        same(&device, DType::F32, "broadcast sum", |q| {
            let a = tensor(q, &random(15, 1, (-1.0, 1.0)), [3, 1, 5], DType::F32).0;
            ops::add(&a, &tensor(q, &random(4, 2, (-1.0, 1.0)), [4, 1], DType::F32).0)
        });
        same(&device, DType::F32, "number", |q| ops::sub(1.0, &operand(q, &[3, 7], Form::Transposed, 1, DType::F32)));
        for form in FORMS {
            same(&device, DType::F32, &format!("in place, {form:?}"), |q| {
                let x = operand(q, &[3, 7], form, 1, DType::F32);
                apply("mul", &[(&x).into(), 3.0.into()], &[], Some(&x))
            });
        }
        same(&device, DType::F32, "result of 16 bits", |q| {
            run(q, "exp", Form::Dense, DType::F32, Some(&Tensor::uninit(q, [5, 7], DType::BF16)?))
        });
    }
}

type Reduce = fn(&Tensor, Axes<'_>) -> Result<Tensor>;

const REDUCTIONS: [(&str, Reduce); 4] = [
    ("max", |x, axes| ops::max(x, axes, true)),
    ("mean", |x, axes| ops::mean(x, axes, false)),
    ("var", |x, axes| ops::var(x, axes, 1.0, false)),
    ("logsumexp", |x, axes| ops::logsumexp(x, axes, false)),
];

#[test]
fn reductions() {
    let variants = [Reduction::Sequential, Reduction::Parallel, Reduction::Workgroup];
    let cases: [(&[usize], Axes<'_>); 5] = [
        (&[3, 67], Axes::One(1)),
        (&[67, 5], Axes::One(0)),
        (&[3, 7, 5], Axes::One(1)),
        (&[3, 7, 5], Axes::Several(&[0, 2])),
        (&[11, 13], Axes::All),
    ];
    for device in opencl() {
        for variant in variants {
            for (at, (shape, axes)) in cases.into_iter().enumerate() {
                // The sum in every form; the others share its kernel and have a case and a form each.
                for form in FORMS.into_iter().take(if at % 2 == 0 { 3 } else { 1 }) {
                    same(&device, DType::F32, &format!("sum {variant:?} {shape:?} {axes:?} {form:?}"), |q| {
                        force_variant(variant, || ops::sum(&operand(q, shape, form, 1, DType::F32), axes, false))
                    });
                }
                if let Some((name, run)) = REDUCTIONS.get(at) {
                    let (dtype, form) = (DType::FLOATS[at % 4], FORMS[at % 3]);
                    same(&device, dtype, &format!("{name} {variant:?} {shape:?} {axes:?} {form:?}"), |q| {
                        force_variant(variant, || run(&operand(q, shape, form, 1, dtype), axes))
                    });
                }
            }
            for (axis, form) in [(None, Form::Dense), (Some(0), Form::Strided), (Some(1), Form::Transposed)] {
                let at = |q: &Queue| {
                    let x = operand(q, &[17, 19], form, 1, DType::F32);
                    let pair = (ops::argmax(&x, axis, false).unwrap(), ops::argmin(&x, axis, true).unwrap());
                    (pair.0.to_host().unwrap(), pair.1.to_host().unwrap())
                };
                let expected = at(&manager().cpu().queue);
                assert_eq!(force_variant(variant, || at(&device.queue)), expected, "{variant:?} {axis:?} {device:?}");
            }
        }
        // Without force: long enough for the group's variant.
        same(&device, DType::F32, "sum of 259", |q| {
            ops::sum(&operand(q, &[1, 259], Form::Dense, 1, DType::F32), 1, false)
        });
    }
}

type Along = fn(&Tensor, isize) -> Result<Tensor>;

#[test]
fn softmax_and_running_sums() {
    let lines: [(&str, Along); 4] = [
        ("softmax", ops::softmax),
        ("log_softmax", ops::log_softmax),
        ("cumsum", ops::cumsum),
        ("softmax_backward", |x, axis| ops::softmax_backward(x, x, axis)),
    ];
    let cases: [(&[usize], isize); 6] =
        [(&[3, 5], 1), (&[5, 3], 0), (&[2, 261], 1), (&[261, 2], 0), (&[2, 67, 3], 1), (&[1, 1], 0)];
    for device in opencl() {
        for (which, (name, run)) in lines.into_iter().enumerate() {
            for (at, (shape, axis)) in cases.into_iter().enumerate() {
                for (i, form) in FORMS.into_iter().enumerate().take(if at % 2 == 0 { 3 } else { 1 }) {
                    let dtype = if i == 0 { DType::FLOATS[(at + which) % 4] } else { DType::F32 };
                    same(&device, dtype, &format!("{name} {shape:?} {axis} {form:?}"), |q| {
                        run(&operand(q, shape, form, 1, dtype), axis)
                    });
                }
            }
        }
    }
}

/// Rows that fill a work-group partly, wholly and more than once, with labels that count, are ignored and are no class.
#[test]
fn cross_entropy_of_few_rows() {
    for device in opencl() {
        for dtype in [DType::F32, DType::F64] {
            for (rows, classes, label) in [(1, 1, 0), (5, 3, -100), (64, 7, 2), (70, 10, 9), (3, 4, 4)] {
                let labels: Vec<i64> =
                    (0..rows).map(|row| if row % 4 == 1 { label } else { row as i64 % classes }).collect();
                for part in 0..3 {
                    let what = format!("cross_entropy of {rows} x {classes}, part {part}");
                    let compute = |queue: &Queue| {
                        let (x, _) = tensor(
                            queue,
                            &random(rows * classes as usize, 7, (-3.0, 3.0)),
                            &[rows, classes as usize][..],
                            dtype,
                        );
                        let labels = IndexTensor::from_host(queue, &labels, [rows])?;
                        let (loss, stats) = ops::cross_entropy(&x, &labels, Some(-100))?;
                        let upstream = Tensor::full(queue, (), dtype, 0.5)?;
                        match part {
                            0 => Ok(loss),
                            1 => Ok(stats),
                            _ => ops::cross_entropy_backward(&x, &labels, Some(-100), &stats, &upstream),
                        }
                    };
                    same(&device, dtype, &what, compute);
                }
            }
        }
    }
}

/// Operands that are computed while they are packed: either one, panels that are partly filled, tensors that broadcast, batches.
#[test]
fn operands_of_products_are_computed_while_they_are_packed() {
    let g = Graph::new();
    let scaled = g.finish(&[(g.input(0) * g.input(1) + g.scalar(0)).relu()]);
    for device in opencl() {
        for (first, form, dtype) in
            [(true, Form::Dense, DType::F32), (false, Form::Transposed, DType::F32), (true, Form::Strided, DType::F64)]
        {
            let what = format!("a product with operand {} computed, {form:?}", usize::from(!first));
            let run = |q: &Queue, fused: bool| {
                let (a, b) = (operand(q, &[2, 37, 5], form, 1, dtype), operand(q, &[5, 34], form, 2, dtype));
                let shape: &[usize] = if first { &[2, 1, 5] } else { &[34] };
                let scale = tensor(q, &random(shape.iter().product(), 3, (-1.0, 1.0)), shape, dtype).0;
                let prologue = Prologue {
                    operand: usize::from(!first),
                    expr: &scaled,
                    inputs: vec![scale],
                    scalars: vec![0.1.into()],
                };
                let options = MatmulOptions { prologue: Some(prologue), ..Default::default() };
                let variant = fused.then_some(Product::Vectorized);
                matmul_with(&a, &b, &MatmulOptions { variant, ..options })
            };
            same(&device, dtype, &what, |q| run(q, matches!(q, Queue::OpenCl(_))));
        }
    }
}

/// A product whose kernel is forced, with the launches it took.
fn product(
    q: &Queue,
    shapes: [&[usize]; 2],
    form: Form,
    dtype: DType,
    variant: Product,
) -> Result<(Tensor, Rc<Counter>)> {
    let (a, b) = (operand(q, shapes[0], form, 1, dtype), operand(q, shapes[1], form, 2, dtype));
    let counter = Rc::new(Counter::default());
    let options = MatmulOptions { variant: Some(variant), ..Default::default() };
    Ok((with_sink(counter.clone(), || matmul_with(&a, &b, &options))?, counter))
}

#[test]
fn products() {
    let sizes: [[&[usize]; 2]; 6] = [
        [&[5, 9], &[9, 7]],
        [&[17, 19], &[19, 18]],
        [&[1, 3], &[3, 33]],
        [&[3, 5, 7], &[7, 4]],
        [&[2, 1, 3, 5], &[3, 5, 6]],
        // From 32 rows on the vectors' kernel packs both operands.
        [&[33, 3], &[3, 34]],
    ];
    for device in opencl() {
        for variant in Product::PORTABLE {
            for (at, shapes) in sizes.into_iter().enumerate() {
                // Dense in float32, and one more form and type.
                for (i, form) in FORMS.into_iter().enumerate().filter(|(i, _)| *i == 0 || *i == 1 + at % 2) {
                    let dtype = if i > 0 { DType::FLOATS[at % 4] } else { DType::F32 };
                    same(&device, dtype, &format!("{variant:?} {shapes:?} {form:?}"), |q| {
                        Ok(product(q, shapes, form, dtype, variant)?.0)
                    });
                }
            }
        }
        same(&device, DType::F32, "vector", |q| {
            let (x, _) = tensor(q, &random(7, 2, (-1.0, 1.0)), [7], DType::F32);
            matmul(&operand(q, &[5, 7], Form::Dense, 1, DType::F32), &x)
        });
        same(&device, DType::F32, "linear", |q| {
            let (bias, _) = tensor(q, &random(5, 3, (-1.0, 1.0)), [5], DType::F32);
            let (x, w) =
                (operand(q, &[2, 3, 7], Form::Dense, 1, DType::F32), operand(q, &[5, 7], Form::Dense, 2, DType::F32));
            linear(&x, &w, Some(&bias))
        });
        for (bits, rows, k) in [(8, 1, 7), (8, 3, 9), (4, 2, 17), (4, 17, 5)] {
            same(&device, DType::F32, &format!("quantized linear, {bits} bits, {rows} rows"), |q| {
                let w = QuantizedWeight::quantize(
                    &operand(q, &[5, k], Form::Dense, 2, DType::F32),
                    Packing::new(bits, 32)?,
                )?;
                let bias = operand(q, &[1, 5], Form::Dense, 3, DType::F32);
                let bias = netcl_core::tensor::reshape(&bias, [5])?;
                ops::quantized_linear(&operand(q, &[rows, k], Form::Strided, 1, DType::F32), &w, Some(&bias))
            });
        }
    }
}

#[test]
fn products_in_parts() {
    for device in opencl() {
        for variant in Product::PORTABLE {
            // Tiles whose work-items share out the terms themselves leave only long sums to be split.
            let terms = match variant {
                Product::RegisterTiled => 4177,
                Product::Strip => 16404,
                _ => 261,
            };
            let shapes: [&[usize]; 2] = [&[3, terms], &[terms, 2]];
            let run = |q: &Queue| product(q, shapes, Form::Dense, DType::F32, variant);
            let (_, counter) = run(&device.queue).unwrap();
            // Strips add up their parts in the launch that computes them.
            let apart = usize::from(variant != Product::Strip);
            assert_eq!(counter.of("matmul_splitk_reduce"), apart, "{variant:?} on {device:?}: {:?}", counter.names());
            same(&device, DType::F32, &format!("{variant:?} in parts"), |q| Ok(run(q)?.0));
        }
    }
}

#[test]
fn products_with_an_epilogue() {
    let g = Graph::new();
    let expr = g.finish(&[(g.input(0) * g.scalar(0) + g.input(1)).relu() + g.input(2)]);
    for device in opencl() {
        for variant in Product::PORTABLE {
            // The second in parts: there the kernel that adds them up applies the epilogue.
            for (m, n, k) in [(5, 7, 9), (3, 5, 261)] {
                for bias in [[1, n], [m, 1]] {
                    same(&device, DType::F32, &format!("{variant:?} {m}x{n}x{k} bias {bias:?}"), |q| {
                        let residual = operand(q, &[2, m, n], Form::Strided, 4, DType::F32);
                        let inputs = vec![operand(q, &bias, Form::Dense, 3, DType::F32), residual];
                        let epilogue = Epilogue { expr: &expr, inputs, scalars: vec![0.75.into()], dtype: None };
                        let options =
                            MatmulOptions { epilogue: Some(epilogue), variant: Some(variant), ..Default::default() };
                        let a = operand(q, &[2, m, k], Form::Dense, 1, DType::F32);
                        matmul_with(&a, &operand(q, &[k, n], Form::Transposed, 2, DType::F32), &options)
                    });
                }
            }
        }
    }
}

#[test]
fn random_numbers() {
    for device in opencl() {
        for dtype in DType::FLOATS {
            for n in [1, 2, 3, 5, 67] {
                let at = || Generator { seed: 0x1234_5678_9abc_def0, offset: u64::from(u32::MAX) - 3 };
                same(&device, dtype, &format!("{n} uniform"), |q| {
                    ops::random::uniform(q, [n], dtype, -1.0, 2.0, Some(&mut at()))
                });
                same(&device, dtype, &format!("{n} normal"), |q| {
                    ops::random::normal(q, [n], dtype, 0.0, 1.0, Some(&mut at()))
                });
                same(&device, dtype, &format!("{n} bernoulli"), |q| {
                    ops::random::bernoulli(q, [n], dtype, 0.4, Some(&mut at()))
                });
            }
        }
    }
}

#[test]
fn layout_operations() {
    let x = |q: &Queue, form| operand(q, &[3, 5], form, 1, DType::F32);
    for device in opencl() {
        for form in FORMS {
            let same = |what: &str, run: &dyn Fn(&Tensor) -> Result<Tensor>| {
                same(&device, DType::F32, &format!("{what}, {form:?}"), |q| run(&x(q, form)));
            };
            same("cat", &|x| ops::cat(&[x, &ops::slice(x, 1, Some(1), Some(2), 1)?, x], 1));
            same("stack", &|x| ops::stack(&[x, x], 1));
            same("split", &|x| ops::split(x, &[1, 4], 1)?[1].contiguous());
            same("flip", &|x| ops::flip(x, &[0, 1])?.duplicate());
            same("repeat", &|x| ops::repeat(x, &[2, 1, 3]));
            same("tril", &|x| ops::tril(x, 0));
            same("triu", &|x| ops::triu(x, 1));
        }
    }
}
