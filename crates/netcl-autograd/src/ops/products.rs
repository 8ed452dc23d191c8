//! Products of vectors and matrices under the names of their shapes, all of them composed of [`matmul`].

use super::elementwise::{add, mul, sub};
use super::layout::{permute, reshape, unsqueeze};
use super::matmul::matmul;
use super::rearrange::roll;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

fn check_axes(op: &'static str, operands: &[(&Tensor, usize)]) -> Result<()> {
    match operands.iter().find(|(x, axes)| x.ndim() != *axes) {
        Some((x, axes)) => Err(Error::shape(op, x.shape(), format!("this operand has {axes} axes; see matmul"))),
        None => Ok(()),
    }
}

/// The product of two matrices.
#[track_caller]
pub fn mm(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check_axes("mm", &[(a, 2), (b, 2)])?;
    matmul(a, b)
}

/// The products of the matrices of two batches, without broadcasting.
#[track_caller]
pub fn bmm(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check_axes("bmm", &[(a, 3), (b, 3)])?;
    if a.shape()[0] != b.shape()[0] {
        return Err(Error::shape("bmm", b.shape(), format!("the first batch has shape {}", a.shape())));
    }
    matmul(a, b)
}

/// The product of a matrix and a vector.
#[track_caller]
pub fn mv(a: &Tensor, x: &Tensor) -> Result<Tensor> {
    check_axes("mv", &[(a, 2), (x, 1)])?;
    matmul(a, x)
}

/// The sum of the products of two vectors' elements.
#[track_caller]
pub fn dot(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    check_axes("dot", &[(x, 1), (y, 1)])?;
    matmul(x, y)
}

/// All products of an element of one vector with one of the other.
#[track_caller]
pub fn outer(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    check_axes("outer", &[(x, 1), (y, 1)])?;
    mul(&unsqueeze(x, 1)?, y)
}

/// The dot products of all vectors along the last axes of two tensors.
#[track_caller]
pub fn inner(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    if x.ndim() == 0 || y.ndim() == 0 {
        return mul(x, y);
    }
    tensordot(x, y, &[-1], &[-1])
}

/// `beta * x + alpha * (a @ b)` of matrices.
#[track_caller]
pub fn addmm(x: &Tensor, a: &Tensor, b: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
    weighted_sum(x, &mm(a, b)?, beta, alpha)
}

/// `beta * x + alpha * (a @ b)` of batches of matrices.
#[track_caller]
pub fn baddbmm(x: &Tensor, a: &Tensor, b: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
    weighted_sum(x, &bmm(a, b)?, beta, alpha)
}

/// A factor of 0 takes its tensor out of the sum, with NaN and infinities in it.
fn weighted_sum(x: &Tensor, product: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
    let scaled = |x: &Tensor, factor: f64| if factor == 1.0 { Ok(x.clone()) } else { mul(x, factor) };
    let product = scaled(product, alpha)?;
    if beta == 0.0 { Ok(product) } else { add(&scaled(x, beta)?, &product) }
}

/// The sum over pairs of axes, one of each tensor: what remains are the other axes of the first, then those of the second.
///
/// ```
/// use netcl_autograd::{DType, Tensor, manager, ops::products::tensordot};
///
/// let queue = manager().cpu().queue;
/// let a = Tensor::full(&queue, [2, 3, 4], DType::F32, 1.0)?;
/// let b = Tensor::full(&queue, [4, 3, 5], DType::F32, 0.5)?;
/// let c = tensordot(&a, &b, &[1, 2], &[1, 0])?;
/// assert_eq!((c.shape().to_vec(), c.to_host::<f32>()?[0]), (vec![2, 5], 6.0));
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn tensordot(a: &Tensor, b: &Tensor, axes_a: &[isize], axes_b: &[isize]) -> Result<Tensor> {
    let op = "tensordot";
    if axes_a.len() != axes_b.len() {
        let what = format!("{} axes of the first tensor cannot meet {} of the second", axes_a.len(), axes_b.len());
        return Err(Error::argument(op, what));
    }
    let summed = |x: &Tensor, axes: &[isize]| -> Result<(Vec<isize>, Vec<isize>)> {
        let summed: Vec<usize> = axes.iter().map(|&a| x.shape().axis(op, a)).collect::<netcl_core::Result<_>>()?;
        let free = (0..x.ndim()).filter(|axis| !summed.contains(axis)).map(|axis| axis as isize).collect();
        Ok((free, summed.into_iter().map(|axis| axis as isize).collect()))
    };
    let ((free_a, summed_a), (free_b, summed_b)) = (summed(a, axes_a)?, summed(b, axes_b)?);
    let lengths = |x: &Tensor, axes: &[isize]| axes.iter().map(|&a| x.shape()[a as usize]).collect::<Vec<usize>>();
    let inner = lengths(a, &summed_a);
    if inner != lengths(b, &summed_b) {
        let why = format!("its axes {axes_b:?} must be as long as {axes_a:?} of shape {}", a.shape());
        return Err(Error::shape(op, b.shape(), why));
    }
    let k: usize = inner.iter().product();
    let (rows, columns) = (lengths(a, &free_a), lengths(b, &free_b));
    let left = reshape(&permute(a, &[free_a, summed_a].concat())?, [rows.iter().product(), k])?;
    let right = reshape(&permute(b, &[summed_b, free_b].concat())?, [k, columns.iter().product()])?;
    reshape(&matmul(&left, &right)?, [rows, columns].concat())
}

/// Kronecker's product: a block `a[i][j] * b` for every element of `a`. The shorter shape gets axes of length 1 in front.
#[track_caller]
pub fn kron(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let axes = a.ndim().max(b.ndim());
    let raised = |x: &Tensor| [&vec![1; axes - x.ndim()][..], &x.shape()[..]].concat();
    let (shape_a, shape_b) = (raised(a), raised(b));
    // Axis i of both lies at 2i and 2i + 1, and the pair is one axis of the result.
    let left: Vec<usize> = shape_a.iter().flat_map(|&n| [n, 1]).collect();
    let right: Vec<usize> = shape_b.iter().flat_map(|&n| [1, n]).collect();
    let shape = shape_a.iter().zip(&shape_b).map(|(a, b)| a.checked_mul(*b)).collect::<Option<Vec<usize>>>();
    let shape = shape.ok_or_else(|| Error::shape("kron", a.shape(), "the product is too large"))?;
    reshape(&mul(&reshape(a, left)?, &reshape(b, right)?)?, shape)
}

/// The cross product of vectors of three elements along an axis.
#[track_caller]
pub fn cross(x: &Tensor, y: &Tensor, axis: isize) -> Result<Tensor> {
    let op = "cross";
    let shape = x.shape().broadcast(op, y.shape())?;
    let axis = shape.axis(op, axis)?;
    if shape[axis] != 3 {
        return Err(Error::shape(op, &shape, format!("axis {axis} must have length 3")));
    }
    let (x, y, axis) = (x.expand(&shape)?, y.expand(&shape)?, axis as isize);
    // Rolled by two and by one place: (x1, x2, x0) and (y2, y0, y1).
    let turned = |x: &Tensor, by: isize| roll(x, &[by], &[axis]);
    sub(&mul(&turned(&x, -1)?, &turned(&y, -2)?)?, &mul(&turned(&x, -2)?, &turned(&y, -1)?)?)
}
