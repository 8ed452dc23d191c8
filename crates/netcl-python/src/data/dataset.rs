//! Data sets that workers read without the interpreter's lock.

use std::path::PathBuf;
use std::sync::Arc;

use netcl::data::decode::{Colors, MAX_PIXELS};
use netcl::data::{
    Array, CharTokenizer as Characters, Column, Concat, CsvOptions, DType, Dataset as _, Error, ImageFolder, NpyArray,
    NpzFile, Resize, Result, Rows, Sample, SplitSizes, Subset, Table as CsvTable, TensorDataset, TokenWindows,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::IntoPy;
use super::sample::{Dense, array_from_py, array_to_py, to_py};
use crate::error::IntoPyResult;
use crate::list::List;

pub(super) type Set = Arc<dyn netcl::data::Dataset<Item = Sample>>;

/// A data set of netcl-data.
#[pyclass(frozen, module = "netcl._netcl.data")]
pub(super) struct Dataset(pub(super) Set);

#[pymethods]
impl Dataset {
    /// The sample of a number.
    fn get<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        let sample = py.detach(|| self.0.get(index)).data(py)?;
        to_py(py, sample)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Some samples, by number.
    fn subset(&self, py: Python<'_>, indices: List<usize>) -> PyResult<Dataset> {
        Ok(Dataset(Arc::new(Subset::new(self.0.clone(), indices.0).data(py)?)))
    }

    /// The samples of several data sets, one after the other.
    #[staticmethod]
    fn concat(parts: Vec<PyRef<'_, Dataset>>) -> Dataset {
        Dataset(Arc::new(Concat::new(parts.iter().map(|part| part.0.clone()).collect())))
    }

    /// Rows of arrays with one first axis: lists of fields, named fields, or the rows of a single array themselves.
    #[staticmethod]
    fn of_arrays(
        py: Python<'_>,
        arrays: Vec<Bound<'_, PyAny>>,
        names: Option<Vec<String>>,
        single: bool,
    ) -> PyResult<Dataset> {
        let mut rows = arrays.iter().map(|array| Ok(NumpyRows::new(&Dense::new("TensorDataset", array)?)));
        if single {
            let rows = rows.next().ok_or_else(|| PyTypeError::new_err("of_arrays: no array"))??;
            return Ok(Dataset(Arc::new(rows)));
        }
        let rows = rows.collect::<PyResult<Vec<_>>>()?;
        let set = match names {
            Some(names) => TensorDataset::named(names.into_iter().zip(rows)),
            None => TensorDataset::new(rows),
        };
        Ok(Dataset(Arc::new(set.data(py)?)))
    }

    /// Images of a folder with a folder for each class, with the classes and every sample's label.
    #[staticmethod]
    fn image_folder<'py>(
        py: Python<'py>,
        root: PathBuf,
        resize: Option<(String, usize, usize)>,
        channels: usize,
        max_pixels: Option<u64>,
    ) -> PyResult<(Dataset, Vec<String>, Bound<'py, PyAny>)> {
        let colors = match channels {
            1 => Colors::Grey,
            3 => Colors::Rgb,
            _ => return Err(PyValueError::new_err(format!("ImageFolder: channels must be 1 or 3, got {channels}"))),
        };
        let mut folder = py.detach(|| ImageFolder::open(root)).data(py)?.colors(colors);
        folder = folder.max_pixels(max_pixels.unwrap_or(MAX_PIXELS));
        if let Some((mode, height, width)) = resize {
            folder = folder.resized(resize_mode(&mode, height, width)?);
        }
        let labels = Array::line(folder.files().iter().map(|(_, label)| *label as i64).collect());
        Ok((Dataset(Arc::new(folder.clone())), folder.classes().to_vec(), array_to_py(py, labels)?))
    }

    /// The rows of a mapped ``.npy`` file.
    #[staticmethod]
    fn npy(py: Python<'_>, path: PathBuf) -> PyResult<Dataset> {
        let array = py.detach(|| NpyArray::open(&path)).data(py)?;
        if array.shape().is_empty() {
            let text = format!("NpyDataset: {} holds a single number, which has no rows", path.display());
            return Err(PyValueError::new_err(text));
        }
        Ok(Dataset(Arc::new(array)))
    }

    /// The rows of the arrays of an ``.npz`` file, by name.
    #[staticmethod]
    fn npz(py: Python<'_>, path: PathBuf) -> PyResult<Dataset> {
        let set = py.detach(|| NpzFile::open(path).and_then(NpzFile::dataset)).data(py)?;
        Ok(Dataset(Arc::new(set)))
    }

    /// Windows of tokens, each with the tokens that follow.
    #[staticmethod]
    fn token_windows(py: Python<'_>, tokens: &Bound<'_, PyAny>, length: usize, stride: usize) -> PyResult<Dataset> {
        let tokens = array_from_py("TextDataset", tokens)?;
        Ok(Dataset(Arc::new(TokenWindows::new(tokens, length, stride).data(py)?)))
    }
}

/// How pictures are resized, by name.
pub(super) fn resize_mode(mode: &str, height: usize, width: usize) -> PyResult<Resize> {
    Ok(match mode {
        "exact" => Resize::Exact([height, width]),
        "cover" => Resize::Cover([height, width]),
        "shorter" => Resize::Shorter(height),
        _ => return Err(PyValueError::new_err(format!("resize: {mode:?} is none of exact, cover, shorter"))),
    })
}

/// A NumPy array's own memory as rows. Who writes to the array while an epoch runs may see rows half written, as with NumPy itself.
struct NumpyRows {
    /// The address of the first element.
    first: usize,
    dtype: DType,
    shape: Vec<usize>,
    _owner: Py<PyAny>,
}

impl NumpyRows {
    fn new(array: &Dense<'_>) -> NumpyRows {
        let (first, _) = array.memory();
        NumpyRows { first: first as usize, dtype: array.dtype(), shape: array.shape().to_vec(), _owner: array.owner() }
    }
}

impl Rows for NumpyRows {
    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn row(&self, index: usize) -> Result<Array> {
        let Some((&len, shape)) = self.shape.split_first() else {
            return Err(Error::Argument { what: "TensorDataset: a single number has no rows".to_owned() });
        };
        if index >= len {
            return Err(Error::Index { index, len });
        }
        let size = shape.iter().product::<usize>() * self.dtype.size();
        if size == 0 {
            return Array::from_bytes(self.dtype, shape, &[]);
        }
        // SAFETY: `Dense` is contiguous and has these dimensions, the owner keeps it alive, and an array that someone else holds a
        // reference to cannot be resized in place.
        let bytes = unsafe { std::slice::from_raw_parts((self.first + index * size) as *const u8, size) };
        Array::from_bytes(self.dtype, shape, bytes)
    }
}

impl netcl::data::Dataset for NumpyRows {
    type Item = Sample;

    fn len(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    fn get(&self, index: usize) -> Result<Sample> {
        self.row(index).map(Sample::Array)
    }
}

/// The images of a data set by name or folder: the data set, the names of its classes, the labels of all samples.
#[pyfunction]
fn load_images<'py>(
    py: Python<'py>,
    name: String,
    folder: Option<PathBuf>,
    train: bool,
) -> PyResult<(Dataset, Vec<String>, Bound<'py, PyAny>)> {
    let splits = py.detach(|| netcl::data::catalog::load(&name, folder.as_deref())).data(py)?;
    let part = if train { splits.train } else { splits.test };
    let labels = Array::line(part.labels().iter().map(|label| i64::from(*label)).collect());
    Ok((Dataset(Arc::new(part)), splits.classes, array_to_py(py, labels)?))
}

/// A table of a CSV file.
#[pyclass(frozen, module = "netcl._netcl.data")]
struct Table(Arc<CsvTable>);

#[pymethods]
impl Table {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, delimiter: &str, header: bool) -> PyResult<Table> {
        let &[delimiter] = delimiter.as_bytes() else {
            let text = format!("CsvTable: the delimiter must be one ASCII character, got {delimiter:?}");
            return Err(PyValueError::new_err(text));
        };
        let table = py.detach(|| CsvTable::read(path, CsvOptions { delimiter, header })).data(py)?;
        Ok(Table(Arc::new(table)))
    }

    /// Rows of named fields.
    fn dataset(&self) -> Dataset {
        Dataset(self.0.clone())
    }

    /// The names of the columns.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.0.names().to_vec()
    }

    /// The values of a column: an array of numbers, or a list of texts.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        match self.0.column(name).data(py)? {
            Column::Numbers(numbers) => array_to_py(py, numbers.clone()),
            Column::Texts(texts) => texts.into_pyobject(py),
        }
    }

    /// Columns of numbers side by side.
    fn matrix<'py>(&self, py: Python<'py>, names: List<String>) -> PyResult<Bound<'py, PyAny>> {
        array_to_py(py, self.0.matrix(&names).data(py)?)
    }

    /// A column as labels, with the names of the classes.
    fn classes<'py>(&self, py: Python<'py>, name: &str) -> PyResult<(Bound<'py, PyAny>, Vec<String>)> {
        let (labels, classes) = self.0.classes(name).data(py)?;
        Ok((array_to_py(py, labels)?, classes))
    }
}

/// The characters of a text as tokens.
#[pyclass(frozen, module = "netcl.data")]
struct CharTokenizer(Characters);

#[pymethods]
impl CharTokenizer {
    #[new]
    fn new(text: &str) -> CharTokenizer {
        CharTokenizer(Characters::of(text))
    }

    /// The characters, in the order of their tokens.
    #[getter]
    fn alphabet(&self) -> String {
        self.0.alphabet().iter().collect()
    }

    /// The tokens of a text: int64.
    fn encode<'py>(&self, py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
        let tokens = self.0.encode(text).data(py)?;
        array_to_py(py, Array::line(tokens.into_iter().map(i64::from).collect()))
    }

    /// The text of tokens.
    fn decode(&self, py: Python<'_>, tokens: List<u32>) -> PyResult<String> {
        self.0.decode(&tokens).data(py)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, pyo3::types::PyType>, (String,)) {
        (py.get_type::<CharTokenizer>(), (self.alphabet(),))
    }

    fn __repr__(&self) -> String {
        format!("CharTokenizer({:?})", self.alphabet())
    }
}

/// The text of a file, or of all ``.txt`` files of a folder.
#[pyfunction]
fn read_text(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    py.detach(|| netcl::data::text::read(path)).data(py)
}

/// A data set of nothing but numbers, to be split.
#[derive(Clone)]
struct Numbers(usize);

impl netcl::data::Dataset for Numbers {
    type Item = usize;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<usize> {
        Ok(index)
    }
}

/// The numbers of the samples of each part of a random split; the sizes are whole numbers or shares.
#[pyfunction]
fn split(py: Python<'_>, len: usize, sizes: &Bound<'_, PyAny>, seed: u64) -> PyResult<Vec<Vec<usize>>> {
    netcl::core::host::check::<usize>("random_split", len).py()?;
    let parts = if let Ok(lengths) = sizes.extract::<List<usize>>() {
        netcl::data::random_split(Numbers(len), SplitSizes::Lengths(&lengths), seed)
    } else {
        let fractions: List<f64> = sizes.extract()?;
        netcl::data::random_split(Numbers(len), SplitSizes::Fractions(&fractions), seed)
    };
    Ok(parts.data(py)?.iter().map(|part| part.indices().to_vec()).collect())
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Dataset>()?;
    module.add_class::<Table>()?;
    module.add_class::<CharTokenizer>()?;
    module.add_function(wrap_pyfunction!(load_images, module)?)?;
    module.add_function(wrap_pyfunction!(read_text, module)?)?;
    module.add_function(wrap_pyfunction!(split, module)?)
}
