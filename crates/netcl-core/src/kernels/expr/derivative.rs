//! Symbolic derivatives, in the IR they differentiate: apply them twice and second derivatives come out.
//!
//! At kinks the conventions are PyTorch's: relu'(0) = 0 and |0|' = 0, tied minima and maxima share the gradient equally,
//! clamp passes it at its bounds, rounding, sign and comparisons have none. A branch that was not taken is cut off with
//! `select`, never multiplied by zero, so that its infinities do not turn into NaN.

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
    let outputs: Vec<_> = expr.outputs().get(output).map(|id| (nodes[id.index()], g.constant(1.0))).into_iter().collect();
    let gradients = gradient(&g, &outputs, &[g.input(input)]);
    g.finish_with(&gradients, expr.inputs(), expr.scalars())
}

/// Reverse accumulation inside a graph: the gradients of `sum(upstream * output)` with respect to some values, which may
/// be inputs, scalars or anything in between. Values that the outputs do not depend on get the constant 0.
pub fn gradient<'g>(g: &'g Graph, outputs: &[(Val<'g>, Val<'g>)], wrt: &[Val<'g>]) -> Vec<Val<'g>> {
    // Only the nodes that lie on a path from a wanted value matter: everything else would be derived in vain.
    let count = g.len();
    let mut reaches = vec![false; count];
    for value in wrt {
        reaches[value.id().index()] = true;
    }
    for index in 0..count {
        if g.node(Id(index as u32)).operands().any(|o| reaches[o.index()]) {
            reaches[index] = true;
        }
    }
    let mut gradients: Vec<Option<Val<'g>>> = vec![None; count];
    let accumulate = |gradients: &mut Vec<Option<Val<'g>>>, to: Id, part: Val<'g>| {
        let slot = &mut gradients[to.index()];
        *slot = Some(slot.map_or(part, |sum| sum + part));
    };
    for &(output, upstream) in outputs {
        accumulate(&mut gradients, output.id(), upstream);
    }
    for index in (0..count).rev() {
        let Some(upstream) = gradients[index].filter(|_| reaches[index]) else { continue };
        let id = Id(index as u32);
        for (position, operand) in g.node(id).operands().enumerate() {
            if reaches[operand.index()]
                && let Some(part) = pull_back(g, id, position, upstream)
            {
                accumulate(&mut gradients, operand, part);
            }
        }
    }
    wrt.iter().map(|value| gradients[value.id().index()].unwrap_or_else(|| g.constant(0.0))).collect()
}

/// The part of a node's gradient that its operand at `position` receives; `None` where it is zero everywhere.
fn pull_back<'g>(g: &'g Graph, id: Id, position: usize, up: Val<'g>) -> Option<Val<'g>> {
    let result = g.val(id);
    match g.node(id) {
        Node::Input(_) | Node::Scalar(_) | Node::Const(_) => None,
        Node::Unary(op, x) => unary(op, g.val(x), result, up),
        Node::Binary(op, a, b) => binary(op, g.val(a), g.val(b), result, position, up),
        Node::Ternary(TernaryOp::Fma, a, b, _) => Some(match position {
            0 => up * g.val(b),
            1 => up * g.val(a),
            _ => up,
        }),
        Node::Ternary(TernaryOp::Select, condition, ..) => match position {
            1 => Some(g.val(condition).select(up, 0.0)),
            2 => Some(g.val(condition).select(0.0, up)),
            _ => None,
        },
    }
}

fn unary<'g>(op: UnaryOp, x: Val<'g>, result: Val<'g>, up: Val<'g>) -> Option<Val<'g>> {
    Some(match op {
        UnaryOp::Neg => -up,
        UnaryOp::Abs => up * x.sign(),
        UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => return None,
        UnaryOp::Sqrt => up * (0.5 / result),
        UnaryOp::Rsqrt => up * (-0.5 * (result * result * result)),
        UnaryOp::Exp => up * result,
        // exp(x) rather than expm1(x) + 1, which loses every digit for very negative x.
        UnaryOp::Expm1 => up * x.exp(),
        UnaryOp::Log => up / x,
        UnaryOp::Log1p => up / (x + 1.0),
        UnaryOp::Sin => up * x.cos(),
        UnaryOp::Cos => up * -x.sin(),
        UnaryOp::Tan => up * (result * result + 1.0),
        UnaryOp::Tanh => up * (1.0 - result * result),
        UnaryOp::Sigmoid => up * (result * (1.0 - result)),
        UnaryOp::Erf => up * ((-(x * x)).exp() * TWO_OVER_SQRT_PI),
        UnaryOp::NormCdf => up * ((x * x * -0.5).exp() * ONE_OVER_SQRT_TWO_PI),
    })
}

fn binary<'g>(
    op: BinaryOp,
    a: Val<'g>,
    b: Val<'g>,
    result: Val<'g>,
    position: usize,
    up: Val<'g>,
) -> Option<Val<'g>> {
    let first = position == 0;
    Some(match op {
        BinaryOp::Add => up,
        BinaryOp::Sub => {
            if first {
                up
            } else {
                -up
            }
        }
        BinaryOp::Mul => up * if first { b } else { a },
        BinaryOp::Div => {
            if first {
                up / b
            } else {
                -(up * result / b)
            }
        }
        BinaryOp::Min | BinaryOp::Max => {
            let (own, other) = if first { (a, b) } else { (b, a) };
            let wins = if op == BinaryOp::Max { own.gt(other) } else { own.lt(other) };
            wins.select(up, own.eq(other).select(up * 0.5, 0.0))
        }
        BinaryOp::Pow => {
            if first {
                // b * a^(b - 1), which is 0 for b = 0 even where a^-1 is infinite.
                b.eq(0.0).select(0.0, up * (b * a.pow(b - 1.0)))
            } else {
                // a^b * log(a), which tends to 0 at a = 0 for b > 0.
                let at_zero = a.eq(0.0).select(b.ge(0.0), 0.0);
                at_zero.select(0.0, up * (result * a.log()))
            }
        }
        BinaryOp::Eq | BinaryOp::Ne | BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge => return None,
    })
}
