//! Recordable operations: the forward op and its gradient rule, one file per family.

pub mod elementwise;
pub mod layout;
pub mod loss;
pub mod matmul;
pub mod reduce;
pub mod softmax;
