//! Small models as files.

use netcl_onnx::proto::{Attribute, Graph, Model, Node, OperatorSet, Tensor, ValueInfo};

/// A node of the default domain.
pub(crate) fn node(operator: &str, inputs: &[&str], outputs: &[&str], attributes: Vec<Attribute>) -> Node {
    let names = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
    Node {
        op_type: operator.to_owned(),
        name: format!("{operator}_{}", outputs[0]),
        input: names(inputs),
        output: names(outputs),
        attribute: attributes,
        ..Default::default()
    }
}

pub(crate) fn int(name: &str, value: i64) -> Attribute {
    Attribute { name: name.to_owned(), i: Some(value), kind: 2, ..Default::default() }
}

pub(crate) fn graph_attribute(name: &str, graph: Graph) -> Attribute {
    Attribute { name: name.to_owned(), g: Some(Box::new(graph)), kind: 5, ..Default::default() }
}

pub(crate) fn floats(name: &str, dims: &[i64], data: &[f32]) -> Tensor {
    Tensor { name: name.to_owned(), dims: dims.to_vec(), data_type: 1, float_data: data.to_vec(), ..Default::default() }
}

pub(crate) fn ints(name: &str, dims: &[i64], data: &[i64]) -> Tensor {
    Tensor { name: name.to_owned(), dims: dims.to_vec(), data_type: 7, int64_data: data.to_vec(), ..Default::default() }
}

pub(crate) fn graph(inputs: &[&str], outputs: &[&str], node: Vec<Node>, initializer: Vec<Tensor>) -> Graph {
    let ports = |list: &[&str]| list.iter().map(|&name| ValueInfo { name: name.to_owned(), kind: None }).collect();
    Graph { input: ports(inputs), output: ports(outputs), node, initializer, ..Default::default() }
}

pub(crate) fn model(graph: Graph) -> Model {
    let opset_import = vec![OperatorSet { domain: String::new(), version: 18 }];
    Model { ir_version: 8, producer_name: "netcl".to_owned(), graph: Some(graph), opset_import, ..Default::default() }
}

/// Two layers with an activation between them, and shape arithmetic that flattens what comes out.
pub(crate) fn network() -> Model {
    let weights = |n: usize| (0..n).map(|i| ((i * 7 % 11) as f32 - 5.0) / 8.0).collect::<Vec<_>>();
    let nodes = vec![
        node("Gemm", &["x", "fc1.weight", "fc1.bias"], &["a"], vec![int("transB", 1)]),
        node("Relu", &["a"], &["b"], vec![]),
        node("MatMul", &["b", "fc2.weight"], &["c"], vec![]),
        node("Shape", &["c"], &["shape"], vec![]),
        node("Gather", &["shape", "zero"], &["rows"], vec![]),
        node("Unsqueeze", &["rows", "axis"], &["row"], vec![]),
        node("Concat", &["row", "rest"], &["to"], vec![int("axis", 0)]),
        node("Reshape", &["c", "to"], &["y"], vec![]),
    ];
    let initializers = vec![
        floats("fc1.weight", &[4, 3], &weights(12)),
        floats("fc1.bias", &[4], &weights(4)),
        floats("fc2.weight", &[4, 2], &weights(8)),
        ints("zero", &[], &[0]),
        ints("axis", &[1], &[0]),
        ints("rest", &[1], &[-1]),
    ];
    model(graph(&["x"], &["y"], nodes, initializers))
}
