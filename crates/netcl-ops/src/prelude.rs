//! What stands before the text of a product's or a convolution's kernel: its types, how elements are loaded and stored, and the
//! epilogue as a function.

use std::fmt::Write as _;

use netcl_core::dtype::DType;
use netcl_core::kernels::expr::Expr;
use netcl_core::kernels::expr::opencl::{CType, IndexWidth, inline_c};

/// The settings of one program: the text that defines them, and a key that tells them apart.
pub(crate) struct Prelude {
    pub(crate) text: String,
    pub(crate) key: String,
}

/// What becomes of a sum.
pub(crate) struct Ending<'e> {
    /// The type of the result in memory.
    pub(crate) dtype: DType,
    /// The type that the epilogue computes in.
    pub(crate) compute: DType,
    /// The epilogue: its first input is the sum.
    pub(crate) expr: Option<&'e Expr>,
    /// The types of its other inputs.
    pub(crate) inputs: Vec<DType>,
    /// The names of an element's coordinates, and of the strides of an input that belong to them.
    pub(crate) coordinates: [(&'static str, &'static str); 4],
}

impl Prelude {
    pub(crate) fn new(index: IndexWidth) -> Prelude {
        let mut prelude = Prelude { text: String::new(), key: String::new() };
        prelude.define("INDEX", if index == IndexWidth::Bits32 { "int" } else { "long" });
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

    /// Defines what becomes of a sum and how it is stored.
    pub(crate) fn ending(&mut self, ending: &Ending<'_>) {
        let Ending { dtype, compute, .. } = *ending;
        self.double(compute);
        self.define("OUT", dtype.cl_type());
        if dtype == DType::BF16 {
            self.once(TO_BF16);
        }
        let _ = writeln!(self.text, "#define STORE(v, p, i) {}", store_element(dtype, compute));
        let _ = write!(self.key, "{}{}", dtype.name(), compute.name());
        if let Some(expr) = ending.expr {
            self.epilogue(expr, ending);
        }
    }

    fn epilogue(&mut self, expr: &Expr, ending: &Ending<'_>) {
        let ctype = if ending.compute == DType::F64 { CType::DOUBLE } else { CType::FLOAT };
        let ty = ending.compute.cl_type();
        let (mut params, mut arguments, mut loads) = (String::new(), String::new(), String::new());
        for (i, &dtype) in ending.inputs.iter().enumerate() {
            if dtype == DType::BF16 {
                self.once(FROM_BF16);
            }
            let _ = write!(params, ", global const {} *e{i}, ulong e{i}_at", dtype.cl_type());
            let _ = write!(arguments, ", e{i}, e{i}_at");
            let mut at = format!("e{i}_at");
            for (coordinate, stride) in ending.coordinates {
                let _ = write!(params, ", INDEX e{i}_{stride}");
                let _ = write!(arguments, ", e{i}_{stride}");
                let _ = write!(at, " + {coordinate} * e{i}_{stride}");
            }
            let load = load_element(dtype, &format!("e{i}"), &at, ending.compute);
            let _ = writeln!(loads, "    const {ty} x{} = {load};", i + 1);
            let _ = write!(self.key, ":{}", dtype.name());
        }
        for i in 0..expr.scalars() {
            let _ = write!(params, ", {ty} s{i}");
            let _ = write!(arguments, ", s{i}");
        }
        let inlined = inline_c(expr, &[], &[], ctype);
        self.text.push_str("#pragma OPENCL FP_CONTRACT OFF\n");
        for helper in &inlined.helpers {
            self.text.push_str(&helper.text);
        }
        let statements: String = inlined.statements.iter().map(|s| format!("    {s}\n")).collect();
        let value = inlined.outputs.first().map_or("x0", String::as_str);
        let names = ending.coordinates.map(|(coordinate, _)| coordinate).join(", ");
        let typed = ending.coordinates.map(|(coordinate, _)| format!("INDEX {coordinate}")).join(", ");
        let _ = write!(
            self.text,
            "// {expr}\n{ty} epilogue(SUM sum, {typed}{params}) {{\n    \
             const {ty} x0 = sum;\n{loads}{statements}    return {value};\n}}\n\
             #define EPILOGUE_PARAMS {params}\n\
             #define EPILOGUE(sum, {names}) epilogue(sum, {names}{arguments})\n"
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

/// Rounds to nearest even; a NaN stays a (quiet) NaN.
const TO_BF16: &str = "ushort to_bf16(float value) {\n    const uint bits = as_uint(value);\n    \
    return isnan(value) ? (ushort)((bits >> 16) | 0x40) : (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);\n}\n";

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
        (DType::BF16, DType::F64) => "((p)[i] = to_bf16(convert_float(v)))",
        (DType::BF16, _) => "((p)[i] = to_bf16(v))",
        (DType::F32, DType::F64) => "((p)[i] = convert_float(v))",
        _ => "((p)[i] = (v))",
    }
}
