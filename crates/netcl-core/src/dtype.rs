//! Element types: the names of the documentation's dtype table, and the integer types that labels, indices and masks use.

use std::fmt;

use half::{bf16, f16};

use crate::error::{Error, Result};

/// The type of a tensor's elements.
///
/// The four float types are what users compute with; [`DType::parse`] knows their names. The integer types only ever
/// live in [`IndexTensor`](crate::index::IndexTensor)s and masks.
///
/// ```
/// use netcl_core::dtype::DType;
///
/// assert_eq!(DType::parse("half")?, DType::F16);
/// assert_eq!(DType::parse("double")?.name(), "float64");
/// assert!(DType::parse("int32").unwrap_err().to_string().starts_with("unsupported dtype"));
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 32-bit float, the default.
    F32,
    /// 64-bit float.
    F64,
    /// IEEE 16-bit float.
    F16,
    /// The upper 16 bits of a 32-bit float.
    BF16,
    /// Bytes: truth values (0 and 1), and images.
    U8,
    /// 32-bit indices.
    I32,
    /// 64-bit indices.
    I64,
}

impl DType {
    /// The float types, in the order of the documentation's table.
    pub const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::F64, DType::BF16];

    /// The names a user may write for a tensor's dtype.
    pub const NAMES: [&'static str; 7] = ["float", "float32", "half", "float16", "double", "float64", "bfloat16"];

    /// Reads one of [`DType::NAMES`]; they are case-sensitive.
    pub fn parse(name: &str) -> Result<DType> {
        Ok(match name {
            "float" | "float32" => DType::F32,
            "half" | "float16" => DType::F16,
            "double" | "float64" => DType::F64,
            "bfloat16" => DType::BF16,
            _ => return Err(Error::UnsupportedDtype { name: name.to_owned() }),
        })
    }

    /// As [`DType::parse`], with the names of whole numbers (`"int32"`, `"int64"`, `"int"`, `"long"`) and truth values (`"bool"`).
    pub fn parse_any(name: &str) -> Result<DType> {
        Ok(match name {
            "int32" | "int" => DType::I32,
            "int64" | "long" => DType::I64,
            "bool" => DType::U8,
            _ => return DType::parse(name),
        })
    }

    /// The canonical name: what `Tensor.dtype` shows.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::U8 => "bool",
            DType::I32 => "int32",
            DType::I64 => "int64",
        }
    }

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }

    /// The OpenCL C type of an element in memory. bfloat16 has none of its own: it is stored as `ushort`.
    pub const fn cl_type(self) -> &'static str {
        match self {
            DType::F32 => "float",
            DType::F64 => "double",
            DType::F16 => "half",
            DType::BF16 => "ushort",
            DType::U8 => "uchar",
            DType::I32 => "int",
            DType::I64 => "long",
        }
    }

    /// Whether this is one of the four float types.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// The type sums over this type are carried in: 16-bit floats accumulate in f32.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::F16 | DType::BF16 => DType::F32,
            other => other,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can be a tensor's element. Implemented for `f32`, `f64`, `half::f16`, `half::bf16`, `u8`, `i32`, `i64`.
pub trait Element: sealed::Sealed + bytemuck::Pod + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The corresponding dtype.
    const DTYPE: DType;

    /// Rounds to the nearest representable value (integers truncate and saturate).
    fn from_f64(value: f64) -> Self;

    /// The value as f64; i64 beyond 2^53 rounds.
    fn to_f64(self) -> f64;
}

macro_rules! element {
    ($($ty:ty, $dtype:ident, $from:expr, $to:expr;)*) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn from_f64(value: f64) -> Self { ($from)(value) }
            fn to_f64(self) -> f64 { ($to)(self) }
        }
    )*};
}

element! {
    f32, F32, |v| v as f32, |v| v as f64;
    f64, F64, |v| v, |v| v;
    f16, F16, |v| f16::from_f32(odd_f32(v)), f16::to_f64;
    bf16, BF16, |v| bf16::from_f32(odd_f32(v)), bf16::to_f64;
    u8, U8, |v| v as u8, |v| v as f64;
    i32, I32, |v| v as i32, |v| v as f64;
    i64, I64, |v| v as i64, |v| v as f64;
}

/// Rounds to an odd f32: an inexact value gets a set last bit, so that rounding it again to 16 bits is as good as rounding
/// the original once.
#[inline(always)]
pub(crate) fn odd_f32(value: f64) -> f32 {
    let nearest = value as f32;
    let bits = nearest.to_bits();
    let exact = f64::from(nearest);
    let inexact_and_even = (exact != value) & (bits & 1 == 0) & !value.is_nan();
    // The neighbour towards `value`: away from zero if the nearest is too small. Zero itself has only that direction.
    let outwards = exact.abs() < value.abs();
    let neighbour = if outwards { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f32::from_bits(if inexact_and_even { neighbour } else { bits })
}

/// Runs a block with a type alias bound to the Rust type of a run-time dtype.
///
/// ```
/// use netcl_core::{dtype::DType, with_element};
///
/// let bytes = with_element!(DType::F16, T => std::mem::size_of::<T>());
/// assert_eq!(bytes, 2);
/// ```
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::dtype::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::dtype::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::dtype::DType::F16 => {
                type $T = $crate::half::f16;
                $body
            }
            $crate::dtype::DType::BF16 => {
                type $T = $crate::half::bf16;
                $body
            }
            $crate::dtype::DType::U8 => {
                type $T = u8;
                $body
            }
            $crate::dtype::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::dtype::DType::I64 => {
                type $T = i64;
                $body
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_floats_are_rounded_once() {
        // Just above the middle between 1 and the next f16: by way of f32 it would be rounded to the middle, then down.
        let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(<f16 as Element>::from_f64(above).to_f64(), 1.0 + 2f64.powi(-10));
        assert_eq!(<f16 as Element>::from_f64(1.0 + 2f64.powi(-11)).to_f64(), 1.0);
        let above = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        assert_eq!(<bf16 as Element>::from_f64(above).to_f64(), 1.0 + 2f64.powi(-7));
        assert!(<f16 as Element>::from_f64(f64::NAN).is_nan());
    }
}
