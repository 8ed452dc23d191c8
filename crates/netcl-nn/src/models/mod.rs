//! Whole networks.

pub mod gpt;
pub mod resnet;
