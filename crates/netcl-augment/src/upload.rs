//! Batches to a device: page-locked staging memory, and a copy queue beside the compute queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use netcl_core::backend::Queue;
use netcl_core::dtype::{DType, Element};
use netcl_core::index::IndexTensor;
use netcl_core::shape::{Layout, Shape};
use netcl_core::storage::Storage;
use netcl_core::tensor::{HostOptions, Tensor};
use netcl_data::{Array, Elements, Sample};

use crate::error::{Error, Result};

const OP: &str = "upload";

/// Batches whose staging memory is in use at the same time: one is copied by the host while the device reads the other.
const STAGED: usize = 2;

/// A batch on a device, with the fields of the [`Sample`] that it was.
#[derive(Clone, Debug)]
pub enum Uploaded {
    /// Numbers.
    Tensor(Tensor),
    /// A text, which stays on the host.
    Text(String),
    /// Fields by position.
    List(Vec<Uploaded>),
    /// Fields by name, in their order.
    Dict(Vec<(String, Uploaded)>),
}

impl Uploaded {
    /// The tensor, if it is one.
    pub fn tensor(&self) -> Option<&Tensor> {
        if let Uploaded::Tensor(tensor) = self { Some(tensor) } else { None }
    }

    /// The field at a position, of a list or of named fields.
    pub fn get(&self, position: usize) -> Option<&Uploaded> {
        match self {
            Uploaded::List(fields) => fields.get(position),
            Uploaded::Dict(fields) => fields.get(position).map(|(_, value)| value),
            Uploaded::Tensor(_) | Uploaded::Text(_) => None,
        }
    }

    /// The tensor at a position.
    ///
    /// # Errors
    /// If there is none.
    pub fn tensor_at(&self, position: usize) -> Result<&Tensor> {
        let what = || Error::argument(OP, format!("the batch has no tensor in field {position}"));
        self.get(position).and_then(Uploaded::tensor).ok_or_else(what)
    }

    /// Field 0 as the tensor that models take, and the labels of field 1: what most training loops begin with.
    ///
    /// # Errors
    /// If the batch has no such fields, or the labels are no integers.
    pub fn labelled(&self) -> netcl_autograd::Result<(netcl_autograd::Tensor, IndexTensor)> {
        let labels = IndexTensor::from_tensor(self.tensor_at(1)?.clone())?;
        Ok((self.tensor_at(0)?.clone().into(), labels))
    }

    /// The field of a name.
    pub fn field(&self, name: &str) -> Option<&Uploaded> {
        let Uploaded::Dict(fields) = self else { return None };
        fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }
}

/// Takes batches to the device of a queue.
///
/// On OpenCL devices a batch goes through page-locked memory and the copy queue, beside the kernels of the compute queue, which wait
/// for it only where they use it. At most two batches of page-locked memory are in use; an upload that would need more waits
/// for the oldest one to arrive. On the native CPU the batch's own memory becomes the tensor's.
///
/// ```
/// use netcl_augment::Uploader;
/// use netcl_core::{device::manager, dtype::DType};
/// use netcl_data::{Array, Sample};
///
/// let uploader = Uploader::new(&manager().get("auto")?.queue);
/// let batch = Sample::list([Array::new(vec![0.5f32; 6], &[2, 3])?.into(), Array::line(vec![1u16, 7]).into()]);
/// let batch = uploader.upload(batch)?;
/// let labels = batch.get(1).and_then(|labels| labels.tensor()).unwrap();
/// assert_eq!((labels.dtype(), labels.to_host::<i64>()?), (DType::I64, vec![1, 7]));
/// # Ok::<(), netcl_augment::Error>(())
/// ```
#[derive(Debug)]
pub struct Uploader {
    queue: Queue,
    /// The memory of the latest batches, which may still be arriving. Weak: the device's memory is the tensors'.
    recent: Mutex<VecDeque<Vec<Weak<Storage>>>>,
}

/// Waits until an uploaded tensor has arrived: for work that comes next in a thread of its own, so that the compute queue does not wait
/// with it. Nothing to wait for is fine.
///
/// # Errors
/// What the driver says.
pub fn arrived(tensor: &Tensor) -> Result<()> {
    wait_for(tensor.storage())
}

impl Uploader {
    /// An uploader to the queue's device.
    pub fn new(queue: &Queue) -> Uploader {
        Uploader { queue: queue.clone(), recent: Mutex::default() }
    }

    /// The queue whose tensors are made.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Takes a batch to the device. Floats, bytes and 64-bit integers keep their type, truth values become bytes, other integers int64.
    ///
    /// # Errors
    /// For integers above the largest int64, want of memory, and what the driver says.
    pub fn upload(&self, batch: Sample) -> Result<Uploaded> {
        self.staged(|memory| self.fields(batch, memory))
    }

    /// Takes host data of a type known at run time to the device, as [`Tensor::from_host_bytes`] does; a batch of them shares the two places
    /// for page-locked memory.
    ///
    /// # Errors
    /// As [`Tensor::from_host_bytes`].
    pub fn upload_bytes(&self, arrays: &[(&[u8], DType, Shape)]) -> Result<Vec<Tensor>> {
        self.staged(|memory| {
            let make = |(bytes, dtype, shape): &(&[u8], DType, Shape)| {
                let tensor =
                    Tensor::from_host_bytes(&self.queue, bytes, *dtype, shape.clone(), HostOptions::default())?;
                memory.push(Arc::downgrade(tensor.storage()));
                Ok(tensor)
            };
            arrays.iter().map(make).collect()
        })
    }

    /// Runs an upload, which notes the memory that it writes, once there is room for what it stages.
    fn staged<T>(&self, upload: impl FnOnce(&mut Vec<Weak<Storage>>) -> Result<T>) -> Result<T> {
        let recent = || self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = {
            let mut recent = recent();
            if recent.len() < STAGED { None } else { recent.pop_front() }
        };
        for storage in oldest.iter().flatten().filter_map(Weak::upgrade) {
            wait_for(&storage)?;
        }
        let mut memory = Vec::new();
        let result = upload(&mut memory);
        recent().push_back(memory);
        result
    }

    fn fields(&self, batch: Sample, memory: &mut Vec<Weak<Storage>>) -> Result<Uploaded> {
        Ok(match batch {
            Sample::Array(array) => Uploaded::Tensor(self.array(array, memory)?),
            Sample::Text(text) => Uploaded::Text(text),
            Sample::List(fields) => {
                Uploaded::List(fields.into_iter().map(|field| self.fields(field, memory)).collect::<Result<_>>()?)
            }
            Sample::Dict(fields) => {
                let field = |(name, field)| Ok((name, self.fields(field, memory)?));
                Uploaded::Dict(fields.into_iter().map(field).collect::<Result<_>>()?)
            }
        })
    }

    fn array(&self, array: Array, memory: &mut Vec<Weak<Storage>>) -> Result<Tensor> {
        let shape = Shape::from(array.shape());
        let tensor = match array.into_elements() {
            Elements::U8(elements) => self.vector(elements, shape),
            Elements::F16(elements) => self.vector(elements, shape),
            Elements::F32(elements) => self.vector(elements, shape),
            Elements::F64(elements) => self.vector(elements, shape),
            Elements::I64(elements) => self.vector(elements, shape),
            Elements::Bool(flags) => self.vector(flags.into_iter().map(u8::from).collect(), shape),
            Elements::I8(elements) => self.vector(whole(elements)?, shape),
            Elements::U16(elements) => self.vector(whole(elements)?, shape),
            Elements::I16(elements) => self.vector(whole(elements)?, shape),
            Elements::U32(elements) => self.vector(whole(elements)?, shape),
            Elements::I32(elements) => self.vector(whole(elements)?, shape),
            Elements::U64(elements) => self.vector(whole(elements)?, shape),
        }?;
        memory.push(Arc::downgrade(tensor.storage()));
        Ok(tensor)
    }

    fn vector<T: Element>(&self, mut elements: Vec<T>, shape: Shape) -> Result<Tensor> {
        let Queue::Cpu(_) = self.queue else { return Ok(Tensor::from_host(&self.queue, &elements, shape)?) };
        let strides = Layout::contiguous(shape.clone()).strides().to_vec();
        let first = elements.as_mut_ptr().cast::<u8>();
        // SAFETY: a vector of as many elements as the shape has (an `Array` keeps that), which the tensor owns from here on and nobody
        // else sees. It stays where it is, and is aligned for its elements.
        Ok(unsafe { Tensor::from_foreign(first, shape, &strides, T::DTYPE, Box::new(elements))? })
    }
}

/// Integers as int64.
fn whole<T: TryInto<i64>>(elements: Vec<T>) -> Result<Vec<i64>> {
    let all: Result<Vec<i64>, _> = elements.into_iter().map(TryInto::try_into).collect();
    all.map_err(|_| Error::argument(OP, "a number is above the largest int64; convert the array to float64"))
}

/// Waits for an upload and gives its page-locked memory back. Its event stays: work that uses the tensor waits for that alone, and not
/// for the uploads after it.
fn wait_for(storage: &Storage) -> Result<()> {
    let Some(memory) = storage.cl_memory() else { return Ok(()) };
    let event = memory.upload().as_ref().map(|upload| upload.event.clone());
    if let Some(event) = event {
        event.wait().map_err(netcl_core::Error::from)?;
        if let Some(upload) = &mut *memory.upload() {
            upload.pinned = None;
        }
    }
    Ok(())
}
