//! The OpenCL C that expressions become: golden texts, and properties of every kernel of the table.

use netcl_core::dtype::DType;
use netcl_core::kernels::expr::opencl::{
    Addressing, Arg, CType, ElementwiseSpec, IndexWidth, InputKind, InputSpec, KernelSource, batch, elementwise_source,
    inline_c,
};
use netcl_core::kernels::expr::{Expr, Graph, derivative, table};

fn kernel(label: &str, expr: &Expr, dtype: DType, addressing: Addressing) -> KernelSource {
    elementwise_source(&ElementwiseSpec {
        label,
        expr,
        inputs: vec![dtype.into(); expr.inputs()],
        outputs: vec![dtype; expr.outputs().len()],
        addressing,
        index: IndexWidth::Bits32,
    })
    .unwrap()
}

#[test]
fn gelu_dense_f32() {
    let expr = table::op("gelu").unwrap().expr();
    insta::assert_snapshot!(kernel("gelu", &expr, DType::F32, Addressing::Dense { width: 4 }).source());
}

#[test]
fn leaky_relu_dense_bf16() {
    let expr = table::op("leaky_relu").unwrap().expr();
    insta::assert_snapshot!(kernel("leaky_relu", &expr, DType::BF16, Addressing::Dense { width: 2 }).source());
}

#[test]
fn maximum_gradient_strided_f16() {
    let expr = derivative::vjp(&table::op("maximum").unwrap().expr(), &[0, 1]);
    insta::assert_snapshot!(
        kernel("maximum_vjp", &expr, DType::F16, Addressing::Strided { rank: 3, width: 1 }).source()
    );
}

#[test]
fn chain_with_a_single_element_input_f64_long() {
    let g = Graph::new();
    let (x, y) = (g.input(0), g.input(1));
    let expr = g.finish(&[(x * y + 1.0).tanh() * x.sigmoid() + y.relu()]);
    let source = elementwise_source(&ElementwiseSpec {
        label: "mul add tanh",
        expr: &expr,
        inputs: vec![DType::F64.into(), InputSpec { dtype: DType::U8, kind: InputKind::Single }],
        outputs: vec![DType::F64],
        addressing: Addressing::Dense { width: 2 },
        index: IndexWidth::Bits64,
    })
    .unwrap();
    insta::assert_snapshot!(source.source());
}

/// The kernel of a large GPU: several aligned vectors for each work-item, and the names of the operations it was fused from.
#[test]
fn named_chain_in_tiles_f32() {
    let g = Graph::new();
    let (x, y) = (g.input(0), g.input(1));
    let product = (x * y).named("mul") + 1.0;
    let gated = product.named("add").tanh().named("tanh") * x.sigmoid().named("gate.sigmoid");
    let expr = g.finish(&[(gated + y.relu().named("relu")).named("add")]);
    insta::assert_snapshot!(kernel("chain", &expr, DType::F32, Addressing::Tiles { width: 4, vectors: 4 }).source());
}

#[test]
fn arguments_follow_the_signature() {
    let expr = table::op("clamp").unwrap().expr();
    let dense = kernel("clamp", &expr, DType::F32, Addressing::Dense { width: 1 });
    use Arg::*;
    let common = [Output(0), OutputOffset(0), Input(0), InputOffset(0), Scalar(0), Scalar(1), Count];
    assert_eq!(dense.args, common);
    let strided = kernel("clamp", &expr, DType::F32, Addressing::Strided { rank: 2, width: 1 });
    let rest = [Length(1), OutputStride(0, 0), OutputStride(0, 1), InputStride(0, 0), InputStride(0, 1)];
    assert_eq!(strided.args, [common.as_slice(), &rest].concat());
    // One parameter of the signature per argument.
    for k in [dense, strided] {
        let signature =
            k.kernel.split_once(&format!("kernel void {}(", k.name)).unwrap().1.split_once(") {").unwrap().0;
        assert_eq!(signature.split(',').count(), k.args.len());
    }
}

#[test]
fn names_are_unique_and_batches_hold_each_helper_once() {
    let mut kernels = Vec::new();
    for op in table::ops() {
        let expr = op.expr();
        for dtype in DType::FLOATS {
            for addressing in [
                Addressing::Dense { width: 4 },
                Addressing::Dense { width: 1 },
                Addressing::Strided { rank: 2, width: 1 },
            ] {
                kernels.push(kernel(op.name, &expr, dtype, addressing));
            }
        }
    }
    let mut names: Vec<&str> = kernels.iter().map(|k| k.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), kernels.len());

    let program = batch(&kernels);
    for helper in kernels.iter().flat_map(|k| &k.helpers) {
        assert_eq!(program.matches(&helper.text).count(), 1, "{}", helper.name);
    }
    // Scalars are arguments: no default of the table appears in a text.
    let leaky = kernels.iter().find(|k| k.name.starts_with("leaky_relu_f32")).unwrap();
    assert!(!leaky.source().contains("0.01"));
}

#[test]
fn kernel_names_are_stable_across_processes() {
    let expr = table::op("silu").unwrap().expr();
    insta::assert_snapshot!(kernel("silu", &expr, DType::F32, Addressing::Dense { width: 4 }).name);
}

#[test]
fn epilogues_splice_into_other_kernels() {
    let expr = table::op("leaky_relu").unwrap().expr();
    let c = inline_c(&expr, &["acc"], &["slope"], CType::new(DType::F32, 4).unwrap());
    assert_eq!(
        c.statements,
        ["const float4 mul_1 = acc * slope;", "const float4 select_2 = (acc > 0.0f) ? acc : mul_1;"]
    );
    assert_eq!(c.outputs, ["select_2"]);
    assert!(c.helpers.is_empty());
}

#[test]
fn impossible_specifications_are_errors() {
    let expr = table::op("add").unwrap().expr();
    let spec = |inputs: usize, addressing| {
        elementwise_source(&ElementwiseSpec {
            label: "add",
            expr: &expr,
            inputs: vec![DType::F32.into(); inputs],
            outputs: vec![DType::F32],
            addressing,
            index: IndexWidth::Bits32,
        })
    };
    assert!(spec(2, Addressing::Dense { width: 3 }).unwrap_err().to_string().contains("width 3"));
    assert!(spec(2, Addressing::Strided { rank: 0, width: 1 }).is_err());
    assert!(spec(1, Addressing::Dense { width: 4 }).unwrap_err().to_string().contains("(1, 1)"));
}
