//! Networks of several layers.

pub mod gpt;
pub mod mobilenet;
pub mod resnet;
pub mod vit;
