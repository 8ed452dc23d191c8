//! Symbolic derivatives of every operation against central differences, once and twice, and the conventions at kinks.

use netcl_core::dtype::DType;
use netcl_core::kernels::expr::cpu::Program;
use netcl_core::kernels::expr::derivative::{derivative, vjp};
use netcl_core::kernels::expr::{BinaryOp, Expr, Graph, TernaryOp, UnaryOp, table};

/// A reproducible number between two bounds.
fn random(seed: u64, low: f64, high: f64) -> f64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    low + (high - low) * ((z >> 11) as f64 / (1u64 << 53) as f64)
}

/// Compares the derivative of `expr` by `input` with differences at random points; points whose neighbourhood holds a kink
/// or a jump are passed over, and must be few.
fn check(name: &str, expr: &Expr, domain: &[(f64, f64)], scalars: &[f64], input: usize) {
    let slope = derivative(expr, 0, input);
    let (mut used, total) = (0, 300);
    for point in 0..total {
        let mut x: Vec<f64> =
            domain.iter().enumerate().map(|(i, &(low, high))| random(point * 7 + i as u64 + 1, low, high)).collect();
        let symbolic = slope.eval(&x, scalars)[0];
        let at = x[input];
        let h = 1e-5 * at.abs().max(0.1);
        let mut f = |v: f64| {
            x[input] = v;
            expr.eval(&x, scalars)[0]
        };
        let (below, here, above) = (f(at - h), f(at), f(at + h));
        let (left, right) = ((here - below) / h, (above - here) / h);
        let numeric = (above - below) / (2.0 * h);
        if (left - right).abs() > 1e-2 * (1.0 + numeric.abs()) {
            continue;
        }
        used += 1;
        // Differences lose to rounding in proportion to the values they subtract.
        let tolerance = 1e-6 * (1.0 + numeric.abs()) + 1e-9 * here.abs() / h * 1e-5;
        assert!(
            (symbolic - numeric).abs() <= tolerance,
            "{name} by input {input} at {at}: {symbolic} but differences give {numeric}"
        );
    }
    assert!(used >= total * 8 / 10, "{name}: only {used} of {total} points were smooth");
}

/// A part of an operation's domain in which differences are well behaved.
fn tame(name: &str, domain: &[(f64, f64)]) -> Vec<(f64, f64)> {
    domain
        .iter()
        .enumerate()
        .map(|(i, &(low, high))| match (name, i) {
            ("pow", 0) | ("log" | "log2" | "log10" | "sqrt" | "rsqrt" | "xlogy", _) => (0.2, 4.0),
            ("asin" | "acos" | "atanh", _) => (-0.8, 0.8),
            ("acosh", _) => (1.2, 4.0),
            ("div", 1) | ("reciprocal", _) => (0.3, 4.0),
            ("log1p", _) => (-0.8, 4.0),
            ("tan", _) => (-1.3, 1.3),
            ("exp" | "exp2" | "expm1", _) => (-3.0, 3.0),
            _ => (low.max(-3.5), high.min(3.5)),
        })
        .collect()
}

#[test]
fn every_operation_matches_differences_once_and_twice() {
    for op in table::ops() {
        let domain = tame(op.name, op.domain);
        let expr = op.expr();
        for input in 0..op.arity() {
            check(op.name, &expr, &domain, &op.defaults(), input);
            let slope = derivative(&expr, 0, input);
            for again in 0..op.arity() {
                check(&format!("{}'", op.name), &slope, &domain, &op.defaults(), again);
            }
        }
    }
}

/// The table does not use every primitive directly; this does.
#[test]
fn every_primitive_matches_differences() {
    let g = Graph::new();
    let (x, y, z) = (g.input(0), g.input(1), g.input(2));
    let domain = [(0.2, 1.4); 3];
    // A rounding passes the gradient on, as a cast does, though its steps have no slope.
    for op in UnaryOp::ALL.into_iter().filter(|op| !matches!(op, UnaryOp::ToF16 | UnaryOp::ToBf16)) {
        let domain = match op.name() {
            "asin" | "acos" | "atanh" => [(0.1, 0.8); 3],
            "acosh" => [(1.2, 2.4); 3],
            _ => domain,
        };
        check(op.name(), &g.finish(&[x.unary(op)]), &domain, &[], 0);
    }
    for op in BinaryOp::ALL {
        let expr = g.finish_with(&[x.binary(op, y)], 3, 0);
        (0..2).for_each(|input| check(op.name(), &expr, &domain, &[], input));
    }
    for op in TernaryOp::ALL {
        let expr = g.finish(&[g.ternary(op, x, y, z)]);
        (0..3).for_each(|input| check(op.name(), &expr, &domain, &[], input));
    }
}

/// The slope of a table entry at one point.
fn slope(name: &str, x: &[f64], input: usize) -> f64 {
    let op = table::op(name).unwrap();
    derivative(&op.expr(), 0, input).eval(x, &op.defaults())[0]
}

#[test]
fn kinks_follow_pytorch() {
    assert_eq!(slope("relu", &[0.0], 0), 0.0);
    assert_eq!(slope("relu6", &[6.0], 0), 0.0);
    assert_eq!(slope("abs", &[0.0], 0), 0.0);
    assert_eq!(slope("leaky_relu", &[0.0], 0), 0.01);
    assert_eq!(slope("elu", &[0.0], 0), 1.0);
    assert_eq!((slope("maximum", &[2.0, 2.0], 0), slope("maximum", &[2.0, 2.0], 1)), (0.5, 0.5));
    assert_eq!((slope("minimum", &[1.0, 2.0], 0), slope("minimum", &[1.0, 2.0], 1)), (1.0, 0.0));
    let clamp =
        |x: f64, low: f64, high: f64| derivative(&table::op("clamp").unwrap().expr(), 0, 0).eval(&[x], &[low, high])[0];
    assert_eq!([-1.5, -1.0, 0.5, 1.0, 1.5].map(|x| clamp(x, -1.0, 1.0)), [0.0, 1.0, 1.0, 1.0, 0.0]);
    assert_eq!([-1.5, 0.0, 1.5].map(|x| clamp(x, 1.0, -1.0)), [0.0; 3]);
    assert_eq!((clamp(f64::NAN, -1.0, 1.0), clamp(0.0, f64::NAN, 1.0)), (0.0, 0.0));
    assert_eq!((slope("prelu", &[0.0, 0.25], 0), slope("prelu", &[0.0, 0.25], 1)), (0.25, 0.0));
    assert_eq!((slope("prelu", &[f64::INFINITY, 0.25], 0), slope("prelu", &[f64::INFINITY, 0.25], 1)), (1.0, 0.0));
    assert_eq!((slope("hardtanh", &[-1.0], 0), slope("hardtanh", &[1.0], 0)), (0.0, 0.0));
    assert_eq!((slope("hardswish", &[-3.0], 0), slope("hardswish", &[3.0], 0)), (0.0, 1.0));
    assert_eq!((slope("pow", &[0.0, 0.0], 0), slope("pow", &[0.0, 2.0], 1)), (0.0, 0.0));
    assert_eq!((slope("pow", &[0.0, 1.0], 0), slope("pow", &[-2.0, 3.0], 0)), (1.0, 12.0));
    for name in ["sign", "floor", "ceil", "round"] {
        assert_eq!(slope(name, &[0.3], 0), 0.0);
    }
}

/// Branches not taken overflow here; they must not reach the result.
#[test]
fn far_out_slopes_are_finite_in_f32() {
    for (name, x, want) in [
        ("mish", 100.0, 1.0),
        ("mish", -100.0, 0.0),
        ("softplus", 100.0, 1.0),
        ("softplus", -100.0, 0.0),
        ("logsigmoid", 100.0, 0.0),
        ("logsigmoid", -100.0, 1.0),
        ("silu", 100.0, 1.0),
        ("silu", -100.0, 0.0),
        ("gelu", 40.0, 1.0),
        ("gelu", -40.0, 0.0),
        ("gelu_tanh", 40.0, 1.0),
        ("elu", 200.0, 1.0),
        ("elu", -200.0, 0.0),
        ("tanh", 50.0, 0.0),
        ("hardswish", 1e30, 1.0),
    ] {
        let op = table::op(name).unwrap();
        let program = Program::compile(&derivative(&op.expr(), 0, 0), DType::F32).unwrap();
        let mut out = [f32::NAN];
        program.run_slices(&[&[x as f32]], &op.defaults(), &mut [&mut out]).unwrap();
        assert!((f64::from(out[0]) - want).abs() < 1e-6, "{name}'({x}) = {}", out[0]);
    }
}

/// A mask stays a mask: no product by zero, not even with an infinite upstream gradient.
#[test]
fn masks_cut_off_infinite_upstream_gradients() {
    let backward = vjp(&table::op("relu").unwrap().expr(), &[0]);
    assert_eq!(backward.to_string(), "select((x0 <= 0), 0, x1)");
    assert_eq!(backward.eval(&[-1.0, f64::INFINITY], &[]), [0.0]);
    let backward = vjp(&table::op("where").unwrap().expr(), &[0, 1, 2]);
    assert_eq!(backward.to_string(), "0, select(x0, x3, 0), select(x0, 0, x3)");
}

#[test]
fn the_product_with_an_upstream_gradient_sums_over_outputs_and_shares_work() {
    let g = Graph::new();
    let (x, y) = (g.input(0), g.input(1));
    let expr = g.finish(&[x * y, (x * y).exp()]);
    let backward = vjp(&expr, &[1, 0]);
    assert_eq!((backward.inputs(), backward.outputs().len()), (4, 2));
    let (x, y, up, exp_up) = (0.5f64, 2.0, 3.0, 7.0);
    let common = up + exp_up * (x * y).exp();
    let got = backward.eval(&[x, y, up, exp_up], &[]);
    assert!((got[0] - common * x).abs() < 1e-14 && (got[1] - common * y).abs() < 1e-14, "{got:?}");
    let exponentials = format!("{:?}", backward.nodes()).matches("Exp").count();
    assert_eq!(exponentials, 1);
}

#[test]
fn inputs_that_do_not_matter_have_slope_zero() {
    let g = Graph::new();
    let expr = g.finish_with(&[g.input(0).floor() + g.scalar(0)], 2, 1);
    assert_eq!(derivative(&expr, 0, 0).to_string(), "0");
    assert_eq!(derivative(&expr, 0, 1).to_string(), "0");
    assert_eq!((derivative(&expr, 0, 1).inputs(), derivative(&expr, 0, 1).scalars()), (2, 1));
}
