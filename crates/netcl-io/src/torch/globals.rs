//! The names that a PyTorch file may refer to.

use netcl_nn::autograd::DType;

use crate::element::Element;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Global {
    /// A function that makes a tensor.
    Rebuild(Rebuild),
    /// A type of storage: of elements, or of bytes.
    Storage(Option<Element>),
    DType(Element),
    /// Makes a dictionary.
    Dict,
    /// Gives its first argument, as far as a reader is concerned.
    Same,
    /// A class that is only ever named.
    Class,
}

/// The functions that make tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rebuild {
    /// Of a storage that knows its dtype.
    Plain,
    /// Of bytes and a dtype.
    Untyped,
    /// By one of the others, for a subclass or a tensor with attributes.
    Typed,
}

/// What a name of a module stands for; `None` for all that is refused.
pub(crate) fn global(module: &str, name: &str) -> Option<Global> {
    Some(match (module, name) {
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Global::Rebuild(Rebuild::Plain),
        ("torch._utils", "_rebuild_tensor_v3") => Global::Rebuild(Rebuild::Untyped),
        ("torch._tensor", "_rebuild_from_type_v2") => Global::Rebuild(Rebuild::Typed),
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Global::Same,
        ("torch", "Size" | "device") => Global::Same,
        ("torch", "Tensor") | ("torch.nn.parameter", "Parameter" | "Buffer") => Global::Class,
        ("collections", "OrderedDict" | "Counter") => Global::Dict,
        ("builtins" | "__builtin__", "set" | "frozenset" | "bytearray") | ("_codecs", "encode") => Global::Same,
        ("torch.storage" | "torch", "UntypedStorage") => Global::Storage(None),
        ("torch" | "torch.cuda", name) => match name.strip_suffix("Storage") {
            Some(kind) => Global::Storage(Some(storage(kind)?)),
            None => Global::DType(dtype(name)?),
        },
        _ => return None,
    })
}

fn storage(kind: &str) -> Option<Element> {
    Some(match kind {
        "Float" => Element::Same(DType::F32),
        "Double" => Element::Same(DType::F64),
        "Half" => Element::Same(DType::F16),
        "BFloat16" => Element::Same(DType::BF16),
        "Byte" => Element::Same(DType::U8),
        "Int" => Element::Same(DType::I32),
        "Long" => Element::Same(DType::I64),
        "Bool" => Element::Bool,
        "Char" => Element::I8,
        "Short" => Element::I16,
        "ComplexFloat" => Element::Unknown { name: "complex64", size: 8 },
        "ComplexDouble" => Element::Unknown { name: "complex128", size: 16 },
        _ => return None,
    })
}

fn dtype(name: &str) -> Option<Element> {
    Some(match name {
        "float32" | "float" => Element::Same(DType::F32),
        "float64" | "double" => Element::Same(DType::F64),
        "float16" | "half" => Element::Same(DType::F16),
        "bfloat16" => Element::Same(DType::BF16),
        "uint8" => Element::Same(DType::U8),
        "int32" | "int" => Element::Same(DType::I32),
        "int64" | "long" => Element::Same(DType::I64),
        "bool" => Element::Bool,
        "int8" => Element::I8,
        "int16" | "short" => Element::I16,
        "uint16" => Element::U16,
        "uint32" => Element::U32,
        "uint64" => Element::U64,
        "complex64" => Element::Unknown { name: "complex64", size: 8 },
        "complex128" => Element::Unknown { name: "complex128", size: 16 },
        "float8_e4m3fn" => Element::Unknown { name: "float8_e4m3fn", size: 1 },
        "float8_e5m2" => Element::Unknown { name: "float8_e5m2", size: 1 },
        "float8_e4m3fnuz" => Element::Unknown { name: "float8_e4m3fnuz", size: 1 },
        "float8_e5m2fnuz" => Element::Unknown { name: "float8_e5m2fnuz", size: 1 },
        "float8_e8m0fnu" => Element::Unknown { name: "float8_e8m0fnu", size: 1 },
        _ => return None,
    })
}

/// The type of storage that holds a dtype.
pub(crate) fn storage_name(dtype: DType, is_truth: bool) -> &'static str {
    match dtype {
        DType::F32 => "FloatStorage",
        DType::F64 => "DoubleStorage",
        DType::F16 => "HalfStorage",
        DType::BF16 => "BFloat16Storage",
        DType::U8 if is_truth => "BoolStorage",
        DType::U8 => "ByteStorage",
        DType::I32 => "IntStorage",
        DType::I64 => "LongStorage",
    }
}
