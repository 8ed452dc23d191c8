//! Tensors that a function uses beside its arguments, and what a plan's key says of them, worked out once for many calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cache::{describe, number};
use crate::tensor::Tensor;

/// Raised by every change of what a key says of a tensor that is captured somewhere: its flag, its memory.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Notes that a captured tensor needs a gradient now, or does not any more, or has other memory.
pub(crate) fn facts_changed() {
    CHANGES.fetch_add(1, Ordering::AcqRel);
}

/// Tensors that a function uses beside its arguments.
///
/// A network has hundreds of them, so that they are looked at once, and again when [`Captures::are_current`] says so.
#[derive(Default)]
pub struct Captures {
    tensors: Vec<Tensor>,
    digest: [u8; 32],
    /// The first tensor of each memory.
    homes: HashMap<usize, usize>,
    changes: u64,
}

impl Captures {
    /// Looks at tensors.
    pub fn new(tensors: Vec<Tensor>) -> Captures {
        if tensors.is_empty() {
            return Captures::default();
        }
        // Before the tensors are looked at: a change meanwhile is seen by the next call.
        let changes = CHANGES.load(Ordering::Acquire);
        let mut homes = HashMap::with_capacity(tensors.len());
        let mut key = Vec::with_capacity(96 * tensors.len());
        for (i, tensor) in tensors.iter().enumerate() {
            tensor.cell().watch();
            describe(&mut key, tensor);
            let home = if tensor.size() == 0 { i } else { *homes.entry(tensor.storage().identity()).or_insert(i) };
            number(&mut key, home as u64);
        }
        Captures { digest: *blake3::hash(&key).as_bytes(), tensors, homes, changes }
    }

    /// The tensors, in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Whether no captured tensor has changed in what a key says of it since these were looked at.
    pub fn are_current(&self) -> bool {
        self.tensors.is_empty() || CHANGES.load(Ordering::Acquire) == self.changes
    }

    /// Which tensors these are, rather than of what kind: the same for the same memory, seen in the same way.
    pub fn identity(&self) -> [u8; 32] {
        let mut key = Vec::with_capacity(32 + 16 * self.tensors.len());
        key.extend(self.digest);
        for tensor in &self.tensors {
            number(&mut key, tensor.storage().identity() as u64);
            // Whole numbers have no gradient: their cell is made whenever somebody looks at them.
            let cell = if tensor.dtype().is_float() { Arc::as_ptr(tensor.cell()) as u64 } else { 0 };
            number(&mut key, cell);
        }
        *blake3::hash(&key).as_bytes()
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The first of the tensors that shares a tensor's memory.
    pub(super) fn sharing(&self, tensor: &Tensor) -> Option<usize> {
        if self.homes.is_empty() || tensor.size() == 0 {
            return None;
        }
        self.homes.get(&tensor.storage().identity()).copied()
    }
}
