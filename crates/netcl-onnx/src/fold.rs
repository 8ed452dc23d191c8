//! Constant folding: what follows from constants alone is computed once, when a model is loaded.

use std::collections::HashMap;

use netcl_nn::autograd::Queue;

use crate::array::Array;
use crate::graph::{Attribute, Graph, Node};
use crate::kind::Kind;
use crate::run::{Scope, step};
use crate::value::Value;

/// Results of more elements stay to be computed: memory is dearer than a copy.
const MOST: usize = 1 << 16;

/// Operators whose results can be much larger than what they are made of.
const GROWING: &[&str] =
    &["ConstantOfShape", "Expand", "Tile", "Range", "Pad", "Resize", "Upsample", "OneHot", "EyeLike"];
/// Operators whose results differ from run to run.
const RANDOM: &[&str] =
    &["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout"];

/// Replaces nodes by their results. A node that fails is left to fail when it runs, where its name is known.
pub(crate) fn fold(graph: &mut Graph, queue: &Queue) {
    // Parameters may change: only whole numbers of initialisers are known for good.
    let known = graph.constants.iter().filter(|(_, array)| !array.kind.is_float() && array.len() <= MOST);
    let mut known: HashMap<String, Array> = known.cloned().collect();
    let mut rest = Vec::new();
    for node in std::mem::take(&mut graph.nodes) {
        match folded(&node, &known, queue) {
            Some(results) => {
                for (name, array) in node.outputs.into_iter().zip(results).filter(|(name, _)| !name.is_empty()) {
                    graph.constants.push((name.clone(), array.clone()));
                    known.insert(name, array);
                }
            }
            None => rest.push(node),
        }
    }
    graph.nodes = rest;
}

fn folded(node: &Node, known: &HashMap<String, Array>, queue: &Queue) -> Option<Vec<Array>> {
    let operator = node.operator.as_str();
    let constant =
        operator == "Constant" && !node.attributes.values().any(|value| matches!(value, Attribute::Graph(_)));
    if node.graphs().next().is_some() || GROWING.contains(&operator) || RANDOM.contains(&operator) {
        return None;
    }
    if !constant
        && (node.inputs.is_empty() || !node.inputs.iter().all(|name| name.is_empty() || known.contains_key(name)))
    {
        return None;
    }
    let inputs = node.inputs.iter().filter_map(|name| known.get_key_value(name));
    let values = inputs.map(|(name, array)| (name.as_str(), Value::Array(array.clone()))).collect();
    let results = step(node, queue, &Scope { values, around: None }).ok()?;
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
