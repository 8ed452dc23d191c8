//! Nothing, as a layer.

use netcl_autograd::{Result, Tensor};

use crate::Module;
use crate::settings::Settings;

/// The input itself: for a place where a model may have a layer or not.
#[derive(Clone, Copy, Module, Settings)]
#[module(settings)]
pub struct Identity;

impl Identity {
    /// The input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        Ok(input.clone())
    }
}
