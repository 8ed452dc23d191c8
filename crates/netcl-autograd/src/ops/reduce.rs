//! Reductions.

use netcl_core::shape::Shape;
use netcl_ops as ops;
use netcl_ops::Axes;
use smallvec::smallvec;

use super::elementwise::{abs, add, div, eq, exp, mul, pow, sign, sqrt, sub};
use super::layout::{expand, reshape};
use crate::error::Result;
use crate::graph::{Rule, Save, record};
use crate::tensor::Tensor;

/// The shape with reduced axes kept as ones, and the number of elements behind each result.
fn kept(x: &Tensor, axes: Axes<'_>) -> Result<(Shape, usize)> {
    let reduced: Vec<usize> = match axes {
        Axes::All => (0..x.ndim()).collect(),
        Axes::One(axis) => vec![x.shape().axis("reduce", axis)?],
        Axes::Several(axes) => {
            axes.iter().map(|&axis| x.shape().axis("reduce", axis)).collect::<netcl_core::Result<_>>()?
        }
    };
    let shape = (0..x.ndim()).map(|a| if reduced.contains(&a) { 1 } else { x.shape()[a] }).collect();
    Ok((shape, reduced.iter().map(|&a| x.shape()[a]).product()))
}

/// A gradient of a reduction's shape, spread over the shape it was reduced from.
fn spread(upstream: &Tensor, kept: &Shape, full: &Shape) -> Result<Tensor> {
    expand(&reshape(upstream, kept.clone())?, full.clone())
}

/// The sum over some axes, or over all of them.
#[track_caller]
pub fn sum<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    let (kept, _) = kept(x, axes)?;
    let full = x.shape().clone();
    record("sum", &[x], ops::sum(x.raw(), axes, keepdims)?, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(spread(upstream, &kept, &full)?)]))
    })
}

/// The mean over some axes, or over all of them.
#[track_caller]
pub fn mean<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    let (kept, n) = kept(x, axes)?;
    let full = x.shape().clone();
    record("mean", &[x], ops::mean(x.raw(), axes, keepdims)?, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(spread(&mul(upstream, 1.0 / n as f64)?, &kept, &full)?)]))
    })
}

/// The largest value over some axes; the gradient is shared by all elements that are equal to it.
#[track_caller]
pub fn max<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    extreme("max", x, axes, ops::max(x.raw(), axes, keepdims)?)
}

/// The smallest value over some axes; the gradient is shared by all elements that are equal to it.
#[track_caller]
pub fn min<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    extreme("min", x, axes, ops::min(x.raw(), axes, keepdims)?)
}

#[track_caller]
fn extreme(op: &'static str, x: &Tensor, axes: Axes<'_>, out: netcl_core::tensor::Tensor) -> Result<Tensor> {
    let (kept, _) = kept(x, axes)?;
    let full = x.shape().clone();
    let reduced: Vec<isize> =
        (0..full.ndim()).filter(|&a| kept[a] != full[a]).map(|a| a as isize).collect();
    let rule = move || -> Rule {
        Box::new(move |context, upstream| {
            let x = context.input(0)?;
            // Which elements win is a fact, not a function: no gradient flows through it.
            let winners = eq(&x.detach(), &spread(&context.output()?.detach(), &kept, &full)?)?;
            let shared = div(&winners, &sum(&winners, Axes::Several(&reduced), true)?)?;
            Ok(smallvec![Some(mul(&spread(upstream, &kept, &full)?, &shared)?)])
        })
    };
    record(op, &[x], out, Save { inputs: 1, output: true }, rule)
}

/// The product over some axes. Its gradient divides the product by each element, so elements must not be zero.
#[track_caller]
pub fn prod<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    let (kept, _) = kept(x, axes)?;
    let full = x.shape().clone();
    record("prod", &[x], ops::prod(x.raw(), axes, keepdims)?, Save { inputs: 1, output: true }, || {
        Box::new(move |context, upstream| {
            let product = mul(upstream, &context.output()?)?;
            Ok(smallvec![Some(div(&spread(&product, &kept, &full)?, &context.input(0)?)?)])
        })
    })
}

/// The variance over some axes; `correction` is subtracted from the count.
#[track_caller]
pub fn var<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, correction: f64, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    let (kept, n) = kept(x, axes)?;
    let full = x.shape().clone();
    let own: Option<Vec<isize>> = match axes {
        Axes::All => None,
        Axes::One(axis) => Some(vec![axis]),
        Axes::Several(axes) => Some(axes.to_vec()),
    };
    record("var", &[x], ops::var(x.raw(), axes, correction, keepdims)?, Save::INPUTS, || {
        Box::new(move |context, upstream| {
            let x = context.input(0)?;
            let centre = mean(&x, own.as_deref().map_or(Axes::All, Axes::Several), true)?;
            let slope = mul(&sub(&x, &centre)?, 2.0 / (n as f64 - correction))?;
            Ok(smallvec![Some(mul(&spread(upstream, &kept, &full)?, &slope)?)])
        })
    })
}

/// The standard deviation over some axes; `correction` is subtracted from the count.
#[track_caller]
pub fn std<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, correction: f64, keepdims: bool) -> Result<Tensor> {
    sqrt(&var(x, axes, correction, keepdims)?)
}

/// The p-norm over some axes, for finite p of at least 1.
#[track_caller]
pub fn norm<'a>(x: &Tensor, p: f64, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    let (kept, _) = kept(x, axes)?;
    let full = x.shape().clone();
    record("norm", &[x], ops::norm(x.raw(), p, axes, keepdims)?, Save { inputs: 1, output: true }, || {
        Box::new(move |context, upstream| {
            let x = context.input(0)?;
            // d norm / dx = sign(x) * (|x| / norm)^(p - 1)
            let share = div(&abs(&x)?, &spread(&context.output()?, &kept, &full)?)?;
            let slope = mul(&sign(&x)?, &pow(&share, p - 1.0)?)?;
            Ok(smallvec![Some(mul(&spread(upstream, &kept, &full)?, &slope)?)])
        })
    })
}

/// `log(sum(exp(x)))` over some axes, stable.
#[track_caller]
pub fn logsumexp<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    let (kept, _) = kept(x, axes)?;
    let full = x.shape().clone();
    record("logsumexp", &[x], ops::logsumexp(x.raw(), axes, keepdims)?, Save { inputs: 1, output: true }, || {
        Box::new(move |context, upstream| {
            let share = exp(&sub(&context.input(0)?, &spread(&context.output()?, &kept, &full)?)?)?;
            Ok(smallvec![Some(mul(&spread(upstream, &kept, &full)?, &share)?)])
        })
    })
}

/// The running sum along an axis.
#[track_caller]
pub fn cumsum(x: &Tensor, axis: isize) -> Result<Tensor> {
    record("cumsum", &[x], ops::cumsum(x.raw(), axis)?, Save::NOTHING, || {
        Box::new(move |_, upstream| {
            // The sum of everything from here on: total - running + own.
            let total = sum(upstream, Axes::One(axis), true)?;
            Ok(smallvec![Some(add(&sub(&total, &cumsum(upstream, axis)?)?, upstream)?)])
        })
    })
}
