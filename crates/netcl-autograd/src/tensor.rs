//! The tensor users hold: a raw tensor and its place in autograd.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use netcl_core::backend::Queue;
use netcl_core::dtype::{DType, Element};
use netcl_core::shape::Shape;
use netcl_core::tensor::{self as raw, HostOptions};

use crate::error::{Error, Result};
use crate::graph::{self, BackwardOptions, Edge, HookHandle, Hooks, Node};

/// An n-dimensional array on a device that can take part in automatic differentiation.
///
/// It dereferences to the raw [`netcl_core::tensor::Tensor`], whose methods it has. Clones are the same tensor: they
/// share values, `requires_grad` and `grad`.
///
/// ```
/// use netcl_autograd::{Tensor, core::{device::manager, dtype::DType}};
///
/// let queue = manager().cpu().queue;
/// let weight = Tensor::from_shape(&queue, [3, 4], DType::F32)?.with_grad();
/// assert!(weight.requires_grad() && weight.grad().is_none());
/// assert!(!weight.detach().requires_grad());
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    raw: raw::Tensor,
    cell: Arc<GradCell>,
    /// The op that made it; `None` for leaves.
    node: Option<Arc<Node>>,
}

/// What autograd knows of a leaf; shared by the tensor's clones, not by its views.
#[derive(Default)]
pub struct GradCell {
    requires_grad: AtomicBool,
    /// Whether a compiled function depends on the flag.
    watched: AtomicBool,
    grad: Mutex<Option<Tensor>>,
    /// The op that made the values out of tensors that need gradients, without recording.
    unrecorded: Mutex<Option<&'static str>>,
    pub(crate) hooks: Hooks,
}

impl GradCell {
    pub(crate) fn requires_grad(&self) -> bool {
        self.requires_grad.load(Ordering::Acquire)
    }

    fn set_requires_grad(&self, requires_grad: bool) {
        if self.requires_grad.swap(requires_grad, Ordering::AcqRel) != requires_grad
            && self.watched.load(Ordering::Acquire)
        {
            crate::jit::facts_changed();
        }
    }

    /// Lets compiled functions know when the flag changes.
    pub(crate) fn watch(&self) {
        self.watched.store(true, Ordering::Release);
    }

    pub(crate) fn grad(&self) -> Option<Tensor> {
        self.grad.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_grad(&self, grad: Option<Tensor>) {
        // The old gradient is dropped after the lock: freeing memory may take a while.
        let _old = std::mem::replace(&mut *self.grad.lock().unwrap_or_else(PoisonError::into_inner), grad);
    }
}

impl From<raw::Tensor> for Tensor {
    fn from(raw: raw::Tensor) -> Self {
        Tensor { raw, cell: Arc::default(), node: None }
    }
}

impl Deref for Tensor {
    type Target = raw::Tensor;
    fn deref(&self) -> &raw::Tensor {
        &self.raw
    }
}

impl Tensor {
    /// Copies host data into a new tensor of the data's dtype; see [`netcl_core::tensor::Tensor::from_host`].
    pub fn from_host<T: Element>(queue: &Queue, data: &[T], shape: impl Into<Shape>) -> Result<Tensor> {
        Ok(raw::Tensor::from_host(queue, data, shape)?.into())
    }

    /// [`Tensor::from_host`] with a cast on copy or a chosen transfer path.
    pub fn from_host_with<T: Element>(
        queue: &Queue,
        data: &[T],
        shape: impl Into<Shape>,
        options: HostOptions,
    ) -> Result<Tensor> {
        Ok(raw::Tensor::from_host_with(queue, data, shape, options)?.into())
    }

    /// A new tensor filled with zeros.
    pub fn from_shape(queue: &Queue, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        Ok(raw::Tensor::from_shape(queue, shape, dtype)?.into())
    }

    /// A new tensor filled with a value.
    pub fn full(queue: &Queue, shape: impl Into<Shape>, dtype: DType, fill: f64) -> Result<Tensor> {
        Ok(raw::Tensor::full(queue, shape, dtype, fill)?.into())
    }

    /// The raw tensor.
    pub fn raw(&self) -> &raw::Tensor {
        &self.raw
    }

    /// Whether ops that consume this tensor are recorded: set by hand on a leaf, inherited by results.
    pub fn requires_grad(&self) -> bool {
        self.needs_grad()
    }

    /// Sets [`Tensor::requires_grad`] of a leaf.
    ///
    /// # Errors
    /// For a result of a recorded op: its flag follows from its inputs; use [`Tensor::detach`].
    pub fn set_requires_grad(&self, requires_grad: bool) -> Result<()> {
        if let Some(node) = self.node.as_ref().filter(|_| !requires_grad) {
            let what = format!("the tensor is the result of {}; use detach() to cut it off", node.op());
            return Err(Error::NoGradient { op: "requires_grad", what });
        }
        self.cell.set_requires_grad(requires_grad);
        Ok(())
    }

    /// This tensor with `requires_grad` set, for building leaves in one expression.
    pub fn with_grad(self) -> Tensor {
        self.cell.set_requires_grad(true);
        self
    }

    /// Whether it was made by the user rather than by a recorded op.
    pub fn is_leaf(&self) -> bool {
        self.node.is_none()
    }

    /// The op that made it.
    pub fn grad_fn(&self) -> Option<&Arc<Node>> {
        self.node.as_ref()
    }

    /// The gradient accumulated so far; only leaves have one.
    pub fn grad(&self) -> Option<Tensor> {
        self.cell.grad()
    }

    /// Replaces the accumulated gradient.
    pub fn set_grad(&self, grad: Option<Tensor>) {
        self.cell.set_grad(grad);
    }

    /// The op through which this tensor depends on others that need gradients without having recorded it: a walk that would go
    /// through it is an error that names the op.
    pub fn unrecorded(&self) -> Option<&'static str> {
        *self.cell.unrecorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets [`Tensor::unrecorded`], for layers that run ops on raw tensors; see [`graph::unrecorded`]. [`Tensor::detach`] gives a
    /// tensor without it.
    pub fn set_unrecorded(&self, op: Option<&'static str>) {
        *self.cell.unrecorded.lock().unwrap_or_else(PoisonError::into_inner) = op;
    }

    /// Registers a function that sees this tensor's gradient, once it is complete and before it flows on, and may replace it.
    ///
    /// On a leaf it sees what one walk contributes, before that is added to [`Tensor::grad`].
    ///
    /// # Errors
    /// For a tensor without a gradient: the hook could never run.
    pub fn register_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        if !self.needs_grad() {
            let what = "the tensor does not require a gradient, so the hook would never run".to_owned();
            return Err(Error::NoGradient { op: "register_hook", what });
        }
        let hooks = self.node.as_ref().map_or(&self.cell.hooks, |node| &node.hooks);
        Ok(hooks.add(Arc::new(hook)))
    }

    /// Computes the gradients of this one-element tensor and accumulates them on the leaves.
    pub fn backward(&self) -> Result<()> {
        graph::backward(self, None, BackwardOptions::default())
    }

    /// [`Tensor::backward`] from a given gradient, keeping or recording the graph.
    pub fn backward_with(&self, gradient: Option<&Tensor>, options: BackwardOptions) -> Result<()> {
        graph::backward(self, gradient, options)
    }

    pub(crate) fn needs_grad(&self) -> bool {
        if self.node.is_some() {
            return true;
        }
        let flag = self.cell.requires_grad();
        crate::jit::saw(&self.cell, flag);
        flag
    }

    /// What autograd knows of this leaf.
    pub(crate) fn cell(&self) -> &Arc<GradCell> {
        &self.cell
    }

    /// Where this tensor's gradient flows to.
    pub(crate) fn edge(&self) -> Edge {
        match &self.node {
            Some(node) => Edge::Node(node.clone()),
            None if self.needs_grad() => Edge::Leaf(self.cell.clone()),
            None => self.unrecorded().map_or(Edge::None, Edge::Unrecorded),
        }
    }

    /// A value whose gradient flows to a known place.
    pub(crate) fn with_edge(raw: raw::Tensor, edge: Edge) -> Tensor {
        match edge {
            Edge::Node(node) | Edge::Output(node, _) => Tensor { raw, cell: Arc::default(), node: Some(node) },
            Edge::Leaf(cell) => Tensor { raw, cell, node: None },
            Edge::Unrecorded(op) => {
                let tensor = Tensor::from(raw);
                tensor.set_unrecorded(Some(op));
                tensor
            }
            Edge::None => raw.into(),
        }
    }

    /// The same values, cut off from autograd; the storage is shared.
    pub fn detach(&self) -> Tensor {
        self.raw.clone().into()
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.raw.to_string();
        match text.strip_suffix(')') {
            Some(body) if self.requires_grad() => write!(f, "{body}, requires_grad=True)"),
            _ => f.write_str(&text),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.raw, f)
    }
}
