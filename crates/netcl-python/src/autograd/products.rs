//! Matrix products, recorded.

use netcl::Tensor as Recorded;
use netcl::autograd::ops::{layout, matmul as products, products as named};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::record;
use crate::index::Made;
use crate::ops::axes;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(matmul, module)?)?;
    module.add_function(wrap_pyfunction!(linear, module)?)?;
    module.add_function(wrap_pyfunction!(bias_add, module)?)?;
    macro_rules! add {
        ($($function:ident),*) => {$(module.add_function(wrap_pyfunction!($function, module)?)?;)*};
    }
    add!(mm, bmm, mv, dot, outer, inner, kron, addmm, baddbmm, tensordot, cross);
    Ok(())
}

macro_rules! pairs {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        fn $name(py: Python<'_>, input: &Tensor, other: &Tensor) -> PyResult<Made> {
            let (a, b) = (input.inner(), other.inner());
            record(py, &a, || named::$name(&a, &b))
        }
    )*};
}

pairs! {
    /// The product of two matrices.
    mm;
    /// The products of the matrices of two batches, without broadcasting.
    bmm;
    /// The product of a matrix and a vector.
    mv;
    /// The sum of the products of two vectors' elements.
    dot;
    /// All products of an element of one vector with one of the other.
    outer;
    /// The dot products of all vectors along the last axes.
    inner;
    /// Kronecker's product: a block for every element of the first.
    kron;
}

/// ``beta * input + alpha * (mat1 @ mat2)``.
#[pyfunction]
#[pyo3(signature = (input, mat1, mat2, *, beta=1.0, alpha=1.0))]
fn addmm(py: Python<'_>, input: &Tensor, mat1: &Tensor, mat2: &Tensor, beta: f64, alpha: f64) -> PyResult<Made> {
    let (x, a, b) = (input.inner(), mat1.inner(), mat2.inner());
    record(py, &a, || named::addmm(&x, &a, &b, beta, alpha))
}

/// ``beta * input + alpha * (batch1 @ batch2)`` of batches of matrices.
#[pyfunction]
#[pyo3(signature = (input, batch1, batch2, *, beta=1.0, alpha=1.0))]
fn baddbmm(py: Python<'_>, input: &Tensor, batch1: &Tensor, batch2: &Tensor, beta: f64, alpha: f64) -> PyResult<Made> {
    let (x, a, b) = (input.inner(), batch1.inner(), batch2.inner());
    record(py, &a, || named::baddbmm(&x, &a, &b, beta, alpha))
}

/// The sum over pairs of axes: the last ``dims`` of ``a`` with the first of ``b``, or two lists of axes.
#[pyfunction]
#[pyo3(signature = (a, b, dims=None), text_signature = "(a, b, dims=2)")]
fn tensordot(py: Python<'_>, a: &Tensor, b: &Tensor, dims: Option<&Bound<'_, PyAny>>) -> PyResult<Made> {
    let (a, b) = (a.inner(), b.inner());
    let (of_a, of_b) = match dims.map(|dims| (dims, dims.extract::<usize>())) {
        Some((dims, Err(_))) => {
            let wrong = |_| PyTypeError::new_err("tensordot: dims is a number or two lists of axes");
            let (first, second): (Bound<'_, PyAny>, Bound<'_, PyAny>) = match dims.extract() {
                Ok(pair) => pair,
                Err(_) => <[Bound<'_, PyAny>; 2]>::into(dims.extract().map_err(wrong)?),
            };
            (axes(Some(&first))?, axes(Some(&second))?)
        }
        number => {
            let n = number.map_or(2, |(_, n)| n.unwrap_or(2));
            if n > a.ndim() || n > b.ndim() {
                let what = format!("tensordot: {n} axes of shapes {} and {}", a.shape(), b.shape());
                return Err(PyValueError::new_err(what));
            }
            ((0..n).map(|i| (a.ndim() - n + i) as isize).collect(), (0..n as isize).collect())
        }
    };
    record(py, &a, || named::tensordot(&a, &b, &of_a, &of_b))
}

/// The cross product of vectors of three elements along an axis.
#[pyfunction]
#[pyo3(signature = (input, other, dim=None, *, axis=None), text_signature = "(input, other, dim=-1, *, axis=None)")]
fn cross(py: Python<'_>, input: &Tensor, other: &Tensor, dim: Option<isize>, axis: Option<isize>) -> PyResult<Made> {
    let (x, y, axis) = (input.inner(), other.inner(), crate::axis::one_or("cross", dim, axis, -1)?);
    record(py, &x, || named::cross(&x, &y, axis))
}

/// The matrix product by NumPy's rules: the last two axes are multiplied, axes before them broadcast.
#[pyfunction]
#[pyo3(signature = (a, b, *, transpose_a=false, transpose_b=false))]
fn matmul(py: Python<'_>, a: &Tensor, b: &Tensor, transpose_a: bool, transpose_b: bool) -> PyResult<Made> {
    let turned = |x: &Recorded, turn: bool| match turn {
        true => layout::transpose(x, -2, -1),
        false => Ok(x.clone()),
    };
    record(py, &a.inner(), || products::matmul(&turned(&a.inner(), transpose_a)?, &turned(&b.inner(), transpose_b)?))
}

/// ``x`` times the transposed ``weight`` (of shape ``(out_features, in_features)``) plus ``bias``, in one launch.
#[pyfunction]
#[pyo3(signature = (x, weight, bias=None))]
fn linear(py: Python<'_>, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> PyResult<Made> {
    let (x, weight, bias) = (&x.inner(), &weight.inner(), bias.map(Tensor::inner));
    record(py, weight, || products::linear(x, weight, bias.as_deref()))
}

/// Adds a vector along the channel axis: the last axis of matrices and sequences, axis 1 of images (4 or 5 axes).
#[pyfunction]
fn bias_add(py: Python<'_>, x: &Tensor, bias: &Tensor) -> PyResult<Made> {
    let (x, bias) = (&x.inner(), &bias.inner());
    record(py, x, || products::bias_add(x, bias))
}
