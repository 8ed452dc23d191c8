//! Blends, bounds that are tensors, closeness, distances and draws, recorded where there is a gradient.

use netcl::autograd::ops::pointwise::{self, Closeness};
use netcl::autograd::ops::{distance, elementwise, random};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::{Given, record, run};
use crate::error::IntoPyResult;
use crate::index::Made;
use crate::ops::seeded;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add {
        ($($function:ident),*) => {$(module.add_function(wrap_pyfunction!($function, module)?)?;)*};
    }
    add!(lerp, addcmul, addcdiv, logit, clip, nan_to_num, isclose, allclose, equal, cdist, multinomial, bernoulli);
    Ok(())
}

/// ``input + weight * (end - input)``; the weight is a number or a tensor.
#[pyfunction]
fn lerp(py: Python<'_>, input: &Tensor, end: &Tensor, weight: Given) -> PyResult<Made> {
    let (start, end) = (input.inner(), end.inner());
    record(py, &start, || pointwise::lerp(&start, &end, weight.operand()))
}

/// ``input + value * tensor1 * tensor2``.
#[pyfunction]
#[pyo3(signature = (input, tensor1, tensor2, *, value=1.0))]
fn addcmul(py: Python<'_>, input: &Tensor, tensor1: &Tensor, tensor2: &Tensor, value: f64) -> PyResult<Made> {
    let (x, a, b) = (input.inner(), tensor1.inner(), tensor2.inner());
    record(py, &x, || pointwise::addcmul(&x, &a, &b, value))
}

/// ``input + value * tensor1 / tensor2``.
#[pyfunction]
#[pyo3(signature = (input, tensor1, tensor2, *, value=1.0))]
fn addcdiv(py: Python<'_>, input: &Tensor, tensor1: &Tensor, tensor2: &Tensor, value: f64) -> PyResult<Made> {
    let (x, a, b) = (input.inner(), tensor1.inner(), tensor2.inner());
    record(py, &x, || pointwise::addcdiv(&x, &a, &b, value))
}

/// ``log(x / (1 - x))``, of an ``x`` that is first held between ``eps`` and ``1 - eps`` where one is given.
#[pyfunction]
#[pyo3(signature = (x, eps=None))]
fn logit(py: Python<'_>, x: &Tensor, eps: Option<f64>) -> PyResult<Made> {
    record(py, &x.inner(), || pointwise::logit(&x.inner(), eps))
}

/// ``x`` held between two bounds, which are numbers, tensors or ``None``.
#[pyfunction]
#[pyo3(signature = (x, min=None, max=None))]
fn clip(py: Python<'_>, x: &Tensor, min: Option<Given>, max: Option<Given>) -> PyResult<Made> {
    let x = x.inner();
    let (low, high) = (min.as_ref().map(Given::operand), max.as_ref().map(Given::operand));
    record(py, &x, || pointwise::clamp_between(&x, low, high))
}

/// ``x`` with numbers in place of NaN and the infinities, which are the largest of the dtype unless given.
#[pyfunction]
#[pyo3(signature = (x, nan=0.0, posinf=None, neginf=None))]
fn nan_to_num(py: Python<'_>, x: &Tensor, nan: f64, posinf: Option<f64>, neginf: Option<f64>) -> PyResult<Made> {
    let x = x.inner();
    let most = pointwise::largest(x.dtype());
    record(py, &x, || elementwise::nan_to_num(&x, nan, posinf.unwrap_or(most), neginf.unwrap_or(-most)))
}

/// 1 where ``|x - y| <= atol + rtol * |y|``, else 0.
#[pyfunction]
#[pyo3(signature = (x, y, rtol=1e-5, atol=1e-8, equal_nan=false))]
fn isclose(py: Python<'_>, x: Given, y: Given, rtol: f64, atol: f64, equal_nan: bool) -> PyResult<Made> {
    let within = Closeness { relative: rtol, absolute: atol, equal_nan };
    let on = tensor_of("isclose", &x, &y)?;
    record(py, &on, || pointwise::isclose(x.operand(), y.operand(), within))
}

/// Whether two tensors are close everywhere. Waits for the device.
#[pyfunction]
#[pyo3(signature = (x, y, rtol=1e-5, atol=1e-8, equal_nan=false))]
fn allclose(py: Python<'_>, x: Given, y: Given, rtol: f64, atol: f64, equal_nan: bool) -> PyResult<bool> {
    let within = Closeness { relative: rtol, absolute: atol, equal_nan };
    let on = tensor_of("allclose", &x, &y)?;
    run(py, &on, || pointwise::allclose(x.operand(), y.operand(), within)).py()
}

fn tensor_of(op: &str, x: &Given, y: &Given) -> PyResult<std::sync::Arc<netcl::Tensor>> {
    match (x, y) {
        (Given::Tensor(tensor), _) | (_, Given::Tensor(tensor)) => Ok(tensor.clone()),
        _ => Err(PyTypeError::new_err(format!("{op}: at least one operand must be a tensor"))),
    }
}

/// Whether two tensors have the same shape and the same elements. Waits for the device.
#[pyfunction]
fn equal(py: Python<'_>, x: &Tensor, y: &Tensor) -> PyResult<bool> {
    let (x, y) = (x.inner(), y.inner());
    run(py, &x, || pointwise::equal(&x, &y)).py()
}

/// The p-norms of the differences of all pairs of rows: (..., P, M) and (..., R, M) give (..., P, R).
#[pyfunction]
#[pyo3(signature = (x1, x2, p=2.0))]
fn cdist(py: Python<'_>, x1: &Tensor, x2: &Tensor, p: f64) -> PyResult<Made> {
    let (x1, x2) = (x1.inner(), x2.inner());
    record(py, &x1, || distance::cdist(&x1, &x2, p))
}

/// Indices of each row of weights, drawn with probabilities in their proportion; without ``replacement`` all different.
#[pyfunction]
#[pyo3(signature = (input, num_samples, replacement=false, *, seed=None))]
fn multinomial(
    py: Python<'_>,
    input: &Tensor,
    num_samples: usize,
    replacement: bool,
    seed: Option<u64>,
) -> PyResult<Made> {
    let weights = input.inner();
    let draw = || random::multinomial(&weights, num_samples, replacement, seeded(seed).as_mut());
    Ok(Made::from(run(py, &weights, draw).py()?))
}

/// 1 with the probability that each element is, else 0.
#[pyfunction]
#[pyo3(signature = (input, *, seed=None))]
fn bernoulli(py: Python<'_>, input: &Tensor, seed: Option<u64>) -> PyResult<Made> {
    record(py, &input.inner(), || random::bernoulli_of(&input.inner(), seeded(seed).as_mut()))
}
