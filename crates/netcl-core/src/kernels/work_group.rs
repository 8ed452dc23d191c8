//! Work-group sizes: the heuristic that picks `local_size` and rounds `global_size` up, and the memory of sizes that won.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::backend::opencl::{Device, Kernel};
use crate::error::{Error, Result};

/// Sizes of up to three dimensions.
pub type Sizes = SmallVec<[usize; 3]>;

/// What a work-group must respect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Most work-items in a group.
    pub max_size: usize,
    /// Most work-items in each dimension.
    pub max_items: Sizes,
    /// Sizes should be multiples of this.
    pub multiple: usize,
    /// The one size that the kernel was compiled for, if its source fixes it.
    pub required: Option<[usize; 3]>,
}

impl GroupLimits {
    /// The limits of a device (with `NETCL_LIMITS` applied), whatever the kernel.
    pub fn of_device(device: &Device) -> GroupLimits {
        let info = device.info();
        GroupLimits {
            max_size: info.max_work_group_size.max(1),
            max_items: info.max_work_item_sizes.iter().copied().take(3).collect(),
            multiple: info.warp_size.unwrap_or(1).max(1) as usize,
            required: None,
        }
    }

    /// The limits of a kernel on the device it was built for.
    pub fn of_kernel(kernel: &Kernel) -> Result<GroupLimits> {
        let group = kernel.work_group_info()?;
        Ok(GroupLimits {
            max_size: group.max_size.max(1),
            multiple: group.preferred_multiple.max(1),
            required: group.required_size,
            ..GroupLimits::of_device(kernel.device())
        })
    }

    fn max_in(&self, axis: usize) -> usize {
        self.max_items.get(axis).copied().unwrap_or(self.max_size).min(self.max_size).max(1)
    }

    /// An error unless a work-group of this size can run.
    pub fn check(&self, kernel: &str, local: &[usize]) -> Result<()> {
        let product = local.iter().try_fold(1usize, |all, &n| all.checked_mul(n)).unwrap_or(usize::MAX);
        let wrong = |what: String| Err(Error::argument("run", format!("kernel {kernel}: {what}")));
        if product == 0 {
            return wrong(format!("local_size {local:?} holds a zero; pass None to have a size chosen"));
        }
        if let Some(required) = &self.required
            && !required.iter().eq(local.iter().chain(&[1, 1, 1][local.len().min(3)..]))
        {
            return wrong(format!("its source fixes the work-group size {required:?}, local_size is {local:?}"));
        }
        if product > self.max_size {
            return wrong(format!("local_size {local:?} has {product} work-items, at most {} can run", self.max_size));
        }
        match local.iter().enumerate().find(|(axis, n)| **n > self.max_in(*axis)) {
            Some((axis, n)) => {
                wrong(format!("local_size is {n} in dimension {axis}, at most {} can run", self.max_in(axis)))
            }
            None => Ok(()),
        }
    }
}

/// Picks a work-group size from the problem's size and the limits: powers of two only, because some drivers compile a kernel
/// anew for every size they meet.
///
/// ```
/// use netcl_core::kernels::work_group::{GroupLimits, WorkGroupTuner};
///
/// let limits = GroupLimits { max_size: 1024, max_items: [1024, 1024, 64].into(), multiple: 32, required: None };
/// let tuner = WorkGroupTuner::default();
/// let local = tuner.local_size(&[1000], &limits);
/// assert_eq!(local[..], [256]);
/// assert_eq!(WorkGroupTuner::round_up(&[1000], &local)[..], [1024]);
/// assert_eq!(tuner.exact_local_size(&[1024], &limits), Some([256][..].into()));
/// assert_eq!(tuner.exact_local_size(&[1000], &limits), None); // no good divisor: left to the driver
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkGroupTuner {
    max_local: usize,
}

impl Default for WorkGroupTuner {
    /// Groups of up to 256 work-items, which every common device runs well.
    fn default() -> Self {
        WorkGroupTuner { max_local: 256 }
    }
}

impl WorkGroupTuner {
    /// A tuner that makes groups of at most `max_local` work-items.
    pub fn new(max_local: usize) -> Result<WorkGroupTuner> {
        if max_local == 0 {
            return Err(Error::argument("WorkGroupTuner", "max_local is 0; a work-group needs a work-item"));
        }
        Ok(WorkGroupTuner { max_local })
    }

    /// The most work-items a chosen group has.
    pub fn max_local(&self) -> usize {
        self.max_local
    }

    /// A size for a kernel that ignores surplus work-items, to be used with [`WorkGroupTuner::round_up`].
    pub fn local_size(&self, global: &[usize], limits: &GroupLimits) -> Sizes {
        if let Some(required) = limits.required {
            return required[..global.len().min(3)].into();
        }
        let mut left = power_of_two_up_to(self.max_local.min(limits.max_size));
        // In two and three dimensions a square-ish group shares most of what it reads; the first dimension, along which
        // memory is contiguous, gets the larger share.
        let mut local: Sizes = SmallVec::new();
        for (axis, &n) in global.iter().enumerate() {
            let axes_left = (global.len() - axis) as u32;
            let share = 1usize << left.ilog2().div_ceil(axes_left);
            let size = share.min(power_of_two_up_to(limits.max_in(axis))).min(n.max(1).next_power_of_two());
            local.push(size);
            left = (left / size).max(1);
        }
        local
    }

    /// A size that divides the global size exactly, or `None` where there is no good one: then the driver should choose. Kernels
    /// without a bounds check need this, since a surplus work-item would write outside its buffers.
    pub fn exact_local_size(&self, global: &[usize], limits: &GroupLimits) -> Option<Sizes> {
        let local: Sizes = match limits.required {
            Some(required) => required[..global.len().min(3)].into(),
            None => {
                let wanted = self.local_size(global, limits);
                wanted.iter().zip(global).map(|(&size, &n)| size.min(1 << n.trailing_zeros().min(31))).collect()
            }
        };
        let product: usize = local.iter().product();
        let divides = local.iter().zip(global).all(|(&size, n)| n.is_multiple_of(size));
        (divides && (limits.required.is_some() || product.is_multiple_of(limits.multiple))).then_some(local)
    }

    /// The global size, rounded up to a multiple of the local size in every dimension.
    pub fn round_up(global: &[usize], local: &[usize]) -> Sizes {
        global.iter().zip(local).map(|(&n, &size)| n.checked_next_multiple_of(size.max(1)).unwrap_or(n)).collect()
    }

    /// Sizes worth timing: one-dimensional powers of two from the device's preferred multiple to the limit, and two- and
    /// three-dimensional shapes of the largest of them. Where surplus work-items would do harm only sizes that divide the
    /// global size are listed.
    pub fn candidates(&self, global: &[usize], limits: &GroupLimits, bounds_checked: bool) -> Vec<Sizes> {
        if limits.required.is_some() {
            return vec![self.local_size(global, limits)];
        }
        let mut found: Vec<Sizes> = Vec::new();
        let mut size = power_of_two_up_to(limits.max_size);
        while size >= limits.multiple.min(8) && found.len() < MOST_CANDIDATES {
            let tuner = WorkGroupTuner { max_local: size };
            let local = match bounds_checked {
                true => Some(tuner.local_size(global, limits)),
                false => tuner.exact_local_size(global, limits),
            };
            if let Some(local) = local.filter(|local| !found.contains(local)) {
                found.push(local);
            }
            size /= 2;
            if size == 0 {
                break;
            }
        }
        found
    }
}

/// Each candidate may cost a compiler run, so there are few.
const MOST_CANDIDATES: usize = 8;

/// The largest power of two that is at most `n`.
pub(crate) fn power_of_two_up_to(n: usize) -> usize {
    1 << n.max(1).ilog2()
}

/// The work-group sizes that won, by kernel, device and number of dimensions. A `None` that won means the driver's own choice.
#[derive(Debug, Default)]
pub struct RememberedSizes {
    sizes: Mutex<HashMap<(String, usize, usize), Option<Sizes>>>,
}

impl RememberedSizes {
    fn sizes(&self) -> MutexGuard<'_, HashMap<(String, usize, usize), Option<Sizes>>> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a size for later runs of a kernel.
    pub fn remember(&self, kernel: &str, device: &Device, dims: usize, local: Option<Sizes>) {
        self.sizes().insert((kernel.to_owned(), device.int_ptr(), dims), local);
    }

    /// What won earlier: `None` if nothing did, `Some(None)` if the driver's own choice did.
    pub fn recall(&self, kernel: &str, device: &Device, dims: usize) -> Option<Option<Sizes>> {
        self.sizes().get(&(kernel.to_owned(), device.int_ptr(), dims)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max: usize, multiple: usize) -> GroupLimits {
        GroupLimits { max_size: max, max_items: [max, max, 64].into(), multiple, required: None }
    }

    #[test]
    fn sizes_respect_every_limit_and_cover_the_problem() {
        let tuner = WorkGroupTuner::default();
        for max in [1, 2, 3, 48, 64, 100, 256, 1024] {
            for global in
                [&[1][..], &[7], &[1000], &[1 << 20], &[3, 5], &[640, 480], &[1, 4096], &[64, 1, 9], &[8, 8, 8]]
            {
                let limits = limits(max, 1);
                let local = tuner.local_size(global, &limits);
                limits.check("k", &local).unwrap();
                let rounded = WorkGroupTuner::round_up(global, &local);
                for ((n, up), size) in global.iter().zip(&rounded).zip(&local) {
                    assert!(up >= n && up - n < *size && up.is_multiple_of(*size), "{global:?} {local:?}");
                }
                if let Some(exact) = tuner.exact_local_size(global, &limits) {
                    limits.check("k", &exact).unwrap();
                    assert_eq!(WorkGroupTuner::round_up(global, &exact)[..], *global);
                }
            }
        }
    }

    #[test]
    fn shapes_of_groups() {
        let tuner = WorkGroupTuner::default();
        let limits = limits(1024, 32);
        assert_eq!(tuner.local_size(&[1 << 20], &limits)[..], [256]);
        assert_eq!(tuner.local_size(&[640, 480], &limits)[..], [16, 16]);
        assert_eq!(tuner.local_size(&[64, 64, 64], &limits)[..], [8, 8, 4]);
        assert_eq!(tuner.local_size(&[1, 4096], &limits)[..], [1, 256]);
        assert_eq!(WorkGroupTuner::new(64).unwrap().local_size(&[1000], &limits)[..], [64]);
        assert_eq!(tuner.exact_local_size(&[96], &limits), Some([32][..].into()));
        assert_eq!(tuner.exact_local_size(&[1021], &limits), None);
        assert!(WorkGroupTuner::new(0).is_err());
    }

    #[test]
    fn a_fixed_size_is_the_only_one() {
        let limits = GroupLimits { required: Some([16, 4, 1]), ..limits(256, 1) };
        let tuner = WorkGroupTuner::default();
        assert_eq!(tuner.local_size(&[100, 100], &limits)[..], [16, 4]);
        assert_eq!(tuner.exact_local_size(&[32, 8], &limits), Some([16, 4][..].into()));
        assert_eq!(tuner.exact_local_size(&[30, 8], &limits), None);
        assert_eq!(tuner.candidates(&[32, 8], &limits, true), [Sizes::from_slice(&[16, 4])]);
        assert!(limits.check("k", &[16, 4]).is_ok());
        assert!(limits.check("k", &[8, 4]).unwrap_err().to_string().contains("fixes the work-group size"));
    }

    #[test]
    fn impossible_sizes_are_explained() {
        let limits = limits(256, 1);
        for (local, words) in
            [(&[0][..], "zero"), (&[512], "at most 256"), (&[32, 32], "1024 work-items"), (&[1, 1, 128], "dimension 2")]
        {
            let text = limits.check("blur", local).unwrap_err().to_string();
            assert!(text.contains(words) && text.contains("blur"), "{text}");
        }
    }

    #[test]
    fn candidates_are_few_distinct_and_legal() {
        let tuner = WorkGroupTuner::default();
        for max in [1, 64, 1024] {
            for checked in [true, false] {
                let found = tuner.candidates(&[96], &limits(max, 1), checked);
                assert!(!found.is_empty() && found.len() <= MOST_CANDIDATES);
                for local in &found {
                    limits(max, 1).check("k", local).unwrap();
                    assert!(checked || 96usize.is_multiple_of(local[0]));
                }
                let mut unique = found.clone();
                unique.dedup();
                assert_eq!(unique, found);
            }
        }
    }
}
