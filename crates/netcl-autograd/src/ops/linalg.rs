//! Linear algebra of batches `[..., rows, columns]` of matrices. Factorisations run in float64 on the host; gradients are made of
//! recordable ops, so that they can be differentiated again.

use netcl_core::dtype::DType;
use netcl_core::shape::{Layout, Shape, Slice};
use netcl_core::tensor::Tensor as Raw;
use netcl_ops::linalg as raw;
use netcl_ops::reduce::Axes;
use smallvec::smallvec;

use super::elementwise::{abs, add, cast, div, indicator, mul, neg, sub, where_};
use super::layout::{cat, expand, reshape, slice, transpose, tril, unsqueeze};
use super::matmul::matmul;
use super::reduce::{max, min, norm, sum};
use crate::autocast;
use crate::error::{Error, Result};
use crate::graph::{Save, record, record_without_gradient};
use crate::tensor::Tensor;

fn mt(x: &Tensor) -> Result<Tensor> {
    transpose(x, -1, -2)
}

/// A matrix of 16 bits in float32, whose factors are float32 as well.
fn widened(a: &Tensor) -> Result<Option<Tensor>> {
    matches!(a.dtype(), DType::F16 | DType::BF16).then(|| cast(a, DType::F32)).transpose()
}

/// The last two axes.
fn matrix(op: &'static str, x: &Tensor) -> Result<[usize; 2]> {
    match x.shape()[..] {
        [.., rows, columns] => Ok([rows, columns]),
        _ => Err(Error::shape(op, x.shape(), "it takes matrices [..., rows, columns]")),
    }
}

fn eye(like: &Tensor, n: usize) -> Result<Tensor> {
    let ones = Raw::from_shape(like.queue(), [n, n], like.dtype())?;
    let diagonal = Layout::strided([n].into(), &[n as isize + 1], 0)?;
    ones.with_layout(diagonal)?.fill(1.0)?;
    Ok(ones.into())
}

/// A vector for each matrix as a matrix with that diagonal.
fn diagonal(x: &Tensor) -> Result<Tensor> {
    let n = x.shape().last().copied().unwrap_or(1);
    mul(&unsqueeze(x, -1)?, &eye(x, n)?)
}

/// A number for each matrix, along the axes of a matrix.
fn per_matrix(x: &Tensor) -> Result<Tensor> {
    unsqueeze(&unsqueeze(x, -1)?, -1)
}

/// Parts of the last axis, each with last axes of its own.
fn unpack<const N: usize>(packed: &Tensor, parts: [&[usize]; N]) -> Result<[Tensor; N]> {
    let outer = &packed.shape()[..packed.ndim() - 1];
    let mut first = 0;
    let mut all = parts.iter().map(|inner| {
        let last = first + inner.iter().product::<usize>() as isize;
        let part = slice(packed, -1, Slice::new(Some(first), Some(last), 1))?;
        first = last;
        reshape(&part, [outer, inner].concat())
    });
    let mut found = [const { None }; N];
    for (to, part) in found.iter_mut().zip(&mut all) {
        *to = Some(part?);
    }
    Ok(found.map(|part| part.unwrap_or_else(|| packed.clone())))
}

/// The solution `x` of `a x = b`, for matrices `[..., n, n]` and right-hand sides `[..., n, k]` or `[..., n]`; outer axes
/// broadcast.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::linalg::solve};
///
/// let queue = manager().cpu().queue;
/// let a = Tensor::from_host(&queue, &[0.0f32, 2.0, 1.0, 1.0], [2, 2])?;
/// let b = Tensor::from_host(&queue, &[4.0f32, 5.0], [2])?;
/// assert_eq!(solve(&a, &b)?.to_host::<f32>()?, [3.0, 2.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn solve(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    solve_as("linalg_solve", a, b)
}

#[track_caller]
fn solve_as(op: &'static str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if let Some(a) = widened(a)? {
        return solve_as(op, &a, b);
    }
    if let Some(b) = widened(b)? {
        return solve_as(op, a, &b);
    }
    matrix(op, a)?;
    let (outer_a, outer_b) = (&a.shape()[..a.ndim() - 2], b.shape());
    if b.ndim() == 1 || (b.ndim() + 1 == a.ndim() && outer_b[..] == a.shape()[..b.ndim()]) {
        let x = solve_as(op, a, &unsqueeze(b, -1)?)?;
        let inner = x.shape()[..x.ndim() - 1].to_vec();
        return reshape(&x, inner);
    }
    matrix(op, b)?;
    let outer = Shape::from(outer_a).broadcast(op, &Shape::from(&outer_b[..b.ndim() - 2]))?;
    let raised = |t: &Tensor| expand(t, [&outer[..], &t.shape()[t.ndim() - 2..]].concat());
    let (a, b) = (raised(a)?, raised(b)?);
    let out = raw::solve(op, a.raw(), b.raw())?;
    record(op, &[&a, &b], out, Save { inputs: 1, output: true }, || {
        Box::new(move |context, upstream| {
            let of_b = solve_as(op, &mt(&context.input(0)?)?, upstream)?;
            let of_a = context.if_wanted(0, || neg(&matmul(&of_b, &mt(&context.output()?)?)?))?;
            Ok(smallvec![of_a, Some(of_b)])
        })
    })
}

/// The inverse of matrices `[..., n, n]`.
#[track_caller]
pub fn inv(a: &Tensor) -> Result<Tensor> {
    let [_, n] = matrix("linalg_inv", a)?;
    solve_as("linalg_inv", a, &eye(a, n)?)
}

/// The determinants of matrices `[..., n, n]`. The gradient of a singular matrix is an error.
#[track_caller]
pub fn det(a: &Tensor) -> Result<Tensor> {
    let op = "linalg_det";
    if let Some(a) = widened(a)? {
        return det(&a);
    }
    record(op, &[a], raw::det(op, a.raw())?, Save::EVERYTHING, || {
        Box::new(move |context, upstream| {
            let share = per_matrix(&mul(upstream, &context.output()?)?)?;
            Ok(smallvec![Some(mul(&mt(&inv(&context.input(0)?)?)?, &share)?)])
        })
    })
}

/// The signs of the determinants of matrices `[..., n, n]`, and the logarithms of their magnitudes.
#[track_caller]
pub fn slogdet(a: &Tensor) -> Result<(Tensor, Tensor)> {
    let op = "linalg_slogdet";
    if let Some(a) = widened(a)? {
        return slogdet(&a);
    }
    let (sign, logarithm) = raw::slogdet(op, a.raw())?;
    let logarithm = record(op, &[a], logarithm, Save::INPUTS, || {
        Box::new(move |context, upstream| {
            Ok(smallvec![Some(mul(&mt(&inv(&context.input(0)?)?)?, &per_matrix(upstream)?)?)])
        })
    })?;
    Ok((sign.into(), logarithm))
}

/// The lower triangular `l` with `l l^T = a`, for symmetric positive definite matrices, whose lower triangle is read.
#[track_caller]
pub fn cholesky(a: &Tensor) -> Result<Tensor> {
    let op = "linalg_cholesky";
    if let Some(a) = widened(a)? {
        return cholesky(&a);
    }
    record(op, &[a], raw::cholesky(op, a.raw())?, Save::OUTPUT, || {
        Box::new(move |context, upstream| {
            let l = context.output()?;
            // l^-T phi(l^T g) l^-1, made symmetric; phi is the lower triangle with half of the diagonal.
            let both = matmul(&mt(&l)?, upstream)?;
            let phi = mul(&add(&tril(&both, 0)?, &tril(&both, -1)?)?, 0.5)?;
            let half = solve(&mt(&l)?, &phi)?;
            let whole = solve(&mt(&l)?, &mt(&half)?)?;
            Ok(smallvec![Some(mul(&add(&whole, &mt(&whole)?)?, 0.5)?)])
        })
    })
}

/// `q` with orthonormal columns and the upper triangular `r` with `q r = a`. With `complete` q is square; then there is no
/// gradient unless `a` is, too.
#[track_caller]
pub fn qr(a: &Tensor, complete: bool) -> Result<(Tensor, Tensor)> {
    let op = "linalg_qr";
    if let Some(a) = widened(a)? {
        return qr(&a, complete);
    }
    let [m, n] = matrix(op, a)?;
    if m < n {
        // The square part, and q^T times the rest: its gradient follows.
        let part = |from: usize, to: usize| slice(a, -1, Slice::new(Some(from as isize), Some(to as isize), 1));
        let (q, left) = qr(&part(0, m)?, false)?;
        let _products_in_float32 = autocast::suspend();
        let right = matmul(&mt(&q)?, &part(m, n)?)?;
        return Ok((q, cat(&[&left, &right], -1)?));
    }
    let (packed, k) = (raw::qr(op, a.raw(), complete)?, if complete { m } else { n });
    let packed = match k == n {
        false => record_without_gradient("linalg_qr with mode='complete'", &[a], packed)?,
        true => record(op, &[a], packed, Save::OUTPUT, || {
            Box::new(move |context, upstream| {
                let [q, r] = unpack(&context.output()?, [&[m, k], &[k, n]])?;
                let [of_q, of_r] = unpack(upstream, [&[m, k], &[k, n]])?;
                let both = sub(&matmul(&r, &mt(&of_r)?)?, &matmul(&mt(&of_q)?, &q)?)?;
                let symmetric = add(&tril(&both, 0)?, &mt(&tril(&both, -1)?)?)?;
                let left = add(&of_q, &matmul(&q, &symmetric)?)?;
                // left r^-T
                Ok(smallvec![Some(mt(&solve_as(op, &r, &mt(&left)?)?)?)])
            })
        })?,
    };
    let [q, r] = unpack(&packed, [&[m, k], &[k, n]])?;
    Ok((q, r))
}

/// `1 / (b_j - b_i)` of a vector for each matrix, zero where both are equal: vectors of equal values may be any basis of theirs,
/// and have no gradient.
fn gaps(values: &Tensor) -> Result<Tensor> {
    let gap = sub(&unsqueeze(values, -2)?, &unsqueeze(values, -1)?)?;
    let same = indicator("eq", &gap, 0.0)?;
    where_(&same, 0.0, &div(1.0, &where_(&same, 1.0, &gap)?)?)
}

/// Ascending eigenvalues and eigenvectors (columns) of symmetric matrices, whose lower triangle is read.
#[track_caller]
pub fn eigh(a: &Tensor) -> Result<(Tensor, Tensor)> {
    let op = "linalg_eigh";
    if let Some(a) = widened(a)? {
        return eigh(&a);
    }
    let [n, _] = matrix(op, a)?;
    let packed = record(op, &[a], raw::eigh(op, a.raw())?, Save::OUTPUT, || {
        Box::new(move |context, upstream| {
            let [v, w] = unpack(&context.output()?, [&[n, n], &[n]])?;
            let [of_v, of_w] = unpack(upstream, [&[n, n], &[n]])?;
            let inner = add(&mul(&matmul(&mt(&v)?, &of_v)?, &gaps(&w)?)?, &diagonal(&of_w)?)?;
            Ok(smallvec![Some(matmul(&matmul(&v, &inner)?, &mt(&v)?)?)])
        })
    })?;
    let [v, w] = unpack(&packed, [&[n, n], &[n]])?;
    Ok((w, v))
}

/// `u`, the descending singular values `s` and `v^T` with `u diag(s) v^T = a`. With `full` u and v are square; then there is no
/// gradient unless `a` is, too.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::linalg::svd};
///
/// let a = Tensor::from_host(&manager().cpu().queue, &[0.0f64, 3.0, -4.0, 0.0], [2, 2])?;
/// let (_, s, _) = svd(&a, false)?;
/// assert_eq!(s.to_host::<f64>()?, [4.0, 3.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn svd(a: &Tensor, full: bool) -> Result<(Tensor, Tensor, Tensor)> {
    let op = "linalg_svd";
    if let Some(a) = widened(a)? {
        return svd(&a, full);
    }
    let [m, n] = matrix(op, a)?;
    let k = m.min(n);
    let (left, right) = if full { (m, n) } else { (k, k) };
    let packed = raw::svd(op, a.raw(), full)?;
    let packed = match full && m != n {
        true => record_without_gradient("linalg_svd with full_matrices", &[a], packed)?,
        false => record(op, &[a], packed, Save::OUTPUT, || {
            Box::new(move |context, upstream| {
                let parts: [&[usize]; 3] = [&[m, k], &[k], &[k, n]];
                let [u, s, vt] = unpack(&context.output()?, parts)?;
                let [of_u, of_s, of_vt] = unpack(upstream, parts)?;
                Ok(smallvec![Some(svd_gradient([&u, &s, &vt], [&of_u, &of_s, &of_vt])?)])
            })
        })?,
    };
    let [u, s, vt] = unpack(&packed, [&[m, left], &[k], &[right, n]])?;
    Ok((u, s, vt))
}

fn svd_gradient([u, s, vt]: [&Tensor; 3], [of_u, of_s, of_vt]: [&Tensor; 3]) -> Result<Tensor> {
    let (ut, v, of_v) = (mt(u)?, mt(vt)?, mt(of_vt)?);
    let skew = |x: &Tensor| sub(x, &mt(x)?);
    let gaps = gaps(&mul(s, s)?)?;
    let (by_column, by_row) = (unsqueeze(s, -2)?, unsqueeze(s, -1)?);
    let turned_u = mul(&mul(&skew(&matmul(&ut, of_u)?)?, &gaps)?, &by_column)?;
    let turned_v = mul(&mul(&skew(&matmul(vt, &of_v)?)?, &gaps)?, &by_row)?;
    let inner = add(&add(&turned_u, &turned_v)?, &diagonal(of_s)?)?;
    let mut total = matmul(&matmul(u, &inner)?, vt)?;
    // What leaves the space of u, or of v; nothing where a singular value is zero.
    let zero = indicator("eq", s, 0.0)?;
    let inverse = where_(&zero, 0.0, &div(1.0, &where_(&zero, 1.0, s)?)?)?;
    let outside = |basis: &Tensor, x: &Tensor| sub(x, &matmul(basis, &matmul(&mt(basis)?, x)?)?);
    if u.shape()[u.ndim() - 2] > s.shape()[s.ndim() - 1] {
        let part = mul(&outside(u, of_u)?, &unsqueeze(&inverse, -2)?)?;
        total = add(&total, &matmul(&part, vt)?)?;
    }
    if vt.shape()[vt.ndim() - 1] > s.shape()[s.ndim() - 1] {
        let part = mul(&outside(&v, &of_v)?, &unsqueeze(&inverse, -2)?)?;
        total = add(&total, &matmul(u, &mt(&part)?)?)?;
    }
    Ok(total)
}

/// The pseudo-inverse: singular values up to `rtol` times the largest count as zero; `max(rows, columns)` times the dtype's
/// rounding error unless given.
#[track_caller]
pub fn pinv(a: &Tensor, rtol: Option<f64>) -> Result<Tensor> {
    let op = "linalg_pinv";
    if let Some(a) = widened(a)? {
        return pinv(&a, rtol);
    }
    let [m, n] = matrix(op, a)?;
    let epsilon = if a.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let rtol = rtol.unwrap_or(m.max(n) as f64 * epsilon);
    if rtol.is_nan() || rtol < 0.0 {
        return Err(Error::argument(op, format!("rtol is {rtol}; it must not be negative")));
    }
    let out = {
        let _products_in_float32 = autocast::suspend();
        let (u, s, vt) = svd(&a.detach(), false)?;
        let kept = match s.size() {
            0 => s.clone(),
            _ => indicator("gt", &s, &mul(&max(&s, -1, true)?, rtol)?)?,
        };
        let inverse = where_(&kept, &div(1.0, &where_(&kept, &s, 1.0)?)?, 0.0)?;
        matmul(&mul(&mt(&vt)?, &unsqueeze(&inverse, -2)?)?, &mt(&u)?)?
    };
    record(op, &[a], out.raw().clone(), Save::EVERYTHING, || {
        Box::new(move |context, upstream| {
            // Golub and Pereyra: -p^T g p^T + (1 - a p) g^T p p^T + p^T p g^T (1 - p a)
            let (a, p) = (context.input(0)?, context.output()?);
            let (pt, gt) = (mt(&p)?, mt(upstream)?);
            let inner = matmul(&matmul(&pt, upstream)?, &pt)?;
            let left = matmul(&matmul(&gt, &p)?, &pt)?;
            let left = sub(&left, &matmul(&a, &matmul(&p, &left)?)?)?;
            let right = matmul(&pt, &matmul(&p, &gt)?)?;
            let right = sub(&right, &matmul(&matmul(&right, &p)?, &a)?)?;
            Ok(smallvec![Some(sub(&add(&left, &right)?, &inner)?)])
        })
    })
}

/// A norm of matrices, by its name in PyTorch and NumPy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MatrixNorm {
    /// The root of the sum of squares.
    Frobenius,
    /// The sum of the singular values.
    Nuclear,
    /// 1 or -1: the largest or smallest sum of a column; infinity likewise of a row; 2 or -2: the largest or smallest singular value.
    Order(f64),
}

/// A norm of the matrices of the last two axes.
#[track_caller]
pub fn matrix_norm(a: &Tensor, kind: MatrixNorm, keepdims: bool) -> Result<Tensor> {
    let op = "linalg_matrix_norm";
    matrix(op, a)?;
    let ends = |x: &Tensor, largest: bool, axis: isize| {
        if largest { max(x, axis, false) } else { min(x, axis, false) }
    };
    let found = match kind {
        MatrixNorm::Frobenius => norm(a, 2.0, &[-2, -1], false)?,
        MatrixNorm::Nuclear => sum(&svd(a, false)?.1, -1, false)?,
        MatrixNorm::Order(p) if p.abs() == 2.0 => ends(&svd(a, false)?.1, p > 0.0, -1)?,
        MatrixNorm::Order(p) if p.abs() == 1.0 => ends(&sum(&abs(a)?, -2, false)?, p > 0.0, -1)?,
        MatrixNorm::Order(p) if p.is_infinite() => ends(&sum(&abs(a)?, -1, false)?, p > 0.0, -1)?,
        MatrixNorm::Order(p) => {
            let what =
                format!("there is no matrix norm of order {p}; use 'fro', 'nuc', 1, 2, inf, or one of them negated");
            return Err(Error::argument(op, what));
        }
    };
    if keepdims { per_matrix(&found) } else { Ok(found) }
}

/// The p-norm of all elements along some axes, taken as one vector.
#[track_caller]
pub fn vector_norm<'a>(x: &Tensor, p: f64, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    norm(x, p, axes, keepdims)
}

/// Matrices `[..., n, n]` multiplied with themselves; the inverse for negative powers, the identity for 0.
#[track_caller]
pub fn matrix_power(a: &Tensor, power: i64) -> Result<Tensor> {
    let [m, n] = matrix("linalg_matrix_power", a)?;
    if m != n {
        return Err(Error::shape("linalg_matrix_power", a.shape(), "the matrices must be square"));
    }
    let mut square = if power < 0 { inv(a)? } else { a.clone() };
    let mut found: Option<Tensor> = None;
    let mut left = power.unsigned_abs();
    while left > 0 {
        if left & 1 == 1 {
            found = Some(found.map_or(Ok(square.clone()), |found| matmul(&found, &square))?);
        }
        left >>= 1;
        if left > 0 {
            square = matmul(&square, &square)?;
        }
    }
    found.map_or_else(|| expand(&eye(a, n)?, a.shape().clone()), Ok)
}
