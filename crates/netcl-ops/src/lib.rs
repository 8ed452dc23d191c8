//! Forward-only operations on tensors; nothing in this crate knows what a gradient is.
