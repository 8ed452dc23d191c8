//! Building expressions: sharing, exact simplification, stable keys, NaN rules.

use netcl_core::kernels::expr::{Expr, Graph, Val, table};

fn show(f: impl for<'g> Fn(Val<'g>, Val<'g>) -> Val<'g>) -> String {
    let g = Graph::new();
    g.finish(&[f(g.input(0), g.input(1))]).to_string()
}

#[test]
fn identities_are_applied_only_where_exact() {
    assert_eq!(show(|x, _| x * 1.0), "x0");
    assert_eq!(show(|x, _| 1.0 * x), "x0");
    assert_eq!(show(|x, _| x / 1.0), "x0");
    assert_eq!(show(|x, _| x - 0.0), "x0");
    assert_eq!(show(|x, _| x + -0.0), "x0");
    assert_eq!(show(|x, _| -(-x)), "x0");
    assert_eq!(show(|x, _| x * -1.0), "neg(x0)");
    assert_eq!(show(|x, _| x.pow(2.0)), "(x0 * x0)");
    assert_eq!(show(|x, _| (-x).abs().abs()), "abs(x0)");
    assert_eq!(show(|x, _| x.max(x)), "x0");
    // -0 + 0 = 0; NaN * 0 and inf * 0 are NaN; x - x is NaN for infinities; x / x too.
    assert_eq!(show(|x, _| x + 0.0), "(x0 + 0)");
    assert_eq!(show(|x, _| x * 0.0), "(x0 * 0)");
    assert_eq!(show(|x, _| x - x), "(x0 - x0)");
    assert_eq!(show(|x, _| x / x), "(x0 / x0)");
}

#[test]
fn constants_fold_and_choices_with_known_conditions_vanish() {
    let g = Graph::new();
    let x = g.input(0);
    assert_eq!((g.constant(2.0).sqrt() * 3.0).literal(), Some(2f64.sqrt() * 3.0));
    assert_eq!(g.finish(&[g.constant(1.0).select(x, 5.0)]).to_string(), "x0");
    assert_eq!(g.finish(&[x.gt(0.0).select(x, x)]).to_string(), "x0");
    assert_eq!(g.finish(&[g.constant(0.0).select(x, -0.0)]).to_string(), "-0");
}

#[test]
fn equal_subexpressions_are_one_node() {
    let g = Graph::new();
    let (x, y) = (g.input(0), g.input(1));
    // x, y, product, its exponential, sum
    assert_eq!(g.finish(&[(x * y).exp() + (y * x).exp()]).nodes().len(), 5);
}

#[test]
fn keys_depend_on_structure_alone() {
    let build = |backwards: bool| {
        let g = Graph::new();
        let (x, y);
        if backwards {
            y = g.input(1).exp();
            x = g.input(0);
        } else {
            x = g.input(0);
            y = g.input(1).exp();
        }
        g.constant(99.0); // never used
        g.finish(&[x - y])
    };
    assert_eq!(build(false), build(true));
    assert_eq!(build(false).key(), build(true).key());
    let all: std::collections::HashSet<u128> = table::ops().iter().map(|op| op.expr().key()).collect();
    assert_eq!(all.len(), table::ops().len(), "two operations have one key");
    // Part of cache keys on disk: a change here must be meant.
    assert_eq!(format!("{:032x}", table::op("add").unwrap().expr().key()), "e86d71c2b124a1b85c7f0633ea86fb68");
}

#[test]
fn signed_zeros_and_signatures_are_part_of_the_key() {
    let g = Graph::new();
    let x = g.input(0);
    assert_ne!(g.finish(&[x * 0.0]).key(), g.finish(&[x * -0.0]).key());
    assert_ne!(g.finish(&[x]).key(), g.finish_with(&[x], 2, 0).key());
}

#[test]
fn deep_chains_do_not_exhaust_the_stack() {
    let g = Graph::new();
    let mut x = g.input(0);
    for _ in 0..200_000 {
        x = (x + 1.0).sqrt();
    }
    assert!(g.finish(&[x]).nodes().len() > 400_000);
}

#[test]
fn nan_goes_through_every_activation_and_comparisons_are_false() {
    let exact = ["eq", "lt", "le", "gt", "ge", "ne", "where"];
    let exempt = |op: &table::OpDef| exact.contains(&op.name) || op.name == "nan_to_num" || op.expr().is_predicate();
    for op in table::ops().iter().filter(|op| !exempt(op)) {
        let operands = vec![f64::NAN; op.arity()];
        assert!(op.expr().eval(&operands, &op.defaults())[0].is_nan(), "{}", op.name);
    }
    for name in &exact[..5] {
        assert_eq!(table::op(name).unwrap().expr().eval(&[f64::NAN, f64::NAN], &[]), [0.0]);
    }
    assert_eq!(table::op("ne").unwrap().expr().eval(&[f64::NAN, f64::NAN], &[]), [1.0]);
    for name in ["minimum", "maximum"] {
        let expr = table::op(name).unwrap().expr();
        assert!(expr.eval(&[f64::NAN, 1.0], &[])[0].is_nan() && expr.eval(&[1.0, f64::NAN], &[])[0].is_nan());
    }
}

#[test]
fn inlining_composes_expressions() {
    let relu: Expr = table::op("relu").unwrap().expr();
    let g = Graph::new();
    let sum = g.input(0) + g.input(1);
    let fused = g.finish(&g.inline(&relu, &[sum], &[]));
    assert_eq!(fused.eval(&[2.0, -5.0], &[]), [0.0]);
    assert_eq!(fused.eval(&[2.0, 5.0], &[]), [7.0]);
    let leaky = table::op("leaky_relu").unwrap();
    let twice = leaky.apply(&g, &[leaky.apply(&g, &[sum], &[g.scalar(0)])], &[g.scalar(1)]);
    assert_eq!(g.finish(&[twice]).eval(&[-3.0, -1.0], &[0.5, 0.25]), [-0.5]);
}

#[test]
fn every_operation_of_the_table_is_complete() {
    for op in table::ops() {
        let expr = op.expr();
        assert_eq!(
            (expr.inputs(), expr.scalars(), expr.outputs().len()),
            (op.arity(), op.params.len(), 1),
            "{}",
            op.name
        );
        assert_eq!(op.domain.len(), op.arity(), "{}", op.name);
        assert!(!op.doc.is_empty());
    }
    assert_eq!(table::op("swish").unwrap().name, "silu");
    assert!(table::op("no_such_op").is_none());
}
