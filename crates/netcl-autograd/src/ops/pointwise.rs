//! Functions of the elements that are composed of others: blends, bounds that are tensors, and closeness.

use netcl_core::dtype::DType;

use super::elementwise::{Operand, add, apply, clamp, div, log, maximum, minimum, mul, sub};
use crate::error::Result;
use crate::tensor::Tensor;

/// `start + weight * (end - start)`.
#[track_caller]
pub fn lerp<'t>(start: &Tensor, end: &Tensor, weight: impl Into<Operand<'t>>) -> Result<Tensor> {
    let (weight, span): (Operand<'_>, Tensor) = (weight.into(), sub(end, start)?);
    add(start, &mul(weight, &span)?)
}

/// `x + value * a * b`.
#[track_caller]
pub fn addcmul(x: &Tensor, a: &Tensor, b: &Tensor, value: f64) -> Result<Tensor> {
    add(x, &mul(&mul(a, b)?, value)?)
}

/// `x + value * a / b`.
#[track_caller]
pub fn addcdiv(x: &Tensor, a: &Tensor, b: &Tensor, value: f64) -> Result<Tensor> {
    add(x, &mul(&div(a, b)?, value)?)
}

/// `log(x / (1 - x))`, of an `x` that is first held between `eps` and `1 - eps` where one is given.
#[track_caller]
pub fn logit(x: &Tensor, eps: Option<f64>) -> Result<Tensor> {
    let x = &eps.map_or_else(|| Ok(x.clone()), |eps| clamp(x, eps, 1.0 - eps))?;
    log(&div(x, &sub(1.0, x)?)?)
}

/// [`clamp`] between tensors or numbers, broadcast together.
///
/// # Errors
/// If both bounds are `None`.
#[track_caller]
pub fn clamp_between(x: &Tensor, low: Option<Operand<'_>>, high: Option<Operand<'_>>) -> Result<Tensor> {
    let number = |bound: Option<Operand<'_>>| match bound {
        None => Some(None),
        Some(Operand::Number(number)) => Some(Some(number)),
        Some(Operand::Whole(number)) => Some(Some(number as f64)),
        Some(Operand::Tensor(_)) => None,
    };
    if let (Some(low), Some(high)) = (number(low), number(high)) {
        return clamp(x, low, high);
    }
    let above = low.map_or_else(|| Ok(x.clone()), |low| maximum(x, low))?;
    high.map_or_else(|| Ok(above.clone()), |high| minimum(&above, high))
}

/// How far apart numbers may be to count as close: `|x - y| <= absolute + relative * |y|`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Closeness {
    /// The part that grows with the second number.
    pub relative: f64,
    /// The part that does not.
    pub absolute: f64,
    /// Whether NaN is close to NaN.
    pub equal_nan: bool,
}

impl Default for Closeness {
    fn default() -> Self {
        Closeness { relative: 1e-5, absolute: 1e-8, equal_nan: false }
    }
}

/// 1 where two tensors are close, else 0.
#[track_caller]
pub fn isclose<'t>(x: impl Into<Operand<'t>>, y: impl Into<Operand<'t>>, within: Closeness) -> Result<Tensor> {
    let params = [within.relative, within.absolute, f64::from(u8::from(within.equal_nan))];
    apply("isclose", &[x.into(), y.into()], &params)
}

/// Whether two tensors, broadcast together, are close everywhere. Reads the host.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::pointwise::{Closeness, allclose}};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0], [2])?;
/// assert!(allclose(&x, &(&x * 1.000001)?, Closeness::default())?);
/// assert!(!allclose(&x, &(&x * 1.1)?, Closeness::default())?);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
pub fn allclose<'t>(x: impl Into<Operand<'t>>, y: impl Into<Operand<'t>>, within: Closeness) -> Result<bool> {
    let close = isclose(x, y, within)?;
    Ok(close.raw().to_f64_vec()?.iter().all(|&close| close != 0.0))
}

/// Whether two tensors have the same shape and the same elements. Reads the host.
pub fn equal(x: &Tensor, y: &Tensor) -> Result<bool> {
    if x.shape() != y.shape() {
        return Ok(false);
    }
    x.queue().check_same_device("equal", y.queue())?;
    Ok(x.raw().to_f64_vec()? == y.raw().to_f64_vec()?)
}

/// The largest finite number of a dtype.
pub fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => 3.389_531_389_251_535_5e38,
        DType::F64 => f64::MAX,
        _ => f64::from(f32::MAX),
    }
}
