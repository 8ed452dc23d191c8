//! Reductions over one, several or all axes, and the engine they share.
//!
//! Sums are blocked: short runs in the type of the computation (float32 for 16-bit types), runs combined in float64 on the
//! CPU and in a compensated pair elsewhere. The order of every addition depends on shapes and the device alone, so the same
//! program on the same device gives the same bits, with any number of threads.
//!
//! | file | subject |
//! |---|---|
//! | `engine.rs` | [`Reduction`]: prologue, combine, epilogue |
//! | `plan.rs` | which loops there are, from strides |
//! | `cpu.rs`, `fold.rs` | the native loops |
//! | `opencl.rs`, `reduce.cl` | the kernels for any layout and how they are launched |
//! | `along.rs`, `groups.rs`, `reduce_groups.cl` | vectors along a dense axis |

mod along;
mod cpu;
mod engine;
mod fold;
mod groups;
pub(crate) mod opencl;
pub(crate) mod plan;

use std::sync::LazyLock;

use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::{BinaryOp, Expr, Graph, Val};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

pub use engine::{Combine, Operands, Reduction};
pub(crate) use fold::{Lane, Max, Op, Sum, plain_row};
pub use opencl::{Variant, force_variant};

/// The axes a reduction removes. Negative ones count from the end.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
///
/// let x = Tensor::full(&manager().cpu().queue, [2, 3, 4], DType::F32, 1.0)?;
/// assert_eq!(netcl_ops::sum(&x, -1, false)?.shape().to_vec(), [2, 3]);
/// assert_eq!(netcl_ops::sum(&x, &[0, 2], true)?.to_host::<f32>()?, [8.0, 8.0, 8.0]);
/// assert_eq!(netcl_ops::sum(&x, (), false)?.item()?, 24.0); // all axes: a scalar
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axes<'a> {
    /// Every axis; also written `()`.
    All,
    /// One axis.
    One(isize),
    /// Several axes, each named once. None at all leave the tensor as it is.
    Several(&'a [isize]),
}

impl From<()> for Axes<'_> {
    fn from((): ()) -> Self {
        Axes::All
    }
}

impl From<isize> for Axes<'_> {
    fn from(axis: isize) -> Self {
        Axes::One(axis)
    }
}

impl<'a> From<&'a [isize]> for Axes<'a> {
    fn from(axes: &'a [isize]) -> Self {
        Axes::Several(axes)
    }
}

impl<'a, const N: usize> From<&'a [isize; N]> for Axes<'a> {
    fn from(axes: &'a [isize; N]) -> Self {
        Axes::Several(axes)
    }
}

impl From<Option<isize>> for Axes<'_> {
    fn from(axis: Option<isize>) -> Self {
        axis.map_or(Axes::All, Axes::One)
    }
}

/// An expression of inputs (the combined value first) and scalars.
fn expr(build: impl for<'g> Fn(&'g Graph) -> Val<'g>) -> Expr {
    let g = Graph::new();
    let value = build(&g);
    g.finish(&[value])
}

/// A reduction of the library, with what it gives for no elements.
struct Named {
    reduction: Reduction,
    of_nothing: Option<f64>,
}

impl Named {
    fn run(&self, x: &Tensor, axes: Axes<'_>, keepdims: bool) -> Result<Tensor> {
        self.run_with(x, axes, keepdims, &[], &[])
    }

    fn run_with(
        &self,
        x: &Tensor,
        axes: Axes<'_>,
        keepdims: bool,
        before: &[Number],
        after: &[Number],
    ) -> Result<Tensor> {
        let op = self.reduction.name();
        if let (0, Some(value)) = (x.size(), self.of_nothing) {
            x.check_float(op)?;
            let (_, shape) = plan::resolve(op, x.shape(), axes, keepdims)?;
            return Tensor::full(x.queue(), shape, x.dtype(), value);
        }
        let operands =
            Operands { inputs: &[x], prologue_scalars: before, epilogue_scalars: after, ..Default::default() };
        self.reduction.run(&operands, axes, keepdims)
    }
}

/// How many elements go into each result.
fn count(op: &'static str, x: &Tensor, axes: Axes<'_>) -> Result<usize> {
    let (reduced, _) = plan::resolve(op, x.shape(), axes, false)?;
    Ok(x.shape().iter().zip(&reduced).filter(|(_, gone)| **gone).map(|(&n, _)| n).product())
}

macro_rules! named {
    ($($name:ident = $reduction:expr, $of_nothing:expr;)*) => {$(
        static $name: LazyLock<Named> = LazyLock::new(|| Named { reduction: $reduction, of_nothing: $of_nothing });
    )*};
}

named! {
    SUM = Reduction::new("sum", Combine::Sum), Some(0.0);
    PROD = Reduction::new("prod", Combine::Prod), Some(1.0);
    MAX = Reduction::new("max", Combine::Max), None;
    MIN = Reduction::new("min", Combine::Min), None;
    MEAN = Reduction::new("mean", Combine::Sum).epilogue(expr(|g| g.input(0) / g.scalar(0))), Some(f64::NAN);
    ANY = Reduction::new("any", Combine::Max).prologue(nonzero()), Some(0.0);
    ALL = Reduction::new("all", Combine::Min).prologue(nonzero()), Some(1.0);
    NORM_0 = Reduction::new("norm", Combine::Sum).prologue(nonzero()), Some(0.0);
    NORM_1 = Reduction::new("norm", Combine::Sum).prologue(expr(|g| g.input(0).abs())), Some(0.0);
    NORM_2 = Reduction::new("norm", Combine::Sum)
        .prologue(expr(|g| g.input(0).square()))
        .epilogue(expr(|g| g.input(0).sqrt())), Some(0.0);
    NORM_P = Reduction::new("norm", Combine::Sum)
        .prologue(expr(|g| g.input(0).abs().binary(BinaryOp::Pow, g.scalar(0))))
        .epilogue(expr(|g| g.input(0).binary(BinaryOp::Pow, g.scalar(0)))), Some(0.0);
    NORM_MAX = Reduction::new("norm", Combine::Max).prologue(expr(|g| g.input(0).abs())), None;
    NORM_MIN = Reduction::new("norm", Combine::Min).prologue(expr(|g| g.input(0).abs())), None;
}

/// 1 where an element is not zero; NaN is not zero.
fn nonzero() -> Expr {
    expr(|g| g.input(0).binary(BinaryOp::Ne, g.constant(0.0)))
}

/// The sum over some axes. The sum of no elements is 0.
///
/// Blocked and deterministic: a hundred million equal values keep a relative error below 1e-6 in float32.
pub fn sum<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    SUM.run(x, axes.into(), keepdims)
}

/// The product over some axes. The product of no elements is 1.
pub fn prod<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    PROD.run(x, axes.into(), keepdims)
}

/// The largest element; NaN if there is one. Of no elements it is an error.
pub fn max<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    MAX.run(x, axes.into(), keepdims)
}

/// The smallest element; NaN if there is one. Of no elements it is an error.
pub fn min<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    MIN.run(x, axes.into(), keepdims)
}

/// The arithmetic mean; NaN for no elements.
pub fn mean<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    let n = count("mean", x, axes)?;
    MEAN.run_with(x, axes, keepdims, &[], &[(n as f64).into()])
}

/// 1 where any element is not zero, else 0. NaN counts as not zero.
pub fn any<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    ANY.run(x, axes.into(), keepdims)
}

/// 1 where no element is zero, else 0; 1 for no elements.
pub fn all<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    ALL.run(x, axes.into(), keepdims)
}

/// The p-norm `(sum |x|^p)^(1/p)`: `p = 2` is Euclid's, `inf` and `-inf` the largest and smallest magnitude, 0 counts the
/// elements that are not zero.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[3.0f32, -4.0], [2])?;
/// assert_eq!(netcl_ops::norm(&x, 2.0, (), false)?.item()?, 5.0);
/// assert_eq!(netcl_ops::norm(&x, f64::INFINITY, (), false)?.item()?, 4.0);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn norm<'a>(x: &Tensor, p: f64, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    if p.is_nan() {
        return Err(Error::argument("norm", "p is NaN; use a number such as 1, 2 or infinity"));
    }
    let plain = match p {
        0.0 => &NORM_0,
        1.0 => &NORM_1,
        2.0 => &NORM_2,
        f64::INFINITY => &NORM_MAX,
        f64::NEG_INFINITY => &NORM_MIN,
        _ => return NORM_P.run_with(x, axes, keepdims, &[p.into()], &[(1.0 / p).into()]),
    };
    plain.run(x, axes, keepdims)
}

/// The variance: the sum of squared distances from the mean, divided by `count - correction` (1 for an unbiased estimate
/// as in PyTorch, 0 for the population as in NumPy). NaN or infinite where that is not positive.
///
/// Two passes, so that a large mean costs no digits.
pub fn var<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, correction: f64, keepdims: bool) -> Result<Tensor> {
    static VAR: LazyLock<Reduction> = LazyLock::new(|| spread("var", |sum, count| sum / count));
    variance(&VAR, x, axes.into(), correction, keepdims)
}

/// The square root of [`var`].
pub fn std<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, correction: f64, keepdims: bool) -> Result<Tensor> {
    static STD: LazyLock<Reduction> = LazyLock::new(|| spread("std", |sum, count| (sum / count).sqrt()));
    variance(&STD, x, axes.into(), correction, keepdims)
}

/// The sum of squared distances of input 0 from input 1, finished with a formula of it and scalar 0.
fn spread(name: &'static str, finish: impl for<'g> Fn(Val<'g>, Val<'g>) -> Val<'g>) -> Reduction {
    Reduction::new(name, Combine::Sum)
        .prologue(expr(|g| (g.input(0) - g.input(1)).square()))
        .epilogue(expr(|g| finish(g.input(0), g.scalar(0))))
}

fn variance(op: &Reduction, x: &Tensor, axes: Axes<'_>, correction: f64, keepdims: bool) -> Result<Tensor> {
    x.check_float(op.name())?;
    let n = count(op.name(), x, axes)?;
    if x.size() == 0 {
        let (_, shape) = plan::resolve(op.name(), x.shape(), axes, keepdims)?;
        return Tensor::full(x.queue(), shape, x.dtype(), f64::NAN);
    }
    // The mean keeps the precision of the computation, also where elements have 16 bits.
    let number = [(n as f64).into()];
    let dtype = Some(x.dtype().accumulator());
    let first = Operands { inputs: &[x], epilogue_scalars: &number, dtype, ..Default::default() };
    let mean = MEAN.reduction.run(&first, axes, true)?.expand(x.shape())?;
    // Fewer elements than the correction give 0 / 0 or x / 0, as in NumPy and PyTorch.
    let divisor = [(n as f64 - correction).max(0.0).into()];
    let second =
        Operands { inputs: &[x, &mean], epilogue_scalars: &divisor, dtype: Some(x.dtype()), ..Default::default() };
    op.run(&second, axes, keepdims)
}

/// `log(sum(exp(x)))` without overflow: exact far beyond where `exp` ends. Of no elements it is minus infinity.
pub fn logsumexp<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    // An infinite maximum cannot be subtracted; without it the sum is infinite or zero, and its logarithm right.
    static PEAK: LazyLock<Reduction> = LazyLock::new(|| {
        Reduction::new("logsumexp", Combine::Max).epilogue(expr(|g| {
            let m = g.input(0);
            m.abs().binary(BinaryOp::Eq, g.constant(f64::INFINITY)).select(0.0, m)
        }))
    });
    static TOTAL: LazyLock<Reduction> = LazyLock::new(|| {
        Reduction::new("logsumexp", Combine::Sum)
            .prologue(expr(|g| (g.input(0) - g.input(1)).exp()))
            .epilogue(expr(|g| g.input(0).log() + g.input(1)))
    });
    let (op, axes) = ("logsumexp", axes.into());
    if x.size() == 0 {
        x.check_float(op)?;
        let (_, shape) = plan::resolve(op, x.shape(), axes, keepdims)?;
        return Tensor::full(x.queue(), shape, x.dtype(), f64::NEG_INFINITY);
    }
    let dtype = Some(x.dtype().accumulator());
    let peak = PEAK.run(&Operands { inputs: &[x], dtype, ..Default::default() }, axes, true)?;
    let shifted = [x, &peak.expand(x.shape())?];
    let operands = Operands { inputs: &shifted, extras: &[&peak], dtype: Some(x.dtype()), ..Default::default() };
    TOTAL.run(&operands, axes, keepdims)
}

/// The position of the largest element along an axis, or in row-major order of the whole tensor (`None`). The first of
/// equals wins, and a NaN is larger than anything, as in NumPy and PyTorch.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 7.0, 7.0, 9.0, 2.0, 3.0], [2, 3])?;
/// assert_eq!(netcl_ops::argmax(&x, Some(1), false)?.to_host()?, [1, 0]);
/// assert_eq!(netcl_ops::argmax(&x, None, false)?.to_host()?, [3]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn argmax(x: &Tensor, axis: Option<isize>, keepdims: bool) -> Result<IndexTensor> {
    static ARGMAX: LazyLock<Reduction> = LazyLock::new(|| Reduction::position("argmax", true));
    position(&ARGMAX, x, axis, keepdims)
}

/// The position of the smallest element; see [`argmax`]. A NaN is smaller than anything.
pub fn argmin(x: &Tensor, axis: Option<isize>, keepdims: bool) -> Result<IndexTensor> {
    static ARGMIN: LazyLock<Reduction> = LazyLock::new(|| Reduction::position("argmin", false));
    position(&ARGMIN, x, axis, keepdims)
}

fn position(op: &Reduction, x: &Tensor, axis: Option<isize>, keepdims: bool) -> Result<IndexTensor> {
    let operands = Operands { inputs: &[x], dtype: Some(DType::I64), ..Default::default() };
    IndexTensor::from_tensor(op.run(&operands, axis.into(), keepdims)?)
}
