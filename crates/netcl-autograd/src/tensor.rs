//! The tensor users hold: a raw tensor and its place in autograd.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use netcl_core::device::AsDevice;
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
/// use netcl_autograd::{DType, Tensor, manager};
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
    origin: Origin,
}

/// Where a tensor comes from.
#[derive(Clone)]
enum Origin {
    /// Made by the user.
    Leaf {
        /// How many moves of the leaf `raw` has followed.
        moves: u64,
    },
    /// Made by a recorded op.
    Result {
        node: Arc<Node>,
        /// The storage's version when it was recorded: a later one means that the values are no longer that op's.
        version: u64,
    },
}

impl Origin {
    const LEAF: Origin = Origin::Leaf { moves: 0 };
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
    /// Those that see the gradient once it is accumulated.
    pub(crate) accumulated: Hooks,
    /// How often the leaf was moved; see [`Tensor::move_to`].
    moves: AtomicU64,
    /// Where it went last.
    home: Mutex<Option<raw::Tensor>>,
}

impl GradCell {
    /// A gradient in the dtype and on the device that the leaf has now: it may have moved since it was recorded.
    pub(crate) fn fitted(&self, gradient: Tensor) -> Result<Tensor> {
        if self.moves.load(Ordering::Acquire) == 0 {
            return Ok(gradient);
        }
        match self.home.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            Some(home) => gradient.cast(home.dtype())?.to(home.queue()),
            None => Ok(gradient),
        }
    }

    pub(crate) fn requires_grad(&self) -> bool {
        self.requires_grad.load(Ordering::Acquire)
    }

    fn set_requires_grad(&self, requires_grad: bool) {
        if self.requires_grad.swap(requires_grad, Ordering::AcqRel) != requires_grad {
            self.facts_changed();
        }
    }

    fn facts_changed(&self) {
        if self.watched.load(Ordering::Acquire) {
            crate::jit::facts_changed();
        }
    }

    /// Lets compiled functions know when the flag or the memory changes.
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
        Tensor { raw, cell: Arc::default(), origin: Origin::LEAF }
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
    pub fn from_host<T: Element>(device: impl AsDevice, data: &[T], shape: impl Into<Shape>) -> Result<Tensor> {
        Tensor::from_host_with(device, data, shape, HostOptions::default())
    }

    /// [`Tensor::from_host`] with a cast on copy or a chosen transfer path.
    pub fn from_host_with<T: Element>(
        device: impl AsDevice,
        data: &[T],
        shape: impl Into<Shape>,
        options: HostOptions,
    ) -> Result<Tensor> {
        let options = HostOptions { dtype: options.dtype.or(device.dtype()), ..options };
        Ok(raw::Tensor::from_host_with(&device.queue()?, data, shape, options)?.into())
    }

    /// A new tensor filled with zeros.
    pub fn from_shape(device: impl AsDevice, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        Ok(raw::Tensor::from_shape(&device.queue()?, shape, dtype)?.into())
    }

    /// A new tensor filled with a value.
    pub fn full(device: impl AsDevice, shape: impl Into<Shape>, dtype: DType, fill: f64) -> Result<Tensor> {
        Ok(raw::Tensor::full(&device.queue()?, shape, dtype, fill)?.into())
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
        if let Some(node) = self.grad_fn().filter(|_| !requires_grad) {
            let what = format!("the tensor is the result of {}; use detach() to cut it off", node.op());
            return Err(Error::NoGradient { op: "requires_grad", what });
        }
        if requires_grad {
            self.raw.check_float("requires_grad")?;
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
        matches!(self.origin, Origin::Leaf { .. })
    }

    /// The op that made it.
    pub fn grad_fn(&self) -> Option<&Arc<Node>> {
        match &self.origin {
            Origin::Result { node, .. } => Some(node),
            Origin::Leaf { .. } => None,
        }
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
        let hooks = self.grad_fn().map_or(&self.cell.hooks, |node| &node.hooks);
        Ok(hooks.add(Arc::new(hook)))
    }

    /// Registers a function that sees [`Tensor::grad`] of this leaf as soon as a walk has added all that it contributes, while the walk
    /// goes on with other leaves; what it returns replaces the gradient.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use netcl_autograd::{Tensor, manager, ops::elementwise::mul};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[3.0f32], [1])?.with_grad();
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let sums = seen.clone();
    /// x.register_post_accumulate_grad_hook(move |sum| {
    ///     sums.lock().unwrap().push(sum.item()?);
    ///     Ok(None)
    /// })?;
    /// mul(&x, &x)?.backward()?;
    /// mul(&x, &x)?.backward()?;
    /// assert_eq!(*seen.lock().unwrap(), [6.0, 12.0]);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    ///
    /// # Errors
    /// For anything but a leaf that requires a gradient: nothing is accumulated there.
    pub fn register_post_accumulate_grad_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        if !self.is_leaf() || !self.needs_grad() {
            let what =
                "gradients are accumulated on leaves that require one: use register_hook for a result".to_owned();
            return Err(Error::NoGradient { op: "register_post_accumulate_grad_hook", what });
        }
        graph::AWAITED.store(true, Ordering::Release);
        Ok(self.cell.accumulated.add(Arc::new(hook)))
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
        if !self.is_leaf() {
            return true;
        }
        let flag = self.cell.requires_grad();
        crate::jit::saw(&self.cell, flag);
        flag
    }

    /// Whether two are one tensor: the same values with the same gradient, as clones are.
    pub fn is(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.cell, &other.cell)
    }

    /// What autograd knows of this leaf.
    pub(crate) fn cell(&self) -> &Arc<GradCell> {
        &self.cell
    }

    /// Where this tensor's gradient flows to: for a result that was overwritten since, to an error that says so.
    pub(crate) fn edge(&self) -> Edge {
        match &self.origin {
            Origin::Result { node, .. } if self.is_overwritten() => graph::overwritten(node),
            _ => self.place(),
        }
    }

    /// Whether this is the result of a recorded op whose memory was written since, so that the values are no longer that op's.
    pub fn is_overwritten(&self) -> bool {
        matches!(self.origin, Origin::Result { version, .. } if self.raw.version() != version)
    }

    /// [`Tensor::edge`], whatever has become of the values.
    pub(crate) fn place(&self) -> Edge {
        match &self.origin {
            Origin::Result { node, .. } => Edge::Node(node.clone()),
            Origin::Leaf { .. } if self.needs_grad() => Edge::Leaf(self.cell.clone()),
            Origin::Leaf { .. } => self.unrecorded().map_or(Edge::None, Edge::Unrecorded),
        }
    }

    /// A value whose gradient flows to a known place.
    pub(crate) fn with_edge(raw: raw::Tensor, edge: Edge) -> Tensor {
        match edge {
            Edge::Node(node) | Edge::Output(node, _) => {
                let origin = Origin::Result { node, version: raw.version() };
                Tensor { raw, cell: Arc::default(), origin }
            }
            Edge::Leaf(cell) => {
                let moves = cell.moves.load(Ordering::Acquire);
                Tensor { raw, cell, origin: Origin::Leaf { moves } }
            }
            Edge::Unrecorded(op) => {
                let tensor = Tensor::from(raw);
                tensor.set_unrecorded(Some(op));
                tensor
            }
            Edge::None => raw.into(),
        }
    }

    /// Accepts the values as they are now as those of the op that made the tensor.
    pub(crate) fn accept_values(&mut self) {
        if let Origin::Result { version, .. } = &mut self.origin {
            *version = self.raw.version();
        }
    }

    /// Puts other values, of the same shape, into the place of a leaf: on another device, or in another dtype. It stays the same
    /// leaf for the graph, for hooks, and for everyone who holds a clone, who sees the new values through [`Tensor::latest`]; its
    /// gradient goes along.
    ///
    /// # Errors
    /// For a result of a recorded op, for values of another shape, and where the gradient cannot follow.
    pub fn move_to(&mut self, values: raw::Tensor) -> Result<()> {
        if let Some(node) = self.grad_fn() {
            let what =
                format!("the tensor is the result of {}, which stays where it is; use to() for a copy", node.op());
            return Err(Error::NoGradient { op: "move_to", what });
        }
        if values.shape() != self.raw.shape() {
            let why = format!("the tensor that moves has shape {}", self.raw.shape());
            return Err(netcl_core::Error::Shape { op: "move_to", shape: values.shape().clone(), why }.into());
        }
        let grad = match self.grad() {
            Some(grad) => Some(Tensor::from(grad.raw().cast(values.dtype())?.to(values.queue())?)),
            None => None,
        };
        let mut home = self.cell.home.lock().unwrap_or_else(PoisonError::into_inner);
        let _old = home.replace(values.clone());
        let moves = self.cell.moves.fetch_add(1, Ordering::AcqRel) + 1;
        drop(home);
        self.cell.facts_changed();
        self.cell.set_grad(grad);
        self.raw.storage().leave();
        self.raw = values;
        self.origin = Origin::Leaf { moves };
        Ok(())
    }

    /// Whether the leaf was moved since this clone of it was made.
    pub fn has_moved(&self) -> bool {
        matches!(self.origin, Origin::Leaf { moves } if moves != self.cell.moves.load(Ordering::Acquire))
    }

    /// The leaf where it is now; see [`Tensor::move_to`]. Any other tensor is itself.
    ///
    /// ```
    /// use netcl_autograd::{DType, Tensor, manager};
    ///
    /// let weight = Tensor::from_host(&manager().cpu().queue, &[1.0f32], [1])?.with_grad();
    /// let mut held = weight.clone();
    /// held.move_to(weight.raw().cast(DType::F64)?)?;
    /// assert!(weight.has_moved() && weight.dtype() == DType::F32);
    /// assert_eq!(weight.latest().dtype(), DType::F64);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    pub fn latest(&self) -> Tensor {
        if !self.has_moved() {
            return self.clone();
        }
        let home = self.cell.home.lock().unwrap_or_else(PoisonError::into_inner);
        let moves = self.cell.moves.load(Ordering::Acquire);
        let raw = home.as_ref().unwrap_or(&self.raw).clone();
        Tensor { raw, cell: self.cell.clone(), origin: Origin::Leaf { moves } }
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
