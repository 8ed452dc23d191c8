//! Statements for an expression, to stand inside a kernel: the epilogue of a matrix product, the map of a reduction.

use super::{CType, Helper};
use crate::kernels::expr::{BinaryOp, Expr, Id, Node, TernaryOp, UnaryOp};

/// An expression as OpenCL C.
#[derive(Clone, Debug)]
pub struct Inlined {
    /// Functions that must stand before the kernel, each at most once.
    pub helpers: Vec<Helper>,
    /// Declarations, one per node, without indentation.
    pub statements: Vec<String>,
    /// What the outputs are called: variables of the statements, inputs, scalars or literals.
    pub outputs: Vec<String>,
}

/// Writes an expression as statements over values that already have names.
///
/// `inputs` and `scalars` name variables of type `ctype` (for a vector type, scalars must be splatted before); a missing
/// name is written as `x<i>` or `s<i>`. New variables are called `<operation>_<number>`: keep clear of such names.
///
/// ```
/// use netcl_core::kernels::expr::{Graph, opencl::{CType, inline_c}};
///
/// let g = Graph::new();
/// let bias_relu = g.finish(&[(g.input(0) + g.input(1)).relu()]);
/// let c = inline_c(&bias_relu, &["acc", "bias"], &[], CType::FLOAT);
/// assert_eq!(c.statements, [
///     "const float add_1 = acc + bias;",
///     "const float select_2 = (add_1 <= 0.0f) ? 0.0f : add_1;",
/// ]);
/// assert_eq!(c.outputs, ["select_2"]);
/// ```
pub fn inline_c(expr: &Expr, inputs: &[&str], scalars: &[&str], ctype: CType) -> Inlined {
    let mut writer = Writer {
        expr,
        ctype,
        names: Vec::with_capacity(expr.nodes().len()),
        inlined: Inlined { helpers: Vec::new(), statements: Vec::new(), outputs: Vec::new() },
    };
    let as_value = value_uses(expr);
    let given = |names: &[&str], i: u16, letter: char| {
        names.get(usize::from(i)).map_or_else(|| format!("{letter}{i}"), |&name| name.to_owned())
    };
    for (index, node) in expr.nodes().iter().enumerate() {
        let name = match *node {
            Node::Input(i) => given(inputs, i, 'x'),
            Node::Scalar(i) => given(scalars, i, 's'),
            Node::Const(c) => ctype.literal(c.value()),
            _ if !as_value[index] => String::new(),
            _ => writer.statement(node),
        };
        writer.names.push(name);
    }
    let mut inlined = writer.inlined;
    inlined.outputs = expr
        .outputs()
        .iter()
        .map(|id| match expr.nodes()[id.index()] {
            Node::Const(c) => ctype.splat(c.value()),
            _ => writer.names[id.index()].clone(),
        })
        .collect();
    inlined
}

/// Which nodes are needed as numbers. A comparison that only steers choices is written inside them instead.
fn value_uses(expr: &Expr) -> Vec<bool> {
    let mut needed = vec![false; expr.nodes().len()];
    for id in expr.outputs() {
        needed[id.index()] = true;
    }
    for (index, node) in expr.nodes().iter().enumerate().rev() {
        if !needed[index] && !matches!(node, Node::Binary(..)) {
            continue;
        }
        for (position, operand) in node.operands().enumerate() {
            let steers = position == 0
                && matches!(node, Node::Ternary(TernaryOp::Select, ..))
                && matches!(expr.nodes()[operand.index()], Node::Binary(op, ..) if op.comparison().is_some());
            if !steers {
                needed[operand.index()] = true;
            }
        }
    }
    needed
}

struct Writer<'a> {
    expr: &'a Expr,
    ctype: CType,
    names: Vec<String>,
    inlined: Inlined,
}

impl Writer<'_> {
    fn statement(&mut self, node: &Node) -> String {
        let (op, value) = match *node {
            Node::Unary(op, a) => (op.name(), self.unary(op, a)),
            Node::Binary(op, a, b) => (op.name(), self.binary(op, a, b)),
            Node::Ternary(op, a, b, c) => (op.name(), self.ternary(op, a, b, c)),
            Node::Input(_) | Node::Scalar(_) | Node::Const(_) => ("leaf", String::new()),
        };
        let name = format!("{op}_{}", self.inlined.statements.len() + 1);
        self.inlined.statements.push(format!("const {} {name} = {value};", self.ctype.name()));
        name
    }

    /// An operand beside an operator, where a literal widens by itself.
    fn loose(&self, id: Id) -> &str {
        &self.names[id.index()]
    }

    /// An operand that must have the very type.
    fn strict(&self, id: Id) -> String {
        match self.expr.nodes()[id.index()] {
            Node::Const(c) => self.ctype.splat(c.value()),
            _ => self.names[id.index()].clone(),
        }
    }

    fn call(&mut self, helper: Helper, arguments: &str) -> String {
        let call = format!("{}({arguments})", helper.name);
        if !self.inlined.helpers.contains(&helper) {
            self.inlined.helpers.push(helper);
        }
        call
    }

    fn unary(&mut self, op: UnaryOp, a: Id) -> String {
        let x = self.strict(a);
        let built_in = match op {
            UnaryOp::Neg => return format!("-{x}"),
            UnaryOp::Sign => return self.call(sign(self.ctype), &x),
            UnaryOp::Sigmoid => return self.call(sigmoid(self.ctype), &x),
            UnaryOp::NormCdf => return self.call(norm_cdf(self.ctype), &x),
            UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tan if self.ctype.width() > 1 => {
                return self.call(lane_by_lane(self.ctype, op), &x);
            }
            UnaryOp::Abs => "fabs",
            UnaryOp::Round => "rint",
            other => other.name(),
        };
        format!("{built_in}({x})")
    }

    fn binary(&mut self, op: BinaryOp, a: Id, b: Id) -> String {
        let operator = match op {
            BinaryOp::Add => "+",
            BinaryOp::Sub => "-",
            BinaryOp::Mul => "*",
            BinaryOp::Div => "/",
            BinaryOp::Pow => return format!("pow({}, {})", self.strict(a), self.strict(b)),
            // The built-in fmin and fmax drop NaN.
            BinaryOp::Min | BinaryOp::Max => {
                let arguments = format!("{}, {}", self.strict(a), self.strict(b));
                return self.call(extremum(self.ctype, op), &arguments);
            }
            comparison => {
                let symbol = comparison.comparison().unwrap_or_default();
                let (one, zero) = (self.ctype.splat(1.0), self.ctype.splat(0.0));
                return format!("({} {symbol} {}) ? {one} : {zero}", self.strict(a), self.loose(b));
            }
        };
        format!("{} {operator} {}", self.loose(a), self.loose(b))
    }

    fn ternary(&mut self, op: TernaryOp, a: Id, b: Id, c: Id) -> String {
        if op == TernaryOp::Fma {
            return format!("fma({}, {}, {})", self.strict(a), self.strict(b), self.strict(c));
        }
        let condition = match self.expr.nodes()[a.index()] {
            Node::Binary(op, x, y) if op.comparison().is_some() => {
                format!("{} {} {}", self.strict(x), op.comparison().unwrap_or_default(), self.loose(y))
            }
            _ => format!("{} != {}", self.strict(a), self.ctype.literal(0.0)),
        };
        format!("({condition}) ? {} : {}", self.strict(b), self.strict(c))
    }
}

fn helper(ctype: CType, name: &str, parameters: &str, body: &str) -> Helper {
    let ty = ctype.name();
    let name = format!("{name}_{ty}");
    let text = format!("{ty} {name}({}) {{\n{body}}}\n", parameters.replace('T', &ty));
    Helper { name, text }
}

fn sign(t: CType) -> Helper {
    let (zero, one, minus) = (t.literal(0.0), t.splat(1.0), t.splat(-1.0));
    let body = format!(
        "    // Zeros keep their sign and NaN stays NaN, unlike in the built-in.\n    \
         const {ty} below = (x < {zero}) ? {minus} : x;\n    return (x > {zero}) ? {one} : below;\n",
        ty = t.name()
    );
    helper(t, "sign", "T x", &body)
}

fn lane_by_lane(t: CType, op: UnaryOp) -> Helper {
    let lanes: Vec<String> = (0..t.width()).map(|k| format!("{}(x.s{k:x})", op.name())).collect();
    let body = format!(
        "    // Lane by lane: PoCL's vector version is wrong for small angles beside very large ones.\n    \
         return ({})({});\n",
        t.name(),
        lanes.join(", ")
    );
    helper(t, op.name(), "T x", &body)
}

fn extremum(t: CType, op: BinaryOp) -> Helper {
    let symbol = if op == BinaryOp::Max { ">=" } else { "<=" };
    helper(t, op.name(), "T a, T b", &format!("    return ((a {symbol} b) | (a != a)) ? a : b;\n"))
}

fn sigmoid(t: CType) -> Helper {
    let (zero, one) = (t.literal(0.0), t.splat(1.0));
    let body = format!(
        "    // Only ever the exponential of a negative number: nothing overflows, no digits are lost on either side.\n    \
         const {ty} e = exp(-fabs(x));\n    return ((x >= {zero}) ? {one} : e) / ({literal} + e);\n",
        ty = t.name(),
        literal = t.literal(1.0)
    );
    helper(t, "sigmoid", "T x", &body)
}

fn norm_cdf(t: CType) -> Helper {
    let high = std::f64::consts::FRAC_1_SQRT_2;
    // What the literal lacks to 1 / sqrt(2).
    let low = if t.lane() == CType::DOUBLE { -4.833_646_656_726_457e-17 } else { 1.210_161_749_e-8 };
    let body = format!(
        "    // erfc is steep in its tail: the rounding error d of y = -x / sqrt(2) is carried along.\n    \
         const {ty} y = x * {minus_high};\n    \
         const {ty} d = fma(x, {minus_high_splat}, -y) + x * {minus_low};\n    \
         const {ty} r = {half} * erfc(y);\n    \
         return ((y > {one}) & (y < {far})) ? r - r * ({two} * y * d) : r;\n",
        ty = t.name(),
        minus_high = t.literal(-high),
        minus_high_splat = t.splat(-high),
        minus_low = t.literal(-low),
        half = t.literal(0.5),
        one = t.literal(1.0),
        two = t.literal(2.0),
        far = t.literal(40.0),
    );
    helper(t, "normcdf", "T x", &body)
}
