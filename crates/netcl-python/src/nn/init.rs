//! First values of parameters.

use netcl::core::random::Generator;
use netcl::nn::init::{Fan, Gain, Init};
use pyo3::prelude::*;

use crate::error::IntoPyResult;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add {
        ($($function:ident),*) => {$(module.add_function(wrap_pyfunction!($function, module)?)?;)*};
    }
    add!(assign, calculate_gain, constant_, uniform_, normal_);
    add!(xavier_uniform_, xavier_normal_, kaiming_uniform_, kaiming_normal_);
    add!(orthogonal_, trunc_normal_);
    Ok(())
}

/// Overwrites the elements of a tensor with those of another one of the same kind and shape, unrecorded.
#[pyfunction]
fn assign(py: Python<'_>, tensor: &Bound<'_, PyAny>, source: &Bound<'_, PyAny>) -> PyResult<()> {
    let (tensor, source) = (tensor.cast::<Tensor>()?.get(), source.cast::<Tensor>()?.get());
    py.detach(|| tensor.inner().assign(source.inner().raw())).py()
}

/// Overwrites a tensor by a rule, with the numbers of a seed or of the process-wide generator, and returns it.
fn fill<'py>(tensor: Bound<'py, Tensor>, rule: Init, seed: Option<u64>) -> PyResult<Bound<'py, Tensor>> {
    let inner = &tensor.get().inner();
    tensor.py().detach(|| rule.fill(inner, seed.map(Generator::new).as_mut())).py()?;
    Ok(tensor)
}

/// Fills a tensor with a value.
#[pyfunction]
fn constant_(tensor: Bound<'_, Tensor>, val: f64) -> PyResult<Bound<'_, Tensor>> {
    fill(tensor, Init::Constant(val), None)
}

/// Fills a tensor with uniform numbers in [a, b); the same bits on every device.
#[pyfunction]
#[pyo3(signature = (tensor, a=0.0, b=1.0, seed=None))]
fn uniform_(tensor: Bound<'_, Tensor>, a: f64, b: f64, seed: Option<u64>) -> PyResult<Bound<'_, Tensor>> {
    fill(tensor, Init::Uniform { low: a, high: b }, seed)
}

/// Fills a tensor with normal numbers.
#[pyfunction]
#[pyo3(signature = (tensor, mean=0.0, std=1.0, seed=None))]
fn normal_(tensor: Bound<'_, Tensor>, mean: f64, std: f64, seed: Option<u64>) -> PyResult<Bound<'_, Tensor>> {
    fill(tensor, Init::Normal { mean, std }, seed)
}

/// Uniform numbers with the deviation ``gain * sqrt(2 / (fan_in + fan_out))``.
#[pyfunction]
#[pyo3(signature = (tensor, gain=1.0, seed=None))]
fn xavier_uniform_(tensor: Bound<'_, Tensor>, gain: f64, seed: Option<u64>) -> PyResult<Bound<'_, Tensor>> {
    fill(tensor, Init::XavierUniform { gain: Gain::Factor(gain) }, seed)
}

/// Normal numbers with the deviation ``gain * sqrt(2 / (fan_in + fan_out))``.
#[pyfunction]
#[pyo3(signature = (tensor, gain=1.0, seed=None))]
fn xavier_normal_(tensor: Bound<'_, Tensor>, gain: f64, seed: Option<u64>) -> PyResult<Bound<'_, Tensor>> {
    fill(tensor, Init::XavierNormal { gain: Gain::Factor(gain) }, seed)
}

/// Uniform numbers with the deviation ``gain / sqrt(fan)``; ``a`` is the slope of ``"leaky_relu"``.
#[pyfunction]
#[pyo3(signature = (tensor, a=0.0, mode="fan_in", nonlinearity="leaky_relu", seed=None))]
fn kaiming_uniform_<'py>(
    tensor: Bound<'py, Tensor>,
    a: f64,
    mode: &str,
    nonlinearity: &str,
    seed: Option<u64>,
) -> PyResult<Bound<'py, Tensor>> {
    let (gain, fan) = (Gain::parse(nonlinearity, a).py()?, Fan::parse(mode).py()?);
    fill(tensor, Init::KaimingUniform { gain, fan }, seed)
}

/// Normal numbers with the deviation ``gain / sqrt(fan)``; ``a`` is the slope of ``"leaky_relu"``.
#[pyfunction]
#[pyo3(signature = (tensor, a=0.0, mode="fan_in", nonlinearity="leaky_relu", seed=None))]
fn kaiming_normal_<'py>(
    tensor: Bound<'py, Tensor>,
    a: f64,
    mode: &str,
    nonlinearity: &str,
    seed: Option<u64>,
) -> PyResult<Bound<'py, Tensor>> {
    let (gain, fan) = (Gain::parse(nonlinearity, a).py()?, Fan::parse(mode).py()?);
    fill(tensor, Init::KaimingNormal { gain, fan }, seed)
}

/// Rows that are perpendicular and of length ``gain``, or columns where there are fewer of these (Saxe et al., 2013).
///
/// Axes behind the first count as one: filters are rows.
#[pyfunction]
#[pyo3(signature = (tensor, gain=1.0, seed=None))]
fn orthogonal_(tensor: Bound<'_, Tensor>, gain: f64, seed: Option<u64>) -> PyResult<Bound<'_, Tensor>> {
    fill(tensor, Init::Orthogonal { gain: Gain::Factor(gain) }, seed)
}

/// Normal numbers between ``a`` and ``b``, as if what lies outside were drawn again.
#[pyfunction]
#[pyo3(signature = (tensor, mean=0.0, std=1.0, a=-2.0, b=2.0, seed=None),
    text_signature = "(tensor, mean=0.0, std=1.0, a=-2.0, b=2.0, seed=None)")]
fn trunc_normal_(
    tensor: Bound<'_, Tensor>,
    mean: f64,
    std: f64,
    a: f64,
    b: f64,
    seed: Option<u64>,
) -> PyResult<Bound<'_, Tensor>> {
    fill(tensor, Init::TruncNormal { mean, std, low: a, high: b }, seed)
}

/// The factor by which weights must be larger for an activation to keep the deviation; ``param`` is the slope of ``"leaky_relu"``.
#[pyfunction]
#[pyo3(signature = (nonlinearity, param=None))]
fn calculate_gain(nonlinearity: &str, param: Option<f64>) -> PyResult<f64> {
    Ok(Gain::parse(nonlinearity, param.unwrap_or(0.01)).py()?.factor())
}
