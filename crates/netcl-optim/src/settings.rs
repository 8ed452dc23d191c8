//! Checks of settings.

use netcl_autograd::{Error, Result};

/// An error for a setting that is negative or not a number.
pub(crate) fn not_negative(op: &'static str, name: &str, value: f64) -> Result<()> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(Error::argument(op, format!("the {name} is {value}; use a finite number that is not negative")))
}

/// An error for a setting that is not above zero.
pub(crate) fn positive(op: &'static str, name: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Error::argument(op, format!("the {name} is {value}; use a finite number above 0")))
}

/// An error for a decay rate that is not in `[0, 1)`.
pub(crate) fn rate(op: &'static str, name: &str, value: f64) -> Result<()> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    Err(Error::argument(op, format!("{name} is {value}; use a number from 0 up to, but not including, 1")))
}

/// An error for betas that are not decay rates.
pub(crate) fn check_betas(op: &'static str, betas: (f64, f64)) -> Result<()> {
    rate(op, "beta1", betas.0)?;
    rate(op, "beta2", betas.1)
}

/// An error for a count of zero.
pub(crate) fn at_least_one(op: &'static str, name: &str, value: u64) -> Result<()> {
    if value > 0 {
        return Ok(());
    }
    Err(Error::argument(op, format!("{name} is 0; use at least 1")))
}
