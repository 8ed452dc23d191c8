//! Recordable operations: the forward op and its gradient rule, one file per family.

pub mod activation;
pub mod attention;
pub mod conv;
pub mod distance;
pub mod dropout;
pub mod einsum;
pub mod elementwise;
pub mod embedding_bag;
mod fused;
pub mod indexing;
pub mod layout;
mod linear_map;
pub mod loss;
pub mod matmul;
pub mod norm;
pub mod pad;
pub mod pool;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod resample;
pub mod shuffle;
pub mod softmax;
pub mod sort;
