//! `.npy` files: NumPy's format for one array.
//!
//! Six magic bytes, a version, the header's length, a header that is a Python dictionary of literals, the elements.

use netcl_nn::autograd::{DType, HostOptions, Queue, RawTensor, Shape, Tensor};

use crate::error::Result;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The elements start at a multiple of this, so that the file can be mapped into memory.
const ALIGNMENT: usize = 64;

/// As in NumPy.
const MOST_AXES: usize = 64;

/// An array on the host: dense elements in row-major order, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// The type of the elements.
    pub dtype: DType,
    /// The length of each axis.
    pub shape: Vec<usize>,
    /// The elements' bytes.
    pub bytes: Vec<u8>,
}

impl Array {
    /// A copy of a tensor's elements.
    pub fn from_tensor(tensor: &RawTensor) -> Result<Array> {
        let mut bytes = vec![0; tensor.size() * tensor.dtype().size()];
        tensor.read_bytes(&mut bytes)?;
        Ok(Array { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), bytes })
    }

    /// A single number.
    pub fn scalar(value: f64) -> Array {
        Array { dtype: DType::F64, shape: Vec::new(), bytes: value.to_le_bytes().to_vec() }
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
        let shape = Shape::from(&self.shape[..]);
        Ok(RawTensor::from_host_bytes(queue, &self.bytes, self.dtype, shape, HostOptions::default())?.into())
    }

    /// The content of an `.npy` file. NumPy has no bfloat16: such elements are written as their 16 bits.
    pub fn to_npy(&self) -> Vec<u8> {
        let mut content = header(descriptor(self.dtype), &self.shape);
        content.extend_from_slice(&self.bytes);
        content
    }
}

/// What one `.npy` file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Numbers.
    Array(Array),
    /// One piece of text: an array without axes of NumPy's type `str`.
    Text(String),
}

/// The content of an `.npy` file with text, which `str(np.load(...))` gives back.
pub fn text_to_npy(text: &str) -> Vec<u8> {
    // NumPy keeps text as 32-bit characters of a fixed number; there is no type for none at all.
    let characters: Vec<u32> = if text.is_empty() { vec![0] } else { text.chars().map(u32::from).collect() };
    let mut content = header(&format!("<U{}", characters.len()), &[]);
    content.extend(characters.iter().flat_map(|character| character.to_le_bytes()));
    content
}

fn descriptor(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::F16 => "<f2",
        DType::BF16 => "<u2",
        DType::U8 => "|u1",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
    }
}

fn header(descriptor: &str, shape: &[usize]) -> Vec<u8> {
    let axes: String = match shape {
        [one] => format!("{one},"),
        axes => axes.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    };
    let mut text = format!("{{'descr': '{descriptor}', 'fortran_order': False, 'shape': ({axes}), }}");
    let before = MAGIC.len() + 4;
    let length = (before + text.len() + 1).next_multiple_of(ALIGNMENT) - before;
    text.push_str(&" ".repeat(length - text.len() - 1));
    text.push('\n');
    // Version 1.0 counts the header in 16 bits: enough for any shape a tensor can have.
    let mut content = MAGIC.to_vec();
    content.extend([1, 0]);
    content.extend((length as u16).to_le_bytes());
    content.extend(text.as_bytes());
    content
}

/// Reads the content of an `.npy` file; what is wrong with it where it is not one. `named` is the dtype that the archive's
/// metadata gives for it, if any: only this tells a bfloat16 from a 16-bit number.
pub fn parse(content: &[u8], named: Option<DType>) -> Result<Content, String> {
    let rest = content.strip_prefix(MAGIC).ok_or("it does not start as an .npy file does")?;
    let (length, rest) = match rest {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        [version, ..] => return Err(format!("its format has version {version}; known are 1 to 3")),
        [] => return Err("it ends within its header".to_owned()),
    };
    let (header, elements) = rest.split_at_checked(length).ok_or("it ends within its header")?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is no text")?;
    let descriptor = quoted(after(header, "descr")?)?;
    if !after(header, "fortran_order")?.starts_with("False") {
        return Err("its elements are in column-major order; save np.ascontiguousarray(...) of it".to_owned());
    }
    let shape = axes(after(header, "shape")?)?;
    if shape.len() > MOST_AXES {
        return Err(format!("its shape has {} axes; read are up to {MOST_AXES}", shape.len()));
    }
    let size =
        shape.iter().try_fold(1usize, |size, &length| size.checked_mul(length)).ok_or("its shape is too large")?;
    let check = |element: usize| match size.checked_mul(element) {
        Some(bytes) if bytes == elements.len() => Ok(()),
        _ => Err(format!("its shape {shape:?} of type {descriptor:?} does not fit its {} bytes", elements.len())),
    };
    if let Some(count) = descriptor.strip_prefix("<U") {
        let count: usize = count.parse().map_err(|_| format!("its type is {descriptor:?}"))?;
        if size != 1 {
            return Err(format!("it holds {size} pieces of text; only one is read"));
        }
        check(count.checked_mul(4).ok_or("its text is too long")?)?;
        return text(elements).map(Content::Text);
    }
    let dtype = match (descriptor, named) {
        ("<u2", Some(DType::BF16)) => DType::BF16,
        ("<f4", _) => DType::F32,
        ("<f8", _) => DType::F64,
        ("<f2", _) => DType::F16,
        ("|u1", _) => DType::U8,
        ("<i4", _) => DType::I32,
        ("<i8", _) => DType::I64,
        (other, _) => {
            return Err(format!(
                "its elements are of type {other:?}; read are <f4, <f8, <f2, |u1, <i4, <i8, and <u2 where the metadata \
                 calls it bfloat16"
            ));
        }
    };
    check(dtype.size())?;
    Ok(Content::Array(Array { dtype, shape, bytes: elements.to_vec() }))
}

/// The header's text behind a key.
fn after<'h>(header: &'h str, key: &str) -> Result<&'h str, String> {
    let missing = || format!("its header has no {key:?}");
    let (_, rest) = header.split_once(&format!("'{key}'")).ok_or_else(missing)?;
    Ok(rest.trim_start().strip_prefix(':').ok_or_else(missing)?.trim_start())
}

fn quoted(text: &str) -> Result<&str, String> {
    text.strip_prefix('\'')
        .and_then(|text| text.split_once('\''))
        .map(|(inside, _)| inside)
        .ok_or_else(|| "its elements are records; only plain numbers are read".to_owned())
}

fn axes(text: &str) -> Result<Vec<usize>, String> {
    let inside = text.strip_prefix('(').and_then(|text| text.split_once(')')).map(|(inside, _)| inside);
    let parts = inside.ok_or("its header's shape is no tuple")?.split(',').map(str::trim);
    let lengths = parts.filter(|part| !part.is_empty()).map(str::parse);
    lengths.collect::<Result<_, _>>().map_err(|_| "its header's shape is no tuple of numbers".to_owned())
}

fn text(elements: &[u8]) -> Result<String, String> {
    let characters = elements.chunks_exact(4).map(|bytes| bytes.iter().rev().fold(0u32, |c, &b| c << 8 | u32::from(b)));
    let text: Option<String> = characters.map(char::from_u32).collect();
    // Shorter text is padded with zeros.
    Ok(text.ok_or("its text has characters that do not exist")?.trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn array(dtype: DType, shape: &[usize]) -> Array {
        let bytes = (0..shape.iter().product::<usize>() * dtype.size()).map(|i| i as u8).collect();
        Array { dtype, shape: shape.to_vec(), bytes }
    }

    #[test]
    fn arrays_come_back() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8, DType::I32, DType::I64] {
            for shape in [&[][..], &[3], &[2, 0, 5], &[1, 2, 3, 4]] {
                let array = array(dtype, shape);
                let content = array.to_npy();
                assert_eq!((content.len() - array.bytes.len()) % ALIGNMENT, 0);
                assert_eq!(parse(&content, Some(dtype)).unwrap(), Content::Array(array));
            }
        }
        assert_eq!(Array::scalar(0.1).as_scalar(), Some(0.1));
        assert_eq!(array(DType::I64, &[]).as_scalar(), None);
    }

    #[test]
    fn numbers_that_are_none_are_found() {
        let values = [0.0, -1.5, f64::MAX, f64::MIN_POSITIVE, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN];
        for (i, value) in values.into_iter().enumerate() {
            let one =
                |dtype, bytes: &[u8]| Array { dtype, shape: vec![2], bytes: [&vec![0; bytes.len()], bytes].concat() };
            let single = one(DType::F32, &(value as f32).to_le_bytes());
            // The upper half of a float32 is a bfloat16.
            let brain = one(DType::BF16, &single.bytes[6..]);
            // Among them the largest float32, which is infinite in fewer bits.
            assert_eq!(one(DType::F64, &value.to_le_bytes()).is_finite(), i < 4, "{value}");
            assert_eq!((single.is_finite(), brain.is_finite()), (i < 4 && i != 2, i < 4 && i != 2), "{value}");
        }
        assert!(array(DType::I64, &[9]).is_finite());
        let half = |bits: u16| Array { dtype: DType::F16, shape: vec![1], bytes: bits.to_le_bytes().to_vec() };
        assert!(half(0x7bff).is_finite() && !half(0xfc00).is_finite() && !half(0x7e00).is_finite());
    }

    #[test]
    fn text_comes_back() {
        for text in ["", "{}", "{\"name\": \"größer 🦀\"}"] {
            assert_eq!(parse(&text_to_npy(text), None).unwrap(), Content::Text(text.to_owned()));
        }
    }

    #[test]
    fn the_header_is_what_numpy_writes() {
        let content = array(DType::F32, &[3]).to_npy();
        let expected = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
        assert!(content.starts_with(expected), "{}", String::from_utf8_lossy(&content));
        assert_eq!(content[127], b'\n');
    }

    #[test]
    fn every_kind_of_damage_is_named() {
        let good = array(DType::F32, &[2]).to_npy();
        let with = |from: &str, to: &str| {
            let text: String = good.iter().map(|&b| char::from(b)).collect();
            text.replacen(from, to, 1).chars().map(|c| c as u8).collect::<Vec<u8>>()
        };
        let cases = [
            (b"hello".to_vec(), "does not start"),
            (good[..4].to_vec(), "does not start"),
            (good[..60].to_vec(), "ends within its header"),
            (good[..good.len() - 1].to_vec(), "does not fit its 7 bytes"),
            (with("\x01\x00v", "\x09\x00v"), "version 9"),
            (with("'<f4'", "'>f4'"), "\">f4\""),
            (with("'<f4'", "'<u2'"), "bfloat16"),
            (with("'<f4'", "[('a"), "records"),
            (with("False", "True "), "column-major"),
            (with("'shape'", "'shade'"), "no \"shape\""),
            (with("(2,)", "(x,)"), "no tuple of numbers"),
            (with("(2,)", "2222"), "no tuple"),
            (array(DType::F32, &[1; 65]).to_npy(), "65 axes"),
        ];
        for (content, expected) in cases {
            let text = parse(&content, None).unwrap_err();
            assert!(text.contains(expected), "{text} for {expected}");
        }
    }

    proptest! {
        #[test]
        fn no_header_is_too_wild(header in "[{}'a-z0-9:<(), ]{0,60}", elements in proptest::collection::vec(any::<u8>(), 0..16)) {
            let mut content = MAGIC.to_vec();
            content.extend([1, 0]);
            content.extend((header.len() as u16).to_le_bytes());
            content.extend(header.as_bytes());
            content.extend(elements);
            let _ = parse(&content, None);
        }
    }
}
