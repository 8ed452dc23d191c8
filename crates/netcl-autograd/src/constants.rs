//! Copies of weights in another dtype that outlive a call: for loops in which nobody writes to the weights, as generation is.
//!
//! A recorded step casts a weight at every replay, since somebody may have written to it since. GPT-2 small in bfloat16 spent 50 of
//! the 183 launches of a token so.

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use netcl_core::kernels::launch;
use netcl_core::tensor::Tensor as Raw;

use crate::error::Result;

/// A weight, which keeps its address from being given to another, its version, and the copy.
struct Kept {
    source: Raw,
    version: u64,
    copy: Raw,
}

thread_local! {
    /// For each scope, innermost last, copies by the addresses of their weights.
    static SCOPES: RefCell<Vec<HashMap<usize, Vec<Kept>>>> = const { RefCell::new(Vec::new()) };
}

/// A scope of this thread in which nobody writes to weights between the replays of what is recorded in it.
pub struct ConstantWeights(PhantomData<*const ()>);

/// Opens a scope in which weights are constant; it ends with the returned value.
///
/// What is recorded inside reads the copies that were made before the recording, and must not be replayed once weights have changed.
#[must_use = "the scope ends with the value"]
pub fn constant_weights() -> ConstantWeights {
    SCOPES.with_borrow_mut(|scopes| scopes.push(HashMap::new()));
    ConstantWeights(PhantomData)
}

impl Drop for ConstantWeights {
    fn drop(&mut self) {
        // What it holds is freed after the borrow.
        let _ended = SCOPES.with_borrow_mut(Vec::pop);
    }
}

/// A weight in the dtype that sums have, where a scope keeps such a copy; `None` leaves the cast to the operation.
pub(crate) fn widened(weight: Option<&Raw>) -> Result<Option<Raw>> {
    let Some(weight) = weight.filter(|w| w.dtype() != w.dtype().accumulator()) else { return Ok(None) };
    let key = Arc::as_ptr(weight.storage()) as usize;
    let found = SCOPES.with_borrow(|scopes| {
        let scope = scopes.last()?;
        let same = |kept: &&Kept| kept.source.layout() == weight.layout() && kept.version == weight.storage().version();
        Some(scope.get(&key).and_then(|kept| kept.iter().find(same)).map(|kept| kept.copy.clone()))
    });
    match found {
        Some(None) if !launch::has_sink() => {
            let copy = weight.cast(weight.dtype().accumulator())?.contiguous()?;
            let kept = Kept { source: weight.clone(), version: weight.storage().version(), copy: copy.clone() };
            SCOPES.with_borrow_mut(|scopes| {
                if let Some(scope) = scopes.last_mut() {
                    scope.entry(key).or_default().push(kept);
                }
            });
            Ok(Some(copy))
        }
        found => Ok(found.flatten()),
    }
}

#[cfg(test)]
mod tests {
    use netcl_core::device::manager;
    use netcl_core::dtype::DType;

    use super::*;

    #[test]
    fn a_copy_lasts_until_its_weight_changes() {
        let weight = Raw::full(&manager().cpu().queue, [3], DType::BF16, 2.0).unwrap();
        assert!(widened(Some(&weight)).unwrap().is_none(), "no scope");
        let _scope = constant_weights();
        let first = widened(Some(&weight)).unwrap().unwrap();
        assert_eq!(first.to_host::<f32>().unwrap(), [2.0; 3]);
        assert!(widened(Some(&weight)).unwrap().unwrap().shares_storage(&first));
        weight.fill(3.0).unwrap();
        assert_eq!(widened(Some(&weight)).unwrap().unwrap().to_host::<f32>().unwrap(), [3.0; 3]);
        assert!(widened(Some(&first)).unwrap().is_none(), "wide already");
    }
}
