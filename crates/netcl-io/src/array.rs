//! One array on the host.

use netcl_nn::autograd::{DType, HostOptions, Queue, RawTensor, Shape, Tensor, manager};

use crate::bytes::Bytes;
use crate::error::Result;

/// An array on the host: dense elements in row-major order, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// The type of the elements.
    pub dtype: DType,
    /// The length of each axis.
    pub shape: Vec<usize>,
    /// The elements' bytes, in memory or in a file that is mapped.
    pub bytes: Bytes,
}

impl Array {
    /// A copy of a tensor's elements.
    pub fn from_tensor(tensor: &RawTensor) -> Result<Array> {
        let mut bytes = vec![0; tensor.size() * tensor.dtype().size()];
        tensor.read_bytes(&mut bytes)?;
        Ok(Array { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), bytes: bytes.into() })
    }

    /// A single number.
    pub fn scalar(value: f64) -> Array {
        Array { dtype: DType::F64, shape: Vec::new(), bytes: value.to_le_bytes().to_vec().into() }
    }

    /// The number of an array that has just one of type float64.
    pub fn as_scalar(&self) -> Option<f64> {
        let bytes = <[u8; 8]>::try_from(&self.bytes[..]).ok()?;
        (self.dtype == DType::F64).then(|| f64::from_le_bytes(bytes))
    }

    /// Whether no element is infinite or NaN.
    pub fn is_finite(&self) -> bool {
        // An exponent of ones; the most significant byte comes last.
        let (mask, size) = match self.dtype {
            DType::F32 => (0x7f80_0000, 4),
            DType::F64 => (0x7ff0_0000_0000_0000u64, 8),
            DType::F16 => (0x7c00, 2),
            DType::BF16 => (0x7f80, 2),
            _ => return true,
        };
        let bits = |element: &[u8]| element.iter().rev().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
        self.bytes.chunks_exact(size).all(|element| bits(element) & mask != mask)
    }

    /// A tensor on a device with these elements.
    pub fn to_tensor(&self, queue: &Queue) -> Result<Tensor> {
        self.to_tensor_of(queue, self.dtype)
    }

    /// A tensor on a device with these elements in another dtype. They are uploaded from where they are: nothing is copied on
    /// the host before.
    pub fn to_tensor_of(&self, queue: &Queue, dtype: DType) -> Result<Tensor> {
        let (options, shape) = (HostOptions { dtype: Some(dtype), ..HostOptions::default() }, &self.shape[..]);
        Ok(RawTensor::from_host_bytes(queue, &self.bytes, self.dtype, Shape::from(shape), options)?.into())
    }

    /// The same numbers in another dtype.
    ///
    /// ```
    /// use netcl_io::Array;
    /// use netcl_nn::autograd::DType;
    ///
    /// let half = Array::scalar(0.1).cast(DType::F16)?;
    /// assert_eq!(half.bytes[..], [0x66, 0x2e]);
    /// # Ok::<(), netcl_io::Error>(())
    /// ```
    pub fn cast(&self, dtype: DType) -> Result<Array> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        Array::from_tensor(self.to_tensor_of(&manager().cpu().queue, dtype)?.raw())
    }
}

/// The dense row-major copy of a view: elements of `size` bytes, `strides` counted in elements from the first byte.
///
/// # Errors
/// If an element lies past the end.
pub(crate) fn dense(bytes: &[u8], size: usize, shape: &[usize], strides: &[usize]) -> Result<Vec<u8>, String> {
    if shape.contains(&0) {
        return Ok(Vec::new());
    }
    let past = || format!("its shape {shape:?} with strides {strides:?} reaches past its {} bytes", bytes.len());
    let end = extent(shape, strides).and_then(|elements| elements.checked_mul(size));
    let count = shape.iter().try_fold(size, |bytes, &length| bytes.checked_mul(length)).ok_or_else(past)?;
    if end.is_none_or(|end| end > bytes.len()) {
        return Err(past());
    }
    let mut out = Vec::new();
    out.try_reserve_exact(count).map_err(|_| format!("its {count} bytes do not fit into memory"))?;
    let mut index = vec![0; shape.len()];
    let mut at = 0;
    while out.len() < count {
        out.extend_from_slice(&bytes[at * size..(at + 1) * size]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            at -= strides[axis] * shape[axis];
            index[axis] = 0;
        }
    }
    Ok(out)
}

/// The elements from the first of a view to the last of it; `None` for more than can be counted.
pub(crate) fn extent(shape: &[usize], strides: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    let step = |last: usize, (&length, &stride): (&usize, &usize)| last.checked_add((length - 1).checked_mul(stride)?);
    shape.iter().zip(strides).try_fold(0usize, step)?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(dtype: DType, bytes: &[u8]) -> Array {
        Array { dtype, shape: vec![bytes.len() / dtype.size()], bytes: bytes.to_vec().into() }
    }

    #[test]
    fn scalars_come_back() {
        assert_eq!(Array::scalar(0.1).as_scalar(), Some(0.1));
        assert_eq!(Array { dtype: DType::I64, ..Array::scalar(0.1) }.as_scalar(), None);
    }

    #[test]
    fn numbers_that_are_none_are_found() {
        let values = [0.0, -1.5, f64::MAX, f64::MIN_POSITIVE, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN];
        for (i, value) in values.into_iter().enumerate() {
            let one = |dtype, bytes: &[u8]| array(dtype, &[&vec![0; bytes.len()], bytes].concat());
            let single = one(DType::F32, &(value as f32).to_le_bytes());
            // The upper half of a float32 is a bfloat16.
            let brain = one(DType::BF16, &single.bytes[6..]);
            // Among them the largest float32, which is infinite in fewer bits.
            assert_eq!(one(DType::F64, &value.to_le_bytes()).is_finite(), i < 4, "{value}");
            assert_eq!((single.is_finite(), brain.is_finite()), (i < 4 && i != 2, i < 4 && i != 2), "{value}");
        }
        assert!(array(DType::I64, &[255; 72]).is_finite());
        let half = |bits: u16| array(DType::F16, &bits.to_le_bytes());
        assert!(half(0x7bff).is_finite() && !half(0xfc00).is_finite() && !half(0x7e00).is_finite());
    }

    #[test]
    fn elements_at_odd_addresses_are_converted() {
        let mut numbers = vec![0];
        numbers.extend([0.5f64, -2.0].iter().flat_map(|number| number.to_le_bytes()));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), &numbers).unwrap();
        let file = Bytes::of_file(&folder.path().join("file")).unwrap();
        let array = Array { dtype: DType::F64, shape: vec![2], bytes: file.part(1..17).unwrap() };
        let expected: Vec<u8> = [0.5f32, -2.0].iter().flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!(array.cast(DType::F32).unwrap().bytes[..], expected);
    }

    #[test]
    fn views_become_dense() {
        let bytes: Vec<u8> = (0..12).collect();
        assert_eq!(dense(&bytes, 2, &[3, 2], &[1, 3]), Ok(vec![0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]));
        assert_eq!(dense(&bytes, 1, &[2, 3], &[0, 2]), Ok(vec![0, 2, 4, 0, 2, 4]));
        assert_eq!(dense(&bytes, 4, &[], &[]), Ok(vec![0, 1, 2, 3]));
        assert_eq!(dense(&bytes, 4, &[5, 0], &[usize::MAX, 1]), Ok(vec![]));
        for (shape, strides) in [([3, 2], [1, 4]), ([usize::MAX, 2], [1, 1]), ([2, 2], [usize::MAX, 1])] {
            assert!(dense(&bytes, 2, &shape, &strides).unwrap_err().contains("past its 12 bytes"));
        }
        assert!(dense(&bytes, 2, &[usize::MAX, 2], &[0, 0]).is_err());
    }
}
