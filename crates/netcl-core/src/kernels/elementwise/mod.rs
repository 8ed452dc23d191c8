//! Running an expression over tensors: one launch, any number of inputs and outputs, any strides.

mod cpu;
mod opencl;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

pub use super::argument::Number;
use super::copy::check_writable;
use super::described::{Described, Meaning, Pointwise};
use super::expr::Expr;
use super::expr::cpu::Program;
use super::launch::{self, Access, Arg, Cost, Launch, Work};
use crate::backend::Queue;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::{Layout, Strides};
use crate::tensor::Tensor;

/// An expression with its compiled forms, made once and run often.
///
/// ```
/// use netcl_core::device::manager;
/// use netcl_core::kernels::elementwise::Elementwise;
/// use netcl_core::kernels::expr::table;
/// use netcl_core::{dtype::DType, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let mul = Elementwise::new("mul", table::op("mul").unwrap().expr());
/// let column = Tensor::from_host(&queue, &[1.0f32, 2.0], [2, 1])?.expand([2, 3])?;
/// let row = Tensor::from_host(&queue, &[10.0f32, 20.0, 30.0], [3])?.expand([2, 3])?;
/// let out = Tensor::uninit(&queue, [2, 3], DType::F32)?;
/// mul.run(&[&column, &row], &[], &[&out])?;
/// assert_eq!(out.to_host::<f32>()?, [10.0, 20.0, 30.0, 20.0, 40.0, 60.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub struct Elementwise {
    label: Cow<'static, str>,
    expr: Expr,
    /// Whether OpenCL compilers may trade exactness for speed.
    relaxed: bool,
    in_f32: OnceLock<Arc<Program>>,
    in_f64: OnceLock<Arc<Program>>,
    /// Kernel texts written so far: a launch should not write one again.
    sources: opencl::Sources,
}

impl Elementwise {
    /// An expression under the name that launches and kernels will carry.
    pub fn new(label: impl Into<Cow<'static, str>>, expr: Expr) -> Arc<Self> {
        Self::make(label.into(), expr, false)
    }

    /// As [`Elementwise::new`], with kernels whose compiler may reorder, contract and approximate, and need not care for NaN and
    /// infinities (`-cl-fast-relaxed-math`). The native CPU computes as ever.
    pub fn relaxed(label: impl Into<Cow<'static, str>>, expr: Expr) -> Arc<Self> {
        Self::make(label.into(), expr, true)
    }

    fn make(label: Cow<'static, str>, expr: Expr, relaxed: bool) -> Arc<Self> {
        Arc::new(Elementwise {
            label,
            expr,
            relaxed,
            in_f32: OnceLock::new(),
            in_f64: OnceLock::new(),
            sources: opencl::Sources::default(),
        })
    }

    /// The expression.
    pub fn expr(&self) -> &Expr {
        &self.expr
    }

    /// The name.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Computes every element of the outputs. All tensors have one shape (expand the inputs first) and one device. An output
    /// may be an input (in place), or overlap one in any other way.
    pub fn run(&self, inputs: &[&Tensor], scalars: &[Number], outputs: &[&Tensor]) -> Result<()> {
        let first = self.check(inputs, scalars, outputs)?;
        if first.size() == 0 {
            return Ok(());
        }
        let op = Pointwise { name: &self.label, expr: &self.expr, scalars, relaxed: self.relaxed };
        let meaning = Meaning::Elementwise(op);
        if launch::offer(&Described { inputs, outputs, meaning })? {
            return Ok(());
        }
        if !inputs.iter().any(|input| clashes(input, outputs)) {
            return self.launch(inputs, scalars, outputs);
        }
        // One that overlaps an output other than element by element is moved out of the way.
        let apart = |input: &&Tensor| if clashes(input, outputs) { input.duplicate() } else { Ok((*input).clone()) };
        let moved: SmallVec<[Tensor; 4]> = inputs.iter().map(apart).collect::<Result<_>>()?;
        self.launch(&moved.iter().collect::<SmallVec<[&Tensor; 4]>>(), scalars, outputs)
    }

    fn launch(&self, inputs: &[&Tensor], scalars: &[Number], outputs: &[&Tensor]) -> Result<()> {
        let nest = Nest::new(inputs, outputs);
        let first = outputs[0];
        let bytes: usize = nest.operands.iter().map(|t| t.dtype().size() * touched(t)).sum();
        let (work, args) = match first.queue() {
            Queue::Cpu(_) => cpu::work(self, nest, scalars)?,
            Queue::OpenCl(stream) => opencl::work(self, stream, &nest, scalars)?,
        };
        launch::submit(Launch {
            name: self.label.clone(),
            queue: first.queue().clone(),
            work,
            args,
            cost: Cost { flops: (first.size() * self.expr.flops()) as f64, bytes: bytes as f64 },
        })
    }

    /// The OpenCL C of the kernel that would run on these tensors; for the native CPU, of one that could.
    pub fn source(&self, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<String> {
        opencl::text(self, &Nest::new(inputs, outputs))
    }

    fn check<'t>(&self, inputs: &[&Tensor], scalars: &[Number], outputs: &[&'t Tensor]) -> Result<&'t Tensor> {
        let op = "elementwise";
        let (given, expected) = (
            [inputs.len(), scalars.len(), outputs.len()],
            [self.expr.inputs(), self.expr.scalars(), self.expr.outputs().len()],
        );
        let Some(&first) = outputs.first().filter(|_| given == expected) else {
            let what = format!("{} takes (inputs, scalars, outputs) = {expected:?}, got {given:?}", self.label);
            return Err(Error::argument(op, what));
        };
        for (i, tensor) in inputs.iter().chain(outputs).enumerate() {
            first.queue().check_same_device(op, tensor.queue())?;
            if tensor.shape() != first.shape() {
                let why = format!("operand {i} of {} must be expanded to {} first", self.label, first.shape());
                return Err(Error::Shape { op, shape: tensor.shape().clone(), why });
            }
        }
        for (i, output) in outputs.iter().enumerate() {
            check_writable(op, output)?;
            if outputs[..i].iter().any(|other| other.shares_storage(output)) {
                return Err(Error::argument(op, format!("two outputs of {} share memory", self.label)));
            }
        }
        Ok(first)
    }

    pub(super) fn program(&self, compute: DType) -> Result<Arc<Program>> {
        let cell = if compute == DType::F64 { &self.in_f64 } else { &self.in_f32 };
        if let Some(program) = cell.get() {
            return Ok(program.clone());
        }
        let program = Arc::new(Program::compile(&self.expr, compute)?);
        Ok(cell.get_or_init(|| program).clone())
    }
}

/// Elements of a tensor that really lie in memory: an expanded axis is read once.
fn touched(tensor: &Tensor) -> usize {
    let strides = tensor.layout().strides();
    tensor.shape().iter().zip(strides).map(|(&n, &s)| if s == 0 { 1 } else { n }).product()
}

/// A collapsed loop nest over all operands, inputs first.
struct Nest<'t> {
    operands: SmallVec<[&'t Tensor; 6]>,
    inputs: usize,
    shape: crate::shape::Shape,
    strides: Strides,
    compute: DType,
}

impl Nest<'_> {
    fn inputs(&self) -> &[&Tensor] {
        &self.operands[..self.inputs]
    }

    fn outputs(&self) -> &[&Tensor] {
        &self.operands[self.inputs..]
    }

    fn buffer(&self, operand: usize) -> Arg {
        let access = if operand < self.inputs { Access::Read } else { Access::Write };
        Arg::Buffer(self.operands[operand].storage().clone(), access)
    }
}

/// Whether an input overlaps an output other than element by element.
fn clashes(input: &Tensor, outputs: &[&Tensor]) -> bool {
    outputs.iter().any(|o| o.shares_storage(input) && (o.layout(), o.dtype()) != (input.layout(), input.dtype()))
}

impl<'t> Nest<'t> {
    fn new(inputs: &[&'t Tensor], outputs: &[&'t Tensor]) -> Self {
        let operands: SmallVec<[&Tensor; 6]> = inputs.iter().chain(outputs).copied().collect();
        let compute = Program::compute_type(operands.iter().map(|t| t.dtype()));
        let layouts: SmallVec<[&Layout; 6]> = operands.iter().map(|t| t.layout()).collect();
        let (shape, strides) = Layout::collapse_in_memory_order(&layouts);
        Nest { operands, inputs: inputs.len(), shape, strides, compute }
    }
}

type Args = SmallVec<[Arg; 8]>;
type Prepared = (Work, Args);
