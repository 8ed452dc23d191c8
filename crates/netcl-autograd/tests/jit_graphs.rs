//! Random functions: compiled against op by op, values and gradients, on the CPU and on OpenCL devices.
//!
//! Op by op and compiled differ where a compiled sum over rows adds in another order, and where values would have been rounded
//! on the way; float64 is held to 1e-11, float32 to 2e-4 of the largest magnitude, which covers the conditioning of the graphs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

use netcl_autograd::core::backend::Queue;
use netcl_autograd::core::device::manager;
use netcl_autograd::core::dtype::DType;
use netcl_autograd::core::shape::Slice;
use netcl_autograd::jit::jit;
use netcl_autograd::{BackwardOptions, Result, Tensor, grad};

/// A small generator, so that a failing graph is named by its number.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % sides
    }
}

/// The function of a number: up to `steps` operations on values made so far; what is left over is summed into the result.
fn body(seed: u64, steps: usize, t: &[&Tensor]) -> Result<Vec<Tensor>> {
    let mut dice = Dice(seed);
    let mut values: Vec<Tensor> = t.iter().map(|&t| t.clone()).collect();
    for _ in 0..steps {
        let x = values[dice.roll(values.len())].clone();
        let y = values[dice.roll(values.len())].clone();
        let last = x.ndim().max(1) as isize - 1;
        let made = match dice.roll(16) {
            0 => binary(&x, &y, |a, b| a + b)?,
            1 => binary(&x, &y, |a, b| a * b)?,
            2 => binary(&x, &y, |a, b| a - b)?,
            3 => x.tanh()?,
            4 => x.sigmoid()?,
            5 => (&x * 0.5)?.sin()?,
            6 => (&x.square()? + 1.0)?.sqrt()?,
            7 if x.ndim() > 0 => x.sum(last, true)?.expand(x.shape())?,
            8 if x.ndim() > 0 => x.mean(0, false)?,
            9 if x.ndim() > 1 => x.transpose(0, 1)?,
            10 if x.ndim() > 0 && x.size() > 0 => x.softmax(-1)?,
            11 if x.ndim() > 0 && x.size() > 0 => (&x - &x.max(last, true)?)?,
            12 if x.ndim() == 2 => x.slice(0, Slice::new(Some(0), Some(1), 1))?,
            13 if x.ndim() > 0 => netcl_autograd::reshape(&x, [x.size()])?,
            14 => x.gelu()?,
            15 if x.ndim() == 2 => x.matmul(&x.transpose(0, 1)?)?.tanh()?,
            _ => (&x + 0.25)?,
        };
        values.push(made);
    }
    let mut results = vec![values[values.len() - 1].clone()];
    let mut total = t[0].sum((), false)?;
    for value in &values[t.len()..] {
        total = (&total + &value.mean((), false)?)?;
    }
    results.push(total);
    Ok(results)
}

/// A binary operation where shapes broadcast; elsewhere one value is enough.
fn binary(x: &Tensor, y: &Tensor, op: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match x.shape().broadcast("test", y.shape()) {
        Ok(_) => op(x, y),
        Err(_) => op(x, &y.mean((), false)?),
    }
}

fn tensor(queue: &Queue, shape: &[usize], dtype: DType, dice: &mut Dice) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|_| dice.roll(2001) as f64 / 1000.0 - 1.0).collect();
    let wide = Tensor::from_host(queue, &values, shape).unwrap();
    wide.cast(dtype).unwrap().detach()
}

/// Values and gradients of all results.
fn outcome(results: &[Tensor], leaves: &[Tensor]) -> Vec<Option<Tensor>> {
    let total = results.iter().map(|r| r.sum((), false).unwrap()).reduce(|a, b| (&a + &b).unwrap()).unwrap();
    let leaves: Vec<&Tensor> = leaves.iter().collect();
    let slopes = grad(&[&total], &leaves, &[], BackwardOptions::default()).unwrap();
    results.iter().cloned().map(Some).chain(slopes).collect()
}

const SHAPES: [(&[usize], &[usize]); 7] = [
    (&[3, 4], &[3, 4]),
    (&[5, 1], &[1, 7]),
    (&[70, 9], &[9]),
    (&[2, 3, 4], &[3, 1]),
    (&[33], &[33]),
    (&[1, 1], &[4, 4]),
    (&[64, 17], &[64, 1]),
];

fn check(queue: &Queue, seeds: std::ops::Range<u64>, steps: usize, dtype: DType, tolerance: f64) {
    for seed in seeds {
        let mut dice = Dice(seed ^ 0x9e37_79b9_7f4a_7c15);
        let (a, b) = SHAPES[dice.roll(SHAPES.len())];
        let inputs = [tensor(queue, a, dtype, &mut dice), tensor(queue, b, dtype, &mut dice)];
        let leaves = || inputs.iter().map(|t| t.detach().with_grad()).collect::<Vec<Tensor>>();
        let plain = leaves();
        let expected = outcome(&body(seed, steps, &plain.iter().collect::<Vec<_>>()).unwrap(), &plain);
        let compiled = jit(move |t: &[&Tensor]| body(seed, steps, t));
        for call in 0..2 {
            let own = leaves();
            let got = outcome(&compiled.call(&own.iter().collect::<Vec<_>>()).unwrap(), &own);
            for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let what = format!("graph {seed}, {dtype}, call {call}, result {at} on {}", queue.device_name());
                match (got, expected) {
                    (Some(got), Some(expected)) => close(got, expected, tolerance, &what),
                    (got, expected) => assert_eq!(got.is_some(), expected.is_some(), "{what}"),
                }
            }
        }
        assert_eq!(compiled.counters().traces, 1);
    }
}

fn close(got: &Tensor, expected: &Tensor, tolerance: f64, what: &str) {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    let (got, expected) = (got.to_f64_vec().unwrap(), expected.to_f64_vec().unwrap());
    let largest = expected.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
        assert!(
            (g - e).abs() <= tolerance * largest || (g.is_nan() && e.is_nan()),
            "{what}, element {i}: {g}, not {e}"
        );
    }
}

fn opencl() -> Vec<Queue> {
    let found = manager().discover().unwrap();
    found.iter().map(|device| manager().handle(device).unwrap().queue).collect()
}

#[test]
fn hundreds_of_graphs_on_the_cpu() {
    let queue = manager().cpu().queue;
    check(&queue, 0..200, 7, DType::F64, 1e-11);
    check(&queue, 200..300, 12, DType::F32, 2e-4);
}

#[test]
fn a_few_graphs_on_every_opencl_device() {
    for queue in opencl() {
        check(&queue, 0..6, 5, DType::F32, 2e-4);
    }
}

#[test]
#[ignore = "thousands of graphs: part of --full"]
fn thousands_of_graphs_on_the_cpu() {
    check(&manager().cpu().queue, 1000..5000, 14, DType::F64, 1e-11);
}

#[test]
#[ignore = "every graph is several kernels to compile, which takes minutes: part of --full"]
fn a_hundred_graphs_on_every_opencl_device() {
    for queue in opencl() {
        check(&queue, 5000..5100, 8, DType::F32, 2e-4);
    }
}
