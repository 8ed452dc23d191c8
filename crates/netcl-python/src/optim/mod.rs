//! `netcl.optim`: optimizers, schedules, clipping and averages.

mod adagrad;
mod adam;
mod clip;
mod ema;
mod lbfgs;
mod muon;
mod optimizer;
mod rmsprop;
mod rules;
mod schedule;
mod schedules;
mod sgd;
pub(crate) mod state;

pub(crate) use ema::Ema;
pub(crate) use optimizer::{Optimizer, tensors};
use pyo3::prelude::*;
pub(crate) use state::{from_dict, to_dict};

/// Fills the module `netcl._netcl.optim`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "optim")?;
    module.add("__doc__", "The extension's part of ``netcl.optim``.")?;
    macro_rules! classes {
        ($($class:path),* $(,)?) => {$(module.add_class::<$class>()?;)*};
    }
    macro_rules! functions {
        ($($function:path),* $(,)?) => {$(module.add_function(wrap_pyfunction!($function, &module)?)?;)*};
    }
    classes!(optimizer::Optimizer, optimizer::ParamGroup, ema::Ema);
    classes!(sgd::Sgd, sgd::Momentum, adam::Adam, adam::AdamW, rmsprop::RmsProp, adagrad::Adagrad);
    classes!(muon::Muon, lbfgs::Lbfgs);
    classes!(rules::NAdam, rules::RAdam, rules::Adamax, rules::Adadelta, rules::Lion, rules::Rprop, rules::ASGD);
    classes!(
        schedules::ConstantLR,
        schedules::LinearLR,
        schedules::PolynomialLR,
        schedules::CosineAnnealingWarmRestarts
    );
    classes!(schedules::MultiplicativeLR, schedules::CyclicLR);
    classes!(schedule::LRScheduler, schedules::StepLR, schedules::MultiStepLR, schedules::ExponentialLR);
    classes!(schedules::CosineAnnealingLR, schedules::WarmupCosine, schedules::LambdaLR, schedules::OneCycleLR);
    classes!(schedules::ChainedScheduler, schedules::SequentialLR, schedules::ReduceLROnPlateau);
    functions!(clip::clip_grad_norm, clip::clip_grad_norm_device, clip::clip_grad_value);
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.optim", &module)
}
