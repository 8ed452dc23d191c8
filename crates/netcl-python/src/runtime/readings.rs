//! What a description of a function's surroundings has read, kept to see in well under a microsecond that it would be read again.
//!
//! Objects are compared by identity, plain numbers and texts also by value. Describing a function anew takes 3 us and more;
//! comparing takes about 20 ns for each global, closure cell or attribute.

use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};
use smallvec::SmallVec;

use crate::tensor::Tensor;

/// One thing that was read.
enum Reading {
    /// `dict.get(key)`.
    Entry { dict: Py<PyDict>, key: Py<PyAny>, value: Option<Py<PyAny>> },
    /// `getattr(object, name)`.
    Attribute { object: Py<PyAny>, name: Py<PyString>, value: Py<PyAny> },
    /// All keys of a dictionary in their order, and the values of those that count.
    Table { dict: Py<PyDict>, entries: Vec<(Py<PyAny>, Option<Py<PyAny>>)> },
    /// All items of a list.
    Items { list: Py<PyList>, items: Vec<Py<PyAny>> },
    /// `type(object)`.
    Kind { object: Py<PyAny>, kind: Py<PyType> },
}

impl Reading {
    fn from_py(reading: &Bound<'_, PyTuple>) -> PyResult<Reading> {
        let at = |i: usize| reading.get_item(i);
        let tag = at(0)?;
        Ok(match tag.cast::<PyString>()?.to_str()? {
            "entry" => Reading::Entry { dict: at(1)?.extract()?, key: at(2)?.unbind(), value: Some(at(3)?.unbind()) },
            "missing" => Reading::Entry { dict: at(1)?.extract()?, key: at(2)?.unbind(), value: None },
            "attribute" => {
                Reading::Attribute { object: at(1)?.unbind(), name: at(2)?.extract()?, value: at(3)?.unbind() }
            }
            "table" => {
                let counted = at(3)?.cast_into::<PyDict>()?;
                let entry = |key: Bound<'_, PyAny>| {
                    let value = counted.get_item(&key)?;
                    Ok((key.unbind(), value.map(Bound::unbind)))
                };
                let keys = at(2)?.cast_into::<PyTuple>()?;
                Reading::Table { dict: at(1)?.extract()?, entries: keys.iter().map(entry).collect::<PyResult<_>>()? }
            }
            "items" => {
                let items = at(2)?.cast_into::<PyTuple>()?;
                Reading::Items { list: at(1)?.extract()?, items: items.iter().map(Bound::unbind).collect() }
            }
            "kind" => Reading::Kind { object: at(1)?.unbind(), kind: at(2)?.extract()? },
            other => return Err(PyValueError::new_err(format!("Readings: there is no reading {other:?}"))),
        })
    }

    fn holds(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(match self {
            Reading::Entry { dict, key, value } => match (dict.bind(py).get_item(key)?, value) {
                (Some(now), Some(value)) => is_same(&now, value)?,
                (now, value) => now.is_none() && value.is_none(),
            },
            Reading::Attribute { object, name, value } => match object.bind(py).getattr(name) {
                Ok(now) => is_same(&now, value)?,
                Err(_) => false,
            },
            Reading::Table { dict, entries } => {
                let dict = dict.bind(py);
                dict.len() == entries.len()
                    && dict.iter().zip(entries).try_fold(true, |all, ((key, now), (known, value))| {
                        let same = all && key.is(known);
                        Ok::<_, PyErr>(same && value.as_ref().map_or(Ok(true), |value| is_same(&now, value))?)
                    })?
            }
            Reading::Items { list, items } => {
                let list = list.bind(py);
                list.len() == items.len() && list.iter().zip(items).all(|(now, item)| now.is(item))
            }
            Reading::Kind { object, kind } => object.bind(py).get_type_ptr() == kind.bind(py).as_type_ptr(),
        })
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Reading::Entry { dict, key, value } => {
                visit.call(dict)?;
                visit.call(key)?;
                visit.call(value)
            }
            Reading::Attribute { object, value, .. } => {
                visit.call(object)?;
                visit.call(value)
            }
            Reading::Table { dict, entries } => {
                visit.call(dict)?;
                entries.iter().try_for_each(|(key, value)| {
                    visit.call(key)?;
                    visit.call(value)
                })
            }
            Reading::Items { list, items } => {
                visit.call(list)?;
                items.iter().try_for_each(|item| visit.call(item))
            }
            Reading::Kind { object, kind } => {
                visit.call(object)?;
                visit.call(kind)
            }
        }
    }
}

/// Whether two values are described alike: the same object, or the same plain number or text.
fn is_same(now: &Bound<'_, PyAny>, known: &Py<PyAny>) -> PyResult<bool> {
    let known = known.bind(now.py());
    if now.is(known) {
        return Ok(true);
    }
    if let (Ok(now), Ok(known)) = (now.cast_exact::<PyFloat>(), known.cast_exact::<PyFloat>()) {
        // Bits: 0.0 equals -0.0, and NaN not even itself.
        return Ok(now.value().to_bits() == known.value().to_bits());
    }
    let whole = now.is_exact_instance_of::<PyInt>() && known.is_exact_instance_of::<PyInt>();
    let text = now.is_exact_instance_of::<PyString>() && known.is_exact_instance_of::<PyString>();
    if whole || text { now.eq(known) } else { Ok(false) }
}

/// What was read to describe a function's surroundings. While it holds, so does the description.
#[pyclass(module = "netcl.runtime", frozen)]
pub(crate) struct Readings(Vec<Reading>);

#[pymethods]
impl Readings {
    /// Each reading is a tuple: ``("entry", dict, key, value)``, ``("missing", dict, key)``, ``("attribute", object, name, value)``,
    /// ``("table", dict, keys, values that count)``, ``("items", list, items)`` or ``("kind", object, type)``.
    #[new]
    fn new(readings: Vec<Bound<'_, PyTuple>>) -> PyResult<Readings> {
        readings.iter().map(Reading::from_py).collect::<PyResult<_>>().map(Readings)
    }

    /// Whether the same would be read again.
    fn hold(&self, py: Python<'_>) -> PyResult<bool> {
        for reading in &self.0 {
            if !reading.holds(py)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Recognises calls with arguments like these; ``None`` where one is neither a tensor nor a plain value.
    fn with_arguments(
        slf: &Bound<'_, Self>,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
    ) -> Option<SameCall> {
        let given = args.iter().chain(kwargs.values());
        let arguments = given.map(|value| Argument::like(&value)).collect::<Option<_>>()?;
        Some(SameCall {
            readings: slf.clone().unbind(),
            arguments,
            names: kwargs.keys().iter().map(Bound::unbind).collect(),
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.iter().try_for_each(|reading| reading.traverse(&visit))
    }
}

/// An argument of a call: any tensor of a class, or one plain value.
enum Argument {
    Tensor(Py<PyType>),
    Plain(Py<PyAny>),
}

impl Argument {
    fn like(value: &Bound<'_, PyAny>) -> Option<Argument> {
        if value.is_instance_of::<Tensor>() {
            return Some(Argument::Tensor(value.get_type().unbind()));
        }
        let number = value.is_exact_instance_of::<PyFloat>() || value.is_exact_instance_of::<PyInt>();
        let plain =
            number || value.is_none() || value.is_instance_of::<PyBool>() || value.is_exact_instance_of::<PyString>();
        plain.then(|| Argument::Plain(value.clone().unbind()))
    }
}

/// A call in surroundings that were described before, recognised by its arguments.
#[pyclass(module = "netcl.runtime", frozen)]
pub(crate) struct SameCall {
    readings: Py<Readings>,
    arguments: Vec<Argument>,
    /// The names of the last of them.
    names: Vec<Py<PyAny>>,
}

#[pymethods]
impl SameCall {
    /// The tensors among the arguments if this is such a call, else ``None``.
    fn inputs<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        if kwargs.len() != self.names.len() || args.len() + kwargs.len() != self.arguments.len() {
            return Ok(None);
        }
        let mut inputs: SmallVec<[Bound<'py, PyAny>; 8]> = SmallVec::new();
        let mut takes = |known: &Argument, value: Bound<'py, PyAny>| match known {
            Argument::Tensor(kind) => {
                let same = value.get_type_ptr() == kind.bind(py).as_type_ptr();
                inputs.push(value);
                Ok(same)
            }
            Argument::Plain(known) => is_same(&value, known),
        };
        let (positional, named) = self.arguments.split_at(args.len());
        for (known, value) in positional.iter().zip(args) {
            if !takes(known, value)? {
                return Ok(None);
            }
        }
        for ((known, name), (key, value)) in named.iter().zip(&self.names).zip(kwargs) {
            if !(is_same(&key, name)? && takes(known, value)?) {
                return Ok(None);
            }
        }
        if !self.readings.get().hold(py)? {
            return Ok(None);
        }
        PyTuple::new(py, inputs).map(Some)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.readings)?;
        self.arguments.iter().try_for_each(|argument| match argument {
            Argument::Tensor(kind) => visit.call(kind),
            Argument::Plain(_) => Ok(()),
        })
    }
}
