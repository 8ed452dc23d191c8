//! Operations by their meaning: how they are described to a compiler at the launch seam, before kernels are chosen.

use std::sync::Arc;

use super::argument::Number;
use super::expr::{Expr, Graph, Val};
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// An operation that is about to be launched.
pub struct Described<'a> {
    /// What it reads, as the operation sees it: expanded to one shape where the meaning says so.
    pub inputs: &'a [&'a Tensor],
    /// What it writes, whole.
    pub outputs: &'a [&'a Tensor],
    /// What it computes.
    pub meaning: Meaning<'a>,
}

/// What an operation computes.
pub enum Meaning<'a> {
    /// Every element of the outputs by an expression of the same element of the inputs; all have one shape.
    Elementwise(Pointwise<'a>),
    /// The elements of the only input, rounded to the output's dtype.
    Copy,
    /// A number in every element; there is no input.
    Fill(f64),
    /// An expression of the elements, combined over some axes, and an expression of what comes out.
    Reduce(Reduce<'a>),
    /// A heavy operation that expressions can be fused on: a matrix product, a convolution.
    Fusable(Arc<dyn Fusable>),
    /// An operation along one axis that is made of maps and reductions.
    AlongAxis(usize, AlongAxis),
    /// Rows of the only input normalised; the outputs are the result, the means and one divided by the deviations.
    RowNorm(&'a RowNorm),
}

/// A normalisation of rows, each by its own statistics: `(x - mean) / sqrt(var + eps) * weight + bias`.
#[derive(Clone, Debug)]
pub struct RowNorm {
    /// Added to variances.
    pub eps: f64,
    /// Whether the mean is subtracted.
    pub centred: bool,
    /// One element for each of a row's, dense, in the dtype of sums.
    pub weight: Option<Tensor>,
    /// The same.
    pub bias: Option<Tensor>,
}

/// An elementwise operation.
#[derive(Clone, Copy, Debug)]
pub struct Pointwise<'a> {
    /// The name that launches carry.
    pub name: &'a str,
    /// An input for each tensor that is read, an output for each that is written.
    pub expr: &'a Expr,
    /// The expression's run-time scalars.
    pub scalars: &'a [Number],
    /// Whether OpenCL compilers may trade exactness for speed.
    pub relaxed: bool,
}

/// How many values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combine {
    /// Their sum.
    Sum,
    /// The largest; NaN if one is.
    Max,
    /// The smallest; NaN if one is.
    Min,
    /// Their product.
    Prod,
}

impl Combine {
    /// `"sum"`, `"max"`, `"min"` or `"prod"`.
    pub const fn name(self) -> &'static str {
        match self {
            Combine::Sum => "sum",
            Combine::Max => "max",
            Combine::Min => "min",
            Combine::Prod => "prod",
        }
    }

    /// The value of no elements at all.
    pub const fn identity(self) -> f64 {
        match self {
            Combine::Sum => 0.0,
            Combine::Max => f64::NEG_INFINITY,
            Combine::Min => f64::INFINITY,
            Combine::Prod => 1.0,
        }
    }
}

/// What is computed along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlongAxis {
    /// `exp(x) / sum(exp(x))`.
    Softmax,
    /// Its logarithm.
    LogSoftmax,
    /// From the gradient `g` and the result `y` of a softmax, `y * (g - sum(g * y))`.
    SoftmaxBackward,
    /// From the gradient `g` and the result `y` of a log-softmax, `g - exp(y) * sum(g)`.
    LogSoftmaxBackward,
    /// From `x` and whole numbers with one element per line, the element of the line that the number names: 0 for a number that is
    /// to be ignored, NaN for any other outside the line. The output has no such axis.
    Pick {
        /// The number to be ignored.
        ignore: Option<i64>,
    },
    /// From one value and one whole number per line, zeros with the value where the number points; the rules are the same.
    Unpick {
        /// The number to be ignored.
        ignore: Option<i64>,
    },
}

/// A reduction: `epilogue(combine over the reduced axes of prologue(inputs))`. The last `extras` of the inputs belong to the
/// epilogue and have length 1 along the reduced axes, as the output has; the others have one shape.
pub struct Reduce<'a> {
    /// The name that launches carry.
    pub name: &'static str,
    /// How two values become one.
    pub combine: Combine,
    /// One output per element of the inputs; without it there is one input, taken as it is.
    pub prologue: Option<&'a Expr>,
    /// The prologue's scalars.
    pub prologue_scalars: &'a [Number],
    /// One output per combined value (its input 0) and the extras.
    pub epilogue: Option<&'a Expr>,
    /// The epilogue's scalars.
    pub epilogue_scalars: &'a [Number],
    /// How many of the inputs are the epilogue's.
    pub extras: usize,
    /// For each axis whether it is reduced.
    pub reduced: &'a [bool],
}

/// An expression fused before a heavy operation: an operand that is computed while it is read, as by an activation, a
/// normalisation or a scale. Where a kernel has no place for that, or would compute too much too often, the operand is computed
/// first.
#[derive(Clone, Debug)]
pub struct Prologue<'e> {
    /// Which of the operation's inputs.
    pub operand: usize,
    /// One output, the operand; input 0 is the tensor that the operation is given in its place.
    pub expr: &'e Expr,
    /// The further inputs, of any float dtype, which broadcast to the operand.
    pub inputs: Vec<Tensor>,
    /// The expression's run-time scalars.
    pub scalars: Vec<Number>,
}

/// An expression fused behind a heavy operation, between the sum and the store: bias, activation, residual, scale, cast.
#[derive(Clone, Debug)]
pub struct Epilogue<'e> {
    /// One output; input 0 is the operation's own result.
    pub expr: &'e Expr,
    /// The further inputs, of any float dtype, which broadcast to the result.
    pub inputs: Vec<Tensor>,
    /// The expression's run-time scalars.
    pub scalars: Vec<Number>,
    /// The dtype of the result; `None` keeps that of the operands.
    pub dtype: Option<DType>,
}

impl Epilogue<'_> {
    /// The expression after another one of `inputs` inputs: input 0 is what that one gives, the further inputs and scalars
    /// come after its own.
    ///
    /// ```
    /// use netcl_core::kernels::{described::Epilogue, expr::Graph};
    ///
    /// let g = Graph::new();
    /// let bias = g.finish(&[g.input(0) + g.input(1)]);
    /// let scaled_relu = g.finish(&[(g.input(0) * g.scalar(0)).relu()]);
    /// let epilogue = Epilogue { expr: &scaled_relu, inputs: vec![], scalars: vec![2.0.into()], dtype: None };
    /// assert_eq!(epilogue.after(&bias, 2).eval(&[1.0, 3.0], &[2.0]), [8.0]);
    /// ```
    pub fn after(&self, first: &Expr, inputs: usize) -> Expr {
        let g = Graph::new();
        let made = g.inline(first, &[], &[]);
        let own = (0..self.inputs.len()).map(|i| g.input(inputs + i));
        let all: Vec<Val<'_>> = made.first().copied().into_iter().chain(own).collect();
        let scalars: Vec<Val<'_>> = (0..self.expr.scalars()).map(|i| g.scalar(first.scalars() + i)).collect();
        let outputs = g.inline(self.expr, &all, &scalars);
        g.finish_with(&outputs, inputs + self.inputs.len(), first.scalars() + self.expr.scalars())
    }
}

/// Whether a prologue can be fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CanFuse {
    /// The operand is computed while it is read.
    Yes,
    /// The operand is read from memory, for this reason.
    No(&'static str),
}

impl CanFuse {
    /// Yes, if that holds; else no, for this reason.
    pub fn when(holds: bool, otherwise: &'static str) -> CanFuse {
        if holds { CanFuse::Yes } else { CanFuse::No(otherwise) }
    }
}

/// A heavy operation that a compiler may run later, on other memory, with expressions fused on it.
pub trait Fusable: Send + Sync {
    /// What explanations call it.
    fn name(&self) -> &'static str;

    /// Whether an input may be computed while it is read; else why not. `inputs` has the expression's first input in its place.
    fn can_fuse(&self, _prologue: &Prologue<'_>, _inputs: &[Tensor], _out: &Tensor) -> Result<CanFuse> {
        Ok(CanFuse::No("its kernels read it as it lies in memory"))
    }

    /// Runs it with the rows of its first input normalised while they are read, if it gives the same bits as after a launch of the
    /// normalisation; else `None`. The first input is what is normalised, dense, in the shape that the operation was described with.
    fn run_normed(
        &self,
        _inputs: &[Tensor],
        _norm: &RowNorm,
        _epilogue: Option<&Epilogue<'_>>,
    ) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// Runs it on tensors of the same layouts as those it was described with; an input that has a prologue may lie in any way.
    fn run(&self, inputs: &[Tensor], prologue: Option<Prologue<'_>>, epilogue: Option<Epilogue<'_>>) -> Result<Tensor>;
}
