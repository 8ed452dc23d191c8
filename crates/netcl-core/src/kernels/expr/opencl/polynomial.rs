//! Elementary functions of f32 in plain arithmetic, for processors: the polynomials of `vecmath`, as OpenCL C.

use super::inline::helper;
use super::{CType, Helper};
use crate::kernels::expr::UnaryOp;

/// Our own function of a processor's vectors as a helper, last, with those it calls before it; `None` where the built-in one is
/// as good.
pub fn polynomials(op: UnaryOp, ctype: CType) -> Option<Vec<Helper>> {
    if ctype.lane() != CType::FLOAT {
        return None;
    }
    match op {
        UnaryOp::Exp => Some(vec![reduced(ctype), exp(ctype)]),
        UnaryOp::Expm1 => Some(vec![reduced(ctype), expm1(ctype)]),
        UnaryOp::Tanh => Some(vec![reduced(ctype), expm1(ctype), tanh(ctype)]),
        UnaryOp::Sigmoid => Some(vec![reduced(ctype), exp(ctype), sigmoid(ctype)]),
        _ => None,
    }
}

fn ints(t: CType) -> String {
    if t.width() == 1 { "int".to_owned() } else { format!("int{}", t.width()) }
}

/// `exp(r) - 1` and `n`, where `x = n ln 2 + r`.
fn reduced(t: CType) -> Helper {
    let (ty, ints) = (t.name(), ints(t));
    let body = format!(
        "    #pragma OPENCL FP_CONTRACT ON\n    \
         // x = n ln 2 + r; the low bits of `shifted` are n. Fused or not, the polynomial is exact enough.\n    \
         const {ty} shifted = x * 1.44269504f + 12582912.0f, k = shifted - 12582912.0f;\n    \
         const {ty} r = (x - k * 0.693359375f) + k * 2.12194440e-4f;\n    \
         const {ty} p = (((0.0013813145f * r + 0.008369419f) * r + 0.041668456f) * r + 0.16666515f) * r + 0.49999994f;\n    \
         *n = as_{ints}(shifted) - 0x4b400000;\n    \
         return r * r * p + r;\n"
    );
    helper(t, "exp_reduced", &format!("T x, {ints} *n"), &body)
}

/// `x`, but not outside the bounds; NaN stays NaN.
fn clamped(t: CType, low: f64, high: f64) -> String {
    let (ty, low, high) = (t.name(), (t.literal(low), t.splat(low)), (t.literal(high), t.splat(high)));
    format!("    const {ty} above = (x < {}) ? {} : x, c = (above > {}) ? {} : above;\n", low.0, low.1, high.0, high.1)
}

fn exp(t: CType) -> Helper {
    let (ty, ints) = (t.name(), ints(t));
    let body = format!(
        "{}    {ints} n;\n    const {ty} e = exp_reduced_{ty}(c, &n) + 1.0f;\n    \
         // 2^n in two factors: alone it may overflow or be subnormal where the result is neither.\n    \
         const {ints} half_n = n >> 1;\n    \
         return e * as_{ty}((half_n + 127) << 23) * as_{ty}((n - half_n + 127) << 23);\n",
        clamped(t, -105.0, 90.0)
    );
    helper(t, "exp", "T x", &body)
}

fn expm1(t: CType) -> Helper {
    let (ty, ints) = (t.name(), ints(t));
    let body = format!(
        "{}    {ints} n;\n    const {ty} m = exp_reduced_{ty}(c, &n);\n    \
         // 2^n (1 + m) - 1 at half scale, so that n = 128 does not overflow early.\n    \
         const {ty} t = as_{ty}((n + 126) << 23), y = (t * m + (t - 0.5f)) * 2.0f;\n    \
         return (x == 0.0f) ? x : y;\n",
        clamped(t, -18.0, 89.0)
    );
    helper(t, "expm1", "T x", &body)
}

fn tanh(t: CType) -> Helper {
    let ty = t.name();
    let body = format!(
        "    const {ty} a = fabs(x), t = expm1_{ty}(2.0f * ((a > 10.0f) ? {} : a));\n    \
         return copysign(t / (t + 2.0f), x);\n",
        t.splat(10.0)
    );
    helper(t, "tanh", "T x", &body)
}

fn sigmoid(t: CType) -> Helper {
    let ty = t.name();
    let body = format!(
        "    // Only ever the exponential of a negative number: nothing overflows, no digits are lost on either side.\n    \
         const {ty} e = exp_{ty}(-fabs(x));\n    return ((x >= 0.0f) ? {} : e) / (1.0f + e);\n",
        t.splat(1.0)
    );
    helper(t, "sigmoid", "T x", &body)
}
