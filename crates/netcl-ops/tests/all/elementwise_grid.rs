//! Every operation of the elementwise table: devices x dtypes x {dense odd sizes, broadcast, strided, zero-size, numbers}.

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::table::{self, OpDef};
use netcl_core::shape::{Shape, Slice};
use netcl_core::tensor::Tensor;
use netcl_ops::elementwise::{Operand, apply};

use crate::support::{Grid, Tolerance, devices, epsilon, every, random, supports, tensor};

/// Shapes of the operands of one cell, and how the first one is viewed.
#[derive(Clone, Copy, Debug)]
enum Case {
    Dense(usize),
    Broadcast,
    Strided,
    Empty,
    /// The last operand is a number.
    Number,
}

const CASES: [Case; 8] = [
    Case::Dense(1),
    Case::Dense(7),
    Case::Dense(1025),
    Case::Dense(4099),
    Case::Broadcast,
    Case::Strided,
    Case::Empty,
    Case::Number,
];

/// One operand as a tensor and as the values of the broadcast result.
fn operand(queue: &Queue, case: Case, which: usize, op: &OpDef, dtype: DType) -> (Tensor, Vec<f64>) {
    let draw = |n: usize| random(n, 31 * which as u64 + 7, op.domain[which]);
    match case {
        Case::Dense(n) => tensor(queue, &draw(n), [n], dtype),
        Case::Number => tensor(queue, &draw(33), [33], dtype),
        Case::Empty => tensor(queue, &[], [3, 0], dtype),
        Case::Broadcast => {
            let shape = [[3, 1, 5], [1, 4, 1], [3, 4, 5]][which % 3];
            let (t, _) = tensor(queue, &draw(shape.iter().product()), shape, dtype);
            let view = t.expand([3, 4, 5]).unwrap();
            let values = view.to_f64_vec().unwrap();
            // With other operands the op broadcasts by itself; a lone one is given as an expanded view.
            (if op.arity() == 1 { view } else { t }, values)
        }
        Case::Strided => {
            let (t, _) = tensor(queue, &draw(6 * 5 * 8), [6, 5, 8], dtype);
            let view = t.permute(&[2, 0, 1]).unwrap().slice(0, Slice::new(None, None, -2)).unwrap();
            let values = view.to_f64_vec().unwrap();
            (view, values)
        }
    }
}

/// What one op may be off by, from the table's stated accuracy: the result's own rounding on top.
fn tolerance(op: &OpDef, dtype: DType, native: bool) -> Tolerance {
    let ulp = match (native, dtype) {
        (true, DType::F64) => op.ulp.native_f64,
        (true, _) => op.ulp.native_f32,
        (false, DType::F64) => op.ulp.device_f64,
        (false, _) => op.ulp.device_f32,
    };
    let computed = if dtype == DType::F64 { epsilon(DType::F64) } else { epsilon(DType::F32) };
    let rounding = if matches!(dtype, DType::F16 | DType::BF16) { epsilon(dtype) } else { 0.0 };
    // The f64 reference itself has its own error where the op is computed in f64.
    let reference = if dtype == DType::F64 { 4.0 } else { 0.0 };
    Tolerance { relative: (ulp.max(0.5) + reference) * computed + rounding, absolute: smallest(dtype) }
}

/// Results below this are subnormal, and devices may flush them.
fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F16 => 2f64.powi(-14),
        _ => f64::from(f32::MIN_POSITIVE),
    }
}

fn saturate(value: f64, dtype: DType) -> f64 {
    let max = match dtype {
        DType::F16 => 65520.0,
        DType::BF16 => 3.3961775292304e38,
        DType::F32 => 3.4028235677973366e38,
        _ => return value,
    };
    if value.abs() >= max { f64::INFINITY.copysign(value) } else { value }
}

#[test]
fn every_op_on_every_device_and_dtype() {
    let mut grid = Grid::new("elementwise");
    for device in devices() {
        let native = device.backend.name() == "cpu";
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (i, op) in table::ops().iter().enumerate() {
                for case in CASES {
                    // Every op is built dense in f32 everywhere; views and the other dtypes are other kernels, of which devices
                    // run a fixed share.
                    let share = match (dtype, case) {
                        (DType::F32, Case::Dense(_) | Case::Empty) => 1,
                        (DType::F32, _) => every(&device, 12, 2),
                        _ => every(&device, 24, 5),
                    };
                    if !(i + dtype as usize).is_multiple_of(share) {
                        continue;
                    }
                    if matches!(case, Case::Number) && op.arity() < 2 {
                        continue;
                    }
                    grid.cell(&device, format!("{} {dtype} {case:?}", op.name), || {
                        let operands: Vec<(Tensor, Vec<f64>)> =
                            (0..op.arity()).map(|w| operand(&device.queue, case, w, op, dtype)).collect();
                        let mut given: Vec<Operand<'_>> = operands.iter().map(|(t, _)| t.into()).collect();
                        let mut values: Vec<Vec<f64>> = operands.iter().map(|(_, v)| v.clone()).collect();
                        let n = values.iter().map(Vec::len).max().unwrap();
                        if matches!(case, Case::Number) {
                            let last = op.arity() - 1;
                            let number = f64::from(f32::from_bits((values[last][0] as f32).to_bits()));
                            given[last] = number.into();
                            values[last] = vec![number; n];
                        }
                        let got = apply(op.name, &given, &[], None).map_err(|e| e.to_string())?;
                        // Parameters reach the kernel in the type it computes in.
                        let rounded = |p: f64| if dtype == DType::F64 { p } else { f64::from(p as f32) };
                        let (expr, params) = (op.expr(), op.defaults().into_iter().map(rounded).collect::<Vec<_>>());
                        let expected: Vec<f64> = (0..n)
                            .map(|k| {
                                let at: Vec<f64> = values.iter().map(|v| v[k]).collect();
                                saturate(expr.eval(&at, &params)[0], dtype)
                            })
                            .collect();
                        if got.dtype() != dtype {
                            return Err(format!("the result is {}", got.dtype()));
                        }
                        tolerance(op, dtype, native).check(&got.to_f64_vec().unwrap(), &expected)
                    });
                }
            }
        }
    }
    grid.finish(table::ops().len() * 4 * 7);
}

#[test]
fn special_values_follow_the_reference() {
    let special = [f64::NAN, f64::INFINITY, -f64::INFINITY, 0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e-30];
    let mut grid = Grid::new("special values");
    for device in devices() {
        for op in table::ops().iter().filter(|op| op.arity() <= 2) {
            grid.cell(&device, op.name, || {
                let (a, b): (Vec<f64>, Vec<f64>) = special
                    .iter()
                    .flat_map(|&a| special.iter().map(move |&b| (a, b)))
                    .take(if op.arity() == 1 { 91 } else { 100 })
                    .unzip();
                let (x, xs) = tensor(&device.queue, &a, [a.len()], DType::F32);
                let (y, ys) = tensor(&device.queue, &b, [b.len()], DType::F32);
                let operands: Vec<Operand<'_>> = [&x, &y][..op.arity()].iter().map(|t| (*t).into()).collect();
                let got = apply(op.name, &operands, &[], None).map_err(|e| e.to_string())?.to_f64_vec().unwrap();
                let (expr, params) = (op.expr(), op.defaults());
                for (k, &g) in got.iter().enumerate() {
                    let e = saturate(expr.eval(&[xs[k], ys[k]][..op.arity()], &params)[0], DType::F32);
                    let near = (g - e).abs() <= 1e-3 * e.abs() + f64::from(f32::MIN_POSITIVE);
                    // Sines of huge angles are all over the place in f32 arithmetic of the argument alone.
                    let wild = xs[k].abs() > 1e20 && matches!(op.name, "sin" | "cos" | "tan");
                    if !(g == e || (g.is_nan() && e.is_nan()) || near || (wild && g.is_finite())) {
                        return Err(format!("({}, {}) gives {g}, expected {e}", xs[k], ys[k]));
                    }
                }
                Ok(())
            });
        }
    }
    grid.finish(40);
}

#[test]
fn results_may_go_into_given_memory() {
    for device in devices() {
        let q = &device.queue;
        let (x, xs) = tensor(q, &random(60, 1, (-3.0, 3.0)), [6, 10], DType::F32);
        let view = x.permute(&[1, 0]).unwrap();
        // In place through a view.
        apply("mul", &[(&view).into(), 2.0.into()], &[], Some(&view)).unwrap();
        assert_eq!(x.to_f64_vec().unwrap(), xs.iter().map(|v| v * 2.0).collect::<Vec<_>>(), "{device:?}");
        // Into a 16-bit tensor.
        let out = Tensor::uninit(q, [6, 10], DType::F16).unwrap();
        apply("relu", &[(&x).into()], &[], Some(&out)).unwrap();
        assert!(out.to_f64_vec().unwrap().iter().zip(&xs).all(|(o, x)| (o - (x * 2.0).max(0.0)).abs() < 0.01));
        // Overlapping: each row gets the row above it.
        let (above, below) =
            (x.slice(0, Slice::new(None, Some(5), 1)).unwrap(), x.slice(0, Slice::new(Some(1), None, 1)).unwrap());
        let expected: Vec<f64> = xs[..50].iter().map(|v| v * -2.0).collect();
        apply("neg", &[(&above).into()], &[], Some(&below)).unwrap();
        assert_eq!(below.to_f64_vec().unwrap(), expected, "{device:?}");
        // Wrong shapes and expanded outputs are refused.
        assert!(apply("relu", &[(&x).into()], &[], Some(&Tensor::uninit(q, [10, 6], DType::F32).unwrap())).is_err());
        let expanded = Tensor::uninit(q, [1, 10], DType::F32).unwrap().expand([6, 10]).unwrap();
        assert!(apply("relu", &[(&x).into()], &[], Some(&expanded)).unwrap_err().to_string().contains("share memory"));
    }
}

#[test]
fn a_new_number_needs_no_new_kernel() {
    for device in devices().iter().filter(|d| d.backend.name() == "cl") {
        let (x, _) = tensor(&device.queue, &random(2000, 5, (0.0, 1.0)), [2000], DType::F32);
        netcl_ops::add(&x, 0.5).unwrap();
        let before = netcl_core::backend::opencl::Builder::global().stats();
        for i in 0..50 {
            netcl_ops::add(&x, f64::from(i)).unwrap();
        }
        // Nor does a new size of the same kind.
        let (y, _) = tensor(&device.queue, &random(3001, 5, (0.0, 1.0)), [3001], DType::F32);
        netcl_ops::add(&y, 0.5).unwrap();
        let after = netcl_core::backend::opencl::Builder::global().stats();
        assert_eq!((before.builds, before.hits), (after.builds, after.hits), "{device:?}");
    }
}

#[test]
fn bad_operands_are_explained() {
    let q = netcl_core::device::manager().cpu().queue;
    let f32s = Tensor::from_shape(&q, [2, 3], DType::F32).unwrap();
    let f64s = Tensor::from_shape(&q, [2, 3], DType::F64).unwrap();
    let text = |r: netcl_core::Result<Tensor>| r.unwrap_err().to_string();
    assert!(text(netcl_ops::add(&f32s, &f64s)).contains("mixes float32 and float64; cast one"));
    assert!(text(netcl_ops::add(1.0, 2.0)).contains("at least one operand must be a tensor"));
    assert!(
        text(netcl_ops::mul(&f32s, &Tensor::from_shape(&q, [4], DType::F32).unwrap())).contains("do not broadcast")
    );
    assert!(text(apply("no_such_op", &[], &[], None)).contains("there is no operation \"no_such_op\""));
    let bytes = Tensor::from_host(&q, &[1u8, 0], [2]).unwrap();
    assert!(text(netcl_ops::relu(&bytes)).contains("got a tensor of bool"));
    assert_eq!(
        netcl_ops::where_(&bytes, &Tensor::full(&q, [2], DType::F64, 3.0).unwrap(), -1.0)
            .unwrap()
            .to_f64_vec()
            .unwrap(),
        [3.0, -1.0]
    );
    assert_eq!(
        netcl_ops::add(&Tensor::from_shape(&q, (), DType::F32).unwrap(), 2.0).unwrap().shape(),
        &Shape::scalar()
    );
}
