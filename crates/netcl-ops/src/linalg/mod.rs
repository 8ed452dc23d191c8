//! Factorisations of matrices, in float64 on the host whatever device the tensors are on: inputs are read, results written back in
//! their dtype. Tensors are batches `[..., rows, columns]` of matrices, factorised one after the other.
//!
//! | file | subject |
//! |---|---|
//! | `lu.rs` | LU with partial pivoting, Cholesky |
//! | `orthogonal.rs` | Householder QR; Jacobi's rotations for eigenvalues and singular values |

mod lu;
mod orthogonal;

use netcl_core::shape::Shape;
use netcl_core::tensor::{HostOptions, Tensor};
use netcl_core::{Error, Result, host};

/// A batch of matrices on the host.
struct Matrices {
    op: &'static str,
    outer: Vec<usize>,
    rows: usize,
    columns: usize,
    values: Vec<f64>,
}

impl Matrices {
    fn read(op: &'static str, x: &Tensor) -> Result<Matrices> {
        x.check_float(op)?;
        let &[ref outer @ .., rows, columns] = &x.shape()[..] else {
            return Err(Error::shape(op, x.shape(), "it takes matrices [..., rows, columns]"));
        };
        let values = x.to_f64_vec()?;
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let what = format!("element {at} is {}; matrices must be finite", values[at]);
            return Err(Error::argument(op, what));
        }
        Ok(Matrices { op, outer: outer.to_vec(), rows, columns, values })
    }

    /// Square ones.
    fn square(op: &'static str, x: &Tensor) -> Result<Matrices> {
        let found = Matrices::read(op, x)?;
        if found.rows != found.columns {
            return Err(Error::shape(op, x.shape(), "the matrices must be square"));
        }
        Ok(found)
    }

    fn count(&self) -> usize {
        self.outer.iter().product()
    }

    fn each(&self) -> impl Iterator<Item = (usize, &[f64])> {
        let size = self.rows * self.columns;
        (0..self.count()).map(move |i| (i, &self.values[i * size..][..size]))
    }

    /// "matrix 3 of the batch", or "the matrix" where there is one.
    fn name(&self, i: usize) -> String {
        if self.outer.is_empty() { "the matrix".to_owned() } else { format!("matrix {i} of the batch") }
    }

    fn error(&self, i: usize, what: &str) -> Error {
        Error::argument(self.op, format!("{} {what}", self.name(i)))
    }

    /// A result for each matrix, with these last axes.
    fn write(&self, like: &Tensor, inner: &[usize], values: &[f64]) -> Result<Tensor> {
        let options = HostOptions { dtype: Some(like.dtype()), ..Default::default() };
        let shape: Shape = [&self.outer[..], inner].concat().into();
        Tensor::from_host_with(like.queue(), values, shape, options)
    }

    /// Room for a result of so many elements for each matrix.
    fn room(&self, size: usize) -> Result<Vec<f64>> {
        host::with_capacity(self.op, self.count().saturating_mul(size))
    }
}

fn transposed(a: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    (0..a.len()).map(|i| a[i % rows * columns + i / rows]).collect()
}

/// The solution `x` of `a x = b` for matrices `a` `[..., n, n]` and `b` `[..., n, k]` of the same outer axes.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::linalg::solve;
///
/// let queue = manager().cpu().queue;
/// let a = Tensor::from_host(&queue, &[0.0f32, 2.0, 1.0, 1.0], [2, 2])?;
/// let b = Tensor::from_host(&queue, &[4.0f32, 5.0], [2, 1])?;
/// assert_eq!(solve("solve", &a, &b)?.to_host::<f32>()?, [3.0, 2.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn solve(op: &'static str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (left, right) = (Matrices::square(op, a)?, Matrices::read(op, b)?);
    a.queue().check_same_device(op, b.queue())?;
    if a.dtype() != b.dtype() {
        return Err(Error::DtypeMismatch { op, lhs: a.dtype(), rhs: b.dtype() });
    }
    if left.outer != right.outer || left.rows != right.rows {
        let why = format!("the right-hand sides of matrices {} must have as many rows", a.shape());
        return Err(Error::shape(op, b.shape(), why));
    }
    let mut out = right.room(right.rows * right.columns)?;
    for ((i, matrix), (_, sides)) in left.each().zip(right.each()) {
        let found = lu::Lu::new(matrix, left.rows);
        if found.is_singular() {
            return Err(left.error(i, "is singular"));
        }
        out.extend(found.solve(sides, right.columns));
    }
    right.write(a, &[right.rows, right.columns], &out)
}

/// The determinants of matrices `[..., n, n]`.
pub fn det(op: &'static str, a: &Tensor) -> Result<Tensor> {
    let matrices = Matrices::square(op, a)?;
    let values: Vec<f64> = matrices.each().map(|(_, matrix)| lu::Lu::new(matrix, matrices.rows).det()).collect();
    matrices.write(a, &[], &values)
}

/// The signs of determinants, and the logarithms of their magnitudes.
pub fn slogdet(op: &'static str, a: &Tensor) -> Result<(Tensor, Tensor)> {
    let matrices = Matrices::square(op, a)?;
    let (signs, logarithms): (Vec<f64>, Vec<f64>) =
        matrices.each().map(|(_, matrix)| lu::Lu::new(matrix, matrices.rows).slogdet()).unzip();
    Ok((matrices.write(a, &[], &signs)?, matrices.write(a, &[], &logarithms)?))
}

/// The lower triangular `l` with `l l^T = a`, of symmetric matrices whose lower triangle is read.
pub fn cholesky(op: &'static str, a: &Tensor) -> Result<Tensor> {
    let matrices = Matrices::square(op, a)?;
    let mut out = matrices.room(matrices.rows * matrices.rows)?;
    for (i, matrix) in matrices.each() {
        let found = lu::cholesky(matrix, matrices.rows);
        out.extend(found.map_err(|row| {
            matrices.error(i, &format!("is not positive definite: its leading minor of order {} is not", row + 1))
        })?);
    }
    matrices.write(a, &[matrices.rows, matrices.rows], &out)
}

/// `q` with orthonormal columns and the upper triangular `r` with `q r = a`, flattened and one after the other in the last axis:
/// `[..., m * k + k * n]`, where k is the smaller of m and n, or m if `complete`.
pub fn qr(op: &'static str, a: &Tensor, complete: bool) -> Result<Tensor> {
    let matrices = Matrices::read(op, a)?;
    let (m, n) = (matrices.rows, matrices.columns);
    let k = if complete { m } else { m.min(n) };
    let mut out = matrices.room(m * k + k * n)?;
    for (_, matrix) in matrices.each() {
        let (q, r) = orthogonal::qr(matrix, m, n, k);
        out.extend(q);
        out.extend(r);
    }
    matrices.write(a, &[m * k + k * n], &out)
}

/// The eigenvectors (columns) and ascending eigenvalues of symmetric matrices, whose lower triangle is read, one after the other in
/// the last axis: `[..., n * n + n]`.
pub fn eigh(op: &'static str, a: &Tensor) -> Result<Tensor> {
    let matrices = Matrices::square(op, a)?;
    let n = matrices.rows;
    let mut out = matrices.room(n * n + n)?;
    for (_, matrix) in matrices.each() {
        let (vectors, values) = orthogonal::eigh(matrix, n);
        out.extend(vectors);
        out.extend(values);
    }
    matrices.write(a, &[n * n + n], &out)
}

/// `u`, the descending singular values and `v^T`, one after the other in the last axis: `[..., m * k + k + k * n]`, where k is the
/// smaller of m and n; `[..., m * m + k + n * n]` if `full`.
pub fn svd(op: &'static str, a: &Tensor, full: bool) -> Result<Tensor> {
    let matrices = Matrices::read(op, a)?;
    let (m, n) = (matrices.rows, matrices.columns);
    let k = m.min(n);
    let (left, right) = if full { (m, n) } else { (k, k) };
    let size = m * left + k + right * n;
    let mut out = matrices.room(size)?;
    for (_, matrix) in matrices.each() {
        let (u, s, vt) = if m >= n {
            let (u, s, v) = orthogonal::svd(matrix, m, n, left);
            (u, s, transposed(&v, n, n))
        } else {
            // Of the transpose: its right vectors are square, its left ones as many as asked for.
            let (v, s, u) = orthogonal::svd(&transposed(matrix, m, n), n, m, right);
            (u, s, transposed(&v, n, right))
        };
        out.extend(u);
        out.extend(s);
        out.extend(vt);
    }
    matrices.write(a, &[size], &out)
}
