//! Sums, means and maxima of bags of rows of a table.

use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch;
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor as Raw;
use netcl_ops as ops;
use netcl_ops::integer::{IntegerOp, integer};

use super::elementwise::{div, maximum, mul, where_};
use super::indexing::{embedding, gather, masked_fill};
use super::layout::{squeeze, unsqueeze};
use super::linear_map::LinearMap;
use super::reduce::{argmax, sum};
use crate::autocast;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

const OP: &str = "embedding_bag";

/// What becomes of the rows of a bag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BagMode {
    /// Their sum.
    Sum,
    /// Their mean.
    #[default]
    Mean,
    /// The largest of each column; the gradient goes to the first of equals.
    Max,
}

impl BagMode {
    /// Reads `"sum"`, `"mean"` or `"max"`.
    pub fn parse(name: &str) -> Result<BagMode> {
        match name {
            "sum" => Ok(BagMode::Sum),
            "mean" => Ok(BagMode::Mean),
            "max" => Ok(BagMode::Max),
            _ => Err(Error::argument(OP, format!("there is no mode {name:?}; use \"sum\", \"mean\" or \"max\""))),
        }
    }
}

/// How [`embedding_bag`] cuts indices into bags and puts rows together.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmbeddingBagOptions<'t> {
    /// What becomes of the rows of a bag.
    pub mode: BagMode,
    /// Where the bags of a row of indices begin: from 0 on, in order. Without them each row of a table of indices is a bag.
    pub offsets: Option<&'t IndexTensor>,
    /// The last offset is the end of the last bag, and begins none.
    pub include_last_offset: bool,
    /// A factor for each index, for sums.
    pub per_sample_weights: Option<&'t Tensor>,
    /// The index that belongs to no bag, and whose row gets no gradient.
    pub padding: Option<usize>,
}

/// The rows of a table `[count, width]` at bags of indices, put together to one row per bag; a bag without rows gives zeros.
///
/// ```
/// use netcl_autograd::{IndexTensor, manager};
/// use netcl_autograd::{Tensor, ops::embedding_bag::{BagMode, EmbeddingBagOptions, embedding_bag}};
///
/// let queue = manager().cpu().queue;
/// let table = Tensor::from_host(&queue, &[1.0f32, 10.0, 100.0], [3, 1])?;
/// let indices = IndexTensor::from_host(&queue, &[0i64, 1, 2, 2], [4])?;
/// let offsets = IndexTensor::from_host(&queue, &[0i64, 3, 3], [3])?;
/// let options = EmbeddingBagOptions { mode: BagMode::Sum, offsets: Some(&offsets), ..Default::default() };
/// assert_eq!(embedding_bag(&table, &indices, &options)?.to_host::<f32>()?, [111.0, 0.0, 100.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn embedding_bag(weight: &Tensor, indices: &IndexTensor, options: &EmbeddingBagOptions<'_>) -> Result<Tensor> {
    let inputs = [weight].into_iter().chain(options.per_sample_weights);
    if let Some(casts) = autocast::enter("embedding_bag", inputs) {
        let factors = casts.given(options.per_sample_weights)?;
        let options = EmbeddingBagOptions { per_sample_weights: factors.as_ref(), ..*options };
        return embedding_bag(&casts.of(weight)?, indices, &options);
    }
    let EmbeddingBagOptions { mode, per_sample_weights, padding, .. } = *options;
    let shape = indices.tensor().shape();
    if let Some(factors) = per_sample_weights {
        if mode != BagMode::Sum {
            return Err(Error::argument(
                OP,
                "per_sample_weights are factors of a sum; use mode sum, or leave them out",
            ));
        }
        if factors.shape() != shape {
            return Err(Error::shape(
                OP,
                factors.shape(),
                format!("per_sample_weights have the shape of the indices, {shape}"),
            ));
        }
    }
    let bags = Bags::new(indices, options)?;
    let mut rows = embedding(weight, indices, padding)?;
    let outside = padding.map(|row| outside(indices, row)).transpose()?;
    if let Some(outside) = &outside {
        rows = masked_fill(&rows, outside, if mode == BagMode::Max { f64::NEG_INFINITY } else { 0.0 })?;
    }
    if let Some(factors) = per_sample_weights {
        rows = mul(&rows, &unsqueeze(factors, -1)?)?;
    }
    // How many rows a bag has, as a column.
    let counts = || {
        let mut ones = Tensor::full(rows.queue(), [&shape[..], &[1]].concat(), rows.dtype(), 1.0)?;
        if let Some(outside) = &outside {
            ones = masked_fill(&ones, outside, 0.0)?;
        }
        bags.sum(&ones)
    };
    match mode {
        BagMode::Sum => bags.sum(&rows),
        BagMode::Mean => div(&bags.sum(&rows)?, &maximum(&counts()?, 1.0)?),
        BagMode::Max if rows.size() == 0 => bags.sum(&rows),
        BagMode::Max => where_(&counts()?, &bags.largest(&rows)?, 0.0),
    }
}

/// 1 where an index is the padding, with an axis for the columns of a row.
fn outside(indices: &IndexTensor, padding: usize) -> Result<Raw> {
    let row = Raw::full(indices.tensor().queue(), [1], DType::I64, padding as f64)?;
    let padded = integer(IntegerOp::Eq, &[indices.tensor(), &row], DType::U8)?.cast(DType::F32)?;
    Ok(ops::unsqueeze(&padded, -1)?)
}

/// Which indices a bag has.
enum Bags {
    /// The rows of a table of indices.
    Rows,
    /// Stretches of one row of so many indices, which begin at the offsets.
    Stretches { indices: usize, offsets: IndexTensor },
}

impl Bags {
    fn new(indices: &IndexTensor, options: &EmbeddingBagOptions<'_>) -> Result<Bags> {
        let shape = indices.tensor().shape();
        match (shape.ndim(), options.offsets) {
            (2, None) => Ok(Bags::Rows),
            (1, Some(offsets)) => Bags::stretches(shape[0], offsets, options.include_last_offset),
            (2, Some(_)) => Err(Error::shape(
                OP,
                shape,
                "each row of a table of indices is a bag; offsets are for one axis of them",
            )),
            _ => Err(Error::shape(OP, shape, "indices have two axes, a bag in each row, or one axis and offsets")),
        }
    }

    fn stretches(indices: usize, offsets: &IndexTensor, include_last_offset: bool) -> Result<Bags> {
        let [given] = offsets.tensor().shape()[..] else {
            return Err(Error::shape(OP, offsets.tensor().shape(), "offsets have one axis: where each bag begins"));
        };
        check_offsets(indices, offsets, include_last_offset)?;
        let bags = given.saturating_sub(usize::from(include_last_offset));
        let offsets = offsets.tensor().slice(0, Slice::new(None, Some(bags as isize), 1))?;
        Ok(Bags::Stretches { indices, offsets: IndexTensor::from_tensor(offsets)? })
    }

    /// The sum of each bag's rows.
    #[track_caller]
    fn sum(&self, rows: &Tensor) -> Result<Tensor> {
        let Bags::Stretches { indices, offsets } = self else { return sum(rows, 1, false) };
        let (indices, offsets, again) = (*indices, offsets.clone(), offsets.clone());
        LinearMap::new(
            ["segment_sum", "segment_sum_backward"],
            move |rows| ops::segment_sum(rows, &offsets),
            move |grad| ops::index_select(grad, 0, &bag_of_each(indices, &again)?),
        )
        .apply(rows)
    }

    /// The largest element of each column of a bag's rows, of which there is at least one.
    #[track_caller]
    fn largest(&self, rows: &Tensor) -> Result<Tensor> {
        match self {
            Bags::Rows => squeeze(&gather(rows, 1, &argmax(rows, Some(1), true)?)?, &[1]),
            Bags::Stretches { offsets, .. } => gather(rows, 0, &ops::segment_argmax(rows.raw(), offsets)?),
        }
    }
}

/// The bag of each index: the number of bags that have begun, less one. Counted on the device, so that a captured step sees the
/// offsets of each replay; float32 counts 2^24 bags exactly.
fn bag_of_each(indices: usize, offsets: &IndexTensor) -> netcl_core::Result<IndexTensor> {
    let (queue, bags) = (offsets.tensor().queue(), offsets.tensor().size());
    let none = Raw::full(queue, [indices + 1], DType::F32, 0.0)?;
    let begins = ops::index_add(&none, 0, offsets, &Raw::full(queue, [bags], DType::F32, 1.0)?)?;
    let begun = ops::cumsum(&begins, 0)?.slice(0, Slice::new(None, Some(indices as isize), 1))?;
    IndexTensor::from_tensor(ops::sub(&begun, 1.0)?.cast(DType::I64)?)
}

/// An error unless offsets begin with 0 and go on in order up to the number of indices, where they can be read.
fn check_offsets(n: usize, offsets: &IndexTensor, include_last_offset: bool) -> Result<()> {
    let given = offsets.tensor().size();
    if given <= usize::from(include_last_offset) && n > 0 {
        return Err(Error::argument(
            OP,
            format!("{given} offsets begin no bag for {n} indices; the first bag begins at 0"),
        ));
    }
    if given >= 1 << 24 {
        return Err(Error::shape(OP, offsets.tensor().shape(), "more than 2^24 bags; cut them into several calls"));
    }
    if launch::check_readable(OP).is_err() {
        return Ok(());
    }
    let values = offsets.to_host()?;
    let wrong = |at: usize| {
        let least = if at == 0 { 0 } else { values[at - 1] };
        let most = if at == 0 { 0 } else { n as i64 };
        let last = include_last_offset && at + 1 == values.len();
        !(least..=most).contains(&values[at]) || (last && values[at] != n as i64)
    };
    let Some(at) = (0..values.len()).find(|&at| wrong(at)) else { return Ok(()) };
    let end = if include_last_offset { "and end with" } else { "up to" };
    let what =
        format!("offset {at} is {}; offsets begin with 0, go on in order {end} {n}, the number of indices", values[at]);
    Err(Error::argument(OP, what))
}
