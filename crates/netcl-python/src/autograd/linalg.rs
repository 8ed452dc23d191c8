//! `netcl.linalg`: the functions of `netcl::autograd::ops::linalg`, with PyTorch's arguments.

use netcl::Tensor as Recorded;
use netcl::autograd::ops::linalg::{self, MatrixNorm};
use netcl::autograd::ops::matmul;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::{OwnAxes, record, run, wrap};
use crate::error::{IntoPyResult, kind};
use crate::index::Made;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add {
        ($($name:ident),*) => {$(module.add_function(wrap_pyfunction!($name, module)?)?;)*};
    }
    add!(solve, inv, det, slogdet, cholesky, qr, eigh, eigvalsh, svd, svdvals, pinv);
    add!(norm, vector_norm, matrix_norm, matrix_power, multi_dot);
    Ok(())
}

macro_rules! of_one_matrix {
    ($($(#[$doc:meta])* $name:ident($x:ident) = $function:expr;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (A, /))]
        #[allow(non_snake_case, reason = "PyTorch's name")]
        fn $name(py: Python<'_>, A: &Tensor) -> PyResult<Made> {
            let $x = &*A.inner();
            record(py, $x, || $function)
        }
    )*};
}

of_one_matrix! {
    /// The inverse of square matrices. A singular one is a ValueError.
    inv(x) = linalg::inv(x);
    /// The determinants of square matrices.
    det(x) = linalg::det(x);
    /// The ascending eigenvalues of symmetric matrices, whose lower triangle is read.
    eigvalsh(x) = Ok(linalg::eigh(x)?.0);
    /// The descending singular values of matrices.
    svdvals(x) = Ok(linalg::svd(x, false)?.1);
}

/// The solution ``X`` of ``A X = B``; ``B`` holds columns, or one vector for each matrix.
#[pyfunction]
#[pyo3(signature = (A, B))]
#[allow(non_snake_case, reason = "PyTorch's names")]
fn solve(py: Python<'_>, A: &Tensor, B: &Tensor) -> PyResult<Made> {
    let (a, b) = (&*A.inner(), &*B.inner());
    record(py, a, || linalg::solve(a, b))
}

/// The signs of determinants, and the logarithms of their magnitudes.
#[pyfunction]
#[pyo3(signature = (A, /))]
#[allow(non_snake_case, reason = "PyTorch's name")]
fn slogdet(py: Python<'_>, A: &Tensor) -> PyResult<(Made, Made)> {
    let a = &*A.inner();
    let (sign, logarithm) = run(py, a, || linalg::slogdet(a)).py()?;
    Ok((wrap(py, sign)?, wrap(py, logarithm)?))
}

/// The lower triangular ``L`` with ``L L^T = A`` of symmetric positive definite matrices, whose lower triangle is read.
#[pyfunction]
#[pyo3(signature = (A, /))]
#[allow(non_snake_case, reason = "PyTorch's name")]
fn cholesky(py: Python<'_>, A: &Tensor) -> PyResult<Made> {
    let a = &*A.inner();
    record(py, a, || linalg::cholesky(a))
}

/// ``Q`` with orthonormal columns and the upper triangular ``R`` with ``Q R = A``; ``mode`` is ``"reduced"`` or ``"complete"``.
#[pyfunction]
#[pyo3(signature = (A, mode="reduced"))]
#[allow(non_snake_case, reason = "PyTorch's name")]
fn qr(py: Python<'_>, A: &Tensor, mode: &str) -> PyResult<(Made, Made)> {
    if !matches!(mode, "reduced" | "complete") {
        let what = format!("linalg.qr: mode {mode:?} is not one of 'reduced' and 'complete'");
        return Err(PyValueError::new_err(what));
    }
    let a = &*A.inner();
    let (q, r) = run(py, a, || linalg::qr(a, mode == "complete")).py()?;
    Ok((wrap(py, q)?, wrap(py, r)?))
}

/// The ascending eigenvalues and the eigenvectors (columns) of symmetric matrices, whose lower triangle is read.
#[pyfunction]
#[pyo3(signature = (A, /))]
#[allow(non_snake_case, reason = "PyTorch's name")]
fn eigh(py: Python<'_>, A: &Tensor) -> PyResult<(Made, Made)> {
    let a = &*A.inner();
    let (values, vectors) = run(py, a, || linalg::eigh(a)).py()?;
    Ok((wrap(py, values)?, wrap(py, vectors)?))
}

/// ``U``, the descending singular values ``S`` and ``Vh`` with ``U diag(S) Vh = A``.
#[pyfunction]
#[pyo3(signature = (A, full_matrices=true))]
#[allow(non_snake_case, reason = "PyTorch's name")]
fn svd(py: Python<'_>, A: &Tensor, full_matrices: bool) -> PyResult<(Made, Made, Made)> {
    let a = &*A.inner();
    let (u, s, vt) = run(py, a, || linalg::svd(a, full_matrices)).py()?;
    Ok((wrap(py, u)?, wrap(py, s)?, wrap(py, vt)?))
}

/// The pseudo-inverse; singular values up to ``rtol`` times the largest count as zero.
#[pyfunction]
#[pyo3(signature = (A, *, rtol=None))]
#[allow(non_snake_case, reason = "PyTorch's name")]
fn pinv(py: Python<'_>, A: &Tensor, rtol: Option<f64>) -> PyResult<Made> {
    let a = &*A.inner();
    record(py, a, || linalg::pinv(a, rtol))
}

/// Square matrices multiplied with themselves; the inverse for negative ``n``.
#[pyfunction]
#[pyo3(signature = (A, n))]
#[allow(non_snake_case, reason = "PyTorch's name")]
fn matrix_power(py: Python<'_>, A: &Tensor, n: i64) -> PyResult<Made> {
    let a = &*A.inner();
    record(py, a, || linalg::matrix_power(a, n))
}

/// The product of several matrices, from left to right.
#[pyfunction]
fn multi_dot(py: Python<'_>, tensors: Vec<PyRef<'_, Tensor>>) -> PyResult<Made> {
    let all: Vec<Recorded> = tensors.iter().map(|tensor| tensor.inner().as_ref().clone()).collect();
    let Some((first, rest)) = all.split_first() else {
        return Err(PyValueError::new_err("linalg.multi_dot: there is nothing to multiply"));
    };
    record(py, first, || rest.iter().try_fold(first.clone(), |product, next| matmul::matmul(&product, next)))
}

fn order(ord: &Bound<'_, PyAny>) -> PyResult<MatrixNorm> {
    if let Ok(order) = ord.extract::<f64>() {
        return Ok(MatrixNorm::Order(order));
    }
    match ord.extract::<String>().as_deref() {
        Ok("fro") => Ok(MatrixNorm::Frobenius),
        Ok("nuc") => Ok(MatrixNorm::Nuclear),
        Ok(other) => Err(PyValueError::new_err(format!("linalg: ord {other:?} is not one of 'fro' and 'nuc'"))),
        Err(_) => Err(PyTypeError::new_err(format!("linalg: ord is a number, 'fro' or 'nuc', not {}", kind(ord)))),
    }
}

/// The p-norm of all elements along some axes, or of all, taken as one vector.
#[pyfunction]
#[pyo3(signature = (x, ord=2.0, dim=None, keepdim=false))]
fn vector_norm(py: Python<'_>, x: &Tensor, ord: f64, dim: Option<&Bound<'_, PyAny>>, keepdim: bool) -> PyResult<Made> {
    let (x, axes) = (&*x.inner(), OwnAxes::new(dim)?);
    record(py, x, || linalg::vector_norm(x, ord, axes.axes(), keepdim))
}

/// A norm of the matrices of the last two axes: ``"fro"``, ``"nuc"``, 1, -1, 2, -2, inf or -inf.
#[pyfunction]
#[pyo3(signature = (A, ord=None, keepdim=false))]
#[allow(non_snake_case, reason = "PyTorch's name")]
fn matrix_norm(py: Python<'_>, A: &Tensor, ord: Option<&Bound<'_, PyAny>>, keepdim: bool) -> PyResult<Made> {
    let (a, kind) = (&*A.inner(), ord.map_or(Ok(MatrixNorm::Frobenius), order)?);
    record(py, a, || linalg::matrix_norm(a, kind, keepdim))
}

/// ``vector_norm``, or ``matrix_norm`` of a matrix if an order is given and no axis.
#[pyfunction]
#[pyo3(signature = (A, ord=None, dim=None, keepdim=false))]
#[allow(non_snake_case, reason = "PyTorch's name")]
fn norm(
    py: Python<'_>,
    A: &Tensor,
    ord: Option<&Bound<'_, PyAny>>,
    dim: Option<&Bound<'_, PyAny>>,
    keepdim: bool,
) -> PyResult<Made> {
    match ord {
        None => vector_norm(py, A, 2.0, dim, keepdim),
        Some(_) if dim.is_none() && A.inner().ndim() == 2 => matrix_norm(py, A, ord, keepdim),
        Some(given) => vector_norm(py, A, given.extract()?, dim, keepdim),
    }
}
