//! Arithmetic, comparisons, logic and bits, element by element with broadcasting; Where, Clip, Cast.

use netcl_nn::autograd::ops::elementwise::{self as ours, Operand, apply};
use netcl_nn::autograd::{DType, Result, Tensor};

use super::{Op, Table, one};
use crate::array::{Array, Data, bad, broadcast};
use crate::kind::{Kind, Overflow};
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("Abs", unary as Op),
    ("Acos", unary),
    ("Acosh", unary),
    ("Add", binary),
    ("And", binary),
    ("Asin", unary),
    ("Asinh", unary),
    ("Atan", unary),
    ("Atanh", unary),
    ("BitCast", bit_cast),
    ("BitShift", binary),
    ("BitwiseAnd", binary),
    ("BitwiseNot", not),
    ("BitwiseOr", binary),
    ("BitwiseXor", binary),
    ("Cast", cast),
    ("CastLike", cast_like),
    ("Ceil", unary),
    ("Clip", clip),
    ("Cos", unary),
    ("Cosh", unary),
    ("Div", binary),
    ("Equal", binary),
    ("Erf", unary),
    ("Exp", unary),
    ("Floor", unary),
    ("Greater", binary),
    ("GreaterOrEqual", binary),
    ("Identity", identity),
    ("IsInf", is_inf),
    ("IsNaN", is_nan),
    ("Less", binary),
    ("LessOrEqual", binary),
    ("Log", unary),
    ("Max", several),
    ("Mean", mean),
    ("Min", several),
    ("Mod", binary),
    ("Mul", binary),
    ("Neg", unary),
    ("Not", not),
    ("Or", binary),
    ("Pow", pow),
    ("Reciprocal", unary),
    ("Round", unary),
    ("Sign", unary),
    ("Sin", unary),
    ("Sinh", unary),
    ("Sqrt", unary),
    ("Sub", binary),
    ("Sum", several),
    ("Tan", unary),
    ("Tanh", unary),
    ("Where", where_),
    ("Xor", binary),
];

type OnFloats = fn(f64) -> f64;

/// ONNX's name, ours, and how constants are computed on the host where that is worth having.
const UNARY: &[(&str, &str, Option<OnFloats>)] = &[
    ("Abs", "abs", Some(f64::abs)),
    ("Acos", "acos", None),
    ("Acosh", "acosh", None),
    ("Asin", "asin", None),
    ("Asinh", "asinh", None),
    ("Atan", "atan", None),
    ("Atanh", "atanh", None),
    ("Ceil", "ceil", Some(f64::ceil)),
    ("Cos", "cos", None),
    ("Cosh", "cosh", None),
    ("Erf", "erf", None),
    ("Exp", "exp", Some(f64::exp)),
    ("Floor", "floor", Some(f64::floor)),
    ("Log", "log", Some(f64::ln)),
    ("Neg", "neg", Some(|x| -x)),
    ("Reciprocal", "reciprocal", Some(f64::recip)),
    ("Round", "round", Some(f64::round_ties_even)),
    ("Sign", "sign", Some(|x| if x == 0.0 || x.is_nan() { x } else { x.signum() })),
    ("Sin", "sin", None),
    ("Sinh", "sinh", None),
    ("Sqrt", "sqrt", Some(f64::sqrt)),
    ("Tan", "tan", None),
    ("Tanh", "tanh", None),
];

fn unary(call: &Call<'_>) -> Result<Vec<Value>> {
    let (_, name, host) = lookup(UNARY, call, |row| row.0)?;
    match (call.value(0)?, host) {
        (Value::Array(array), Some(f)) if array.kind.is_float() => one(array.map_floats(f)?),
        (Value::Array(array), _) if !array.kind.is_float() => one(whole(name, array)?),
        (value, _) => one(apply(name, &[Operand::Tensor(&value.to_tensor(call.queue)?)], &[])?),
    }
}

fn whole(name: &str, array: &Array) -> Result<Array> {
    let f: fn(i128) -> i128 = match name {
        "abs" => i128::abs,
        "neg" => |x| -x,
        "sign" => i128::signum,
        "ceil" | "floor" | "round" => |x| x,
        _ => return Err(bad(format!("{name} takes fractions, got {}", array.kind.name()))),
    };
    let kind = array.kind;
    let data = array.to_ints()?.into_iter().map(|v| kind.wrap(f(kind.widen(v)))).collect();
    Ok(Array::ints(kind, array.shape.clone(), data))
}

fn lookup<T: Copy>(table: &[T], call: &Call<'_>, name: impl Fn(&T) -> &'static str) -> Result<T> {
    let found = table.iter().find(|row| name(row) == call.node.operator);
    found.copied().ok_or_else(|| bad(format!("{} has no row", call.node.operator)))
}

/// How an operation of two operands is computed.
#[derive(Clone, Copy)]
struct Binary {
    name: &'static str,
    /// The operation on a device, for fractions and for whole numbers.
    floats: Option<&'static str>,
    wholes: Option<&'static str>,
    /// The operation on the host.
    on_ints: fn(i128, i128) -> i128,
    on_floats: fn(f64, f64) -> f64,
    truth: bool,
}

const fn row(
    name: &'static str,
    floats: Option<&'static str>,
    wholes: Option<&'static str>,
    on_ints: fn(i128, i128) -> i128,
    on_floats: fn(f64, f64) -> f64,
    truth: bool,
) -> Binary {
    Binary { name, floats, wholes, on_ints, on_floats, truth }
}

macro_rules! comparison {
    ($name:literal $ours:literal $op:tt) => {
        row($name, Some($ours), Some($ours), |x, y| (x $op y) as i128, |x, y| f64::from(x $op y), true)
    };
}

const NONE: fn(f64, f64) -> f64 = |_, _| f64::NAN;

const BINARY: &[Binary] = &[
    row("Add", Some("add"), Some("add"), |x, y| x + y, |x, y| x + y, false),
    row("Sub", Some("sub"), Some("sub"), |x, y| x - y, |x, y| x - y, false),
    row("Mul", Some("mul"), Some("mul"), |x, y| x.wrapping_mul(y), |x, y| x * y, false),
    row("Div", Some("div"), None, |x, y| x.checked_div(y).unwrap_or(0), |x, y| x / y, false),
    row("Mod", Some("fmod"), Some("remainder"), |x, y| if y == 0 { 0 } else { ((x % y) + y) % y }, |x, y| x % y, false),
    row(
        "Max",
        Some("maximum"),
        Some("maximum"),
        |x, y| x.max(y),
        |x, y| if x.is_nan() || x > y { x } else { y },
        false,
    ),
    row(
        "Min",
        Some("minimum"),
        Some("minimum"),
        |x, y| x.min(y),
        |x, y| if x.is_nan() || x < y { x } else { y },
        false,
    ),
    row("Sum", Some("add"), Some("add"), |x, y| x + y, |x, y| x + y, false),
    comparison!("Equal" "eq" ==),
    comparison!("Greater" "gt" >),
    comparison!("GreaterOrEqual" "ge" >=),
    comparison!("Less" "lt" <),
    comparison!("LessOrEqual" "le" <=),
    row("And", None, Some("bitwise_and"), |x, y| x & y, NONE, false),
    row("Or", None, Some("bitwise_or"), |x, y| x | y, NONE, false),
    row("Xor", None, Some("bitwise_xor"), |x, y| x ^ y, NONE, false),
    row("BitwiseAnd", None, Some("bitwise_and"), |x, y| x & y, NONE, false),
    row("BitwiseOr", None, Some("bitwise_or"), |x, y| x | y, NONE, false),
    row("BitwiseXor", None, Some("bitwise_xor"), |x, y| x ^ y, NONE, false),
    row("BitShiftLEFT", None, None, |x, y| if (0..64).contains(&y) { x << y } else { 0 }, NONE, false),
    row("BitShiftRIGHT", None, None, |x, y| x >> y.clamp(0, 127), NONE, false),
];

fn binary(call: &Call<'_>) -> Result<Vec<Value>> {
    let how = match call.node.operator.as_str() {
        "BitShift" => {
            let name = format!("BitShift{}", call.text("direction").unwrap_or("LEFT"));
            *BINARY.iter().find(|row| row.name == name).ok_or_else(|| bad("direction is LEFT or RIGHT"))?
        }
        _ => lookup(BINARY, call, |row| row.name)?,
    };
    let how = match how.name {
        "Mod" if call.flag("fmod") => Binary { wholes: None, on_ints: |x, y| x.checked_rem(y).unwrap_or(0), ..how },
        // The sign of the divisor, also for fractions.
        "Mod" => Binary { floats: Some("remainder"), on_floats: |x, y| x - y * (x / y).floor(), ..how },
        _ => how,
    };
    one(combine(call, how, call.value(0)?, call.value(1)?)?)
}

fn combine(call: &Call<'_>, how: Binary, a: &Value, b: &Value) -> Result<Value> {
    let (kind, other) = (a.kind()?, b.kind()?);
    let on_host = matches!((a, b), (Value::Array(_), Value::Array(_)));
    let name = if kind.is_float() { how.floats } else { how.wholes };
    if let Some(name) = name.filter(|_| !on_host && kind == other && kind.dtype().is_some()) {
        let (a, b) = (a.to_tensor(call.queue)?, b.to_tensor(call.queue)?);
        let result = apply(name, &[Operand::Tensor(&a), Operand::Tensor(&b)], &[])?;
        return Ok(if how.truth { truth(&result)? } else { result }.into());
    }
    Ok(on_arrays(how, &a.to_array()?, &b.to_array()?)?.into())
}

/// A comparison's result as truth values.
fn truth(result: &Tensor) -> Result<Tensor> {
    if result.dtype() == DType::U8 { Ok(result.clone()) } else { result.cast(DType::U8) }
}

fn on_arrays(how: Binary, a: &Array, b: &Array) -> Result<Array> {
    let shape = broadcast(&a.shape, &b.shape)?;
    let (kind, a, b) = (a.kind, a.expanded(&shape)?, b.expanded(&shape)?);
    if let (Data::Texts(x), Data::Texts(y)) = (&a.data, &b.data) {
        let equal = x.iter().zip(y).map(|(x, y)| i64::from(x == y)).collect();
        return Ok(Array::ints(Kind::Bool, shape, equal));
    }
    if kind.is_float() || b.kind.is_float() {
        let values = a.to_floats()?.into_iter().zip(b.to_floats()?).map(|(x, y)| (how.on_floats)(x, y));
        return Ok(match how.truth {
            true => Array::ints(Kind::Bool, shape, values.map(|v| v as i64).collect()),
            false => Array::floats(kind, shape, values.map(|v| kind.round(v, Overflow::Infinite)).collect()),
        });
    }
    let result = if how.truth { Kind::Bool } else { kind };
    let values = a.to_ints()?.into_iter().zip(b.to_ints()?);
    let values = values.map(|(x, y)| result.wrap((how.on_ints)(kind.widen(x), b.kind.widen(y)))).collect();
    Ok(Array::ints(result, shape, values))
}

/// Max, Min and Sum of any number of operands.
fn several(call: &Call<'_>) -> Result<Vec<Value>> {
    let how = lookup(BINARY, call, |row| row.name)?;
    let mut result = call.value(0)?.clone();
    for i in 1..call.inputs.len() {
        result = combine(call, how, &result, call.value(i)?)?;
    }
    one(result)
}

fn mean(call: &Call<'_>) -> Result<Vec<Value>> {
    let mut sum = call.tensor(0)?;
    for i in 1..call.inputs.len() {
        sum = (&sum + &call.tensor(i)?)?;
    }
    one((sum * (1.0 / call.inputs.len() as f64))?)
}

/// The exponent may have another type; the base's is the result's.
fn pow(call: &Call<'_>) -> Result<Vec<Value>> {
    let kind = call.kind()?;
    if kind.is_float() && call.fits_device() && !call.on_host() {
        let (x, y) = (call.tensor(0)?, call.tensor(1)?);
        let y = if y.dtype() == x.dtype() { y } else { y.cast(x.dtype())? };
        return one(x.pow(&y)?);
    }
    let (x, y) = (call.array(0)?, call.array(1)?);
    let whole = !kind.is_float() && !y.kind.is_float();
    let how = row("Pow", None, None, whole_power, f64::powf, false);
    if whole {
        return one(on_arrays(how, &x, &y)?);
    }
    let x = if kind.is_float() { x } else { x.cast(Kind::F64, Overflow::Infinite)? };
    one(on_arrays(how, &x, &y)?.cast(kind, Overflow::Infinite)?)
}

/// A power of whole numbers, of which the lowest bits count.
fn whole_power(x: i128, y: i128) -> i128 {
    if y < 0 {
        // A fraction, which is cut, but for 1 and -1.
        return if x.abs() == 1 { whole_power(x, -y) } else { 0 };
    }
    let (mut power, mut base, mut left) = (1i128, x, y);
    while left > 0 {
        if left % 2 == 1 {
            power = power.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        left /= 2;
    }
    power
}

fn not(call: &Call<'_>) -> Result<Vec<Value>> {
    let kind = call.kind()?;
    match call.value(0)? {
        Value::Tensor(x) => one(truth_of(apply("bitwise_not", &[Operand::Tensor(x)], &[])?, kind)?),
        value => {
            let array = value.to_array()?;
            let flip = |v: i64| if kind == Kind::Bool { i64::from(v == 0) } else { kind.wrap(!kind.widen(v)) };
            one(Array::ints(kind, array.shape.clone(), array.to_ints()?.into_iter().map(flip).collect()))
        }
    }
}

fn truth_of(result: Tensor, kind: Kind) -> Result<Tensor> {
    match kind.dtype() {
        Some(dtype) if dtype != result.dtype() => result.cast(dtype),
        _ => Ok(result),
    }
}

fn is_nan(call: &Call<'_>) -> Result<Vec<Value>> {
    one(truth(&apply("isnan", &[Operand::Tensor(&call.tensor(0)?)], &[])?)?)
}

fn is_inf(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let sides = (call.int("detect_positive", 1) != 0, call.int("detect_negative", 1) != 0);
    let equal = |to: f64| apply("eq", &[Operand::Tensor(&x), Operand::Number(to)], &[]);
    one(truth(&match sides {
        (true, true) => apply("isinf", &[Operand::Tensor(&x)], &[])?,
        (true, false) => equal(f64::INFINITY)?,
        (false, true) => equal(f64::NEG_INFINITY)?,
        (false, false) => apply("ne", &[Operand::Tensor(&x), Operand::Tensor(&x)], &[])?.zeros_like()?,
    })?)
}

fn identity(call: &Call<'_>) -> Result<Vec<Value>> {
    one(call.inputs.first().cloned().flatten().unwrap_or(Value::None))
}

fn clip(call: &Call<'_>) -> Result<Vec<Value>> {
    let attribute = |name| call.attribute(name).map(|_| call.float(name, 0.0));
    let kind = call.kind()?;
    if let (Value::Tensor(x), true) = (call.value(0)?, kind.is_float()) {
        let low = call.number(1)?.or(attribute("min"));
        let high = call.number(2)?.or(attribute("max"));
        return one(match (low, high) {
            (None, None) => x.clone(),
            // Where the bounds cross, the upper one holds.
            (Some(low), Some(high)) if low > high => ours::clamp(x, high, high)?,
            _ => ours::clamp(x, low, high)?,
        });
    }
    let mut x = call.array(0)?;
    for (input, name, operation) in [(1, "min", "Max"), (2, "max", "Min")] {
        let bound = match (call.optional(input), attribute(name)) {
            (Some(bound), _) => bound.to_array()?,
            (None, Some(bound)) => Array::full(kind, vec![], bound)?,
            (None, None) => continue,
        };
        let row = BINARY.iter().find(|row| row.name == operation).copied().ok_or_else(|| bad("no such row"))?;
        x = on_arrays(row, &x, &bound)?;
    }
    one(x)
}

fn where_(call: &Call<'_>) -> Result<Vec<Value>> {
    let kind = call.value(1)?.kind()?;
    let floats_on_device = call.fits_device() && !call.on_host() && kind.is_float();
    if floats_on_device {
        let (condition, x, y) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
        return one(ours::where_(&condition, &x, &y)?);
    }
    let (condition, x, y) = (call.array(0)?, call.array(1)?, call.array(2)?);
    let shape = broadcast(&broadcast(&condition.shape, &x.shape)?, &y.shape)?;
    let condition = condition.expanded(&shape)?.to_ints()?;
    let n = condition.len();
    let both = Array::joined(&[x.expanded(&shape)?.reshaped(vec![n])?, y.expanded(&shape)?.reshaped(vec![n])?], 0)?;
    let places: Vec<usize> = condition.iter().enumerate().map(|(i, &c)| if c != 0 { i } else { i + n }).collect();
    one(both.take(&places, shape)?)
}

fn cast(call: &Call<'_>) -> Result<Vec<Value>> {
    let code = call.int("to", 0);
    let kind = Kind::of_code(code).ok_or_else(|| bad(format!("element type {code} is not supported")))?;
    cast_to(call, kind)
}

fn cast_like(call: &Call<'_>) -> Result<Vec<Value>> {
    cast_to(call, call.value(1)?.kind()?)
}

fn cast_to(call: &Call<'_>, kind: Kind) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let from = value.kind()?;
    if from == kind {
        return one(value.clone());
    }
    let overflow = if call.int("saturate", 1) != 0 { Overflow::Saturate } else { Overflow::Infinite };
    match (value, kind.dtype()) {
        (Value::Tensor(x), Some(DType::U8)) => one(truth(&apply(
            "ne",
            &[
                Operand::Tensor(x),
                match from.is_float() {
                    true => Operand::Number(0.0),
                    false => Operand::Whole(0),
                },
            ],
            &[],
        )?)?),
        (Value::Tensor(x), Some(dtype)) => one(x.cast(dtype)?),
        (value, _) => {
            let array = match (call.text("round_mode"), kind) {
                (Some(mode), Kind::E8M0) => round_e8m0(&value.to_array()?, mode)?,
                _ => value.to_array()?.cast(kind, overflow)?,
            };
            one(array)
        }
    }
}

/// Powers of two, rounded in one of the ways that ONNX names.
fn round_e8m0(array: &Array, mode: &str) -> Result<Array> {
    let round = |v: f64| {
        let (low, down) = (v.log2().floor(), 2f64.powf(v.log2().floor()));
        let up = match mode {
            "up" => v > down,
            "nearest" => v >= 1.5 * down,
            _ => false,
        };
        2f64.powf(if up { low + 1.0 } else { low })
    };
    let data = array.to_floats()?.into_iter().map(|v| if v > 0.0 { round(v) } else { v }).collect();
    Array::floats(Kind::F64, array.shape.clone(), data).cast(Kind::E8M0, Overflow::Saturate)
}

/// The same bits as another type of the same width.
fn bit_cast(call: &Call<'_>) -> Result<Vec<Value>> {
    let code = call.int("to", 0);
    let kind = Kind::of_code(code).ok_or_else(|| bad(format!("element type {code} is not supported")))?;
    let array = call.array(0)?;
    if kind == Kind::Text {
        return Err(bad("strings have no bits to cast to"));
    }
    if array.kind.bits() != kind.bits() {
        return Err(bad(format!("{} and {} have not the same width", array.kind.name(), kind.name())));
    }
    let bits: Vec<u64> = match (&array.data, array.kind) {
        (Data::Ints(data), _) => data.iter().map(|&v| v as u64).collect(),
        (Data::Floats(data), Kind::F64) => data.iter().map(|v| v.to_bits()).collect(),
        (Data::Floats(data), Kind::F32) => data.iter().map(|&v| u64::from((v as f32).to_bits())).collect(),
        (Data::Floats(data), Kind::F16) => data.iter().map(|&v| u64::from(half::f16::from_f64(v).to_bits())).collect(),
        (Data::Floats(data), Kind::BF16) => {
            data.iter().map(|&v| u64::from(half::bf16::from_f64(v).to_bits())).collect()
        }
        (Data::Floats(data), kind) => data.iter().map(|&v| u64::from(kind.encode(v))).collect(),
        (Data::Texts(_), _) => return Err(bad("strings have no bits to cast")),
    };
    let float = |bits: u64| match kind {
        Kind::F64 => f64::from_bits(bits),
        Kind::F32 => f64::from(f32::from_bits(bits as u32)),
        Kind::F16 => half::f16::from_bits(bits as u16).to_f64(),
        Kind::BF16 => half::bf16::from_bits(bits as u16).to_f64(),
        kind => kind.decode(bits as u32 & ((1 << kind.bits()) - 1)),
    };
    one(if kind.is_float() {
        Array::floats(kind, array.shape, bits.into_iter().map(float).collect())
    } else {
        Array::ints(kind, array.shape, bits.into_iter().map(|bits| kind.wrap(i128::from(bits))).collect())
    })
}
