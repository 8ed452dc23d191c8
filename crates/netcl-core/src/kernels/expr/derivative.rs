//! Symbolic derivatives, in the IR they differentiate: apply them twice and second derivatives come out.
//!
//! At kinks the conventions are PyTorch's: relu'(0) = 0 and |0|' = 0, tied minima and maxima share the gradient equally,
//! clamp passes it at its bounds, rounding, sign and comparisons have none. A branch that was not taken is cut off with
//! `select`, never multiplied by zero, so that its infinities do not turn into NaN.

use std::f64::consts::{LN_2, LN_10};

use super::{BinaryOp, Expr, Graph, Id, Node, TernaryOp, UnaryOp, Val};

const TWO_OVER_SQRT_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI;
const ONE_OVER_SQRT_TWO_PI: f64 = 0.398_942_280_401_432_7;

/// The vector-Jacobian product: an expression that gives, for each input named in `wrt`, the sum over the outputs of
/// `upstream * d output / d input`.
///
/// Its inputs are the expression's own, followed by one upstream gradient per output; its scalars are unchanged; its
/// outputs follow the order of `wrt`. Subexpressions are shared among the outputs and with the forward values.
///
/// ```
/// use netcl_core::kernels::expr::{derivative, Graph};
///
/// let g = Graph::new();
/// let product = g.finish(&[g.input(0) * g.input(1)]);
/// let backward = derivative::vjp(&product, &[0, 1]);
/// assert_eq!(backward.to_string(), "(x1 * x2), (x0 * x2)");
/// ```
pub fn vjp(expr: &Expr, wrt: &[usize]) -> Expr {
    let g = Graph::new();
    let nodes = g.inline_all(expr, &[], &[]);
    let outputs: Vec<(Val<'_>, Val<'_>)> =
        expr.outputs().iter().enumerate().map(|(i, id)| (nodes[id.index()], g.input(expr.inputs() + i))).collect();
    let wrt: Vec<Val<'_>> = wrt.iter().map(|&i| g.input(i)).collect();
    let gradients = gradient(&g, &outputs, &wrt);
    g.finish_with(&gradients, expr.inputs() + expr.outputs().len(), expr.scalars())
}

/// The derivative of one output with respect to one input, as an expression of the same inputs and scalars. An output
/// the expression does not have has the derivative zero.
///
/// ```
/// use netcl_core::kernels::expr::{derivative, Graph};
///
/// let g = Graph::new();
/// let sine = g.finish(&[g.input(0).sin()]);
/// let second = derivative::derivative(&derivative::derivative(&sine, 0, 0), 0, 0);
/// assert_eq!(second.to_string(), "neg(sin(x0))");
/// ```
pub fn derivative(expr: &Expr, output: usize, input: usize) -> Expr {
    let g = Graph::new();
    let nodes = g.inline_all(expr, &[], &[]);
    let outputs: Vec<_> =
        expr.outputs().get(output).map(|id| (nodes[id.index()], g.constant(1.0))).into_iter().collect();
    let gradients = gradient(&g, &outputs, &[g.input(input)]);
    g.finish_with(&gradients, expr.inputs(), expr.scalars())
}

/// The gradients of `sum(upstream * output)` with respect to some values of a graph, which may be inputs, scalars or
/// anything in between. Values that the outputs do not depend on get the constant 0.
///
/// Tangents are carried forwards, once per wanted value, and meet the upstream gradient last. Carried backwards, a zero
/// from a branch not taken would meet that branch's infinities, and 0 * inf is NaN; forwards, `select` drops them. With
/// the few inputs of elementwise operations, and shared subexpressions, it costs nothing.
pub fn gradient<'g>(g: &'g Graph, outputs: &[(Val<'g>, Val<'g>)], wrt: &[Val<'g>]) -> Vec<Val<'g>> {
    let count = g.len();
    wrt.iter()
        .map(|value| {
            let mut tangents: Vec<Option<Val<'g>>> = vec![None; count];
            tangents[value.id().index()] = Some(g.constant(1.0));
            for index in value.id().index() + 1..count {
                tangents[index] = tangent(g, Id(index as u32), &tangents);
            }
            outputs
                .iter()
                .filter_map(|(output, upstream)| Some(times(tangents[output.id().index()]?, *upstream)))
                .reduce(|sum, part| sum + part)
                .unwrap_or_else(|| g.constant(0.0))
        })
        .collect()
}

/// `slope * upstream`, with the product moved into a choice that has a constant branch: the mask of a relu stays a mask,
/// and an infinite upstream gradient does not turn its zeros into NaN.
fn times<'g>(slope: Val<'g>, upstream: Val<'g>) -> Val<'g> {
    let g = slope.graph();
    match (slope.literal(), g.node(slope.id())) {
        (Some(0.0), _) => slope,
        (None, Node::Ternary(TernaryOp::Select, condition, a, b))
            if g.val(a).literal().is_some() || g.val(b).literal().is_some() =>
        {
            g.select(g.val(condition), times(g.val(a), upstream), times(g.val(b), upstream))
        }
        _ => slope * upstream,
    }
}

/// The derivative of a node from those of its operands; `None` where it is zero everywhere.
fn tangent<'g>(g: &'g Graph, id: Id, tangents: &[Option<Val<'g>>]) -> Option<Val<'g>> {
    let result = g.val(id);
    let of = |operand: Id| tangents[operand.index()];
    let sum = |a: Option<Val<'g>>, b: Option<Val<'g>>| match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    };
    match g.node(id) {
        Node::Input(_) | Node::Scalar(_) | Node::Const(_) => None,
        Node::Unary(op, x) => unary(op, g.val(x), result, of(x)?),
        Node::Binary(op, a, b) => {
            let part = |first: bool, t: Val<'g>| binary(op, g.val(a), g.val(b), result, first, t);
            sum(of(a).and_then(|t| part(true, t)), of(b).and_then(|t| part(false, t)))
        }
        Node::Ternary(TernaryOp::Fma, a, b, c) => {
            let product = sum(of(a).map(|t| t * g.val(b)), of(b).map(|t| t * g.val(a)));
            sum(product, of(c))
        }
        Node::Ternary(TernaryOp::Select, condition, a, b) => {
            let (a, b) = (of(a), of(b));
            a.or(b)?;
            let zero = g.constant(0.0);
            Some(g.select(g.val(condition), a.unwrap_or(zero), b.unwrap_or(zero)))
        }
    }
}

/// The tangent `t` of an operand, carried through an operation of one operand.
fn unary<'g>(op: UnaryOp, x: Val<'g>, result: Val<'g>, t: Val<'g>) -> Option<Val<'g>> {
    Some(match op {
        UnaryOp::Neg => -t,
        UnaryOp::Abs => t * x.sign(),
        UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc => return None,
        // As that of a cast.
        UnaryOp::ToF16 | UnaryOp::ToBf16 => t,
        UnaryOp::Sqrt => t * (0.5 / result),
        UnaryOp::Rsqrt => t * (-0.5 * (result * result * result)),
        UnaryOp::Exp => t * result,
        // exp(x) rather than expm1(x) + 1, which loses every digit for very negative x.
        UnaryOp::Expm1 => t * x.exp(),
        UnaryOp::Log => t / x,
        UnaryOp::Log1p => t / (x + 1.0),
        UnaryOp::Sin => t * x.cos(),
        UnaryOp::Cos => t * -x.sin(),
        UnaryOp::Tan => t * (result * result + 1.0),
        UnaryOp::Tanh => t * (1.0 - result * result),
        UnaryOp::Sigmoid => t * (result * (1.0 - result)),
        UnaryOp::Erf => t * ((-(x * x)).exp() * TWO_OVER_SQRT_PI),
        UnaryOp::Erfc => t * ((-(x * x)).exp() * -TWO_OVER_SQRT_PI),
        UnaryOp::Exp2 => t * (result * LN_2),
        UnaryOp::Log2 => t / (x * LN_2),
        UnaryOp::Log10 => t / (x * LN_10),
        UnaryOp::Sinh => t * x.cosh(),
        UnaryOp::Cosh => t * x.sinh(),
        // (1 - x) * (1 + x) keeps the digits that 1 - x * x loses near 1.
        UnaryOp::Asin => t * ((1.0 - x) * (x + 1.0)).rsqrt(),
        UnaryOp::Acos => t * -((1.0 - x) * (x + 1.0)).rsqrt(),
        UnaryOp::Atan => t / (x * x + 1.0),
        UnaryOp::Asinh => t * (x * x + 1.0).rsqrt(),
        UnaryOp::Acosh => t * ((x - 1.0) * (x + 1.0)).rsqrt(),
        UnaryOp::Atanh => t / ((1.0 - x) * (x + 1.0)),
        UnaryOp::NormCdf => t * ((x * x * -0.5).exp() * ONE_OVER_SQRT_TWO_PI),
    })
}

/// The tangent `t` of the first or second operand, carried through an operation of two.
fn binary<'g>(op: BinaryOp, a: Val<'g>, b: Val<'g>, result: Val<'g>, first: bool, t: Val<'g>) -> Option<Val<'g>> {
    Some(match op {
        BinaryOp::Add => t,
        BinaryOp::Sub => {
            if first {
                t
            } else {
                -t
            }
        }
        BinaryOp::Mul => t * if first { b } else { a },
        BinaryOp::Div => {
            if first {
                t / b
            } else {
                -(t * result / b)
            }
        }
        BinaryOp::Min | BinaryOp::Max => {
            let (own, other) = if first { (a, b) } else { (b, a) };
            let wins = if op == BinaryOp::Max { own.gt(other) } else { own.lt(other) };
            wins.select(t, own.eq(other).select(t * 0.5, 0.0))
        }
        BinaryOp::Pow => {
            if first {
                // b * a^(b - 1), which is 0 for b = 0 even where a^-1 is infinite.
                b.eq(0.0).select(0.0, t * (b * a.pow(b - 1.0)))
            } else {
                // a^b * log(a), which tends to 0 at a = 0 for b > 0.
                let at_zero = a.eq(0.0).select(b.ge(0.0), 0.0);
                at_zero.select(0.0, t * (result * a.log()))
            }
        }
        BinaryOp::Fmod => {
            if first {
                t
            } else {
                -(t * (a / b).trunc())
            }
        }
        BinaryOp::Atan2 => {
            let square = a * a + b * b;
            if first { t * (b / square) } else { -(t * (a / square)) }
        }
        BinaryOp::Eq | BinaryOp::Ne | BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge => return None,
    })
}
