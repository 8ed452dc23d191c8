//! Building expressions: a hash-consed graph and copyable handles with operators.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::ops;
use std::sync::Arc;

use super::{BinaryOp, Expr, Id, Literal, Node, TernaryOp, UnaryOp};

/// Where an expression is built. Equal subexpressions become one node, constants fold, exact identities apply.
///
/// ```
/// use netcl_core::kernels::expr::Graph;
///
/// let g = Graph::new();
/// let x = g.input(0);
/// let shared = (x + 1.0).exp() * (x + 1.0).exp();
/// assert_eq!(g.finish(&[shared]).nodes().len(), 5); // x, 1, x + 1, exp, product
/// assert_eq!(g.finish(&[x * 1.0]).to_string(), "x0");
/// assert_eq!(g.finish(&[x + 0.0]).to_string(), "(x0 + 0)"); // -0 + 0 is 0: not an identity
/// ```
#[derive(Default)]
pub struct Graph {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    nodes: Vec<Node>,
    known: HashMap<Node, Id>,
    names: HashMap<Id, Arc<str>>,
}

/// A value inside a [`Graph`]: a handle that copies, so that formulas can be written down as they are.
#[derive(Clone, Copy)]
pub struct Val<'g> {
    graph: &'g Graph,
    id: Id,
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Graph::default()
    }

    /// An element of input tensor `index`. At most 65536 inputs have names; the index wraps beyond.
    pub fn input(&self, index: usize) -> Val<'_> {
        self.add(Node::Input(index as u16))
    }

    /// Run-time scalar argument `index`.
    pub fn scalar(&self, index: usize) -> Val<'_> {
        self.add(Node::Scalar(index as u16))
    }

    /// A literal that belongs to an operation's definition.
    pub fn constant(&self, value: f64) -> Val<'_> {
        self.add(Node::Const(Literal::new(value)))
    }

    /// The finished expression of some outputs; nodes they do not need are left out.
    pub fn finish(&self, outputs: &[Val<'_>]) -> Expr {
        self.finish_with(outputs, 0, 0)
    }

    /// As [`Graph::finish`], with at least as many inputs and scalars as given: an operation keeps its signature even
    /// where an expression happens to ignore an operand (a derivative that does not depend on it, say).
    pub fn finish_with(&self, outputs: &[Val<'_>], inputs: usize, scalars: usize) -> Expr {
        let inner = self.inner.borrow();
        let mut place: Vec<Option<Id>> = vec![None; inner.nodes.len()];
        let mut nodes = Vec::new();
        // Depth first without recursion: a fused chain may be deeper than the stack likes.
        for output in outputs {
            let mut pending = vec![output.id];
            while let Some(&id) = pending.last() {
                if place[id.index()].is_some() {
                    pending.pop();
                    continue;
                }
                let node = inner.nodes[id.index()];
                let before = pending.len();
                pending.extend(node.operands().filter(|o| place[o.index()].is_none()));
                if pending.len() > before {
                    // The stack gives the last operand first; reversing keeps operands in reading order.
                    pending[before..].reverse();
                    continue;
                }
                pending.pop();
                place[id.index()] = Some(Id(nodes.len() as u32));
                nodes.push(node.with_operands(|o| place[o.index()].unwrap_or(o)));
            }
        }
        let (mut inputs, mut scalars) = (inputs, scalars);
        for node in &nodes {
            match *node {
                Node::Input(i) => inputs = inputs.max(usize::from(i) + 1),
                Node::Scalar(i) => scalars = scalars.max(usize::from(i) + 1),
                _ => {}
            }
        }
        let outputs = outputs.iter().filter_map(|o| place[o.id.index()]).collect();
        let mut names: Vec<(Id, Arc<str>)> =
            inner.names.iter().filter_map(|(id, name)| Some((place[id.index()]?, name.clone()))).collect();
        names.sort_unstable_by_key(|(id, _)| *id);
        Expr { nodes, outputs, inputs, scalars, names }
    }

    /// Rebuilds an expression inside this graph with other values for its inputs and scalars: how chains fuse. An input
    /// or scalar for which none is given keeps its number.
    pub fn inline<'g>(&'g self, expr: &Expr, inputs: &[Val<'g>], scalars: &[Val<'g>]) -> Vec<Val<'g>> {
        let all = self.inline_all(expr, inputs, scalars);
        expr.outputs().iter().map(|id| all[id.index()]).collect()
    }

    /// As [`Graph::inline`], giving every node.
    pub(super) fn inline_all<'g>(&'g self, expr: &Expr, inputs: &[Val<'g>], scalars: &[Val<'g>]) -> Vec<Val<'g>> {
        let mut values: Vec<Val<'g>> = Vec::with_capacity(expr.nodes().len());
        for (index, node) in expr.nodes().iter().enumerate() {
            let v = |id: Id| values[id.index()];
            let value = match *node {
                Node::Input(i) => inputs.get(usize::from(i)).copied().unwrap_or_else(|| self.input(usize::from(i))),
                Node::Scalar(i) => scalars.get(usize::from(i)).copied().unwrap_or_else(|| self.scalar(usize::from(i))),
                Node::Const(c) => self.constant(c.value()),
                Node::Unary(op, a) => v(a).unary(op),
                Node::Binary(op, a, b) => v(a).binary(op, v(b)),
                Node::Ternary(op, a, b, c) => self.ternary(op, v(a), v(b), v(c)),
            };
            if let Some(name) = expr.name(Id(index as u32)) {
                value.named(name.clone());
            }
            values.push(value);
        }
        values
    }

    /// `condition != 0 ? a : b`.
    pub fn select<'g>(&'g self, condition: Val<'g>, a: Val<'g>, b: Val<'g>) -> Val<'g> {
        self.ternary(TernaryOp::Select, condition, a, b)
    }

    /// An operation of three operands.
    pub fn ternary<'g>(&'g self, op: TernaryOp, a: Val<'g>, b: Val<'g>, c: Val<'g>) -> Val<'g> {
        if let (Some(x), Some(y), Some(z)) = (a.literal(), b.literal(), c.literal()) {
            return self.constant(op.eval(x, y, z));
        }
        if op == TernaryOp::Select {
            match a.literal() {
                Some(condition) => return if condition != 0.0 { b } else { c },
                None if b.id == c.id => return b,
                None => {}
            }
        }
        self.add(Node::Ternary(op, a.id, b.id, c.id))
    }

    pub(in crate::kernels) fn node(&self, id: Id) -> Node {
        self.inner.borrow().nodes[id.index()]
    }

    pub(in crate::kernels) fn len(&self) -> usize {
        self.inner.borrow().nodes.len()
    }

    pub(in crate::kernels) fn val(&self, id: Id) -> Val<'_> {
        Val { graph: self, id }
    }

    fn add(&self, node: Node) -> Val<'_> {
        let mut inner = self.inner.borrow_mut();
        let Inner { nodes, known, .. } = &mut *inner;
        let id = *known.entry(node).or_insert_with(|| {
            nodes.push(node);
            Id(nodes.len() as u32 - 1)
        });
        Val { graph: self, id }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} nodes)", self.len())
    }
}

impl fmt::Debug for Val<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.graph.finish(&[*self]))
    }
}

impl<'g> Val<'g> {
    /// The graph this value lives in.
    pub fn graph(self) -> &'g Graph {
        self.graph
    }

    pub(in crate::kernels) fn id(self) -> Id {
        self.id
    }

    /// Names the value after the operation it is the result of, for readers of generated code: `gelu`, or `head.gelu`. The
    /// first name stays; inputs, scalars and constants have none.
    ///
    /// ```
    /// use netcl_core::kernels::expr::{Graph, opencl::{CType, inline_c}};
    ///
    /// let g = Graph::new();
    /// let relu = g.finish(&[g.input(0).relu().named("relu")]);
    /// let c = inline_c(&relu, &["acc"], &[], CType::FLOAT);
    /// assert_eq!(c.statements, ["const float relu_1 = (acc <= 0.0f) ? 0.0f : acc;"]);
    /// assert_eq!(c.comments, ["relu"]);
    /// assert_eq!(relu, g.finish(&[g.input(0).relu()]));
    /// ```
    pub fn named(self, name: impl Into<Arc<str>>) -> Val<'g> {
        let mut inner = self.graph.inner.borrow_mut();
        if inner.nodes[self.id.index()].operands().next().is_some() {
            inner.names.entry(self.id).or_insert_with(|| name.into());
        }
        self
    }

    /// The value of a constant.
    pub fn literal(self) -> Option<f64> {
        match self.graph.node(self.id) {
            Node::Const(c) => Some(c.value()),
            _ => None,
        }
    }

    /// A literal in the same graph.
    pub fn constant(self, value: f64) -> Val<'g> {
        self.graph.constant(value)
    }

    /// An operation of one operand.
    pub fn unary(self, op: UnaryOp) -> Val<'g> {
        if let Some(x) = self.literal() {
            return self.constant(op.eval(x));
        }
        match (op, self.graph.node(self.id)) {
            (UnaryOp::Neg, Node::Unary(UnaryOp::Neg, x)) => self.graph.val(x),
            (UnaryOp::Abs, Node::Unary(UnaryOp::Neg | UnaryOp::Abs, x)) => self.graph.val(x).abs(),
            _ => self.graph.add(Node::Unary(op, self.id)),
        }
    }

    /// An operation of two operands.
    pub fn binary(self, op: BinaryOp, other: Val<'g>) -> Val<'g> {
        let negative_zero = |v: f64| v == 0.0 && v.is_sign_negative();
        let positive_zero = |v: f64| v == 0.0 && v.is_sign_positive();
        match (op, self.literal(), other.literal()) {
            (_, Some(a), Some(b)) => return self.constant(op.eval(a, b)),
            (BinaryOp::Add, None, Some(b)) if negative_zero(b) => return self,
            (BinaryOp::Add, Some(a), None) if negative_zero(a) => return other,
            (BinaryOp::Sub, None, Some(b)) if positive_zero(b) => return self,
            (BinaryOp::Mul | BinaryOp::Div | BinaryOp::Pow, None, Some(1.0)) => return self,
            (BinaryOp::Mul, Some(1.0), None) => return other,
            (BinaryOp::Mul | BinaryOp::Div, None, Some(-1.0)) => return -self,
            (BinaryOp::Mul, Some(-1.0), None) => return -other,
            (BinaryOp::Pow, None, Some(2.0)) => return self * self,
            (BinaryOp::Pow, None, Some(0.0)) => return self.constant(1.0),
            (BinaryOp::Min | BinaryOp::Max, ..) if self.id == other.id => return self,
            _ => {}
        }
        let (a, b) = match op {
            // Commutative to the bit, so both orders are one node; the younger operand goes last.
            BinaryOp::Add | BinaryOp::Mul if other.id < self.id => (other.id, self.id),
            _ => (self.id, other.id),
        };
        self.graph.add(Node::Binary(op, a, b))
    }

    /// `self * factor + addend`, rounded once.
    pub fn fma(self, factor: Val<'g>, addend: Val<'g>) -> Val<'g> {
        self.graph.ternary(TernaryOp::Fma, self, factor, addend)
    }

    /// `self != 0 ? a : b`.
    pub fn select(self, a: impl Into<Arg<'g>>, b: impl Into<Arg<'g>>) -> Val<'g> {
        self.graph.select(self, a.into().on(self), b.into().on(self))
    }

    /// max(x, 0); NaN stays NaN and the slope at 0 is 0.
    pub fn relu(self) -> Val<'g> {
        self.le(0.0).select(0.0, self)
    }

    /// `x * x`.
    pub fn square(self) -> Val<'g> {
        self * self
    }
}

/// What stands on the right of an operator: a value of the graph or a literal.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'g> {
    /// A value of the graph.
    Val(Val<'g>),
    /// A literal.
    Literal(f64),
}

impl<'g> Arg<'g> {
    fn on(self, val: Val<'g>) -> Val<'g> {
        match self {
            Arg::Val(v) => v,
            Arg::Literal(c) => val.constant(c),
        }
    }
}

impl<'g> From<Val<'g>> for Arg<'g> {
    fn from(val: Val<'g>) -> Self {
        Arg::Val(val)
    }
}

impl From<f64> for Arg<'_> {
    fn from(value: f64) -> Self {
        Arg::Literal(value)
    }
}

macro_rules! unary_methods {
    ($($method:ident $op:ident $doc:literal;)*) => {
        impl<'g> Val<'g> {$(
            #[doc = $doc]
            pub fn $method(self) -> Val<'g> {
                self.unary(UnaryOp::$op)
            }
        )*}
    };
}

unary_methods! {
    abs Abs "The absolute value.";
    sign Sign "-1, 0 or 1; NaN stays NaN.";
    floor Floor "The largest whole number not above.";
    ceil Ceil "The smallest whole number not below.";
    round Round "The nearest whole number, halves to even.";
    sqrt Sqrt "Square root.";
    rsqrt Rsqrt "One over the square root.";
    exp Exp "e to the power of this.";
    expm1 Expm1 "`exp(x) - 1`, accurate near zero.";
    log Log "Natural logarithm.";
    log1p Log1p "`log(1 + x)`, accurate near zero.";
    sin Sin "Sine.";
    cos Cos "Cosine.";
    tan Tan "Tangent.";
    tanh Tanh "Hyperbolic tangent.";
    sigmoid Sigmoid "`1 / (1 + exp(-x))`.";
    erf Erf "The error function.";
    norm_cdf NormCdf "The distribution function of the standard normal.";
    to_f16 ToF16 "The nearest float16, as storing and loading it gives.";
    to_bf16 ToBf16 "The nearest bfloat16, as storing and loading it gives.";
    trunc Trunc "The whole number next to `x` towards zero.";
    exp2 Exp2 "2 to the power of `x`.";
    log2 Log2 "Logarithm to base 2.";
    log10 Log10 "Logarithm to base 10.";
    sinh Sinh "Hyperbolic sine.";
    cosh Cosh "Hyperbolic cosine.";
    asin Asin "The angle whose sine is `x`.";
    acos Acos "The angle whose cosine is `x`.";
    atan Atan "The angle whose tangent is `x`.";
    asinh Asinh "The number whose hyperbolic sine is `x`.";
    acosh Acosh "The number whose hyperbolic cosine is `x`.";
    atanh Atanh "The number whose hyperbolic tangent is `x`.";
    erfc Erfc "`1 - erf(x)`, accurate where that is small.";
}

macro_rules! binary_methods {
    ($($method:ident $op:ident $doc:literal;)*) => {
        impl<'g> Val<'g> {$(
            #[doc = $doc]
            pub fn $method(self, other: impl Into<Arg<'g>>) -> Val<'g> {
                self.binary(BinaryOp::$op, other.into().on(self))
            }
        )*}
    };
}

binary_methods! {
    min Min "The smaller one; NaN if either is.";
    max Max "The larger one; NaN if either is.";
    pow Pow "This to a power.";
    fmod Fmod "What remains after whole multiples of the other, with the sign of this.";
    atan2 Atan2 "The angle of the point with this ordinate and an abscissa.";
    eq Eq "1 where equal, else 0.";
    ne Ne "1 where different (or NaN), else 0.";
    lt Lt "1 where smaller, else 0.";
    le Le "1 where smaller or equal, else 0.";
    gt Gt "1 where larger, else 0.";
    ge Ge "1 where larger or equal, else 0.";
}

macro_rules! operators {
    ($($trait:ident $method:ident;)*) => {$(
        impl<'g, A: Into<Arg<'g>>> ops::$trait<A> for Val<'g> {
            type Output = Val<'g>;
            fn $method(self, other: A) -> Val<'g> {
                self.binary(BinaryOp::$trait, other.into().on(self))
            }
        }
        impl<'g> ops::$trait<Val<'g>> for f64 {
            type Output = Val<'g>;
            fn $method(self, other: Val<'g>) -> Val<'g> {
                other.constant(self).binary(BinaryOp::$trait, other)
            }
        }
    )*};
}

operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
}

impl<'g> ops::Neg for Val<'g> {
    type Output = Val<'g>;
    fn neg(self) -> Val<'g> {
        self.unary(UnaryOp::Neg)
    }
}
