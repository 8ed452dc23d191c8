//! `.npy` files: NumPy's format for one array.
//!
//! Six magic bytes, a version, the header's length, a header that is a Python dictionary of literals, the elements.

use netcl_nn::autograd::DType;

use crate::array::{Array, dense};
use crate::bytes::Bytes;
use crate::element::Element;
use crate::error::Result;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The elements start at a multiple of this, so that the file can be mapped into memory.
const ALIGNMENT: usize = 64;
/// No more of a file is looked at for its header; NumPy itself refuses those of more than 10,000 bytes.
pub(crate) const LONGEST_HEADER: usize = 1 << 16;
/// As in NumPy.
pub(crate) const MOST_AXES: usize = 64;

impl Array {
    /// The content of an `.npy` file. NumPy has no bfloat16: such elements are written as their 16 bits.
    pub fn to_npy(&self) -> Vec<u8> {
        let mut content = header(self.dtype, false, &self.shape);
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
    let mut content = header_of(&format!("<U{}", characters.len()), &[]);
    content.extend(characters.iter().flat_map(|character| character.to_le_bytes()));
    content
}

fn descriptor(dtype: DType, is_truth: bool) -> &'static str {
    match dtype {
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::F16 => "<f2",
        DType::BF16 => "<u2",
        DType::U8 if is_truth => "|b1",
        DType::U8 => "|u1",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
    }
}

/// What comes before the elements; bytes may be truth values.
pub(crate) fn header(dtype: DType, is_truth: bool, shape: &[usize]) -> Vec<u8> {
    header_of(descriptor(dtype, is_truth), shape)
}

fn header_of(descriptor: &str, shape: &[usize]) -> Vec<u8> {
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
    let header = Header::parse(content)?;
    let elements = &content[header.length..];
    header.check(elements.len())?;
    match header.kind(named) {
        ElementKind::Text => text(elements).map(Content::Text),
        ElementKind::Number(element) => {
            let mut bytes = match header.strides() {
                Some(strides) => dense(elements, element.size(), &header.shape, &strides)?,
                None => elements.to_vec(),
            };
            if header.is_big_endian() {
                swap(&mut bytes, element.size());
            }
            let (dtype, bytes) = element.widen(bytes.into())?;
            Ok(Content::Array(Array { dtype, shape: header.shape, bytes }))
        }
    }
}

/// Reverses the bytes of each element.
pub(crate) fn swap(bytes: &mut [u8], size: usize) {
    bytes.chunks_exact_mut(size.max(1)).for_each(<[u8]>::reverse);
}

/// What comes before the elements, read.
pub(crate) struct Header {
    /// Its bytes: where the elements begin.
    pub(crate) length: usize,
    pub(crate) shape: Vec<usize>,
    descriptor: String,
    fortran: bool,
}

/// What the elements are.
pub(crate) enum ElementKind {
    Text,
    Number(Element),
}

impl Header {
    /// Reads it from the first [`LONGEST_HEADER`] bytes of a file, or all there are.
    pub(crate) fn parse(start: &[u8]) -> Result<Header, String> {
        let rest = start.strip_prefix(MAGIC).ok_or("it does not start as an .npy file does")?;
        let (length, rest) = match rest {
            [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
            [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
            [version, _, ..] => return Err(format!("its format has version {version}; known are 1 to 3")),
            _ => return Err("it ends within its header".to_owned()),
        };
        let (header, elements) = rest.split_at_checked(length).ok_or("it ends within its header")?;
        let header = std::str::from_utf8(header).map_err(|_| "its header is no text")?;
        let descriptor = quoted(after(header, "descr")?)?.to_owned();
        let fortran = after(header, "fortran_order")?.starts_with("True");
        let shape = axes(after(header, "shape")?)?;
        if shape.len() > MOST_AXES {
            return Err(format!("its shape has {} axes; read are up to {MOST_AXES}", shape.len()));
        }
        Ok(Header { length: start.len() - elements.len(), shape, descriptor, fortran })
    }

    /// Whether the shape fits so many bytes of elements.
    pub(crate) fn check(&self, bytes: usize) -> Result<(), String> {
        let (shape, descriptor) = (&self.shape, &self.descriptor);
        let size = shape.iter().try_fold(1usize, |size, &length| size.checked_mul(length));
        let size = size.ok_or("its shape is too large")?;
        let width = match self.kind(None) {
            ElementKind::Text => descriptor[2..].parse::<usize>().ok().and_then(|count| count.checked_mul(4)),
            // Not read anyway.
            ElementKind::Number(Element::Unknown { size: 0, .. }) => return Ok(()),
            ElementKind::Number(element) => Some(element.size()),
        };
        match width.and_then(|width| width.checked_mul(size)) {
            Some(expected) if expected == bytes => Ok(()),
            _ => Err(format!("its shape {shape:?} of type {descriptor:?} does not fit its {bytes} bytes")),
        }
    }

    /// What the elements are, where the archive's metadata names a dtype or not.
    pub(crate) fn kind(&self, named: Option<DType>) -> ElementKind {
        let descriptor = &self.descriptor[..];
        let element = match (descriptor.trim_start_matches(['<', '>', '|', '=']), named) {
            _ if descriptor.starts_with("<U") && self.shape.iter().all(|&length| length == 1) => {
                return ElementKind::Text;
            }
            ("u2", Some(DType::BF16)) => Element::Same(DType::BF16),
            ("f4", _) => Element::Same(DType::F32),
            ("f8", _) => Element::Same(DType::F64),
            ("f2", _) => Element::Same(DType::F16),
            ("u1", _) => Element::Same(DType::U8),
            ("i4", _) => Element::Same(DType::I32),
            ("i8", _) => Element::Same(DType::I64),
            ("b1", _) => Element::Bool,
            ("i1", _) => Element::I8,
            ("i2", _) => Element::I16,
            ("u2", _) => Element::U16,
            ("u4", _) => Element::U32,
            ("u8", _) => Element::U64,
            ("c8", _) => Element::Unknown { name: "complex64", size: 8 },
            ("c16", _) => Element::Unknown { name: "complex128", size: 16 },
            ("f16", _) => Element::Unknown { name: "float128", size: 16 },
            // ml_dtypes' bfloat16, as np.savez writes it.
            ("V2", _) => Element::Same(DType::BF16),
            (other, _) if other.starts_with(['U', 'S']) => Element::Unknown { name: "text", size: 0 },
            ("O", _) => Element::Unknown { name: "object", size: 0 },
            _ => Element::Unknown { name: "no numbers", size: 0 },
        };
        ElementKind::Number(element)
    }

    /// Whether the most significant byte of an element comes first.
    pub(crate) fn is_big_endian(&self) -> bool {
        self.descriptor.starts_with('>')
    }

    /// The strides of elements in column-major order, counted in elements; `None` for row-major order.
    pub(crate) fn strides(&self) -> Option<Vec<usize>> {
        let step = |stride: &mut usize, &length: &usize| {
            let before = *stride;
            *stride = stride.saturating_mul(length);
            Some(before)
        };
        self.fortran.then(|| self.shape.iter().scan(1, step).collect())
    }
}

/// What a file with one piece of text holds.
pub(crate) fn text_of(content: &Bytes) -> Result<Option<String>, String> {
    match parse(content, None)? {
        Content::Text(text) => Ok(Some(text)),
        Content::Array(_) => Ok(None),
    }
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
        let bytes: Vec<u8> = (0..shape.iter().product::<usize>() * dtype.size()).map(|i| i as u8).collect();
        Array { dtype, shape: shape.to_vec(), bytes: bytes.into() }
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
            (with("'<f4'", "'<c8'"), "does not fit"),
            (with("'<f4'", "'<M8'"), "no numbers"),
            (with("'<f4'", "[('a"), "records"),
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

    #[test]
    fn other_orders_and_types_are_read() {
        let good = array(DType::F32, &[2, 3]);
        let with = |from: &str, to: &str| {
            let text: String = good.to_npy().iter().map(|&b| char::from(b)).collect();
            let content: Vec<u8> = text.replacen(from, to, 1).chars().map(|c| c as u8).collect();
            let Ok(Content::Array(array)) = parse(&content, None) else { panic!("{from} to {to}") };
            array
        };
        let at = |element: usize| (4 * element as u8..4 * element as u8 + 4).collect::<Vec<u8>>();
        let columns: Vec<u8> = [0, 2, 4, 1, 3, 5].into_iter().flat_map(at).collect();
        assert_eq!(with("False", "True "), Array { bytes: columns.into(), ..good.clone() });
        let swapped: Vec<u8> = (0..6).flat_map(|i| at(i).into_iter().rev()).collect();
        assert_eq!(with("'<f4'", "'>f4'"), Array { bytes: swapped.into(), ..good.clone() });
        let wide: Vec<u8> = (0..6).flat_map(|i| [at(i), vec![0; 4]].concat()).collect();
        assert_eq!(with("'<f4'", "'<u4'"), Array { dtype: DType::I64, bytes: wide.into(), ..good.clone() });
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
