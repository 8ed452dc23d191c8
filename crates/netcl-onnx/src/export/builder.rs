//! The graph that is being written: names of values, nodes, initialisers, and lengths that follow the batch.

use std::collections::{HashMap, HashSet};

use netcl_nn::autograd::trace::{Key, Op, Trace, Value};
use netcl_nn::autograd::{DType, Tensor};

pub(super) use super::call::{Call, Dim, Trouble, Written};
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
    /// The trace that is written, and the one with a larger batch.
    traces: &'t [Trace],
    /// The batch of each trace.
    batches: [i64; 2],
    /// The input whose first axis is the batch.
    pub(super) batch_input: Option<String>,
    /// The batch as a tensor of one number, once it is needed.
    batch: Option<String>,
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
    pub(super) fn new(
        root: &'static str,
        traces: &'t [Trace],
        batches: [i64; 2],
        stored: Vec<(String, Tensor)>,
    ) -> Builder<'t> {
        let mut by_value = HashMap::new();
        for (name, tensor) in stored {
            by_value.entry(Value::from(tensor.latest().raw()).key()).or_insert(name);
        }
        // A name belongs to its parameter, whenever that is met.
        let taken = by_value.values().cloned().collect();
        Builder {
            root,
            traces,
            batches,
            batch_input: None,
            batch: None,
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
    pub(super) fn value(&mut self, (value, twin): (&Value, Option<&Value>)) -> Written<String> {
        let key = value.key();
        if let Some(name) = self.names.get(&key) {
            return Ok(name.clone());
        }
        if self.failed.contains(&key) {
            return Err(Trouble::Downstream);
        }
        let known = self.stored.contains_key(&key);
        if let Some((launch, module)) = self.traces[0].writer(value).filter(|(launch, _)| !known && !launch.is_empty())
        {
            let place = self.place(&module);
            let place = if place.is_empty() { String::new() } else { format!(" in {place}") };
            return Err(
                format!("it reads what {launch}{place} made, which is no operation that can be exported").into()
            );
        }
        let name = self.constant(value, twin)?;
        self.names.insert(key, name.clone());
        Ok(name)
    }

    pub(super) fn input(&mut self, call: &Call<'_>, at: usize) -> Written<String> {
        self.value(call.input(at))
    }

    pub(super) fn inputs(&mut self, call: &Call<'_>) -> Written<Vec<String>> {
        (0..call.op.inputs.len()).map(|at| self.input(call, at)).collect()
    }

    fn constant(&mut self, value: &Value, twin: Option<&Value>) -> Written<String> {
        let raw = value.raw();
        if let Some(twin) = twin.filter(|twin| twin.raw().shape() != raw.shape()) {
            return self.stretched(value, twin);
        }
        let bytes = bytes_of(value)?;
        if let Some(name) = self.stored.get(&value.key()).cloned() {
            self.graph.initializer.push(stored(&name, raw.dtype(), raw.shape(), bytes));
            return Ok(name);
        }
        if twin.is_some_and(|twin| twin.key() != value.key() && bytes_of(twin).is_ok_and(|other| other != bytes)) {
            let what = "it reads a constant that depends on the size of the batch";
            return Err(format!("{what}; export with dynamic_batch = false").into());
        }
        Ok(self.known(raw.dtype(), raw.shape(), bytes))
    }

    /// A constant whose lengths follow the batch, if it is the same all along these axes.
    fn stretched(&mut self, value: &Value, twin: &Value) -> Written<String> {
        let dims = self.pair(value, Some(twin))?;
        let mut part = Tensor::from(value.raw().clone());
        for (axis, dim) in dims.iter().enumerate() {
            if dim.fixed().is_none() && !part.shape().is_empty() && part.shape()[axis] > 1 {
                let whole = part.raw().clone();
                part = Tensor::from(
                    whole.slice(axis as isize, netcl_nn::autograd::Slice::new(Some(0), Some(1), 1)).map_err(failed)?,
                );
                let spread = part.raw().expand(whole.shape().clone()).map_err(failed)?;
                if bytes_of(&Value::from(&spread))? != bytes_of(&Value::from(&whole))? {
                    let what =
                        format!("it reads a constant of shape {} that depends on the size of the batch", whole.shape());
                    return Err(format!("{what}; export with dynamic_batch = false").into());
                }
            }
        }
        let bytes = bytes_of(&Value::from(part.raw()))?;
        let one = self.known(part.dtype(), part.shape(), bytes);
        let shape = self.numbers(&dims)?;
        Ok(self.node("Expand", &[&one, &shape], vec![]))
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
        for value in used.chain(self.names.values_mut()).filter(|value| **value == *made) {
            *value = name.to_owned();
        }
    }

    // ---- lengths that follow the batch ---------------------------------------------------------------------------

    /// Numbers of an operation in both traces.
    pub(super) fn dims(&self, call: &Call<'_>, of: impl Fn(&Op) -> Vec<i64>) -> Written<Vec<Dim>> {
        let first = of(call.op);
        match call.twin.map(of) {
            None => Ok(first.into_iter().map(Dim::Fixed).collect()),
            Some(second) => self.fit(&first, &second),
        }
    }

    /// The shape of a value of both traces.
    pub(super) fn pair(&self, value: &Value, twin: Option<&Value>) -> Written<Vec<Dim>> {
        let shape = |value: &Value| value.raw().shape().iter().map(|&n| n as i64).collect::<Vec<i64>>();
        match twin {
            None => Ok(shape(value).into_iter().map(Dim::Fixed).collect()),
            Some(twin) => self.fit(&shape(value), &shape(twin)),
        }
    }

    fn fit(&self, first: &[i64], second: &[i64]) -> Written<Vec<Dim>> {
        let [small, large] = self.batches;
        if first.len() != second.len() {
            return Err("its axes depend on the size of the batch; export with dynamic_batch = false".into());
        }
        let dim = |(&a, &b): (&i64, &i64)| {
            let times = (b - a) / (large - small).max(1);
            match (a == b, times * (large - small) == b - a) {
                (true, _) => Ok(Dim::Fixed(a)),
                (_, true) => Ok(Dim::Batch { times, plus: a - times * small }),
                _ => Err(Trouble::Said(
                    "a length does not grow evenly with the batch; export with dynamic_batch = false".into(),
                )),
            }
        };
        first.iter().zip(second).map(dim).collect()
    }

    /// The lengths of the first result.
    pub(super) fn out_dims(&self, call: &Call<'_>) -> Written<Vec<Dim>> {
        self.pair(&call.op.outputs[0], call.twin.map(|twin| &twin.outputs[0]))
    }

    /// The lengths of an input.
    pub(super) fn in_dims(&self, call: &Call<'_>, at: usize) -> Written<Vec<Dim>> {
        let (value, twin) = call.input(at);
        self.pair(value, twin)
    }

    /// A list of whole numbers as an operand, computed from the input's shape where they follow the batch.
    pub(super) fn numbers(&mut self, dims: &[Dim]) -> Written<String> {
        if let Some(fixed) = dims.iter().map(|dim| dim.fixed()).collect::<Option<Vec<i64>>>() {
            return Ok(self.list(&fixed));
        }
        let batch = match (&self.batch, &self.batch_input) {
            (Some(batch), _) => batch.clone(),
            (None, Some(input)) => {
                let input = input.clone();
                let made = self.node("Shape", &[&input], vec![int("start", 0), int("end", 1)]);
                self.batch.insert(made).clone()
            }
            (None, None) => return Err("no input has a batch".into()),
        };
        let mut parts: Vec<String> = Vec::new();
        let mut run: Vec<i64> = Vec::new();
        for dim in dims {
            match *dim {
                Dim::Fixed(n) => run.push(n),
                Dim::Batch { times, plus } => {
                    if !run.is_empty() {
                        let list = self.list(&std::mem::take(&mut run));
                        parts.push(list);
                    }
                    let mut part = batch.clone();
                    for (operator, number, neutral) in [("Mul", times, 1), ("Add", plus, 0)] {
                        if number != neutral {
                            let number = self.list(&[number]);
                            part = self.node(operator, &[&part, &number], vec![]);
                        }
                    }
                    parts.push(part);
                }
            }
        }
        if !run.is_empty() {
            parts.push(self.list(&run));
        }
        match &parts[..] {
            [one] => Ok(one.clone()),
            several => {
                let several: Vec<&str> = several.iter().map(String::as_str).collect();
                Ok(self.node("Concat", &several, vec![int("axis", 0)]))
            }
        }
    }

    /// A value with other lengths.
    pub(super) fn reshape(&mut self, name: &str, dims: &[Dim]) -> Written<String> {
        let unknown = dims.iter().filter(|dim| dim.fixed().is_none()).count();
        // A -1 is the one length that follows the batch, unless another one is 0: then it could be anything.
        let shape = if unknown == 1 && !dims.contains(&Dim::Fixed(0)) {
            let list: Vec<i64> = dims.iter().map(|dim| dim.fixed().unwrap_or(-1)).collect();
            self.list(&list)
        } else {
            self.numbers(dims)?
        };
        let zeros = if dims.contains(&Dim::Fixed(0)) { vec![int("allowzero", 1)] } else { vec![] };
        Ok(self.node("Reshape", &[name, &shape], zeros))
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

/// All elements in row-major order.
fn bytes_of(value: &Value) -> Written<Vec<u8>> {
    let raw = value.raw();
    let mut bytes = vec![0; raw.size() * raw.dtype().size()];
    raw.read_bytes(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

pub(super) fn failed(error: impl std::fmt::Display) -> Trouble {
    Trouble::Said(error.to_string())
}
