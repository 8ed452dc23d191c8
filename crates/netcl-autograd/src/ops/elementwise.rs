//! Elementwise operations. Their gradient is the symbolic derivative of the same expression, itself an operation of this kind, so
//! that any derivative can be differentiated again.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock, PoisonError, RwLock};

use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::{Elementwise, Number};
use netcl_core::kernels::expr::derivative::vjp;
use netcl_core::kernels::expr::{Expr, Graph, Node as ExprNode, Val, table};
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor as Raw;
use smallvec::SmallVec;

use netcl_ops::integer::IntegerOp;

use super::layout::sum_to;
use super::whole;
use crate::autocast;
use crate::error::Result;
use crate::graph::{Rule, Save, record};
use crate::tensor::Tensor;
use crate::trace;

/// An expression as a recordable operation.
pub struct ExprOp {
    name: &'static str,
    forward: Arc<Elementwise>,
    /// False for comparisons: which case holds is a fact, not a function that could have a slope.
    differentiable: bool,
    /// Whether the results are truth values.
    truth: bool,
    /// Whether the derivative of the result is that of the input, bit by bit, so that the input need not be kept.
    from_output: bool,
    /// Made when first needed; one per input.
    gradients: Vec<OnceLock<Option<Gradient>>>,
}

/// The derivative with respect to one input, reduced to the operands it really depends on.
struct Gradient {
    /// `None` where the upstream gradient passes unchanged.
    op: Option<Arc<ExprOp>>,
    /// Which of (inputs..., upstream) it takes, in order.
    operands: SmallVec<[usize; 4]>,
}

/// Activations whose slope can be read off their result, which an operation before them then need not write: relu(x) > 0 iff x > 0, and
/// relu6(x) lies between its bounds iff x does.
static TOLD_BY_OUTPUT: LazyLock<Vec<Expr>> =
    LazyLock::new(|| ["relu", "relu6"].into_iter().filter_map(table::op).map(|op| op.expr()).collect());

impl ExprOp {
    /// An expression with one output under a name.
    pub fn new(name: &'static str, expr: Expr) -> Arc<Self> {
        Self::make(name, expr, false)
    }

    fn make(name: &'static str, expr: Expr, truth: bool) -> Arc<Self> {
        let gradients = (0..expr.inputs()).map(|_| OnceLock::new()).collect();
        let from_output = TOLD_BY_OUTPUT.contains(&expr);
        Arc::new(ExprOp {
            name,
            differentiable: !expr.is_predicate(),
            truth,
            forward: Elementwise::new(name, expr),
            from_output,
            gradients,
        })
    }

    fn expr(&self) -> &Expr {
        self.forward.expr()
    }

    /// The derivative with respect to an input; `None` where it is zero everywhere.
    fn gradient(&self, input: usize) -> Option<&Gradient> {
        let made = self.gradients[input].get_or_init(|| {
            let full = vjp(self.expr(), &[input]);
            if let ExprNode::Const(literal) = full.nodes()[full.outputs()[0].index()]
                && literal.value() == 0.0
            {
                return None;
            }
            let used: SmallVec<[usize; 4]> = (0..full.inputs())
                .filter(|&i| full.nodes().iter().any(|node| matches!(node, ExprNode::Input(at) if *at as usize == i)))
                .collect();
            let g = Graph::new();
            let inputs: Vec<Val<'_>> = (0..full.inputs())
                .map(|i| used.iter().position(|&u| u == i).map_or_else(|| g.constant(0.0), |at| g.input(at)))
                .collect();
            let scalars: Vec<Val<'_>> = (0..full.scalars()).map(|i| g.scalar(i)).collect();
            let outputs = g.inline(&full, &inputs, &scalars);
            let expr = g.finish_with(&outputs, used.len(), full.scalars());
            let passes = matches!(expr.nodes()[expr.outputs()[0].index()], ExprNode::Input(_));
            let op = (!passes).then(|| ExprOp::new(backward_name(self.name), expr));
            Some(Gradient { op, operands: used })
        });
        made.as_ref()
    }

    /// The inputs that some wanted derivative depends on.
    fn saved(&self, wanted: impl Fn(usize) -> bool) -> u32 {
        let n = self.expr().inputs();
        (0..n)
            .filter(|&i| wanted(i))
            .filter_map(|i| self.gradient(i))
            .flat_map(|gradient| gradient.operands.iter().copied())
            .filter(|&operand| operand < n)
            .fold(0, |mask, operand| mask | 1 << operand)
    }

    /// Applies the operation to tensors of one dtype, broadcast together.
    #[track_caller]
    pub fn apply(self: &Arc<Self>, inputs: &[&Tensor], numbers: &[Number]) -> Result<Tensor> {
        let output = self.forward(inputs, numbers)?;
        trace::settings(self.name, || [("expr", self.expr().into()), ("scalars", numbers.into())]);
        if !self.differentiable {
            trace::note(self.name, inputs.iter().map(|input| input.raw()), &[&output]);
            return Ok(output.into());
        }
        let save = match self.from_output {
            true => Save::OUTPUT,
            false => Save { inputs: self.saved(|i| inputs[i].needs_grad()), output: false },
        };
        record(self.name, inputs, output, save, || {
            let shapes = inputs.iter().map(|t| t.shape().clone()).collect();
            self.clone().rule(shapes, numbers.into())
        })
    }

    fn forward(&self, inputs: &[&Tensor], numbers: &[Number]) -> Result<Raw> {
        let Some(first) = inputs.first() else {
            return Err(netcl_core::Error::argument(self.name, "at least one operand must be a tensor").into());
        };
        let mut shape = first.shape().clone();
        for tensor in inputs {
            tensor.check_float(self.name)?;
            first.queue().check_same_device(self.name, tensor.queue())?;
            if tensor.dtype() != first.dtype() {
                let (lhs, rhs) = (first.dtype(), tensor.dtype());
                return Err(netcl_core::Error::DtypeMismatch { op: self.name, lhs, rhs }.into());
            }
            if tensor.shape() != &shape {
                shape = shape.broadcast(self.name, tensor.shape())?;
            }
        }
        let dtype = if self.truth { DType::U8 } else { first.dtype() };
        if inputs.iter().all(|tensor| tensor.shape() == &shape) {
            return self.forward_alike(
                &inputs.iter().map(|t| t.raw()).collect::<SmallVec<[&Raw; 3]>>(),
                numbers,
                dtype,
            );
        }
        let expanded: SmallVec<[Raw; 3]> =
            inputs.iter().map(|t| t.raw().expand(&shape)).collect::<netcl_core::Result<_>>()?;
        self.forward_alike(&expanded.iter().collect::<SmallVec<[&Raw; 3]>>(), numbers, dtype)
    }

    /// [`ExprOp::forward`] of inputs of one shape.
    fn forward_alike(&self, expanded: &[&Raw], numbers: &[Number], dtype: DType) -> Result<Raw> {
        let shape = expanded[0].shape().clone();
        let out = Raw::uninit_beside(expanded, shape, dtype)?;
        self.forward.run(expanded, numbers, &[&out])?;
        Ok(out)
    }

    fn rule(self: Arc<Self>, shapes: SmallVec<[Shape; 3]>, numbers: Box<[Number]>) -> Rule {
        Box::new(move |context, upstream| {
            let n = self.expr().inputs();
            (0..n)
                .map(|i| {
                    let Some(gradient) = self.gradient(i).filter(|_| context.wants(i)) else {
                        // Zero everywhere (sign, floor, comparisons): the gradient is zero, not missing.
                        return match context.wants(i) {
                            true => zeros(upstream, &shapes[i]).map(Some),
                            false => Ok(None),
                        };
                    };
                    let operands: SmallVec<[Tensor; 4]> = gradient
                        .operands
                        .iter()
                        .map(|&at| match at {
                            at if at == n => Ok(upstream.clone()),
                            // A constant: the derivative depends on which case holds, which has no slope.
                            _ if self.from_output => Ok(context.output()?.detach()),
                            at => context.input(at),
                        })
                        .collect::<Result<_>>()?;
                    let full = match &gradient.op {
                        Some(op) => op.apply(&operands.iter().collect::<SmallVec<[&Tensor; 4]>>(), &numbers)?,
                        None => operands[0].clone(),
                    };
                    sum_to(&full, &shapes[i]).map(Some)
                })
                .collect()
        })
    }
}

fn zeros(like: &Tensor, shape: &Shape) -> Result<Tensor> {
    Tensor::from_shape(like.queue(), shape.clone(), like.dtype())
}

/// `add` -> `add_backward`, interned: names live as long as the process, and there are few.
fn backward_name(name: &'static str) -> &'static str {
    static NAMES: LazyLock<RwLock<HashMap<&'static str, &'static str>>> = LazyLock::new(RwLock::default);
    if let Some(found) = NAMES.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return found;
    }
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    names.entry(name).or_insert_with(|| Box::leak(format!("{name}_backward").into_boxed_str()))
}

/// An operand of an elementwise operation: a tensor, or a number that applies to every element.
#[derive(Clone, Copy)]
pub enum Operand<'t> {
    /// A tensor, broadcast as needed.
    Tensor(&'t Tensor),
    /// A number.
    Number(f64),
    /// A whole number: beside tensors of whole numbers the result is one as well.
    Whole(i64),
}

impl<'t> Operand<'t> {
    pub(crate) fn tensor(&self) -> Option<&'t Tensor> {
        match *self {
            Operand::Tensor(tensor) => Some(tensor),
            Operand::Number(_) | Operand::Whole(_) => None,
        }
    }
}

impl<'t> From<&'t Tensor> for Operand<'t> {
    fn from(tensor: &'t Tensor) -> Self {
        Operand::Tensor(tensor)
    }
}

impl From<i64> for Operand<'_> {
    fn from(number: i64) -> Self {
        Operand::Whole(number)
    }
}

impl From<f64> for Operand<'_> {
    fn from(number: f64) -> Self {
        Operand::Number(number)
    }
}

/// Applies an operation of the elementwise table by name; parameters not given take their defaults.
#[track_caller]
pub fn apply(name: &str, operands: &[Operand<'_>], params: &[f64]) -> Result<Tensor> {
    match entry(name) {
        Ok(entry) => entry.apply(operands, params),
        // What only whole numbers have.
        Err(_) if IntegerOp::of_name(name).is_some() && whole::concerned(operands) => {
            whole::elementwise(name, operands, params)
        }
        Err(error) => Err(error),
    }
}

/// [`unrecorded`](crate::graph::unrecorded) of an operation of the table: nothing is lost where the derivative is zero everywhere,
/// as in comparisons, rounding and the condition of `where`.
pub fn unrecorded(name: &str, operands: &[Operand<'_>]) -> Result<Option<&'static str>> {
    // Most calls lose nothing and need not know which operation it is.
    let suspect = |operand: &Operand<'_>| match *operand {
        Operand::Tensor(tensor) => crate::graph::unrecorded("", [tensor]).is_some(),
        Operand::Number(_) | Operand::Whole(_) => false,
    };
    if !operands.iter().any(suspect) {
        return Ok(None);
    }
    let entry = entry(name)?;
    let mut mask = 0;
    let mut tensors: SmallVec<[&Tensor; 3]> = SmallVec::new();
    for (i, operand) in operands.iter().enumerate().take(entry.op.arity()) {
        match *operand {
            Operand::Tensor(tensor) => tensors.push(tensor),
            Operand::Number(_) | Operand::Whole(_) => mask |= 1 << i,
        }
    }
    Ok(tensors.iter().enumerate().find_map(|(i, tensor)| {
        let lost = crate::graph::unrecorded(entry.op.name, [*tensor])?;
        let form = entry.form(mask);
        (form.differentiable && form.gradient(i).is_some()).then_some(lost)
    }))
}

/// An operation of the table in its recordable forms.
struct Entry {
    op: &'static table::OpDef,
    /// One form for every choice of operands that are numbers, as a bit mask; made when first used.
    forms: [OnceLock<Arc<ExprOp>>; 8],
}

/// The entry of a name; there is one per operation and process.
fn entry(name: &str) -> Result<&'static Entry> {
    static ENTRIES: LazyLock<HashMap<&'static str, Entry>> = LazyLock::new(|| {
        let all = table::ops().iter();
        all.map(|op| (op.name, Entry { op, forms: std::array::from_fn(|_| OnceLock::new()) })).collect()
    });
    ENTRIES
        .get(name)
        .ok_or_else(|| netcl_core::Error::argument("elementwise", format!("there is no operation {name:?}")).into())
}

impl Entry {
    #[track_caller]
    fn apply(&self, operands: &[Operand<'_>], params: &[f64]) -> Result<Tensor> {
        let op = self.op;
        if operands.len() != op.arity() {
            let what = format!("it takes {} operands, got {}", op.arity(), operands.len());
            return Err(netcl_core::Error::argument(op.name, what).into());
        }
        if whole::concerned(operands) {
            return whole::elementwise(op.name, operands, params);
        }
        if let Some(casts) = autocast::enter(op.name, operands.iter().filter_map(Operand::tensor)) {
            let cast = |operand: &Operand<'_>| operand.tensor().map(|tensor| casts.of(tensor)).transpose();
            let tensors: SmallVec<[Option<Tensor>; 3]> = operands.iter().map(cast).collect::<Result<_>>()?;
            let operands: SmallVec<[Operand<'_>; 3]> = operands
                .iter()
                .zip(&tensors)
                .map(|(operand, tensor)| tensor.as_ref().map_or(*operand, Operand::Tensor))
                .collect();
            return self.apply(&operands, params);
        }
        if let Some(dtype) = common_dtype(operands) {
            let cast = |operand: &Operand<'_>| operand.tensor().map(|tensor| cast(tensor, dtype)).transpose();
            let tensors: SmallVec<[Option<Tensor>; 3]> = operands.iter().map(cast).collect::<Result<_>>()?;
            let operands: SmallVec<[Operand<'_>; 3]> = operands
                .iter()
                .zip(&tensors)
                .map(|(operand, tensor)| tensor.as_ref().map_or(*operand, Operand::Tensor))
                .collect();
            return self.apply(&operands, params);
        }
        let mut mask = 0;
        let mut tensors: SmallVec<[&Tensor; 3]> = SmallVec::new();
        let own = op.params.iter().enumerate().map(|(i, p)| params.get(i).copied().unwrap_or(p.default));
        let mut numbers: SmallVec<[Number; 4]> = own.map(Number::Value).collect();
        for (i, operand) in operands.iter().enumerate() {
            match *operand {
                Operand::Tensor(tensor) => tensors.push(tensor),
                Operand::Number(number) => {
                    mask |= 1 << i;
                    numbers.push(Number::Value(number));
                }
                Operand::Whole(number) => {
                    mask |= 1 << i;
                    numbers.push(Number::Value(number as f64));
                }
            }
        }
        self.form(mask).apply(&tensors, &numbers)
    }

    /// The operation with some operands turned into scalars.
    fn form(&self, mask: usize) -> &Arc<ExprOp> {
        self.forms[mask].get_or_init(|| {
            let mut expr = self.op.expr();
            for (bound, i) in (0..self.op.arity()).filter(|i| mask >> i & 1 == 1).enumerate() {
                // Inputs before this one that became scalars have moved it down.
                expr = expr.input_as_scalar(i - bound);
            }
            let truth = expr.is_predicate();
            ExprOp::make(self.op.name, expr, truth)
        })
    }
}

/// The dtype of a result whose float operands have different ones, as in PyTorch: tensors with axes decide before those without,
/// and the wider dtype wins; the two 16-bit types meet in float32. None where all are alike.
fn common_dtype(operands: &[Operand<'_>]) -> Option<DType> {
    let tensors = || operands.iter().filter_map(Operand::tensor);
    let first = tensors().next()?.dtype();
    if tensors().all(|tensor| tensor.dtype() == first) {
        return None;
    }
    let wider = |a: DType, b: DType| match (a, b) {
        (a, b) if a == b => a,
        (DType::F64, _) | (_, DType::F64) => DType::F64,
        _ => DType::F32,
    };
    let among = |axes: bool| tensors().filter(|t| (t.ndim() > 0) == axes).map(|t| t.dtype()).reduce(wider);
    among(true).or_else(|| among(false))
}

/// The entry of a name, looked up once per place.
macro_rules! known {
    ($name:expr) => {{
        static ENTRY: OnceLock<&'static Entry> = OnceLock::new();
        match ENTRY.get() {
            Some(entry) => *entry,
            None => *ENTRY.get_or_init({
                let found = entry($name)?;
                move || found
            }),
        }
    }};
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident $(= $table:literal)? $(, $param:ident)*;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(x: &Tensor $(, $param: f64)*) -> Result<Tensor> {
            #[allow(unused_variables, reason = "one of the two names is used")]
            let name = stringify!($name);
            $(let name = $table;)?
            known!(name).apply(&[x.into()], &[$($param),*])
        }
    )*};
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'t>(x: impl Into<Operand<'t>>, y: impl Into<Operand<'t>>) -> Result<Tensor> {
            known!(stringify!($name)).apply(&[x.into(), y.into()], &[])
        }
    )*};
}

netcl_ops::elementwise_functions!(unary binary);

/// `x` held between two bounds; `None` is no bound. Where the bounds cross, the upper one wins.
///
/// # Errors
/// If both bounds are `None`.
#[track_caller]
pub fn clamp(x: &Tensor, min: impl Into<Option<f64>>, max: impl Into<Option<f64>>) -> Result<Tensor> {
    known!("clamp").apply(&[x.into()], &netcl_ops::elementwise::bounds(min.into(), max.into())?)
}

/// `x * y + z`, rounded once.
#[track_caller]
pub fn fma<'t>(x: impl Into<Operand<'t>>, y: impl Into<Operand<'t>>, z: impl Into<Operand<'t>>) -> Result<Tensor> {
    known!("fma").apply(&[x.into(), y.into(), z.into()], &[])
}

/// `x` where the condition is not 0, else `y`. No gradient flows to the condition.
#[track_caller]
pub fn where_<'t>(condition: &Tensor, x: impl Into<Operand<'t>>, y: impl Into<Operand<'t>>) -> Result<Tensor> {
    let (x, y) = (x.into(), y.into());
    let float = |operand: &Operand<'_>| match operand {
        Operand::Tensor(tensor) => tensor.dtype().is_float(),
        Operand::Number(_) => true,
        Operand::Whole(_) => false,
    };
    if !float(&x) && !float(&y) {
        return whole::elementwise("where", &[condition.into(), x, y], &[]);
    }
    // The condition has no say: the operands agree on a dtype first.
    let floats: SmallVec<[Operand<'_>; 2]> =
        [x, y].into_iter().filter(|operand| operand.tensor().is_some_and(|tensor| tensor.dtype().is_float())).collect();
    let first = floats.first().and_then(Operand::tensor).map(|tensor| tensor.dtype());
    let dtype = common_dtype(&floats).or(first).unwrap_or(DType::F32);
    let fitted = |operand: Operand<'t>| match operand.tensor() {
        Some(tensor) if tensor.dtype().is_float() => cast(tensor, dtype).map(Some),
        _ => Ok(None),
    };
    let (own_x, own_y) = (fitted(x)?, fitted(y)?);
    let (x, y) = (own_x.as_ref().map_or(x, Operand::Tensor), own_y.as_ref().map_or(y, Operand::Tensor));
    let condition: Tensor = trace::cast(condition.raw(), dtype)?.into();
    known!("where").apply(&[(&condition).into(), x, y], &[])
}

/// A comparison by its name as numbers: 1 where it holds, else 0, in the first operand's dtype.
#[track_caller]
pub fn indicator<'t>(name: &str, x: &Tensor, y: impl Into<Operand<'t>>) -> Result<Tensor> {
    cast(&apply(name, &[x.into(), y.into()], &[])?, x.dtype())
}

/// The values in another dtype; the gradient comes back in the tensor's own.
#[track_caller]
pub fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype {
        return Ok(x.clone());
    }
    if !(x.dtype().is_float() && dtype.is_float()) {
        return whole::cast(x, dtype);
    }
    record_cast(x, x.raw().cast(dtype)?)
}

/// A tensor whose values in another dtype are there already.
#[track_caller]
pub(crate) fn record_cast(x: &Tensor, output: Raw) -> Result<Tensor> {
    let from = x.dtype();
    record("cast", &[x], output, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec::smallvec![Some(cast(upstream, from)?)]))
    })
}
