//! The OpenCL C that regions become: golden sources, and what equal structure means.

use netcl_core::dtype::DType;
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::region::{Combine, Extent, RegionBuilder};

use crate::region_support::{self, layer_norm, log_softmax, patterns, softmax};

fn source(pattern: &region_support::Pattern, dtype: DType) -> String {
    let region = &pattern.region;
    let (inputs, outputs) = (vec![dtype; region.inputs().len()], vec![dtype; region.outputs().len()]);
    region.source(&inputs, &outputs).unwrap()
}

#[test]
fn softmax_f32() {
    insta::assert_snapshot!(source(&softmax(), DType::F32));
}

#[test]
fn layer_norm_bf16() {
    insta::assert_snapshot!(source(&layer_norm(), DType::BF16));
}

#[test]
fn kernels_fit_a_screen_and_name_the_users_operations() {
    for pattern in patterns() {
        let text = source(&pattern, DType::F32);
        let kernel = &text[text.find("kernel void").unwrap()..];
        let lines = kernel.lines().count();
        assert!(lines <= 80, "{} has {lines} lines:\n{kernel}", pattern.name);
        assert!(kernel.lines().all(|line| line.len() <= 140), "{kernel}");
    }
    let text = source(&layer_norm(), DType::F32);
    for name in ["// rsqrt", "(layer_norm.total)", "total_", "// sub"] {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
    // Scalars and sizes are arguments.
    assert!(!text.contains("0.1") && text.contains("const uint length"));
}

#[test]
fn structure_is_what_counts() {
    let build = |label: &str, twice: bool, unused: bool, combine: Combine| {
        let g = Graph::new();
        let scaled = g.finish(&[(g.input(0) * g.scalar(0)).named(label.to_owned())]);
        let mut b = RegionBuilder::new(label);
        let x = b.input();
        let y = b.map(&scaled, &[x], &[0])[0];
        let total = b.reduce(combine, y);
        let same = b.map(&scaled, &[x], &[0])[0];
        let again = if twice { b.reduce(combine, same) } else { total };
        if unused {
            let _ = b.reduce(Combine::Min, x);
        }
        let sum = g.finish(&[g.input(0) + g.input(1)]);
        let out = b.map(&sum, &[total, again], &[])[0];
        b.output(out);
        b.finish()
    };
    let region = build("a", false, false, Combine::Sum);
    assert_eq!(region.inputs(), [Extent::Full]);
    assert_eq!(region.outputs(), [Extent::Row]);
    assert_eq!(region.scalars(), 1);
    // Names, equal steps and unused ones make no difference; the way to combine does.
    assert_eq!(region, build("b", true, true, Combine::Sum));
    assert_ne!(region, build("a", false, false, Combine::Max));
    assert_ne!(*log_softmax().region, *softmax().region);
}
