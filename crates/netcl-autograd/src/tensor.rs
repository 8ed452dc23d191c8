//! The tensor users hold: a raw tensor and its place in autograd.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::dtype::{DType, Element};
use netcl_core::shape::Shape;
use netcl_core::tensor::{self as raw, HostOptions};

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
/// # Ok::<(), netcl_autograd::core::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    raw: raw::Tensor,
    grad: Arc<GradCell>,
}

/// What autograd knows of a tensor; shared by its clones, not by its views.
#[derive(Default)]
struct GradCell {
    requires_grad: AtomicBool,
    grad: Mutex<Option<Tensor>>,
}

impl From<raw::Tensor> for Tensor {
    fn from(raw: raw::Tensor) -> Self {
        Tensor { raw, grad: Arc::default() }
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

    /// Whether ops that consume this tensor are recorded.
    pub fn requires_grad(&self) -> bool {
        self.grad.requires_grad.load(Ordering::Acquire)
    }

    /// Sets [`Tensor::requires_grad`].
    pub fn set_requires_grad(&self, requires_grad: bool) {
        self.grad.requires_grad.store(requires_grad, Ordering::Release);
    }

    /// This tensor with `requires_grad` set, for building leaves in one expression.
    pub fn with_grad(self) -> Tensor {
        self.set_requires_grad(true);
        self
    }

    /// The gradient accumulated so far.
    pub fn grad(&self) -> Option<Tensor> {
        self.grad.grad.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the accumulated gradient.
    pub fn set_grad(&self, grad: Option<Tensor>) {
        // The old gradient is dropped after the lock: freeing memory may take a while.
        let _old = std::mem::replace(&mut *self.grad.grad.lock().unwrap_or_else(PoisonError::into_inner), grad);
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

/// The same elements with other axes: a view wherever strides can express it, else a dense copy.
///
/// ```
/// use netcl_autograd::{Tensor, reshape, core::{device::manager, dtype::DType}};
///
/// let flat = Tensor::from_shape(&manager().cpu().queue, [12], DType::F32)?;
/// let mat = reshape(&flat, [3, 4])?;
/// assert!(mat.shares_storage(&flat));
/// assert!(reshape(&flat, [5, 2]).is_err()); // the number of elements must stay the same
/// # Ok::<(), netcl_autograd::core::Error>(())
/// ```
pub fn reshape(tensor: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    Ok(raw::reshape(tensor.raw(), shape)?.into())
}
