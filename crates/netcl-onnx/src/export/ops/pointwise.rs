//! Pointwise operations: a few have an operator of their own, all others are written expression by expression.

use netcl_nn::autograd::DType;
use netcl_nn::autograd::trace::{Attr, BinaryOp, Expr, ExprNode, Op, TernaryOp, UnaryOp};

use super::Handler;
use crate::export::builder::{Builder, Call, Trouble, Written, float};

pub(super) const TABLE: &[(&str, Handler)] = &[
    ("bitwise_and", logical),
    ("bitwise_or", logical),
    ("bitwise_xor", logical),
    ("logical_and", logical),
    ("logical_or", logical),
    ("logical_xor", logical),
    ("logical_not", logical),
    ("bitwise_not", logical),
    ("add", whole),
    ("sub", whole),
    ("mul", whole),
    ("neg", whole),
    ("abs", whole),
    ("sign", whole),
    ("maximum", whole),
    ("minimum", whole),
    ("remainder", whole),
    ("eq", compared),
    ("ne", compared),
    ("lt", compared),
    ("le", compared),
    ("gt", compared),
    ("ge", compared),
    ("where", chosen),
];

/// Writes an operation that says its expression.
pub(super) fn write(b: &mut Builder<'_>, call: &Call<'_>, expr: &Expr) -> Written {
    let scalars = match call.op.attribute("scalars") {
        Some(Attr::Floats(scalars)) => scalars.as_slice(),
        _ => &[],
    };
    let inputs = b.inputs(call)?;
    let dtype = call.op.inputs.first().map_or(DType::F32, |input| input.raw().dtype());
    let lengths = lengths(b, call, scalars, dtype)?;
    let named = if lengths.is_empty() { named(b, call.op.name, &inputs, scalars, dtype) } else { None };
    let made = match named {
        Some(made) => made,
        None => expression(b, expr, &inputs, (scalars, &lengths), dtype, call.dtype())?,
    };
    b.bind(&call.op.outputs[0], made);
    Ok(())
}

/// Scalars that are dynamic lengths, such as the divisor of a mean: which they are, and their names.
fn lengths(b: &mut Builder<'_>, call: &Call<'_>, scalars: &[f64], dtype: DType) -> Written<Vec<(usize, String)>> {
    let of = |op: &Op| match op.attribute("scalars") {
        Some(Attr::Floats(scalars)) => scalars.clone(),
        _ => Vec::new(),
    };
    let mut found = Vec::new();
    for (at, scalar) in scalars.iter().enumerate() {
        let all: Option<Vec<f64>> = call.twins.iter().map(|twin| of(twin).get(at).copied()).collect();
        let others = all.unwrap_or_default();
        if others.iter().all(|other| other.to_bits() == scalar.to_bits()) {
            continue;
        }
        if others.iter().chain([scalar]).any(|number| number.fract() != 0.0) {
            let what = "a number in it depends on a dynamic length";
            return Err(format!("{what}; make it fixed (dynamic_batch = false, or fewer dynamic_axes)").into());
        }
        let dims = b.dims(call, |op| vec![of(op)[at] as i64])?;
        let list = b.numbers(&dims)?;
        let none = b.list(&[]);
        let number = b.node("Reshape", &[&list, &none], vec![]);
        found.push((at, b.cast(&number, DType::I64, dtype)));
    }
    Ok(found)
}

/// The operator of an operation that has one with the same meaning.
fn named(b: &mut Builder<'_>, name: &str, inputs: &[String], scalars: &[f64], dtype: DType) -> Option<String> {
    let [x] = inputs else { return None };
    let attributes = |name: &str| scalars.first().map(|value| vec![float(name, *value)]).unwrap_or_default();
    Some(match (name, scalars) {
        ("relu", []) => b.node("Relu", &[x], vec![]),
        ("leaky_relu", [_]) => b.node("LeakyRelu", &[x], attributes("alpha")),
        ("elu", [_]) => b.node("Elu", &[x], attributes("alpha")),
        ("celu", [_]) if dtype == DType::F32 => b.node("Celu", &[x], attributes("alpha")),
        ("selu", []) => b.node("Selu", &[x], vec![]),
        ("softsign", []) => b.node("Softsign", &[x], vec![]),
        ("softplus", [1.0, 20.0]) => b.node("Softplus", &[x], vec![]),
        ("mish", []) => b.node("Mish", &[x], vec![]),
        ("hardswish", []) => b.node("HardSwish", &[x], vec![]),
        ("hardsigmoid", []) => b.node("HardSigmoid", &[x], vec![float("alpha", 1.0 / 6.0), float("beta", 0.5)]),
        ("clamp" | "hardtanh", &[low, high]) => clip(b, x, low, high, dtype),
        ("relu6", []) => clip(b, x, 0.0, 6.0, dtype),
        ("reciprocal", []) => b.node("Reciprocal", &[x], vec![]),
        ("isnan", []) => b.node("IsNaN", &[x], vec![]),
        _ => return None,
    })
}

fn clip(b: &mut Builder<'_>, x: &str, low: f64, high: f64, dtype: DType) -> String {
    let mut bound = |value: f64| if value.is_finite() { b.scalar(dtype, value) } else { String::new() };
    let (low, high) = (bound(low), bound(high));
    match (low.is_empty(), high.is_empty()) {
        (_, false) => b.node("Clip", &[x, &low, &high], vec![]),
        (false, true) => b.node("Clip", &[x, &low], vec![]),
        (true, true) => b.node("Identity", &[x], vec![]),
    }
}

/// A part of an expression: its name, and whether it is a truth value instead of a number.
#[derive(Clone)]
struct Part {
    name: String,
    truth: bool,
}

struct Writer<'b, 't> {
    b: &'b mut Builder<'t>,
    dtype: DType,
}

fn expression(
    b: &mut Builder<'_>,
    expr: &Expr,
    inputs: &[String],
    (scalars, lengths): (&[f64], &[(usize, String)]),
    dtype: DType,
    out: DType,
) -> Written<String> {
    let mut w = Writer { b, dtype };
    let mut parts: Vec<Part> = Vec::with_capacity(expr.nodes().len());
    for node in expr.nodes() {
        let part = |id: &netcl_nn::autograd::trace::ExprId| parts[id.index()].clone();
        let made = match node {
            ExprNode::Input(at) => Part { name: inputs[usize::from(*at)].clone(), truth: false },
            ExprNode::Scalar(at) if let Some((_, name)) = lengths.iter().find(|(one, _)| *one == usize::from(*at)) => {
                Part { name: name.clone(), truth: false }
            }
            ExprNode::Scalar(at) => w.constant(scalars.get(usize::from(*at)).copied().unwrap_or(f64::NAN)),
            ExprNode::Const(literal) => w.constant(literal.value()),
            ExprNode::Unary(op, x) => w.unary(*op, part(x))?,
            ExprNode::Binary(op, x, y) => w.binary(*op, part(x), part(y)),
            ExprNode::Ternary(TernaryOp::Select, c, x, y) => w.select(part(c), part(x), part(y)),
            ExprNode::Ternary(TernaryOp::Fma, x, y, z) => {
                let product = w.binary(BinaryOp::Mul, part(x), part(y));
                w.binary(BinaryOp::Add, product, part(z))
            }
        };
        parts.push(made);
    }
    let result = parts[expr.outputs()[0].index()].clone();
    Ok(if out == DType::U8 { w.truth(result) } else { w.number(result) })
}

impl Writer<'_, '_> {
    fn constant(&mut self, value: f64) -> Part {
        Part { name: self.b.scalar(self.dtype, value), truth: false }
    }

    fn number(&mut self, part: Part) -> String {
        if part.truth { self.b.cast(&part.name, DType::U8, self.dtype) } else { part.name }
    }

    fn truth(&mut self, part: Part) -> String {
        if part.truth { part.name } else { self.b.cast(&part.name, self.dtype, DType::U8) }
    }

    fn node(&mut self, operator: &str, inputs: &[&str]) -> Part {
        Part { name: self.b.node(operator, inputs, vec![]), truth: false }
    }

    /// `operator(factor * x) * scale + shift`, without what is neutral.
    fn scaled(&mut self, operator: &str, x: &str, factor: f64, scale: f64, shift: f64) -> Part {
        let mut name = x.to_owned();
        let times = |w: &mut Self, name: String, by: f64| {
            if by == 1.0 {
                return name;
            }
            let by = w.b.scalar(w.dtype, by);
            w.b.node("Mul", &[&name, &by], vec![])
        };
        name = times(self, name, factor);
        name = self.b.node(operator, &[&name], vec![]);
        name = times(self, name, scale);
        if shift != 0.0 {
            let shift = self.b.scalar(self.dtype, shift);
            name = self.b.node("Add", &[&name, &shift], vec![]);
        }
        Part { name, truth: false }
    }

    fn unary(&mut self, op: UnaryOp, x: Part) -> Written<Part> {
        use std::f64::consts::{FRAC_1_SQRT_2, LN_2, LOG2_E, LOG10_E};
        let x = self.number(x);
        let plain = match op {
            UnaryOp::Neg => "Neg",
            UnaryOp::Abs => "Abs",
            UnaryOp::Sign => "Sign",
            UnaryOp::Floor => "Floor",
            UnaryOp::Ceil => "Ceil",
            UnaryOp::Round => "Round",
            UnaryOp::Sqrt => "Sqrt",
            UnaryOp::Exp => "Exp",
            UnaryOp::Log => "Log",
            UnaryOp::Sin => "Sin",
            UnaryOp::Cos => "Cos",
            UnaryOp::Tan => "Tan",
            UnaryOp::Tanh => "Tanh",
            UnaryOp::Sigmoid => "Sigmoid",
            UnaryOp::Erf => "Erf",
            UnaryOp::Sinh => "Sinh",
            UnaryOp::Cosh => "Cosh",
            UnaryOp::Asin => "Asin",
            UnaryOp::Acos => "Acos",
            UnaryOp::Atan => "Atan",
            UnaryOp::Asinh => "Asinh",
            UnaryOp::Acosh => "Acosh",
            UnaryOp::Atanh => "Atanh",
            UnaryOp::Rsqrt => {
                let root = self.b.node("Sqrt", &[&x], vec![]);
                return Ok(self.node("Reciprocal", &[&root]));
            }
            UnaryOp::Expm1 => return Ok(self.scaled("Exp", &x, 1.0, 1.0, -1.0)),
            UnaryOp::Log1p => {
                let one = self.b.scalar(self.dtype, 1.0);
                let sum = self.b.node("Add", &[&x, &one], vec![]);
                return Ok(self.node("Log", &[&sum]));
            }
            UnaryOp::NormCdf => return Ok(self.scaled("Erf", &x, FRAC_1_SQRT_2, 0.5, 0.5)),
            UnaryOp::Erfc => return Ok(self.scaled("Erf", &x, 1.0, -1.0, 1.0)),
            UnaryOp::Exp2 => return Ok(self.scaled("Exp", &x, LN_2, 1.0, 0.0)),
            UnaryOp::Log2 => return Ok(self.scaled("Log", &x, 1.0, LOG2_E, 0.0)),
            UnaryOp::Log10 => return Ok(self.scaled("Log", &x, 1.0, LOG10_E, 0.0)),
            UnaryOp::Trunc => {
                let sign = self.b.node("Sign", &[&x], vec![]);
                let magnitude = self.b.node("Abs", &[&x], vec![]);
                let whole = self.b.node("Floor", &[&magnitude], vec![]);
                return Ok(self.node("Mul", &[&sign, &whole]));
            }
            UnaryOp::ToF16 | UnaryOp::ToBf16 => {
                let narrow = if op == UnaryOp::ToF16 { DType::F16 } else { DType::BF16 };
                let rounded = self.b.cast(&x, self.dtype, narrow);
                return Ok(Part { name: self.b.cast(&rounded, narrow, self.dtype), truth: false });
            }
        };
        Ok(self.node(plain, &[&x]))
    }

    fn binary(&mut self, op: BinaryOp, x: Part, y: Part) -> Part {
        let (x, y) = (self.number(x), self.number(y));
        match op {
            BinaryOp::Add => self.node("Add", &[&x, &y]),
            BinaryOp::Sub => self.node("Sub", &[&x, &y]),
            BinaryOp::Mul => self.node("Mul", &[&x, &y]),
            BinaryOp::Div => self.node("Div", &[&x, &y]),
            BinaryOp::Min => self.node("Min", &[&x, &y]),
            BinaryOp::Max => self.node("Max", &[&x, &y]),
            BinaryOp::Pow => self.node("Pow", &[&x, &y]),
            BinaryOp::Fmod => {
                let name = self.b.node("Mod", &[&x, &y], vec![crate::export::builder::int("fmod", 1)]);
                Part { name, truth: false }
            }
            BinaryOp::Atan2 => self.atan2(&x, &y),
            comparison => Part { name: compare(self.b, comparison, &x, &y), truth: true },
        }
    }

    fn select(&mut self, condition: Part, x: Part, y: Part) -> Part {
        let condition = self.truth(condition);
        let (x, y) = (self.number(x), self.number(y));
        self.node("Where", &[&condition, &x, &y])
    }

    /// The angle of the point (x, y), which ONNX does not have: `atan(y / x)`, half a turn further to the left of the origin.
    fn atan2(&mut self, y: &str, x: &str) -> Part {
        let pi = std::f64::consts::PI;
        let [zero, half_turn, back] = [0.0, pi, -pi].map(|value| self.b.scalar(self.dtype, value));
        // Minus zero would turn infinities around.
        let above = self.b.node("Equal", &[x, &zero], vec![]);
        let x = self.b.node("Where", &[&above, &zero, x], vec![]);
        let ratio = self.b.node("Div", &[y, &x], vec![]);
        let angle = self.b.node("Atan", &[&ratio], vec![]);
        let below = self.b.node("Less", &[y, &zero], vec![]);
        let turn = self.b.node("Where", &[&below, &back, &half_turn], vec![]);
        let left = self.b.node("Less", &[&x, &zero], vec![]);
        let turn = self.b.node("Where", &[&left, &turn, &zero], vec![]);
        let angle = self.b.node("Add", &[&angle, &turn], vec![]);
        // At the origin there is nothing to divide by.
        let on_axis = self.b.node("Equal", &[y, &zero], vec![]);
        self.node("Where", &[&on_axis, &turn, &angle])
    }
}

/// A comparison: a truth value.
fn compare(b: &mut Builder<'_>, op: BinaryOp, x: &str, y: &str) -> String {
    let operator = match op {
        BinaryOp::Lt => "Less",
        BinaryOp::Le => "LessOrEqual",
        BinaryOp::Gt => "Greater",
        BinaryOp::Ge => "GreaterOrEqual",
        _ => "Equal",
    };
    let made = b.node(operator, &[x, y], vec![]);
    if op == BinaryOp::Ne { b.node("Not", &[&made], vec![]) } else { made }
}

// ---- whole numbers and truth values ----------------------------------------------------------------------------------

/// The operands in one dtype.
fn alike(b: &mut Builder<'_>, call: &Call<'_>, dtype: DType) -> Written<Vec<String>> {
    let names = b.inputs(call)?;
    let cast = |(name, input): (&String, &netcl_nn::autograd::trace::Value)| b.cast(name, input.raw().dtype(), dtype);
    Ok(names.iter().zip(&call.op.inputs).map(cast).collect())
}

fn bind(b: &mut Builder<'_>, call: &Call<'_>, made: String) -> Written {
    b.bind(&call.op.outputs[0], made);
    Ok(())
}

fn operator(b: &mut Builder<'_>, operator: &str, inputs: &[String]) -> String {
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    b.node(operator, &inputs, vec![])
}

fn whole(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let dtype = call.dtype();
    // Truth values have no arithmetic of their own: a product is a conjunction.
    if dtype == DType::U8 {
        let inputs = alike(b, call, dtype)?;
        let made = operator(b, if matches!(call.op.name, "mul" | "minimum") { "And" } else { "Or" }, &inputs);
        return bind(b, call, made);
    }
    let inputs = alike(b, call, dtype)?;
    let name = match call.op.name {
        "add" => "Add",
        "sub" => "Sub",
        "mul" => "Mul",
        "neg" => "Neg",
        "abs" => "Abs",
        "sign" => "Sign",
        "maximum" => "Max",
        "minimum" => "Min",
        _ => "Mod",
    };
    let made = operator(b, name, &inputs);
    bind(b, call, made)
}

fn logical(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    if call.dtype() != DType::U8 {
        return Err(Trouble::Said("bits of whole numbers have no operator in this operator set".to_owned()));
    }
    let inputs = alike(b, call, DType::U8)?;
    let name = match call.op.name {
        "bitwise_and" | "logical_and" => "And",
        "bitwise_or" | "logical_or" => "Or",
        "bitwise_xor" | "logical_xor" => "Xor",
        _ => "Not",
    };
    let made = operator(b, name, &inputs);
    bind(b, call, made)
}

fn compared(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    // Truth values are compared as numbers; int64 holds all of them.
    let dtypes = || call.op.inputs.iter().map(|input| input.raw().dtype());
    let dtype = if dtypes().all(|dtype| dtype == DType::I32) { DType::I32 } else { DType::I64 };
    let inputs = alike(b, call, dtype)?;
    let op = match call.op.name {
        "ne" => BinaryOp::Ne,
        "lt" => BinaryOp::Lt,
        "le" => BinaryOp::Le,
        "gt" => BinaryOp::Gt,
        "ge" => BinaryOp::Ge,
        _ => BinaryOp::Eq,
    };
    let made = compare(b, op, &inputs[0], &inputs[1]);
    bind(b, call, made)
}

fn chosen(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    let names = b.inputs(call)?;
    let dtypes: Vec<DType> = call.op.inputs.iter().map(|input| input.raw().dtype()).collect();
    let condition = b.cast(&names[0], dtypes[0], DType::U8);
    let [x, y] = [1, 2].map(|at| b.cast(&names[at], dtypes[at], call.dtype()));
    let made = b.node("Where", &[&condition, &x, &y], vec![]);
    bind(b, call, made)
}
