//! Tensors as inputs and outputs of captured functions.

use netcl_core::Result as CoreResult;
use netcl_core::tensor::Tensor as Raw;
use netcl_runtime::capture::Tensors;

use crate::tensor::Tensor;

/// Captured functions take data and give results: gradients are asked for inside of them.
impl Tensors for Tensor {
    fn visit<'t>(&'t self, see: &mut dyn FnMut(&'t Raw)) {
        see(self.raw());
    }

    fn replace(&self, with: &mut dyn FnMut(&Raw) -> CoreResult<Raw>) -> CoreResult<Self> {
        Ok(with(self.raw())?.into())
    }
}
