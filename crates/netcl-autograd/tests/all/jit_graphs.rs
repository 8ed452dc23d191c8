//! Random functions: compiled against op by op and against float64, values and gradients, on the CPU and on OpenCL devices.
//!
//! The bounds are those that `docs/src/jit.md` states: pointwise chains give the bits of op by op on the native CPU; a sum over a
//! row is within 16 units in the last place of the sum of its terms' magnitudes; and a whole float32 graph is within four
//! times the error that op by op has, and 16 units in the last place of its largest value. There is nothing wider to hold float64
//! against: its results are within 1e-11 of the largest number among all of a graph's, since gradients are small differences of what
//! large values make.

use netcl_autograd::jit::jit;
use netcl_autograd::{BackwardOptions, Result, Tensor, grad};
use netcl_core::backend::Queue;
use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::shape::Slice;

/// Units in the last place that a sum may lose, of its terms' magnitudes; a graph, of its largest value.
const ULPS: f64 = 16.0;
/// How much larger the error of a compiled graph may be than that of op by op.
const FACTOR: f64 = 4.0;

/// A small generator, so that a failing graph is named by its number.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % sides
    }
}

/// What a graph is made of.
#[derive(Clone, Copy)]
struct Kind {
    steps: usize,
    /// Only operations on elements.
    pointwise: bool,
    /// Whether every value takes part in the result, by its mean: many reductions, and so many kernels.
    all: bool,
}

/// The function of a number.
fn body(seed: u64, kind: Kind, t: &[&Tensor]) -> Result<Vec<Tensor>> {
    let mut dice = Dice(seed);
    let mut values: Vec<Tensor> = t.iter().map(|&t| t.clone()).collect();
    for _ in 0..kind.steps {
        let x = values[dice.roll(values.len())].clone();
        let y = values[dice.roll(values.len())].clone();
        let last = x.ndim().max(1) as isize - 1;
        let (full, some) = (!kind.pointwise && x.ndim() > 0, x.size() > 0);
        let made = match dice.roll(16) {
            0 => binary(&x, &y, kind, |a, b| a + b)?,
            1 => binary(&x, &y, kind, |a, b| a * b)?,
            2 => binary(&x, &y, kind, |a, b| a - b)?,
            3 => x.tanh()?,
            4 => x.sigmoid()?,
            5 => (&x * 0.5)?.sin()?,
            6 => (&x.square()? + 1.0)?.sqrt()?,
            7 if full => x.sum(last, true)?.expand(x.shape())?,
            8 if full => x.mean(0, false)?,
            9 if full && x.ndim() > 1 => x.transpose(0, 1)?,
            10 if full && some => x.softmax(-1)?,
            11 if full && some => (&x - &x.max(last, true)?)?,
            12 if full && x.ndim() == 2 && some => x.slice(0, Slice::new(Some(0), Some(1), 1))?,
            13 if full => netcl_autograd::reshape(&x, [x.size()])?,
            14 => x.gelu()?,
            15 if full && x.ndim() == 2 => x.matmul(&x.transpose(0, 1)?)?.tanh()?,
            _ => (&x + 0.25)?,
        };
        values.push(made);
    }
    let mut results = vec![values[values.len() - 1].clone()];
    if kind.all {
        let mut total = t[0].sum((), false)?;
        for value in values[t.len()..].iter().filter(|value| value.size() > 0) {
            total = (&total + &value.mean((), false)?)?;
        }
        results.push(total);
    }
    Ok(results)
}

/// A binary operation where shapes broadcast; elsewhere one value is enough, or none.
fn binary(x: &Tensor, y: &Tensor, kind: Kind, op: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match x.shape().broadcast("test", y.shape()) {
        Ok(_) => op(x, y),
        Err(_) if kind.pointwise || y.size() == 0 => op(x, x),
        Err(_) => op(x, &y.mean((), false)?),
    }
}

fn tensor(queue: &Queue, shape: &[usize], dtype: DType, dice: &mut Dice) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|_| dice.roll(2001) as f32 / 1000.0 - 1.0).collect();
    Tensor::from_host(queue, &values, shape).unwrap().cast(dtype).unwrap().detach()
}

/// Values and gradients of all results.
fn outcome(results: &[Tensor], leaves: &[Tensor]) -> Vec<Option<Tensor>> {
    let total = results.iter().map(|r| r.sum((), false).unwrap()).reduce(|a, b| (&a + &b).unwrap()).unwrap();
    let leaves: Vec<&Tensor> = leaves.iter().collect();
    let slopes = grad(&[&total], &leaves, &[], BackwardOptions::default()).unwrap();
    results.iter().cloned().map(Some).chain(slopes).collect()
}

/// Columns and rows of one, nothing at all, and both sides of the edges of vectors, tiles and blocks.
const SHAPES: [(&[usize], &[usize]); 12] = [
    (&[3, 4], &[3, 4]),
    (&[5, 1], &[1, 7]),
    (&[70, 9], &[9]),
    (&[2, 3, 4], &[3, 1]),
    (&[33], &[33]),
    (&[1, 1], &[4, 4]),
    (&[64, 17], &[64, 1]),
    (&[0, 5], &[5]),
    (&[4, 0], &[4, 1]),
    (&[65, 127], &[127]),
    (&[16, 128], &[16, 1]),
    (&[31, 513], &[31, 513]),
];

/// How far a result may lie from op by op, or from float64.
#[derive(Clone, Copy)]
enum Bound {
    /// Not at all.
    Bits,
    /// So much of the largest value among all results.
    Relative(f64),
    /// As the head of this file says.
    Exact,
}

fn check(queue: &Queue, seeds: std::ops::Range<u64>, kind: Kind, dtype: DType, bound: Bound) {
    for seed in seeds {
        let mut dice = Dice::new(seed);
        let (a, b) = SHAPES[dice.roll(SHAPES.len())];
        let inputs = [tensor(queue, a, dtype, &mut dice), tensor(queue, b, dtype, &mut dice)];
        let leaves = || inputs.iter().map(|t| t.detach().with_grad()).collect::<Vec<Tensor>>();
        let op_by_op =
            |leaves: Vec<Tensor>| outcome(&body(seed, kind, &leaves.iter().collect::<Vec<_>>()).unwrap(), &leaves);
        let expected = op_by_op(leaves());
        let exact = matches!(bound, Bound::Exact).then(|| {
            let wide = |t: &Tensor| {
                let values: Vec<f64> = t.to_f64_vec().unwrap();
                Tensor::from_host(&manager().cpu().queue, &values, t.shape().clone()).unwrap().with_grad()
            };
            op_by_op(inputs.iter().map(wide).collect())
        });
        let all = expected.iter().flatten().flat_map(|t| t.to_f64_vec().unwrap());
        let largest = all.fold(1.0f64, |most, value| most.max(value.abs()));
        let compiled = jit(move |t: &[&Tensor]| body(seed, kind, t));
        for call in 0..2 {
            let own = leaves();
            let got = outcome(&compiled.call(&own.iter().collect::<Vec<_>>()).unwrap(), &own);
            for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let what = format!("graph {seed}, {dtype}, call {call}, result {at} on {}", queue.device_name());
                match (got, expected) {
                    (Some(got), Some(expected)) => {
                        // The gradient of an operand that was broadcast is a sum.
                        let gradient = at > usize::from(kind.all);
                        let summed = gradient && matches!(bound, Bound::Bits);
                        let bound = if summed { Bound::Relative(1e-4) } else { bound };
                        let exact = exact.as_ref().and_then(|exact| exact[at].as_ref());
                        close(got, expected, exact, (bound, largest), &what);
                    }
                    (got, expected) => assert_eq!(got.is_some(), expected.is_some(), "{what}"),
                }
            }
        }
        assert_eq!(compiled.counters().traces, 1);
    }
}

fn close(got: &Tensor, expected: &Tensor, exact: Option<&Tensor>, (bound, of_all): (Bound, f64), what: &str) {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    let (got, expected) = (got.to_f64_vec().unwrap(), expected.to_f64_vec().unwrap());
    let exact = exact.map_or_else(|| expected.clone(), |exact| exact.to_f64_vec().unwrap());
    let largest = exact.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    let error = expected.iter().zip(&exact).fold(0.0f64, |m, (e, x)| m.max((e - x).abs()));
    let most = match bound {
        Bound::Bits => 0.0,
        Bound::Relative(tolerance) => tolerance * of_all,
        Bound::Exact => FACTOR * error + ULPS * f64::from(f32::EPSILON) * largest,
    };
    for (i, (g, e)) in got.iter().zip(&exact).enumerate() {
        let fits = (g - e).abs() <= most || (g.is_nan() && e.is_nan());
        assert!(fits, "{what}, element {i}: {g}, not {e} within {most:e}");
    }
}

fn opencl() -> Vec<Queue> {
    let found = manager().discover().unwrap();
    found.iter().map(|device| manager().handle(device).unwrap().queue).collect()
}

const GRAPH: Kind = Kind { steps: 7, pointwise: false, all: true };
/// Few kernels: compiling them is what takes long.
const SMALL: Kind = Kind { steps: 4, pointwise: false, all: false };

#[test]
fn hundreds_of_graphs_on_the_cpu() {
    let queue = manager().cpu().queue;
    check(&queue, 0..200, GRAPH, DType::F64, Bound::Relative(1e-11));
    check(&queue, 200..300, Kind { steps: 12, ..GRAPH }, DType::F32, Bound::Exact);
}

#[test]
fn pointwise_graphs_give_the_same_bits_on_the_cpu() {
    let queue = manager().cpu().queue;
    for dtype in [DType::F32, DType::F64] {
        check(&queue, 0..100, Kind { steps: 9, pointwise: true, all: false }, dtype, Bound::Bits);
    }
}

#[test]
fn a_few_graphs_on_every_opencl_device() {
    for queue in opencl() {
        check(&queue, 0..6, SMALL, DType::F32, Bound::Exact);
    }
}

/// Rows of every length around the edges of vectors and runs, of numbers that cancel.
#[test]
fn sums_over_rows_are_within_the_stated_bound() {
    for queue in opencl().into_iter().chain([manager().cpu().queue]) {
        let compiled = jit(|t: &[&Tensor]| Ok(((t[0] * 1.5)?.sum(-1, false)?, (t[0] - &t[0].mean(-1, true)?)?)));
        for length in [1, 15, 17, 64, 512, 513, 5000] {
            let x = tensor(&queue, &[70, length], DType::F32, &mut Dice::new(length as u64));
            let (sums, centred) = compiled.call(&[&x]).unwrap();
            let (values, sums) = (x.to_f64_vec().unwrap(), sums.to_f64_vec().unwrap());
            let centred = centred.to_f64_vec().unwrap();
            for (row, (values, centred)) in values.chunks(length).zip(centred.chunks(length)).enumerate() {
                let terms = values.iter().map(|v| f64::from(*v as f32 * 1.5));
                let most = ULPS * f64::from(f32::EPSILON) * terms.clone().map(f64::abs).sum::<f64>();
                let what = format!("row {row} of {length} on {}", queue.device_name());
                assert!((sums[row] - terms.sum::<f64>()).abs() <= most, "{what}: {most:e}");
                let mean = values.iter().sum::<f64>() / length as f64;
                let furthest = values.iter().zip(centred).map(|(v, c)| (v - mean - c).abs()).fold(0.0, f64::max);
                assert!(furthest <= most / length as f64 + 4.0 * f64::from(f32::EPSILON), "{what}: {furthest:e}");
            }
        }
    }
}

#[test]
#[ignore = "thousands of graphs: part of --full"]
fn thousands_of_graphs_on_the_cpu() {
    check(&manager().cpu().queue, 1000..5000, Kind { steps: 14, ..GRAPH }, DType::F64, Bound::Relative(1e-11));
}

#[test]
#[ignore = "every graph is several kernels to compile, which takes minutes: part of --full"]
fn dozens_of_graphs_on_every_opencl_device() {
    for queue in opencl() {
        check(&queue, 5000..5036, SMALL, DType::F32, Bound::Exact);
    }
}
