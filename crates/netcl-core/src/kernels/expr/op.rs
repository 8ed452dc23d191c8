//! The primitive operations and what they mean, stated once, in f64.

use half::{bf16, f16};

/// An operation of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum UnaryOp {
    /// `-x`.
    Neg,
    /// `|x|`.
    Abs,
    /// -1, 0 or 1; zeros keep their sign and NaN stays NaN.
    Sign,
    /// The largest whole number not above `x`.
    Floor,
    /// The smallest whole number not below `x`.
    Ceil,
    /// The nearest whole number; halves go to the even neighbour.
    Round,
    /// Square root.
    Sqrt,
    /// `1 / sqrt(x)`.
    Rsqrt,
    /// e to the power of `x`.
    Exp,
    /// `exp(x) - 1` without cancellation near zero.
    Expm1,
    /// Natural logarithm.
    Log,
    /// `log(1 + x)` without cancellation near zero.
    Log1p,
    /// Sine, of an angle in radians.
    Sin,
    /// Cosine.
    Cos,
    /// Tangent.
    Tan,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`, with full relative accuracy on both sides.
    Sigmoid,
    /// The error function.
    Erf,
    /// The distribution function of the standard normal, `erfc(-x / sqrt(2)) / 2`, accurate in the lower tail where
    /// `(1 + erf) / 2` cancels: what gelu needs.
    NormCdf,
    /// The whole number next to `x` towards zero.
    Trunc,
    /// 2 to the power of `x`.
    Exp2,
    /// Logarithm to base 2.
    Log2,
    /// Logarithm to base 10.
    Log10,
    /// Hyperbolic sine.
    Sinh,
    /// Hyperbolic cosine.
    Cosh,
    /// The angle whose sine is `x`.
    Asin,
    /// The angle whose cosine is `x`.
    Acos,
    /// The angle whose tangent is `x`.
    Atan,
    /// The number whose hyperbolic sine is `x`.
    Asinh,
    /// The number whose hyperbolic cosine is `x`.
    Acosh,
    /// The number whose hyperbolic tangent is `x`.
    Atanh,
    /// `1 - erf(x)`, accurate where that is small.
    Erfc,
    /// The nearest float16, ties to even: what storing and loading one gives.
    ToF16,
    /// The nearest bfloat16, ties to even.
    ToBf16,
}

impl UnaryOp {
    /// Every unary operation.
    pub const ALL: [UnaryOp; 34] = [
        UnaryOp::Neg,
        UnaryOp::Abs,
        UnaryOp::Sign,
        UnaryOp::Floor,
        UnaryOp::Ceil,
        UnaryOp::Round,
        UnaryOp::Sqrt,
        UnaryOp::Rsqrt,
        UnaryOp::Exp,
        UnaryOp::Expm1,
        UnaryOp::Log,
        UnaryOp::Log1p,
        UnaryOp::Sin,
        UnaryOp::Cos,
        UnaryOp::Tan,
        UnaryOp::Tanh,
        UnaryOp::Sigmoid,
        UnaryOp::Erf,
        UnaryOp::NormCdf,
        UnaryOp::Trunc,
        UnaryOp::Exp2,
        UnaryOp::Log2,
        UnaryOp::Log10,
        UnaryOp::Sinh,
        UnaryOp::Cosh,
        UnaryOp::Asin,
        UnaryOp::Acos,
        UnaryOp::Atan,
        UnaryOp::Asinh,
        UnaryOp::Acosh,
        UnaryOp::Atanh,
        UnaryOp::Erfc,
        UnaryOp::ToF16,
        UnaryOp::ToBf16,
    ];

    /// The name used in generated code and messages.
    pub const fn name(self) -> &'static str {
        match self {
            UnaryOp::Neg => "neg",
            UnaryOp::Abs => "abs",
            UnaryOp::Sign => "sign",
            UnaryOp::Floor => "floor",
            UnaryOp::Ceil => "ceil",
            UnaryOp::Round => "round",
            UnaryOp::Sqrt => "sqrt",
            UnaryOp::Rsqrt => "rsqrt",
            UnaryOp::Exp => "exp",
            UnaryOp::Expm1 => "expm1",
            UnaryOp::Log => "log",
            UnaryOp::Log1p => "log1p",
            UnaryOp::Sin => "sin",
            UnaryOp::Cos => "cos",
            UnaryOp::Tan => "tan",
            UnaryOp::Tanh => "tanh",
            UnaryOp::Sigmoid => "sigmoid",
            UnaryOp::Erf => "erf",
            UnaryOp::NormCdf => "normcdf",
            UnaryOp::Trunc => "trunc",
            UnaryOp::Exp2 => "exp2",
            UnaryOp::Log2 => "log2",
            UnaryOp::Log10 => "log10",
            UnaryOp::Sinh => "sinh",
            UnaryOp::Cosh => "cosh",
            UnaryOp::Asin => "asin",
            UnaryOp::Acos => "acos",
            UnaryOp::Atan => "atan",
            UnaryOp::Asinh => "asinh",
            UnaryOp::Acosh => "acosh",
            UnaryOp::Atanh => "atanh",
            UnaryOp::Erfc => "erfc",
            UnaryOp::ToF16 => "to_f16",
            UnaryOp::ToBf16 => "to_bf16",
        }
    }

    /// The value in f64: the reference every backend is measured against, and what constants fold with.
    pub fn eval(self, x: f64) -> f64 {
        match self {
            UnaryOp::Neg => -x,
            UnaryOp::Abs => x.abs(),
            UnaryOp::Sign => sign(x),
            UnaryOp::Floor => x.floor(),
            UnaryOp::Ceil => x.ceil(),
            UnaryOp::Round => x.round_ties_even(),
            UnaryOp::Sqrt => x.sqrt(),
            UnaryOp::Rsqrt => 1.0 / x.sqrt(),
            UnaryOp::Exp => x.exp(),
            UnaryOp::Expm1 => x.exp_m1(),
            UnaryOp::Log => x.ln(),
            UnaryOp::Log1p => x.ln_1p(),
            UnaryOp::Sin => x.sin(),
            UnaryOp::Cos => x.cos(),
            UnaryOp::Tan => x.tan(),
            UnaryOp::Tanh => x.tanh(),
            UnaryOp::Sigmoid => sigmoid(x),
            UnaryOp::Erf => libm::erf(x),
            UnaryOp::NormCdf => norm_cdf(x),
            UnaryOp::Trunc => x.trunc(),
            UnaryOp::Exp2 => x.exp2(),
            UnaryOp::Log2 => x.log2(),
            UnaryOp::Log10 => x.log10(),
            UnaryOp::Sinh => x.sinh(),
            UnaryOp::Cosh => x.cosh(),
            UnaryOp::Asin => x.asin(),
            UnaryOp::Acos => x.acos(),
            UnaryOp::Atan => x.atan(),
            UnaryOp::Asinh => libm::asinh(x),
            UnaryOp::Acosh => libm::acosh(x),
            UnaryOp::Atanh => libm::atanh(x),
            UnaryOp::Erfc => libm::erfc(x),
            // By way of f32, as the kernels do it.
            UnaryOp::ToF16 => f16::from_f32(x as f32).to_f64(),
            UnaryOp::ToBf16 => bf16::from_f32(x as f32).to_f64(),
        }
    }
}

/// An operation of two operands. Comparisons give 1 where they hold and 0 elsewhere; with a NaN only `Ne` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum BinaryOp {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a / b`.
    Div,
    /// The smaller operand; NaN if either is NaN, as in NumPy and PyTorch.
    Min,
    /// The larger operand; NaN if either is NaN.
    Max,
    /// `a` to the power of `b`, with C's rules for special values.
    Pow,
    /// What remains of `a` after whole multiples of `b`, with the sign of `a`.
    Fmod,
    /// The angle of the point with ordinate `a` and abscissa `b`.
    Atan2,
    /// `a == b`.
    Eq,
    /// `a != b`.
    Ne,
    /// `a < b`.
    Lt,
    /// `a <= b`.
    Le,
    /// `a > b`.
    Gt,
    /// `a >= b`.
    Ge,
}

impl BinaryOp {
    /// Every binary operation.
    pub const ALL: [BinaryOp; 15] = [
        BinaryOp::Add,
        BinaryOp::Sub,
        BinaryOp::Mul,
        BinaryOp::Div,
        BinaryOp::Min,
        BinaryOp::Max,
        BinaryOp::Pow,
        BinaryOp::Fmod,
        BinaryOp::Atan2,
        BinaryOp::Eq,
        BinaryOp::Ne,
        BinaryOp::Lt,
        BinaryOp::Le,
        BinaryOp::Gt,
        BinaryOp::Ge,
    ];

    /// The name used in generated code and messages.
    pub const fn name(self) -> &'static str {
        match self {
            BinaryOp::Add => "add",
            BinaryOp::Sub => "sub",
            BinaryOp::Mul => "mul",
            BinaryOp::Div => "div",
            BinaryOp::Min => "min",
            BinaryOp::Max => "max",
            BinaryOp::Pow => "pow",
            BinaryOp::Fmod => "fmod",
            BinaryOp::Atan2 => "atan2",
            BinaryOp::Eq => "eq",
            BinaryOp::Ne => "ne",
            BinaryOp::Lt => "lt",
            BinaryOp::Le => "le",
            BinaryOp::Gt => "gt",
            BinaryOp::Ge => "ge",
        }
    }

    /// The C operator of a comparison.
    pub const fn comparison(self) -> Option<&'static str> {
        match self {
            BinaryOp::Eq => Some("=="),
            BinaryOp::Ne => Some("!="),
            BinaryOp::Lt => Some("<"),
            BinaryOp::Le => Some("<="),
            BinaryOp::Gt => Some(">"),
            BinaryOp::Ge => Some(">="),
            _ => None,
        }
    }

    /// The value in f64.
    pub fn eval(self, a: f64, b: f64) -> f64 {
        let truth = |holds: bool| if holds { 1.0 } else { 0.0 };
        match self {
            BinaryOp::Add => a + b,
            BinaryOp::Sub => a - b,
            BinaryOp::Mul => a * b,
            BinaryOp::Div => a / b,
            BinaryOp::Min => {
                if a <= b || a.is_nan() {
                    a
                } else {
                    b
                }
            }
            BinaryOp::Max => {
                if a >= b || a.is_nan() {
                    a
                } else {
                    b
                }
            }
            BinaryOp::Pow => a.powf(b),
            BinaryOp::Fmod => a % b,
            BinaryOp::Atan2 => a.atan2(b),
            BinaryOp::Eq => truth(a == b),
            BinaryOp::Ne => truth(a != b),
            BinaryOp::Lt => truth(a < b),
            BinaryOp::Le => truth(a <= b),
            BinaryOp::Gt => truth(a > b),
            BinaryOp::Ge => truth(a >= b),
        }
    }
}

/// An operation of three operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum TernaryOp {
    /// `condition != 0 ? a : b`; NaN counts as true, as in C and NumPy.
    Select,
    /// `a * b + c`, rounded once. Nothing else is ever contracted.
    Fma,
}

impl TernaryOp {
    /// Every ternary operation.
    pub const ALL: [TernaryOp; 2] = [TernaryOp::Select, TernaryOp::Fma];

    /// The name used in generated code and messages.
    pub const fn name(self) -> &'static str {
        match self {
            TernaryOp::Select => "select",
            TernaryOp::Fma => "fma",
        }
    }

    /// The value in f64.
    pub fn eval(self, a: f64, b: f64, c: f64) -> f64 {
        match self {
            TernaryOp::Select => {
                if a != 0.0 {
                    b
                } else {
                    c
                }
            }
            TernaryOp::Fma => a.mul_add(b, c),
        }
    }
}

fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x
    }
}

fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    (if x >= 0.0 { 1.0 } else { e }) / (1.0 + e)
}

/// erfc is so steep in its tail that the rounding of `x / sqrt(2)` would cost hundreds of ulp; its error `d` is known
/// exactly thanks to fma, and `erfc(y + d) = erfc(y) * (1 - 2 * y * d)` to first order where y is not small.
pub(crate) fn norm_cdf(x: f64) -> f64 {
    const LOW: f64 = -4.833_646_656_726_457e-17;
    let y = -x * std::f64::consts::FRAC_1_SQRT_2;
    let d = (-x).mul_add(std::f64::consts::FRAC_1_SQRT_2, -y) - x * LOW;
    let r = 0.5 * libm::erfc(y);
    if y > 1.0 && y < 40.0 { r - r * (2.0 * y * d) } else { r }
}
