//! Copies of a storage's contents in another form (packed weights), kept beside them until they change.
//!
//! A convolution of one image spends as much time on packing its weights as on multiplying by them. Weights that a second launch
//! meets unchanged will be met again: from then on their packed form stays. Those of a training step change between its launches, and
//! nothing is ever kept for them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Memory, Storage};
use crate::backend::Queue;
use crate::error::Result;

/// What was derived of one version of the contents.
#[derive(Default)]
pub(super) struct Derived(Mutex<Vec<Entry>>);

struct Entry {
    /// How it was derived.
    key: Vec<usize>,
    version: u64,
    /// `None` after the first use.
    copy: Option<Arc<Storage>>,
}

impl Storage {
    /// Says that somebody may write to the memory without raising the version: nothing is derived of it any more.
    pub(crate) fn expose(&self) {
        self.actual().exposed.store(true, Ordering::Release);
    }

    /// Whether somebody may write to the memory without raising the version.
    pub fn may_change_unnoticed(&self) -> bool {
        let storage = self.actual();
        let is_foreign = matches!(&storage.memory, Memory::Cpu(buffer) if buffer.is_foreign());
        is_foreign || storage.exposed.load(Ordering::Acquire)
    }

    /// What `fill` makes of the contents, which the caller keeps from being written meanwhile; `None` where they were not seen under
    /// this key before, or may change unnoticed. Two ways of deriving have different keys. Entries end with the contents they were
    /// derived of: when the storage is freed, or at the first call after a write.
    pub(crate) fn derived(
        &self,
        queue: &Queue,
        key: &[usize],
        nbytes: usize,
        fill: impl FnOnce(*mut u8) -> Result<()>,
    ) -> Result<Option<Arc<Storage>>> {
        let storage = self.actual();
        let lock = || storage.derived.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(storage.memory, Memory::Cpu(_)) || storage.may_change_unnoticed() {
            lock().clear();
            return Ok(None);
        }
        let version = storage.version();
        {
            let mut entries = lock();
            entries.retain(|entry| entry.version == version);
            match entries.iter().find(|entry| entry.key == key) {
                Some(Entry { copy: Some(copy), .. }) => return Ok(Some(copy.clone())),
                Some(_) => {}
                None => {
                    entries.push(Entry { key: key.to_vec(), version, copy: None });
                    return Ok(None);
                }
            }
        }
        let copy = queue.allocate_now(nbytes, "packed weights")?;
        fill(copy.cpu_memory()?.0)?;
        if let Some(entry) = lock().iter_mut().find(|entry| entry.key == key && entry.version == version) {
            entry.copy = Some(copy.clone());
        }
        Ok(Some(copy))
    }
}

#[cfg(test)]
mod tests {
    use crate::device::manager;
    use crate::dtype::DType;
    use crate::tensor::Tensor;

    #[test]
    fn a_copy_is_kept_from_the_second_use_until_the_contents_change() {
        let queue = manager().cpu().queue;
        let weight = Tensor::full(&queue, [4], DType::F32, 2.0).unwrap();
        let filled = |key: usize| {
            let mut fills = 0;
            let fill = |_: *mut u8| {
                fills += 1;
                Ok(())
            };
            let kept = weight.storage().derived(&queue, &[key], 16, fill).unwrap();
            (kept, fills)
        };
        assert!(matches!(filled(0), (None, 0)), "the first use");
        assert!(matches!(filled(1), (None, 0)), "another key");
        let (first, fills) = filled(0);
        assert_eq!(fills, 1);
        let (second, fills) = filled(0);
        assert_eq!((second.unwrap().identity(), fills), (first.as_ref().unwrap().identity(), 0));
        weight.fill(3.0).unwrap();
        assert!(matches!(filled(0), (None, 0)), "written");
        assert_eq!(std::sync::Arc::strong_count(first.as_ref().unwrap()), 1, "there is no other owner");
        assert!(filled(0).0.is_some());
        weight.cpu_ptr();
        assert!(matches!(filled(0), (None, 0)), "somebody may write unnoticed");
    }
}
