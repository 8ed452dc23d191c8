//! The element types that files have, and which dtype each is read as.

use netcl_nn::autograd::DType;

use crate::bytes::Bytes;

/// The type of the elements in a file. Those that no [`DType`] is are read as the next one that holds all their values.
///
/// ```
/// use netcl_io::Element;
/// use netcl_nn::autograd::DType;
///
/// assert_eq!(Element::I16.dtype(), Some(DType::I32));
/// assert_eq!(Element::Unknown { name: "complex64", size: 8 }.dtype(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// One of ours.
    Same(DType),
    /// One byte, 0 or 1; read as uint8.
    Bool,
    /// Read as int32.
    I8,
    /// Read as int32.
    I16,
    /// Read as int32.
    U16,
    /// Read as int64.
    U32,
    /// Read as int64 where every value fits.
    U64,
    /// Not read.
    Unknown {
        /// What the file calls it.
        name: &'static str,
        /// Bytes per element; 0 for those of less than one.
        size: usize,
    },
}

impl Element {
    /// The dtype it is read as; `None` where nothing holds its values.
    pub fn dtype(self) -> Option<DType> {
        Some(match self {
            Element::Same(dtype) => dtype,
            Element::Bool => DType::U8,
            Element::I8 | Element::I16 | Element::U16 => DType::I32,
            Element::U32 | Element::U64 => DType::I64,
            Element::Unknown { .. } => return None,
        })
    }

    /// Its name, as NumPy and PyTorch have it.
    pub fn name(self) -> &'static str {
        match self {
            // Bytes of a file are any numbers below 256; only our tensors of bytes are truth values.
            Element::Same(DType::U8) => "uint8",
            Element::Same(dtype) => dtype.name(),
            Element::Bool => "bool",
            Element::I8 => "int8",
            Element::I16 => "int16",
            Element::U16 => "uint16",
            Element::U32 => "uint32",
            Element::U64 => "uint64",
            Element::Unknown { name, .. } => name,
        }
    }

    /// Bytes per element in the file.
    pub fn size(self) -> usize {
        match self {
            Element::Same(dtype) => dtype.size(),
            Element::Bool | Element::I8 => 1,
            Element::I16 | Element::U16 => 2,
            Element::U32 => 4,
            Element::U64 => 8,
            Element::Unknown { size, .. } => size,
        }
    }

    /// Elements of this type as elements of its dtype.
    pub(crate) fn widen(self, bytes: Bytes) -> Result<(DType, Bytes), String> {
        let Some(dtype) = self.dtype() else {
            return Err(format!("its elements are {}, whose values no dtype of netcl holds", self.name()));
        };
        let wide = match self {
            Element::Same(_) => return Ok((dtype, bytes)),
            Element::Bool if bytes.iter().all(|&byte| byte < 2) => return Ok((dtype, bytes)),
            Element::Bool => bytes.iter().map(|&byte| u8::from(byte != 0)).collect(),
            Element::I8 => widen(&bytes, |[a]: [u8; 1]| i32::from(a as i8).to_le_bytes()),
            Element::I16 => widen(&bytes, |two| i32::from(i16::from_le_bytes(two)).to_le_bytes()),
            Element::U16 => widen(&bytes, |two| i32::from(u16::from_le_bytes(two)).to_le_bytes()),
            Element::U32 => widen(&bytes, |four| i64::from(u32::from_le_bytes(four)).to_le_bytes()),
            Element::U64 if bytes.chunks_exact(8).any(|value| value[7] > 127) => {
                return Err("its elements are uint64, and some are too large for int64".to_owned());
            }
            Element::U64 | Element::Unknown { .. } => return Ok((dtype, bytes)),
        };
        Ok((dtype, wide.into()))
    }
}

fn widen<const FROM: usize, const TO: usize>(bytes: &[u8], wider: impl Fn([u8; FROM]) -> [u8; TO]) -> Vec<u8> {
    let (elements, _) = bytes.as_chunks::<FROM>();
    elements.iter().flat_map(|&element| wider(element)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_integers_become_wide_ones() {
        let wide = |element: Element, bytes: &[u8]| element.widen(bytes.to_vec().into());
        let i32s =
            |values: &[i32]| (DType::I32, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>().into());
        let i64s =
            |values: &[i64]| (DType::I64, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>().into());
        assert_eq!(wide(Element::I8, &[1, 255]), Ok(i32s(&[1, -1])));
        assert_eq!(wide(Element::I16, &[1, 0, 255, 255]), Ok(i32s(&[1, -1])));
        assert_eq!(wide(Element::U16, &[1, 0, 255, 255]), Ok(i32s(&[1, 65_535])));
        assert_eq!(wide(Element::U32, &[255; 4]), Ok(i64s(&[0xffff_ffff])));
        assert_eq!(wide(Element::U64, &7u64.to_le_bytes()), Ok(i64s(&[7])));
        assert!(wide(Element::U64, &[255; 8]).unwrap_err().contains("too large for int64"));
        assert!(wide(Element::Unknown { name: "float8_e5m2", size: 1 }, &[0]).unwrap_err().contains("float8_e5m2"));
        assert_eq!(wide(Element::Bool, &[0, 1]), Ok((DType::U8, vec![0, 1].into())));
        assert_eq!(wide(Element::Bool, &[0, 7]), Ok((DType::U8, vec![0, 1].into())), "no truth value is 7");
    }
}
