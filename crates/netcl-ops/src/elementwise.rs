//! The operations of the elementwise table as functions, with NumPy's broadcasting.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::{Elementwise, Number};
use netcl_core::kernels::expr::table::{self, OpDef};
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

/// An operand of an elementwise operation: a tensor, or a number that applies to every element.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'t> {
    /// A tensor, broadcast as needed.
    Tensor(&'t Tensor),
    /// A number; it becomes an argument of the kernel, so that a new value needs no new kernel.
    Number(f64),
}

impl<'t> From<&'t Tensor> for Operand<'t> {
    fn from(tensor: &'t Tensor) -> Self {
        Operand::Tensor(tensor)
    }
}

impl From<f64> for Operand<'_> {
    fn from(number: f64) -> Self {
        Operand::Number(number)
    }
}

/// Applies an operation of the table by name: the general form of the functions below.
///
/// Tensors must share one float dtype and one device and are broadcast together; numbers may stand in for tensors, but not for
/// all of them. `params` are the operation's parameters in the table's order; missing ones take their defaults. With `out` the
/// result is written there (its dtype may differ: the result is rounded to it), also when `out` is one of the operands.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::elementwise::apply;
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[-2.0f32, 4.0], [2])?;
/// let y = apply("leaky_relu", &[(&x).into()], &[0.5], None)?;
/// assert_eq!(y.to_host::<f32>()?, [-1.0, 4.0]);
/// apply("sub", &[1.0.into(), (&x).into()], &[], Some(&x))?; // 1 - x, in place
/// assert_eq!(x.to_host::<f32>()?, [3.0, -3.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn apply(name: &str, operands: &[Operand<'_>], params: &[f64], out: Option<&Tensor>) -> Result<Tensor> {
    let (index, op) = find(name)?;
    if operands.len() != op.arity() || params.len() > op.params.len() {
        let what = format!(
            "{name} takes {} operands and up to {} parameters, got {} and {}",
            op.arity(),
            op.params.len(),
            operands.len(),
            params.len()
        );
        return Err(Error::argument(op.name, what));
    }
    let tensors: SmallVec<[&Tensor; 3]> = operands.iter().filter_map(|o| o.tensor()).collect();
    let Some(first) = tensors.first() else {
        return Err(Error::argument(op.name, "at least one operand must be a tensor"));
    };
    let mut shape = first.shape().clone();
    for tensor in &tensors {
        tensor.check_float(op.name)?;
        first.queue().check_same_device(op.name, tensor.queue())?;
        if tensor.dtype() != first.dtype() {
            return Err(Error::DtypeMismatch { op: op.name, lhs: first.dtype(), rhs: tensor.dtype() });
        }
        if tensor.shape() != &shape {
            shape = shape.broadcast(op.name, tensor.shape())?;
        }
    }
    let out = output(op, &tensors, shape, out)?;
    let expanded: SmallVec<[Tensor; 3]> = tensors
        .iter()
        .map(|t| if t.shape() == out.shape() { Ok((*t).clone()) } else { t.expand(out.shape()) })
        .collect::<Result<_>>()?;
    // The expression's scalars: the operation's own parameters, then the numbers among the operands.
    let numbers = op.params.iter().enumerate().map(|(i, p)| params.get(i).copied().unwrap_or(p.default));
    let numbers = numbers.chain(operands.iter().filter_map(|o| o.number()));
    let numbers: SmallVec<[Number; 4]> = numbers.map(Number::Value).collect();
    let inputs: SmallVec<[&Tensor; 3]> = expanded.iter().collect();
    compiled(index, op, operands).run(&inputs, &numbers, &[&out])?;
    Ok(out)
}

impl<'t> Operand<'t> {
    fn tensor(&self) -> Option<&'t Tensor> {
        match self {
            Operand::Tensor(tensor) => Some(tensor),
            Operand::Number(_) => None,
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Operand::Tensor(_) => None,
            Operand::Number(number) => Some(*number),
        }
    }
}

fn find(name: &str) -> Result<(usize, &'static OpDef)> {
    let op = table::op(name).ok_or_else(|| {
        let names: Vec<_> = table::ops().iter().map(|op| op.name).collect();
        Error::argument("elementwise", format!("there is no operation {name:?}; there are {}", names.join(", ")))
    })?;
    let index = table::ops().iter().position(|other| other.name == op.name).unwrap_or_default();
    Ok((index, op))
}

/// The given output after checking it, or a new one.
fn output(op: &OpDef, operands: &[&Tensor], shape: Shape, out: Option<&Tensor>) -> Result<Tensor> {
    let first = operands[0];
    let Some(out) = out else { return Tensor::uninit_beside(operands, shape, first.dtype()) };
    out.check_float(op.name)?;
    first.queue().check_same_device(op.name, out.queue())?;
    if out.shape() != &shape {
        let why = format!("the result has shape {shape}, so out must have it too");
        return Err(Error::Shape { op: op.name, shape: out.shape().clone(), why });
    }
    Ok(out.clone())
}

/// The compiled expression of an operation with some operands turned into scalars; made once per process.
fn compiled(index: usize, op: &'static OpDef, operands: &[Operand<'_>]) -> Arc<Elementwise> {
    /// By the place in the table and the operands that are numbers.
    type Cache = RwLock<HashMap<(usize, u8), Arc<Elementwise>>>;
    static CACHE: LazyLock<Cache> = LazyLock::new(RwLock::default);
    let mask = operands.iter().enumerate().fold(0u8, |m, (i, o)| m | (u8::from(o.number().is_some()) << i));
    if let Some(found) = CACHE.read().unwrap_or_else(PoisonError::into_inner).get(&(index, mask)) {
        return found.clone();
    }
    let mut expr = op.expr();
    for (bound, i) in (0..operands.len()).filter(|i| mask >> i & 1 == 1).enumerate() {
        // Inputs before this one that became scalars have moved it down.
        expr = expr.input_as_scalar(i - bound);
    }
    let mut cache = CACHE.write().unwrap_or_else(PoisonError::into_inner);
    cache.entry((index, mask)).or_insert_with(|| Elementwise::new(op.name, expr)).clone()
}

/// The functions of the elementwise table: calls `$binary!` and `$unary!` with one line per function (documentation, name, the
/// table's name where it differs, parameters). Every layer that offers these functions makes its own from this list.
#[macro_export]
macro_rules! elementwise_functions {
    ($unary:ident $binary:ident) => {
        $binary! {
            /// `x + y`
            add;
            /// `x - y`
            sub;
            /// `x * y`
            mul;
            /// `x / y`
            div;
            /// The smaller operand; NaN if either is NaN.
            minimum;
            /// The larger operand; NaN if either is NaN.
            maximum;
            /// `x` to the power of `y`.
            pow;
            /// 1 where `x == y`, else 0.
            eq;
            /// 1 where `x != y`, else 0.
            ne;
            /// 1 where `x < y`, else 0.
            lt;
            /// 1 where `x <= y`, else 0.
            le;
            /// 1 where `x > y`, else 0.
            gt;
            /// 1 where `x >= y`, else 0.
            ge;
            /// What remains of `x` after whole multiples of `y`, with the sign of `x`.
            fmod;
            /// What remains of `x` after whole multiples of `y`, with the sign of `y`.
            remainder;
            /// The largest whole number not above `x / y`.
            floor_divide;
            /// `sqrt(x * x + y * y)` without overflow on the way.
            hypot;
            /// `x` with the sign of `y`.
            copysign;
            /// The larger operand; of a number and NaN, the number.
            fmax;
            /// The smaller operand; of a number and NaN, the number.
            fmin;
            /// 1 where neither `x` nor `y` is 0, else 0.
            logical_and;
            /// 1 where `x` or `y` is not 0, else 0.
            logical_or;
            /// 1 where one of `x` and `y` is 0 and the other not, else 0.
            logical_xor;
            /// 0 below 0, 1 above it, `y` at it.
            heaviside;
            /// `x * log(y)`, and 0 where `x` is.
            xlogy;
            /// `log(exp(x) + exp(y))`, stable.
            logaddexp;
            /// The angle of the point with ordinate `x` and abscissa `y`.
            atan2;
            /// `x` above 0, a multiple of it elsewhere: the learned `leaky_relu`.
            prelu;
        }

        $unary! {
            /// `-x`
            neg;
            /// `|x|`
            abs;
            /// `1 / x`
            reciprocal;
            /// `x * x`
            square;
            /// -1, 0 or 1; NaN stays NaN.
            sign;
            /// The largest whole number not above `x`.
            floor;
            /// The smallest whole number not below `x`.
            ceil;
            /// The nearest whole number; halves go to the even neighbour.
            round;
            /// e to the power of `x`.
            exp;
            /// `exp(x) - 1`, accurate near zero.
            expm1;
            /// Natural logarithm.
            log;
            /// `log(1 + x)`, accurate near zero.
            log1p;
            /// Square root.
            sqrt;
            /// One over the square root.
            rsqrt;
            /// Sine of an angle in radians.
            sin;
            /// Cosine.
            cos;
            /// Tangent.
            tan;
            /// Hyperbolic tangent.
            tanh;
            /// The error function.
            erf;
            /// The whole number next to `x` towards zero.
            trunc;
            /// What `x` has beyond the whole number next to it towards zero.
            frac;
            /// 1 where `x` is NaN, else 0.
            isnan;
            /// 1 where `x` is infinite, else 0.
            isinf;
            /// 1 where `x` is neither infinite nor NaN, else 0.
            isfinite;
            /// 1 where `x` is 0, else 0.
            logical_not;
            /// 2 to the power of `x`.
            exp2;
            /// Logarithm to base 2.
            log2;
            /// Logarithm to base 10.
            log10;
            /// Hyperbolic sine.
            sinh;
            /// Hyperbolic cosine.
            cosh;
            /// The angle whose sine is `x`.
            asin;
            /// The angle whose cosine is `x`.
            acos;
            /// The angle whose tangent is `x`.
            atan;
            /// The number whose hyperbolic sine is `x`.
            asinh;
            /// The number whose hyperbolic cosine is `x`.
            acosh;
            /// The number whose hyperbolic tangent is `x`.
            atanh;
            /// `1 - erf(x)`, accurate where that is small.
            erfc;
            /// `x` with numbers in place of NaN and the infinities.
            nan_to_num, nan, posinf, neginf;
            /// `1 / (1 + exp(-x))`
            sigmoid;
            /// `log(sigmoid(x))`, stable.
            logsigmoid;
            /// `max(x, 0)`
            relu;
            /// `min(max(x, 0), 6)`
            relu6;
            /// `x` above 0, a multiple of it below.
            leaky_relu, negative_slope;
            /// `x` above 0, `alpha * (exp(x) - 1)` below.
            elu, alpha;
            /// `x` above 0, `alpha * (exp(x / alpha) - 1)` below.
            celu, alpha;
            /// elu with the two constants that keep mean 0 and variance 1.
            selu;
            /// `x * normcdf(x)`, exactly.
            gelu;
            /// `x * normcdf(x)` in its tanh approximation.
            gelu_tanh;
            /// `x * sigmoid(x)`
            silu;
            /// Another name of `silu`.
            swish = "silu";
            /// `log(1 + exp(beta * x)) / beta`; linear where `beta * x` exceeds the threshold.
            softplus, beta, threshold;
            /// `x * tanh(softplus(x))`
            mish;
            /// `x / (1 + |x|)`
            softsign;
            /// `x` between two bounds, constant outside.
            hardtanh, min_val, max_val;
            /// 0 below -3, 1 above 3, a line between.
            hardsigmoid;
            /// `x * hardsigmoid(x)`
            hardswish;
            /// `x`, and 0 where `|x|` is at most `lambd`.
            hardshrink, lambd;
            /// `x` moved towards 0 by `lambd`, and 0 where `|x|` is at most `lambd`.
            softshrink, lambd;
            /// `x - tanh(x)`, accurate near zero.
            tanhshrink;
            /// `x` above the threshold, `value` elsewhere.
            threshold, threshold, value;
        }
    };
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident $(= $table:literal)? $(, $param:ident)*;)*) => {$(
        $(#[$doc])*
        pub fn $name(x: &Tensor $(, $param: f64)*) -> Result<Tensor> {
            #[allow(unused_variables, reason = "one of the two names is used")]
            let name = stringify!($name);
            $(let name = $table;)?
            apply(name, &[x.into()], &[$($param),*], None)
        }
    )*};
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name<'t>(x: impl Into<Operand<'t>>, y: impl Into<Operand<'t>>) -> Result<Tensor> {
            apply(stringify!($name), &[x.into(), y.into()], &[], None)
        }
    )*};
}

crate::elementwise_functions!(unary binary);

/// `x` held between two bounds; `None` is no bound. Where the bounds cross, the upper one wins.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::clamp;
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[-2.0f32, 4.0], [2])?;
/// assert_eq!(clamp(&x, 0.0, None)?.to_host::<f32>()?, [0.0, 4.0]);
/// assert_eq!(clamp(&x, -1.0, 1.0)?.to_host::<f32>()?, [-1.0, 1.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
///
/// # Errors
/// If both bounds are `None`.
pub fn clamp(x: &Tensor, min: impl Into<Option<f64>>, max: impl Into<Option<f64>>) -> Result<Tensor> {
    apply("clamp", &[x.into()], &bounds(min.into(), max.into())?, None)
}

/// The parameters of `clamp`; it is an error to give neither bound.
pub fn bounds(min: Option<f64>, max: Option<f64>) -> Result<[f64; 2]> {
    match (min, max) {
        (None, None) => Err(Error::argument("clamp", "neither bound is given; give min, max or both")),
        _ => Ok([min.unwrap_or(f64::NEG_INFINITY), max.unwrap_or(f64::INFINITY)]),
    }
}

/// `x * y + z`, rounded once.
pub fn fma<'t>(x: impl Into<Operand<'t>>, y: impl Into<Operand<'t>>, z: impl Into<Operand<'t>>) -> Result<Tensor> {
    apply("fma", &[x.into(), y.into(), z.into()], &[], None)
}

/// `x` where the condition is not 0, else `y`. The condition may be of any dtype.
pub fn where_<'t>(condition: &Tensor, x: impl Into<Operand<'t>>, y: impl Into<Operand<'t>>) -> Result<Tensor> {
    let (x, y) = (x.into(), y.into());
    let dtype = [&x, &y].into_iter().find_map(|o| o.tensor()).map_or(DType::F32, Tensor::dtype);
    let condition = condition.cast(dtype)?;
    apply("where", &[(&condition).into(), x, y], &[], None)
}

/// The values in another dtype; the tensor itself if it has that dtype already.
pub fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    x.cast(dtype)
}
