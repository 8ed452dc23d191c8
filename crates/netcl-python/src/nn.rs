//! `netcl.nn`: first values of parameters. Modules themselves are written in Python, over recorded operations.

use netcl::core::random::Generator;
use netcl::nn::init::{Fan, Gain, Init};
use netcl::nn::{Linear, LinearOptions};
use pyo3::prelude::*;

use crate::device::resolve_queue;
use crate::error::IntoPyResult;
use crate::index::IndexTensor;
use crate::tensor::{Tensor, parse_dtype};

/// Fills the module `netcl._netcl.nn`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "nn")?;
    module.add("__doc__", "The extension's part of ``netcl.nn``.")?;
    macro_rules! add {
        ($($function:ident),*) => {$(module.add_function(wrap_pyfunction!($function, &module)?)?;)*};
    }
    add!(assign, calculate_gain, linear_parameters, constant_, uniform_, normal_);
    add!(xavier_uniform_, xavier_normal_, kaiming_uniform_, kaiming_normal_);
    add!(orthogonal_, trunc_normal_);
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.nn", &module)
}

/// Overwrites the elements of a tensor with those of another one of the same kind and shape, unrecorded.
#[pyfunction]
fn assign(py: Python<'_>, tensor: &Bound<'_, PyAny>, source: &Bound<'_, PyAny>) -> PyResult<()> {
    if let (Ok(tensor), Ok(source)) = (tensor.cast::<IndexTensor>(), source.cast::<IndexTensor>()) {
        let (tensor, source) = (tensor.get().0.tensor(), source.get().0.tensor());
        return py.detach(|| tensor.assign(source)).py();
    }
    let (tensor, source) = (tensor.cast::<Tensor>()?.get(), source.cast::<Tensor>()?.get());
    py.detach(|| tensor.inner().assign(source.inner().raw())).py()
}

/// The weight and bias of a new linear layer, uniform within ``1 / sqrt(in_features)``.
#[pyfunction]
#[pyo3(signature = (queue, in_features, out_features, bias=true, dtype=None),
    text_signature = "(queue, in_features, out_features, bias=True, dtype='float32')")]
fn linear_parameters(
    py: Python<'_>,
    queue: Option<&Bound<'_, PyAny>>,
    in_features: usize,
    out_features: usize,
    bias: bool,
    dtype: Option<&Bound<'_, PyAny>>,
) -> PyResult<(Tensor, Option<Tensor>)> {
    let (queue, dtype) = (resolve_queue(py, queue, None)?, parse_dtype(dtype)?);
    let options = || LinearOptions { bias, dtype, generator: None };
    let layer = py.detach(|| Linear::new_with(&queue, in_features, out_features, options())).py()?;
    Ok((Tensor::new(layer.weight().clone()), layer.bias().cloned().map(Tensor::new)))
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
