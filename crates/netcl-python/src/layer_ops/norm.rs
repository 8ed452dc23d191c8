//! Normalisations.

use netcl::Tensor as Recorded;
use netcl::autograd::ops::norm::{self, LocalResponse};
use netcl::raw_ops::norm::Running;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::arguments::{count, inner};
use super::{Mode, both};
use crate::index::Made;
use crate::tensor::{Tensor, parse_shape};

/// How many of the last axes a shape names.
fn last_axes(op: &str, x: &Recorded, normalized_shape: &Bound<'_, PyAny>) -> PyResult<usize> {
    let wanted = parse_shape(normalized_shape)?;
    if wanted.ndim() == 0 || !x.shape().ends_with(&wanted) {
        let what = format!("{op}: a tensor of shape {} does not end with the normalized_shape {wanted}", x.shape());
        return Err(PyValueError::new_err(what));
    }
    Ok(wanted.ndim())
}

both! {
    /// Normalises every channel (axis 1): with ``training`` by the statistics of the batch, which also move the running averages in
    /// place (``new = (1 - momentum) * old + momentum * batch``), else by the running averages.
    ///
    /// Where ``num_batches_tracked`` is given (one int64) it is raised by one, and ``momentum=None`` averages all batches alike.
    #[signature(
        x, running_mean, running_var, weight=None, bias=None, training=false, momentum=Some(0.1), eps=1e-5, num_batches_tracked=None
    )]
    #[text(
        "(x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5, num_batches_tracked=None)"
    )]
    fn batch_norm(
        mode, py, x: &Tensor, running_mean: Option<&Tensor>, running_var: Option<&Tensor>, weight: Option<&Tensor>,
        bias: Option<&Tensor>, training: bool, momentum: Option<f64>, eps: f64, num_batches_tracked: Option<&Tensor>,
    ) -> Made {
        let (x, weight, bias) = (&x.inner(), &inner(weight), &inner(bias));
        let (weight, bias) = (weight.as_deref(), bias.as_deref());
        let batches = num_batches_tracked.map(|batches| batches.inner().raw().clone());
        let (mean, var) = (inner(running_mean), inner(running_var));
        let running = match (&mean, &var) {
            (Some(mean), Some(var)) => Some((mean.raw(), var.raw())),
            (None, None) => None,
            _ => return Err(PyValueError::new_err("batch_norm: give both running_mean and running_var, or neither")),
        };
        match running {
            Some(averages) if !training => {
                mode.tensor(py, x, || norm::batch_norm_eval(x, weight, bias, averages, eps))
            }
            None if !training => Err(PyValueError::new_err(
                "batch_norm: running_mean and running_var are needed unless training=True",
            )),
            running => mode.tensor(py, x, || {
                let running = running.map(|(mean, var)| Running { mean, var, momentum, batches: batches.as_ref() });
                norm::batch_norm(x, weight, bias, running, eps)
            }),
        }
    }

    /// Normalises over the last axes, whose lengths are ``normalized_shape`` (a number for one axis); ``weight`` and ``bias`` have
    /// that shape.
    #[signature(x, normalized_shape, weight=None, bias=None, eps=1e-5)]
    #[text("(x, normalized_shape, weight=None, bias=None, eps=1e-5)")]
    fn layer_norm(
        mode, py, x: &Tensor, normalized_shape: &Bound<'_, PyAny>, weight: Option<&Tensor>, bias: Option<&Tensor>,
        eps: f64,
    ) -> Made {
        let (x, weight, bias) = (&x.inner(), &inner(weight), &inner(bias));
        let (weight, bias) = (weight.as_deref(), bias.as_deref());
        let axes = last_axes("layer_norm", x, normalized_shape)?;
        mode.tensor(py, x, || norm::layer_norm(x, axes, weight, bias, eps))
    }

    /// Normalises ``num_groups`` groups of channels (axis 1) of each sample; ``weight`` and ``bias`` have one element per channel.
    #[signature(x, num_groups, weight=None, bias=None, eps=1e-5)]
    #[text("(x, num_groups, weight=None, bias=None, eps=1e-5)")]
    fn group_norm(
        mode, py, x: &Tensor, num_groups: &Bound<'_, PyAny>, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64,
    ) -> Made {
        let (x, weight, bias) = (&x.inner(), &inner(weight), &inner(bias));
        let (weight, bias) = (weight.as_deref(), bias.as_deref());
        let groups = count("group_norm", "num_groups", num_groups)?;
        mode.tensor(py, x, || norm::group_norm(x, groups, weight, bias, eps))
    }

    /// Divides by the root of the mean square over the last axes, whose lengths are ``normalized_shape``; ``weight`` has that shape.
    #[signature(x, normalized_shape, weight=None, eps=1e-6)]
    #[text("(x, normalized_shape, weight=None, eps=1e-6)")]
    fn rms_norm(
        mode, py, x: &Tensor, normalized_shape: &Bound<'_, PyAny>, weight: Option<&Tensor>, eps: f64,
    ) -> Made {
        let (x, weight) = (&x.inner(), &inner(weight));
        let weight = weight.as_deref();
        let axes = last_axes("rms_norm", x, normalized_shape)?;
        mode.tensor(py, x, || norm::rms_norm(x, axes, weight, eps))
    }

    /// Normalises each channel of each sample of (N, C, L), (N, C, H, W) or one sample (C, L): with ``use_input_stats`` by its own
    /// statistics, whose mean over the samples also moves the running averages in place, else by the running averages.
    #[signature(
        x, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=true, momentum=0.1, eps=1e-5
    )]
    #[text(
        "(x, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5)"
    )]
    fn instance_norm(
        mode, py, x: &Tensor, running_mean: Option<&Tensor>, running_var: Option<&Tensor>, weight: Option<&Tensor>,
        bias: Option<&Tensor>, use_input_stats: bool, momentum: f64, eps: f64,
    ) -> Made {
        let (x, weight, bias) = (&x.inner(), &inner(weight), &inner(bias));
        let (weight, bias) = (weight.as_deref(), bias.as_deref());
        let (mean, var) = (inner(running_mean), inner(running_var));
        let averages = match (&mean, &var) {
            (Some(mean), Some(var)) => Some((mean.raw(), var.raw())),
            (None, None) => None,
            _ => return Err(PyValueError::new_err("instance_norm: give both running_mean and running_var, or neither")),
        };
        match averages {
            Some(averages) if !use_input_stats => {
                mode.tensor(py, x, || norm::instance_norm_eval(x, weight, bias, averages, eps))
            }
            None if !use_input_stats => Err(PyValueError::new_err(
                "instance_norm: running_mean and running_var are needed unless use_input_stats=True",
            )),
            averages => mode.tensor(py, x, || {
                let running = averages.map(|(mean, var)| Running::new(mean, var, momentum));
                norm::instance_norm(x, weight, bias, running, eps)
            }),
        }
    }

    /// Divides each element by ``(k + alpha * mean) ** beta``, where the mean is that of the squares of its ``size`` neighbours along
    /// the channels (axis 1); channels outside count as zeros.
    #[signature(x, size, alpha=1e-4, beta=0.75, k=1.0)]
    #[text("(x, size, alpha=1e-4, beta=0.75, k=1.0)")]
    fn local_response_norm(
        mode, py, x: &Tensor, size: &Bound<'_, PyAny>, alpha: f64, beta: f64, k: f64,
    ) -> Made {
        let how = LocalResponse { size: count("local_response_norm", "size", size)?, alpha, beta, k };
        let x = &x.inner();
        mode.tensor(py, x, || norm::local_response_norm(x, &how))
    }
}
