//! Subscripts.

use netcl::core::shape::{Layout, Slice};
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyEllipsis, PySlice};

use crate::error::IntoPyResult;

/// The part of a layout that a subscript names.
pub(super) fn index_layout(layout: &Layout, keys: &[Bound<'_, PyAny>]) -> PyResult<Layout> {
    let consumed = keys.iter().filter(|k| !k.is_none() && !k.is_instance_of::<PyEllipsis>()).count();
    let axes = layout.shape().ndim();
    if consumed > axes || keys.iter().filter(|k| k.is_instance_of::<PyEllipsis>()).count() > 1 {
        let text = format!("{consumed} indices (and at most one ...) for a tensor of shape {}", layout.shape());
        return Err(PyIndexError::new_err(text));
    }
    let mut out = layout.clone();
    let mut axis = 0;
    for key in keys {
        if key.is_none() {
            out = out.unsqueeze("indexing", axis as isize).py()?;
            axis += 1;
        } else if key.is_instance_of::<PyEllipsis>() {
            axis += axes - consumed;
        } else if let Ok(slice) = key.cast::<PySlice>() {
            let part = |name: &str| -> PyResult<Option<isize>> {
                let value = slice.getattr(name)?;
                if value.is_none() { Ok(None) } else { value.extract().map(Some) }
            };
            let slice = Slice::new(part("start")?, part("stop")?, part("step")?.unwrap_or(1));
            out = out.slice(axis, slice).py()?;
            axis += 1;
        } else if let Ok(index) = key.extract::<isize>() {
            out = out.select("indexing", axis, index).py()?;
        } else {
            let text = format!("a tensor is indexed by whole numbers, slices, ... and None, not {}", key.get_type());
            return Err(PyTypeError::new_err(text));
        }
    }
    Ok(out)
}
