//! Batches on a device: uploads, and changes of images that are there.

use std::sync::Arc;

use netcl::augment::{Augment as Core, Error, Uploader as CoreUploader};
use netcl::core::dtype::DType;
use netcl::core::index::IndexTensor as Labels;
use netcl::core::tensor::Tensor as Raw;
use netcl::data::Random;
use netcl::data::transforms::{Compose, Mix};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::transforms::Transform;
use crate::autograd::unrecorded;
use crate::device::{queue_to_py, resolve_queue};
use crate::error::IntoPyResult;
use crate::ndarray::HostData;
use crate::runtime::{Value, host_data};
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Uploader>()?;
    module.add_class::<Augment>()?;
    module.add_function(wrap_pyfunction!(mix, module)?)
}

/// The exception of an error of netcl-augment.
fn raised<T>(result: Result<T, Error>) -> PyResult<T> {
    match result {
        Ok(value) => Ok(value),
        Err(Error::Core(error)) => Err(error).py(),
        Err(error) => Err(PyValueError::new_err(error.to_string())),
    }
}

// ---- uploads ---------------------------------------------------------------------------------------------------

/// Takes batches to the device of a queue, through page-locked memory and beside the device's work.
///
/// Floats become a ``Tensor`` of their type, whole numbers and truth values an ``IndexTensor``, bytes of three axes or more
/// (images) a float32 ``Tensor`` of the same values. Tuples, lists and dicts keep their form, and what is no array stays as it is.
#[pyclass(module = "netcl.data", frozen, weakref)]
pub(crate) struct Uploader(CoreUploader);

#[pymethods]
impl Uploader {
    #[new]
    fn new(py: Python<'_>, queue: Option<&Bound<'_, PyAny>>) -> PyResult<Uploader> {
        Ok(Uploader(CoreUploader::new(&resolve_queue(py, queue, None)?)))
    }

    /// The queue whose tensors are made.
    #[getter]
    fn queue(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        queue_to_py(py, self.0.queue())
    }

    /// The batch on the device. Its arrays may be changed as soon as this returns.
    fn upload<'py>(&self, batch: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let mut arrays = Vec::new();
        let form = Form::of(batch, &mut arrays, 0)?;
        let host: Vec<_> = arrays.iter().map(|array| (array.bytes(), array.dtype, array.shape.clone())).collect();
        let tensors = batch.py().detach(|| {
            let tensors = self.0.upload_bytes(&host)?;
            tensors
                .into_iter()
                // A quarter of what floats would be has travelled.
                .map(|tensor| Ok(if tensor.dtype() == DType::U8 { tensor.cast(DType::F32)? } else { tensor }))
                .collect()
        });
        let tensors: Vec<Raw> = raised(tensors)?;
        form.rebuild(batch.py(), &mut tensors.into_iter())
    }
}

/// A batch without its arrays.
enum Form<'py> {
    Array,
    Other(Bound<'py, PyAny>),
    /// A tuple, a list or a named tuple: its class takes the fields as a list, or one by one.
    Fields {
        class: Bound<'py, PyAny>,
        is_named: bool,
        fields: Vec<Form<'py>>,
    },
    Dict(Vec<(Bound<'py, PyAny>, Form<'py>)>),
}

/// Deeper than any batch: a list that contains itself ends here.
const DEEPEST: usize = 64;

impl<'py> Form<'py> {
    fn of(object: &Bound<'py, PyAny>, arrays: &mut Vec<HostData<'py>>, depth: usize) -> PyResult<Form<'py>> {
        if depth > DEEPEST {
            return Err(PyValueError::new_err(format!("upload: fields are nested more than {DEEPEST} deep")));
        }
        if let Ok(array) = object.cast::<PyUntypedArray>() {
            if matches!(array.dtype().kind(), b'O' | b'S' | b'U' | b'T' | b'M' | b'm') {
                // Texts, objects and dates have no place on a device.
                return Ok(Form::Other(object.clone()));
            }
            let is_image = array.dtype().kind() == b'u' && array.dtype().itemsize() == 1 && array.ndim() >= 3;
            arrays.push(if is_image {
                HostData::new(object, DType::F32)?
            } else {
                host_data("upload", arrays.len(), object)?
            });
            return Ok(Form::Array);
        }
        if let Ok(dict) = object.cast::<PyDict>() {
            let field =
                |(key, value): (Bound<'py, PyAny>, Bound<'py, PyAny>)| Ok((key, Form::of(&value, arrays, depth + 1)?));
            return Ok(Form::Dict(dict.iter().map(field).collect::<PyResult<_>>()?));
        }
        if object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>() {
            let (class, is_named) = (object.get_type().into_any(), object.hasattr("_fields")?);
            let fields =
                object.try_iter()?.map(|field| Form::of(&field?, arrays, depth + 1)).collect::<PyResult<_>>()?;
            return Ok(Form::Fields { class, is_named, fields });
        }
        Ok(Form::Other(object.clone()))
    }

    fn rebuild(self, py: Python<'py>, tensors: &mut impl Iterator<Item = Raw>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Form::Array => {
                let Some(tensor) = tensors.next() else { return Ok(py.None().into_bound(py)) };
                let value = match tensor.dtype() {
                    DType::I32 | DType::I64 => Value::Whole(Labels::from_tensor(tensor).py()?),
                    _ => Value::Float(Arc::new(tensor.into())),
                };
                value.into_py(py)
            }
            Form::Other(object) => Ok(object),
            Form::Dict(fields) => {
                let dict = PyDict::new(py);
                for (key, field) in fields {
                    dict.set_item(key, field.rebuild(py, tensors)?)?;
                }
                Ok(dict.into_any())
            }
            Form::Fields { class, is_named, fields } => {
                let fields =
                    fields.into_iter().map(|field| field.rebuild(py, tensors)).collect::<PyResult<Vec<_>>>()?;
                if is_named { class.call1(PyTuple::new(py, fields)?) } else { class.call1((PyList::new(py, fields)?,)) }
            }
        }
    }
}

// ---- changes of images -----------------------------------------------------------------------------------------

/// Transforms with a seed, for batches of images on a device.
#[pyclass(module = "netcl.data", frozen, weakref)]
pub(crate) struct Augment(Core);

#[pymethods]
impl Augment {
    #[new]
    #[pyo3(signature = (transforms, seed=0))]
    fn new(transforms: Vec<PyRef<'_, Transform>>, seed: u64) -> PyResult<Augment> {
        let drawn = transforms.iter().map(|transform| transform.drawn()).collect::<PyResult<_>>()?;
        Ok(Augment(Core::new(raised(Compose::new(drawn).map_err(Error::Data))?, seed)))
    }

    /// The changed images of a batch of shape (count, channels, height, width). ``indices`` are the numbers of the images in their data
    /// set; without them they are 0, 1, 2 and so on.
    #[pyo3(signature = (images, epoch=0, indices=None))]
    fn __call__(
        &self,
        py: Python<'_>,
        images: &Bound<'_, Tensor>,
        epoch: u64,
        indices: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Tensor> {
        let input = images.get().inner();
        let count = input.shape().first().copied().unwrap_or(0);
        let indices = match indices {
            None => (0..count).collect(),
            // Looked at first: a range of any length costs nothing until its numbers are taken.
            Some(indices) if indices.len()? != count => {
                let text = format!("augment: {count} images need as many indices, got {}", indices.len()?);
                return Err(PyValueError::new_err(text));
            }
            Some(indices) => indices.extract::<Vec<usize>>()?,
        };
        let result = Tensor::new(raised(py.detach(|| self.0.apply(&input, epoch, &indices)))?.into());
        result.remember_unrecorded(unrecorded("augment", &[images.get()]));
        Ok(result)
    }
}

/// Mixes images and labels of a batch as ``Mix`` does on the host: ``"mixup"`` or ``"cutmix"``. ``first`` is the number of the batch's first
/// sample.
#[pyfunction]
#[pyo3(signature = (method, images, labels, alpha, seed=0, epoch=0, first=0))]
#[expect(clippy::too_many_arguments, reason = "called by the functions of augment_gpu.py only")]
fn mix(
    py: Python<'_>,
    method: &str,
    images: &Bound<'_, Tensor>,
    labels: &Bound<'_, Tensor>,
    alpha: f64,
    seed: u64,
    epoch: u64,
    first: usize,
) -> PyResult<(Tensor, Tensor)> {
    let method = match method {
        "mixup" => Mix::Mixup { alpha },
        "cutmix" => Mix::CutMix { alpha },
        _ => return Err(PyValueError::new_err(format!("mix: {method:?} is neither \"mixup\" nor \"cutmix\""))),
    };
    let (inputs, shares) = (images.get().inner(), labels.get().inner());
    let mixed = py.detach(|| {
        let size = match inputs.shape()[..] {
            [_, _, height, width] => [height, width],
            // Refused by `mix`, which says what is needed.
            _ => [1, 1],
        };
        let step = method.draw(size, &mut Random::of_batch(seed, epoch, first))?;
        netcl::augment::mix(step, &inputs, &shares)
    });
    let (mixed, shares) = raised(mixed)?;
    let lost = unrecorded("mix", &[images.get(), labels.get()]);
    let tensors = (Tensor::new(mixed.into()), Tensor::new(shares.into()));
    tensors.0.remember_unrecorded(lost);
    tensors.1.remember_unrecorded(lost);
    Ok(tensors)
}
