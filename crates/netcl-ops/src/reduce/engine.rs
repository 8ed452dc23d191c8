//! The general reduction: an expression per element, a way to combine, an expression per result.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernels::described::{Described, Meaning, Reduce};
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::cpu::Program;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::kernels::launch::{self, Arg, Cost, Launch, Scalar, Work};
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use super::plan::{Plan, resolve};
use super::{Axes, cpu, opencl};

/// How two values of a reduction become one. Sums are pairwise or blocked and never one long chain of roundings.
pub use netcl_core::kernels::described::Combine;

/// What the engine carries from element to element: a value, or an extremum with its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Carry {
    Value(Combine),
    /// The first position of the largest (`true`) or smallest value.
    Position(bool),
}

/// `epilogue(combine over the reduced axes of prologue(inputs))` as one operation: sums, norms, variances and whatever a
/// fusing compiler puts around them.
///
/// ```
/// use netcl_core::{device::manager, kernels::expr::Graph, tensor::Tensor};
/// use netcl_ops::reduce::{Axes, Combine, Operands, Reduction};
///
/// let g = Graph::new();
/// let dot = Reduction::new("dot", Combine::Sum).prologue(g.finish(&[g.input(0) * g.input(1)]));
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0], [3])?;
/// let y = Tensor::from_host(&queue, &[4.0f32, 5.0, 6.0], [3])?;
/// assert_eq!(dot.run(&Operands { inputs: &[&x, &y], ..Default::default() }, Axes::All, false)?.item()?, 32.0);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub struct Reduction {
    name: &'static str,
    pub(super) carry: Carry,
    pub(super) prologue: Option<Expr>,
    pub(super) epilogue: Option<Expr>,
    in_f32: OnceLock<Programs>,
    in_f64: OnceLock<Programs>,
}

/// What a [`Reduction`] works on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Operands<'t> {
    /// The prologue's inputs: tensors of one shape (expand them first) and device. Without a prologue there is one.
    pub inputs: &'t [&'t Tensor],
    /// The prologue's run-time scalars.
    pub prologue_scalars: &'t [Number],
    /// What the epilogue reads beside the combined value, which is its input 0. These have the shape of the inputs, with
    /// length 1 along the reduced axes.
    pub extras: &'t [&'t Tensor],
    /// The epilogue's run-time scalars.
    pub epilogue_scalars: &'t [Number],
    /// The dtype of the result; `None` means that of the first input.
    pub dtype: Option<DType>,
}

/// The compiled forms for the native CPU.
#[derive(Clone)]
pub(super) struct Programs {
    pub(super) prologue: Arc<Program>,
    pub(super) epilogue: Arc<Program>,
}

/// Everything a backend needs for one run.
pub(super) struct Run<'r> {
    pub(super) op: &'r Reduction,
    pub(super) inputs: &'r [Tensor],
    pub(super) out: &'r Tensor,
    pub(super) extras: &'r [Tensor],
    pub(super) plan: Arc<Plan>,
    pub(super) compute: DType,
    /// The prologue's scalars, then the epilogue's.
    pub(super) scalars: SmallVec<[Scalar; 4]>,
}

pub(super) type Args = SmallVec<[Arg; 8]>;

impl Reduction {
    /// A plain reduction under the name that launches and errors carry.
    pub fn new(name: &'static str, combine: Combine) -> Self {
        Self::carrying(name, Carry::Value(combine))
    }

    /// The position of the largest or smallest element.
    pub(super) fn position(name: &'static str, largest: bool) -> Self {
        Self::carrying(name, Carry::Position(largest))
    }

    fn carrying(name: &'static str, carry: Carry) -> Self {
        Reduction { name, carry, prologue: None, epilogue: None, in_f32: OnceLock::new(), in_f64: OnceLock::new() }
    }

    /// Computes an expression of one output from each element before combining.
    pub fn prologue(mut self, expr: Expr) -> Self {
        self.prologue = Some(expr);
        self
    }

    /// Computes an expression of one output from each combined value.
    pub fn epilogue(mut self, expr: Expr) -> Self {
        self.epilogue = Some(expr);
        self
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Reduces over some axes. The reduced axes must not be empty: what an empty reduction means is the caller's business.
    pub fn run(&self, operands: &Operands<'_>, axes: Axes<'_>, keepdims: bool) -> Result<Tensor> {
        let op = self.name;
        self.check(operands)?;
        let first = operands.inputs[0];
        let (reduced, shape) = resolve(op, first.shape(), axes, keepdims)?;
        let full: Shape = first.shape().iter().zip(&reduced).map(|(&n, &gone)| if gone { 1 } else { n }).collect();
        for extra in operands.extras {
            if extra.shape() != &full {
                let why = format!("an operand of its epilogue must have shape {full}");
                return Err(Error::Shape { op, shape: extra.shape().clone(), why });
            }
        }
        let default = if matches!(self.carry, Carry::Position(_)) { DType::I64 } else { first.dtype() };
        let out = Tensor::uninit(first.queue(), full, operands.dtype.unwrap_or(default))?;
        if out.size() > 0 {
            if first.size() == 0 {
                let why = format!("{op} of no elements has no value; every reduced axis needs at least one");
                return Err(Error::Shape { op, shape: first.shape().clone(), why });
            }
            self.launch(operands, &reduced, &out)?;
        }
        netcl_core::tensor::reshape(&out, shape)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let counts =
            |expr: &Option<Expr>| expr.as_ref().map_or((1, 0, 1), |e| (e.inputs(), e.scalars(), e.outputs().len()));
        let given = (operands.inputs.len(), operands.prologue_scalars.len(), 1);
        let given_after = (operands.extras.len() + 1, operands.epilogue_scalars.len(), 1);
        for (part, given, expected) in
            [("prologue", given, counts(&self.prologue)), ("epilogue", given_after, counts(&self.epilogue))]
        {
            if given != expected || operands.inputs.is_empty() {
                let what = format!("the {part} takes (inputs, scalars, outputs) = {expected:?}, got {given:?}");
                return Err(Error::argument(self.name, what));
            }
        }
        let first = operands.inputs[0];
        for tensor in operands.inputs.iter().chain(operands.extras) {
            tensor.check_float(self.name)?;
            first.queue().check_same_device(self.name, tensor.queue())?;
        }
        match operands.inputs.iter().find(|t| t.shape() != first.shape()) {
            None => Ok(()),
            Some(odd) => {
                let why = format!("all inputs must be expanded to {} first", first.shape());
                Err(Error::Shape { op: self.name, shape: odd.shape().clone(), why })
            }
        }
    }

    /// Offers the reduction to whoever listens at the seam.
    fn offered(&self, operands: &Operands<'_>, reduced: &[bool], out: &Tensor) -> Result<bool> {
        let Carry::Value(combine) = self.carry else { return Ok(false) };
        let inputs: SmallVec<[&Tensor; 4]> = operands.inputs.iter().chain(operands.extras).copied().collect();
        let meaning = Meaning::Reduce(Reduce {
            name: self.name,
            combine,
            prologue: self.prologue.as_ref(),
            prologue_scalars: operands.prologue_scalars,
            epilogue: self.epilogue.as_ref(),
            epilogue_scalars: operands.epilogue_scalars,
            extras: operands.extras.len(),
            reduced,
        });
        launch::offer(&Described { inputs: &inputs, outputs: &[out], meaning })
    }

    fn launch(&self, operands: &Operands<'_>, reduced: &[bool], out: &Tensor) -> Result<()> {
        if self.offered(operands, reduced, out)? {
            return Ok(());
        }
        let inputs: Vec<Tensor> = operands.inputs.iter().map(|&t| t.clone()).collect();
        let extras: Vec<Tensor> = operands.extras.iter().map(|&t| t.clone()).collect();
        let ordered = matches!(self.carry, Carry::Position(_));
        let plan = Arc::new(Plan::new(&inputs, reduced, out, &extras, ordered));
        let compute = Program::compute_type(inputs.iter().chain(&extras).map(Tensor::dtype));
        let scalars = operands.prologue_scalars.iter().chain(operands.epilogue_scalars);
        let scalars = scalars.map(|number| number.scalar(compute)).collect();
        let run = Run { op: self, inputs: &inputs, out, extras: &extras, plan, compute, scalars };
        match out.queue() {
            Queue::Cpu(_) => run.submit(self.name, cpu::work(&run)?),
            Queue::OpenCl(stream) => opencl::launch(&run, stream),
        }
    }

    pub(super) fn programs(&self, compute: DType) -> Result<Programs> {
        let cell = if compute == DType::F64 { &self.in_f64 } else { &self.in_f32 };
        if let Some(programs) = cell.get() {
            return Ok(programs.clone());
        }
        let compile = |expr: &Option<Expr>| {
            let g = Graph::new();
            let same = g.finish(&[g.input(0)]);
            Ok::<_, Error>(Arc::new(Program::compile(expr.as_ref().unwrap_or(&same), compute)?))
        };
        let made = Programs { prologue: compile(&self.prologue)?, epilogue: compile(&self.epilogue)? };
        Ok(cell.get_or_init(|| made).clone())
    }
}

impl Run<'_> {
    /// Hands one piece of work to the sink.
    pub(super) fn submit(&self, name: impl Into<Cow<'static, str>>, (work, args): (Work, Args)) -> Result<()> {
        let bytes: usize = self.inputs.iter().map(|t| t.size() * t.dtype().size()).sum();
        let per_element = 1 + self.op.prologue.as_ref().map_or(0, Expr::flops);
        launch::submit(Launch {
            name: name.into(),
            queue: self.out.queue().clone(),
            work,
            args,
            cost: Cost {
                flops: (self.inputs[0].size() * per_element) as f64,
                bytes: (bytes + self.out.size() * self.out.dtype().size()) as f64,
            },
        })
    }
}
