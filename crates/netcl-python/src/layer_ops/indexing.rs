//! Elements chosen by index, and elements in order.

use netcl::autograd::ops::embedding_bag::{self as bag, BagMode, EmbeddingBagOptions};
use netcl::autograd::ops::{indexing, sort as order};
use netcl::raw_ops as ops;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::arguments::{Given, count, indices as index, inner, present};
use super::{Mode, both};
use crate::autograd::{like, wrap};
use crate::axis;
use crate::device::resolve_queue;
use crate::error::IntoPyResult;
use crate::index::Made;
use crate::tensor::{Tensor, parse_dtype};

/// A row of a table, counted from the end where it is negative.
fn padding_row(op: &str, rows: usize, at: isize) -> PyResult<usize> {
    let from_start = if at < 0 { at.checked_add_unsigned(rows) } else { Some(at) };
    from_start
        .and_then(|at| usize::try_from(at).ok())
        .filter(|&at| at < rows)
        .ok_or_else(|| PyValueError::new_err(format!("{op}: padding_idx {at} is no row of a table of {rows} rows")))
}

both! {
    /// The rows of the table ``weight`` with the given indices, of any shape. The row ``padding_idx`` gets no gradient.
    #[signature(indices, weight, padding_idx=None)]
    #[text("(indices, weight, padding_idx=None)")]
    fn embedding(mode, py, indices: &Bound<'_, PyAny>, weight: &Tensor, padding_idx: Option<isize>) -> Made {
        let weight = &weight.inner();
        let rows = weight.shape().first().copied().unwrap_or(0);
        let padding = padding_idx.map(|at| padding_row("embedding", rows, at)).transpose()?;
        let at = index(indices, weight.queue())?;
        mode.tensor(py, weight, || indexing::embedding(weight, &at, padding))
    }

    /// The rows of the table ``weight`` at bags of indices, put together to one row per bag: their ``"sum"``, ``"mean"`` or
    /// ``"max"``. A bag without rows gives zeros.
    ///
    /// Indices with two axes have a bag in each row; a row of indices is cut into bags that begin at the ``offsets`` (with
    /// ``include_last_offset`` the last one is the end instead). ``per_sample_weights`` are factors of a sum, one for each index.
    /// The index ``padding_idx`` belongs to no bag.
    #[signature(
        indices, weight, offsets=None, mode="mean", per_sample_weights=None, include_last_offset=false, padding_idx=None
    )]
    #[text(
        "(indices, weight, offsets=None, mode='mean', per_sample_weights=None, include_last_offset=False, padding_idx=None)"
    )]
    fn embedding_bag(
        how, py, indices: &Bound<'_, PyAny>, weight: &Tensor, offsets: Given<'_, '_>, mode: &str,
        per_sample_weights: Option<&Tensor>, include_last_offset: bool, padding_idx: Option<isize>,
    ) -> Made {
        let (weight, factors) = (&weight.inner(), &inner(per_sample_weights));
        let rows = weight.shape().first().copied().unwrap_or(0);
        let at = index(indices, weight.queue())?;
        let offsets = present(offsets).map(|offsets| index(offsets, weight.queue())).transpose()?;
        let options = EmbeddingBagOptions {
            mode: BagMode::parse(mode).py()?,
            offsets: offsets.as_ref(),
            include_last_offset,
            per_sample_weights: factors.as_deref(),
            padding: padding_idx.map(|at| padding_row("embedding_bag", rows, at)).transpose()?,
        };
        how.tensor(py, weight, || bag::embedding_bag(weight, &at, &options))
    }

    /// The slices of an axis with the given indices, in their order.
    #[signature(x, axis, indices)]
    #[text("(x, axis, indices)")]
    fn index_select(mode, py, x: &Tensor, axis: isize, indices: &Bound<'_, PyAny>) -> Made {
        let (x, at) = (&x.inner(), index(indices, x.inner().queue())?);
        mode.tensor(py, x, || indexing::index_select(x, axis, &at))
    }

    /// ``out[i][j][k] = x[indices[i][j][k]][j][k]`` for axis 0, and likewise for others.
    #[signature(x, axis, indices)]
    #[text("(x, axis, indices)")]
    fn gather(mode, py, x: &Tensor, axis: isize, indices: &Bound<'_, PyAny>) -> Made {
        let (x, at) = (&x.inner(), index(indices, x.inner().queue())?);
        mode.tensor(py, x, || indexing::gather(x, axis, &at))
    }

    /// ``x`` with ``out[indices[i][j][k]][j][k] += source[i][j][k]`` for axis 0, and likewise for others. Sums have a fixed order.
    #[signature(x, axis, indices, source)]
    #[text("(x, axis, indices, source)")]
    fn scatter_add(mode, py, x: &Tensor, axis: isize, indices: &Bound<'_, PyAny>, source: &Tensor) -> Made {
        let (x, at, source) = (&x.inner(), index(indices, x.inner().queue())?, &source.inner());
        mode.tensor(py, x, || indexing::scatter_add(x, axis, &at, source))
    }

    /// ``x`` with the slices of ``source`` added at indices of an axis. Sums have a fixed order.
    #[signature(x, axis, indices, source)]
    #[text("(x, axis, indices, source)")]
    fn index_add(mode, py, x: &Tensor, axis: isize, indices: &Bound<'_, PyAny>, source: &Tensor) -> Made {
        let (x, at, source) = (&x.inner(), index(indices, x.inner().queue())?, &source.inner());
        mode.tensor(py, x, || indexing::index_add(x, axis, &at, source))
    }

    /// ``value`` where ``mask`` (a tensor or an array that broadcasts to ``x``) is not 0, else ``x``.
    #[signature(x, mask, value)]
    #[text("(x, mask, value)")]
    fn masked_fill(mode, py, x: &Tensor, mask: &Bound<'_, PyAny>, value: f64) -> Made {
        let (x, mask) = (&x.inner(), like(mask, &x.inner())?);
        mode.tensor(py, x, || indexing::masked_fill(x, mask.raw(), value))
    }

    /// 1 at the index and 0 elsewhere, along a new last axis of ``num_classes``. An array of indices goes to ``queue``.
    #[signature(indices, num_classes, dtype=None, queue=None)]
    #[text("(indices, num_classes, dtype='float32', queue=None)")]
    fn one_hot(
        _mode, py, indices: &Bound<'_, PyAny>, num_classes: &Bound<'_, PyAny>, dtype: Given<'_, '_>, queue: Given<'_, '_>,
    ) -> Made {
        let classes = count("one_hot", "num_classes", num_classes)?;
        let (at, dtype) = (index(indices, &resolve_queue(py, queue, None)?)?, parse_dtype(dtype)?);
        Ok(Made::new(py.detach(|| ops::one_hot(&at, classes, dtype)).py()?.into()))
    }

    /// The ``k`` largest (or smallest) elements along an axis, the best first, and where they were: ``(values, indices)``.
    #[signature(x, k, axis=None, largest=true, *, dim=None)]
    #[text("(x, k, axis=-1, largest=True, *, dim=None)")]
    fn topk(mode, py, x: &Tensor, k: &Bound<'_, PyAny>, axis: Option<isize>, largest: bool, dim: Option<isize>) -> (Made, Made) {
        let (k, axis) = (count("topk", "k", k)?, axis::one_or("topk", dim, axis, -1)?);
        let (values, indices) = mode.call(py, &x.inner(), || order::topk(&x.inner(), k, axis, largest))?;
        Ok((wrap(py, values)?, indices.into()))
    }

    /// The elements in order along an axis, and where they were: ``(values, indices)``. Stable; NaN comes last.
    #[signature(x, axis=None, descending=false, *, dim=None, stable=true)]
    #[text("(x, axis=-1, descending=False, *, dim=None, stable=True)")]
    fn sort(mode, py, x: &Tensor, axis: Option<isize>, descending: bool, dim: Option<isize>, stable: bool) -> (Made, Made) {
        let _ = stable;
        let axis = axis::one_or("sort", dim, axis, -1)?;
        let (values, indices) = mode.call(py, &x.inner(), || order::sort(&x.inner(), axis, descending))?;
        Ok((wrap(py, values)?, indices.into()))
    }

    /// The positions that put the elements in order along an axis. Stable; NaN comes last.
    #[signature(x, axis=None, descending=false, *, dim=None, stable=true)]
    #[text("(x, axis=-1, descending=False, *, dim=None, stable=True)")]
    fn argsort(mode, py, x: &Tensor, axis: Option<isize>, descending: bool, dim: Option<isize>, stable: bool) -> Made {
        let _ = stable;
        let axis = axis::one_or("argsort", dim, axis, -1)?;
        Ok(mode.call(py, &x.inner(), || order::argsort(&x.inner(), axis, descending))?.into())
    }
}
