//! What tensors do by launching copies and fills.

use super::{HostOptions, Tensor};
use crate::backend::Queue;
use crate::dtype::DType;
use crate::error::Result;
use crate::host;
use crate::kernels::copy;
use crate::kernels::host_work::submit_host;
use crate::shape::{Layout, Shape};

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
        let out = Tensor::uninit(&self.queue, self.shape().clone(), self.dtype)?;
        copy::copy(self, &out)?;
        Ok(out)
    }

    /// The values in another dtype; this tensor itself if it has that dtype already. Images keep the order of their axes in memory.
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        let out = Tensor::uninit_beside(&[self], self.shape().clone(), dtype)?;
        copy::copy(self, &out)?;
        Ok(out)
    }

    /// These images `[N, C, H, W]` if their channels are neighbours in memory, else a copy in which they are.
    ///
    /// ```
    /// use netcl_core::{device::manager, tensor::Tensor};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0, 10.0, 20.0], [1, 2, 1, 2])?;
    /// let last = x.channels_last()?;
    /// assert!(last.layout().is_channels_last());
    /// assert_eq!(last.to_host::<f32>()?, x.to_host::<f32>()?);
    /// # Ok::<(), netcl_core::Error>(())
    /// ```
    pub fn channels_last(&self) -> Result<Tensor> {
        let layout = Layout::channels_last(self.shape().clone());
        let lies = |axis: usize| self.shape()[axis] == 1 || self.layout.strides()[axis] == layout.strides()[axis];
        if (0..self.ndim()).all(lies) {
            return Ok(self.clone());
        }
        let out = Tensor::uninit_channels_last(&self.queue, self.shape().clone(), self.dtype)?;
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
