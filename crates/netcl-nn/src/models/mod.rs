//! Whole networks.

pub mod resnet;
