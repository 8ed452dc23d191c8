//! Device-side augmentation and bound transfer of batches.
