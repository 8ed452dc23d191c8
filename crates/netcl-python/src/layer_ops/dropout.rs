//! Dropout.

use std::sync::Arc;

use netcl::Tensor as Recorded;
use netcl::autograd::ops::dropout::{self as drop, Dropped};
use netcl::autograd::ops::layout::{squeeze, unsqueeze};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::{Mode, both};
use crate::autograd::wrap;
use crate::index::Made;
use crate::ops::seeded;
use crate::tensor::Tensor;

/// A dropout in training; else the tensor itself.
fn in_training(
    mode: Mode,
    py: Python<'_>,
    x: &Arc<Recorded>,
    training: bool,
    operation: impl FnOnce() -> netcl::Result<Recorded> + Send,
) -> PyResult<Made> {
    match (training, mode) {
        (true, _) => mode.tensor(py, x, operation),
        (false, Mode::Recorded) => wrap(py, x.as_ref().clone()),
        (false, Mode::Forward) => wrap(py, x.detach()),
    }
}

/// An error unless a tensor has one of these numbers of axes.
fn check_axes(op: &str, x: &Recorded, axes: &[usize], forms: &str) -> PyResult<()> {
    match axes.contains(&x.ndim()) {
        true => Ok(()),
        false => Err(PyValueError::new_err(format!("{op}: it takes {forms}; the input has shape {}", x.shape()))),
    }
}

both! {
    /// Sets elements to zero with probability ``p`` and divides the others by ``1 - p``; without ``training`` the tensor itself.
    ///
    /// The mask is the same on every device and is never stored: the gradient draws it again.
    #[signature(x, p=0.5, training=true, *, seed=None)]
    #[text("(x, p=0.5, training=True, *, seed=None)")]
    fn dropout(mode, py, x: &Tensor, p: f64, training: bool, seed: Option<u64>) -> Made {
        let x = &x.inner();
        in_training(mode, py, x, training, || drop::dropout(x, p, seeded(seed).as_mut()))
    }

    /// Dropout of whole channels of sequences (N, C, L) or (C, L).
    #[signature(x, p=0.5, training=true, *, seed=None)]
    #[text("(x, p=0.5, training=True, *, seed=None)")]
    fn dropout1d(mode, py, x: &Tensor, p: f64, training: bool, seed: Option<u64>) -> Made {
        let x = &x.inner();
        check_axes("dropout1d", x, &[2, 3], "(N, C, L) or (C, L)")?;
        in_training(mode, py, x, training, || match x.ndim() {
            2 => squeeze(&drop::feature_dropout(&unsqueeze(x, 0)?, p, seeded(seed).as_mut())?, &[0]),
            _ => drop::feature_dropout(x, p, seeded(seed).as_mut()),
        })
    }

    /// Dropout of whole channels of images (N, C, H, W).
    #[signature(x, p=0.5, training=true, *, seed=None)]
    #[text("(x, p=0.5, training=True, *, seed=None)")]
    fn dropout2d(mode, py, x: &Tensor, p: f64, training: bool, seed: Option<u64>) -> Made {
        let x = &x.inner();
        check_axes("dropout2d", x, &[4], "(N, C, H, W)")?;
        in_training(mode, py, x, training, || drop::feature_dropout(x, p, seeded(seed).as_mut()))
    }

    /// Dropout for networks of ``selu``: what is dropped gets selu's lowest value, and a scale and a shift keep mean 0 and variance 1.
    #[signature(x, p=0.5, training=false, *, seed=None)]
    #[text("(x, p=0.5, training=False, *, seed=None)")]
    fn alpha_dropout(mode, py, x: &Tensor, p: f64, training: bool, seed: Option<u64>) -> Made {
        let x = &x.inner();
        in_training(mode, py, x, training, || drop::alpha_dropout(x, p, Dropped::Elements, seeded(seed).as_mut()))
    }

    /// ``alpha_dropout`` of whole channels of (N, C, ...).
    #[signature(x, p=0.5, training=false, *, seed=None)]
    #[text("(x, p=0.5, training=False, *, seed=None)")]
    fn feature_alpha_dropout(mode, py, x: &Tensor, p: f64, training: bool, seed: Option<u64>) -> Made {
        let x = &x.inner();
        in_training(mode, py, x, training, || drop::alpha_dropout(x, p, Dropped::Channels, seeded(seed).as_mut()))
    }
}
