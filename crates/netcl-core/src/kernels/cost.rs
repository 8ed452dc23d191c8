//! What a launch costs.

/// What a launch should cost: the work that cannot be avoided, not what a variant happens to do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}
