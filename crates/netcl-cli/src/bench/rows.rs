//! The rows of the benchmark: what is computed, how large, how fast it should be, and what is right.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use netcl::Tensor as Recorded;
use netcl::autograd::jit::jit;
use netcl::core::backend::Queue;
use netcl::core::dtype::DType;
use netcl::core::kernel_selector::{KernelConfig, Problem, get_kernel_selector};
use netcl::core::precision::MatmulPrecision;
use netcl::core::random::Generator;
use netcl::core::shape::Slice;
use netcl::core::tensor::Tensor;
use netcl::core::tuner::with_forced;
use netcl::profiling::ceilings::Ceilings;
use netcl::raw_ops::matmul::{MatmulOptions, Variant, matmul_with};
use netcl::raw_ops::random::uniform;

/// One line of the table.
pub(crate) struct Row {
    /// The word for `--rows`, and the row's name in files.
    pub(crate) id: &'static str,
    /// The row's name for readers.
    pub(crate) name: &'static str,
    pub(crate) work: Work,
    /// Lengths on large devices, and on all others.
    pub(crate) full: &'static [usize],
    pub(crate) small: &'static [usize],
    /// Milliseconds to reach at full size on [`GOAL_DEVICE`].
    pub(crate) goal: Option<f64>,
}

/// The device that the goals are for.
pub(crate) const GOAL_DEVICE: &str = "H200";

/// What a row computes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Work {
    /// A product of matrices, lengths m, n, k.
    Matmul {
        dtype: DType,
        precision: MatmulPrecision,
        kernels: Kernels,
    },
    /// `tanh(x * y + 1) * sigmoid(x) + relu(y)`, compiled.
    Chain,
    /// Over rows; lengths rows, columns.
    Softmax,
    Sum,
    Copy,
}

/// Which kernels a product may use.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kernels {
    Any,
    /// Those of plain multiply-adds.
    MultiplyAdds,
}

const fn matmul(dtype: DType, precision: MatmulPrecision, kernels: Kernels) -> Work {
    Work::Matmul { dtype, precision, kernels }
}

use MatmulPrecision::{High, Highest};

pub(crate) const ROWS: &[Row] = &[
    Row {
        id: "matmul_f32",
        name: "matmul, float32-accurate",
        work: matmul(DType::F32, Highest, Kernels::Any),
        full: &[4096, 4096, 4096],
        small: &[1024, 1024, 1024],
        goal: Some(1.5),
    },
    Row {
        id: "matmul_fma",
        name: "matmul, plain multiply-adds",
        work: matmul(DType::F32, Highest, Kernels::MultiplyAdds),
        full: &[4096, 4096, 4096],
        small: &[1024, 1024, 1024],
        goal: Some(2.77),
    },
    Row {
        id: "matmul_tf32",
        name: "matmul, tf32",
        work: matmul(DType::F32, High, Kernels::Any),
        full: &[4096, 4096, 4096],
        small: &[1024, 1024, 1024],
        goal: Some(0.40),
    },
    Row {
        id: "matmul_f16",
        name: "matmul, float16",
        work: matmul(DType::F16, Highest, Kernels::Any),
        full: &[8192, 8192, 8192],
        small: &[512, 512, 512],
        goal: Some(1.6),
    },
    Row {
        id: "matmul_bf16",
        name: "matmul, bfloat16",
        work: matmul(DType::BF16, Highest, Kernels::Any),
        full: &[8192, 8192, 8192],
        small: &[512, 512, 512],
        goal: Some(1.6),
    },
    Row {
        id: "chain",
        name: "pointwise chain, compiled",
        work: Work::Chain,
        full: &[64 << 20],
        small: &[4 << 20],
        goal: Some(0.20),
    },
    Row {
        id: "softmax",
        name: "softmax",
        work: Work::Softmax,
        full: &[16384, 4096],
        small: &[2048, 1024],
        goal: Some(0.14),
    },
    Row { id: "sum", name: "sum", work: Work::Sum, full: &[64 << 20], small: &[4 << 20], goal: Some(0.068) },
    Row { id: "copy", name: "copy", work: Work::Copy, full: &[64 << 20], small: &[4 << 20], goal: None },
];

impl Row {
    /// Operations, counted as a reader of the formula would; transcendental functions count as one.
    pub(crate) fn flops(&self, size: &[usize]) -> f64 {
        let n = product(size);
        match self.work {
            Work::Matmul { .. } => 2.0 * n,
            Work::Chain => 7.0 * n,
            Work::Softmax => 5.0 * n,
            Work::Sum => n,
            Work::Copy => 0.0,
        }
    }

    /// Bytes that must be read and written once.
    pub(crate) fn bytes(&self, size: &[usize]) -> f64 {
        let n = product(size);
        match (self.work, size) {
            (Work::Matmul { dtype, .. }, &[m, n, k]) => (dtype.size() * (m * k + k * n + m * n)) as f64,
            (Work::Chain, _) => 12.0 * n,
            (Work::Softmax | Work::Copy, _) => 8.0 * n,
            _ => 4.0 * n,
        }
    }

    /// The rate of operations that bounds the row, and what it is the rate of.
    pub(crate) fn flops_ceiling(&self, ceilings: &Ceilings) -> (f64, &'static str) {
        let units = match self.work {
            Work::Matmul { kernels: Kernels::MultiplyAdds, .. } => None,
            Work::Matmul { dtype: DType::F16, .. } => ceilings.matrix("float16").map(|rate| (rate, "float16 units")),
            Work::Matmul { dtype: DType::BF16, .. } => ceilings.matrix("bfloat16").map(|rate| (rate, "bfloat16 units")),
            Work::Matmul { precision: High, .. } => ceilings.matrix("tf32").map(|rate| (rate, "tf32 units")),
            // A float32 product is six products of bfloat16 parts.
            Work::Matmul { dtype: DType::F32, .. } => {
                ceilings.matrix("bfloat16").map(|rate| (rate / 6.0, "bfloat16 units / 6"))
            }
            _ => None,
        };
        let plain = (ceilings.fma_flops, "multiply-adds");
        units.filter(|(rate, _)| *rate > plain.0).unwrap_or(plain)
    }

    /// Seconds that the device's limits allow at best.
    pub(crate) fn bound(&self, size: &[usize], ceilings: &Ceilings) -> f64 {
        let by_flops = match self.work {
            Work::Matmul { .. } => self.flops(size) / self.flops_ceiling(ceilings).0,
            _ => 0.0,
        };
        by_flops.max(self.bytes(size) / ceilings.bytes_per_second)
    }
}

fn product(size: &[usize]) -> f64 {
    size.iter().map(|&n| n as f64).product()
}

/// How far a result is from the exact one, and how far it may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Check {
    /// The largest error, as a share of the result's natural size.
    pub(crate) error: f64,
    pub(crate) tolerance: f64,
}

impl Check {
    pub(crate) fn passed(&self) -> bool {
        // Not the other way round: an error that is no number fails.
        self.error <= self.tolerance
    }
}

type Call = Box<dyn FnMut() -> netcl::core::Result<()>>;

/// A row ready to run: its operands are on the device.
pub(crate) struct Prepared {
    pub(crate) call: Call,
    /// Compares the last call's result with one in float64, at samples.
    pub(crate) check: Box<dyn FnOnce() -> Result<Check>>,
}

impl Row {
    /// Makes the operands: uniform numbers, the same in every run.
    pub(crate) fn prepare(&self, queue: &Queue, size: &[usize]) -> Result<Prepared> {
        let mut generator = Generator::new(2026);
        let mut draw = |shape: &[usize], dtype, low: f64| uniform(queue, shape, dtype, low, 1.0, Some(&mut generator));
        Ok(match (self.work, size) {
            (Work::Matmul { dtype, precision, kernels }, &[m, n, k]) => {
                let (a, b) = (draw(&[m, k], dtype, -1.0)?, draw(&[k, n], dtype, -1.0)?);
                let out = Tensor::uninit(queue, [m, n], dtype)?;
                let plain = match (kernels, queue) {
                    // Processors have no other kernels than those of multiply-adds.
                    (Kernels::MultiplyAdds, Queue::OpenCl(_)) if queue.profile().device_type != "cpu" => {
                        Some(without_units(queue, [m, n, k], dtype)?)
                    }
                    _ => None,
                };
                let operands = (a.clone(), b.clone(), out.clone());
                let call = move || {
                    let (a, b, out) = &operands;
                    let options = MatmulOptions { out: Some(out), precision: Some(precision), ..Default::default() };
                    match &plain {
                        None => matmul_with(a, b, &options),
                        Some(Plain::Tuned(config)) => with_forced(config, || matmul_with(a, b, &options)),
                        Some(Plain::ByRule) => {
                            matmul_with(a, b, &MatmulOptions { variant: Some(Variant::RegisterTiled), ..options })
                        }
                    }
                    .map(drop)
                };
                let tolerance = match (dtype, precision) {
                    (DType::F16, _) => 4e-3,
                    (DType::BF16, _) => 3e-2,
                    (_, High) => 3e-3,
                    _ => 3e-5,
                };
                Prepared { call: Box::new(call), check: Box::new(move || check_matmul(&a, &b, &out, tolerance)) }
            }
            (Work::Chain, _) => {
                let (x, y) = (draw(size, DType::F32, -1.0)?, draw(size, DType::F32, -1.0)?);
                let compiled = jit(|t: &[&Recorded]| {
                    let (x, y) = (t[0], t[1]);
                    &(&(&(x * y)? + 1.0)?.tanh()? * &x.sigmoid()?)? + &y.relu()?
                });
                let result = Rc::new(RefCell::new(None));
                let (left, right, into) = (Recorded::from(x.clone()), Recorded::from(y.clone()), result.clone());
                let call = move || {
                    let out = compiled.call(&[&left, &right]).map_err(below)?;
                    *into.borrow_mut() = Some(out.raw().clone());
                    Ok(())
                };
                let exact = |x: f64, y: f64| (x * y + 1.0).tanh() / (1.0 + (-x).exp()) + y.max(0.0);
                let check = move || {
                    let out = result.borrow_mut().take();
                    check_points(&[&x, &y], out.as_ref(), move |v| exact(v[0], v[1]), 1e-6)
                };
                Prepared { call: Box::new(call), check: Box::new(check) }
            }
            (Work::Softmax, _) => {
                let x = draw(size, DType::F32, -1.0)?;
                let (from, result) = (x.clone(), Rc::new(RefCell::new(None)));
                let into = result.clone();
                let call = move || {
                    *into.borrow_mut() = Some(netcl::raw_ops::softmax(&from, -1)?);
                    Ok(())
                };
                let check = move || check_softmax(&x, result.borrow_mut().take().as_ref());
                Prepared { call: Box::new(call), check: Box::new(check) }
            }
            (Work::Sum, _) => {
                // Positive, so that the sum is as large as its terms.
                let x = draw(size, DType::F32, 0.0)?;
                let (from, result) = (x.clone(), Rc::new(RefCell::new(None)));
                let into = result.clone();
                let call = move || {
                    *into.borrow_mut() = Some(netcl::raw_ops::sum(&from, (), false)?);
                    Ok(())
                };
                let check = move || {
                    let exact: f64 = x.to_host::<f32>()?.iter().map(|&x| f64::from(x)).sum();
                    let got = result.borrow_mut().take().map_or(Ok(f64::NAN), |out: Tensor| out.item())?;
                    Ok(Check { error: (got - exact).abs() / exact, tolerance: 1e-5 })
                };
                Prepared { call: Box::new(call), check: Box::new(check) }
            }
            _ => {
                let x = draw(size, DType::F32, -1.0)?;
                let out = Tensor::uninit(queue, size, DType::F32)?;
                let (from, to) = (x.clone(), out.clone());
                let check = move || check_points(&[&x], Some(&out), |v| v[0], 0.0);
                Prepared { call: Box::new(move || to.assign(&from)), check: Box::new(check) }
            }
        })
    }
}

/// How a product is computed without matrix units.
enum Plain {
    /// As was measured to be the fastest.
    Tuned(KernelConfig),
    ByRule,
}

fn without_units(queue: &Queue, [m, n, k]: [usize; 3], dtype: DType) -> Result<Plain> {
    let measured = get_kernel_selector(Some(queue))?.measured(&Problem::matmul(m, n, k, dtype));
    Ok(measured.map_or(Plain::ByRule, |mut config| {
        // What it says of matrix units.
        config.extra.clear();
        Plain::Tuned(config)
    }))
}

/// The error of a layer below, which is what a call without gradients can meet.
fn below(error: netcl::Error) -> netcl::core::Error {
    match error {
        netcl::Error::Core(error) => error,
        other => netcl::core::Error::argument("jit", other.to_string()),
    }
}

/// Places spread over a length, the first and the last among them.
fn places(length: usize, count: usize) -> Vec<usize> {
    let last = length.saturating_sub(1);
    let mut found: Vec<usize> = (0..count).map(|i| last * i / (count - 1).max(1)).collect();
    found.dedup();
    found
}

fn range(at: usize, length: usize) -> Slice {
    Slice::new(Some(at as isize), Some((at + length) as isize), 1)
}

/// Sums of `k` terms against float64, in units of the root of the sum of the terms' squares.
fn check_matmul(a: &Tensor, b: &Tensor, out: &Tensor, tolerance: f64) -> Result<Check> {
    let columns: Vec<(usize, Vec<f64>)> = places(b.shape()[1], 16)
        .into_iter()
        .map(|j| Ok((j, b.select(1, j as isize)?.contiguous()?.to_f64_vec()?)))
        .collect::<Result<_>>()?;
    let mut error = 0.0_f64;
    for i in places(a.shape()[0], 8) {
        let (row, got) = (a.select(0, i as isize)?.to_f64_vec()?, out.select(0, i as isize)?.to_f64_vec()?);
        for (j, column) in &columns {
            let terms = || row.iter().zip(column).map(|(x, y)| x * y);
            let (exact, size) = (terms().sum::<f64>(), terms().map(|t| t * t).sum::<f64>().sqrt());
            error = worse(error, (got[*j] - exact).abs() / size);
        }
    }
    Ok(Check { error, tolerance })
}

/// Points at several places of flat tensors.
fn check_points(
    inputs: &[&Tensor],
    out: Option<&Tensor>,
    exact: impl Fn(&[f64]) -> f64,
    tolerance: f64,
) -> Result<Check> {
    const LENGTH: usize = 1000;
    let Some(out) = out else { return Ok(Check { error: f64::NAN, tolerance }) };
    let length = LENGTH.min(out.size());
    let mut error = 0.0_f64;
    for at in places(out.size() - length + 1, 5) {
        let piece = |t: &Tensor| -> Result<Vec<f64>> { Ok(t.slice(0, range(at, length))?.to_f64_vec()?) };
        let inputs = inputs.iter().map(|t| piece(t)).collect::<Result<Vec<_>>>()?;
        for (i, got) in piece(out)?.into_iter().enumerate() {
            let exact = exact(&inputs.iter().map(|values| values[i]).collect::<Vec<f64>>());
            error = worse(error, (got - exact).abs() / exact.abs().max(1.0));
        }
    }
    Ok(Check { error, tolerance })
}

fn check_softmax(x: &Tensor, out: Option<&Tensor>) -> Result<Check> {
    let tolerance = 1e-5;
    let Some(out) = out else { return Ok(Check { error: f64::NAN, tolerance }) };
    let mut error = 0.0_f64;
    for i in places(x.shape()[0], 5) {
        let (row, got) = (x.select(0, i as isize)?.to_f64_vec()?, out.select(0, i as isize)?.to_f64_vec()?);
        let total: f64 = row.iter().map(|x| x.exp()).sum();
        for (x, got) in row.iter().zip(got) {
            let exact = x.exp() / total;
            error = worse(error, (got - exact).abs() / exact);
        }
    }
    Ok(Check { error, tolerance })
}

/// The larger error, and one that is no number before all.
fn worse(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_bounds() {
        let ceilings = Ceilings {
            bytes_per_second: 4e12,
            fma_flops: 6e13,
            matrix_flops: vec![("tf32", 4e14), ("bfloat16", 8e14), ("float16", 8e14)],
        };
        for (i, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..i].iter().all(|other| other.id != row.id));
            for size in [row.full, row.small] {
                assert!(row.bytes(size) > 0.0 && row.bound(size, &ceilings) > 0.0, "{}", row.id);
            }
            // A goal below what the ceilings of such a device allow could never be met.
            let bound = row.bound(row.full, &ceilings) * 1e3;
            assert!(row.goal.is_none_or(|goal| goal > 0.9 * bound), "{}: {bound}", row.id);
        }
        let fma = &ROWS[1];
        assert_eq!(fma.bound(fma.full, &ceilings), 2.0 * 4096_f64.powi(3) / 6e13);
    }

    #[test]
    fn every_row_is_right_and_a_wrong_result_is_found() {
        let queue = netcl::core::device::manager().cpu().queue;
        for row in ROWS {
            let size: &[usize] = match row.small.len() {
                3 => &[33, 29, 64],
                2 => &[7, 300],
                _ => &[5000],
            };
            let mut ready = row.prepare(&queue, size).unwrap();
            (ready.call)().unwrap();
            let check = (ready.check)().unwrap();
            assert!(check.passed(), "{}: {check:?}", row.id);
        }
        let of = |value| Tensor::full(&queue, [4, 4], DType::F32, value).unwrap();
        let right = of(16.0);
        assert!(check_matmul(&of(2.0), &of(2.0), &right, 1e-6).unwrap().passed());
        for wrong in [of(0.0), of(16.1), of(f64::NAN)] {
            assert!(!check_matmul(&of(2.0), &of(2.0), &wrong, 1e-6).unwrap().passed());
            assert!(!check_softmax(&of(1.0), Some(&wrong)).unwrap().passed());
        }
        assert!(check_softmax(&of(1.0), Some(&of(0.25))).unwrap().passed());
        assert!(!check_softmax(&of(1.0), None).unwrap().passed());
    }
}
