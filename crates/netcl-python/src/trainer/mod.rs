//! `netcl.trainer`: the training loop, metrics and callbacks.

mod batch;
mod callbacks;
mod fit;
mod metrics;
mod session;

use std::sync::{Arc, Mutex};

use netcl::trainer::trainer::Session as Shared;
use pyo3::prelude::*;

use crate::amp::GradScaler;
use crate::distributed::group::Group;
use crate::error::trainer_to_py;
use crate::optim::{Ema, Optimizer};

/// Fills the module `netcl._netcl.trainer`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "trainer")?;
    module.add("__doc__", "The extension's part of ``netcl.trainer``.")?;
    module.add_class::<session::Session>()?;
    module.add_class::<fit::Loop>()?;
    module.add_function(wrap_pyfunction!(new_session, &module)?)?;
    metrics::register(&module)?;
    callbacks::register(&module)?;
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.trainer", &module)
}

/// The part of a step that does not depend on the model, for what trains it. Metrics are counted over validation batches; others
/// with the same settings are counted over training batches.
#[pyfunction]
#[pyo3(signature = (optimizer, scaler, ema, grad_clip, metrics, group))]
fn new_session(
    optimizer: Py<Optimizer>,
    scaler: Option<Py<GradScaler>>,
    ema: Option<Py<Ema>>,
    grad_clip: Option<f64>,
    metrics: Vec<Bound<'_, PyAny>>,
    group: &Group,
) -> PyResult<session::Session> {
    let mut session = Shared::new(grad_clip).over(group.0.clone());
    for metric in metrics {
        let metric = metrics::metric_of(&metric)?;
        session.training.push(metric.fresh().map_err(trainer_to_py)?);
        session.validation.push(metric);
    }
    Ok(session::Session { inner: Arc::new(Mutex::new(session)), optimizer, scaler, ema })
}
