//! What a tensor object holds at the moment.
//!
//! The object is the user's name for a tensor and outlives what it holds: a recorded write in place makes it the result of another
//! node, and a module that moves puts its parameters on another device without replacing them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use netcl::autograd::graph::grad_enabled;
use netcl::autograd::in_place::{View, part};
use netcl::core::shape::Shape;
use netcl::core::storage::Storage;
use pyo3::prelude::*;

use super::Tensor;
use crate::ndarray;

pub(super) struct Held {
    tensor: Arc<netcl::Tensor>,
    base: Option<Base>,
    /// The ndarray over CPU memory: made once for a storage, so that `t.to_host() is t.array`.
    array: Option<(Weak<Storage>, Option<Py<PyAny>>)>,
}

/// The tensor that another one is a view of.
struct Base {
    tensor: Py<Tensor>,
    /// Which elements of it; `None` where a write to the view is none to the base for autograd (`detach`).
    view: Option<View>,
    /// Whether the base was the result of a recorded operation when the view was made.
    recorded: bool,
}

impl Held {
    /// What to hold instead: the leaf where it has moved to, or the view of what recorded writes have made of the base.
    fn followed(&self) -> Option<netcl::Tensor> {
        if self.tensor.has_moved() {
            return Some(self.tensor.latest());
        }
        let Base { tensor: base, view: Some(view), recorded } = self.base.as_ref()? else { return None };
        let late = || !recorded && self.tensor.is_leaf() && !self.tensor.requires_grad();
        if !grad_enabled() || !(self.tensor.is_overwritten() || late()) {
            return None;
        }
        let base = base.get().inner();
        if base.is_leaf() || base.is_overwritten() || !base.shares_storage(&self.tensor) {
            return None;
        }
        part(&base, view).ok()
    }
}

impl Tensor {
    pub(crate) fn new(inner: netcl::Tensor) -> Self {
        Tensor::holding(inner, None)
    }

    /// A view of another tensor; `view` says of which elements, unless it is cut off from it.
    pub(crate) fn view(inner: netcl::Tensor, base: &Bound<'_, Tensor>, view: Option<View>) -> Self {
        Tensor::part_of(inner, (base, &base.get().inner()), view)
    }

    /// [`Tensor::view`] of a tensor, and what it holds.
    pub(super) fn part_of(
        inner: netcl::Tensor,
        (base, held): (&Bound<'_, Tensor>, &netcl::Tensor),
        view: Option<View>,
    ) -> Self {
        Tensor::holding(inner, Some(Base { tensor: base.clone().unbind(), view, recorded: !held.is_leaf() }))
    }

    /// Whether its elements are floats, of a tensor that has no other owner yet.
    pub(crate) fn is_float(&mut self) -> bool {
        self.held.get_mut().unwrap_or_else(PoisonError::into_inner).tensor.dtype().is_float()
    }

    fn holding(inner: netcl::Tensor, base: Option<Base>) -> Self {
        let held = Held { tensor: Arc::new(inner), base, array: None };
        Tensor { held: Mutex::new(held), grad_fn: Mutex::new(None) }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tensor of the moment.
    pub(crate) fn inner(&self) -> Arc<netcl::Tensor> {
        let held = self.lock();
        let Some(next) = held.followed() else { return held.tensor.clone() };
        drop(held);
        self.hold(next)
    }

    /// Remembers the operation that lost a gradient in making the values, or that none did. A leaf that requires a gradient starts
    /// a graph whatever its values are made of.
    pub(crate) fn remember_unrecorded(&self, lost: Option<&'static str>) {
        let inner = self.inner();
        if !inner.requires_grad() {
            inner.set_unrecorded(lost);
        }
    }

    /// Holds another tensor from now on.
    pub(super) fn hold(&self, tensor: netcl::Tensor) -> Arc<netcl::Tensor> {
        let tensor = Arc::new(tensor);
        let mut held = self.lock();
        let old = std::mem::replace(&mut held.tensor, tensor.clone());
        // In other memory it is no view any more.
        let gone = if old.shares_storage(&tensor) { None } else { Some((held.base.take(), held.array.take())) };
        drop(held);
        // Not under the lock: the last owner of memory may have to wait for it.
        drop((old, gone));
        tensor
    }

    /// The tensor this one is a view of.
    pub(super) fn base<'py>(&self, py: Python<'py>) -> Option<Bound<'py, Tensor>> {
        self.lock().base.as_ref().map(|base| base.tensor.bind(py).clone())
    }

    /// The tensor that this one is a view of, maybe through other views, as far as writes to the view are writes to it.
    pub(super) fn root<'py>(&self, py: Python<'py>) -> Option<(Bound<'py, Tensor>, View)> {
        let (base, view) = {
            let held = self.lock();
            let base = held.base.as_ref()?;
            (base.tensor.bind(py).clone(), base.view.clone()?)
        };
        if !base.get().inner().shares_storage(&self.inner()) {
            return None;
        }
        let Some((root, outer)) = base.get().root(py) else { return Some((base, view)) };
        Some((root, Arc::new(move |layout| view(&outer(layout)?))))
    }

    /// The tensor's CPU memory as an ndarray, if NumPy can have it.
    pub(super) fn shared<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let tensor = self.inner();
        if tensor.backend().name() != "cpu" {
            return Ok(None);
        }
        let known = |held: &Held| match &held.array {
            Some((storage, array)) if std::ptr::eq(storage.as_ptr(), Arc::as_ptr(tensor.storage())) => {
                Some(array.as_ref().map(|array| array.bind(py).clone()))
            }
            _ => None,
        };
        if let Some(array) = known(&self.lock()) {
            return Ok(array);
        }
        let array = match ndarray::share(py, tensor.raw())? {
            None if tensor.size() == 0 => Some(ndarray::copy_out(py, tensor.raw())?),
            other => other,
        };
        let mut held = self.lock();
        // Another thread may have been faster.
        if let Some(array) = known(&held) {
            return Ok(array);
        }
        let made = (Arc::downgrade(tensor.storage()), array.clone().map(Bound::unbind));
        let old = held.array.replace(made);
        drop(held);
        drop(old);
        Ok(array)
    }
}

/// The view that a reshape is where strides can express it.
pub(crate) fn reshaping(shape: Shape) -> View {
    Arc::new(move |layout| {
        layout.reshape(&shape)?.ok_or_else(|| {
            let what = format!("the tensor's memory cannot be seen as {shape}");
            netcl::core::Error::argument("reshape", what)
        })
    })
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // The last owner of memory waits for an upload out of pageable memory: other Python threads run meanwhile.
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        let storage = held.tensor.storage();
        let last = Arc::strong_count(storage) == 1;
        if let Some(memory) = storage.cl_memory().filter(|memory| last && memory.upload().is_some()) {
            // Errors have nobody to go to; the storage's own drop deals with them.
            let _ = Python::try_attach(|py| py.detach(|| memory.wait()));
        }
    }
}
