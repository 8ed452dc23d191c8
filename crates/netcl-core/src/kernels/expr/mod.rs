//! Elementwise expressions: a small IR from which OpenCL C, native loops and derivatives are made.
//!
//! An expression is declared once, in a [`Graph`], and reads like maths; [`Graph::finish`] gives an immutable [`Expr`].
//! From it come OpenCL C ([`opencl`]), a native loop ([`cpu`]) and the derivative ([`derivative`], in the same IR).
//! [`table`] declares every elementwise operation of the library. Nothing here knows of tensors or devices.
//!
//! ```
//! use netcl_core::kernels::expr::{Graph, cpu::Program};
//! use netcl_core::dtype::DType;
//!
//! let g = Graph::new();
//! let (x, y) = (g.input(0), g.input(1));
//! let silu_gate = g.finish(&[x * x.sigmoid() + y.relu()]);
//!
//! assert_eq!(silu_gate.eval(&[0.0, 3.0], &[]), [3.0]);
//! let program = Program::compile(&silu_gate, DType::F32)?;
//! let mut out = [0.0f32; 3];
//! program.run_slices(&[&[0.0f32, 0.0, 0.0], &[3.0, -1.0, f32::INFINITY]], &[], &mut [&mut out])?;
//! assert_eq!(out, [3.0, 0.0, f32::INFINITY]);
//! # Ok::<(), netcl_core::Error>(())
//! ```
//!
//! # What the numbers mean
//!
//! * Minimum and maximum propagate NaN, and so do relu and every other activation. With a NaN operand a comparison is
//!   false, except `ne`.
//! * Run-time parameters are [`Graph::scalar`]s, arguments of the kernel. [`Graph::constant`]s are for the literals that
//!   belong to an operation's definition: a new constant is a new kernel.
//! * Nothing is reordered or contracted: an fma happens where [`Val::fma`] says so and nowhere else. The simplifier only
//!   applies identities that hold for every value, NaN, infinities and signed zeros included.
//! * 16-bit types are loaded into f32, computed in f32 and rounded once when stored.

pub mod cpu;
pub mod derivative;
mod graph;
mod op;
pub mod opencl;
pub mod table;
pub mod vecmath;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub use graph::{Graph, Val};
pub use op::{BinaryOp, TernaryOp, UnaryOp};

/// The position of a node in its expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u32);

impl Id {
    /// The node at an index.
    pub(in crate::kernels) const fn new(index: usize) -> Id {
        Id(index as u32)
    }

    /// The position as an index into [`Expr::nodes`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A literal, compared and hashed by its bits, so that 0 and -0 differ and a NaN equals itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Literal(u64);

impl Literal {
    /// The literal of a value.
    pub const fn new(value: f64) -> Self {
        Literal(value.to_bits())
    }

    /// Its value.
    pub const fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value().fmt(f)
    }
}

/// A node of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// An element of an input tensor.
    Input(u16),
    /// A run-time scalar argument.
    Scalar(u16),
    /// A literal of an operation's definition.
    Const(Literal),
    /// An operation of one operand.
    Unary(UnaryOp, Id),
    /// An operation of two operands.
    Binary(BinaryOp, Id, Id),
    /// An operation of three operands.
    Ternary(TernaryOp, Id, Id, Id),
}

impl Node {
    /// The operands, in order.
    pub fn operands(&self) -> impl Iterator<Item = Id> + use<> {
        let (ids, count) = match *self {
            Node::Input(_) | Node::Scalar(_) | Node::Const(_) => ([Id(0); 3], 0),
            Node::Unary(_, a) => ([a; 3], 1),
            Node::Binary(_, a, b) => ([a, b, b], 2),
            Node::Ternary(_, a, b, c) => ([a, b, c], 3),
        };
        ids.into_iter().take(count)
    }

    fn with_operands(&self, of: impl Fn(Id) -> Id) -> Node {
        match *self {
            Node::Unary(op, a) => Node::Unary(op, of(a)),
            Node::Binary(op, a, b) => Node::Binary(op, of(a), of(b)),
            Node::Ternary(op, a, b, c) => Node::Ternary(op, of(a), of(b), of(c)),
            leaf => leaf,
        }
    }
}

/// A finished expression: nodes in an order in which operands come first, and one or more outputs.
///
/// Node order depends on the structure alone, not on the order in which a [`Graph`] was filled, so that equal expressions
/// have equal [keys](Expr::key). [Names](Val::named) are notes for readers of generated code: they take no part in
/// comparisons, hashes and keys.
#[derive(Clone)]
pub struct Expr {
    nodes: Vec<Node>,
    outputs: Vec<Id>,
    inputs: usize,
    scalars: usize,
    /// What some nodes are called, sorted by node.
    names: Vec<(Id, Arc<str>)>,
}

impl Expr {
    fn structure(&self) -> (&[Node], &[Id], usize, usize) {
        (&self.nodes, &self.outputs, self.inputs, self.scalars)
    }
}

impl PartialEq for Expr {
    fn eq(&self, other: &Self) -> bool {
        self.structure() == other.structure()
    }
}

impl Eq for Expr {}

impl Hash for Expr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.structure().hash(state);
    }
}

impl Expr {
    /// The nodes; operands come before the nodes that use them.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node of each output.
    pub fn outputs(&self) -> &[Id] {
        &self.outputs
    }

    /// The number of inputs: one more than the highest input used, or as many as [`Graph::finish_with`] was given.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The number of run-time scalars.
    pub fn scalars(&self) -> usize {
        self.scalars
    }

    /// What a node was [named](Val::named).
    pub fn name(&self, id: Id) -> Option<&Arc<str>> {
        self.names.binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| &self.names[at].1)
    }

    /// A key of the structure, the same in every process and on every machine: what caches and kernel names use.
    pub fn key(&self) -> u128 {
        let mut hash = blake3::Hasher::new();
        let mut word = |tag: u8, value: u64| {
            hash.update(&[tag]);
            hash.update(&value.to_le_bytes());
        };
        word(0, self.inputs as u64);
        word(0, self.scalars as u64);
        for node in &self.nodes {
            match *node {
                Node::Input(i) => word(1, i.into()),
                Node::Scalar(i) => word(2, i.into()),
                Node::Const(c) => word(3, c.0),
                // Names, not discriminants: the key must survive a reordering of the enums.
                Node::Unary(op, _) => word(4, name_word(op.name())),
                Node::Binary(op, ..) => word(5, name_word(op.name())),
                Node::Ternary(op, ..) => word(6, name_word(op.name())),
            }
            for id in node.operands() {
                word(7, id.0.into());
            }
        }
        for id in &self.outputs {
            word(8, id.0.into());
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize().as_bytes()[..16]);
        u128::from_le_bytes(bytes)
    }

    /// The outputs for one element, in f64: the reference for every backend. Missing inputs and scalars read as NaN.
    pub fn eval(&self, inputs: &[f64], scalars: &[f64]) -> Vec<f64> {
        let mut values: Vec<f64> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let v = |id: Id| values[id.index()];
            let value = match *node {
                Node::Input(i) => inputs.get(usize::from(i)).copied().unwrap_or(f64::NAN),
                Node::Scalar(i) => scalars.get(usize::from(i)).copied().unwrap_or(f64::NAN),
                Node::Const(c) => c.value(),
                Node::Unary(op, a) => op.eval(v(a)),
                Node::Binary(op, a, b) => op.eval(v(a), v(b)),
                Node::Ternary(op, a, b, c) => op.eval(v(a), v(b), v(c)),
            };
            values.push(value);
        }
        self.outputs.iter().map(|id| values[id.index()]).collect()
    }

    /// The same expression with one input turned into a new, last run-time scalar; later inputs move down by one.
    /// `add` with its second input bound is "tensor plus number".
    ///
    /// ```
    /// use netcl_core::kernels::expr::table;
    ///
    /// let minus = table::op("sub").unwrap().expr();
    /// let one_minus_x = minus.input_as_scalar(0);
    /// assert_eq!((one_minus_x.inputs(), one_minus_x.scalars()), (1, 1));
    /// assert_eq!(one_minus_x.eval(&[0.25], &[1.0]), [0.75]);
    /// ```
    pub fn input_as_scalar(&self, input: usize) -> Expr {
        let g = Graph::new();
        let inputs: Vec<Val<'_>> = (0..self.inputs)
            .map(|i| match i.cmp(&input) {
                std::cmp::Ordering::Less => g.input(i),
                std::cmp::Ordering::Equal => g.scalar(self.scalars),
                std::cmp::Ordering::Greater => g.input(i - 1),
            })
            .collect();
        let scalars: Vec<Val<'_>> = (0..self.scalars).map(|i| g.scalar(i)).collect();
        let outputs = g.inline(self, &inputs, &scalars);
        let bound = usize::from(input < self.inputs);
        g.finish_with(&outputs, self.inputs - bound, self.scalars + bound)
    }

    /// Gives every input another number, of `inputs` in all.
    pub(in crate::kernels) fn renumber_inputs(&mut self, inputs: usize, number: impl Fn(usize) -> usize) {
        for node in &mut self.nodes {
            if let Node::Input(i) = node {
                *i = number(usize::from(*i)) as u16;
            }
        }
        self.inputs = inputs;
    }

    /// Whether the first result is a comparison: 0 or 1, whatever the inputs are.
    pub fn is_predicate(&self) -> bool {
        use BinaryOp::{Eq, Ge, Gt, Le, Lt, Ne};
        matches!(self.nodes[self.outputs[0].index()], Node::Binary(Eq | Ne | Lt | Le | Gt | Ge, ..))
    }

    /// How many floating-point operations one element costs, counting every node once.
    pub fn flops(&self) -> usize {
        self.nodes.iter().filter(|n| n.operands().next().is_some()).count()
    }

    /// About how long one element takes, counted in additions: a division or a root is four of them, an elementary function
    /// sixteen.
    ///
    /// ```
    /// use netcl_core::kernels::expr::Graph;
    ///
    /// let g = Graph::new();
    /// assert_eq!(g.finish(&[(g.input(0) + 1.0).tanh()]).effort(), 17);
    /// ```
    pub fn effort(&self) -> usize {
        let of = |node: &Node| match node {
            Node::Input(_) | Node::Scalar(_) | Node::Const(_) => 0,
            Node::Unary(
                UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round,
                _,
            ) => 1,
            Node::Unary(UnaryOp::ToF16 | UnaryOp::ToBf16, _) => 4,
            Node::Unary(UnaryOp::Sqrt | UnaryOp::Rsqrt, _) | Node::Binary(BinaryOp::Div, ..) => 4,
            Node::Unary(..) | Node::Binary(BinaryOp::Pow, ..) => 16,
            Node::Binary(..) | Node::Ternary(..) => 1,
        };
        self.nodes.iter().map(of).sum()
    }
}

fn name_word(name: &str) -> u64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    u64::from_le_bytes(bytes)
}

/// Shows an expression as one line of maths: `x0 * sigmoid(x0)`, with shared parts repeated.
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, &id) in self.outputs.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            self.write(f, id)?;
        }
        Ok(())
    }
}

impl Expr {
    fn write(&self, f: &mut fmt::Formatter<'_>, id: Id) -> fmt::Result {
        let operator = |op: BinaryOp| match op {
            BinaryOp::Add => Some("+"),
            BinaryOp::Sub => Some("-"),
            BinaryOp::Mul => Some("*"),
            BinaryOp::Div => Some("/"),
            other => other.comparison(),
        };
        match self.nodes[id.index()] {
            Node::Input(i) => write!(f, "x{i}"),
            Node::Scalar(i) => write!(f, "s{i}"),
            Node::Const(c) => write!(f, "{}", c.value()),
            Node::Binary(op, a, b) if operator(op).is_some() => {
                f.write_str("(")?;
                self.write(f, a)?;
                write!(f, " {} ", operator(op).unwrap_or_default())?;
                self.write(f, b)?;
                f.write_str(")")
            }
            node => {
                let name = match node {
                    Node::Unary(op, _) => op.name(),
                    Node::Binary(op, ..) => op.name(),
                    Node::Ternary(op, ..) => op.name(),
                    _ => "",
                };
                write!(f, "{name}(")?;
                for (i, operand) in node.operands().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    self.write(f, operand)?;
                }
                f.write_str(")")
            }
        }
    }
}

impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expr({self})")
    }
}
