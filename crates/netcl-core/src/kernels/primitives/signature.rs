//! What a kernel's parameters are: from the driver where it tells, else from the source text.

use crate::backend::opencl::{ArgInfo, Kernel};
use crate::dtype::DType;
use crate::error::Result;

/// A number type of OpenCL C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are OpenCL C's own")]
pub enum ScalarType {
    Char,
    UChar,
    Short,
    UShort,
    Int,
    UInt,
    Long,
    ULong,
    Half,
    Float,
    Double,
}

impl ScalarType {
    const ALL: [ScalarType; 11] = [
        ScalarType::Char,
        ScalarType::UChar,
        ScalarType::Short,
        ScalarType::UShort,
        ScalarType::Int,
        ScalarType::UInt,
        ScalarType::Long,
        ScalarType::ULong,
        ScalarType::Half,
        ScalarType::Float,
        ScalarType::Double,
    ];

    /// The type's name in OpenCL C.
    pub const fn name(self) -> &'static str {
        match self {
            ScalarType::Char => "char",
            ScalarType::UChar => "uchar",
            ScalarType::Short => "short",
            ScalarType::UShort => "ushort",
            ScalarType::Int => "int",
            ScalarType::UInt => "uint",
            ScalarType::Long => "long",
            ScalarType::ULong => "ulong",
            ScalarType::Half => "half",
            ScalarType::Float => "float",
            ScalarType::Double => "double",
        }
    }

    /// NumPy's name for it.
    pub const fn numpy_name(self) -> &'static str {
        match self {
            ScalarType::Char => "int8",
            ScalarType::UChar => "uint8",
            ScalarType::Short => "int16",
            ScalarType::UShort => "uint16",
            ScalarType::Int => "int32",
            ScalarType::UInt => "uint32",
            ScalarType::Long => "int64",
            ScalarType::ULong => "uint64",
            ScalarType::Half => "float16",
            ScalarType::Float => "float32",
            ScalarType::Double => "float64",
        }
    }

    /// The type that NumPy calls by this name.
    pub fn from_numpy(name: &str) -> Option<ScalarType> {
        ScalarType::ALL.into_iter().find(|ty| ty.numpy_name() == name)
    }

    /// Bytes of a value.
    pub const fn size(self) -> usize {
        match self {
            ScalarType::Char | ScalarType::UChar => 1,
            ScalarType::Short | ScalarType::UShort | ScalarType::Half => 2,
            ScalarType::Int | ScalarType::UInt | ScalarType::Float => 4,
            ScalarType::Long | ScalarType::ULong | ScalarType::Double => 8,
        }
    }

    /// Whether it is `half`, `float` or `double`.
    pub const fn is_float(self) -> bool {
        matches!(self, ScalarType::Half | ScalarType::Float | ScalarType::Double)
    }

    /// Whether a tensor's elements are stored as this type.
    pub fn stores(self, dtype: DType) -> bool {
        self.name() == dtype.cl_type()
    }

    fn parse(words: &str) -> Option<ScalarType> {
        let word = match words {
            "signed char" => "char",
            "unsigned char" => "uchar",
            "short int" | "signed short" | "signed short int" => "short",
            "unsigned short" | "unsigned short int" => "ushort",
            "signed" | "signed int" => "int",
            "unsigned" | "unsigned int" => "uint",
            "long int" | "signed long" | "signed long int" => "long",
            "unsigned long" | "unsigned long int" => "ulong",
            other => other,
        };
        ScalarType::ALL.into_iter().find(|ty| ty.name() == word)
    }
}

/// What a parameter holds, or what its pointer points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// A number, or a vector of so many.
    Numbers(ScalarType, usize),
    /// `void`, a type definition, a struct: the bytes are the caller's business.
    Other(String),
}

impl ElementType {
    fn parse(words: &str) -> ElementType {
        if let Some(scalar) = ScalarType::parse(words) {
            return ElementType::Numbers(scalar, 1);
        }
        let base = words.trim_end_matches(|c: char| c.is_ascii_digit());
        let vector = ScalarType::parse(base).zip(words[base.len()..].parse().ok());
        match vector {
            Some((scalar, width @ (2 | 3 | 4 | 8 | 16))) => ElementType::Numbers(scalar, width),
            _ => ElementType::Other(words.to_owned()),
        }
    }
}

/// What a parameter takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// A buffer.
    Memory {
        /// The pointed-to values are `const` or `__constant`.
        read_only: bool,
        /// What it points to.
        element: ElementType,
    },
    /// Local memory of a size that the caller names.
    Local,
    /// A value.
    Value(ElementType),
    /// Nothing is known about it: neither the driver nor the source tells.
    Unknown,
}

/// One parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its declaration, for messages: `__global const float* a`.
    pub declaration: String,
    /// What it takes.
    pub kind: ParameterKind,
}

impl Parameter {
    fn from_info(info: &ArgInfo) -> Parameter {
        let pointee = info.type_name.strip_suffix('*').map(str::trim);
        let space = if info.address == "private" { String::new() } else { format!("__{} ", info.address) };
        let constant = if info.is_const && pointee.is_some() { "const " } else { "" };
        let declaration = format!("{space}{constant}{} {}", info.type_name, info.name);
        let kind = match (info.address, pointee) {
            ("local", Some(_)) => ParameterKind::Local,
            ("global" | "constant", Some(element)) => ParameterKind::Memory {
                read_only: info.is_const || info.address == "constant",
                element: ElementType::parse(element),
            },
            ("private", None) => ParameterKind::Value(ElementType::parse(&info.type_name)),
            _ => ParameterKind::Unknown,
        };
        Parameter { declaration, kind }
    }

    /// Reads a declaration such as `__global const float* restrict a`.
    pub fn parse(declaration: &str) -> Parameter {
        let text = declaration.split_whitespace().collect::<Vec<_>>().join(" ");
        let kind = parse_kind(&text).unwrap_or(ParameterKind::Unknown);
        Parameter { declaration: text, kind }
    }
}

fn parse_kind(text: &str) -> Option<ParameterKind> {
    if text.contains(['[', '(']) || text.matches('*').count() > 1 {
        return None;
    }
    let (before, after) = match text.split_once('*') {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    };
    let mut space = None;
    let mut read_only = false;
    let mut words: Vec<&str> = Vec::new();
    for word in before.split_whitespace() {
        match word.trim_start_matches("__") {
            "global" => space = Some("global"),
            "constant" => space = Some("constant"),
            "local" => space = Some("local"),
            "private" | "volatile" => {}
            "const" => read_only = true,
            _ => words.push(word),
        }
    }
    if after.is_none() {
        words.pop()?; // the parameter's name
    }
    let element = ElementType::parse(&words.join(" "));
    match (after, space) {
        (Some(_), Some("local")) => Some(ParameterKind::Local),
        (Some(_), Some(space)) => Some(ParameterKind::Memory { read_only: read_only || space == "constant", element }),
        (None, None) if !words.is_empty() => Some(ParameterKind::Value(element)),
        _ => None,
    }
}

/// The parameters of a kernel: what the driver says, else what its source says, else that nothing is known.
pub(super) fn parameters(kernel: &Kernel, source: &str) -> Result<Vec<Parameter>> {
    if let Some(infos) = kernel.arg_info()? {
        return Ok(infos.iter().map(Parameter::from_info).collect());
    }
    let count = kernel.arg_count()?;
    let found = from_source(source, kernel.name()).filter(|list| list.len() == count);
    let unknown = |index| Parameter { declaration: format!("parameter {index}"), kind: ParameterKind::Unknown };
    Ok(found.unwrap_or_else(|| (0..count).map(unknown).collect()))
}

/// The parameters in the source of a kernel, as far as plain text tells (macros are not expanded).
fn from_source(source: &str, name: &str) -> Option<Vec<Parameter>> {
    let text = without_comments(source);
    let mut from = 0;
    while let Some(at) = text[from..].find(name).map(|at| at + from) {
        from = at + name.len();
        let whole = !text[..at].ends_with(is_word) && !text[from..].starts_with(is_word);
        let head = text[..at].rsplit([';', '}']).next().unwrap_or_default();
        let is_kernel = head.split(|c| !is_word(c)).any(|word| word == "kernel" || word == "__kernel");
        if let (true, true, Some(list)) = (whole, is_kernel, text[from..].trim_start().strip_prefix('(')) {
            let mut depth = 1;
            let end = list.find(|c| {
                depth += i32::from(c == '(') - i32::from(c == ')');
                depth == 0
            })?;
            let list = list[..end].trim();
            let none = list.is_empty() || list == "void";
            return Some(if none { Vec::new() } else { list.split(',').map(Parameter::parse).collect() });
        }
    }
    None
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn without_comments(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find('/') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = match rest.as_bytes().get(1) {
            Some(b'/') => rest.find('\n').unwrap_or(rest.len()),
            Some(b'*') => rest.find("*/").map_or(rest.len(), |at| at + 2),
            _ => {
                text.push('/');
                rest = &rest[1..];
                continue;
            }
        };
        text.push(' ');
        rest = &rest[end..];
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(read_only: bool, scalar: ScalarType, width: usize) -> ParameterKind {
        ParameterKind::Memory { read_only, element: ElementType::Numbers(scalar, width) }
    }

    #[test]
    fn declarations_are_read() {
        let kind = |text| Parameter::parse(text).kind;
        assert_eq!(kind("__global const float* a"), memory(true, ScalarType::Float, 1));
        assert_eq!(kind("const global float4 * restrict a"), memory(true, ScalarType::Float, 4));
        assert_eq!(kind("__global unsigned int *const x"), memory(false, ScalarType::UInt, 1));
        assert_eq!(kind("__constant double *x"), memory(true, ScalarType::Double, 1));
        assert_eq!(kind("local float* tile"), ParameterKind::Local);
        assert_eq!(kind("const int n"), ParameterKind::Value(ElementType::Numbers(ScalarType::Int, 1)));
        assert_eq!(kind("float16 v"), ParameterKind::Value(ElementType::Numbers(ScalarType::Float, 16)));
        assert_eq!(kind("real x"), ParameterKind::Value(ElementType::Other("real".into())));
        let void = ParameterKind::Memory { read_only: false, element: ElementType::Other("void".into()) };
        assert_eq!(kind("__global void* p"), void);
        for odd in ["float x[4]", "n", "", "__global float** p", "__attribute__((aligned(4))) int x"] {
            assert_eq!(kind(odd), ParameterKind::Unknown, "{odd}");
        }
    }

    #[test]
    fn the_drivers_words_are_read() {
        let info = |type_name: &str, address, is_const| ArgInfo {
            name: "a".into(),
            type_name: type_name.into(),
            address,
            is_const,
        };
        let parameter = Parameter::from_info(&info("float*", "global", true));
        assert_eq!(parameter.declaration, "__global const float* a");
        assert_eq!(parameter.kind, memory(true, ScalarType::Float, 1));
        let value = Parameter::from_info(&info("uint", "private", false));
        assert_eq!(value.declaration, "uint a");
        assert_eq!(value.kind, ParameterKind::Value(ElementType::Numbers(ScalarType::UInt, 1)));
        assert_eq!(Parameter::from_info(&info("float*", "local", false)).kind, ParameterKind::Local);
        assert_eq!(Parameter::from_info(&info("image2d_t", "global", false)).kind, ParameterKind::Unknown);
    }

    #[test]
    fn kernels_are_found_in_source() {
        let source = "// __kernel void twice(__global int* no)\nfloat twice_of(float x) { return x; }\n\
            /* twice( */ __kernel __attribute__((vec_type_hint(float))) void\ntwice (__global float* x, /* how many */ const int n) {}\n\
            kernel void none(void) {}";
        let found = from_source(source, "twice").unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].kind, memory(false, ScalarType::Float, 1));
        assert_eq!(found[1].declaration, "const int n");
        assert_eq!(from_source(source, "none").unwrap(), []);
        assert_eq!(from_source(source, "twice_of"), None);
        assert_eq!(from_source("a / b // c", "k"), None);
    }

    #[test]
    fn numpy_names_are_understood() {
        for ty in ScalarType::ALL {
            assert_eq!(ScalarType::from_numpy(ty.numpy_name()), Some(ty));
        }
        assert_eq!(ScalarType::from_numpy("complex64"), None);
        assert!(ScalarType::Half.stores(DType::F16) && ScalarType::UShort.stores(DType::BF16));
        assert!(!ScalarType::Float.stores(DType::F64));
    }
}
