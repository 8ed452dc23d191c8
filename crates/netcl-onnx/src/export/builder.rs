//! The graph that is being written: names of values, nodes, initialisers.

use std::collections::{HashMap, HashSet};

use netcl_nn::autograd::trace::{Key, Op, Value};
use netcl_nn::autograd::{DType, Tensor};

pub(super) use super::call::{Call, Trouble, Written};
pub(super) use super::lengths::{Dim, Runs};
use crate::kind::Kind;
use crate::proto;
use crate::wire::Blob;

/// The ONNX code of a dtype; truth values are ONNX's.
pub(super) fn code(dtype: DType) -> i64 {
    Kind::of_dtype(dtype) as i64
}

pub(super) fn int(name: &str, value: i64) -> proto::Attribute {
    proto::Attribute { name: name.to_owned(), i: Some(value), kind: 2, ..Default::default() }
}

pub(super) fn float(name: &str, value: f64) -> proto::Attribute {
    proto::Attribute { name: name.to_owned(), f: Some(value as f32), kind: 1, ..Default::default() }
}

pub(super) fn ints(name: &str, values: &[i64]) -> proto::Attribute {
    proto::Attribute { name: name.to_owned(), ints: values.to_vec(), kind: 7, ..Default::default() }
}

pub(super) fn text(name: &str, value: &str) -> proto::Attribute {
    let s = Some(Blob(value.as_bytes().to_vec()));
    proto::Attribute { name: name.to_owned(), s, kind: 3, ..Default::default() }
}

pub(super) fn texts(name: &str, values: &[&str]) -> proto::Attribute {
    let strings = values.iter().map(|value| Blob(value.as_bytes().to_vec())).collect();
    proto::Attribute { name: name.to_owned(), strings, kind: 8, ..Default::default() }
}

/// Constants above this size may lie outside of the file.
const LARGE: usize = 1 << 20;

pub(super) struct Builder<'t> {
    pub(super) runs: &'t Runs,
    /// Dynamic lengths as tensors of one number, once they are needed.
    pub(super) lengths: HashMap<usize, String>,
    names: HashMap<Key, String>,
    failed: HashSet<Key>,
    /// Parameters and buffers by value.
    stored: HashMap<Key, String>,
    constants: HashMap<(i64, Vec<i64>, Vec<u8>), String>,
    taken: HashSet<String>,
    /// What paths of modules begin with.
    root: &'static str,
    /// The module path and name of the operation that is being written.
    prefix: String,
    pub(super) graph: proto::Graph,
}

impl<'t> Builder<'t> {
    pub(super) fn new(root: &'static str, runs: &'t Runs, stored: Vec<(String, Tensor)>) -> Builder<'t> {
        let mut by_value = HashMap::new();
        for (name, tensor) in stored {
            by_value.entry(Value::from(tensor.latest().raw()).key()).or_insert(name);
        }
        // A name belongs to its parameter, whenever that is met.
        let taken = by_value.values().cloned().collect();
        Builder {
            root,
            runs,
            lengths: HashMap::new(),
            names: HashMap::new(),
            failed: HashSet::new(),
            stored: by_value,
            constants: HashMap::new(),
            taken,
            prefix: String::new(),
            graph: proto::Graph { name: "main".to_owned(), ..Default::default() },
        }
    }

    /// Begins an operation: its nodes are named after it.
    pub(super) fn begin(&mut self, op: &Op) {
        let place = self.place(&op.module);
        let dot = if place.is_empty() { "" } else { "." };
        self.prefix = format!("{place}{dot}{}", op.name);
    }

    /// The path of a module inside the model that is written.
    pub(super) fn place<'p>(&self, path: &'p str) -> &'p str {
        match path.strip_prefix(self.root) {
            Some("") => "",
            Some(rest) => rest.strip_prefix('.').unwrap_or(path),
            None => path,
        }
    }

    /// Marks the results of an operation as missing.
    pub(super) fn fail(&mut self, op: &Op) {
        self.failed.extend(op.outputs.iter().map(Value::key));
    }

    /// A name that nothing else has.
    pub(super) fn fresh(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut count = 1;
        while !self.taken.insert(name.clone()) {
            count += 1;
            name = format!("{wanted}_{count}");
        }
        name
    }

    /// Reserves a name that the user chose.
    pub(super) fn reserve(&mut self, name: &str) -> Result<(), String> {
        match self.taken.insert(name.to_owned()) {
            true => Ok(()),
            false => Err(format!("the name {name:?} is used twice; choose other input_names or output_names")),
        }
    }

    /// Says what a value is called.
    pub(super) fn bind(&mut self, value: &Value, name: String) {
        self.names.insert(value.key(), name);
    }

    /// The name of a value, which becomes an initialiser if it is a constant.
    pub(super) fn value(&mut self, seen: &[&Value]) -> Written<String> {
        let value = seen[0];
        let key = value.key();
        if let Some(name) = self.names.get(&key) {
            return Ok(name.clone());
        }
        if self.failed.contains(&key) {
            return Err(Trouble::Downstream);
        }
        let known = self.stored.contains_key(&key);
        if let Some((launch, module)) =
            self.runs.traces[0].writer(value).filter(|(launch, _)| !known && !launch.is_empty())
        {
            let place = self.place(&module);
            let place = if place.is_empty() { String::new() } else { format!(" in {place}") };
            let what = format!("it reads what {launch}{place} made, which is no operation that can be exported");
            // A part was overwritten through a view with a shape of its own: the tensor around it is not noted.
            let hint = "; to overwrite a part of a tensor through a view of it, write to the tensor itself, or use where() or cat()";
            let hint = if matches!(launch.as_str(), "fill" | "copy") { hint } else { "" };
            return Err(format!("{what}{hint}").into());
        }
        if seen.iter().any(|value| value.is_overwritten()) {
            return Err("it reads values that were overwritten since by what is no operation".into());
        }
        let name = self.constant(seen)?;
        self.names.insert(key, name.clone());
        Ok(name)
    }

    pub(super) fn input(&mut self, call: &Call<'_>, at: usize) -> Written<String> {
        self.value(&call.input(at))
    }

    pub(super) fn inputs(&mut self, call: &Call<'_>) -> Written<Vec<String>> {
        (0..call.op.inputs.len()).map(|at| self.input(call, at)).collect()
    }

    fn constant(&mut self, seen: &[&Value]) -> Written<String> {
        let value = seen[0];
        let raw = value.raw();
        if seen.iter().any(|other| other.raw().shape() != raw.shape()) {
            return self.stretched(seen);
        }
        let bytes = bytes_of(value)?;
        if let Some(name) = self.stored.get(&value.key()).cloned() {
            self.graph.initializer.push(stored(&name, raw.dtype(), raw.shape(), bytes));
            return Ok(name);
        }
        if differ(seen) {
            return Err(constant_that_depends());
        }
        Ok(self.known(raw.dtype(), raw.shape(), bytes))
    }

    /// A constant without a name of its own; equal ones are one.
    pub(super) fn known(&mut self, dtype: DType, shape: &[usize], bytes: Vec<u8>) -> String {
        let dims: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        let key = (code(dtype), dims, bytes);
        // What is large is a parameter or a table: comparing it would cost more than it saves.
        let small = key.2.len() <= 1024;
        if let Some(name) = self.constants.get(&key).filter(|_| small) {
            return name.clone();
        }
        let name = self.fresh("constant");
        let stored = stored(&name, dtype, shape, key.2.clone());
        if key.2.len() > LARGE {
            self.graph.initializer.push(stored);
        } else {
            // A node and no initialiser: what reads the file takes initialisers for parameters.
            let value = proto::Attribute { name: "value".to_owned(), t: Some(stored), kind: 4, ..Default::default() };
            self.graph.node.push(proto::Node {
                output: vec![name.clone()],
                name: name.clone(),
                op_type: "Constant".to_owned(),
                attribute: vec![value],
                ..Default::default()
            });
        }
        if small {
            self.constants.insert(key, name.clone());
        }
        name
    }

    /// Numbers of a dtype.
    pub(super) fn filled(&mut self, dtype: DType, shape: &[usize], values: &[f64]) -> String {
        use half::{bf16, f16};
        let bytes = match dtype {
            DType::F64 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            DType::F16 => values.iter().flat_map(|v| f16::from_f64(*v).to_le_bytes()).collect(),
            DType::BF16 => values.iter().flat_map(|v| bf16::from_f64(*v).to_le_bytes()).collect(),
            DType::I32 => values.iter().flat_map(|v| (*v as i32).to_le_bytes()).collect(),
            DType::I64 => values.iter().flat_map(|v| (*v as i64).to_le_bytes()).collect(),
            DType::U8 => values.iter().map(|v| u8::from(*v != 0.0)).collect(),
            _ => values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect(),
        };
        self.known(dtype, shape, bytes)
    }

    /// One number of a dtype, without axes.
    pub(super) fn scalar(&mut self, dtype: DType, value: f64) -> String {
        self.filled(dtype, &[], &[value])
    }

    /// A list of whole numbers.
    pub(super) fn list(&mut self, values: &[i64]) -> String {
        self.known(DType::I64, &[values.len()], values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Adds a node of one result and gives the result's name.
    pub(super) fn node(&mut self, operator: &str, inputs: &[&str], attributes: Vec<proto::Attribute>) -> String {
        self.node_of(operator, inputs, 1, attributes).remove(0)
    }

    /// Adds a node of several results.
    pub(super) fn node_of(
        &mut self,
        operator: &str,
        inputs: &[&str],
        outputs: usize,
        attributes: Vec<proto::Attribute>,
    ) -> Vec<String> {
        let prefix = self.prefix.clone();
        let output: Vec<String> = (0..outputs).map(|_| self.fresh(&prefix)).collect();
        self.graph.node.push(proto::Node {
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            name: output[0].clone(),
            output: output.clone(),
            op_type: operator.to_owned(),
            attribute: attributes,
            domain: String::new(),
        });
        output
    }

    pub(super) fn cast(&mut self, name: &str, from: DType, to: DType) -> String {
        if from == to { name.to_owned() } else { self.node("Cast", &[name], vec![int("to", code(to))]) }
    }

    /// Gives an output's name to the value that it is, or to a copy of it where that has a name of its own.
    pub(super) fn name_output(&mut self, made: &str, name: &str) {
        let graph = &mut self.graph;
        let port = graph.output.iter().chain(&graph.input).any(|port| port.name == made);
        if port || graph.initializer.iter().any(|one| one.name == made) {
            graph.node.push(proto::Node {
                input: vec![made.to_owned()],
                output: vec![name.to_owned()],
                name: name.to_owned(),
                op_type: "Identity".to_owned(),
                ..Default::default()
            });
            return;
        }
        let used = graph.node.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output));
        let known = self.names.values_mut().chain(self.constants.values_mut()).chain(self.lengths.values_mut());
        for value in used.chain(known).filter(|value| **value == *made) {
            *value = name.to_owned();
        }
    }
}

/// A tensor as it stands in a file; truth values are 0 and 1.
fn stored(name: &str, dtype: DType, shape: &[usize], mut bytes: Vec<u8>) -> proto::Tensor {
    if dtype == DType::U8 {
        bytes.iter_mut().for_each(|byte| *byte = (*byte != 0).into());
    }
    proto::Tensor {
        dims: shape.iter().map(|&n| n as i64).collect(),
        data_type: code(dtype) as i32,
        name: name.to_owned(),
        raw_data: Blob(bytes),
        ..Default::default()
    }
}

/// Whether a constant has other values in other runs.
pub(super) fn differ(seen: &[&Value]) -> bool {
    let first = seen[0];
    let others = || seen[1..].iter().filter(|other| other.key() != first.key());
    if others().any(|other| other.raw().shape() != first.raw().shape()) {
        return true;
    }
    let mut bytes = None;
    others().any(|other| {
        let first = bytes.get_or_insert_with(|| bytes_of(first).ok());
        bytes_of(other).ok() != *first
    })
}

pub(super) fn constant_that_depends() -> Trouble {
    let what = "it reads a constant that depends on a dynamic length";
    Trouble::Said(format!("{what}; make it fixed (dynamic_batch = false, or fewer dynamic_axes)"))
}

/// All elements in row-major order.
pub(super) fn bytes_of(value: &Value) -> Written<Vec<u8>> {
    let raw = value.raw();
    let mut bytes = vec![0; raw.size() * raw.dtype().size()];
    raw.read_bytes(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

pub(super) fn failed(error: impl std::fmt::Display) -> Trouble {
    Trouble::Said(error.to_string())
}
