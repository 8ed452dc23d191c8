//! Matrix products, recorded.

use netcl::Tensor as Recorded;
use netcl::autograd::ops::{layout, matmul as products};
use pyo3::prelude::*;

use super::record;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(matmul, module)?)?;
    module.add_function(wrap_pyfunction!(linear, module)?)?;
    module.add_function(wrap_pyfunction!(bias_add, module)?)
}

/// The matrix product by NumPy's rules: the last two axes are multiplied, axes before them broadcast.
#[pyfunction]
#[pyo3(signature = (a, b, *, transpose_a=false, transpose_b=false))]
fn matmul(py: Python<'_>, a: &Tensor, b: &Tensor, transpose_a: bool, transpose_b: bool) -> PyResult<Tensor> {
    let turned = |x: &Recorded, turn: bool| match turn {
        true => layout::transpose(x, -2, -1),
        false => Ok(x.clone()),
    };
    record(py, &a.inner(), || products::matmul(&turned(&a.inner(), transpose_a)?, &turned(&b.inner(), transpose_b)?))
}

/// ``x`` times the transposed ``weight`` (of shape ``(out_features, in_features)``) plus ``bias``, in one launch.
#[pyfunction]
#[pyo3(signature = (x, weight, bias=None))]
fn linear(py: Python<'_>, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> PyResult<Tensor> {
    let (x, weight, bias) = (&x.inner(), &weight.inner(), bias.map(Tensor::inner));
    record(py, weight, || products::linear(x, weight, bias.as_deref()))
}

/// Adds a vector along the channel axis: the last axis of matrices and sequences, axis 1 of images (4 or 5 axes).
#[pyfunction]
fn bias_add(py: Python<'_>, x: &Tensor, bias: &Tensor) -> PyResult<Tensor> {
    let (x, bias) = (&x.inner(), &bias.inner());
    record(py, x, || products::bias_add(x, bias))
}
