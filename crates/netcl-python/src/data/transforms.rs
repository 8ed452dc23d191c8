//! Transforms: netcl-data's, and Python functions between them.

use netcl::core::host;
use netcl::data::decode::{MAX_PIXELS, Pixels};
use netcl::data::transforms::{Border, Compose, Image, Mix as Mixing, Transform as Drawn};
use netcl::data::{Array, Error, Random, Resize, Result, Sample, filters};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::IntoPy;
use super::dataset::resize_mode;
use super::gate::Gate;
use super::loader::Item;
use super::sample::{array_from_py, array_to_py};
use crate::list::List;

/// A transform of images.
#[pyclass(frozen, module = "netcl._netcl.data")]
pub(super) struct Transform(Part);

#[derive(Clone)]
enum Part {
    Drawn(Drawn),
    Resize(Resize),
}

/// What comes in from outside of an image.
fn border(mode: &str, fill: f32) -> PyResult<Border> {
    Ok(match mode {
        "constant" => Border::Constant(fill),
        "edge" => Border::Edge,
        "reflect" => Border::Reflect,
        _ => return Err(PyValueError::new_err(format!("padding mode {mode:?} is none of constant, edge, reflect"))),
    })
}

impl Transform {
    /// With settings that are checked at once, not with the first image.
    fn checked(py: Python<'_>, transform: Drawn) -> PyResult<Transform> {
        Compose::new(vec![transform.clone()]).data(py)?;
        Ok(Transform(Part::Drawn(transform)))
    }

    /// For images on a device, which have one size already.
    pub(super) fn drawn(&self) -> PyResult<Drawn> {
        match &self.0 {
            Part::Drawn(transform) => Ok(transform.clone()),
            Part::Resize(_) => {
                let what = "images on a device are resized by RandomResizedCrop only; Resize belongs into the loader";
                Err(PyTypeError::new_err(what))
            }
        }
    }
}

#[pymethods]
impl Transform {
    /// Mirrors an image.
    #[staticmethod]
    fn flip(py: Python<'_>, horizontal: bool, probability: f64) -> PyResult<Transform> {
        let flip = if horizontal { Drawn::HorizontalFlip { probability } } else { Drawn::VerticalFlip { probability } };
        Transform::checked(py, flip)
    }

    /// Takes a part at a random place of the padded image.
    #[staticmethod]
    fn crop(py: Python<'_>, size: [usize; 2], padding: usize, mode: &str, fill: f32) -> PyResult<Transform> {
        Transform::checked(py, Drawn::Crop { size, padding, border: border(mode, fill)? })
    }

    /// Takes the middle.
    #[staticmethod]
    fn center_crop(py: Python<'_>, size: [usize; 2]) -> PyResult<Transform> {
        Transform::checked(py, Drawn::CenterCrop { size })
    }

    /// Takes a part of random size and stretches it.
    #[staticmethod]
    fn resized_crop(py: Python<'_>, size: [usize; 2], area: (f64, f64), ratio: (f64, f64)) -> PyResult<Transform> {
        Transform::checked(py, Drawn::RandomResizedCrop { size, area, ratio })
    }

    /// Turns about the centre.
    #[staticmethod]
    fn rotation(py: Python<'_>, degrees: f64, mode: &str, fill: f32) -> PyResult<Transform> {
        Transform::checked(py, Drawn::Rotation { degrees, border: border(mode, fill)? })
    }

    /// Turns, shears, scales and shifts.
    #[staticmethod]
    fn affine(
        py: Python<'_>,
        degrees: f64,
        translate: [f64; 2],
        scale: (f64, f64),
        shear: f64,
        mode: &str,
        fill: f32,
    ) -> PyResult<Transform> {
        Transform::checked(py, Drawn::Affine { degrees, translate, scale, shear, border: border(mode, fill)? })
    }

    /// Changes brightness, contrast, saturation and hue.
    #[staticmethod]
    fn color_jitter(py: Python<'_>, brightness: f64, contrast: f64, saturation: f64, hue: f64) -> PyResult<Transform> {
        Transform::checked(py, Drawn::ColorJitter { brightness, contrast, saturation, hue })
    }

    /// Blurs.
    #[staticmethod]
    fn blur(py: Python<'_>, taps: usize, sigma: (f64, f64)) -> PyResult<Transform> {
        Transform::checked(py, Drawn::GaussianBlur { taps, sigma })
    }

    /// Overwrites a rectangle.
    #[staticmethod]
    fn erase(py: Python<'_>, probability: f64, area: (f64, f64), ratio: (f64, f64), value: f32) -> PyResult<Transform> {
        Transform::checked(py, Drawn::Erase { probability, area, ratio, value })
    }

    /// Overwrites a square.
    #[staticmethod]
    fn cutout(py: Python<'_>, side: usize, value: f32) -> PyResult<Transform> {
        Transform::checked(py, Drawn::Cutout { side, value })
    }

    /// Subtracts means and divides by deviations.
    #[staticmethod]
    fn normalize(py: Python<'_>, mean: List<f32>, deviation: List<f32>) -> PyResult<Transform> {
        Transform::checked(py, Drawn::Normalize { mean: mean.0, deviation: deviation.0 })
    }

    /// Some operations of 14.
    #[staticmethod]
    fn rand_augment(py: Python<'_>, operations: usize, magnitude: usize, mode: &str, fill: f32) -> PyResult<Transform> {
        if operations > 1000 {
            return Err(PyValueError::new_err(format!(
                "RandAugment: {operations} operations are too many; at most 1000"
            )));
        }
        Transform::checked(py, Drawn::RandAugment { operations, magnitude, border: border(mode, fill)? })
    }

    /// Changes the size of an image of bytes.
    #[staticmethod]
    fn resize(mode: &str, height: usize, width: usize) -> PyResult<Transform> {
        Ok(Transform(Part::Resize(resize_mode(mode, height, width)?)))
    }
}

/// Transforms of netcl-data, one after the other.
pub(super) enum Work {
    Compose(Compose),
    Resize(Resize),
}

fn works(parts: &[Part]) -> Result<Vec<Work>> {
    let mut works = Vec::new();
    let mut drawn = Vec::new();
    for part in parts {
        match part {
            Part::Drawn(transform) => drawn.push(transform.clone()),
            Part::Resize(resize) => {
                if !drawn.is_empty() {
                    works.push(Work::Compose(Compose::new(std::mem::take(&mut drawn))?));
                }
                works.push(Work::Resize(*resize));
            }
        }
    }
    // Together, so that geometric steps that follow each other sample once.
    if !drawn.is_empty() {
        works.push(Work::Compose(Compose::new(drawn)?));
    }
    Ok(works)
}

fn changed(works: &[Work], image: Array, random: &mut Random) -> Result<Array> {
    works.iter().try_fold(image, |image, work| match work {
        Work::Compose(compose) => Ok(compose.apply(Image::from_array(&image)?, random)?.into_array()),
        Work::Resize(resize) => resized(*resize, &image),
    })
}

fn resized(resize: Resize, image: &Array) -> Result<Array> {
    let fits = matches!(image.shape().first(), Some(1 | 3)) && !image.is_empty();
    let (&[channels, height, width], Some(planes), true) = (image.shape(), image.slice::<u8>(), fits) else {
        let what = format!(
            "Resize: takes bytes of shape [channels, height, width] with 1 or 3 channels, got {:?} of shape {:?}; put it before transforms that make \
             floats",
            image.dtype(),
            image.shape()
        );
        return Err(Error::Argument { what });
    };
    let mut bytes = vec![0; planes.len()];
    for (channel, plane) in planes.chunks_exact(height * width).enumerate() {
        bytes.chunks_exact_mut(channels).zip(plane).for_each(|(pixel, value)| pixel[channel] = *value);
    }
    let pixels = resize.apply(Pixels { width, height, channels, bytes }, MAX_PIXELS)?;
    let shape = [channels, pixels.height, pixels.width];
    Array::new(pixels.into_planes(), &shape)
}

/// Changes an image by transforms, with random numbers of a seed.
#[pyfunction]
fn apply_transforms<'py>(
    py: Python<'py>,
    transforms: Vec<PyRef<'py, Transform>>,
    image: &Bound<'py, PyAny>,
    seed: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let parts: Vec<Part> = transforms.iter().map(|transform| transform.0.clone()).collect();
    let image = array_from_py("transform", image)?;
    let image = py.detach(|| changed(&works(&parts)?, image, &mut Random::new(seed))).data(py)?;
    array_to_py(py, image)
}

/// Mixes the images of a batch, and their labels.
#[pyclass(frozen, module = "netcl._netcl.data")]
pub(super) struct Mix(Mixer);

#[derive(Clone, Copy)]
pub(super) struct Mixer {
    mixing: Mixing,
    classes: usize,
}

#[pymethods]
impl Mix {
    #[new]
    fn new(py: Python<'_>, cut: bool, alpha: f64, classes: usize) -> PyResult<Mix> {
        let mixing = if cut { Mixing::CutMix { alpha } } else { Mixing::Mixup { alpha } };
        mixing.draw([1, 1], &mut Random::new(0)).data(py)?;
        Ok(Mix(Mixer { mixing, classes }))
    }

    /// The mixed images and the shares of the classes.
    fn apply<'py>(
        &self,
        py: Python<'py>,
        images: &Bound<'py, PyAny>,
        labels: &Bound<'py, PyAny>,
        seed: u64,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let (images, labels) = (array_from_py("images", images)?, array_from_py("labels", labels)?);
        let (images, labels) = py.detach(|| self.0.mixed(images, labels, &mut Random::new(seed))).data(py)?;
        Ok((array_to_py(py, images)?, array_to_py(py, labels)?))
    }
}

impl Mixer {
    fn mixed(&self, images: Array, labels: Array, random: &mut Random) -> Result<(Array, Array)> {
        let images = if images.slice::<u8>().is_some() { filters::to_float(&images) } else { images };
        // Shares of classes, of an earlier mix, are taken as they are.
        let labels = if labels.shape().len() == 2 {
            labels
        } else {
            let shares = labels.len().saturating_mul(self.classes);
            host::check::<f32>("MixUp, CutMix", shares).map_err(|error| Error::Argument { what: error.to_string() })?;
            filters::one_hot(&labels, self.classes)?
        };
        self.mixing.apply(images, labels, random)
    }

    /// A batch whose first two fields are images and labels.
    pub(super) fn of_batch(&self, gate: &Gate, batch: Item, random: &mut Random) -> Result<Item> {
        let wrong = || Error::Argument { what: "MixUp, CutMix: a batch must be (images, labels)".to_owned() };
        match batch {
            Item::Rust(Sample::List(mut fields)) => match &mut fields[..] {
                [Sample::Array(images), Sample::Array(labels), ..] => {
                    let none = || Array::line(Vec::<u8>::new());
                    let (old, shares) = (std::mem::replace(images, none()), std::mem::replace(labels, none()));
                    (*images, *labels) = self.mixed(old, shares, random)?;
                    Ok(Item::Rust(Sample::List(fields)))
                }
                _ => Err(wrong()),
            },
            Item::Rust(_) => Err(wrong()),
            Item::Python(batch) => {
                let (images, labels) = gate.pass(|py| {
                    let fields = batch.bind(py);
                    let field = |at: usize| array_from_py("MixUp, CutMix", &fields.get_item(at)?);
                    Ok((field(0)?, field(1)?))
                })?;
                let (images, labels) = self.mixed(images, labels, random)?;
                gate.pass(|py| {
                    let fields: Vec<Bound<'_, PyAny>> = batch.bind(py).try_iter()?.collect::<PyResult<_>>()?;
                    let mut mixed = vec![array_to_py(py, images)?, array_to_py(py, labels)?];
                    mixed.extend(fields.into_iter().skip(2));
                    Ok(Item::Python(remade(batch.bind(py), mixed)?.unbind()))
                })
            }
        }
    }
}

/// A tuple, a named tuple or a list with other fields.
fn remade<'py>(like: &Bound<'py, PyAny>, fields: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    let py = like.py();
    if like.hasattr("_fields")? {
        return like.get_type().call1(PyTuple::new(py, fields)?);
    }
    if like.is_instance_of::<PyTuple>() {
        return Ok(PyTuple::new(py, fields)?.into_any());
    }
    Ok(PyList::new(py, fields)?.into_any())
}

/// What a loader does to each sample, in order.
pub(super) enum Change {
    /// Transforms of netcl-data, without the interpreter's lock.
    Rust(Vec<Work>),
    /// A Python function; `seeded` ones take `seed=`, a number of the sample.
    Python { function: Py<PyAny>, seeded: bool },
}

/// What `transforms` says: objects of [`Transform`], pairs of a function and whether it takes a seed.
pub(super) fn changes(py: Python<'_>, transforms: &[Bound<'_, PyAny>]) -> PyResult<Vec<Change>> {
    let mut changes = Vec::new();
    let mut parts = Vec::new();
    for transform in transforms {
        if let Ok(transform) = transform.cast::<Transform>() {
            parts.push(transform.get().0.clone());
            continue;
        }
        if !parts.is_empty() {
            changes.push(Change::Rust(works(&std::mem::take(&mut parts)).data(py)?));
        }
        let (function, seeded) = transform.extract()?;
        changes.push(Change::Python { function, seeded });
    }
    if !parts.is_empty() {
        changes.push(Change::Rust(works(&parts).data(py)?));
    }
    Ok(changes)
}

/// Where a Python sample has its image.
enum Place {
    Whole,
    First,
    Key(Py<PyAny>),
}

impl Place {
    /// The first field of a tuple or list, a dict's first array of three axes, or else the sample itself.
    fn of(sample: &Bound<'_, PyAny>) -> PyResult<Place> {
        if sample.is_instance_of::<PyTuple>() || sample.is_instance_of::<PyList>() {
            return Ok(Place::First);
        }
        let Ok(fields) = sample.cast::<PyDict>() else { return Ok(Place::Whole) };
        for (key, field) in fields {
            if field.getattr("ndim").and_then(|axes| axes.extract::<usize>()).is_ok_and(|axes| axes == 3) {
                return Ok(Place::Key(key.unbind()));
            }
        }
        Err(PyTypeError::new_err("transform: no field of the dict is an array of shape [channels, height, width]"))
    }

    fn get<'py>(&self, sample: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Place::Whole => Ok(sample.clone()),
            Place::First => sample.get_item(0),
            Place::Key(key) => sample.get_item(key),
        }
    }

    /// A sample with something else there; the sample itself, which the data set may keep, stays as it is.
    fn replaced<'py>(&self, sample: &Bound<'py, PyAny>, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Place::Whole => Ok(value),
            Place::First => {
                let fields: Vec<Bound<'_, PyAny>> = sample.try_iter()?.collect::<PyResult<_>>()?;
                remade(sample, std::iter::once(value).chain(fields.into_iter().skip(1)).collect())
            }
            Place::Key(key) => {
                let copy = sample.call_method0("copy")?;
                copy.set_item(key, value)?;
                Ok(copy)
            }
        }
    }
}

impl Change {
    pub(super) fn is_python(&self) -> bool {
        matches!(self, Change::Python { .. })
    }

    /// A sample with its image changed.
    pub(super) fn apply(&self, gate: &Gate, item: Item, random: &mut Random) -> Result<Item> {
        match (self, item) {
            (Change::Rust(works), Item::Rust(mut sample)) => {
                let place = match &mut sample {
                    Sample::Array(array) => Some(array),
                    Sample::Text(_) => None,
                    Sample::List(fields) => match fields.first_mut() {
                        Some(Sample::Array(array)) => Some(array),
                        _ => None,
                    },
                    Sample::Dict(fields) => fields.iter_mut().find_map(|(_, field)| match field {
                        Sample::Array(array) if array.shape().len() == 3 => Some(array),
                        _ => None,
                    }),
                };
                let Some(image) = place else {
                    return Err(Error::Argument { what: "transform: the sample has no image".to_owned() });
                };
                *image = changed(works, std::mem::replace(image, Array::scalar(0u8)), random)?;
                Ok(Item::Rust(sample))
            }
            (Change::Rust(works), Item::Python(sample)) => {
                let (place, image) = gate.pass(|py| {
                    let place = Place::of(sample.bind(py))?;
                    let image = array_from_py("transform", &place.get(sample.bind(py))?)?;
                    Ok((place, image))
                })?;
                let image = changed(works, image, random)?;
                gate.pass(|py| {
                    let image = array_to_py(py, image)?;
                    Ok(Item::Python(place.replaced(sample.bind(py), image)?.unbind()))
                })
            }
            (Change::Python { function, seeded }, item) => gate.pass(|py| {
                let sample = item.into_py(py)?;
                let fields = sample.is_instance_of::<PyTuple>() || sample.is_instance_of::<PyList>();
                // A dict is given as a whole: which of its fields a function is for, it knows best.
                let place = if fields { Place::First } else { Place::Whole };
                let value = place.get(&sample)?;
                let value = if *seeded {
                    let options = PyDict::new(py);
                    options.set_item("seed", random.bits() >> 1)?;
                    function.bind(py).call((value,), Some(&options))?
                } else {
                    function.bind(py).call1((value,))?
                };
                Ok(Item::Python(place.replaced(&sample, value)?.unbind()))
            }),
        }
    }
}

/// The mixes at the end of a loader's transforms.
pub(super) fn mixers(mixes: &[Bound<'_, Mix>]) -> Vec<Mixer> {
    mixes.iter().map(|mix| mix.get().0).collect()
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Transform>()?;
    module.add_class::<Mix>()?;
    module.add_function(wrap_pyfunction!(apply_transforms, module)?)
}
