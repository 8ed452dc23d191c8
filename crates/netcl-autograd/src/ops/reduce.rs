//! Reductions.

use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::shape::Shape;
use netcl_ops as ops;
use netcl_ops::Axes;
use netcl_ops::integer::IntegerOp;
use smallvec::smallvec;

use super::elementwise::{abs, cast, div, exp, indicator, mul, pow, sign, sub, where_};
use super::layout::{expand, flip, permute, reshape};
use super::whole;
use crate::autocast;
use crate::error::Result;
use crate::graph::{Rule, Save, grad_enabled, record, record_without_gradient};
use crate::tensor::Tensor;
use crate::trace::{self, Attr};

/// The settings of a reduction that a trace notes; no axes are all of them.
pub(super) fn reduction(axes: Axes<'_>, keepdims: bool) -> [(&'static str, Attr); 3] {
    let listed = match axes {
        Axes::All => Vec::new(),
        Axes::One(axis) => vec![axis],
        Axes::Several(axes) => axes.to_vec(),
    };
    let all = matches!(axes, Axes::All);
    [("all", all.into()), ("axes", listed[..].into()), ("keepdims", keepdims.into())]
}

/// The reduced axes, counted from the front.
fn reduced(op: &'static str, x: &Tensor, axes: Axes<'_>) -> Result<Vec<usize>> {
    Ok(match axes {
        Axes::All => (0..x.ndim()).collect(),
        Axes::One(axis) => vec![x.shape().axis(op, axis)?],
        Axes::Several(axes) => axes.iter().map(|&axis| x.shape().axis(op, axis)).collect::<netcl_core::Result<_>>()?,
    })
}

/// The shape with reduced axes kept as ones, and the number of elements behind each result.
fn kept(op: &'static str, x: &Tensor, axes: Axes<'_>) -> Result<(Shape, usize)> {
    let reduced = reduced(op, x, axes)?;
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
    if !x.dtype().is_float() {
        return whole::reduce("sum", x, axes, keepdims);
    }
    if let Some(casts) = autocast::enter("sum", [x]) {
        return sum(&casts.of(x)?, axes, keepdims);
    }
    let (kept, _) = kept("sum", x, axes)?;
    let full = x.shape().clone();
    trace::settings("sum", || reduction(axes, keepdims));
    record("sum", &[x], ops::sum(x.raw(), axes, keepdims)?, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(spread(upstream, &kept, &full)?)]))
    })
}

/// The mean over some axes, or over all of them.
#[track_caller]
pub fn mean<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    if !x.dtype().is_float() {
        return mean(&cast(x, DType::F32)?, axes, keepdims);
    }
    if let Some(casts) = autocast::enter("mean", [x]) {
        return mean(&casts.of(x)?, axes, keepdims);
    }
    let (kept, n) = kept("mean", x, axes)?;
    let full = x.shape().clone();
    trace::settings("mean", || reduction(axes, keepdims));
    record("mean", &[x], ops::mean(x.raw(), axes, keepdims)?, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(spread(&mul(upstream, 1.0 / n as f64)?, &kept, &full)?)]))
    })
}

/// The largest value over some axes; the gradient is shared by all elements that are equal to it.
#[track_caller]
pub fn max<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    if !x.dtype().is_float() {
        return whole::reduce("max", x, axes, keepdims);
    }
    trace::settings("max", || reduction(axes, keepdims));
    extreme("max", x, axes, ops::max(x.raw(), axes, keepdims)?)
}

/// The smallest value over some axes; the gradient is shared by all elements that are equal to it.
#[track_caller]
pub fn min<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    if !x.dtype().is_float() {
        return whole::reduce("min", x, axes, keepdims);
    }
    trace::settings("min", || reduction(axes, keepdims));
    extreme("min", x, axes, ops::min(x.raw(), axes, keepdims)?)
}

#[track_caller]
fn extreme(op: &'static str, x: &Tensor, axes: Axes<'_>, out: netcl_core::tensor::Tensor) -> Result<Tensor> {
    let (kept, _) = kept(op, x, axes)?;
    let full = x.shape().clone();
    let reduced: Vec<isize> = (0..full.ndim()).filter(|&a| kept[a] != full[a]).map(|a| a as isize).collect();
    let rule = move || -> Rule {
        Box::new(move |context, upstream| {
            let x = context.input(0)?;
            // Which elements win is a fact, not a function: no gradient flows through it.
            let winners = indicator("eq", &x.detach(), &spread(&context.output()?.detach(), &kept, &full)?)?;
            let shared = div(&winners, &sum(&winners, Axes::Several(&reduced), true)?)?;
            Ok(smallvec![Some(mul(&spread(upstream, &kept, &full)?, &shared)?)])
        })
    };
    record(op, &[x], out, Save { inputs: 1, output: true }, rule)
}

/// The product over some axes. Zeros are fine: the gradient of an element is the product of the others.
#[track_caller]
pub fn prod<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    if !x.dtype().is_float() {
        return whole::reduce("prod", x, axes, keepdims);
    }
    if let Some(casts) = autocast::enter("prod", [x]) {
        return prod(&casts.of(x)?, axes, keepdims);
    }
    let (kept, _) = kept("prod", x, axes)?;
    let reduced = reduced("prod", x, axes)?;
    let full = x.shape().clone();
    trace::settings("prod", || reduction(axes, keepdims));
    record("prod", &[x], ops::prod(x.raw(), axes, keepdims)?, Save::INPUTS, || {
        Box::new(move |context, upstream| {
            let x = context.input(0)?;
            // Dividing by the element is cheap, but what it says about zeros is not a formula to differentiate again.
            let others =
                if grad_enabled() { products_of_others(&x, &reduced)? } else { divided_products(&x, &reduced)? };
            Ok(smallvec![Some(mul(&spread(upstream, &kept, &full)?, &others)?)])
        })
    })
}

/// For each element the product of the others on its line, by division; an element that is zero gets the product of the rest.
fn divided_products(x: &Tensor, reduced: &[usize]) -> Result<Tensor> {
    let axes: Vec<isize> = reduced.iter().map(|&axis| axis as isize).collect();
    let zero = indicator("eq", x, 0.0)?;
    let zeros = sum(&zero, axes.as_slice(), true)?;
    let safe = where_(&zero, 1.0, x)?;
    let product: Tensor = ops::prod(safe.raw(), axes.as_slice(), true)?.into();
    let alone = mul(&indicator("eq", &zeros, 0.0)?, &div(&product, &safe)?)?;
    let at_zero = mul(&indicator("eq", &zeros, 1.0)?, &product)?;
    where_(&zero, &expand(&at_zero, x.shape())?, &alone)
}

/// The same without division, in memory quadratic in the length of a line: differentiable as often as one likes.
fn products_of_others(x: &Tensor, reduced: &[usize]) -> Result<Tensor> {
    let others: Vec<usize> = (0..x.ndim()).filter(|axis| !reduced.contains(axis)).collect();
    let order: Vec<isize> = others.iter().chain(reduced).map(|&axis| axis as isize).collect();
    let moved = permute(x, &order)?;
    let n: usize = reduced.iter().map(|&axis| x.shape()[axis]).product();
    let lines = x.size().checked_div(n).unwrap_or(0);
    let square = expand(&reshape(&moved, [lines, 1, n])?, [lines, n, n])?;
    let diagonal = Tensor::full(x.queue(), [n, n], x.dtype(), 1.0)?;
    let diagonal: Tensor = ops::tril(&ops::triu(diagonal.raw(), 0)?, 0)?.into();
    let products = prod(&where_(&expand(&diagonal, square.shape())?, 1.0, &square)?, -1, false)?;
    let mut back = vec![0isize; order.len()];
    for (from, &to) in order.iter().enumerate() {
        back[to as usize] = from as isize;
    }
    permute(&reshape(&products, moved.shape().clone())?, &back)
}

/// The variance over some axes; `correction` is subtracted from the count.
#[track_caller]
pub fn var<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, correction: f64, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    if let Some(casts) = autocast::enter("var", [x]) {
        return var(&casts.of(x)?, axes, correction, keepdims);
    }
    let (kept, n) = kept("var", x, axes)?;
    let (full, own) = (x.shape().clone(), Own::of(axes));
    trace::settings("var", || {
        let [all, axes, keepdims] = reduction(axes, keepdims);
        [all, axes, keepdims, ("correction", correction.into())]
    });
    record("var", &[x], ops::var(x.raw(), axes, correction, keepdims)?, Save::INPUTS, || {
        Box::new(move |context, upstream| {
            let x = context.input(0)?;
            let slope = mul(&sub(&x, &mean(&x, own.axes(), true)?)?, 2.0 / (n as f64 - correction))?;
            Ok(smallvec![Some(mul(&spread(upstream, &kept, &full)?, &slope)?)])
        })
    })
}

/// The standard deviation over some axes; `correction` is subtracted from the count. Where it is zero, so is its gradient.
#[track_caller]
pub fn std<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, correction: f64, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    if let Some(casts) = autocast::enter("std", [x]) {
        return std(&casts.of(x)?, axes, correction, keepdims);
    }
    let (kept, n) = kept("std", x, axes)?;
    let (full, own) = (x.shape().clone(), Own::of(axes));
    trace::settings("std", || {
        let [all, axes, keepdims] = reduction(axes, keepdims);
        [all, axes, keepdims, ("correction", correction.into())]
    });
    record("std", &[x], ops::std(x.raw(), axes, correction, keepdims)?, Save::EVERYTHING, || {
        Box::new(move |context, upstream| {
            let (x, y) = (context.input(0)?, context.output()?);
            let centred = mul(&sub(&x, &mean(&x, own.axes(), true)?)?, 1.0 / (n as f64 - correction))?;
            let share = spread(&over_or_zero(upstream, &y)?, &kept, &full)?;
            Ok(smallvec![Some(mul(&share, &centred)?)])
        })
    })
}

/// `x / y`, and 0 where `y` is 0: no infinity is made on the way, which a mask could not undo.
fn over_or_zero(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let there = indicator("ne", y, 0.0)?;
    mul(&div(x, &where_(&there, y, 1.0)?)?, &there)
}

/// Axes that a rule can keep.
struct Own(Option<Vec<isize>>);

impl Own {
    fn of(axes: Axes<'_>) -> Own {
        Own(match axes {
            Axes::All => None,
            Axes::One(axis) => Some(vec![axis]),
            Axes::Several(axes) => Some(axes.to_vec()),
        })
    }

    fn axes(&self) -> Axes<'_> {
        self.0.as_deref().map_or(Axes::All, Axes::Several)
    }
}

/// The p-norm `(sum |x|^p)^(1/p)` over some axes; `inf` and `-inf` are the largest and smallest magnitude. Where it is zero, so is
/// its gradient; counting with `p = 0` has none.
#[track_caller]
pub fn norm<'a>(x: &Tensor, p: f64, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    if let Some(casts) = autocast::enter("norm", [x]) {
        return norm(&casts.of(x)?, p, axes, keepdims);
    }
    let out = ops::norm(x.raw(), p, axes, keepdims)?;
    match p {
        0.0 => return record_without_gradient("norm with p = 0", &[x], out),
        f64::INFINITY => return max(&abs(x)?, axes, keepdims),
        f64::NEG_INFINITY => return min(&abs(x)?, axes, keepdims),
        _ => {}
    }
    let (kept, _) = kept("norm", x, axes)?;
    let full = x.shape().clone();
    trace::settings("norm", || {
        let [all, axes, keepdims] = reduction(axes, keepdims);
        [all, axes, keepdims, ("p", p.into())]
    });
    record("norm", &[x], out, Save::EVERYTHING, || {
        Box::new(move |context, upstream| {
            // d norm / dx = sign(x) * (|x| / norm)^(p - 1)
            let x = context.input(0)?;
            if p == 2.0 {
                let share = over_or_zero(upstream, &context.output()?)?;
                return Ok(smallvec![Some(mul(&spread(&share, &kept, &full)?, &x)?)]);
            }
            let slope = match p {
                1.0 => sign(&x)?,
                _ => {
                    let share = over_or_zero(&abs(&x)?, &spread(&context.output()?, &kept, &full)?)?;
                    mul(&sign(&x)?, &pow(&share, p - 1.0)?)?
                }
            };
            Ok(smallvec![Some(mul(&spread(upstream, &kept, &full)?, &slope)?)])
        })
    })
}

/// `log(sum(exp(x)))` over some axes, stable.
#[track_caller]
pub fn logsumexp<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    if let Some(casts) = autocast::enter("logsumexp", [x]) {
        return logsumexp(&casts.of(x)?, axes, keepdims);
    }
    let (kept, _) = kept("logsumexp", x, axes)?;
    let full = x.shape().clone();
    trace::settings("logsumexp", || reduction(axes, keepdims));
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
    if !x.dtype().is_float() {
        return whole::scan(IntegerOp::Add, x, axis);
    }
    if let Some(casts) = autocast::enter("cumsum", [x]) {
        return cumsum(&casts.of(x)?, axis);
    }
    trace::settings("cumsum", || [("axis", axis.into())]);
    record("cumsum", &[x], ops::cumsum(x.raw(), axis)?, Save::NOTHING, || {
        Box::new(move |_, upstream| {
            let reversed = flip(upstream, &[axis])?;
            Ok(smallvec![Some(flip(&cumsum(&reversed, axis)?, &[axis])?)])
        })
    })
}

/// Whether any element is not zero: truth values. Has no gradient.
#[track_caller]
pub fn any<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return whole::reduce("any", x, axes.into(), keepdims);
    }
    let axes = axes.into();
    trace::settings("any", || reduction(axes, keepdims));
    record_without_gradient("any", &[x], ops::any(x.raw(), axes, keepdims)?.cast(DType::U8)?)
}

/// Whether all elements are not zero: truth values. Has no gradient.
#[track_caller]
pub fn all<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return whole::reduce("all", x, axes.into(), keepdims);
    }
    let axes = axes.into();
    trace::settings("all", || reduction(axes, keepdims));
    record_without_gradient("all", &[x], ops::all(x.raw(), axes, keepdims)?.cast(DType::U8)?)
}

/// Where the largest element of an axis (of the flattened tensor where none is given) is; the first of equals.
pub fn argmax(x: &Tensor, axis: Option<isize>, keepdims: bool) -> Result<IndexTensor> {
    let out = ops::argmax(x.raw(), axis, keepdims)?;
    trace::settings("argmax", || {
        let axes = axis.as_ref().map_or(Axes::All, |axis| Axes::One(*axis));
        reduction(axes, keepdims)
    });
    trace::note("argmax", [x.raw()], &[out.tensor()]);
    Ok(out)
}

/// Where the smallest element of an axis (of the flattened tensor where none is given) is; the first of equals.
pub fn argmin(x: &Tensor, axis: Option<isize>, keepdims: bool) -> Result<IndexTensor> {
    let out = ops::argmin(x.raw(), axis, keepdims)?;
    trace::settings("argmin", || {
        let axes = axis.as_ref().map_or(Axes::All, |axis| Axes::One(*axis));
        reduction(axes, keepdims)
    });
    trace::note("argmin", [x.raw()], &[out.tensor()]);
    Ok(out)
}
