//! The raw tensor: storage + layout + dtype + queue. No gradients here; `netcl_autograd::Tensor` wraps this one.

mod copies;
mod foreign;
mod format;
mod lane;
mod opencl;

use std::sync::Arc;

use crate::backend::opencl::UploadPath;
use crate::backend::{Backend, Queue};
use crate::dtype::{DType, Element};
use crate::env;
use crate::error::{Error, Result};
use crate::host;
use crate::kernels::launch;
use crate::shape::{Layout, Shape, Slice};
use crate::storage::Storage;

pub use lane::HostLane;
pub use opencl::{HostTransfer, Mark, TensorSource};

/// An n-dimensional array on a device. Cloning is cheap and shares the storage.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, tensor::{Tensor, reshape}};
///
/// let queue = manager().cpu().queue;
/// let host: Vec<f32> = (0..12).map(|i| i as f32).collect();
/// let dev = Tensor::from_host(&queue, &host, [3, 4])?;
/// assert_eq!(dev.to_host::<f32>()?, host);
///
/// let flat = reshape(&dev, [12])?; // a view, no copy
/// assert!(flat.shares_storage(&dev));
/// let zeros = Tensor::from_shape(&queue, [4, 8], DType::F32)?;
/// assert_eq!(zeros.size(), 32);
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    layout: Layout,
    dtype: DType,
    queue: Queue,
}

/// How [`Tensor::from_host_with`] copies; the defaults are the environment's.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostOptions {
    /// The tensor's dtype; `None` keeps the data's.
    pub dtype: Option<DType>,
    /// Whether the copy may still be under way when the call returns; `None` means `NETCL_ASYNC_H2D`, on by default.
    pub async_copy: Option<bool>,
    /// Whether to go through page-locked memory; `None` means `NETCL_PINNED_H2D`, on by default.
    pub use_pinned: Option<bool>,
}

impl HostOptions {
    /// Whether the copy may outlive the call.
    pub fn is_async(&self) -> bool {
        self.async_copy.unwrap_or_else(|| env::ASYNC_H2D.switch())
    }

    /// Whether the copy goes through page-locked memory.
    pub fn is_pinned(&self) -> bool {
        self.use_pinned.unwrap_or_else(|| env::PINNED_H2D.switch())
    }
}

impl Tensor {
    // ---- construction ------------------------------------------------------------------------------------------

    /// Copies host data (always: the caller may change it at once) into a new tensor of the data's dtype.
    pub fn from_host<T: Element>(queue: &Queue, data: &[T], shape: impl Into<Shape>) -> Result<Tensor> {
        Tensor::from_host_with(queue, data, shape, HostOptions::default())
    }

    /// [`Tensor::from_host`] with a cast on copy or a chosen transfer path.
    ///
    /// ```
    /// use netcl_core::{device::manager, dtype::DType, tensor::{HostOptions, Tensor}};
    ///
    /// let queue = manager().cpu().queue;
    /// let half = HostOptions { dtype: Some(DType::F16), ..Default::default() };
    /// let x = Tensor::from_host_with(&queue, &[1.0f32, 0.1], [2], half)?;
    /// assert_eq!(x.to_f64_vec()?, [1.0, 0.0999755859375]);
    /// # Ok::<(), netcl_core::Error>(())
    /// ```
    pub fn from_host_with<T: Element>(
        queue: &Queue,
        data: &[T],
        shape: impl Into<Shape>,
        options: HostOptions,
    ) -> Result<Tensor> {
        Tensor::from_host_bytes(queue, bytemuck::cast_slice(data), T::DTYPE, shape.into(), options)
    }

    /// [`Tensor::from_host_with`] for dense row-major data whose type is only known at run time.
    pub fn from_host_bytes(
        queue: &Queue,
        data: &[u8],
        data_dtype: DType,
        shape: Shape,
        options: HostOptions,
    ) -> Result<Tensor> {
        let expected = shape.nbytes("from_host", data_dtype)?;
        if data.len() != expected {
            return Err(Error::Length { op: "from_host", got: data.len() / data_dtype.size(), shape });
        }
        let dtype = options.dtype.unwrap_or(data_dtype);
        queue.check_dtype("tensor", dtype)?;
        let storage = launch::allocate_resident(queue, shape.nbytes("tensor", dtype)?, "tensor")?;
        let tensor = Tensor { storage, layout: Layout::contiguous(shape), dtype, queue: queue.clone() };
        tensor.upload(data, data_dtype, options)?;
        Ok(tensor)
    }

    /// A new tensor filled with zeros.
    pub fn from_shape(queue: &Queue, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        Tensor::full(queue, shape, dtype, 0.0)
    }

    /// A new dense tensor with arbitrary contents, for ops that write every element.
    pub fn uninit(queue: &Queue, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        let shape = shape.into();
        queue.check_dtype("tensor", dtype)?;
        let nbytes = shape.nbytes("tensor", dtype)?;
        let storage = launch::allocate(queue, nbytes, "tensor")?;
        Ok(Tensor { storage, layout: Layout::contiguous(shape), dtype, queue: queue.clone() })
    }

    /// [`Tensor::uninit`] for images `[N, C, H, W]` whose channels are neighbours in memory.
    pub fn uninit_channels_last(queue: &Queue, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        let mut tensor = Tensor::uninit(queue, shape, dtype)?;
        tensor.layout = Layout::channels_last(tensor.shape().clone());
        Ok(tensor)
    }

    /// [`Tensor::uninit`] for what is computed element by element: channels-last where an operand of that shape is.
    pub fn uninit_beside(operands: &[&Tensor], shape: Shape, dtype: DType) -> Result<Tensor> {
        let Some(first) = operands.first() else {
            return Err(Error::argument("uninit_beside", "at least one operand must be a tensor"));
        };
        match operands.iter().any(|t| t.layout.is_channels_last() && t.shape() == &shape) {
            true => Tensor::uninit_channels_last(&first.queue, shape, dtype),
            false => Tensor::uninit(&first.queue, shape, dtype),
        }
    }

    /// A tensor over an existing storage; the layout must lie inside it.
    pub fn from_storage(queue: &Queue, storage: Arc<Storage>, layout: Layout, dtype: DType) -> Result<Tensor> {
        layout.shape().nbytes("tensor", dtype)?;
        if layout.end().saturating_mul(dtype.size()) > storage.nbytes() {
            let why = format!("it does not fit a storage of {} bytes of {dtype}", storage.nbytes());
            return Err(Error::Shape { op: "tensor", shape: layout.shape().clone(), why });
        }
        Ok(Tensor { storage, layout, dtype, queue: queue.clone() })
    }

    // ---- facts -------------------------------------------------------------------------------------------------

    /// The lengths of the axes.
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// Shape, strides and offset.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The queue the tensor was created on.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The transport that owns the memory.
    pub fn backend(&self) -> Backend {
        self.queue.backend()
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        self.shape().size()
    }

    /// The number of axes.
    pub fn ndim(&self) -> usize {
        self.shape().ndim()
    }

    /// The memory behind the tensor.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Whether two tensors are views of one storage.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// How often the storage was written.
    pub fn version(&self) -> u64 {
        self.storage.version()
    }

    /// An error unless the dtype is a float type.
    pub fn check_float(&self, op: &'static str) -> Result<()> {
        if self.dtype.is_float() {
            return Ok(());
        }
        Err(Error::Dtype { op, expected: "a float tensor".to_owned(), got: self.dtype })
    }

    /// An error unless the tensor holds whole numbers or truth values.
    pub fn check_whole(&self, op: &'static str) -> Result<()> {
        if !self.dtype.is_float() {
            return Ok(());
        }
        Err(Error::Dtype { op, expected: "whole numbers or truth values".to_owned(), got: self.dtype })
    }

    // ---- reading -----------------------------------------------------------------------------------------------

    /// Waits for whatever is still being copied into the tensor. Harmless to call twice.
    pub fn wait(&self) -> Result<()> {
        self.queue.wait_for_upload(&self.storage)
    }

    /// All elements in row-major order. The type must be the tensor's; [`Tensor::to_f64_vec`] converts.
    pub fn to_host<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            let expected = format!("a tensor of {}, as asked for by to_host::<{}>", T::DTYPE, T::DTYPE);
            return Err(Error::Dtype { op: "to_host", expected, got: self.dtype });
        }
        let mut out = host::filled("to_host", self.size(), T::default())?;
        self.read_bytes(bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// All elements in row-major order, converted to f64.
    pub fn to_f64_vec(&self) -> Result<Vec<f64>> {
        crate::with_element!(self.dtype, T => host::collect("to_host", self.to_host::<T>()?.into_iter().map(T::to_f64)))
    }

    /// The raw bytes of all elements in row-major order, into a slice of exactly that length.
    pub fn read_bytes(&self, out: &mut [u8]) -> Result<()> {
        let nbytes = self.size() * self.dtype.size();
        if out.len() != nbytes {
            let what = format!("the destination has {} bytes, the tensor {nbytes}", out.len());
            return Err(Error::argument("to_host", what));
        }
        if nbytes == 0 {
            return Ok(());
        }
        let dense = self.contiguous()?;
        launch::check_readable("to_host")?;
        self.queue.download(&dense.storage, dense.layout.offset() * self.dtype.size(), out)
    }

    /// The only element.
    pub fn item(&self) -> Result<f64> {
        if self.size() != 1 {
            let why = format!("item() needs exactly one element, this tensor has {}", self.size());
            return Err(Error::Shape { op: "item", shape: self.shape().clone(), why });
        }
        Ok(self.to_f64_vec()?[0])
    }

    // ---- views -------------------------------------------------------------------------------------------------

    /// The same storage seen through another layout, which must lie inside it.
    pub fn with_layout(&self, layout: Layout) -> Result<Tensor> {
        Tensor::from_storage(&self.queue, self.storage.clone(), layout, self.dtype)
    }

    /// The axes in another order, as a view.
    pub fn permute(&self, axes: &[isize]) -> Result<Tensor> {
        self.with_layout(self.layout.permute("permute", axes)?)
    }

    /// A part of one axis, as a view.
    pub fn slice(&self, axis: isize, slice: Slice) -> Result<Tensor> {
        self.with_layout(self.layout.slice(self.shape().axis("slice", axis)?, slice)?)
    }

    /// One index of an axis, which disappears; a view.
    pub fn select(&self, axis: isize, index: isize) -> Result<Tensor> {
        self.with_layout(self.layout.select("select", self.shape().axis("select", axis)?, index)?)
    }

    /// The elements repeated along new or length-1 axes, as a view that cannot be written to.
    pub fn expand(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.with_layout(self.layout.expand("expand", &shape.into())?)
    }

    /// Overwrites the elements with dense row-major data of the host, which is cast as needed.
    ///
    /// ```
    /// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
    ///
    /// let x = Tensor::from_shape(&manager().cpu().queue, [2], DType::F32)?;
    /// x.write_bytes(bytemuck::cast_slice(&[1.5f64, -2.0]), DType::F64)?;
    /// assert_eq!(x.to_f64_vec()?, [1.5, -2.0]);
    /// # Ok::<(), netcl_core::Error>(())
    /// ```
    pub fn write_bytes(&self, data: &[u8], data_dtype: DType) -> Result<()> {
        let (options, shape) = (HostOptions { dtype: Some(self.dtype), ..HostOptions::default() }, self.shape());
        // A sink must see a write, and an upload begins where the storage does.
        if launch::has_sink() || !self.layout.is_contiguous() || self.layout.offset() != 0 {
            return self.assign(&Tensor::from_host_bytes(&self.queue, data, data_dtype, shape.clone(), options)?);
        }
        if data.len() != shape.nbytes("write_bytes", data_dtype)? {
            return Err(Error::Length { op: "write_bytes", got: data.len() / data_dtype.size(), shape: shape.clone() });
        }
        self.upload(data, data_dtype, options)
    }

    /// Copies dense data of the tensor's size to the start of its storage.
    fn upload(&self, data: &[u8], data_dtype: DType, options: HostOptions) -> Result<()> {
        let path = UploadPath { asynchronous: options.is_async(), pinned: options.is_pinned() };
        let mut space = Vec::new();
        // Conversions read whole elements, plain copies do not care.
        let data = if self.dtype == data_dtype { data } else { aligned(data, data_dtype, &mut space) };
        self.queue.upload(&self.storage, data, data_dtype, self.dtype, path)
    }
}

/// The same elements with other axes: a view wherever strides can express it, else a dense copy.
///
/// The number of elements must stay the same; nothing is inferred.
pub fn reshape(tensor: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    match tensor.layout.reshape(&shape)? {
        Some(layout) => tensor.with_layout(layout),
        None => Ok(Tensor { layout: Layout::contiguous(shape), ..tensor.duplicate()? }),
    }
}

/// The bytes of elements at an address that their type allows: a file that is mapped, or a view of NumPy's, may have them anywhere.
fn aligned<'d>(data: &'d [u8], dtype: DType, space: &'d mut Vec<u64>) -> &'d [u8] {
    if data.as_ptr().align_offset(dtype.size()) == 0 {
        return data;
    }
    space.resize(data.len().div_ceil(8), 0);
    let copy = &mut bytemuck::cast_slice_mut(space)[..data.len()];
    copy.copy_from_slice(data);
    copy
}
