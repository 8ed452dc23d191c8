//! The launch seam, the expression IR and the kernel source helpers.

pub mod expr;
