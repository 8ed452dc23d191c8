//! How kernels read and write elements of a dtype: expressions of OpenCL C, and macros made of them. 16-bit types are computed in float.

use netcl_core::backend::opencl::Source;
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::opencl::bf16_bits;

/// The source of a program: what a launch defines, what all kernel files have in common, and the files.
pub(crate) fn kernel_source(defines: &str, files: &[&str]) -> Source {
    let mut text = defines.to_owned();
    text.push_str(include_str!("common.cl"));
    text.extend(files.iter().copied());
    Source::new(text, "")
}

/// `ELEMENT`, `COMPUTE`, `LOAD(p, i)` and `STORE(v, p, i)` for a float dtype.
pub(crate) fn element_defines(dtype: DType) -> String {
    let (compute, load, store) = match dtype {
        DType::F64 => ("double", "((p)[i])", "((p)[i] = (v))"),
        DType::F16 => ("float", "vload_half(i, p)", "vstore_half_rte(v, i, p)"),
        DType::BF16 => ("float", "as_float((uint)(p)[i] << 16)", "((p)[i] = bf16_bits(v))"),
        _ => ("float", "((p)[i])", "((p)[i] = (v))"),
    };
    let (bits, ty) = (rounding(dtype, 1), dtype.cl_type());
    format!(
        "{bits}#define ELEMENT {ty}\n#define COMPUTE {compute}\n#define LOAD(p, i) {load}\n#define STORE(v, p, i) {store}\n"
    )
}

/// The element at a place, as a float or double.
pub(crate) fn load(dtype: DType, at: &str) -> String {
    match dtype {
        DType::F16 => format!("vload_half(0, {at})"),
        DType::BF16 => format!("as_float((uint)*({at}) << 16)"),
        _ => format!("*({at})"),
    }
}

/// The vector of elements at a place that is a multiple of its length, which is one access to memory; float for 16-bit types.
pub(crate) fn load_aligned(dtype: DType, at: &str, width: usize) -> String {
    if width == 1 {
        return load(dtype, at);
    }
    match dtype {
        DType::F16 => format!("vloada_half{width}(0, {at})"),
        DType::BF16 => format!("as_float{width}(convert_uint{width}(*(__global const ushort{width} *)({at})) << 16)"),
        _ => format!("*(__global const {}{width} *)({at})", dtype.cl_type()),
    }
}

/// The statement that writes a value to a place.
pub(crate) fn store(dtype: DType, at: &str, value: &str) -> String {
    match dtype {
        DType::F16 => format!("vstore_half_rte({value}, 0, {at});"),
        DType::BF16 => format!("*({at}) = bf16_bits(convert_float({value}));"),
        DType::F64 => format!("*({at}) = convert_double({value});"),
        _ => format!("*({at}) = convert_float({value});"),
    }
}

/// What [`store`] and [`store_aligned`] need before them.
pub(crate) fn rounding(dtype: DType, width: usize) -> String {
    if dtype == DType::BF16 { bf16_bits(width).text } else { String::new() }
}

/// The statement, without a semicolon, that writes vector `v_` to place `p_`, a multiple of its length.
pub(crate) fn store_aligned(dtype: DType, width: usize) -> String {
    match dtype {
        _ if width == 1 => store(dtype, "p_", "(v_)").trim_end_matches(';').to_owned(),
        DType::F16 => format!("vstorea_half{width}_rte(v_, 0, p_)"),
        DType::BF16 => format!("*(__global ushort{width} *)(p_) = bf16_bits{width}(v_)"),
        _ => format!("*(__global {}{width} *)(p_) = (v_)", dtype.cl_type()),
    }
}
