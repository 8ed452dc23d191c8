//! Matrix products.

use netcl_ops as ops;
use netcl_ops::matmul::MatmulOptions;
use smallvec::{SmallVec, smallvec};

use super::elementwise::add;
use super::layout::{expand, permute, reshape, sum_to, transpose};
use crate::autocast;
use crate::error::{Error, Result};
use crate::graph::{Gradients, Save, grad_enabled, record};
use crate::tensor::Tensor;

/// The matrix product by NumPy's rules: the last two axes are multiplied, axes before them broadcast.
#[track_caller]
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("matmul", [a, b]) {
        return matmul(&casts.of(a)?, &casts.of(b)?);
    }
    // A vector is a matrix of one row (left) or one column (right), whose axis disappears again.
    match (a.ndim(), b.ndim()) {
        (1, 1) => {
            let product = matmul(&reshape(a, [1, a.size()])?, &reshape(b, [b.size(), 1])?)?;
            reshape(&product, ())
        }
        (1, _) => {
            let product = matmul(&reshape(a, [1, a.size()])?, b)?;
            let mut shape = product.shape().to_vec();
            shape.remove(shape.len() - 2);
            reshape(&product, shape)
        }
        (_, 1) => {
            let product = matmul(a, &reshape(b, [b.size(), 1])?)?;
            let shape = product.shape()[..product.ndim() - 1].to_vec();
            reshape(&product, shape)
        }
        _ => matrices(a, b),
    }
}

#[track_caller]
fn matrices(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (shape_a, shape_b) = (a.shape().clone(), b.shape().clone());
    let out = ops::matmul_with(a.raw(), b.raw(), &MatmulOptions::default())?;
    record("matmul", &[a, b], out, Save::INPUTS, || {
        Box::new(move |context, upstream| {
            let left = || sum_to(&matmul(upstream, &transpose(&context.input(1)?, -1, -2)?)?, &shape_a);
            let right = || sum_to(&matmul(&transpose(&context.input(0)?, -1, -2)?, upstream)?, &shape_b);
            Ok(smallvec![context.if_wanted(0, left)?, context.if_wanted(1, right)?])
        })
    })
}

/// `x` times the transposed `weight` (of shape `[out_features, in_features]`) plus `bias`, in one launch.
#[track_caller]
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("linear", [x, weight].into_iter().chain(bias)) {
        return linear(&casts.of(x)?, &casts.of(weight)?, casts.given(bias)?.as_ref());
    }
    let out = ops::linear(x.raw(), weight.raw(), bias.map(Tensor::raw))?;
    let (rows, features) =
        (x.size() / x.shape().last().copied().unwrap_or(1).max(1), x.shape().last().copied().unwrap_or(0));
    let (shape, outputs) = (x.shape().clone(), weight.shape()[0]);
    let biased = bias.is_some();
    let inputs: SmallVec<[&Tensor; 3]> = [x, weight].into_iter().chain(bias).collect();
    // The bias itself is not needed again.
    record("linear", &inputs, out, Save { inputs: 0b011, output: false }, || {
        Box::new(move |context, upstream| {
            let flat = reshape(upstream, [rows, outputs])?;
            let flat_x = || reshape(&context.input(0)?, [rows, features]);
            let of_x = context.if_wanted(0, || reshape(&matmul(&flat, &context.input(1)?)?, shape.clone()))?;
            if biased && context.wants(1) && context.wants(2) && !grad_enabled() {
                let x = flat_x()?;
                if ops::linear_gradients_pay(flat.raw(), x.raw()) {
                    let (weight, bias) = ops::linear_gradients(flat.raw(), x.raw())?;
                    return Ok(smallvec![of_x, Some(weight.into()), Some(bias.into())]);
                }
            }
            let of_weight = context.if_wanted(1, || matmul(&transpose(&flat, 0, 1)?, &flat_x()?))?;
            let mut gradients: Gradients = smallvec![of_x, of_weight];
            if biased {
                gradients.push(context.if_wanted(2, || sum_to(&flat, &[outputs].into()))?);
            }
            Ok(gradients)
        })
    })
}

/// Adds a vector along the channel axis: the last axis of matrices and sequences, axis 1 of images (4 or 5 axes).
#[track_caller]
pub fn bias_add(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("bias_add", [x, bias]) {
        return bias_add(x, &casts.of(bias)?);
    }
    let axis = if matches!(x.ndim(), 4 | 5) { 1 } else { x.ndim().saturating_sub(1) };
    let mut shape = vec![1; x.ndim()];
    if let Some(channels) = shape.get_mut(axis) {
        *channels = bias.size();
    }
    add(x, &expand(&reshape(bias, shape)?, x.shape())?)
}

/// `x1^T W x2 + bias` for vectors along the last axes: `[..., A]` and `[..., B]` with a weight `[F, A, B]` give `[..., F]`.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::matmul::bilinear};
///
/// let queue = manager().cpu().queue;
/// let x1 = Tensor::from_host(&queue, &[1.0f32, 2.0], [1, 2])?;
/// let x2 = Tensor::from_host(&queue, &[3.0f32], [1, 1])?;
/// let weight = Tensor::from_host(&queue, &[1.0f32, 10.0], [1, 2, 1])?;
/// assert_eq!(bilinear(&x1, &x2, &weight, None)?.to_host::<f32>()?, [63.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn bilinear(x1: &Tensor, x2: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let op = "bilinear";
    if let Some(casts) = autocast::enter(op, [x1, x2, weight].into_iter().chain(bias)) {
        return bilinear(&casts.of(x1)?, &casts.of(x2)?, &casts.of(weight)?, casts.given(bias)?.as_ref());
    }
    let [features, first, second] = weight.shape()[..] else {
        return Err(Error::shape(
            op,
            weight.shape(),
            "the weight has three axes: features of the result, of x1 and of x2",
        ));
    };
    for (name, x, wanted) in [("x1", x1, first), ("x2", x2, second)] {
        if x.shape().last() != Some(&wanted) {
            let why = format!("{name} must end with the {wanted} features of a weight of shape {}", weight.shape());
            return Err(Error::shape(op, x.shape(), why));
        }
    }
    let outer = &x1.shape()[..x1.ndim() - 1];
    if outer != &x2.shape()[..x2.ndim() - 1] {
        let why = format!("x1 has shape {}; all axes but the last must be equal", x1.shape());
        return Err(Error::shape(op, x2.shape(), why));
    }
    if let Some(bias) = bias.filter(|bias| bias.shape()[..] != [features]) {
        return Err(Error::shape(
            op,
            bias.shape(),
            format!("the bias has one element for each of {features} features"),
        ));
    }
    let rows: usize = outer.iter().product();
    // One product with all features side by side, then a product of each row with its own matrix.
    let side_by_side = reshape(&permute(weight, &[1, 0, 2])?, [first, features * second])?;
    let matrices = reshape(&matmul(&reshape(x1, [rows, first])?, &side_by_side)?, [rows, features, second])?;
    let out = matmul(&matrices, &reshape(x2, [rows, second, 1])?)?;
    let out = reshape(&out, [outer, &[features]].concat())?;
    match bias {
        Some(bias) => add(&out, bias),
        None => Ok(out),
    }
}
