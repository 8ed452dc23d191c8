//! Optimizers whose classes are settings and nothing else.

use netcl::optim::{
    self, AdadeltaOptions, AdamaxOptions, AsgdOptions, LionOptions, NAdamOptions, RAdamOptions, RpropOptions,
};
use pyo3::prelude::*;

use super::optimizer::{Optimizer, describe_settings};

/// A setting as Python writes it.
trait Setting {
    fn text(&self) -> String;
}

impl Setting for f64 {
    fn text(&self) -> String {
        self.to_string()
    }
}

impl Setting for (f64, f64) {
    fn text(&self) -> String {
        format!("({}, {})", self.0, self.1)
    }
}

impl Setting for bool {
    fn text(&self) -> String {
        if *self { "True" } else { "False" }.to_owned()
    }
}

/// One class for each optimizer: its settings in the order of PyTorch's arguments, and the signature with their defaults. `$decay`
/// names the weight decay among them.
macro_rules! optimizers {
    ($(
        $(#[$doc:meta])*
        $class:ident($options:ident $(, $decay:ident)?), $name:literal, $signature:tt, $text:literal, {$($setting:ident: $kind:ty),*}
    )*) => {$(
        $(#[$doc])*
        #[pyclass(module = "netcl.optim", frozen, subclass, extends = Optimizer, name = $name)]
        #[allow(clippy::upper_case_acronyms, reason = "PyTorch's name")]
        pub(crate) struct $class($options);

        #[pymethods]
        impl $class {
            /// ``params`` are tensors, or dicts ``{"params": [...], "lr": ..., "weight_decay": ...}``.
            #[new]
            #[pyo3(signature = $signature, text_signature = $text)]
            #[allow(clippy::too_many_arguments, reason = "the signature is the one that Python shows")]
            fn new(params: &Bound<'_, PyAny>, $($setting: $kind),*) -> PyResult<PyClassInitializer<$class>> {
                let options = $options { $($setting),* };
                let base = Optimizer::build(params, options.lr, 0.0 $(+ options.$decay)?, |params, lr, _weight_decay| {
                    optim::$class::new_with(params, $options { lr, $($decay: _weight_decay,)? ..options })
                })?;
                Ok(PyClassInitializer::from(base).add_subclass($class(options)))
            }

            fn __repr__(slf: PyRef<'_, Self>) -> String {
                describe_settings($name, slf.as_super(), &[$((stringify!($setting), slf.0.$setting.text())),*])
            }
        }
    )*};
}

optimizers! {
    /// Adam with Nesterov momentum, as PyTorch defines it.
    NAdam(NAdamOptions, weight_decay), "NAdam",
    (params, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, momentum_decay=4e-3, decoupled_weight_decay=false, *, maximize=false),
    "(params, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, momentum_decay=4e-3, decoupled_weight_decay=False, *, maximize=False)",
    {lr: f64, betas: (f64, f64), eps: f64, weight_decay: f64, momentum_decay: f64, decoupled_weight_decay: bool, maximize: bool}

    /// Adam whose first steps are rectified, as PyTorch defines it.
    RAdam(RAdamOptions, weight_decay), "RAdam",
    (params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, decoupled_weight_decay=false, *, maximize=false),
    "(params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, decoupled_weight_decay=False, *, maximize=False)",
    {lr: f64, betas: (f64, f64), eps: f64, weight_decay: f64, decoupled_weight_decay: bool, maximize: bool}

    /// Adam with the largest gradient instead of the average square, as PyTorch defines it.
    Adamax(AdamaxOptions, weight_decay), "Adamax",
    (params, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *, maximize=false),
    "(params, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *, maximize=False)",
    {lr: f64, betas: (f64, f64), eps: f64, weight_decay: f64, maximize: bool}

    /// Adadelta, as PyTorch defines it.
    Adadelta(AdadeltaOptions, weight_decay), "Adadelta",
    (params, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0, *, maximize=false),
    "(params, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0, *, maximize=False)",
    {lr: f64, rho: f64, eps: f64, weight_decay: f64, maximize: bool}

    /// Lion: steps of one size, by the sign of an average of gradients.
    Lion(LionOptions, weight_decay), "Lion",
    (params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, *, maximize=false),
    "(params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, *, maximize=False)",
    {lr: f64, betas: (f64, f64), weight_decay: f64, maximize: bool}

    /// Resilient backpropagation, as PyTorch defines it: for whole data sets, not for batches.
    Rprop(RpropOptions), "Rprop",
    (params, lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50.0), *, maximize=false),
    "(params, lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50.0), *, maximize=False)",
    {lr: f64, etas: (f64, f64), step_sizes: (f64, f64), maximize: bool}

    /// Averaged stochastic gradient descent, as PyTorch defines it; the averages are ``"0.ax"``, ... of the state.
    ASGD(AsgdOptions, weight_decay), "ASGD",
    (params, lr=1e-2, lambd=1e-4, alpha=0.75, t0=1e6, weight_decay=0.0, *, maximize=false),
    "(params, lr=1e-2, lambd=1e-4, alpha=0.75, t0=1e6, weight_decay=0.0, *, maximize=False)",
    {lr: f64, lambd: f64, alpha: f64, t0: f64, weight_decay: f64, maximize: bool}
}
