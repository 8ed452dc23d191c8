//! Operations of layers, which `netcl.ops` and `netcl.autograd` both have: one conversion of the arguments for each, and a mode that
//! says whether the call may be recorded.

mod arguments;
mod attention;
mod conv;
mod indexing;
mod norm;
mod pool;
mod reshaping;

pub(crate) use arguments::whole;
use netcl::Tensor as Recorded;
use netcl::autograd::no_grad;
use pyo3::prelude::*;

use crate::autograd::{run, wrap};
use crate::error::IntoPyResult;
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

    /// [`Mode::call`] of an operation that gives a tensor.
    fn tensor(
        self,
        py: Python<'_>,
        on: &Recorded,
        operation: impl FnOnce() -> netcl::Result<Recorded> + Send,
    ) -> PyResult<Tensor> {
        wrap(py, self.call(py, on, operation)?)
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
                    super::of_mode::$name(Mode::$mode, py $(, $argument)*)
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
    families!(forward, module: attention, conv, indexing, norm, pool, reshaping)
}

/// Adds the operations to `netcl.autograd`.
pub(crate) fn register_recorded(module: &Bound<'_, PyModule>) -> PyResult<()> {
    families!(recorded, module: attention, conv, indexing, norm, pool, reshaping)
}
