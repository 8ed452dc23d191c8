//! Model files, checkpoints and exchange formats.
