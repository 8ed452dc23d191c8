//! What layers compute on the host.

pub use netcl_core::host::with_capacity;
use netcl_core::kernels::expr::UnaryOp;

/// The distribution function of the standard normal, with a small relative error far into the lower tail.
///
/// ```
/// use netcl_autograd::host::norm_cdf;
///
/// assert_eq!(norm_cdf(0.0), 0.5);
/// assert!(norm_cdf(-30.0) > 0.0);
/// ```
pub fn norm_cdf(x: f64) -> f64 {
    UnaryOp::NormCdf.eval(x)
}
