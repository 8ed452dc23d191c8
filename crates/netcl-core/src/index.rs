//! Whole numbers that are not differentiated: labels, indices, positions.

use crate::backend::Queue;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::host;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// A tensor of int32 or int64, kept apart from float tensors so that nobody differentiates labels.
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor};
///
/// let labels = IndexTensor::from_host(&manager().cpu().queue, &[3i64, 0, 11], [3])?;
/// let error = labels.check_range("cross_entropy", 10).unwrap_err();
/// assert_eq!(error.to_string(), "cross_entropy: row 2 holds 11, but indices must lie in 0..10");
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IndexTensor(Tensor);

/// A Rust type that an [`IndexTensor`] can be made of.
pub trait IndexElement: Element {}

impl IndexElement for i32 {}
impl IndexElement for i64 {}

impl IndexTensor {
    /// Copies whole numbers to a device.
    pub fn from_host<T: IndexElement>(queue: &Queue, data: &[T], shape: impl Into<Shape>) -> Result<Self> {
        Ok(IndexTensor(Tensor::from_host(queue, data, shape)?))
    }

    /// Takes a raw tensor of int32, int64 or truth values.
    pub fn from_tensor(tensor: Tensor) -> Result<Self> {
        match tensor.dtype() {
            DType::I32 | DType::I64 => Ok(IndexTensor(tensor)),
            // Truth values count as 0 and 1.
            DType::U8 => Ok(IndexTensor(tensor.cast(DType::I64)?)),
            got => Err(Error::Dtype { op: "IndexTensor", expected: "int32 or int64".to_owned(), got }),
        }
    }

    /// Reads whole numbers out of a float tensor; a value with a fraction is an error that names it.
    pub fn from_float(tensor: &Tensor) -> Result<Self> {
        tensor.check_float("IndexTensor")?;
        let values = tensor.to_f64_vec()?;
        if let Some((row, value)) = values.iter().enumerate().find(|(_, v)| v.trunc() != **v || v.abs() > 2f64.powi(53))
        {
            let what = format!("element {row} is {value}, which is not a whole number");
            return Err(Error::argument("IndexTensor", what));
        }
        let whole: Vec<i64> = values.into_iter().map(|v| v as i64).collect();
        IndexTensor::from_host(tensor.queue(), &whole, tensor.shape().clone())
    }

    /// The raw tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.0
    }

    /// All values in row-major order.
    pub fn to_host(&self) -> Result<Vec<i64>> {
        match self.0.dtype() {
            DType::I32 => host::collect("to_host", self.0.to_host::<i32>()?.into_iter().map(i64::from)),
            _ => self.0.to_host::<i64>(),
        }
    }

    /// An error that names the first value outside `0..limit`.
    pub fn check_range(&self, op: &'static str, limit: usize) -> Result<()> {
        match self.to_host()?.iter().enumerate().find(|(_, v)| **v < 0 || **v as u64 >= limit as u64) {
            None => Ok(()),
            Some((row, value)) => {
                Err(Error::argument(op, format!("row {row} holds {value}, but indices must lie in 0..{limit}")))
            }
        }
    }
}
