//! How many work-items a group of a kernel with barriers may have.

use std::cell::Cell;

use crate::backend::opencl::{Device, DeviceType};

/// Work-items on a CPU device: one core works through a group alone, and PoCL takes seconds to compile a barrier between hundreds of
/// them.
const ON_A_CPU: usize = 16;

thread_local! {
    static FULL: Cell<bool> = const { Cell::new(false) };
}

/// The most work-items of a group on a device, for kernels that choose their groups themselves: at least 1.
pub fn largest_group(device: &Device) -> usize {
    let most = device.info().max_work_group_size.max(1);
    if device.device_type() == DeviceType::Cpu && !FULL.get() { most.min(ON_A_CPU) } else { most }
}

/// Runs a closure in which groups of this thread's kernels are as large on CPU devices as on GPUs: for tests.
///
/// ```
/// use netcl_core::kernels::group_limit::force_full_groups;
///
/// assert_eq!(force_full_groups(|| 2 + 2), 4);
/// ```
pub fn force_full_groups<R>(f: impl FnOnce() -> R) -> R {
    struct Scope(bool);
    impl Drop for Scope {
        fn drop(&mut self) {
            FULL.set(self.0);
        }
    }
    let _scope = Scope(FULL.replace(true));
    f()
}
