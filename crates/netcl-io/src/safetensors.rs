//! safetensors files: a length, a JSON header, and the elements of all tensors without gaps.

use std::io::Write;

use netcl_nn::autograd::DType;
use safetensors::tensor::Dtype;
use serde_json::{Map, Value, json};

use crate::atomic::Failure;
use crate::bytes::Bytes;
use crate::element::Element;
use crate::npy::MOST_AXES;
use crate::tensor_file::{Found, Kind, Place, Storage};
use crate::tensors::{Info, Tensors};
use crate::writer::put;

/// The bytes of the header's length.
const LENGTH: usize = 8;
/// The crate refuses longer headers.
const LONGEST_HEADER: u64 = 100_000_000;
/// The key of the header that is no tensor.
const METADATA: &str = "__metadata__";
/// The metadata of this crate may hold any JSON, that of safetensors only strings: ours is the text under this key.
const OURS: &str = "netcl";

/// Whether a file begins as these do.
pub(crate) fn is_safetensors(content: &[u8]) -> bool {
    content.get(LENGTH) == Some(&b'{')
        && content.first_chunk().is_some_and(|length| u64::from_le_bytes(*length) <= LONGEST_HEADER)
}

/// Reads the header. The crate checks that the tensors cover the rest of the file without gaps and fit their shapes.
pub(crate) fn open(content: &Bytes) -> Result<Found, String> {
    let (length, header) = safetensors::SafeTensors::read_metadata(content)
        .map_err(|error| format!("it is a damaged safetensors file ({error})"))?;
    let elements = content.part(LENGTH + length..content.len()).ok_or("it is cut off")?;
    let mut tensors = Vec::new();
    for name in header.offset_keys() {
        let Some(info) = header.info(&name) else { continue };
        if info.shape.len() > MOST_AXES {
            return Err(format!("the shape of its tensor {name:?} has {} axes", info.shape.len()));
        }
        let bytes = elements.part(info.data_offsets.0..info.data_offsets.1);
        let storage = Storage::Part(bytes.ok_or_else(|| format!("its tensor {name:?} is cut off"))?);
        let info = Info { element: element(info.dtype), shape: info.shape.clone(), name };
        tensors.push((info, Place { storage, offset: 0, strides: None, big_endian: false }));
    }
    let strings = header.metadata().iter().flatten();
    let mut metadata: Map<String, Value> = strings.map(|(key, text)| (key.clone(), text.clone().into())).collect();
    if let Some(Ok(Value::Object(ours))) = metadata.get(OURS).and_then(Value::as_str).map(serde_json::from_str) {
        metadata.remove(OURS);
        metadata.extend(ours);
    }
    Ok(Found { kind: Kind::SafeTensors, metadata, tensors })
}

fn element(dtype: Dtype) -> Element {
    match dtype {
        Dtype::F32 => Element::Same(DType::F32),
        Dtype::F64 => Element::Same(DType::F64),
        Dtype::F16 => Element::Same(DType::F16),
        Dtype::BF16 => Element::Same(DType::BF16),
        Dtype::U8 => Element::Same(DType::U8),
        Dtype::I32 => Element::Same(DType::I32),
        Dtype::I64 => Element::Same(DType::I64),
        Dtype::BOOL => Element::Bool,
        Dtype::I8 => Element::I8,
        Dtype::I16 => Element::I16,
        Dtype::U16 => Element::U16,
        Dtype::U32 => Element::U32,
        Dtype::U64 => Element::U64,
        Dtype::C64 => Element::Unknown { name: "complex64", size: 8 },
        Dtype::F8_E5M2 => Element::Unknown { name: "float8_e5m2", size: 1 },
        Dtype::F8_E4M3 => Element::Unknown { name: "float8_e4m3fn", size: 1 },
        Dtype::F8_E8M0 => Element::Unknown { name: "float8_e8m0fnu", size: 1 },
        Dtype::F8_E5M2FNUZ => Element::Unknown { name: "float8_e5m2fnuz", size: 1 },
        Dtype::F8_E4M3FNUZ => Element::Unknown { name: "float8_e4m3fnuz", size: 1 },
        _ => Element::Unknown { name: "a float of less than 8 bits", size: 0 },
    }
}

/// What the header calls a dtype.
fn code(dtype: DType, is_truth: bool) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::U8 if is_truth => "BOOL",
        DType::U8 => "U8",
        DType::I32 => "I32",
        DType::I64 => "I64",
    }
}

/// Writes some of the tensors.
pub(crate) fn write(out: &mut impl Write, tensors: &dyn Tensors, chosen: &[usize]) -> Result<(), Failure> {
    // Wide elements first, so that all of them lie at multiples of their size.
    let mut order: Vec<(usize, DType)> = Vec::with_capacity(chosen.len());
    for &index in chosen {
        let info = &tensors.infos()[index];
        if info.name == METADATA {
            return Err(
                std::io::Error::other(format!("no tensor of a safetensors file can be called {METADATA:?}")).into()
            );
        }
        order.push((index, info.readable(tensors.path())?));
    }
    order.sort_by_key(|&(_, dtype)| std::cmp::Reverse(dtype.size()));
    let mut end = 0;
    // Sorted by name, which no reader minds: equal tensors are equal files.
    let mut header = Map::new();
    header.insert(METADATA.to_owned(), Value::Object(strings(tensors.metadata())));
    for &(index, dtype) in &order {
        let info = &tensors.infos()[index];
        let start = end;
        end += info.count() * dtype.size();
        let of = json!({ "dtype": code(dtype, info.element == Element::Bool), "shape": info.shape, "data_offsets": [start, end] });
        header.insert(info.name.clone(), of);
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(LENGTH), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    order.iter().try_for_each(|&(index, dtype)| put(out, tensors, index, dtype))
}

/// The metadata as strings. Hugging Face's libraries want to be told whose tensors these are, and know no other answer.
fn strings(metadata: &Map<String, Value>) -> Map<String, Value> {
    let mut strings = Map::from_iter([("format".to_owned(), "pt".into())]);
    match metadata.values().all(Value::is_string) {
        true => strings.extend(metadata.clone()),
        false => drop(strings.insert(OURS.to_owned(), Value::from(metadata.clone()).to_string().into())),
    }
    strings
}
