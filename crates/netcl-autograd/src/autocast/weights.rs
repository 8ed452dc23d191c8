//! The 16-bit copies of parameters: made once in the outermost scope, again after an update, and together.
//!
//! A step needs all its parameters in 16 bits, and a launch for each costs more than the casts themselves. Which parameters those are
//! nobody knows when the first is asked for, but the last step tells: what one scope has cast is cast in one launch from then on, when
//! the first of it is asked for. Recorded programs [join](netcl_core::kernels::recording) their casts themselves.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch;
use netcl_core::kernels::many::{self, CastPair};
use netcl_core::memory::QueueId;
use netcl_core::shape::Layout;
use netcl_core::storage::Storage;
use netcl_core::tensor::Tensor as Raw;

use crate::error::Result;
use crate::tensor::Tensor;

thread_local! {
    /// How many outermost scopes have begun.
    static SCOPES: Cell<u64> = const { Cell::new(0) };
    /// Whether this scope casts what the last one of its kind has cast.
    static AHEAD: Cell<bool> = const { Cell::new(false) };
    static WEIGHTS: RefCell<Weights> = RefCell::default();
}

/// The parameters that were cast on this thread.
#[derive(Default)]
struct Weights {
    /// By address; several where a storage is seen through several layouts, or cast to both dtypes.
    known: HashMap<usize, Vec<Weight>>,
    /// How many there were so far.
    count: u64,
}

/// A parameter that was cast, and its copy.
struct Weight {
    /// Held weakly: enough to keep its address from being given to another storage.
    source: Weak<Storage>,
    queue: Option<QueueId>,
    layout: Layout,
    dtype: DType,
    /// Its place in the order in which parameters were first cast.
    number: u64,
    /// The scope that cast it first: parameters of one scope are cast together.
    group: u64,
    copy: Copy,
}

/// A parameter's values in 16 bits.
struct Copy {
    /// The version that they are of.
    version: u64,
    layout: Layout,
    /// Weak where a recording made it, which holds it and alone may use it.
    storage: Weak<Storage>,
    /// Keeps it until the scope ends.
    held: Option<Arc<Storage>>,
    /// Whether it was asked for. One that was not may not be needed any more, and is not made again ahead.
    used: bool,
}

impl Weight {
    fn is(&self, storage: &Arc<Storage>, layout: &Layout, dtype: DType) -> bool {
        self.dtype == dtype && self.layout == *layout && std::ptr::eq(self.source.as_ptr(), Arc::as_ptr(storage))
    }

    /// The copy, where it is of this version and may be used now.
    fn current(&self, version: u64, repeating: bool) -> Option<Arc<Storage>> {
        let copy = &self.copy;
        let storage = copy.storage.upgrade().filter(|_| copy.version == version)?;
        // A recorded step casts the parameter at every replay: only a copy that it made itself will do.
        let usable = if repeating { !launch::is_from_outside(&storage) } else { copy.held.is_some() };
        usable.then_some(storage)
    }

    /// The parameter, which is of this queue, where it will be asked for and has no copy.
    fn wanted(&self, queue: &Queue) -> Option<Raw> {
        let storage = self.source.upgrade()?;
        // Writes that nobody notices between now and its use would be missed.
        let wanted = self.copy.used
            && self.current(storage.version(), false).is_none()
            && is_dense(&self.layout)
            && !storage.may_change_unnoticed();
        wanted.then(|| Raw::from_storage(queue, storage, self.layout.clone(), DType::F32).ok())?
    }
}

impl Weights {
    fn find(&mut self, storage: &Arc<Storage>, layout: &Layout, dtype: DType) -> Option<&mut Weight> {
        let weights = self.known.get_mut(&(Arc::as_ptr(storage) as usize))?;
        weights.iter_mut().find(|weight| weight.is(storage, layout, dtype))
    }

    /// The parameters that were first cast in the same scope as this one and will be asked for after it.
    fn companions(&mut self, x: &Raw, dtype: DType) -> Vec<Raw> {
        if !AHEAD.get() || !launch::may_run_ahead() || !is_dense(x.layout()) {
            return Vec::new();
        }
        let Some(first) = self.find(x.storage(), x.layout(), dtype) else { return Vec::new() };
        let (number, group) = (first.number, first.group);
        let is_companion = |weight: &&Weight| {
            weight.group == group && weight.dtype == dtype && weight.number != number && weight.queue == id(x.queue())
        };
        let companions = self.known.values().flatten().filter(is_companion);
        let mut wanted: Vec<(u64, Raw)> =
            companions.filter_map(|weight| Some((weight.number, weight.wanted(x.queue())?))).collect();
        wanted.sort_by_key(|(number, _)| *number);
        wanted.into_iter().map(|(_, source)| source).collect()
    }

    /// Notes the copy of a version. What is not needed any more is for the caller to free, after the borrow.
    fn note(&mut self, pair: &CastPair, version: u64, used: bool, hold: bool) -> (Option<Copy>, Vec<Vec<Weight>>) {
        let CastPair { source, target } = pair;
        let storage = target.storage();
        let held = hold.then(|| storage.clone());
        let copy = Copy { version, layout: target.layout().clone(), storage: Arc::downgrade(storage), held, used };
        if let Some(weight) = self.find(source.storage(), source.layout(), target.dtype()) {
            return (Some(std::mem::replace(&mut weight.copy, copy)), Vec::new());
        }
        // A scope around a whole program may see many models.
        let gone = self.forget();
        self.count += 1;
        let weight = Weight {
            source: Arc::downgrade(source.storage()),
            queue: id(source.queue()),
            layout: source.layout().clone(),
            dtype: target.dtype(),
            number: self.count,
            group: SCOPES.get(),
            copy,
        };
        self.known.entry(Arc::as_ptr(source.storage()) as usize).or_default().push(weight);
        (None, gone)
    }

    /// Forgets parameters that are gone; their copies are for the caller to free.
    fn forget(&mut self) -> Vec<Vec<Weight>> {
        let gone = |weight: &Weight| weight.source.strong_count() == 0;
        let gone: Vec<usize> =
            self.known.iter().filter(|(_, weights)| weights.iter().any(gone)).map(|(key, _)| *key).collect();
        gone.iter().filter_map(|key| self.known.remove(key)).collect()
    }
}

/// Begins an outermost scope; `ahead` says whether it casts parameters before they are asked for.
pub(super) fn begin(ahead: bool) {
    SCOPES.set(SCOPES.get() + 1);
    AHEAD.set(ahead);
}

/// Ends it: copies are freed, and it is remembered whose there were.
pub(super) fn end() {
    // The last thing a thread does may be to leave a scope. Copies are freed after the borrow.
    let _copies = WEIGHTS.try_with(|weights| {
        let mut weights = weights.borrow_mut();
        let gone = weights.forget();
        let ended = weights.known.values_mut().flatten().map(|weight| &mut weight.copy);
        // A graph may hold a copy for longer; another scope makes its own.
        let held: Vec<_> = ended.map(|copy| (std::mem::take(&mut copy.storage), copy.held.take())).collect();
        (gone, held)
    });
}

/// A parameter in a 16-bit dtype: the copy that the scope has, if nobody has written to the parameter since.
///
/// Values only: every use records a cast of its own, so that gradients are added in float32, and so that copies made under
/// `no_grad`, or used by a graph that was walked already, serve as well.
pub(super) fn copy(x: &Tensor, dtype: DType) -> Result<Raw> {
    let (storage, repeating) = (x.storage(), launch::is_repeating());
    if repeating && !launch::is_from_outside(storage) {
        // Memory of the recording itself, or a recording that does not know what it made.
        return Ok(x.raw().cast(dtype)?);
    }
    let found = WEIGHTS.with_borrow_mut(|weights| {
        let weight = weights.find(storage, x.layout(), dtype)?;
        let current = weight.current(storage.version(), repeating)?;
        weight.copy.used = true;
        Some(Raw::from_storage(x.queue(), current, weight.copy.layout.clone(), dtype))
    });
    if let Some(copy) = found {
        return Ok(copy?);
    }
    let companions = WEIGHTS.with_borrow_mut(|weights| weights.companions(x.raw(), dtype));
    let versions: Vec<u64> =
        [x.raw()].into_iter().chain(&companions).map(|source| source.storage().version()).collect();
    let pairs = if companions.is_empty() {
        vec![CastPair { source: x.raw().clone(), target: x.raw().cast(dtype)? }]
    } else {
        let sources = [x.raw().clone()].into_iter().chain(companions);
        let pairs = sources.map(|source| CastPair::new(source, dtype)).collect::<netcl_core::Result<Vec<_>>>()?;
        many::cast(&pairs)?;
        pairs
    };
    let made = pairs[0].target.clone();
    let _old: Vec<_> = WEIGHTS.with_borrow_mut(|weights| {
        let all = pairs.iter().zip(versions).enumerate();
        all.map(|(i, (pair, version))| weights.note(pair, version, i == 0, !repeating)).collect()
    });
    Ok(made)
}

/// What tells a queue from others, without keeping its device; the native CPU has one.
fn id(queue: &Queue) -> Option<QueueId> {
    match queue {
        Queue::Cpu(_) => None,
        Queue::OpenCl(stream) => Some(stream.id()),
    }
}

/// Whether one launch can cast it together with others.
fn is_dense(layout: &Layout) -> bool {
    layout.is_contiguous() || layout.is_channels_last()
}
