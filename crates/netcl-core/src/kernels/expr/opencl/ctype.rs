//! The type a kernel computes in, its literals, and how elements of any dtype are loaded into it and stored from it.

use std::fmt::Write as _;

use super::Helper;
use crate::dtype::DType;

/// A floating-point type of OpenCL C: `float`, `double`, or a vector of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CType {
    double: bool,
    width: usize,
}

impl CType {
    /// The vector widths of OpenCL C that hold whole powers of two.
    pub const WIDTHS: [usize; 5] = [1, 2, 4, 8, 16];

    /// The type to compute operands of `dtype` in: `double` for f64, else `float`; `None` for a width that does not exist.
    pub fn new(dtype: DType, width: usize) -> Option<CType> {
        Self::WIDTHS.contains(&width).then_some(CType { double: dtype == DType::F64, width })
    }

    /// The scalar `float`.
    pub const FLOAT: CType = CType { double: false, width: 1 };
    /// The scalar `double`.
    pub const DOUBLE: CType = CType { double: true, width: 1 };

    /// The number of lanes.
    pub fn width(self) -> usize {
        self.width
    }

    /// The type of one lane.
    pub fn lane(self) -> CType {
        CType { width: 1, ..self }
    }

    /// The type with another number of lanes; `None` if there is none.
    pub(in crate::kernels) fn with_width(self, width: usize) -> Option<CType> {
        Self::WIDTHS.contains(&width).then_some(CType { width, ..self })
    }

    /// The type's name.
    pub fn name(self) -> String {
        let base = if self.double { "double" } else { "float" };
        if self.width == 1 { base.to_owned() } else { format!("{base}{}", self.width) }
    }

    /// A literal, exact to the type's precision. OpenCL widens it beside a vector operand.
    pub fn literal(self, value: f64) -> String {
        let text = match (value, self.double) {
            (v, _) if v.is_nan() => return "NAN".to_owned(),
            (f64::INFINITY, _) => return "INFINITY".to_owned(),
            (f64::NEG_INFINITY, _) => return "(-INFINITY)".to_owned(),
            (v, true) => format!("{v:?}"),
            (v, false) => format!("{:?}f", v as f32),
        };
        if value.is_sign_negative() { format!("({text})") } else { text }
    }

    /// A literal as a value of this very type, where nothing widens it: arguments of functions, branches of choices.
    pub fn splat(self, value: f64) -> String {
        if self.width == 1 { self.literal(value) } else { format!("({})({})", self.name(), self.literal(value)) }
    }

    fn suffix(self) -> String {
        if self.width == 1 { String::new() } else { self.width.to_string() }
    }

    /// The value of element `p[k]` (of one lane), or of the whole vector at `p`, in this type.
    fn read(self, dtype: DType, p: &str, k: &str, aligned: bool) -> String {
        let w = self.suffix();
        let name = self.name();
        let at = |p: &str| match self.width {
            1 => format!("{p}[{k}]"),
            _ if aligned => format!("*(global const {}{w} *){p}", dtype.cl_type()),
            _ => format!("vload{w}(0, {p})"),
        };
        let converted = |from: &str, value: String| {
            if from == name { value } else { format!("convert_{name}({value})") }
        };
        let float = format!("float{w}");
        match dtype {
            DType::F16 => {
                let place = if self.width == 1 { k } else { "0" };
                let load = if aligned && self.width > 1 { "vloada_half" } else { "vload_half" };
                converted(&float, format!("{load}{w}({place}, {p})"))
            }
            DType::BF16 => converted(&float, format!("as_float{w}(convert_uint{w}({}) << 16)", at(p))),
            other => converted(&format!("{}{w}", other.cl_type()), at(p)),
        }
    }

    /// `v` as the elements of a dtype; not for f16, whose stores convert by themselves.
    fn stored(self, dtype: DType, v: &str) -> String {
        let w = self.suffix();
        let float = if self.double { format!("convert_float{w}({v})") } else { v.to_owned() };
        match dtype {
            DType::BF16 => format!("bf16_bits{w}({float})"),
            DType::F32 => float,
            DType::F64 if self.double => v.to_owned(),
            DType::F64 => format!("convert_double{w}({v})"),
            // Integers truncate and saturate, as casts in Rust do.
            other => format!("convert_{}{w}_sat_rtz({v})", other.cl_type()),
        }
    }

    /// The statement that stores `v` at `p[k]` (one lane) or as a whole vector at `p`.
    fn write(self, dtype: DType, p: &str, k: &str, v: &str, aligned: bool) -> String {
        let w = self.suffix();
        if dtype == DType::F16 {
            let place = if self.width == 1 { k } else { "0" };
            let store = if aligned && self.width > 1 { "vstorea_half" } else { "vstore_half" };
            return format!("{store}{w}_rte({v}, {place}, {p});");
        }
        let value = self.stored(dtype, v);
        match self.width {
            1 => format!("{p}[{k}] = {value};"),
            _ if aligned => format!("*(global {}{w} *){p} = {value};", dtype.cl_type()),
            _ => format!("vstore{w}({value}, 0, {p});"),
        }
    }

    /// The function that loads up to a vector's worth of elements: `left` says how many there are.
    pub(crate) fn load_helper(self, dtype: DType) -> Helper {
        self.load_helper_at(dtype, false)
    }

    /// As [`CType::load_helper`], for places that are multiples of the vector's width if `aligned`: many GPUs load a whole
    /// vector with one instruction only then.
    pub(crate) fn load_helper_at(self, dtype: DType, aligned: bool) -> Helper {
        let verb = if aligned && self.width > 1 { "fetch" } else { "load" };
        let (name, ty) = (format!("{verb}_{}_{}", tag(dtype), self.name()), self.name());
        let mut text = format!("{ty} {name}(global const {} *p, ulong left) {{\n", dtype.cl_type());
        if self.width > 1 {
            let _ = writeln!(text, "    if (left >= {}) return {};", self.width, self.read(dtype, "p", "0", aligned));
            if self.width > 4 {
                let lane = self.lane().read(dtype, "p", "k", false);
                let _ = writeln!(text, "    {} lanes[{}];", self.lane().name(), self.width);
                let _ = writeln!(
                    text,
                    "    for (uint k = 0; k < {}; ++k) lanes[k] = k < left ? {lane} : {};",
                    self.width,
                    self.literal(0.0)
                );
                let _ = writeln!(text, "    return vload{}(0, lanes);\n}}", self.width);
                return Helper { name, text };
            }
            let lanes: Vec<String> = (0..self.width)
                .map(|k| match (k, self.lane().read(dtype, "p", &k.to_string(), false)) {
                    (0, value) => value,
                    (k, value) => format!("left > {k} ? {value} : {}", self.literal(0.0)),
                })
                .collect();
            let _ = writeln!(text, "    return ({ty})({});\n}}", lanes.join(",\n        "));
        } else {
            let _ = writeln!(text, "    return {};\n}}", self.read(dtype, "p", "0", false));
        }
        Helper { name, text }
    }

    /// The function that stores up to a vector's worth of elements, with what it needs itself before it.
    pub(crate) fn store_helpers(self, dtype: DType) -> Vec<Helper> {
        self.store_helpers_at(dtype, false)
    }

    /// As [`CType::store_helpers`], for places that are multiples of the vector's width if `aligned`.
    pub(crate) fn store_helpers_at(self, dtype: DType, aligned: bool) -> Vec<Helper> {
        let verb = if aligned && self.width > 1 { "put" } else { "store" };
        let name = format!("{verb}_{}_{}", tag(dtype), self.name());
        let mut text = format!("void {name}({} v, global {} *p, ulong left) {{\n", self.name(), dtype.cl_type());
        if self.width > 1 {
            let _ = writeln!(
                text,
                "    if (left >= {}) {{ {} return; }}",
                self.width,
                self.write(dtype, "p", "0", "v", aligned)
            );
            if self.width > 4 {
                let lane = self.lane().write(dtype, "p", "k", "lanes[k]", false);
                let (ty, w) = (self.lane().name(), self.width);
                let _ = write!(text, "    {ty} lanes[{w}];\n    vstore{w}(v, 0, lanes);\n");
                let _ = writeln!(text, "    for (uint k = 0; k < left; ++k) {lane}");
            } else {
                for k in 0..self.width {
                    let lane = self.lane().write(dtype, "p", &k.to_string(), &format!("v.s{k:x}"), false);
                    let _ = match k {
                        0 => writeln!(text, "    {lane}"),
                        k => writeln!(text, "    if (left > {k}) {{ {lane} }}"),
                    };
                }
            }
            text.push_str("}\n");
        } else {
            let _ = writeln!(text, "    {}\n}}", self.write(dtype, "p", "0", "v", false));
        }
        let mut helpers = Vec::new();
        if dtype == DType::BF16 {
            helpers.push(bf16_bits(1));
            if self.width > 1 {
                helpers.push(bf16_bits(self.width));
            }
        }
        helpers.push(Helper { name, text });
        helpers
    }
}

/// The type of so many bytes that are only moved: one program for all elements of a size.
pub const fn bits_type(size: usize) -> &'static str {
    match size {
        1 => "uchar",
        2 => "ushort",
        4 => "uint",
        8 => "ulong",
        _ => "uint4",
    }
}

/// `bf16_bits`, `bf16_bits4`, ...: rounds floats to the nearest bfloat16, ties to even; a NaN stays one instead of rounding to infinity.
///
/// Devices that round by themselves define `NATIVE_BF16` (`backend/opencl/build.rs`): in software 8 instructions an element bound batch
/// norm on an H200, which took 2.6 of 4.2 TB/s.
pub fn bf16_bits(width: usize) -> Helper {
    let w = if width == 1 { String::new() } else { width.to_string() };
    let name = format!("bf16_bits{w}");
    let native = if width == 1 {
        "    ushort bits;\n    asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(bits) : \"f\"(x));\n    return bits;\n"
            .to_owned()
    } else {
        let pairs = width / 2;
        let names: Vec<String> = (0..pairs).map(|pair| format!("p{pair}")).collect();
        let rounds: String = (0..pairs)
            .map(|pair| {
                let (low, high) = (2 * pair, 2 * pair + 1);
                format!("    asm(\"cvt.rn.bf16x2.f32 %0, %2, %1;\" : \"=r\"(p{pair}) : \"f\"(x.s{low:x}), \"f\"(x.s{high:x}));\n")
            })
            .collect();
        let joined = if pairs == 1 { "p0".to_owned() } else { format!("(uint{pairs})({})", names.join(", ")) };
        format!("    uint {};\n{rounds}    return as_ushort{w}({joined});\n", names.join(", "))
    };
    let text = format!(
        "ushort{w} {name}(float{w} x) {{\n#ifdef NATIVE_BF16\n{native}#else\n    const uint{w} bits = as_uint{w}(x);\n    \
         const uint{w} rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;\n    \
         return convert_ushort{w}((x != x) ? ((bits >> 16) | 0x40u) : rounded);\n#endif\n}}\n"
    );
    Helper { name, text }
}

/// The short name of a dtype in kernel and helper names.
pub(crate) const fn tag(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::U8 => "u8",
        DType::I32 => "i32",
        DType::I64 => "i64",
    }
}
