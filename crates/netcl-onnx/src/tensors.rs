//! Tensors in files: typed lists, raw bytes and external data become arrays.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use half::{bf16, f16};

use crate::array::{Array, Data, MOST_AXES, product};
use crate::kind::Kind;
use crate::proto;
use crate::wire::Blob;

type Result<T> = std::result::Result<T, String>;

/// Elements that a tensor without stored values may have (its shape alone would ask for memory otherwise).
const MOST_ELEMENTS: usize = 1 << 31;

/// How often the bytes of a file may be read: tensors can share them, but not without end.
const MOST_READINGS: u64 = 8;

/// Where external data may lie, and how much was read of each file.
pub(crate) struct Beside<'p> {
    folder: Option<&'p Path>,
    read: RefCell<HashMap<PathBuf, u64>>,
}

impl<'p> Beside<'p> {
    pub(crate) fn new(folder: Option<&'p Path>) -> Beside<'p> {
        Beside { folder, read: RefCell::default() }
    }
}

/// Reads a tensor; its external data may lie `beside` the model.
pub(crate) fn read(tensor: &proto::Tensor, beside: &Beside<'_>) -> Result<Array> {
    let named = |what: String| format!("tensor {:?}: {what}", tensor.name);
    let kind = Kind::of_code(i64::from(tensor.data_type))
        .ok_or_else(|| named(format!("element type {} is not supported", tensor.data_type)))?;
    let shape = shape(&tensor.dims).map_err(named)?;
    let n = product(&shape);
    let external;
    let raw = if tensor.data_location == 1 {
        external = external_data(tensor, beside, bytes_of(kind, n)).map_err(named)?;
        &external
    } else {
        &tensor.raw_data.0
    };
    let data = if !raw.is_empty() { from_bytes(kind, n, raw) } else { from_lists(kind, n, tensor) }.map_err(named)?;
    Ok(Array { kind, shape, data })
}

fn shape(dims: &[i64]) -> Result<Vec<usize>> {
    let shape = dims.iter().map(|&n| usize::try_from(n)).collect::<std::result::Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| format!("shape {dims:?} has a negative length"))?;
    if shape.len() > MOST_AXES {
        return Err(format!("its shape has {} axes, at most {MOST_AXES} are supported", shape.len()));
    }
    let size = shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n.max(1)));
    match size.filter(|&size| size <= MOST_ELEMENTS) {
        Some(_) => Ok(shape),
        None => Err(format!("shape {dims:?} is too large")),
    }
}

fn bytes_of(kind: Kind, n: usize) -> usize {
    (n * kind.bits()).div_ceil(8)
}

fn too_few(n: usize, got: usize) -> String {
    format!("its shape asks for {n} elements, it stores {got}")
}

/// Element `i` of packed bits.
fn packed(raw: &[u8], bits: usize, i: usize) -> u32 {
    let per_byte = 8 / bits;
    u32::from(raw[i / per_byte] >> (i % per_byte * bits)) & ((1 << bits) - 1)
}

fn from_bytes(kind: Kind, n: usize, raw: &[u8]) -> Result<Data> {
    if raw.len() != bytes_of(kind, n) {
        return Err(format!("its shape asks for {} bytes, it stores {}", bytes_of(kind, n), raw.len()));
    }
    macro_rules! numbers {
        ($type:ty) => {
            raw.as_chunks::<{ size_of::<$type>() }>().0.iter().map(|&bytes| <$type>::from_le_bytes(bytes))
        };
    }
    Ok(match kind {
        Kind::F32 => Data::Floats(numbers!(f32).map(f64::from).collect()),
        Kind::F64 => Data::Floats(numbers!(f64).collect()),
        Kind::F16 => Data::Floats(numbers!(u16).map(|bits| f16::from_bits(bits).to_f64()).collect()),
        Kind::BF16 => Data::Floats(numbers!(u16).map(|bits| bf16::from_bits(bits).to_f64()).collect()),
        Kind::I64 | Kind::U64 => Data::Ints(numbers!(i64).collect()),
        Kind::I32 => Data::Ints(numbers!(i32).map(i64::from).collect()),
        Kind::U32 => Data::Ints(numbers!(u32).map(i64::from).collect()),
        Kind::I16 => Data::Ints(numbers!(i16).map(i64::from).collect()),
        Kind::U16 => Data::Ints(numbers!(u16).map(i64::from).collect()),
        Kind::Text => return Err("strings cannot be raw bytes".to_owned()),
        _ if kind.is_float() => Data::Floats((0..n).map(|i| kind.decode(packed(raw, kind.bits(), i))).collect()),
        _ => Data::Ints((0..n).map(|i| kind.wrap(i128::from(packed(raw, kind.bits(), i)))).collect()),
    })
}

fn from_lists(kind: Kind, n: usize, tensor: &proto::Tensor) -> Result<Data> {
    let small = |list: &[i32]| -> Result<Vec<u32>> {
        if kind.bits() >= 8 {
            let mask = if kind.bits() == 32 { u32::MAX } else { (1 << kind.bits()) - 1 };
            return Ok(list.iter().map(|&v| v as u32 & mask).collect());
        }
        // Several to a byte.
        let bytes: Vec<u8> = list.iter().map(|&v| v as u8).collect();
        if bytes.len() != bytes_of(kind, n) {
            return Err(too_few(n, bytes.len() * 8 / kind.bits()));
        }
        Ok((0..n).map(|i| packed(&bytes, kind.bits(), i)).collect())
    };
    let data = match kind {
        Kind::F32 => Data::Floats(tensor.float_data.iter().map(|&v| f64::from(v)).collect()),
        Kind::F64 => Data::Floats(tensor.double_data.clone()),
        Kind::I64 => Data::Ints(tensor.int64_data.clone()),
        Kind::U64 | Kind::U32 => Data::Ints(tensor.uint64_data.iter().map(|&v| v as i64).collect()),
        Kind::Text => {
            let text = |bytes: &Blob| String::from_utf8_lossy(&bytes.0).into_owned();
            Data::Texts(tensor.string_data.iter().map(text).collect())
        }
        Kind::F16 => Data::Floats(
            small(&tensor.int32_data)?.into_iter().map(|bits| f16::from_bits(bits as u16).to_f64()).collect(),
        ),
        Kind::BF16 => Data::Floats(
            small(&tensor.int32_data)?.into_iter().map(|bits| bf16::from_bits(bits as u16).to_f64()).collect(),
        ),
        _ if kind.is_float() => {
            Data::Floats(small(&tensor.int32_data)?.into_iter().map(|bits| kind.decode(bits)).collect())
        }
        _ => Data::Ints(small(&tensor.int32_data)?.into_iter().map(|bits| kind.wrap(i128::from(bits))).collect()),
    };
    let got = match &data {
        Data::Ints(data) => data.len(),
        Data::Floats(data) => data.len(),
        Data::Texts(data) => data.len(),
    };
    if got == n { Ok(data) } else { Err(too_few(n, got)) }
}

/// Bytes in a file beside the model; never above its folder.
fn external_data(tensor: &proto::Tensor, beside: &Beside<'_>, length: usize) -> Result<Vec<u8>> {
    let entry =
        |key: &str| tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
    let number = |key: &str| match entry(key) {
        None => Ok(None),
        Some(text) => text.parse::<u64>().map(Some).map_err(|_| format!("{key} of its external data is {text:?}")),
    };
    let location = entry("location").ok_or("its external data has no location")?;
    let folder = beside.folder;
    let folder =
        folder.ok_or("it has external data, for which the model's folder must be known: load it from a file")?;
    // `model.onnx` alone has an empty folder.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if location.is_empty() || !Path::new(location).components().all(inside) {
        return Err(format!("its external data lies outside of the model's folder: {location:?}"));
    }
    let unreadable = |error: std::io::Error| format!("its external data {location:?} cannot be read: {error}");
    let root = folder.canonicalize().map_err(unreadable)?;
    let path = root.join(location).canonicalize().map_err(unreadable)?;
    if !path.starts_with(&root) {
        return Err(format!("its external data lies outside of the model's folder: {location:?}"));
    }
    if number("length")?.is_some_and(|stored| stored != length as u64) {
        return Err(format!(
            "its shape asks for {length} bytes of external data, it has {}",
            entry("length").unwrap_or("")
        ));
    }
    // Opening a pipe would wait for ever.
    if !std::fs::metadata(&path).map_err(unreadable)?.is_file() {
        return Err(format!("its external data {location:?} is no file"));
    }
    let mut file = File::open(&path).map_err(unreadable)?;
    let offset = number("offset")?.unwrap_or(0);
    let size = file.metadata().map_err(unreadable)?.len();
    if offset.checked_add(length as u64).is_none_or(|end| end > size) {
        return Err(format!("its external data {location:?} ends too early"));
    }
    let mut read = beside.read.borrow_mut();
    let so_far = read.entry(path).or_default();
    *so_far += length as u64;
    if *so_far > size.saturating_mul(MOST_READINGS) {
        return Err(format!("its external data {location:?} is shared by too many tensors"));
    }
    file.seek(SeekFrom::Start(offset)).map_err(unreadable)?;
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}
