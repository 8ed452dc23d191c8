//! Picking by label and its adjoint: both linear, each the other's gradient.

use std::panic::Location;

use netcl_core::index::IndexTensor;
use netcl_ops as ops;
use smallvec::smallvec;

use crate::error::{Error, Result};
use crate::graph::{Save, record};
use crate::tensor::Tensor;

/// For every index of the other axes, the element of `axis` that a label names; see [`netcl_ops::pick()`]. Lines with the
/// label `ignore` are 0 and pass no gradient.
#[track_caller]
pub fn pick(x: &Tensor, axis: isize, labels: &IndexTensor, ignore: Option<i64>) -> Result<Tensor> {
    let out = ops::pick(x.raw(), axis, labels, ignore)?;
    let classes = x.shape()[x.shape().axis("pick", axis)?];
    let saved = SavedLabels::new("pick", labels);
    record("pick", &[x], out, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(unpick(upstream, axis, saved.get()?, classes, ignore)?)]))
    })
}

/// The adjoint of [`pick`]: zeros with a new axis of length `classes`, in which `x` is written where the labels point.
#[track_caller]
pub fn unpick(x: &Tensor, axis: isize, labels: &IndexTensor, classes: usize, ignore: Option<i64>) -> Result<Tensor> {
    let out = ops::unpick(x.raw(), axis, labels, classes, ignore)?;
    let saved = SavedLabels::new("unpick", labels);
    record("unpick", &[x], out, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(pick(upstream, axis, saved.get()?, ignore)?)]))
    })
}

/// Labels that must not have changed when the gradient is computed.
pub(super) struct SavedLabels {
    labels: IndexTensor,
    version: u64,
    op: &'static str,
    place: &'static Location<'static>,
}

impl SavedLabels {
    #[track_caller]
    pub(super) fn new(op: &'static str, labels: &IndexTensor) -> Self {
        SavedLabels { labels: labels.clone(), version: labels.tensor().version(), op, place: Location::caller() }
    }

    pub(super) fn get(&self) -> Result<&IndexTensor> {
        if self.labels.tensor().version() == self.version {
            return Ok(&self.labels);
        }
        Err(Error::Overwritten { op: self.op, which: "an IndexTensor of labels", place: self.place })
    }
}
