//! A model's graph as it runs: nodes with their functions, attributes, and the graphs inside them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use crate::array::Array;
use crate::ops::{self, Op};
use crate::wire::Blob;
use crate::{proto, tensors};

type Result<T> = std::result::Result<T, String>;

/// Nodes that functions may expand to.
const MOST_NODES: usize = 1 << 18;
/// Functions that call each other.
const MOST_CALLS: usize = 32;
/// Numbers, bytes of names and nodes that calls of functions may copy from attributes.
const MOST_COPIED: usize = 1 << 26;
/// Elements that sparse tensors may have in all, and how many more for each one that is stored.
const MOST_SPARSE: usize = 1 << 24;
const MOST_SPARSE_PER_VALUE: usize = 64;

/// An attribute of a node.
#[derive(Clone, Debug)]
pub(crate) enum Attribute {
    Float(f64),
    Int(i64),
    Text(String),
    Tensor(Array),
    Graph(Box<Graph>),
    Floats(Vec<f64>),
    Ints(Vec<i64>),
    Texts(Vec<String>),
}

/// An operation in a graph.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Its name, for messages.
    pub(crate) name: String,
    /// The operator with its domain: `Conv`, `ai.onnx.ml:Binarizer`.
    pub(crate) operator: String,
    pub(crate) op: Option<Op>,
    /// Names of values; empty where an optional one is left out.
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    pub(crate) attributes: HashMap<String, Attribute>,
    /// Values that nobody needs after this node.
    pub(crate) last: Vec<String>,
    /// The version of the operator set.
    pub(crate) opset: i64,
    /// The graph of a function that the file defines.
    pub(crate) body: Option<Box<Graph>>,
}

/// A value that goes in or comes out.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its element type, as the file says.
    pub kind: Option<crate::Kind>,
    /// Its shape: numbers, names of symbolic lengths, or `?`.
    pub shape: Option<Vec<String>>,
}

/// Nodes in an order in which they can run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    pub(crate) constants: Vec<(String, Array)>,
    pub(crate) nodes: Vec<Node>,
}

impl Graph {
    /// Every node, those inside of others as well.
    pub(crate) fn each<'g>(&'g self, see: &mut dyn FnMut(&'g Node)) {
        for node in &self.nodes {
            see(node);
            node.graphs().for_each(|graph| graph.each(see));
        }
    }
}

impl Attribute {
    /// About how much a copy takes.
    fn weight(&self) -> usize {
        match self {
            Attribute::Float(_) | Attribute::Int(_) => 1,
            Attribute::Text(text) => text.len(),
            Attribute::Tensor(array) => array.len(),
            Attribute::Floats(list) => list.len(),
            Attribute::Ints(list) => list.len(),
            Attribute::Texts(list) => list.iter().map(|text| text.len() + 1).sum(),
            Attribute::Graph(graph) => {
                let constants: usize = graph.constants.iter().map(|(name, array)| name.len() + array.len()).sum();
                // A node has names, a table of attributes and lists.
                let node = |node: &Node| 64 + node.attributes.values().map(Attribute::weight).sum::<usize>();
                constants + graph.nodes.iter().map(node).sum::<usize>()
            }
        }
    }
}

impl Node {
    pub(crate) fn graphs(&self) -> impl Iterator<Item = &Graph> {
        let attributes = self.attributes.values().filter_map(|attribute| match attribute {
            Attribute::Graph(graph) => Some(graph.as_ref()),
            _ => None,
        });
        attributes.chain(self.body.as_deref())
    }
}

/// Makes graphs out of what a file says.
pub(crate) struct Builder<'m> {
    beside: tensors::Beside<'m>,
    functions: HashMap<(&'m str, &'m str), &'m proto::Function>,
    nodes: usize,
    copied: usize,
    /// Elements of sparse tensors, and what may be added to them.
    sparse: usize,
}

/// What holds where nodes stand.
#[derive(Clone, Copy)]
struct Context<'c> {
    opsets: &'c [proto::OperatorSet],
    /// The attributes of the function around.
    given: &'c HashMap<String, Attribute>,
    calls: usize,
}

impl<'m> Builder<'m> {
    pub(crate) fn new(model: &'m proto::Model, folder: Option<&'m Path>) -> Self {
        let functions = model.functions.iter().map(|f| ((plain(&f.domain), f.name.as_str()), f)).collect();
        Builder { beside: tensors::Beside::new(folder), functions, nodes: 0, copied: 0, sparse: MOST_SPARSE }
    }

    pub(crate) fn model(&mut self, model: &proto::Model) -> Result<Graph> {
        let graph = model.graph.as_ref().ok_or("it holds no graph")?;
        let given = HashMap::new();
        let mut graph = self.graph(graph, Context { opsets: &model.opset_import, given: &given, calls: 0 })?;
        forget(&mut graph, &[]);
        check(&graph, None)?;
        Ok(graph)
    }

    fn graph(&mut self, graph: &proto::Graph, context: Context<'_>) -> Result<Graph> {
        let mut constants = Vec::new();
        for tensor in &graph.initializer {
            constants.push((tensor.name.clone(), tensors::read(tensor, &self.beside)?));
        }
        for sparse in &graph.sparse_initializer {
            let name = sparse.values.as_ref().map(|values| values.name.clone()).unwrap_or_default();
            constants.push((name, self.sparse(sparse)?));
        }
        if context.calls > 0 {
            self.copied(constants.iter().map(|(_, array)| array.len()).sum())?;
        }
        let known: HashSet<&str> = constants.iter().map(|(name, _)| name.as_str()).collect();
        let inputs = graph.input.iter().filter(|input| !known.contains(input.name.as_str())).map(port).collect();
        let outputs = graph.output.iter().map(port).collect();
        let nodes = self.nodes_of(&graph.node, context)?;
        Ok(Graph { inputs, outputs, constants, nodes })
    }

    fn nodes_of(&mut self, nodes: &[proto::Node], context: Context<'_>) -> Result<Vec<Node>> {
        nodes.iter().map(|node| self.node(node, context)).collect()
    }

    fn node(&mut self, node: &proto::Node, context: Context<'_>) -> Result<Node> {
        self.nodes += 1;
        if self.nodes > MOST_NODES {
            return Err(format!("its functions expand to more than {MOST_NODES} nodes"));
        }
        let domain = plain(&node.domain);
        let operator = if domain.is_empty() { node.op_type.clone() } else { format!("{domain}:{}", node.op_type) };
        let mut attributes = HashMap::new();
        for attribute in &node.attribute {
            let value = if attribute.ref_attr_name.is_empty() {
                let own = self.attribute(attribute, context)?;
                // A function's own attributes are read anew for each call; graphs count what is in them.
                let own_copies = own.iter().filter(|own| context.calls > 0 && !matches!(own, Attribute::Graph(_)));
                self.copies(own_copies)?;
                own
            } else {
                self.copies(context.given.get(&attribute.ref_attr_name).into_iter())?;
                context.given.get(&attribute.ref_attr_name).cloned()
            };
            if let Some(value) = value {
                attributes.insert(attribute.name.clone(), value);
            }
        }
        let body = match self.functions.get(&(domain, node.op_type.as_str())).copied() {
            Some(function) => Some(Box::new(self.function(function, &attributes, context.calls)?)),
            None => None,
        };
        Ok(Node {
            name: if node.name.is_empty() {
                node.output.first().cloned().unwrap_or_default()
            } else {
                node.name.clone()
            },
            op: if body.is_some() { Some(ops::call_body as Op) } else { ops::find(&operator) },
            operator,
            inputs: node.input.clone(),
            outputs: node.output.clone(),
            attributes,
            last: Vec::new(),
            opset: context.opsets.iter().find(|set| plain(&set.domain) == domain).map_or(1, |set| set.version),
            body,
        })
    }

    /// Counts what is copied: a small file could ask for copies of copies.
    fn copies<'a>(&mut self, attributes: impl Iterator<Item = &'a Attribute>) -> Result<()> {
        self.copied(attributes.map(Attribute::weight).sum())
    }

    fn copied(&mut self, weight: usize) -> Result<()> {
        self.copied = self.copied.saturating_add(weight);
        if self.copied > MOST_COPIED {
            return Err("the attributes that its functions copy take too much memory".to_owned());
        }
        Ok(())
    }

    /// A function with the attributes of a call put in.
    fn function(
        &mut self,
        function: &proto::Function,
        attributes: &HashMap<String, Attribute>,
        calls: usize,
    ) -> Result<Graph> {
        if calls >= MOST_CALLS {
            return Err(format!("function {} calls itself, or others more than {MOST_CALLS} deep", function.name));
        }
        let empty = HashMap::new();
        let mut given = HashMap::new();
        for default in &function.attribute_proto {
            let context = Context { opsets: &function.opset_import, given: &empty, calls };
            if let Some(value) = self.attribute(default, context)? {
                given.insert(default.name.clone(), value);
            }
        }
        self.copies(attributes.values())?;
        given.extend(attributes.iter().map(|(name, value)| (name.clone(), value.clone())));
        let context = Context { opsets: &function.opset_import, given: &given, calls: calls + 1 };
        let port = |name: &String| Port { name: name.clone(), kind: None, shape: None };
        Ok(Graph {
            inputs: function.input.iter().map(port).collect(),
            outputs: function.output.iter().map(port).collect(),
            constants: Vec::new(),
            nodes: self.nodes_of(&function.node, context)?,
        })
    }

    fn attribute(&mut self, from: &proto::Attribute, context: Context<'_>) -> Result<Option<Attribute>> {
        let text = |bytes: &Blob| String::from_utf8_lossy(&bytes.0).into_owned();
        Ok(Some(match from.kind {
            1 => Attribute::Float(f64::from(from.f.unwrap_or(0.0))),
            2 => Attribute::Int(from.i.unwrap_or(0)),
            3 => Attribute::Text(text(from.s.as_ref().unwrap_or(&Blob::default()))),
            4 => match &from.t {
                Some(tensor) => Attribute::Tensor(tensors::read(tensor, &self.beside)?),
                None => return Ok(None),
            },
            5 => match &from.g {
                Some(graph) => Attribute::Graph(Box::new(self.graph(graph, context)?)),
                None => return Ok(None),
            },
            6 => Attribute::Floats(from.floats.iter().map(|&v| f64::from(v)).collect()),
            7 => Attribute::Ints(from.ints.clone()),
            8 => Attribute::Texts(from.strings.iter().map(text).collect()),
            11 => match &from.sparse_tensor {
                Some(sparse) => Attribute::Tensor(self.sparse(sparse)?),
                None => return Ok(None),
            },
            // Types of sequences and optionals: values know them.
            _ => return Ok(None),
        }))
    }

    fn sparse(&mut self, sparse: &proto::SparseTensor) -> Result<Array> {
        let read = |tensor: &Option<proto::Tensor>| match tensor {
            Some(tensor) => tensors::read(tensor, &self.beside),
            None => Err("a sparse tensor lacks its values or indices".to_owned()),
        };
        let (values, indices) = (read(&sparse.values)?, read(&sparse.indices)?);
        let wrong = |what: &str| format!("sparse tensor: {what}");
        let shape = sparse.dims.iter().map(|&n| usize::try_from(n)).collect::<std::result::Result<Vec<_>, _>>();
        let shape = shape.map_err(|_| wrong("its shape has a negative length"))?;
        let all = crate::array::count(&shape).map_err(|error| error.to_string())?;
        self.sparse = self.sparse.saturating_add(values.len().saturating_mul(MOST_SPARSE_PER_VALUE));
        self.sparse = self.sparse.checked_sub(all).ok_or_else(|| {
            wrong(&format!(
                "shape {shape:?} is too large for {} values; in all there are {MOST_SPARSE_PER_VALUE} elements for each \
                 value, and {MOST_SPARSE} more",
                values.len()
            ))
        })?;
        let mut dense = Array::full(values.kind, shape.clone(), 0.0).map_err(|error| error.to_string())?;
        let steps = crate::array::strides(&shape);
        let indices = (indices.shape.len(), indices.to_ints().map_err(|error| error.to_string())?);
        let width = if indices.0 == 2 { shape.len() } else { 1 };
        let mut places = Vec::with_capacity(values.len());
        for row in indices.1.chunks(width.max(1)) {
            let at: i128 = match indices.0 {
                2 => row.iter().zip(&steps).map(|(&i, &step)| i128::from(i) * step as i128).sum(),
                _ => i128::from(row[0]),
            };
            places.push(
                usize::try_from(at).ok().filter(|&at| at < dense.len()).ok_or_else(|| wrong("an index is outside"))?,
            );
        }
        if places.len() != values.len() {
            return Err(wrong("it has not as many indices as values"));
        }
        dense.put(&places, &values).map_err(|error| error.to_string())?;
        Ok(dense)
    }
}

/// The default domain has two names.
fn plain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

fn port(info: &proto::ValueInfo) -> Port {
    let tensor = info.kind.as_ref().and_then(|kind| kind.tensor.as_ref());
    let length = |dim: &proto::Dimension| match (&dim.value, &dim.symbol) {
        (Some(length), _) => length.to_string(),
        (None, Some(symbol)) if !symbol.is_empty() => symbol.clone(),
        _ => "?".to_owned(),
    };
    Port {
        name: info.name.clone(),
        kind: tensor.and_then(|tensor| crate::Kind::of_code(i64::from(tensor.element))),
        shape: tensor.and_then(|tensor| tensor.shape.as_ref()).map(|shape| shape.dim.iter().map(length).collect()),
    }
}

/// What the graphs inside a node read from outside.
fn outside(graph: &Graph, names: &mut BTreeSet<String>) {
    for node in &graph.nodes {
        names.extend(node.inputs.iter().cloned());
        node.graphs().for_each(|graph| outside(graph, names));
    }
    names.extend(graph.outputs.iter().map(|port| port.name.clone()));
}

/// Notes after which node each value can go.
fn forget(graph: &mut Graph, keep: &[String]) {
    let mut needed: HashSet<String> = graph.outputs.iter().map(|port| port.name.clone()).collect();
    needed.extend(keep.iter().cloned());
    let own: HashSet<String> = graph.nodes.iter().flat_map(|node| node.outputs.iter().cloned()).collect();
    for node in graph.nodes.iter_mut().rev() {
        let mut read: BTreeSet<String> = node.inputs.iter().cloned().collect();
        for inner in node.attributes.values_mut() {
            if let Attribute::Graph(inner) = inner {
                outside(inner, &mut read);
                forget(inner, &[]);
            }
        }
        if let Some(body) = &mut node.body {
            forget(body, &[]);
        }
        node.last = read.into_iter().filter(|name| own.contains(name) && needed.insert(name.clone())).collect();
    }
}

/// Names of values, and those around them.
struct Known<'k> {
    names: HashSet<&'k str>,
    around: Option<&'k Known<'k>>,
}

impl Known<'_> {
    fn has(&self, name: &str) -> bool {
        self.names.contains(name) || self.around.is_some_and(|around| around.has(name))
    }
}

/// Every value is made before it is read, and by one node only.
fn check(graph: &Graph, around: Option<&Known<'_>>) -> Result<()> {
    let ports = graph.inputs.iter().map(|port| port.name.as_str());
    let names = ports.chain(graph.constants.iter().map(|(name, _)| name.as_str())).collect();
    let mut known = Known { names, around };
    let mut from_around = HashSet::new();
    for node in &graph.nodes {
        if let Some(name) = node.inputs.iter().find(|name| !name.is_empty() && !known.has(name)) {
            return Err(format!(
                "node {:?} ({}) reads {name:?}, which nothing before it makes",
                node.name, node.operator
            ));
        }
        for inner in node.graphs() {
            check(inner, if node.body.is_some() { None } else { Some(&known) })?;
        }
        from_around.extend(node.inputs.iter().map(String::as_str).filter(|name| !known.names.contains(name)));
        for name in node.outputs.iter().filter(|name| !name.is_empty()) {
            if from_around.contains(name.as_str()) || !known.names.insert(name) {
                return Err(format!("node {:?} ({}) makes {name:?}, which there is already", node.name, node.operator));
            }
        }
    }
    match graph.outputs.iter().find(|port| !port.name.is_empty() && !known.has(&port.name)) {
        Some(port) => Err(format!("nothing makes the output {:?}", port.name)),
        None => Ok(()),
    }
}
