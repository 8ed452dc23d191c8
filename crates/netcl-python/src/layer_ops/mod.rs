//! Operations of layers, which `netcl.ops` and `netcl.autograd` both have: one conversion of the arguments for each, and a mode that
//! says whether the call may be recorded.

mod arguments;
pub(crate) mod attention;
mod conv;
mod dropout;
mod indexing;
mod norm;
mod pool;
mod reshaping;
mod vectors;

pub(crate) use arguments::{count, indices, whole};
use netcl::Tensor as Recorded;
use netcl::autograd::no_grad;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::autograd::{run, unrecorded, wrap};
use crate::error::IntoPyResult;
use crate::index::Made;
use crate::tensor::Tensor;

/// Which of the two modules a call came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// `netcl.ops`, where nothing is recorded.
    Forward,
    /// `netcl.autograd`
    Recorded,
}

impl Mode {
    /// Runs an operation; other Python threads go on meanwhile, unless it is too short for that to pay.
    fn call<T: Send>(
        self,
        py: Python<'_>,
        on: &Recorded,
        operation: impl FnOnce() -> netcl::Result<T> + Send,
    ) -> PyResult<T> {
        let operation = move || {
            let _scope = (self == Mode::Forward).then(no_grad);
            operation()
        };
        run(py, on, operation).py()
    }

    /// What the result of an operation with these arguments remembers.
    fn unrecorded(self, op: &'static str, arguments: &[&dyn Argument]) -> Option<&'static str> {
        match self {
            Mode::Forward => arguments.iter().find_map(|argument| argument.unrecorded(op)),
            Mode::Recorded => None,
        }
    }

    /// [`Mode::call`] of an operation that gives a tensor.
    fn tensor(
        self,
        py: Python<'_>,
        on: &Recorded,
        operation: impl FnOnce() -> netcl::Result<Recorded> + Send,
    ) -> PyResult<Made> {
        wrap(py, self.call(py, on, operation)?)
    }
}

/// An argument of an operation, of which only tensors with a gradient matter here.
trait Argument {
    fn unrecorded(&self, op: &'static str) -> Option<&'static str>;
}

impl Argument for &Tensor {
    fn unrecorded(&self, op: &'static str) -> Option<&'static str> {
        unrecorded(op, &[*self])
    }
}

impl Argument for Option<&Tensor> {
    fn unrecorded(&self, op: &'static str) -> Option<&'static str> {
        self.as_ref()?.unrecorded(op)
    }
}

impl Argument for &Bound<'_, PyTuple> {
    fn unrecorded(&self, op: &'static str) -> Option<&'static str> {
        self.iter().find_map(|item| unrecorded(op, &[item.cast::<Tensor>().ok()?.get()]))
    }
}

/// Numbers, names, sizes; and masks and indices, to which no gradient flows.
macro_rules! without_gradient {
    ($($kind:ty),*) => {$(
        impl Argument for $kind {
            fn unrecorded(&self, _: &'static str) -> Option<&'static str> {
                None
            }
        }
    )*};
}
without_gradient!(bool, f64, isize, &str, Option<bool>, Option<f64>, Option<isize>, Option<u64>, Option<usize>);
without_gradient!(&Bound<'_, PyAny>, Option<&Bound<'_, PyAny>>);

/// What an operation gives.
trait Outcome {
    fn remember_unrecorded(&self, lost: Option<&'static str>);
}

impl Outcome for Made {
    fn remember_unrecorded(&self, lost: Option<&'static str>) {
        // What recorded, or has no gradient, is as it is.
        if lost.is_some() {
            self.0.remember_unrecorded(lost);
        }
    }
}

impl Outcome for (Made, Made) {
    fn remember_unrecorded(&self, lost: Option<&'static str>) {
        Outcome::remember_unrecorded(&self.0, lost);
    }
}

/// Defines operations that take the mode before the arguments that Python gives, and makes two functions for Python of each.
macro_rules! both {
    ($(
        $(#[doc = $doc:literal])+
        #[signature($($signature:tt)*)]
        #[text($text:literal)]
        fn $name:ident($mode:ident, $py:ident $(, $argument:ident: $kind:ty)* $(,)?) -> $result:ty $body:block
    )*) => {
        mod of_mode {
            use super::*;

            $(
                #[allow(clippy::too_many_arguments, reason = "the signature is the one that Python shows")]
                pub(super) fn $name($mode: Mode, $py: Python<'_> $(, $argument: $kind)*) -> PyResult<$result> $body
            )*
        }

        $crate::layer_ops::both!(@module forward, Forward, $(
            ($(#[doc = $doc])+) ($($signature)*) $text, $name($($argument: $kind),*) -> $result;
        )*);
        $crate::layer_ops::both!(@module recorded, Recorded, $(
            ($(#[doc = $doc])+) ($($signature)*) $text, $name($($argument: $kind),*) -> $result;
        )*);
    };
    (@module $module:ident, $mode:ident, $(
        ($($doc:tt)+) ($($signature:tt)*) $text:literal, $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;
    )*) => {
        pub(super) mod $module {
            use super::*;

            pub(in super::super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
                $(module.add_function(wrap_pyfunction!($name, module)?)?;)*
                Ok(())
            }

            $(
                $($doc)+
                #[pyfunction]
                #[pyo3(signature = ($($signature)*), text_signature = $text)]
                #[allow(clippy::too_many_arguments, reason = "the signature is the one that Python shows")]
                fn $name(py: Python<'_> $(, $argument: $kind)*) -> PyResult<$result> {
                    let lost = Mode::$mode.unrecorded(stringify!($name), &[$(&$argument),*]);
                    let result = super::of_mode::$name(Mode::$mode, py $(, $argument)*)?;
                    $crate::layer_ops::Outcome::remember_unrecorded(&result, lost);
                    Ok(result)
                }
            )*
        }
    };
}
use both;

macro_rules! families {
    ($mode:ident, $module:ident: $($family:ident),*) => {{
        $($family::$mode::register($module)?;)*
        Ok(())
    }};
}

/// Adds the operations to `netcl.ops`.
pub(crate) fn register_forward(module: &Bound<'_, PyModule>) -> PyResult<()> {
    families!(forward, module: attention, conv, dropout, indexing, norm, pool, reshaping, vectors)
}

/// Adds the operations to `netcl.autograd`.
pub(crate) fn register_recorded(module: &Bound<'_, PyModule>) -> PyResult<()> {
    families!(recorded, module: attention, conv, dropout, indexing, norm, pool, reshaping, vectors)
}
