//! Constant folding: what follows from constants alone is computed once, when a model is loaded, also inside of control flow and
//! functions; constants of branches and loops become the model's own, so that they reach the device once.

use std::collections::{HashMap, HashSet};

use netcl_nn::autograd::Queue;

use crate::array::{Array, product, with_limit};
use crate::graph::{Attribute, Graph, Node};
use crate::kind::Kind;
use crate::run::{Scope, step};
use crate::value::Value;

/// Results of more elements stay to be computed: memory is dearer than a copy.
const MOST: usize = 1 << 16;
/// Elements that folding reads and writes in all: a hostile file could ask for more of it than a run.
const MOST_WORK: usize = 1 << 24;

/// Operators that are folded: shape arithmetic, and what prepares constants. Their work is in proportion to what they read and make,
/// which for others (products, convolutions, loops, what broadcasts on a device) a hostile file could choose; random ones differ from
/// run to run.
#[rustfmt::skip]
const FOLDED: &[&str] = &[
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitCast", "BitShift", "BitwiseAnd", "BitwiseNot",
    "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Clip", "Concat", "Constant", "Cos", "Cosh", "CumSum", "DequantizeLinear", "Div",
    "Equal", "Erf", "Exp", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity",
    "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "Pow",
    "QuantizeLinear", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round", "ScatterElements", "ScatterND", "Shape",
    "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tan", "Tanh", "Transpose", "Trilu",
    "Unsqueeze", "Where", "Xor",
];

/// Values that are known, and those known around.
struct Known<'k> {
    arrays: HashMap<String, Array>,
    /// All names of the graph: a value of the same name around it is another one.
    own: HashSet<String>,
    around: Option<&'k Known<'k>>,
}

impl Known<'_> {
    fn get(&self, name: &str) -> Option<&Array> {
        match self.around {
            _ if self.own.contains(name) => self.arrays.get(name),
            Some(around) => around.get(name),
            None => None,
        }
    }
}

/// Replaces nodes by their results. A node that fails is left to fail when it runs, where its name is known.
pub(crate) fn fold(graph: &mut Graph, queue: &Queue) {
    within(graph, None, queue, &mut 0);
    let mut taken: HashSet<String> = HashSet::new();
    names(graph, &mut taken);
    hoist_into(graph, &mut taken);
}

fn within(graph: &mut Graph, around: Option<&Known<'_>>, queue: &Queue, work: &mut usize) {
    // Parameters may change: only whole numbers of initialisers are known for good.
    let arrays = graph.constants.iter().filter(|(_, array)| !array.kind.is_float() && array.len() <= MOST);
    let mut own = HashSet::new();
    own.extend(graph.inputs.iter().map(|port| port.name.clone()));
    own.extend(graph.constants.iter().map(|(name, _)| name.clone()));
    own.extend(graph.nodes.iter().flat_map(|node| node.outputs.iter().cloned()));
    let mut known = Known { arrays: arrays.cloned().collect(), own, around };
    let mut rest = Vec::new();
    for mut node in std::mem::take(&mut graph.nodes) {
        let inner = node.attributes.values_mut().filter_map(|attribute| match attribute {
            Attribute::Graph(graph) => Some(graph),
            _ => None,
        });
        inner.for_each(|graph| within(graph, Some(&known), queue, work));
        if let Some(body) = &mut node.body {
            within(body, None, queue, work);
        }
        match folded(&node, &known, queue, work) {
            Some(results) => {
                for (name, array) in node.outputs.into_iter().zip(results).filter(|(name, _)| !name.is_empty()) {
                    graph.constants.push((name.clone(), array.clone()));
                    known.arrays.insert(name, array);
                }
            }
            None => rest.push(node),
        }
    }
    graph.nodes = rest;
}

/// All names of values.
fn names(graph: &Graph, taken: &mut HashSet<String>) {
    taken.extend(graph.inputs.iter().map(|port| port.name.clone()));
    taken.extend(graph.constants.iter().map(|(name, _)| name.clone()));
    for node in &graph.nodes {
        taken.extend(node.outputs.iter().cloned());
        node.graphs().for_each(|graph| names(graph, taken));
    }
}

/// The names that a graph makes, and the new ones of its constants.
struct Names<'n> {
    own: HashSet<String>,
    renamed: HashMap<String, String>,
    around: Option<&'n Names<'n>>,
}

impl Names<'_> {
    fn new_name(&self, name: &str) -> Option<&String> {
        match self.renamed.get(name) {
            None if self.own.contains(name) => None,
            None => self.around.and_then(|around| around.new_name(name)),
            found => found,
        }
    }

    fn change(&self, name: &mut String) {
        if let Some(new) = self.new_name(name) {
            name.clone_from(new);
        }
    }
}

/// Moves the constants of graphs inside of nodes to the graph around all of them, under names that nothing else has. Functions see
/// nothing of what is around them and keep theirs.
fn hoist_into(graph: &mut Graph, taken: &mut HashSet<String>) {
    let mut found = Vec::new();
    hoist(graph, None, taken, &mut found);
    graph.constants.extend(found);
}

fn hoist(graph: &mut Graph, names: Option<&Names<'_>>, taken: &mut HashSet<String>, found: &mut Vec<(String, Array)>) {
    for node in &mut graph.nodes {
        if let Some(names) = names {
            node.inputs.iter_mut().for_each(|name| names.change(name));
        }
        if let Some(body) = &mut node.body {
            hoist_into(body, taken);
        }
        for attribute in node.attributes.values_mut() {
            let Attribute::Graph(inner) = attribute else { continue };
            let mut renamed = HashMap::new();
            for (name, array) in std::mem::take(&mut inner.constants) {
                let mut free = format!("{}.{name}", node.name);
                while !taken.insert(free.clone()) {
                    free = format!("{}.{name}.{}", node.name, taken.len());
                }
                renamed.insert(name, free.clone());
                found.push((free, array));
            }
            let ports = inner.inputs.iter().map(|port| &port.name);
            let own = ports.chain(inner.nodes.iter().flat_map(|node| &node.outputs)).cloned().collect();
            let inside = Names { own, renamed, around: names };
            inner.outputs.iter_mut().for_each(|port| inside.change(&mut port.name));
            hoist(inner, Some(&inside), taken, found);
        }
    }
}

fn folded(node: &Node, known: &Known<'_>, queue: &Queue, work: &mut usize) -> Option<Vec<Array>> {
    let operator = node.operator.as_str();
    let constant =
        operator == "Constant" && !node.attributes.values().any(|value| matches!(value, Attribute::Graph(_)));
    if node.graphs().next().is_some() || !FOLDED.contains(&operator) {
        return None;
    }
    if !constant
        && (node.inputs.is_empty() || !node.inputs.iter().all(|name| name.is_empty() || known.get(name).is_some()))
    {
        return None;
    }
    let inputs = node.inputs.iter().filter_map(|name| Some((name, known.get(name)?)));
    // What a constant holds, the file holds. A node that fails has had its inputs read as well.
    *work += if constant { 0 } else { 1 + inputs.clone().map(|(_, array)| array.len()).sum::<usize>() };
    if *work > MOST_WORK && !constant {
        return None;
    }
    let values = inputs.map(|(name, array)| (name.as_str(), Value::Array(array.clone()))).collect();
    let results =
        with_limit(if constant { usize::MAX } else { 4 * MOST }, || step(node, queue, &Scope { values, around: None }));
    if !constant {
        *work += match &results {
            Ok(results) => results.iter().map(|value| 1 + value.shape().map_or(0, |shape| product(&shape))).sum(),
            // It may have made that much before it failed.
            Err(_) => 4 * MOST,
        };
    }
    let results = results.ok()?;
    results
        .into_iter()
        .map(|value| match value {
            Value::Array(array) if constant || array.len() <= MOST => Some(array),
            // Computed on the device, as they would have been in every run.
            Value::Tensor(tensor) if tensor.size() <= MOST && Kind::of_dtype(tensor.dtype()).is_float() => {
                Array::of_tensor(&tensor).ok()
            }
            _ => None,
        })
        .collect()
}
