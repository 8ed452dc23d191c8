//! Subscripts.

use std::sync::Arc;

use netcl::autograd::graph::unrecorded;
use netcl::autograd::in_place::View;
use netcl::autograd::ops::layout;
use netcl::core::Result as CoreResult;
use netcl::core::shape::{Layout, Shape, Slice};
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyEllipsis, PySlice, PyTuple};

/// What one part of a subscript does, after the parts before it.
pub(super) enum Step {
    /// A new axis of length 1.
    Insert(usize),
    /// A part of an axis.
    Slice(usize, Slice),
    /// One index of an axis, which disappears.
    Select(usize, isize),
}

impl Step {
    /// The steps that a subscript of a tensor of this shape consists of.
    pub(super) fn parse(shape: &Shape, keys: &[Bound<'_, PyAny>]) -> PyResult<Vec<Step>> {
        let consumed = keys.iter().filter(|k| !k.is_none() && !k.is_instance_of::<PyEllipsis>()).count();
        let axes = shape.ndim();
        if consumed > axes || keys.iter().filter(|k| k.is_instance_of::<PyEllipsis>()).count() > 1 {
            let text = format!("{consumed} indices (and at most one ...) for a tensor of shape {shape}");
            return Err(PyIndexError::new_err(text));
        }
        let mut steps = Vec::with_capacity(keys.len());
        let mut axis = 0;
        for key in keys {
            if key.is_none() {
                steps.push(Step::Insert(axis));
                axis += 1;
            } else if key.is_instance_of::<PyEllipsis>() {
                axis += axes - consumed;
            } else if let Ok(slice) = key.cast::<PySlice>() {
                let part = |name: &str| -> PyResult<Option<isize>> {
                    let value = slice.getattr(name)?;
                    if value.is_none() { Ok(None) } else { value.extract().map(Some) }
                };
                steps.push(Step::Slice(axis, Slice::new(part("start")?, part("stop")?, part("step")?.unwrap_or(1))));
                axis += 1;
            } else if let Ok(index) = key.extract::<isize>() {
                steps.push(Step::Select(axis, index));
            } else {
                let kind = key.get_type();
                let text = format!("a tensor is indexed by whole numbers, slices, ... and None, not {kind}");
                return Err(PyTypeError::new_err(text));
            }
        }
        Ok(steps)
    }
}

/// The parts of a subscript.
pub(super) fn keys<'py>(key: &Bound<'py, PyAny>) -> Vec<Bound<'py, PyAny>> {
    match key.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().collect(),
        Err(_) => vec![key.clone()],
    }
}

impl Step {
    fn layout(&self, layout: &Layout) -> CoreResult<Layout> {
        match *self {
            Step::Insert(axis) => layout.unsqueeze("indexing", axis as isize),
            Step::Slice(axis, slice) => layout.slice(axis, slice),
            Step::Select(axis, index) => layout.select("indexing", axis, index),
        }
    }

    /// The view that a subscript is.
    pub(super) fn view(steps: Vec<Step>) -> View {
        Arc::new(move |layout| steps.iter().try_fold(layout.clone(), |layout, step| step.layout(&layout)))
    }
}

/// The part of a tensor that a subscript names: a view, recorded if need be.
pub(super) fn index(tensor: &netcl::Tensor, steps: &[Step]) -> netcl::Result<netcl::Tensor> {
    if unrecorded("slice", [tensor]).is_some() {
        return steps.iter().try_fold(tensor.clone(), |part, step| match *step {
            Step::Insert(axis) => layout::unsqueeze(&part, axis as isize),
            Step::Slice(axis, slice) => layout::slice(&part, axis as isize, slice),
            Step::Select(axis, index) => layout::select(&part, axis as isize, index),
        });
    }
    // Nothing but the layout changes, so that no step needs a tensor of its own.
    let layout = steps.iter().try_fold(tensor.layout().clone(), |layout, step| step.layout(&layout))?;
    Ok(tensor.with_layout(layout)?.into())
}
