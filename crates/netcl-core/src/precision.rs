//! How exactly float32 products are computed: on devices whose matrix units take shorter numbers, and under autocast.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::dtype::DType;
use crate::env;
use crate::error::{Error, Result};

/// What a product of float32 matrices may round its operands to. Sums are float32 throughout.
///
/// Only matrix units know the difference: where a device has none, every product is a float32 product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum MatmulPrecision {
    /// As accurate as float32, by whatever is fastest.
    #[default]
    Highest,
    /// Operands keep 11 bits (tf32).
    High,
    /// Operands keep 8 bits (bfloat16).
    Medium,
}

impl MatmulPrecision {
    /// All of them, the most exact first.
    pub const ALL: [MatmulPrecision; 3] = [MatmulPrecision::Highest, MatmulPrecision::High, MatmulPrecision::Medium];

    /// `"highest"`, `"high"` or `"medium"`.
    pub const fn as_str(self) -> &'static str {
        match self {
            MatmulPrecision::Highest => "highest",
            MatmulPrecision::High => "high",
            MatmulPrecision::Medium => "medium",
        }
    }
}

impl fmt::Display for MatmulPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for MatmulPrecision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let named = MatmulPrecision::ALL.into_iter().find(|precision| precision.as_str() == text);
        named.ok_or_else(|| {
            let what = format!("{text:?} is no precision; choose \"highest\", \"high\" or \"medium\"");
            Error::argument("set_matmul_precision", what)
        })
    }
}

/// The place in [`MatmulPrecision::ALL`].
static CURRENT: LazyLock<AtomicU8> = LazyLock::new(|| {
    AtomicU8::new(
        env::MATMUL_PRECISION.word().and_then(|word| word.parse().ok()).unwrap_or(MatmulPrecision::Highest) as u8
    )
});

/// Sets how exactly float32 products are computed from now on, on all threads.
///
/// ```
/// use netcl_core::precision::{MatmulPrecision, matmul_precision, set_matmul_precision};
/// set_matmul_precision(MatmulPrecision::High);
/// assert_eq!(matmul_precision(), MatmulPrecision::High);
/// set_matmul_precision("highest".parse()?);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn set_matmul_precision(precision: MatmulPrecision) {
    CURRENT.store(precision as u8, Ordering::Relaxed);
}

/// How exactly float32 products are computed: what was set last, or what `NETCL_MATMUL_PRECISION` said, or
/// [`MatmulPrecision::Highest`].
pub fn matmul_precision() -> MatmulPrecision {
    MatmulPrecision::ALL.get(usize::from(CURRENT.load(Ordering::Relaxed))).copied().unwrap_or_default()
}

thread_local! {
    static AUTOCAST: Cell<Option<DType>> = const { Cell::new(None) };
}

/// The 16-bit dtype that autocast runs products in on this thread; `None` where it is off. What is cast, and when, is autograd's
/// business: it is known here because recorded programs depend on it.
#[inline]
pub fn autocast_dtype() -> Option<DType> {
    AUTOCAST.get()
}

/// Sets [`autocast_dtype`] and gives what was before.
#[inline]
pub fn replace_autocast_dtype(dtype: Option<DType>) -> Option<DType> {
    AUTOCAST.replace(dtype)
}

/// What a recorded program depends on beside its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Of products of float32 matrices.
    pub matmul: MatmulPrecision,
    /// The dtype of [`autocast_dtype`].
    pub autocast: Option<DType>,
}

impl Precision {
    /// The one of this moment and thread.
    pub fn current() -> Precision {
        Precision { matmul: matmul_precision(), autocast: autocast_dtype() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for precision in MatmulPrecision::ALL {
            assert_eq!(precision.to_string().parse::<MatmulPrecision>().unwrap(), precision);
        }
        let error = "exact".parse::<MatmulPrecision>().unwrap_err().to_string();
        assert!(error.contains("\"exact\" is no precision") && error.contains("\"highest\""), "{error}");
    }
}
