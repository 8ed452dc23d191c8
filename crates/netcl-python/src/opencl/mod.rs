//! `netcl.core.backend.opencl`: the OpenCL objects, ours and PyOpenCL's.

mod buffer;
mod download;
mod event;
mod foreign;
mod platform;
mod program;
mod queue;

use pyo3::prelude::*;

pub(crate) use buffer::{Buffer, Owner};
pub(crate) use download::download;
pub(crate) use event::Event;
pub(crate) use foreign::{buffer_from_py, context_from_py, device_from_py, event_from_py, stream_from_py};
pub(crate) use platform::{Device, Platform};
pub(crate) use program::{Kernel, Program};
pub(crate) use queue::{CommandQueue, Context};

/// Adds the classes and functions of this folder to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Platform>()?;
    module.add_class::<Device>()?;
    module.add_class::<Context>()?;
    module.add_class::<CommandQueue>()?;
    module.add_class::<Buffer>()?;
    module.add_class::<Event>()?;
    module.add_class::<event::EventProfile>()?;
    module.add_class::<program::Program>()?;
    module.add_class::<program::Kernel>()?;
    module.add_function(wrap_pyfunction!(queue::interruptible_finish, module)?)?;
    Ok(())
}

/// The methods of a class that is nothing but a driver object: pointer, equality, hash.
macro_rules! same_object {
    ($class:ident, $pointer:expr) => {
        impl $class {
            fn pointer(&self) -> usize {
                let of: fn(&$class) -> usize = $pointer;
                of(self)
            }
        }

        impl PartialEq for $class {
            fn eq(&self, other: &Self) -> bool {
                self.pointer() == other.pointer()
            }
        }

        impl Eq for $class {}

        impl std::hash::Hash for $class {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                self.pointer().hash(state);
            }
        }
    };
}
pub(crate) use same_object;
