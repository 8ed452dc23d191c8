//! Kernels as declarations.

use std::sync::Arc;

use super::native::kernel_stream;
use super::program::KernelProgram;
use crate::backend::Queue;
use crate::backend::opencl::{Context, Source};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::work_group::{RememberedSizes, WorkGroupTuner};

/// C macros for kernel bodies: `LOAD`, `STORE`, `ADD`, `SUB`, `MUL`, `DIV`, `RELU`.
pub const PRIMITIVE_PREAMBLE: &str = include_str!("preamble.cl");

/// The option that trades accuracy for speed; only ever used where a caller asks for it.
const FAST_MATH: &str = "-cl-fast-relaxed-math";

/// A kernel's source: either a complete text, or a parameter list and a body that become one.
///
/// Clones share the work-group sizes that won, and so do all programs built from them.
///
/// ```
/// use netcl_core::kernels::primitives::{KernelSpec, PRIMITIVE_PREAMBLE};
///
/// let params = ["__global const float* a", "__global const float* b", "__global float* c"];
/// let spec = KernelSpec::new("vec_add", params, "int gid = get_global_id(0); c[gid] = a[gid] + b[gid];")?
///     .preamble(PRIMITIVE_PREAMBLE);
/// assert!(spec.to_source().contains("__kernel void vec_add("));
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct KernelSpec {
    name: String,
    code: Code,
    preamble: String,
    options: String,
    fast_math: bool,
    /// The element type of generated kernels, which the device must have.
    pub(super) dtype: Option<DType>,
    /// Surplus work-items do nothing, so the global size may be rounded up.
    pub(super) bounds_checked: bool,
    pub(super) tuner: WorkGroupTuner,
    pub(super) sizes: Arc<RememberedSizes>,
}

#[derive(Clone, Debug)]
enum Code {
    Source(String),
    Parts { params: Vec<String>, body: String },
}

impl KernelSpec {
    fn with_code(name: String, code: Code) -> Result<KernelSpec> {
        let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if !first || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let what = format!("{name:?} is not a name for a kernel: use letters, digits and _, not a digit first");
            return Err(Error::argument("KernelSpec", what));
        }
        Ok(KernelSpec {
            name,
            code,
            preamble: String::new(),
            options: String::new(),
            fast_math: false,
            dtype: None,
            bounds_checked: false,
            tuner: WorkGroupTuner::default(),
            sizes: Arc::default(),
        })
    }

    /// A kernel from its parameters (as they stand in OpenCL C) and its body.
    pub fn new<P: Into<String>>(
        name: impl Into<String>,
        params: impl IntoIterator<Item = P>,
        body: impl Into<String>,
    ) -> Result<KernelSpec> {
        let params = params.into_iter().map(Into::into).collect();
        KernelSpec::with_code(name.into(), Code::Parts { params, body: body.into() })
    }

    /// A kernel in a complete source text, which may hold other kernels and functions as well.
    pub fn from_source(name: impl Into<String>, src: impl Into<String>) -> Result<KernelSpec> {
        KernelSpec::with_code(name.into(), Code::Source(src.into()))
    }

    /// With text in front of the kernel.
    #[must_use]
    pub fn preamble(mut self, preamble: impl Into<String>) -> KernelSpec {
        self.preamble = preamble.into();
        self
    }

    /// With further compiler options.
    #[must_use]
    pub fn options(mut self, options: impl Into<String>) -> KernelSpec {
        self.options = options.into();
        self
    }

    /// With `-cl-fast-relaxed-math`: faster, and wrong for NaN, infinity and small differences. Off unless asked for.
    #[must_use]
    pub fn fast_math(mut self, on: bool) -> KernelSpec {
        self.fast_math = on;
        self
    }

    /// Declares that work-items beyond the problem's size do nothing, so that the global size may be rounded up to a multiple of
    /// any work-group size.
    #[must_use]
    pub fn bounds_checked(mut self, on: bool) -> KernelSpec {
        self.bounds_checked = on;
        self
    }

    /// With a tuner of one's own for runs without a local size.
    #[must_use]
    pub fn tuner(mut self, tuner: WorkGroupTuner) -> KernelSpec {
        self.tuner = tuner;
        self
    }

    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The parameters, where they were given as such.
    pub fn params(&self) -> Option<&[String]> {
        match &self.code {
            Code::Parts { params, .. } => Some(params),
            Code::Source(_) => None,
        }
    }

    /// The body, where it was given as such.
    pub fn body(&self) -> Option<&str> {
        match &self.code {
            Code::Parts { body, .. } => Some(body),
            Code::Source(_) => None,
        }
    }

    /// The text in front of the kernel.
    pub fn preamble_text(&self) -> &str {
        &self.preamble
    }

    /// The compiler options, complete but for what the device's version adds.
    pub fn build_options(&self) -> String {
        // Parameter types are asked for, so that arguments can be checked against them.
        let mut words = vec!["-cl-kernel-arg-info"];
        words.extend(self.fast_math.then_some(FAST_MATH));
        words.extend(self.options.split_whitespace());
        words.join(" ")
    }

    /// A complete `__kernel` definition with the preamble spliced in.
    pub fn to_source(&self) -> String {
        let mut text = self.preamble.clone();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        match &self.code {
            Code::Source(source) => text.push_str(source),
            Code::Parts { params, body } => {
                let list: Vec<String> = params.iter().map(|param| format!("\n    {}", param.trim())).collect();
                let body = body.trim_matches('\n');
                text.push_str(&format!("__kernel void {}({}) {{\n    {body}\n}}\n", self.name, list.join(",")));
            }
        }
        text
    }

    /// Compiles for the device of a queue; for the native CPU with an OpenCL driver for CPUs, which works on its memory in place.
    ///
    /// # Errors
    /// What the driver says, with the compiler's log; [`Error::Unsupported`] for the native CPU where no
    /// such driver is installed.
    pub fn build(&self, queue: &Queue) -> Result<KernelProgram> {
        let stream = kernel_stream(queue)?;
        KernelProgram::build(self, stream.context(), &[stream.device().clone()])
    }

    /// Compiles for every device of a context.
    pub fn build_for(&self, context: &Context) -> Result<KernelProgram> {
        KernelProgram::build(self, context, context.devices())
    }

    pub(super) fn source(&self) -> Source {
        Source::new(self.to_source(), self.build_options())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_give_a_complete_source() {
        let spec = KernelSpec::new("twice", ["__global float* x", " const int n "], "x[0] = n;").unwrap();
        let expected = "P\n__kernel void twice(\n    __global float* x,\n    const int n) {\n    x[0] = n;\n}\n";
        assert_eq!(spec.preamble("P").to_source(), expected);
        let source = "__kernel void k() {}";
        assert_eq!(KernelSpec::from_source("k", source).unwrap().to_source(), source);
        let with = KernelSpec::from_source("k", source).unwrap().preamble("#define A 1\n");
        assert_eq!(with.to_source(), "#define A 1\n__kernel void k() {}");
        assert_eq!(KernelSpec::new("none", [""; 0], "").unwrap().to_source(), "__kernel void none() {\n    \n}\n");
    }

    #[test]
    fn relaxed_math_is_opt_in() {
        let spec = KernelSpec::from_source("k", "").unwrap().options("  -DX=1   -DY ");
        assert_eq!(spec.build_options(), "-cl-kernel-arg-info -DX=1 -DY");
        assert_eq!(spec.fast_math(true).build_options(), "-cl-kernel-arg-info -cl-fast-relaxed-math -DX=1 -DY");
    }

    #[test]
    fn names_are_checked() {
        for bad in ["", "2x", "a b", "a-b", "größe", "k;"] {
            let text = KernelSpec::from_source(bad, "").unwrap_err().to_string();
            assert!(text.contains("not a name for a kernel"), "{text}");
        }
        assert!(KernelSpec::from_source("_k2", "").is_ok());
    }
}
