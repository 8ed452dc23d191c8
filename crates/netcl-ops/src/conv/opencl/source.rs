//! What stands before a kernel's text: its types and the epilogue as a function.

use std::fmt::Write as _;

use netcl_core::dtype::DType;
use netcl_core::kernels::expr::opencl::{CType, IndexWidth, inline_c};

use super::super::finish::Finish;

/// The settings of one program: the text that defines them, and a key that tells them apart.
pub(super) struct Prelude {
    pub(super) text: String,
    pub(super) key: String,
}

impl Prelude {
    pub(super) fn new(index: IndexWidth) -> Prelude {
        let mut prelude = Prelude { text: String::new(), key: String::new() };
        prelude.define("INDEX", if index == IndexWidth::Bits32 { "int" } else { "long" });
        prelude
    }

    /// Defines a macro; its value becomes part of the key.
    pub(super) fn define(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "#define {name} {value}");
        let _ = write!(self.key, ":{value}");
    }

    /// Defines the type of sums.
    pub(super) fn sums(&mut self, sum: DType) {
        self.double(sum);
        self.define("SUM", sum.cl_type());
    }

    fn double(&mut self, dtype: DType) {
        if dtype == DType::F64 && !self.text.contains(FP64) {
            self.text.push_str(FP64);
        }
    }

    /// Defines how operands are loaded as sums.
    pub(super) fn loads(&mut self, dtype: DType) {
        self.define("T", dtype.cl_type());
        if dtype == DType::BF16 {
            self.text.push_str(FROM_BF16);
        }
        let _ = writeln!(self.text, "#define LOAD(p, i) {}", load_element(dtype, "p", "i", dtype.accumulator()));
        let _ = write!(self.key, "{}", dtype.name());
    }

    /// Defines what becomes of a sum and how it is stored.
    pub(super) fn result(&mut self, finish: &Finish) {
        self.double(finish.compute);
        self.define("OUT", finish.dtype.cl_type());
        if finish.dtype == DType::BF16 {
            self.text.push_str(TO_BF16);
        }
        let _ = writeln!(self.text, "#define STORE(v, p, i) {}", store_element(finish.dtype, finish.compute));
        let _ = write!(self.key, "{}{}", finish.dtype.name(), finish.compute.name());
        self.epilogue(finish);
    }

    fn epilogue(&mut self, finish: &Finish) {
        let Some(expr) = &finish.expr else { return };
        let ctype = if finish.compute == DType::F64 { CType::DOUBLE } else { CType::FLOAT };
        let ty = finish.compute.cl_type();
        let (mut params, mut arguments, mut loads) = (String::new(), String::new(), String::new());
        for (i, input) in finish.inputs.iter().enumerate() {
            let dtype = input.dtype();
            if dtype == DType::BF16 && !self.text.contains(FROM_BF16) {
                self.text.push_str(FROM_BF16);
            }
            let _ = write!(
                params,
                ", global const {} *e{i}, ulong e{i}_at, INDEX e{i}_n, INDEX e{i}_c, INDEX e{i}_y, INDEX e{i}_x",
                dtype.cl_type()
            );
            let _ = write!(arguments, ", e{i}, e{i}_at, e{i}_n, e{i}_c, e{i}_y, e{i}_x");
            let at = format!("e{i}_at + n * e{i}_n + c * e{i}_c + y * e{i}_y + x * e{i}_x");
            let load = load_element(dtype, &format!("e{i}"), &at, finish.compute);
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
        let _ = write!(
            self.text,
            "// {expr}\n{ty} epilogue(SUM sum, INDEX n, INDEX c, INDEX y, INDEX x{params}) {{\n    \
             const {ty} x0 = sum;\n{loads}{statements}    return {value};\n}}\n\
             #define EPILOGUE_PARAMS {params}\n\
             #define EPILOGUE(sum, n, c, y, x) epilogue(sum, n, c, y, x{arguments})\n"
        );
        let _ = write!(self.key, ":{:032x}", expr.key());
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
