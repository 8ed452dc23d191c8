//! What precedes the source of a product's or a convolution's kernel: its types, how elements are loaded and stored, and the
//! fused expressions as functions.

use std::fmt::Write as _;

use netcl_core::dtype::DType;
use netcl_core::kernels::expr::Expr;
use netcl_core::kernels::expr::opencl::{CType, IndexWidth, inline_c};

use crate::elements::{rounding, store_aligned};

/// The settings of one program: the text that defines them, and a key that tells them apart.
pub(crate) struct Prelude {
    pub(crate) text: String,
    pub(crate) key: String,
}

/// How an expression of a value and of tensors around it is computed inside a kernel: its first input is the value.
pub(crate) struct Inline {
    /// The type that it computes in.
    pub(crate) compute: DType,
    /// The types of its other inputs.
    pub(crate) inputs: Vec<DType>,
    /// The names of an element's coordinates, and of the strides of an input that belong to them.
    pub(crate) coordinates: [(&'static str, &'static str); 4],
}

/// What a function is called, and how the names of its tensors and scalars begin.
struct Names {
    function: &'static str,
    name: &'static str,
    tensor: &'static str,
    scalar: &'static str,
}

const EPILOGUE: Names = Names { function: "epilogue", name: "EPILOGUE", tensor: "e", scalar: "s" };
const PROLOGUE: Names = Names { function: "prologue", name: "PROLOGUE", tensor: "p", scalar: "q" };

impl Prelude {
    pub(crate) fn new(index: IndexWidth) -> Prelude {
        let mut prelude = Prelude { text: String::new(), key: String::new() };
        prelude.define("INDEX", index.names().1);
        prelude
    }

    /// For a kernel that makes sums of a type.
    pub(crate) fn with_sums(sum: DType, index: IndexWidth) -> Prelude {
        let mut prelude = Prelude::new(index);
        prelude.double(sum);
        prelude.define("SUM", sum.cl_type());
        prelude
    }

    /// Defines a macro; its value becomes part of the key.
    pub(crate) fn define(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "#define {name} {value}");
        let _ = write!(self.key, ":{value}");
    }

    /// Defines how elements of a dtype are loaded as sums.
    pub(crate) fn loads(&mut self, ty: &str, load: &str, dtype: DType, sum: DType) {
        self.define(ty, dtype.cl_type());
        if dtype == DType::BF16 {
            self.once(FROM_BF16);
        }
        let _ = writeln!(self.text, "#define {load}(p, i) {}", load_element(dtype, "p", "i", sum));
        let _ = write!(self.key, "{}", dtype.name());
    }

    /// Defines how four neighbours, which lie on a boundary of four, are loaded as sums.
    pub(crate) fn loads4(&mut self, load: &str, dtype: DType, sum: DType) {
        let value = match dtype {
            DType::F16 => "vloada_half4(0, (p) + (i))".to_owned(),
            DType::BF16 => "as_float4(convert_uint4(*(global const ushort4 *)((p) + (i))) << 16)".to_owned(),
            _ => format!("(*(global const {}4 *)((p) + (i)))", dtype.cl_type()),
        };
        let widened = sum == DType::F64 && dtype != DType::F64;
        let value = if widened { format!("convert_double4({value})") } else { value };
        let _ = writeln!(self.text, "#define {load}(p, i) {value}");
    }

    /// Defines how four neighbours, which lie on a boundary of four, are stored.
    pub(crate) fn stores4(&mut self, store: &str, dtype: DType) {
        self.once(&rounding(dtype, 4));
        let _ = writeln!(self.text, "#define {store}_AT(v_, p_) {}", store_aligned(dtype, 4));
        let _ = writeln!(self.text, "#define {store}(v, p, i) {store}_AT(v, (p) + (i))");
    }

    /// Defines what becomes of a sum and how it is stored: `STORE`, `EPILOGUE` and `EPILOGUE_PARAMS`.
    pub(crate) fn epilogue(&mut self, dtype: DType, expr: Option<&Expr>, inline: &Inline) {
        let compute = inline.compute;
        self.double(compute);
        self.define("OUT", dtype.cl_type());
        self.once(&rounding(dtype, 1));
        let _ = writeln!(self.text, "#define STORE(v, p, i) {}", store_element(dtype, compute));
        let _ = write!(self.key, "{}{}", dtype.name(), compute.name());
        if let Some(expr) = expr {
            self.function(&EPILOGUE, expr, inline);
        }
    }

    /// Defines how an operand is computed from what was loaded: `PROLOGUE` and `PROLOGUE_PARAMS`.
    pub(crate) fn prologue(&mut self, expr: &Expr, inline: &Inline) {
        self.double(inline.compute);
        let _ = write!(self.key, ":prologue{}", inline.compute.name());
        self.function(&PROLOGUE, expr, inline);
    }

    fn function(&mut self, names: &Names, expr: &Expr, inline: &Inline) {
        let Names { function, name, tensor, scalar } = *names;
        let ctype = if inline.compute == DType::F64 { CType::DOUBLE } else { CType::FLOAT };
        let ty = inline.compute.cl_type();
        let (mut params, mut arguments, mut loads) = (String::new(), String::new(), String::new());
        for (i, &dtype) in inline.inputs.iter().enumerate() {
            if dtype == DType::BF16 {
                self.once(FROM_BF16);
            }
            let own = format!("{tensor}{i}");
            let _ = write!(params, ", global const {} *{own}, ulong {own}_at", dtype.cl_type());
            let _ = write!(arguments, ", {own}, {own}_at");
            let mut at = format!("{own}_at");
            for (coordinate, stride) in inline.coordinates {
                let _ = write!(params, ", INDEX {own}_{stride}");
                let _ = write!(arguments, ", {own}_{stride}");
                let _ = write!(at, " + {coordinate} * {own}_{stride}");
            }
            let load = load_element(dtype, &own, &at, inline.compute);
            let _ = writeln!(loads, "    const {ty} x{} = {load};", i + 1);
            let _ = write!(self.key, ":{}", dtype.name());
        }
        for i in 0..expr.scalars() {
            let _ = write!(params, ", {ty} {scalar}{i}");
            let _ = write!(arguments, ", {scalar}{i}");
        }
        let scalars: Vec<String> = (0..expr.scalars()).map(|i| format!("{scalar}{i}")).collect();
        let inlined = inline_c(expr, &[], &scalars.iter().map(String::as_str).collect::<Vec<_>>(), ctype);
        self.text.push_str("#pragma OPENCL FP_CONTRACT OFF\n");
        for helper in &inlined.helpers {
            self.once(&helper.text);
        }
        let statements: String = inlined.statements.iter().map(|s| format!("    {s}\n")).collect();
        let value = inlined.outputs.first().map_or("x0", String::as_str);
        let coordinates = inline.coordinates.map(|(coordinate, _)| coordinate).join(", ");
        let typed = inline.coordinates.map(|(coordinate, _)| format!("INDEX {coordinate}")).join(", ");
        let _ = write!(
            self.text,
            "// {expr}\n{ty} {function}(SUM sum, {typed}{params}) {{\n    \
             const {ty} x0 = sum;\n{loads}{statements}    return {value};\n}}\n\
             #define {name}_PARAMS {params}\n\
             #define {name}(sum, {coordinates}) {function}(sum, {coordinates}{arguments})\n"
        );
        let _ = write!(self.key, ":{:032x}", expr.key());
    }

    fn double(&mut self, dtype: DType) {
        if dtype == DType::F64 {
            self.once(FP64);
        }
    }

    /// Adds a text unless it is there already.
    fn once(&mut self, text: &str) {
        if !self.text.contains(text) {
            self.text.push_str(text);
        }
    }
}

const FP64: &str = "#ifdef cl_khr_fp64\n#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#endif\n";

/// bfloat16 is the upper half of a float.
const FROM_BF16: &str = "float from_bf16(ushort bits) { return as_float((uint)bits << 16); }\n";

fn load_element(dtype: DType, pointer: &str, at: &str, to: DType) -> String {
    let value = match dtype {
        DType::F16 => format!("vload_half({at}, {pointer})"),
        DType::BF16 => format!("from_bf16(({pointer})[{at}])"),
        _ => format!("(({pointer})[{at}])"),
    };
    // Float to double is the only conversion there is: `Program::compute_type` never narrows.
    if to == DType::F64 && dtype != DType::F64 { format!("((double){value})") } else { value }
}

fn store_element(dtype: DType, from: DType) -> &'static str {
    match (dtype, from) {
        (DType::F16, _) => "vstore_half_rte(v, i, p)",
        (DType::BF16, DType::F64) => "((p)[i] = bf16_bits(convert_float(v)))",
        (DType::BF16, _) => "((p)[i] = bf16_bits(v))",
        (DType::F32, DType::F64) => "((p)[i] = convert_float(v))",
        _ => "((p)[i] = (v))",
    }
}
