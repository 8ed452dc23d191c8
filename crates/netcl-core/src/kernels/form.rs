//! The two forms in which kernels that only move memory are written.
//!
//! A processor's core works through neighbouring elements alone, in the widest vectors it has, and a work-group of many items
//! only makes it pass over the same lines again and again. A GPU wants the opposite: thousands of work-items, each with 16 bytes
//! at a time, side by side.

use std::cell::Cell;

use crate::backend::opencl::{Device, DeviceType};

/// Bytes that a work-item of [`Form::Groups`] reads or writes at once.
pub const VECTOR_BYTES: usize = 16;

/// Bytes of a result from which processors write it past their caches. A line is then not read before it is overwritten, but whoever
/// wants the result next finds it in memory only. Three kernels, each of which reads what the one before wrote, are a tenth slower that
/// way with 8 MiB each, even with 16, a seventh faster with 32 and nearly half as fast again with 64 (benches/past_caches.py; two cores
/// beside a large last-level cache).
pub const STREAM_FROM: usize = 32 << 20;

/// How the work of a memory-bound kernel is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Few work-items that need nobody else, each with long runs of neighbours.
    Items,
    /// Groups of many work-items, each with 16 bytes at a time.
    Groups,
}

thread_local! {
    static FORCED: Cell<Option<Form>> = const { Cell::new(None) };
}

impl Form {
    /// The form that suits a device, unless [`force_form`] says otherwise.
    pub fn of(device: &Device) -> Form {
        let natural = if device.device_type() == DeviceType::Cpu { Form::Items } else { Form::Groups };
        FORCED.get().unwrap_or(natural)
    }
}

/// Runs a closure in which memory-bound kernels of this thread have one form on OpenCL devices, whatever the device: for tests
/// and measurements.
///
/// ```
/// use netcl_core::kernels::form::{Form, force_form};
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let device = manager().discover()?.first().map_or_else(|| Ok(manager().cpu()), |first| manager().handle(first))?;
/// let x = Tensor::from_host(&device.queue, &[1.0f32, 2.0, 3.0], [3])?;
/// assert_eq!(force_form(Form::Groups, || x.duplicate())?.to_host::<f32>()?, [1.0, 2.0, 3.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn force_form<R>(form: Form, f: impl FnOnce() -> R) -> R {
    struct Scope(Option<Form>);
    impl Drop for Scope {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    let _scope = Scope(FORCED.replace(Some(form)));
    f()
}
