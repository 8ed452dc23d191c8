//! What is known about the memory of a list of operations: who writes it, who reads it, what may be moved.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use netcl_core::shape::Layout;
use netcl_core::tensor::Tensor as Raw;

use super::trace::{Composite, Kind, Op, StorageId, id};

/// A list of operations to compile, and what must be in memory when they are done.
pub(super) struct Listing {
    pub(super) ops: Vec<Op>,
    /// Storages that the list itself makes: nobody else sees them unless they are kept.
    pub(super) own: HashSet<StorageId>,
    /// Own storages that somebody reads afterwards.
    pub(super) kept: HashSet<StorageId>,
    /// Operations that were written down in parts.
    pub(super) composites: Arc<Vec<Composite>>,
}

pub(super) struct Facts {
    writers: HashMap<StorageId, Vec<usize>>,
    readers: HashMap<StorageId, Vec<(usize, usize)>>,
    own: HashSet<StorageId>,
    /// For each operation those before it that it must come after.
    pub(super) before: Vec<Vec<usize>>,
}

impl Facts {
    pub(super) fn new(listing: &Listing) -> Facts {
        let ops = &listing.ops;
        let mut writers: HashMap<StorageId, Vec<usize>> = HashMap::new();
        let mut readers: HashMap<StorageId, Vec<(usize, usize)>> = HashMap::new();
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); ops.len()];
        for (i, op) in ops.iter().enumerate() {
            for (k, storage) in op.reads().into_iter().enumerate() {
                before[i].extend(writers.get(&storage).and_then(|w| w.last()));
                readers.entry(storage).or_default().push((i, k));
            }
            for storage in op.writes() {
                before[i].extend(writers.get(&storage).and_then(|w| w.last()));
                before[i].extend(readers.get(&storage).into_iter().flatten().map(|(reader, _)| *reader));
                writers.entry(storage).or_default().push(i);
            }
            before[i].retain(|&other| other != i);
            before[i].sort_unstable();
            before[i].dedup();
        }
        Facts { writers, readers, own: listing.own.clone(), before }
    }

    fn writers(&self, storage: StorageId) -> &[usize] {
        self.writers.get(&storage).map(Vec::as_slice).unwrap_or_default()
    }

    /// Who reads a storage: operation and input.
    pub(super) fn readers(&self, storage: StorageId) -> &[(usize, usize)] {
        self.readers.get(&storage).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether a storage has one value for the whole list: it is made once, or only read.
    fn is_stable(&self, storage: StorageId) -> bool {
        match self.writers(storage) {
            [] => true,
            [_] => self.own.contains(&storage),
            _ => false,
        }
    }

    /// Whether an operation has to stay where it is: it writes in place, touches what is written in place, or is a launch that
    /// nobody has described.
    pub(super) fn is_pinned(&self, op: &Op) -> bool {
        matches!(op.kind, Kind::Opaque(_))
            || op.reads().into_iter().chain(op.writes()).any(|storage| !self.is_stable(storage))
            || op.outputs.iter().any(|out| !is_whole(out) || !self.own.contains(&id(out.storage())))
    }

    /// The operation that makes a value, if it is one that fusion can look into.
    pub(super) fn producer(&self, ops: &[Op], value: &Raw) -> Option<usize> {
        let &[writer] = self.writers(id(value.storage())) else { return None };
        let op = &ops[writer];
        let found = op.outputs.iter().any(|out| out.shares_storage(value) && out.dtype() == value.dtype());
        (found && !self.is_pinned(op)).then_some(writer)
    }
}

/// Whether a tensor is all of its storage, in row-major order.
pub(super) fn is_whole(tensor: &Raw) -> bool {
    let layout: &Layout = tensor.layout();
    layout.offset() == 0 && layout.is_contiguous() && tensor.size() * tensor.dtype().size() == tensor.storage().nbytes()
}

/// Whether two tensors are the same view of the same value.
pub(super) fn same_view(a: &Raw, b: &Raw) -> bool {
    a.shares_storage(b) && a.layout() == b.layout() && a.dtype() == b.dtype()
}
