//! What a look at an array's numbers tells.

use half::{bf16, f16};
use netcl_nn::autograd::DType;

use crate::array::Array;

/// The numbers of an array in short. NaNs are counted and else left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// The smallest; infinite if there is none.
    pub min: f64,
    /// The largest; negative infinite if there is none.
    pub max: f64,
    /// NaN if there are no numbers.
    pub mean: f64,
    /// How many elements are no numbers.
    pub nans: usize,
}

impl Array {
    /// Goes through all elements once.
    ///
    /// ```
    /// let stats = netcl_io::Array::scalar(0.5).stats();
    /// assert_eq!((stats.min, stats.max, stats.mean, stats.nans), (0.5, 0.5, 0.5, 0));
    /// ```
    pub fn stats(&self) -> Stats {
        match self.dtype {
            DType::F32 => stats(&self.bytes, |bytes| f32::from_le_bytes(bytes).into()),
            DType::F64 => stats(&self.bytes, f64::from_le_bytes),
            DType::F16 => stats(&self.bytes, |bytes| f16::from_le_bytes(bytes).to_f64()),
            DType::BF16 => stats(&self.bytes, |bytes| bf16::from_le_bytes(bytes).to_f64()),
            DType::U8 => stats(&self.bytes, |[byte]: [u8; 1]| byte.into()),
            DType::I32 => stats(&self.bytes, |bytes| i32::from_le_bytes(bytes).into()),
            DType::I64 => stats(&self.bytes, |bytes| i64::from_le_bytes(bytes) as f64),
        }
    }
}

fn stats<const SIZE: usize>(bytes: &[u8], number: impl Fn([u8; SIZE]) -> f64) -> Stats {
    let (mut min, mut max, mut sum, mut nans) = (f64::INFINITY, f64::NEG_INFINITY, 0.0, 0);
    let elements = bytes.as_chunks::<SIZE>().0;
    for &element in elements {
        let value = number(element);
        if value.is_nan() {
            nans += 1;
        } else {
            (min, max, sum) = (min.min(value), max.max(value), sum + value);
        }
    }
    Stats { min, max, mean: sum / (elements.len() - nans) as f64, nans }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_is_counted() {
        let bytes: Vec<u8> = [1.5f64, f64::NAN, -2.5].iter().flat_map(|number| number.to_le_bytes()).collect();
        let array = Array { dtype: DType::F64, shape: vec![3], bytes: bytes.into() };
        let expected = Stats { min: -2.5, max: 1.5, mean: -0.5, nans: 1 };
        for dtype in DType::FLOATS {
            assert_eq!(array.cast(dtype).unwrap().stats(), expected, "{dtype}");
        }
        let whole = Array::scalar(200.0);
        for dtype in [DType::U8, DType::I32, DType::I64] {
            assert_eq!(whole.cast(dtype).unwrap().stats(), Stats { min: 200.0, max: 200.0, mean: 200.0, nans: 0 });
        }
        let none = Array { dtype: DType::F32, shape: vec![0], bytes: vec![].into() }.stats();
        assert!(none.mean.is_nan() && none.min > none.max);
    }
}
