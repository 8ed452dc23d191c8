//! The element types of ONNX: how each is stored, and what it can represent.

use half::{bf16, f16};
use netcl_nn::autograd::DType;

macro_rules! kinds {
    ($($code:literal $name:ident $text:literal;)*) => {
        /// The element type of a tensor in an ONNX file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {$(
            #[doc = $text]
            $name = $code,
        )*}

        impl Kind {
            /// The type of a number in a file.
            pub fn of_code(code: i64) -> Option<Kind> {
                Some(match code { $($code => Kind::$name,)* _ => return None })
            }

            /// The name that ONNX's documentation uses.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$name => $text,)* }
            }
        }
    };
}

kinds! {
    1 F32 "float"; 2 U8 "uint8"; 3 I8 "int8"; 4 U16 "uint16"; 5 I16 "int16"; 6 I32 "int32"; 7 I64 "int64";
    8 Text "string"; 9 Bool "bool"; 10 F16 "float16"; 11 F64 "double"; 12 U32 "uint32"; 13 U64 "uint64"; 16 BF16 "bfloat16";
    17 E4M3Fn "float8e4m3fn"; 18 E4M3Fnuz "float8e4m3fnuz"; 19 E5M2 "float8e5m2"; 20 E5M2Fnuz "float8e5m2fnuz";
    21 U4 "uint4"; 22 I4 "int4"; 23 E2M1 "float4e2m1"; 24 E8M0 "float8e8m0"; 25 U2 "uint2"; 26 I2 "int2";
}

/// How a value that a type cannot hold is stored in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// As the largest value.
    Saturate,
    /// As infinity, or NaN where there is none.
    Infinite,
}

/// A float of 8 bits or fewer.
struct Small {
    exponent: u32,
    mantissa: u32,
    bias: i32,
    signed: bool,
    /// The code of infinity, and the smallest code of a NaN, without the sign.
    infinity: Option<u32>,
    nan: Option<u32>,
    /// The only NaN is what minus zero would be.
    unsigned_zero: bool,
}

impl Kind {
    /// The dtype of tensors on a device with these elements, if there is one.
    pub fn dtype(self) -> Option<DType> {
        Some(match self {
            Kind::F32 => DType::F32,
            Kind::F64 => DType::F64,
            Kind::F16 => DType::F16,
            Kind::BF16 => DType::BF16,
            Kind::I32 => DType::I32,
            Kind::I64 => DType::I64,
            Kind::Bool => DType::U8,
            _ => return None,
        })
    }

    /// The type of a device tensor's elements.
    pub fn of_dtype(dtype: DType) -> Kind {
        match dtype {
            DType::F32 => Kind::F32,
            DType::F64 => Kind::F64,
            DType::F16 => Kind::F16,
            DType::BF16 => Kind::BF16,
            DType::U8 => Kind::Bool,
            DType::I32 => Kind::I32,
            DType::I64 => Kind::I64,
        }
    }

    /// Whether its values are fractions.
    pub fn is_float(self) -> bool {
        matches!(self, Kind::F32 | Kind::F64 | Kind::F16 | Kind::BF16) || self.small().is_some()
    }

    /// Bits of an element in a file.
    pub fn bits(self) -> usize {
        match self {
            Kind::F64 | Kind::I64 | Kind::U64 => 64,
            Kind::F32 | Kind::I32 | Kind::U32 => 32,
            Kind::F16 | Kind::BF16 | Kind::I16 | Kind::U16 => 16,
            Kind::U4 | Kind::I4 | Kind::E2M1 => 4,
            Kind::U2 | Kind::I2 => 2,
            _ => 8,
        }
    }

    /// The smallest and the largest value of a type of whole numbers.
    pub fn range(self) -> (i128, i128) {
        let bits = self.bits() as u32;
        match self {
            Kind::Bool => (0, 1),
            Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 | Kind::U4 | Kind::U2 => (0, (1 << bits) - 1),
            _ => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        }
    }

    /// The number that is stored: whole numbers keep their lowest bits, and 64-bit ones without a sign wrap into an `i64`.
    pub fn wrap(self, value: i128) -> i64 {
        match self {
            Kind::Bool => i64::from(value != 0),
            Kind::U64 => value as u64 as i64,
            _ => {
                let (low, high) = self.range();
                let lowest_bits = value.rem_euclid(high - low + 1);
                (if lowest_bits > high { lowest_bits - (high - low + 1) } else { lowest_bits }) as i64
            }
        }
    }

    /// The value of a stored number.
    pub fn widen(self, stored: i64) -> i128 {
        if self == Kind::U64 { i128::from(stored as u64) } else { i128::from(stored) }
    }

    /// A fraction as this type's nearest value.
    pub fn round(self, value: f64, overflow: Overflow) -> f64 {
        match self {
            Kind::F32 => f64::from(value as f32),
            Kind::F16 => f16::from_f64(value).to_f64(),
            Kind::BF16 => bf16::from_f64(value).to_f64(),
            _ => match self.small() {
                Some(small) => small.value(small.nearest(value, overflow)),
                None => value,
            },
        }
    }

    /// The bits of one of this type's values, for types of 8 bits or fewer.
    pub fn encode(self, value: f64) -> u32 {
        self.small().map_or(0, |small| small.nearest(value, Overflow::Infinite))
    }

    /// The value of bits, for types of 8 bits or fewer.
    pub fn decode(self, bits: u32) -> f64 {
        self.small().map_or(f64::NAN, |small| small.value(bits))
    }

    fn small(self) -> Option<Small> {
        let small = |exponent, mantissa, bias| Small {
            exponent,
            mantissa,
            bias,
            signed: true,
            infinity: None,
            nan: None,
            unsigned_zero: false,
        };
        Some(match self {
            Kind::E4M3Fn => Small { nan: Some(0x7f), ..small(4, 3, 7) },
            Kind::E4M3Fnuz => Small { unsigned_zero: true, ..small(4, 3, 8) },
            Kind::E5M2 => Small { infinity: Some(0x7c), nan: Some(0x7d), ..small(5, 2, 15) },
            Kind::E5M2Fnuz => Small { unsigned_zero: true, ..small(5, 2, 16) },
            Kind::E2M1 => small(2, 1, 1),
            Kind::E8M0 => Small { signed: false, nan: Some(0xff), ..small(8, 0, 127) },
            _ => return None,
        })
    }
}

impl Small {
    fn magnitude_bits(&self) -> u32 {
        self.exponent + self.mantissa
    }

    fn value(&self, code: u32) -> f64 {
        let sign = 1 << self.magnitude_bits();
        let magnitude = code & (sign - 1);
        let negative = self.signed && code & sign != 0;
        if self.nan.is_some_and(|nan| magnitude >= nan) || (self.unsigned_zero && code == sign) {
            return f64::NAN;
        }
        let value = if self.infinity == Some(magnitude) {
            f64::INFINITY
        } else {
            let (exponent, fraction) = ((magnitude >> self.mantissa) as i32, magnitude & ((1 << self.mantissa) - 1));
            let one = f64::from(1 << self.mantissa);
            match exponent {
                0 if self.mantissa > 0 => f64::from(fraction) / one * 2f64.powi(1 - self.bias),
                _ => (1.0 + f64::from(fraction) / one) * 2f64.powi(exponent - self.bias),
            }
        };
        if negative { -value } else { value }
    }

    /// The code of the nearest value; of two, the even code.
    fn nearest(&self, value: f64, overflow: Overflow) -> u32 {
        let sign_bit = 1 << self.magnitude_bits();
        let sign = if self.signed && value.is_sign_negative() { sign_bit } else { 0 };
        let nan = if self.unsigned_zero { sign_bit } else { self.nan.unwrap_or(0) | sign };
        if value.is_nan() {
            return nan;
        }
        let codes = self.infinity.or(self.nan).unwrap_or(sign_bit);
        let largest = codes - 1;
        let size = value.abs();
        // Half a step beyond the largest value rounds to what comes after it.
        let step = self.value(largest) - self.value(largest - 1);
        if size > self.value(largest) + step / 2.0 || (size.is_infinite()) {
            return match (overflow, self.infinity) {
                (Overflow::Saturate, _) => largest | sign,
                (Overflow::Infinite, Some(infinity)) => infinity | sign,
                (Overflow::Infinite, None) if self.nan.is_none() && !self.unsigned_zero => largest | sign,
                (Overflow::Infinite, None) => nan,
            };
        }
        let mut best = (f64::INFINITY, 0);
        for code in 0..codes {
            let distance = (self.value(code) - size).abs();
            if distance < best.0 || (distance == best.0 && code % 2 == 0) {
                best = (distance, code);
            }
        }
        // A type without minus zero has the one zero.
        if self.unsigned_zero && best.1 == 0 { 0 } else { best.1 | sign }
    }
}
