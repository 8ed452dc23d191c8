//! Normalisations on the native CPU. Partial results follow from shapes alone: the number of threads changes only the time.

pub(super) mod batch;
mod columns;
mod moments;
pub(super) mod rows;
pub(crate) mod statistics;

/// Elements that one task should have at least.
const TASK: usize = 1 << 14;
