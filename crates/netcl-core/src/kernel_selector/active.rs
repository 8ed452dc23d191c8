//! The selector of the active device, and what it chooses there.

use std::sync::Arc;

use super::{KernelConfig, KernelSelector};
use crate::backend::Queue;
use crate::conv::ConvGeometry;
use crate::device::current_device;
use crate::dtype::DType;
use crate::error::Result;

/// The selector of a device; of the active or default one for `None`. One per device and process.
pub fn get_kernel_selector(queue: Option<&Queue>) -> Result<Arc<KernelSelector>> {
    Ok(match queue {
        Some(queue) => KernelSelector::of(queue),
        None => KernelSelector::of(&current_device()?.queue),
    })
}

/// The matmul kernel of the active or default device, for f32.
pub fn select_matmul_config(m: usize, n: usize, k: usize) -> Result<KernelConfig> {
    Ok(get_kernel_selector(None)?.select_matmul_kernel(m, n, k, DType::F32))
}

/// The convolution kernel of the active or default device, for f32.
pub fn select_conv2d_config(g: &ConvGeometry) -> Result<KernelConfig> {
    Ok(get_kernel_selector(None)?.select_conv2d_kernel(g, DType::F32))
}
