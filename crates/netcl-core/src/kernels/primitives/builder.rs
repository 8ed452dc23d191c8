//! Elementwise kernels from expressions.

use super::program::KernelFunction;
use super::spec::{KernelSpec, PRIMITIVE_PREAMBLE};
use crate::backend::opencl::Context;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::work_group::WorkGroupTuner;

/// Inputs of one elementwise kernel; more would not fit the parameter bytes of small devices.
const MAX_ARITY: usize = 64;

/// Builds elementwise kernels for one element type.
///
/// A kernel of arity 2 has the parameters `(in0, in1, out, n)`: pointers to the inputs and the output, and the number of
/// elements as `ulong`. In the expression `v0`, `v1`, ... are the inputs' elements. Elements beyond `n` are left alone, so any
/// global size of at least `n` is right. 16-bit floats are stored in 16 bits and computed with in 32, on every device.
///
/// ```
/// use netcl_core::{dtype::DType, kernels::primitives::PrimitiveBuilder};
///
/// let builder = PrimitiveBuilder::new(DType::F32)?;
/// let spec = builder.elementwise_spec("mul_add", 2, "MUL(ADD(v0, v1), 2.0f)")?;
/// assert_eq!(spec.params().map(<[String]>::len), Some(4));
/// assert!(spec.to_source().contains("STORE(out, gid, MUL(ADD(v0, v1), 2.0f));"));
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrimitiveBuilder {
    dtype: DType,
    tuner: WorkGroupTuner,
    fast_math: bool,
}

impl PrimitiveBuilder {
    /// A builder for one of the float types.
    pub fn new(dtype: DType) -> Result<PrimitiveBuilder> {
        if !dtype.is_float() {
            let what = format!("kernels on {dtype} cannot be generated; use one of {}", DType::NAMES.join(", "));
            return Err(Error::argument("PrimitiveBuilder", what));
        }
        Ok(PrimitiveBuilder { dtype, tuner: WorkGroupTuner::default(), fast_math: false })
    }

    /// With a tuner of one's own.
    #[must_use]
    pub fn tuner(mut self, tuner: WorkGroupTuner) -> PrimitiveBuilder {
        self.tuner = tuner;
        self
    }

    /// With `-cl-fast-relaxed-math`; off unless asked for, for every type.
    #[must_use]
    pub fn fast_math(mut self, on: bool) -> PrimitiveBuilder {
        self.fast_math = on;
        self
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The kernel that stores the expression of `arity` inputs.
    pub fn elementwise_spec(&self, name: &str, arity: usize, expression: &str) -> Result<KernelSpec> {
        const OP: &str = "elementwise_spec";
        if !(1..=MAX_ARITY).contains(&arity) {
            return Err(Error::argument(OP, format!("arity is {arity}; 1 to {MAX_ARITY} inputs are possible")));
        }
        let expression = expression.trim().trim_end_matches(';');
        if expression.is_empty() {
            return Err(Error::argument(OP, format!("the expression of {name:?} is empty; write for example \"v0\"")));
        }
        let (storage, value, types) = match self.dtype {
            DType::F16 => ("half", "float", include_str!("half.cl")),
            DType::BF16 => ("ushort", "float", include_str!("bfloat16.cl")),
            DType::F64 => ("double", "double", include_str!("double.cl")),
            _ => ("float", "float", ""),
        };
        let inputs = (0..arity).map(|i| format!("__global const {storage}* in{i}"));
        let params = inputs.chain([format!("__global {storage}* out"), "const ulong n".to_owned()]);
        let loads: String = (0..arity).map(|i| format!("    const {value} v{i} = LOAD(in{i}, gid);\n")).collect();
        let body = format!(
            "const ulong gid = get_global_id(0);\n    if (gid >= n) return;\n{loads}    STORE(out, gid, {expression});"
        );
        let mut spec = KernelSpec::new(name, params, body)?
            .preamble(format!("{types}{PRIMITIVE_PREAMBLE}"))
            .fast_math(self.fast_math)
            .bounds_checked(true)
            .tuner(self.tuner.clone());
        spec.dtype = Some(self.dtype);
        Ok(spec)
    }
}

/// Builds an elementwise kernel in one call; see [`PrimitiveBuilder`] for its parameters.
pub fn build_elementwise_kernel(
    context: &Context,
    name: &str,
    arity: usize,
    expression: &str,
    dtype: DType,
) -> Result<(KernelSpec, KernelFunction)> {
    let spec = PrimitiveBuilder::new(dtype)?.elementwise_spec(name, arity, expression)?;
    let kernel = spec.build_for(context)?.main()?;
    Ok((spec, kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_carry_the_types_they_need() {
        let source = |dtype| {
            let builder = PrimitiveBuilder::new(dtype).unwrap();
            builder.elementwise_spec("twice", 1, "MUL(v0, 2.0f)").unwrap().to_source()
        };
        assert!(source(DType::F32).contains("__global const float* in0,\n    __global float* out,\n    const ulong n"));
        assert!(source(DType::F16).starts_with("#ifdef cl_khr_fp16\n#pragma OPENCL EXTENSION cl_khr_fp16 : enable"));
        assert!(source(DType::F64).contains("const double v0"));
        assert!(source(DType::BF16).contains("__global ushort* out") && source(DType::BF16).contains("const float v0"));
        assert!(!source(DType::F16).contains("fast-relaxed"));
    }

    #[test]
    fn mistakes_are_named() {
        let builder = PrimitiveBuilder::new(DType::F32).unwrap();
        for (arity, expression, words) in [(0, "v0", "arity is 0"), (65, "v0", "arity is 65"), (1, " ; ", "is empty")] {
            let text = builder.elementwise_spec("k", arity, expression).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
        assert!(PrimitiveBuilder::new(DType::I32).unwrap_err().to_string().contains("int32"));
        assert!(!builder.elementwise_spec("k", 1, "v0").unwrap().build_options().contains("relaxed"));
        let fast = builder.fast_math(true).elementwise_spec("k", 1, "v0;").unwrap();
        assert!(fast.build_options().contains("-cl-fast-relaxed-math") && !fast.to_source().contains("v0;)"));
    }
}
