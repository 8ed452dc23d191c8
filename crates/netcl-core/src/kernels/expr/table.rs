//! The table of elementwise operations: one declaration each. Kernels, native loops, gradients, public functions and tests
//! are all made from it.

use super::{Expr, Graph, Val};

/// A run-time parameter of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Param {
    /// Its keyword.
    pub name: &'static str,
    /// Its value where none is given.
    pub default: f64,
}

/// The largest error of an operation over its whole domain, in units in the last place of the result. Results below the
/// smallest normal number are held to 128 units of the smallest subnormal instead.
///
/// 16-bit results come from the f32 computation rounded once and are within 1 ulp of their type throughout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ulp {
    /// Native f32 loops.
    pub native_f32: f64,
    /// Native f64 loops.
    pub native_f64: f64,
    /// OpenCL C in f32, from the limits the standard sets for its built-in functions.
    pub device_f32: f64,
    /// OpenCL C in f64.
    pub device_f64: f64,
}

/// An elementwise operation.
#[derive(Clone, Copy, Debug)]
pub struct OpDef {
    /// Its name: `gelu_tanh`.
    pub name: &'static str,
    /// What it computes, in one line.
    pub doc: &'static str,
    /// The names of its tensor operands.
    pub inputs: &'static [&'static str],
    /// Its run-time scalar parameters, in the order of the expression's scalars.
    pub params: &'static [Param],
    /// For each operand, the range in which tests draw random values (the special values come on top).
    pub domain: &'static [(f64, f64)],
    /// The stated accuracy.
    pub ulp: Ulp,
    build: for<'g> fn(&'g Graph) -> Val<'g>,
}

impl OpDef {
    /// The number of tensor operands.
    pub fn arity(&self) -> usize {
        self.inputs.len()
    }

    /// The expression, with one output.
    pub fn expr(&self) -> Expr {
        let g = Graph::new();
        let output = (self.build)(&g);
        g.finish_with(&[output], self.inputs.len(), self.params.len())
    }

    /// The operation applied to values of a graph: how expressions are put together from table entries. An operand or
    /// parameter that is not given keeps its own input or scalar number.
    pub fn apply<'g>(&self, g: &'g Graph, inputs: &[Val<'g>], params: &[Val<'g>]) -> Val<'g> {
        g.inline(&self.expr(), inputs, params)[0]
    }

    /// The parameters' default values.
    pub fn defaults(&self) -> Vec<f64> {
        self.params.iter().map(|p| p.default).collect()
    }
}

/// The whole table, in the order of the documentation.
pub fn ops() -> &'static [OpDef] {
    TABLE
}

/// The operation of a name; `swish` is `silu`.
///
/// ```
/// use netcl_core::kernels::expr::table;
///
/// let leaky = table::op("leaky_relu").unwrap();
/// assert_eq!((leaky.arity(), leaky.params[0].name, leaky.params[0].default), (1, "negative_slope", 0.01));
/// assert_eq!(leaky.expr().eval(&[-2.0], &[0.5]), [-1.0]);
/// ```
pub fn op(name: &str) -> Option<&'static OpDef> {
    let name = if name == "swish" { "silu" } else { name };
    TABLE.iter().find(|op| op.name == name)
}

/// One line per operation: documentation, name, operands, parameters with defaults, formula, test domain, accuracy as
/// `native f32, f64; device f32, f64`.
macro_rules! elementwise {
    ($(
        #[doc = $doc:literal]
        $name:literal ($($x:ident),* $(; $($p:ident = $default:expr),*)?) = $body:expr,
        on [$($domain:expr),*], ulp ($n32:expr, $n64:expr; $d32:expr, $d64:expr);
    )*) => {
        static TABLE: &[OpDef] = &[$(OpDef {
            name: $name,
            doc: $doc.trim_ascii(),
            inputs: &[$(stringify!($x)),*],
            params: &[$($(Param { name: stringify!($p), default: $default }),*)?],
            domain: &[$($domain),*],
            ulp: Ulp { native_f32: $n32, native_f64: $n64, device_f32: $d32, device_f64: $d64 },
            build: |g| {
                let [$($x),*] = std::array::from_fn(|i| g.input(i));
                $(let [$($p),*] = std::array::from_fn(|i| g.scalar(i));)?
                $body
            },
        }),*];
    };
}

/// Where the range of a function is the point, not its shape.
const WIDE: (f64, f64) = (-1e4, 1e4);
/// Where an activation bends.
const BEND: (f64, f64) = (-12.0, 12.0);
/// sqrt(2 / pi) and its product with 0.044715, twice: the two constants of gelu's tanh approximation in sigmoid form.
const GELU_1: f64 = 1.595_769_121_605_730_8;
const GELU_3: f64 = 0.071_354_816_272_600_25;
/// The constants with which selu keeps mean 0 and variance 1.
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

elementwise! {
    // ---- arithmetic ------------------------------------------------------------------------------------------------
    /// `x + y`
    "add"(x, y) = x + y, on [WIDE, WIDE], ulp (0.5, 0.5; 0.5, 0.5);
    /// `x - y`
    "sub"(x, y) = x - y, on [WIDE, WIDE], ulp (0.5, 0.5; 0.5, 0.5);
    /// `x * y`
    "mul"(x, y) = x * y, on [WIDE, WIDE], ulp (0.5, 0.5; 0.5, 0.5);
    /// `x / y`
    "div"(x, y) = x / y, on [WIDE, WIDE], ulp (0.5, 0.5; 2.5, 0.5);
    /// The smaller operand; NaN if either is NaN
    "minimum"(x, y) = x.min(y), on [WIDE, WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// The larger operand; NaN if either is NaN
    "maximum"(x, y) = x.max(y), on [WIDE, WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// `x` to the power of `y`
    "pow"(x, y) = x.pow(y), on [(0.0, 30.0), (-8.0, 8.0)], ulp (1.0, 1.0; 16.0, 16.0);
    /// `x * y + z`, rounded once
    "fma"(x, y, z) = x.fma(y, z), on [WIDE, WIDE, WIDE], ulp (0.5, 0.5; 0.5, 0.5);
    /// `-x`
    "neg"(x) = -x, on [WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// `|x|`
    "abs"(x) = x.abs(), on [WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// `1 / x`
    "reciprocal"(x) = 1.0 / x, on [WIDE], ulp (0.5, 0.5; 2.5, 0.5);
    /// `x * x`
    "square"(x) = x.square(), on [WIDE], ulp (0.5, 0.5; 0.5, 0.5);
    /// -1, 0 or 1; NaN stays NaN
    "sign"(x) = x.sign(), on [WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// The largest whole number not above `x`
    "floor"(x) = x.floor(), on [WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// The smallest whole number not below `x`
    "ceil"(x) = x.ceil(), on [WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// The nearest whole number; halves go to the even neighbour
    "round"(x) = x.round(), on [WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// The whole number next to `x` towards zero
    "trunc"(x) = x.trunc(), on [WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// What `x` has beyond the whole number next to it towards zero
    "frac"(x) = x - x.trunc(), on [WIDE], ulp (0.5, 0.5; 0.5, 0.5);
    /// What remains of `x` after whole multiples of `y`, with the sign of `x`
    "fmod"(x, y) = x.fmod(y), on [WIDE, WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// What remains of `x` after whole multiples of `y`, with the sign of `y`
    "remainder"(x, y) = remainder(x, y), on [WIDE, WIDE], ulp (0.5, 0.5; 0.5, 0.5);
    /// The largest whole number not above `x / y`
    "floor_divide"(x, y) = y.eq(0.0).select(x / y, ((x - remainder(x, y)) / y).round()), on [(-100.0, 100.0), (-9.0, 9.0)], ulp (1.0, 1.0; 1.0, 1.0);
    /// `sqrt(x * x + y * y)` without overflow on the way
    "hypot"(x, y) = hypot(x, y), on [WIDE, WIDE], ulp (2.0, 2.0; 6.0, 3.0);
    /// `x` with the sign of `y`
    "copysign"(x, y) = {
        // Minus zero shows in its reciprocal only.
        let negative = y.lt(0.0).select(1.0, (1.0 / y).lt(0.0));
        negative.select(-x.abs(), x.abs())
    }, on [WIDE, WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// The larger operand; of a number and NaN, the number
    "fmax"(x, y) = x.ne(x).select(y, y.ne(y).select(x, x.max(y))), on [WIDE, WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// The smaller operand; of a number and NaN, the number
    "fmin"(x, y) = x.ne(x).select(y, y.ne(y).select(x, x.min(y))), on [WIDE, WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// `x` with numbers in place of NaN and the infinities
    "nan_to_num"(x; nan = 0.0, posinf = f64::MAX, neginf = f64::MIN) = {
        let bounded = x.eq(f64::INFINITY).select(posinf, x.eq(f64::NEG_INFINITY).select(neginf, x));
        x.ne(x).select(nan, bounded)
    }, on [WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// `x`, stored as the output's dtype
    "cast"(x) = x, on [WIDE], ulp (0.0, 0.0; 0.0, 0.0);

    // ---- comparisons and choice ------------------------------------------------------------------------------------
    /// 1 where `x == y`, else 0
    "eq"(x, y) = x.eq(y), on [(-2.0, 2.0), (-2.0, 2.0)], ulp (0.0, 0.0; 0.0, 0.0);
    /// 1 where `x != y`, else 0
    "ne"(x, y) = x.ne(y), on [(-2.0, 2.0), (-2.0, 2.0)], ulp (0.0, 0.0; 0.0, 0.0);
    /// 1 where `x < y`, else 0
    "lt"(x, y) = x.lt(y), on [(-2.0, 2.0), (-2.0, 2.0)], ulp (0.0, 0.0; 0.0, 0.0);
    /// 1 where `x <= y`, else 0
    "le"(x, y) = x.le(y), on [(-2.0, 2.0), (-2.0, 2.0)], ulp (0.0, 0.0; 0.0, 0.0);
    /// 1 where `x > y`, else 0
    "gt"(x, y) = x.gt(y), on [(-2.0, 2.0), (-2.0, 2.0)], ulp (0.0, 0.0; 0.0, 0.0);
    /// 1 where `x >= y`, else 0
    "ge"(x, y) = x.ge(y), on [(-2.0, 2.0), (-2.0, 2.0)], ulp (0.0, 0.0; 0.0, 0.0);
    /// 1 where `x` is NaN, else 0
    "isnan"(x) = x.ne(x), on [WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// 1 where `x` is infinite, else 0
    "isinf"(x) = x.abs().eq(f64::INFINITY), on [WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// 1 where `x` is neither infinite nor NaN, else 0
    "isfinite"(x) = x.abs().lt(f64::INFINITY), on [WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// 1 where `|x - y| <= atol + rtol * |y|`, else 0; NaN is close to NaN only with `equal_nan = 1`
    "isclose"(x, y; rtol = 1e-5, atol = 1e-8, equal_nan = 0.0) = {
        let distance = (x - y).abs();
        let near = distance.le(y.abs() * rtol + atol) * distance.lt(f64::INFINITY);
        (near + x.eq(y) + x.ne(x) * y.ne(y) * equal_nan).gt(0.5)
    }, on [(-2.0, 2.0), (-2.0, 2.0)], ulp (0.0, 0.0; 0.0, 0.0);
    /// 1 where neither `x` nor `y` is 0, else 0
    "logical_and"(x, y) = (x.ne(0.0) * y.ne(0.0)).gt(0.5), on [(-2.0, 2.0), (-2.0, 2.0)], ulp (0.0, 0.0; 0.0, 0.0);
    /// 1 where `x` or `y` is not 0, else 0
    "logical_or"(x, y) = (x.ne(0.0) + y.ne(0.0)).gt(0.5), on [(-2.0, 2.0), (-2.0, 2.0)], ulp (0.0, 0.0; 0.0, 0.0);
    /// 1 where one of `x` and `y` is 0 and the other not, else 0
    "logical_xor"(x, y) = x.ne(0.0).ne(y.ne(0.0)), on [(-2.0, 2.0), (-2.0, 2.0)], ulp (0.0, 0.0; 0.0, 0.0);
    /// 1 where `x` is 0, else 0
    "logical_not"(x) = x.eq(0.0), on [(-2.0, 2.0)], ulp (0.0, 0.0; 0.0, 0.0);
    /// 0 below 0, 1 above it, `y` at it
    "heaviside"(x, y) = x.eq(0.0).select(y, x.gt(0.0).select(1.0, x.lt(0.0).select(0.0, x))), on [(-2.0, 2.0), WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// `x` where the condition is not 0, else `y`
    "where"(condition, x, y) = condition.select(x, y), on [(-1.0, 1.0), WIDE, WIDE], ulp (0.0, 0.0; 0.0, 0.0);
    /// `x` held between two bounds; the upper one wins where they cross; NaN (also of a bound) stays NaN, without a gradient; the gradient passes at the bounds
    "clamp"(x; min = f64::NEG_INFINITY, max = f64::INFINITY) = {
        // max and min alone would share the gradient at a bound.
        let held = x.max(min).min(max);
        x.ge(min).select(x.le(max).select(x, held), held)
    }, on [BEND], ulp (0.0, 0.0; 0.0, 0.0);

    // ---- exponentials, logarithms, roots, angles -------------------------------------------------------------------
    /// e to the power of `x`
    "exp"(x) = x.exp(), on [(-90.0, 89.0)], ulp (1.5, 1.0; 3.0, 3.0);
    /// `exp(x) - 1`, accurate near zero
    "expm1"(x) = x.expm1(), on [(-20.0, 89.0)], ulp (1.5, 1.0; 3.0, 3.0);
    /// Natural logarithm
    "log"(x) = x.log(), on [(0.0, 30.0)], ulp (1.5, 1.0; 3.0, 3.0);
    /// `log(1 + x)`, accurate near zero
    "log1p"(x) = x.log1p(), on [(-1.0, 30.0)], ulp (1.5, 1.0; 2.0, 2.0);
    /// Square root
    "sqrt"(x) = x.sqrt(), on [(0.0, 1e4)], ulp (0.5, 0.5; 3.0, 0.5);
    /// One over the square root
    "rsqrt"(x) = x.rsqrt(), on [(0.0, 1e4)], ulp (1.5, 1.5; 2.0, 2.0);
    /// Sine of an angle in radians
    "sin"(x) = x.sin(), on [WIDE], ulp (1.0, 1.0; 4.0, 4.0);
    /// Cosine
    "cos"(x) = x.cos(), on [WIDE], ulp (1.0, 1.0; 4.0, 4.0);
    /// Tangent
    "tan"(x) = x.tan(), on [WIDE], ulp (1.0, 1.0; 5.0, 5.0);
    /// Hyperbolic tangent
    "tanh"(x) = x.tanh(), on [BEND], ulp (2.5, 2.0; 5.0, 5.0);
    /// The error function
    "erf"(x) = x.erf(), on [(-6.0, 6.0)], ulp (2.5, 1.0; 16.0, 16.0);
    /// 2 to the power of `x`
    "exp2"(x) = x.exp2(), on [(-125.0, 127.0)], ulp (1.0, 1.0; 3.0, 3.0);
    /// Logarithm to base 2
    "log2"(x) = x.log2(), on [(0.0, 30.0)], ulp (1.0, 1.5; 3.0, 3.0);
    /// Logarithm to base 10
    "log10"(x) = x.log10(), on [(0.0, 30.0)], ulp (1.0, 1.5; 3.0, 3.0);
    /// `x * log(y)`, and 0 where `x` is
    "xlogy"(x, y) = x.eq(0.0).select(y.ne(y).select(y, 0.0), x * y.log()), on [WIDE, (0.0, 30.0)], ulp (2.5, 2.0; 4.0, 4.0);
    /// `log(exp(x) + exp(y))`, stable
    "logaddexp"(x, y) = {
        // Equal infinities have no difference. Where the result is near 0, its two terms cancel.
        let larger = x.max(y);
        x.eq(y).select(x + std::f64::consts::LN_2, larger + (-(x - y).abs()).exp().log1p())
    }, on [(0.0, 30.0), (0.0, 30.0)], ulp (64.0, 64.0; 64.0, 64.0);
    /// Hyperbolic sine
    "sinh"(x) = x.sinh(), on [(-85.0, 85.0)], ulp (1.0, 2.0; 4.0, 4.0);
    /// Hyperbolic cosine
    "cosh"(x) = x.cosh(), on [(-85.0, 85.0)], ulp (1.0, 2.0; 4.0, 4.0);
    /// The angle whose sine is `x`
    "asin"(x) = x.asin(), on [(-1.0, 1.0)], ulp (1.0, 1.0; 4.0, 4.0);
    /// The angle whose cosine is `x`
    "acos"(x) = x.acos(), on [(-1.0, 1.0)], ulp (1.0, 1.0; 4.0, 4.0);
    /// The angle whose tangent is `x`
    "atan"(x) = x.atan(), on [WIDE], ulp (1.0, 1.0; 5.0, 5.0);
    /// The angle of the point with abscissa `x` and ordinate `y`
    "atan2"(y, x) = y.atan2(x), on [WIDE, WIDE], ulp (1.0, 1.5; 6.0, 6.0);
    /// The number whose hyperbolic sine is `x`
    "asinh"(x) = x.asinh(), on [WIDE], ulp (1.0, 2.0; 4.0, 4.0);
    /// The number whose hyperbolic cosine is `x`
    "acosh"(x) = x.acosh(), on [(1.0, 1e4)], ulp (1.0, 2.0; 4.0, 4.0);
    /// The number whose hyperbolic tangent is `x`
    "atanh"(x) = x.atanh(), on [(-1.0, 1.0)], ulp (1.0, 2.0; 5.0, 5.0);
    /// `1 - erf(x)`, accurate where that is small
    "erfc"(x) = x.erfc(), on [(-6.0, 9.0)], ulp (1.0, 2.0; 16.0, 16.0);

    // ---- activations -----------------------------------------------------------------------------------------------
    /// `1 / (1 + exp(-x))`
    "sigmoid"(x) = x.sigmoid(), on [(-85.0, 85.0)], ulp (2.5, 2.5; 8.0, 8.0);
    /// `log(sigmoid(x))`
    "logsigmoid"(x) = x.lt(-40.0).select(x, -(-x).exp().log1p()), on [(-85.0, 85.0)], ulp (4.0, 4.0; 8.0, 8.0);
    /// `max(x, 0)`
    "relu"(x) = x.relu(), on [BEND], ulp (0.0, 0.0; 0.0, 0.0);
    /// `min(max(x, 0), 6)`
    "relu6"(x) = x.le(0.0).select(0.0, x.ge(6.0).select(6.0, x)), on [BEND], ulp (0.0, 0.0; 0.0, 0.0);
    /// `x` above 0, a multiple of it below
    "leaky_relu"(x; negative_slope = 0.01) = x.gt(0.0).select(x, x * negative_slope),
    on [BEND], ulp (0.5, 0.5; 0.5, 0.5);
    /// `x` above 0, `weight * x` elsewhere
    "prelu"(x, weight) = x.gt(0.0).select(x, x * weight), on [BEND, (-2.0, 2.0)], ulp (0.5, 0.5; 0.5, 0.5);
    /// `x` above 0, `alpha * (exp(x) - 1)` below
    "elu"(x; alpha = 1.0) = x.gt(0.0).select(x, x.expm1() * alpha), on [BEND], ulp (2.5, 2.0; 4.0, 4.0);
    /// `x` above 0, `alpha * (exp(x / alpha) - 1)` below
    "celu"(x; alpha = 1.0) = x.gt(0.0).select(x, (x / alpha).expm1() * alpha), on [BEND], ulp (3.0, 3.0; 7.0, 5.0);
    /// elu with the two constants that keep mean 0 and variance 1
    "selu"(x) = x.gt(0.0).select(x * SELU_SCALE, x.expm1() * (SELU_SCALE * SELU_ALPHA)),
    on [BEND], ulp (3.0, 3.0; 6.0, 6.0);
    /// `x * normcdf(x)`, exactly
    "gelu"(x) = x * x.norm_cdf(), on [BEND], ulp (7.0, 4.0; 24.0, 24.0);
    /// `x * normcdf(x)` in its tanh approximation, `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`
    "gelu_tanh"(x) = x * (x * (x * x * GELU_3 + GELU_1)).sigmoid(), on [BEND], ulp (220.0, 1600.0; 250.0, 1600.0);
    /// `x * sigmoid(x)`
    "silu"(x) = x * x.sigmoid(), on [(-80.0, 80.0)], ulp (3.0, 3.0; 9.0, 9.0);
    /// `log(1 + exp(beta * x)) / beta`; linear where `beta * x` exceeds the threshold
    "softplus"(x; beta = 1.0, threshold = 20.0) = {
        let z = x * beta;
        z.gt(threshold).select(x, z.exp().log1p() / beta)
    }, on [(-85.0, 85.0)], ulp (4.0, 4.0; 10.0, 10.0);
    /// `x * tanh(softplus(x))`
    "mish"(x) = {
        // tanh(log(1 + e)) = n / (n + 2) with n = e * (e + 2): one exponential, no cancellation; 1 in f64 beyond 20.
        let e = x.exp();
        let n = e * (e + 2.0);
        x.gt(20.0).select(x, x * (n / (n + 2.0)))
    }, on [(-80.0, 80.0)], ulp (6.0, 5.0; 12.0, 10.0);
    /// `x / (1 + |x|)`
    "softsign"(x) = x / (x.abs() + 1.0), on [WIDE], ulp (1.5, 1.5; 3.5, 1.5);
    /// `x` between two bounds, constant outside; the gradient at the bounds is 0
    "hardtanh"(x; min_val = -1.0, max_val = 1.0) = x.le(min_val).select(min_val, x.ge(max_val).select(max_val, x)),
    on [BEND], ulp (0.0, 0.0; 0.0, 0.0);
    /// 0 below -3, 1 above 3, a line between
    "hardsigmoid"(x) = x.le(-3.0).select(0.0, x.ge(3.0).select(1.0, (x + 3.0) / 6.0)),
    on [BEND], ulp (1.5, 1.5; 3.5, 1.5);
    /// `x * hardsigmoid(x)`
    "hardswish"(x) = x.le(-3.0).select(0.0, x.ge(3.0).select(x, x * (x + 3.0) / 6.0)),
    on [BEND], ulp (2.0, 2.0; 4.5, 2.0);
    /// `x`, and 0 where `|x|` is at most `lambd`
    "hardshrink"(x; lambd = 0.5) = x.abs().le(lambd).select(0.0, x), on [BEND], ulp (0.0, 0.0; 0.0, 0.0);
    /// `x` moved towards 0 by `lambd`, and 0 where `|x|` is at most `lambd`
    "softshrink"(x; lambd = 0.5) = x.abs().le(lambd).select(0.0, x - x.sign() * lambd),
    on [BEND], ulp (0.5, 0.5; 0.5, 0.5);
    /// `x - tanh(x)`, accurate near zero
    "tanhshrink"(x) = x.abs().lt(0.75).select(tanhshrink_near_zero(x), x - x.tanh()),
    on [BEND], ulp (16.0, 16.0; 32.0, 32.0);
    /// `x` above the threshold, `value` elsewhere
    "threshold"(x; threshold = 0.0, value = 0.0) = x.le(threshold).select(value, x), on [BEND], ulp (0.0, 0.0; 0.0, 0.0);
}

/// What remains of `x` after whole multiples of `y`, with the sign of `y`.
fn remainder<'g>(x: Val<'g>, y: Val<'g>) -> Val<'g> {
    let r = x.fmod(y);
    let other_side = (r.lt(0.0)).ne(y.lt(0.0));
    r.eq(0.0).select(r, other_side.select(r + y, r))
}

/// The larger magnitude times a factor that cannot overflow; 0 at the origin, where the quotient has no value.
fn hypot<'g>(x: Val<'g>, y: Val<'g>) -> Val<'g> {
    let (large, small) = (x.abs().max(y.abs()), x.abs().min(y.abs()));
    let slope = small / large;
    // Equal magnitudes, which may both be infinite or zero.
    let factor = small.eq(large).select(std::f64::consts::SQRT_2, (slope * slope + 1.0).sqrt());
    large.eq(0.0).select(0.0, large * factor)
}

/// `x - tanh(x)` where the two are nearly equal: Lambert's continued fraction is `tanh(x) = x / (1 + w)` with a `w` that is a sum
/// of positive numbers, so `x * w / (1 + w)` loses no digits. Seven levels are exact in f64 up to 0.75.
fn tanhshrink_near_zero(x: Val<'_>) -> Val<'_> {
    let square = x * x;
    let below = [13.0, 11.0, 9.0, 7.0, 5.0, 3.0].into_iter().fold(x.constant(15.0), |below, odd| square / below + odd);
    let w = square / below;
    x * (w / (w + 1.0))
}
