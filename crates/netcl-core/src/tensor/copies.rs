//! What tensors do by launching copies and fills.

use super::{HostOptions, Tensor};
use crate::backend::Queue;
use crate::dtype::DType;
use crate::error::Result;
use crate::host;
use crate::kernels::copy;
use crate::kernels::host_work::submit_host;
use crate::shape::Shape;

impl Tensor {
    /// A new tensor filled with a value.
    pub fn full(queue: &Queue, shape: impl Into<Shape>, dtype: DType, fill: f64) -> Result<Tensor> {
        let tensor = Tensor::uninit(queue, shape, dtype)?;
        copy::fill(&tensor, fill)?;
        Ok(tensor)
    }

    /// This tensor if its elements lie densely in row-major order, else a copy in which they do.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.layout.is_contiguous() {
            return Ok(self.clone());
        }
        self.duplicate()
    }

    /// A dense copy with storage of its own.
    pub fn duplicate(&self) -> Result<Tensor> {
        self.cast_always(self.dtype)
    }

    /// The values in another dtype; this tensor itself if it has that dtype already.
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype { Ok(self.clone()) } else { self.cast_always(dtype) }
    }

    fn cast_always(&self, dtype: DType) -> Result<Tensor> {
        let out = Tensor::uninit(&self.queue, self.shape().clone(), dtype)?;
        copy::copy(self, &out)?;
        Ok(out)
    }

    /// The values on another queue's device; this tensor itself if it lives on that device already.
    ///
    /// Work of the host, so that a captured function may use several devices: every replay copies.
    pub fn to(&self, queue: &Queue) -> Result<Tensor> {
        if self.queue.same_device(queue) {
            return Ok(self.clone());
        }
        let there = Tensor::uninit(queue, self.shape().clone(), self.dtype)?;
        submit_host("to", queue, &[self], &[&there], |from, there| {
            let mut bytes = host::filled("to", from[0].shape().nbytes("to", from[0].dtype)?, 0u8)?;
            from[0].read_bytes(&mut bytes)?;
            // Dense and from the storage's first byte on, as `uninit` makes it.
            there[0].upload(&bytes, there[0].dtype, HostOptions::default())
        })?;
        Ok(there)
    }

    /// Overwrites the elements with those of another tensor, which is expanded and cast as needed.
    pub fn assign(&self, source: &Tensor) -> Result<()> {
        copy::copy(&source.expand(self.shape())?, self)
    }

    /// Overwrites every element with a value.
    pub fn fill(&self, value: f64) -> Result<()> {
        copy::fill(self, value)
    }
}
