//! `netcl.profiling.autotuner`: which kernel is the fastest, by measuring.

use std::time::Duration;

use netcl::core::conv::{ConvGeometry, ConvParams, symmetric};
use netcl::core::tuner::{Limits, Tuning};
use netcl::profiling::autotuner::{self, Options, Verdict};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::error::IntoPyResult;
use crate::selector::{config_to_py, pair, queue_of};
use crate::tensor::parse_dtype;

/// Adds this file's names to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(tune_matmul, module)?)?;
    module.add_function(wrap_pyfunction!(tune_conv2d, module)?)
}

fn options(seconds: f64, keep: bool) -> PyResult<Options> {
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
    let wrong = || PyValueError::new_err(format!("autotune: {seconds} is no number of seconds above 0"));
    Ok(Options { limits: Limits { time: time.ok_or_else(wrong)?, ..Limits::default() }, keep })
}

/// Measures the kernels for an ``M x K`` by ``K x N`` product; what ``netcl.profiling.autotuner`` makes its result of.
#[pyfunction]
#[pyo3(name = "_tune_matmul", signature = (M, N, K, dtype, queue, seconds, keep))]
#[expect(non_snake_case, clippy::too_many_arguments, reason = "the documented names")]
fn tune_matmul<'py>(
    py: Python<'py>,
    M: usize,
    N: usize,
    K: usize,
    dtype: Option<&Bound<'py, PyAny>>,
    queue: Option<&Bound<'py, PyAny>>,
    seconds: f64,
    keep: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let (queue, dtype, options) = (queue_of(py, queue)?, parse_dtype(dtype)?, options(seconds, keep)?);
    let tuning = py.detach(|| autotuner::autotune_matmul_with(M, N, K, dtype, &queue, &options, &mut |_| true)).py()?;
    tuning_to_py(py, &tuning)
}

/// The same for a convolution of ``N x C x H x W`` with ``F`` filters of ``KH x KW``.
#[pyfunction]
#[pyo3(name = "_tune_conv2d", signature = (N, C, H, W, F, KH, KW, stride, pad, dtype, queue, seconds, keep))]
#[expect(non_snake_case, clippy::too_many_arguments, reason = "the documented names")]
fn tune_conv2d<'py>(
    py: Python<'py>,
    N: usize,
    C: usize,
    H: usize,
    W: usize,
    F: usize,
    KH: usize,
    KW: usize,
    stride: Option<&Bound<'py, PyAny>>,
    pad: Option<&Bound<'py, PyAny>>,
    dtype: Option<&Bound<'py, PyAny>>,
    queue: Option<&Bound<'py, PyAny>>,
    seconds: f64,
    keep: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let (stride, padding) = (pair(stride, 1, "stride")?, symmetric(pair(pad, 0, "pad")?));
    let params = ConvParams { stride, padding, ..Default::default() };
    let geometry = ConvGeometry::of("autotune_conv2d", [N, C, H, W], F, [KH, KW], &params).py()?;
    let (queue, dtype, options) = (queue_of(py, queue)?, parse_dtype(dtype)?, options(seconds, keep)?);
    let tuning =
        py.detach(|| autotuner::autotune_conv2d_with(&geometry, dtype, &queue, &options, &mut |_| true)).py()?;
    tuning_to_py(py, &tuning)
}

fn tuning_to_py<'py>(py: Python<'py>, tuning: &Tuning) -> PyResult<Bound<'py, PyDict>> {
    let trials = PyList::empty(py);
    for trial in tuning.ranking() {
        let (verdict, reason) = match &trial.verdict {
            Verdict::Measured => ("measured", None),
            Verdict::Behind => ("behind", None),
            Verdict::Wrong(reason) => ("wrong", Some(reason)),
            Verdict::Failed(reason) => ("failed", Some(reason)),
            Verdict::Unmeasured => ("unmeasured", None),
        };
        let one = PyDict::new(py);
        one.set_item("name", trial.config.to_string())?;
        one.set_item("config", config_to_py(py, &trial.config)?)?;
        one.set_item("time_ms", trial.median().map(|time| time * 1e3))?;
        one.set_item("samples_ms", trial.samples.iter().map(|time| time * 1e3).collect::<Vec<f64>>())?;
        one.set_item("gflops", trial.median().map(|time| tuning.flops / time / 1e9))?;
        one.set_item("verdict", verdict)?;
        one.set_item("reason", reason)?;
        trials.append(one)?;
    }
    let found = PyDict::new(py);
    found.set_item("best", tuning.best().map(|trial| config_to_py(py, &trial.config)).transpose()?)?;
    found.set_item("problem", tuning.problem.to_string())?;
    found.set_item("device", &tuning.device)?;
    found.set_item("seconds", tuning.took.as_secs_f64())?;
    found.set_item("complete", tuning.complete)?;
    found.set_item("trials", trials)?;
    Ok(found)
}
