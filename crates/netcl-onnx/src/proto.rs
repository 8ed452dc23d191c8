//! The parts of the public ONNX format (protobuf) that are read; field numbers are the format's.

#![allow(missing_docs)]

use crate::wire::{Blob, message};

message! {
    Model {
        1 ir_version: i64,
        2 producer_name: String,
        3 producer_version: String,
        7 graph: Option<Graph>,
        8 opset_import: Vec<OperatorSet>,
        25 functions: Vec<Function>,
    }
    OperatorSet {
        1 domain: String,
        2 version: i64,
    }
    Function {
        1 name: String,
        4 input: Vec<String>,
        5 output: Vec<String>,
        6 attribute: Vec<String>,
        7 node: Vec<Node>,
        9 opset_import: Vec<OperatorSet>,
        10 domain: String,
        11 attribute_proto: Vec<Attribute>,
    }
    Graph {
        1 node: Vec<Node>,
        2 name: String,
        5 initializer: Vec<Tensor>,
        11 input: Vec<ValueInfo>,
        12 output: Vec<ValueInfo>,
        15 sparse_initializer: Vec<SparseTensor>,
    }
    SparseTensor {
        1 values: Option<Tensor>,
        2 indices: Option<Tensor>,
        3 dims: Vec<i64>,
    }
    Node {
        1 input: Vec<String>,
        2 output: Vec<String>,
        3 name: String,
        4 op_type: String,
        5 attribute: Vec<Attribute>,
        7 domain: String,
    }
    Attribute {
        1 name: String,
        2 f: Option<f32>,
        3 i: Option<i64>,
        4 s: Option<Blob>,
        5 t: Option<Tensor>,
        6 g: Option<Box<Graph>>,
        7 floats: Vec<f32>,
        8 ints: Vec<i64>,
        9 strings: Vec<Blob>,
        20 kind: i32,
        21 ref_attr_name: String,
        22 sparse_tensor: Option<SparseTensor>,
    }
    Tensor {
        1 dims: Vec<i64>,
        2 data_type: i32,
        4 float_data: Vec<f32>,
        5 int32_data: Vec<i32>,
        6 string_data: Vec<Blob>,
        7 int64_data: Vec<i64>,
        8 name: String,
        9 raw_data: Blob,
        10 double_data: Vec<f64>,
        11 uint64_data: Vec<u64>,
        13 external_data: Vec<Entry>,
        14 data_location: i32,
    }
    Entry {
        1 key: String,
        2 value: String,
    }
    ValueInfo {
        1 name: String,
        2 kind: Option<Type>,
    }
    Type {
        1 tensor: Option<TensorType>,
        4 sequence: Option<ElementType>,
        9 optional: Option<ElementType>,
    }
    ElementType {
        1 element: Option<Box<Type>>,
    }
    TensorType {
        1 element: i32,
        2 shape: Option<TensorShape>,
    }
    TensorShape {
        1 dim: Vec<Dimension>,
    }
    Dimension {
        1 value: Option<i64>,
        2 symbol: Option<String>,
    }
    /// A list of values, as the ONNX project's tests store it.
    Sequence {
        2 kind: i32,
        3 tensors: Vec<Tensor>,
        5 sequences: Vec<Sequence>,
        6 maps: Vec<Blob>,
        7 optionals: Vec<Optional>,
    }
    /// A value that may be absent, as the ONNX project's tests store it.
    Optional {
        2 kind: i32,
        3 tensor: Option<Tensor>,
        5 sequence: Option<Sequence>,
    }
}
