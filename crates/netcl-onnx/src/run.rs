//! Running a graph: values by name, and what an operation sees of its node.

use std::collections::HashMap;

use netcl_nn::autograd::{Error, Queue, Result, Tensor};

use crate::array::{Array, bad};
use crate::graph::{Attribute, Graph, Node};
use crate::kind::Kind;
use crate::value::Value;

/// The values that a graph has made so far, and those around it.
pub(crate) struct Scope<'s> {
    pub(crate) values: HashMap<&'s str, Value>,
    pub(crate) around: Option<&'s Scope<'s>>,
}

impl Scope<'_> {
    pub(crate) fn find(&self, name: &str) -> Option<&Value> {
        self.values.get(name).or_else(|| self.around.and_then(|around| around.find(name)))
    }
}

/// A node with its inputs, as an operation sees it.
pub(crate) struct Call<'c> {
    pub(crate) node: &'c Node,
    pub(crate) inputs: Vec<Option<Value>>,
    pub(crate) queue: &'c Queue,
    pub(crate) scope: &'c Scope<'c>,
}

/// Runs a graph's nodes; returns its outputs.
pub(crate) fn run(graph: &Graph, inputs: Vec<Value>, queue: &Queue, around: Option<&Scope<'_>>) -> Result<Vec<Value>> {
    if inputs.len() < graph.inputs.len() {
        return Err(bad(format!("a graph of {} inputs was given {}", graph.inputs.len(), inputs.len())));
    }
    let mut scope = Scope { values: HashMap::new(), around };
    for (name, array) in &graph.constants {
        if around.is_none_or(|around| !around.values.contains_key(name.as_str())) {
            scope.values.insert(name, array.clone().into());
        }
    }
    scope.values.extend(graph.inputs.iter().map(|port| port.name.as_str()).zip(inputs));
    for node in &graph.nodes {
        let results = step(node, queue, &scope)?;
        for (name, value) in node.outputs.iter().zip(results) {
            if !name.is_empty() {
                scope.values.insert(name, value);
            }
        }
        for name in &node.last {
            scope.values.remove(name.as_str());
        }
    }
    let output = |name: &str| scope.find(name).cloned().ok_or_else(|| bad(format!("nothing made the output {name:?}")));
    graph.outputs.iter().map(|port| output(&port.name)).collect()
}

/// Runs one node.
pub(crate) fn step(node: &Node, queue: &Queue, scope: &Scope<'_>) -> Result<Vec<Value>> {
    let input = |name: &String| match name.as_str() {
        "" => Ok(None),
        name => scope.find(name).cloned().map(Some).ok_or_else(|| bad(format!("{name:?} was not made"))),
    };
    let inputs = node.inputs.iter().map(input).collect::<Result<Vec<_>>>()?;
    let op = node.op.ok_or_else(|| bad(format!("operator {} is not supported", node.operator)))?;
    let results = op(&Call { node, inputs, queue, scope });
    let named = |error: Error| Error::other(error.kind(), format!("node {:?} ({}): {error}", node.name, node.operator));
    let results = results.map_err(named)?;
    match node.outputs.iter().skip(results.len()).find(|name| !name.is_empty()) {
        Some(name) => Err(named(bad(format!("its output {name:?} is not supported")))),
        None => Ok(results),
    }
}

impl Call<'_> {
    /// An input that may be left out.
    pub(crate) fn optional(&self, i: usize) -> Option<&Value> {
        self.inputs.get(i).and_then(Option::as_ref).filter(|value| !matches!(value, Value::None))
    }

    pub(crate) fn value(&self, i: usize) -> Result<&Value> {
        self.optional(i).ok_or_else(|| bad(format!("input {i} is missing")))
    }

    pub(crate) fn tensor(&self, i: usize) -> Result<Tensor> {
        self.value(i)?.to_tensor(self.queue)
    }

    pub(crate) fn optional_tensor(&self, i: usize) -> Result<Option<Tensor>> {
        self.optional(i).map(|value| value.to_tensor(self.queue)).transpose()
    }

    pub(crate) fn array(&self, i: usize) -> Result<Array> {
        self.value(i)?.to_array()
    }

    /// The whole numbers of an input: a shape, axes, lengths.
    pub(crate) fn ints(&self, i: usize) -> Result<Vec<i64>> {
        self.array(i)?.to_ints()
    }

    pub(crate) fn optional_ints(&self, i: usize) -> Result<Option<Vec<i64>>> {
        self.optional(i).map(|value| value.to_array()?.to_ints()).transpose()
    }

    /// The only number of an input.
    pub(crate) fn number(&self, i: usize) -> Result<Option<f64>> {
        let Some(value) = self.optional(i) else { return Ok(None) };
        Ok(value.to_array()?.to_floats()?.first().copied())
    }

    /// Whether no input lies on a device.
    pub(crate) fn on_host(&self) -> bool {
        !self.inputs.iter().flatten().any(|value| matches!(value, Value::Tensor(_)))
    }

    /// Whether all inputs are, or can become, tensors on a device.
    pub(crate) fn fits_device(&self) -> bool {
        self.inputs.iter().flatten().all(|value| value.kind().is_ok_and(|kind| kind.dtype().is_some()))
    }

    /// The type of the first input.
    pub(crate) fn kind(&self) -> Result<Kind> {
        self.value(0)?.kind()
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.node.attributes.get(name)
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> i64 {
        match self.attribute(name) {
            Some(&Attribute::Int(value)) => value,
            _ => default,
        }
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.int(name, 0) != 0
    }

    pub(crate) fn float(&self, name: &str, default: f64) -> f64 {
        match self.attribute(name) {
            Some(&Attribute::Float(value)) => value,
            _ => default,
        }
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name) {
            Some(Attribute::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn int_list(&self, name: &str) -> Option<&[i64]> {
        match self.attribute(name) {
            Some(Attribute::Ints(list)) => Some(list),
            _ => None,
        }
    }

    pub(crate) fn float_list(&self, name: &str) -> Option<&[f64]> {
        match self.attribute(name) {
            Some(Attribute::Floats(list)) => Some(list),
            _ => None,
        }
    }

    pub(crate) fn texts(&self, name: &str) -> Option<&[String]> {
        match self.attribute(name) {
            Some(Attribute::Texts(list)) => Some(list),
            _ => None,
        }
    }

    pub(crate) fn graph(&self, name: &str) -> Result<&Graph> {
        match self.attribute(name) {
            Some(Attribute::Graph(graph)) => Ok(graph),
            _ => Err(bad(format!("the attribute {name} with a graph is missing"))),
        }
    }

    /// Runs a graph that sees the values around the node.
    pub(crate) fn run(&self, graph: &Graph, inputs: Vec<Value>) -> Result<Vec<Value>> {
        run(graph, inputs, self.queue, Some(self.scope))
    }
}
