//! Statements for an expression, to stand inside a kernel: the epilogue of a matrix product, the map of a reduction.

use super::{CType, Helper};
use crate::kernels::expr::vecmath::single::UPPER_TAIL;
use crate::kernels::expr::{BinaryOp, Expr, Id, Node, TernaryOp, UnaryOp};

/// An expression as OpenCL C.
#[derive(Clone, Debug)]
pub struct Inlined {
    /// Functions that must stand before the kernel, each at most once.
    pub helpers: Vec<Helper>,
    /// Declarations, one per node, without indentation.
    pub statements: Vec<String>,
    /// For each statement what its node was [named](crate::kernels::expr::Val::named); empty where it was not.
    pub comments: Vec<String>,
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
    let mut writer = Statements::new(expr);
    let given = |names: &[&str], i: u16, letter: char| {
        names.get(usize::from(i)).map_or_else(|| format!("{letter}{i}"), |&name| name.to_owned())
    };
    let (mut statements, mut comments) = (Vec::new(), Vec::new());
    for (index, node) in expr.nodes().iter().enumerate() {
        let id = Id(index as u32);
        match *node {
            Node::Input(i) => writer.call(id, given(inputs, i, 'x'), false),
            Node::Scalar(i) => writer.call(id, given(scalars, i, 's'), false),
            _ => {
                if let Some(statement) = writer.statement(id, ctype) {
                    statements.push(statement);
                    comments.push(writer.comment(id).unwrap_or_default());
                }
            }
        }
    }
    let outputs = expr.outputs().iter().map(|&id| writer.value(id, ctype)).collect();
    Inlined { helpers: writer.helpers, statements, comments, outputs }
}

/// A name as it may stand in a comment of any compiler's source: printable ASCII that ends no comment and joins no lines.
pub(in crate::kernels) fn in_comment(name: &str) -> String {
    let plain = |c: char| c == ' ' || (c.is_ascii_graphic() && !matches!(c, '\\' | '*' | '/'));
    name.chars().map(|c| if plain(c) { c } else { '_' }).collect()
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

/// Writes the nodes of an expression as statements, one by one and in any type: what a kernel with several loops needs.
pub(in crate::kernels) struct Statements<'a> {
    expr: &'a Expr,
    /// The variable of each node that has one.
    names: Vec<String>,
    /// Whether the variable is a single number also where the others are vectors.
    single: Vec<bool>,
    as_value: Vec<bool>,
    numbered: usize,
    pub(in crate::kernels) helpers: Vec<Helper>,
}

impl<'a> Statements<'a> {
    pub(in crate::kernels) fn new(expr: &'a Expr) -> Self {
        let nodes = expr.nodes().len();
        Statements {
            expr,
            names: vec![String::new(); nodes],
            single: vec![false; nodes],
            as_value: value_uses(expr),
            numbered: 0,
            helpers: Vec::new(),
        }
    }

    /// Says which variable holds a node's value.
    pub(in crate::kernels) fn call(&mut self, id: Id, name: String, single: bool) {
        self.names[id.index()] = name;
        self.single[id.index()] = single;
    }

    /// A node's variable.
    pub(in crate::kernels) fn name(&self, id: Id) -> &str {
        &self.names[id.index()]
    }

    /// A new variable's name.
    pub(in crate::kernels) fn number(&mut self, stem: &str) -> String {
        self.numbered += 1;
        let mut stem: String = stem
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
            .take(24)
            .collect();
        if !stem.starts_with(|c: char| c.is_ascii_alphabetic()) {
            stem.insert(0, 'v');
        }
        format!("{stem}_{}", self.numbered)
    }

    /// What the user calls a node's operation, safe inside a comment.
    pub(in crate::kernels) fn comment(&self, id: Id) -> Option<String> {
        self.expr.name(id).map(|name| in_comment(name))
    }

    /// The declaration of a node's variable; `None` for a leaf, and for a comparison that is written where it steers.
    pub(in crate::kernels) fn statement(&mut self, id: Id, ctype: CType) -> Option<String> {
        if !self.as_value[id.index()] {
            return None;
        }
        let (op, value) = match self.expr.nodes()[id.index()] {
            Node::Unary(op, a) => (op.name(), self.unary(op, a, ctype)),
            Node::Binary(op, a, b) => (op.name(), self.binary(op, a, b, ctype)),
            Node::Ternary(op, a, b, c) => (op.name(), self.ternary(op, a, b, c, ctype)),
            Node::Input(_) | Node::Scalar(_) | Node::Const(_) => return None,
        };
        if self.names[id.index()].is_empty() {
            // "block3.head.gelu" gives gelu_1.
            let user = self.expr.name(id).and_then(|name| name.rsplit(['.', ':', '/']).next());
            self.names[id.index()] = self.number(user.unwrap_or(op));
        }
        let name = &self.names[id.index()];
        Some(format!("const {} {name} = {value};", ctype.name()))
    }

    /// A node's value, in the very type.
    pub(in crate::kernels) fn value(&self, id: Id, ctype: CType) -> String {
        match self.expr.nodes()[id.index()] {
            Node::Const(c) => ctype.splat(c.value()),
            _ if self.single[id.index()] && ctype.width() > 1 => format!("({})({})", ctype.name(), self.name(id)),
            _ => self.name(id).to_owned(),
        }
    }

    /// A node's value beside an operator, where a number widens by itself.
    fn loose(&self, id: Id, ctype: CType) -> String {
        match self.expr.nodes()[id.index()] {
            Node::Const(c) => ctype.literal(c.value()),
            _ => self.name(id).to_owned(),
        }
    }

    fn helped(&mut self, helpers: Vec<Helper>, arguments: &str) -> String {
        let call = helpers.last().map(|helper| format!("{}({arguments})", helper.name)).unwrap_or_default();
        for helper in helpers {
            if !self.helpers.contains(&helper) {
                self.helpers.push(helper);
            }
        }
        call
    }

    fn unary(&mut self, op: UnaryOp, a: Id, ctype: CType) -> String {
        let x = self.value(a, ctype);
        let built_in = match op {
            UnaryOp::Neg => return format!("-{x}"),
            UnaryOp::Sign => return self.helped(vec![sign(ctype)], &x),
            UnaryOp::Sigmoid => return self.helped(vec![sigmoid(ctype)], &x),
            UnaryOp::NormCdf => return self.helped(vec![norm_cdf(ctype)], &x),
            UnaryOp::ToF16 => return self.helped(vec![to_f16(ctype)], &x),
            UnaryOp::ToBf16 => return self.helped(vec![to_bf16(ctype)], &x),
            UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tan if ctype.width() > 1 => {
                return self.helped(vec![lane_by_lane(ctype, op)], &x);
            }
            UnaryOp::Abs => "fabs",
            UnaryOp::Round => "rint",
            other => other.name(),
        };
        format!("{built_in}({x})")
    }

    fn binary(&mut self, op: BinaryOp, a: Id, b: Id, ctype: CType) -> String {
        let operator = match op {
            BinaryOp::Add => "+",
            BinaryOp::Sub => "-",
            BinaryOp::Mul => "*",
            BinaryOp::Div => "/",
            BinaryOp::Pow | BinaryOp::Fmod | BinaryOp::Atan2 => {
                return format!("{}({}, {})", op.name(), self.value(a, ctype), self.value(b, ctype));
            }
            // The built-in fmin and fmax drop NaN.
            BinaryOp::Min | BinaryOp::Max => {
                let arguments = format!("{}, {}", self.value(a, ctype), self.value(b, ctype));
                return self.helped(vec![extremum(ctype, op)], &arguments);
            }
            comparison => {
                let symbol = comparison.comparison().unwrap_or_default();
                let (one, zero) = (ctype.splat(1.0), ctype.splat(0.0));
                return format!("({} {symbol} {}) ? {one} : {zero}", self.value(a, ctype), self.loose(b, ctype));
            }
        };
        format!("{} {operator} {}", self.loose(a, ctype), self.loose(b, ctype))
    }

    fn ternary(&mut self, op: TernaryOp, a: Id, b: Id, c: Id, ctype: CType) -> String {
        if op == TernaryOp::Fma {
            return format!("fma({}, {}, {})", self.value(a, ctype), self.value(b, ctype), self.value(c, ctype));
        }
        let condition = match self.expr.nodes()[a.index()] {
            Node::Binary(op, x, y) if op.comparison().is_some() => {
                format!("{} {} {}", self.value(x, ctype), op.comparison().unwrap_or_default(), self.loose(y, ctype))
            }
            _ => format!("{} != {}", self.value(a, ctype), ctype.literal(0.0)),
        };
        format!("({condition}) ? {} : {}", self.value(b, ctype), self.value(c, ctype))
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

/// The types of a rounding to 16 bits: float and uint in the width of a type, and the casts from and to it.
fn rounding(t: CType, name: &str, body: &str) -> Helper {
    let width = if t.width() == 1 { String::new() } else { t.width().to_string() };
    let body = format!(
        "    const float{width} x = convert_float{width}(value);\n    const uint{width} bits = as_uint{width}(x);\n{}    \
         return convert_{}(as_float{width}(result));\n",
        body.replace("UINT", &format!("uint{width}")).replace("FLOAT", &format!("float{width}")),
        t.name(),
    );
    helper(t, name, "T value", &body)
}

fn to_bf16(t: CType) -> Helper {
    let body = "    const UINT rounded = bits + (0x7fffu + ((bits >> 16) & 1u));\n    \
                const UINT result = ((x != x) ? (bits | 0x400000u) : rounded) & 0xffff0000u;\n";
    rounding(t, "to_bf16", body)
}

fn to_f16(t: CType) -> Helper {
    let body = "    const UINT size = bits & 0x7fffffffu;\n    \
                const UINT rounded = (size + (0xfffu + ((size >> 13) & 1u))) & 0xffffe000u;\n    \
                const UINT finite = (rounded >= 0x47800000u) ? (UINT)(0x7f800000u) : rounded;\n    \
                // Below the smallest normal number steps are 2^-24, what floats next to 0.5 are apart.\n    \
                const UINT small = as_UINT((as_FLOAT(size) + 0.5f) - 0.5f);\n    \
                const UINT number = (size < 0x38800000u) ? small : finite;\n    \
                const UINT result = ((x != x) ? (size | 0x400000u) : number) | (bits ^ size);\n";
    rounding(t, "to_f16", body)
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

pub(in crate::kernels) fn extremum(t: CType, op: BinaryOp) -> Helper {
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

/// In float the native CPU's own formula ([`super::super::vecmath`]), written in fused multiply-adds: NVIDIA's erfc takes 140 instructions,
/// and GELU was bound by them.
fn norm_cdf_f32(t: CType) -> Helper {
    let splat = |value: f64| t.splat(value);
    let terms = UPPER_TAIL
        .iter()
        .rev()
        .skip(1)
        .fold(splat(UPPER_TAIL[10].into()), |sum, &term| format!("fma(u, {sum}, {})", splat(term.into())));
    let body = format!(
        "    // The tail beyond z: exp(-z * z / 2) * p(u) / (1 + 2z); what the square rounds off is carried along.\n    \
         const {ty} a = fabs(x), z = (a > {far}) ? {far} : a, h = {half} * z, square = h * z;\n    \
         const {ty} lost = fma(h, z, -square), u = (z - {four}) / (z + {four});\n    \
         const {ty} e = exp(-square), p = {terms};\n    \
         const {ty} beyond = (a >= {end}) ? {zero} : fma(e, -lost, e) * p / fma({two}, z, {one});\n    \
         return (x > {zero}) ? {one} - beyond : beyond;\n",
        ty = t.name(),
        far = splat(14.6),
        half = splat(0.5),
        four = splat(4.0),
        end = splat(14.5),
        zero = splat(0.0),
        one = splat(1.0),
        two = splat(2.0),
    );
    helper(t, "normcdf", "T x", &body)
}

fn norm_cdf(t: CType) -> Helper {
    if t.lane() == CType::FLOAT {
        return norm_cdf_f32(t);
    }
    let high = std::f64::consts::FRAC_1_SQRT_2;
    // What the literal lacks to 1 / sqrt(2).
    let low = -4.833_646_656_726_457e-17;
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
