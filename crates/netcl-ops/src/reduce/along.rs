//! Vectors along the axis that lies densely in memory: the macros that kernels over them are compiled with.

use std::fmt::Write as _;
use std::hash::Hash;

use netcl_core::kernels::expr::opencl::{CType, Helper};

use super::engine::Run;
use super::opencl::{Writer, indices, terms};
use crate::elements::{load, load_aligned, rounding};

/// A reduction whose inputs are read in vectors.
pub(super) struct Along<'w> {
    pub(super) writer: &'w Writer<'w>,
    /// Per input: whether it repeats one element along the dense axis.
    pub(super) repeats: Vec<bool>,
    /// Vectors begin at multiples of their own length.
    pub(super) ctype: CType,
}

impl Along<'_> {
    /// `None` where no axis is dense in all inputs: the reduced one, or the results' where these lie closer together.
    pub(super) fn repeats(run: &Run<'_>) -> Option<Vec<bool>> {
        let nest = if run.plan.columns { &run.plan.kept } else { &run.plan.reduced };
        let strides: Vec<isize> = (0..run.inputs.len()).map(|i| nest.inner_stride(i)).collect();
        let fits = strides.contains(&1) && strides.iter().all(|s| matches!(s, 0 | 1));
        fits.then(|| strides.iter().map(|&s| s == 0).collect())
    }

    /// What the source depends on, beside the reduction itself.
    pub(super) fn key(&self) -> impl Hash {
        (&self.repeats, self.ctype)
    }

    /// The macros of `reduce_groups.cl`: those of [`Writer::defines`], `VCOMPUTE`, `WIDTH`, `PLACE(r)`, `VALUE(v, d)`,
    /// `VVALUE(v, d)`, and the given ones.
    pub(super) fn defines(&self, more: &str) -> String {
        let writer = self.writer;
        let mut helpers: Vec<Helper> = Vec::new();
        let (uint, int) = writer.types();
        let run = writer.run;
        let mut place = indices(uint, "r", "r_i", &run.plan.reduced);
        for (i, input) in run.inputs.iter().enumerate() {
            let sum = terms(int, "r", &format!("x{i}_r"), &run.plan.reduced);
            let _ = write!(place, "__global const {} *x{i}_p = x{i}_o + ({sum}); ", input.dtype().cl_type());
        }
        let one = self.value(&mut helpers, writer.ctype);
        let vector = self.value(&mut helpers, self.ctype);
        let mut defines = String::new();
        let macros: [(&str, &str); 5] = [
            ("VCOMPUTE", &self.ctype.name()),
            ("WIDTH", &self.ctype.width().to_string()),
            ("PLACE(r_i)", &place),
            ("VALUE(v_, d_)", &one),
            ("VVALUE(v_, d_)", &vector),
        ];
        for (name, body) in macros {
            let _ = writeln!(defines, "#define {name} {body}");
        }
        let bits = rounding(run.out.dtype(), 1);
        let shared = writer.defines(&mut helpers);
        let helpers: String = helpers.into_iter().map(|h| h.text).collect();
        format!("#pragma OPENCL FP_CONTRACT OFF\n{bits}{helpers}{shared}{defines}{more}")
    }

    /// The statement that computes the prologue's value of the elements `d_` from the place on.
    fn value(&self, helpers: &mut Vec<Helper>, ctype: CType) -> String {
        let run = self.writer.run;
        let (name, wide) = (ctype.name(), ctype.width() > 1);
        let mut text = "{ ".to_owned();
        for (i, (input, &repeats)) in run.inputs.iter().zip(&self.repeats).enumerate() {
            let at = if repeats { format!("x{i}_p") } else { format!("x{i}_p + (d_)") };
            let value = match (wide, repeats) {
                (false, _) => load(input.dtype(), &at),
                (true, true) => format!("({name})(({}){})", ctype.lane().name(), load(input.dtype(), &at)),
                (true, false) => format!("convert_{name}({})", load_aligned(input.dtype(), &at, ctype.width())),
            };
            let _ = write!(text, "const {name} in{i}_ = {value}; ");
        }
        let names: Vec<String> = (0..run.inputs.len()).map(|i| format!("in{i}_")).collect();
        let scalar = |s: usize| if wide { format!("({name})(p{s})") } else { format!("p{s}") };
        let scalars: Vec<String> = (0..self.writer.prologue_scalars()).map(scalar).collect();
        let output = self.writer.inline(&mut text, helpers, run.op.prologue.as_ref(), &names, &scalars, ctype);
        let _ = write!(text, "v_ = {output}; }}");
        text
    }
}
