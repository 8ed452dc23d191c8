//! What precedes the source of a product's or a convolution's kernel: its types, how elements are loaded and stored, and the
//! fused expressions as functions.

use std::fmt::{Display, Write as _};
use std::hash::{Hash, Hasher};

use netcl_core::Result;
use netcl_core::backend::opencl::{Kernel, Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::Expr;
use netcl_core::kernels::expr::opencl::{CType, IndexWidth, bits_type, inline_c};
use smallvec::SmallVec;

use crate::elements::{kernel_source, load, load_aligned, rounding, store_aligned};
use crate::row_tile::RowTile;

/// The settings of one program: either the key that finds it or the text that defines them.
pub(crate) enum Prelude<'h> {
    Key(&'h mut dyn Hasher),
    Text(String),
}

/// The kernel of files after what `define` defines.
pub(crate) fn kernel(
    stream: &Stream,
    name: &'static str,
    files: &[&str],
    define: impl Fn(&mut Prelude<'_>),
) -> Result<Kernel> {
    kernel_of(stream, name, define, |prelude| kernel_source(&prelude, files))
}

/// The kernel of a source around what `define` defines, which runs once for the key and, if the kernel is new, once for the text.
pub(crate) fn kernel_of(
    stream: &Stream,
    name: &'static str,
    define: impl Fn(&mut Prelude<'_>),
    source: impl FnOnce(String) -> Source,
) -> Result<Kernel> {
    stream.kernel(&Described { name, define: &define }, || {
        let mut prelude = Prelude::Text(String::new());
        define(&mut prelude);
        let text = if let Prelude::Text(text) = prelude { text } else { String::new() };
        (source(text), name)
    })
}

/// A kernel as the key of its program.
struct Described<'d, F> {
    name: &'static str,
    define: &'d F,
}

impl<F: Fn(&mut Prelude<'_>)> Hash for Described<'_, F> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        (self.define)(&mut Prelude::Key(state));
    }
}

/// How an expression of a value and of tensors around it is computed inside a kernel: its first input is the value.
pub(crate) struct Inline {
    /// The type that it computes in.
    pub(crate) compute: DType,
    /// The types of its other inputs.
    pub(crate) inputs: SmallVec<[DType; 4]>,
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

impl Prelude<'_> {
    pub(crate) fn index(&mut self, index: IndexWidth) {
        self.define("INDEX", index.names().1);
    }

    /// For a kernel that makes sums of a type.
    pub(crate) fn sums(&mut self, sum: DType, index: IndexWidth) {
        self.index(index);
        self.double(sum);
        self.define("SUM", sum.cl_type());
    }

    /// Adds a part to the key; the text, if that is made instead.
    fn text(&mut self, part: impl Hash) -> Option<&mut String> {
        match self {
            Prelude::Key(state) => {
                part.hash(state);
                None
            }
            Prelude::Text(text) => Some(text),
        }
    }

    /// Adds to the key what [derived](Prelude::derive) macros depend on.
    pub(crate) fn part(&mut self, part: impl Hash) {
        self.text(part);
    }

    /// Defines a macro; its value becomes part of the key.
    pub(crate) fn define(&mut self, name: &str, value: impl Display + Hash) {
        if let Some(text) = self.text(&value) {
            let _ = writeln!(text, "#define {name} {value}");
        }
    }

    /// Defines several macros.
    pub(crate) fn defines<const N: usize>(&mut self, values: [(&str, usize); N]) {
        for (name, value) in values {
            self.define(name, value);
        }
    }

    /// Defines a macro whose value follows from the key as it is.
    pub(crate) fn derive(&mut self, name: &str, value: impl Display) {
        if let Prelude::Text(text) = self {
            let _ = writeln!(text, "#define {name} {value}");
        }
    }

    /// Defines how elements of a dtype are loaded as sums.
    pub(crate) fn loads(&mut self, ty: &str, load: &str, dtype: DType, sum: DType) {
        let Some(text) = self.text(dtype) else { return };
        let _ = writeln!(text, "#define {ty} {}", dtype.cl_type());
        if dtype == DType::BF16 {
            once(text, FROM_BF16);
        }
        let _ = writeln!(text, "#define {load}(p, i) {}", load_element(dtype, "p", "i", sum));
    }

    /// Defines how four neighbours, which lie on a boundary of four, are loaded as sums.
    pub(crate) fn loads4(&mut self, load: &str, dtype: DType, sum: DType) {
        let Some(text) = self.text(dtype) else { return };
        let value = match dtype {
            DType::F16 => "vloada_half4(0, (p) + (i))".to_owned(),
            DType::BF16 => "as_float4(convert_uint4(*(global const ushort4 *)((p) + (i))) << 16)".to_owned(),
            _ => format!("(*(global const {}4 *)((p) + (i)))", dtype.cl_type()),
        };
        let widened = sum == DType::F64 && dtype != DType::F64;
        let value = if widened { format!("convert_double4({value})") } else { value };
        let _ = writeln!(text, "#define {load}(p, i) {value}");
    }

    /// Defines how four neighbours, which lie on a boundary of four, are stored.
    pub(crate) fn stores4(&mut self, store: &str, dtype: DType) {
        let Some(text) = self.text(dtype) else { return };
        once(text, &rounding(dtype, 4));
        let _ = writeln!(text, "#define {store}_AT(v_, p_) {}", store_aligned(dtype, 4));
        let _ = writeln!(text, "#define {store}(v, p, i) {store}_AT(v, (p) + (i))");
    }

    /// Defines how rows of so many elements are held in registers (`row_moments.cl`) and kept in local memory.
    pub(crate) fn normed_rows(&mut self, dtype: DType, length: usize, wide: RowTile) {
        let Some(text) = self.text((dtype, length, wide)) else { return };
        once(text, &rounding(dtype, 1));
        let local = |text: String| text.replace("__global", "__local");
        let _ = write!(
            text,
            "#define NORM 1\n#define NORM_K {length}\n#define LANES {}\n#define COMPUTE {}\n#define BITS {}\n{}\
             #define NORMED(p_, i_) {}\n#define NORMED4(p_, i_) {}\n#define STORE_NORMED(v_, p_) {}\n",
            wide.lanes,
            dtype.accumulator().cl_type(),
            bits_type(dtype.size()),
            wide.defines(dtype),
            local(load(dtype, "(p_) + (i_)")),
            local(load_aligned(dtype, "((p_) + (i_))", 4)),
            local(store_aligned(dtype, wide.width)),
        );
    }

    /// Defines what becomes of a sum and how it is stored: `STORE`, `EPILOGUE` and `EPILOGUE_PARAMS`.
    pub(crate) fn epilogue(&mut self, dtype: DType, expr: Option<&Expr>, inline: &Inline) {
        let compute = inline.compute;
        self.double(compute);
        if let Some(text) = self.text((dtype, compute)) {
            let _ = writeln!(text, "#define OUT {}", dtype.cl_type());
            once(text, &rounding(dtype, 1));
            let _ = writeln!(text, "#define STORE(v, p, i) {}", store_element(dtype, compute));
        }
        if let Some(expr) = expr {
            self.function(&EPILOGUE, expr, inline);
        }
    }

    /// Defines how an operand is computed from what was loaded: `PROLOGUE` and `PROLOGUE_PARAMS`.
    pub(crate) fn prologue(&mut self, expr: &Expr, inline: &Inline) {
        self.double(inline.compute);
        self.function(&PROLOGUE, expr, inline);
    }

    fn function(&mut self, names: &Names, expr: &Expr, inline: &Inline) {
        let Names { function, name, tensor, scalar } = *names;
        let Some(text) = self.text((name, inline.compute, &inline.inputs, expr)) else { return };
        let ctype = if inline.compute == DType::F64 { CType::DOUBLE } else { CType::FLOAT };
        let ty = inline.compute.cl_type();
        let (mut params, mut arguments, mut loads) = (String::new(), String::new(), String::new());
        for (i, &dtype) in inline.inputs.iter().enumerate() {
            if dtype == DType::BF16 {
                once(text, FROM_BF16);
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
        }
        for i in 0..expr.scalars() {
            let _ = write!(params, ", {ty} {scalar}{i}");
            let _ = write!(arguments, ", {scalar}{i}");
        }
        let scalars: Vec<String> = (0..expr.scalars()).map(|i| format!("{scalar}{i}")).collect();
        let inlined = inline_c(expr, &[], &scalars.iter().map(String::as_str).collect::<Vec<_>>(), ctype);
        text.push_str("#pragma OPENCL FP_CONTRACT OFF\n");
        for helper in &inlined.helpers {
            once(text, &helper.text);
        }
        let statements: String = inlined.statements.iter().map(|s| format!("    {s}\n")).collect();
        let value = inlined.outputs.first().map_or("x0", String::as_str);
        let coordinates = inline.coordinates.map(|(coordinate, _)| coordinate).join(", ");
        let typed = inline.coordinates.map(|(coordinate, _)| format!("INDEX {coordinate}")).join(", ");
        let _ = write!(
            text,
            "// {expr}\n{ty} {function}(SUM sum, {typed}{params}) {{\n    \
             const {ty} x0 = sum;\n{loads}{statements}    return {value};\n}}\n\
             #define {name}_PARAMS {params}\n\
             #define {name}(sum, {coordinates}) {function}(sum, {coordinates}{arguments})\n"
        );
    }

    fn double(&mut self, dtype: DType) {
        if let (Prelude::Text(text), DType::F64) = (self, dtype) {
            once(text, FP64);
        }
    }
}

/// Adds a text unless it is there already.
fn once(text: &mut String, addition: &str) {
    if !text.contains(addition) {
        text.push_str(addition);
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

#[cfg(test)]
mod tests {
    use netcl_core::kernels::expr::Graph;

    use super::*;

    #[derive(Default)]
    struct Bytes(Vec<u8>);

    impl Hasher for Bytes {
        fn write(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }

        fn finish(&self) -> u64 {
            0
        }
    }

    #[test]
    fn keys_differ_where_texts_differ() {
        let g = Graph::new();
        let exprs = [None, Some(g.finish(&[g.input(0) + g.input(1)])), Some(g.finish(&[g.input(0) * g.input(1)]))];
        let dtypes = [DType::F32, DType::F16, DType::BF16, DType::F64];
        let mut found: Vec<(Vec<u8>, String)> = Vec::new();
        for (dtype, index) in dtypes.into_iter().flat_map(|d| [(d, IndexWidth::Bits32), (d, IndexWidth::Bits64)]) {
            for (expr, side, first) in exprs.iter().flat_map(|e| [(e, 16, true), (e, 32, true), (e, 16, false)]) {
                let sum = dtype.accumulator();
                let coordinates = [("n", "n"), ("c", "c"), ("y", "y"), ("x", "x")];
                let inline = Inline { compute: sum, inputs: [dtype].into_iter().collect(), coordinates };
                let define = |prelude: &mut Prelude<'_>| {
                    prelude.sums(sum, index);
                    prelude.loads("T", "LOAD", dtype, sum);
                    prelude.epilogue(dtype, expr.as_ref().filter(|_| first), &inline);
                    if let (Some(expr), false) = (expr, first) {
                        prelude.prologue(expr, &inline);
                    }
                    prelude.define("SIDE", side);
                    prelude.derive("VECTOR", format_args!("vload{side}"));
                };
                let (mut key, mut text) = (Bytes::default(), Prelude::Text(String::new()));
                Described { name: "kernel", define: &define }.hash(&mut key);
                define(&mut text);
                let Prelude::Text(text) = text else { continue };
                assert!(found.iter().all(|(k, t)| (*k == key.0) == (*t == text)), "{text}");
                found.push((key.0, text));
            }
        }
        assert_eq!(found.len(), 72);
    }
}
