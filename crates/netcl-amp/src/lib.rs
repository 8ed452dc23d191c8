//! Automatic mixed precision: autocast and gradient scaling.
