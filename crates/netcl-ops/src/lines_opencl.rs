//! How OpenCL kernels over lines find their elements: macros and the matching arguments.

use std::fmt::Write as _;
use std::hash::Hash;

use netcl_core::dtype::DType;
use netcl_core::kernels::expr::opencl::IndexWidth;
use netcl_core::kernels::launch::{self, Arg, Scalar};
use netcl_core::tensor::Tensor;
use smallvec::SmallVec;

use crate::elements::{load, rounding, store};
use crate::lines::Lines;
use crate::reduce::opencl::{indices, terms};

/// The input and output of a kernel over lines.
pub(crate) struct Access<'l> {
    lines: &'l Lines,
    x: &'l Tensor,
    out: &'l Tensor,
    index: IndexWidth,
}

impl<'l> Access<'l> {
    pub(crate) fn new(lines: &'l Lines, x: &'l Tensor, out: &'l Tensor) -> Self {
        let span = x.layout().end().max(out.layout().end()).max(x.size());
        Access { lines, x, out, index: IndexWidth::for_span(span) }
    }

    /// What the macros depend on.
    pub(crate) fn key(&self) -> impl Hash {
        (self.x.dtype(), self.index, self.lines.kept.shape.len())
    }

    /// `COMPUTE`, `UINT`, `KEPT_PARAMS`, `KEPT(o)`, `LOAD(r)` and `STORE(v, r)`.
    pub(crate) fn defines(&self) -> String {
        let dtype = self.x.dtype();
        let (uint, int) = self.index.names();
        let kept = &self.lines.kept;
        let rank = kept.shape.len();
        let ty = dtype.cl_type();
        let mut params = String::new();
        let mut places = indices(uint, "k", "o_", kept);
        for (name, constant) in [("x", "const "), ("y", "")] {
            let _ = write!(params, "__global {constant}{ty} *{name}, const ulong {name}_at, ");
            params.extend((0..rank).map(|a| format!("const {int} {name}_k{a}, ")));
            let _ = write!(params, "const {int} {name}_r, ");
            let sum = terms(int, "k", &format!("{name}_k"), kept);
            let _ = write!(places, "__global {constant}{ty} *{name}_o = {name} + {name}_at + ({sum}); ");
        }
        params.extend((1..rank).map(|a| format!("const {uint} k_n{a}, ")));
        let compute = if dtype == DType::F64 { "double" } else { "float" };
        let bits = rounding(dtype, 1);
        let load = load(dtype, &format!("x_o + ({int})(r_i) * x_r"));
        let store = store(dtype, &format!("y_o + ({int})(r_i) * y_r"), "v_");
        let store = store.trim_end_matches(';').replace("v_", "(v_)");
        format!(
            "{bits}#define COMPUTE {compute}\n#define UINT {uint}\n#define KEPT_PARAMS {params}\n\
             #define KEPT(o_) {places}\n#define LOAD(r_i) ({load})\n#define STORE(v_, r_i) {store}\n"
        )
    }

    /// The arguments of `KEPT_PARAMS`.
    pub(crate) fn args(&self) -> SmallVec<[Arg; 8]> {
        let kept = &self.lines.kept;
        let mut args = SmallVec::new();
        for (i, (tensor, access)) in
            [(self.x, launch::Access::Read), (self.out, launch::Access::Write)].into_iter().enumerate()
        {
            args.push(Arg::Buffer(tensor.storage().clone(), access));
            args.push(Arg::Scalar(Scalar::U64(tensor.layout().offset() as u64)));
            args.extend(kept.strides[i].iter().chain([&self.lines.step[i]]).map(|&s| self.index.signed(s)));
        }
        args.extend(kept.shape[1..].iter().map(|&n| self.count(n)));
        args
    }

    /// A count of the kernel's index type.
    pub(crate) fn count(&self, n: usize) -> Arg {
        self.index.unsigned(n)
    }
}
