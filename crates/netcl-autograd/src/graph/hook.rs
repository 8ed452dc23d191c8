//! Functions that see gradients on their way.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Sees a gradient and may replace it by another of the same shape and dtype.
pub type Hook = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;

type List = Mutex<Vec<(u64, Hook)>>;

/// The hooks of one tensor; nothing is allocated before the first.
#[derive(Default)]
pub(crate) struct Hooks(OnceLock<Arc<List>>);

/// Removes a hook again. Dropping it leaves the hook where it is.
#[derive(Clone)]
pub struct HookHandle {
    list: Weak<List>,
    number: u64,
}

/// Whether any leaf ever had a hook that waits for its accumulated gradient: only then do walks count the uses of leaves.
pub(crate) static AWAITED: AtomicBool = AtomicBool::new(false);

fn lock(list: &List) -> MutexGuard<'_, Vec<(u64, Hook)>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hooks {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.get().is_none_or(|list| lock(list).is_empty())
    }

    pub(crate) fn add(&self, hook: Hook) -> HookHandle {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let list = self.0.get_or_init(Arc::default);
        lock(list).push((number, hook));
        HookHandle { list: Arc::downgrade(list), number }
    }

    /// The gradient after all hooks, in the order of their registration.
    pub(crate) fn run(&self, mut gradient: Tensor) -> Result<Tensor> {
        let Some(list) = self.0.get() else { return Ok(gradient) };
        // A hook may register or remove hooks, so the lock is not held while it runs.
        let hooks = lock(list).clone();
        for (_, hook) in hooks {
            let Some(replaced) = hook(&gradient)? else { continue };
            if replaced.shape() != gradient.shape() || replaced.dtype() != gradient.dtype() {
                let what = format!(
                    "a hook replaced a gradient of shape {} and dtype {} by one of shape {} and dtype {}",
                    gradient.shape(),
                    gradient.dtype(),
                    replaced.shape(),
                    replaced.dtype()
                );
                return Err(Error::NoGradient { op: "register_hook", what });
            }
            gradient = replaced;
        }
        Ok(gradient)
    }
}

impl HookHandle {
    /// Takes the hook away; nothing happens if it or its tensor is gone.
    pub fn remove(&self) {
        if let Some(list) = self.list.upgrade() {
            // Dropped after the lock: what the hook captured may itself hold tensors.
            let removed = {
                let mut hooks = lock(&list);
                hooks.iter().position(|(number, _)| *number == self.number).map(|at| hooks.remove(at))
            };
            drop(removed);
        }
    }
}

impl fmt::Debug for HookHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookHandle({})", self.number)
    }
}
