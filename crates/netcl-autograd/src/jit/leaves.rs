//! Whether tensors that a function has found itself need gradients: decided outside of the function, so looked up in every call.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use crate::tensor::{GradCell, Tensor};

/// Tensors whose flag a trace has asked for, and what it was.
#[derive(Default)]
pub(super) struct Leaves(Vec<(Weak<GradCell>, bool)>);

impl Leaves {
    /// Whether all of them have the flag that they had. Those that are gone cannot be asked for any more.
    pub(super) fn are_unchanged(&self) -> bool {
        self.0.iter().all(|(leaf, was)| leaf.upgrade().is_none_or(|leaf| leaf.requires_grad() == *was))
    }

    /// Without tensors that the key of a plan knows.
    pub(super) fn without<'t>(mut self, known: impl Iterator<Item = &'t Tensor> + Clone) -> Leaves {
        self.0.retain(|(leaf, _)| known.clone().all(|tensor| leaf.as_ptr() != Arc::as_ptr(tensor.cell())));
        self
    }
}

thread_local! {
    static WATCHED: RefCell<Option<Leaves>> = const { RefCell::new(None) };
}

/// Notes that a leaf's flag was asked for, if a trace is watching.
pub(crate) fn saw(leaf: &Arc<GradCell>, flag: bool) {
    WATCHED.with_borrow_mut(|watched| {
        if let Some(Leaves(seen)) = watched
            && !seen.iter().any(|(known, _)| known.as_ptr() == Arc::as_ptr(leaf))
        {
            seen.push((Arc::downgrade(leaf), flag));
        }
    });
}

/// Runs a trace and finds the leaves that it has asked for and that outlive it.
pub(super) fn watch<R>(trace: impl FnOnce() -> R) -> (R, Leaves) {
    struct Scope(Option<Leaves>);
    impl Drop for Scope {
        fn drop(&mut self) {
            WATCHED.set(self.0.take());
        }
    }
    let outer = Scope(WATCHED.replace(Some(Leaves::default())));
    let result = trace();
    let mut leaves = WATCHED.take().unwrap_or_default();
    drop(outer);
    // What the trace made itself is gone by now.
    leaves.0.retain(|(leaf, _)| leaf.strong_count() > 0);
    (result, leaves)
}
