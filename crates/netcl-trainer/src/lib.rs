//! The training loop: progress, callbacks, checkpoints, metrics.
