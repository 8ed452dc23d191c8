//! A model as a module: its initialisers are parameters under their own names.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use netcl_nn::autograd::{self, Queue, Tensor};
use netcl_nn::{Member, MemberMut, Module, Role};

use crate::array::bad;
use crate::error::{Error, Result};
use crate::fold::fold;
use crate::graph::{Builder, Graph, Port};
use crate::kind::Kind;
use crate::run::{Scope, run};
use crate::value::Value;
use crate::{ops, proto, wire};

/// Operator sets that are understood.
const OPSETS: std::ops::RangeInclusive<i64> = 1..=27;

/// A model that was read from an ONNX file.
///
/// Initialisers of fractions are parameters (the averages of batch normalisations are buffers) under the names they have in the file,
/// so that it is trained, saved and moved like any other module.
pub struct OnnxModule {
    graph: Graph,
    stored: Vec<(String, Role, Tensor)>,
    queue: Queue,
}

/// What a file holds, and what of it cannot run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Who wrote the file.
    pub producer: String,
    /// The version of each operator set.
    pub opsets: Vec<(String, i64)>,
    /// What goes in.
    pub inputs: Vec<Port>,
    /// What comes out.
    pub outputs: Vec<Port>,
    /// How often each operator occurs, those inside control flow and functions included.
    pub operators: BTreeMap<String, usize>,
    /// Operators that are not supported, with the names of their nodes.
    pub missing: BTreeMap<String, Vec<String>>,
    /// Numbers and elements of the initialisers.
    pub initializers: (usize, usize),
}

/// Reads a model from a file onto a device.
///
/// # Errors
/// If the file is none, or needs operators that are not supported: all of them are named.
pub fn load(path: impl AsRef<Path>, queue: &Queue) -> Result<OnnxModule> {
    let path = path.as_ref();
    build(&bytes_of(path)?, path.parent(), &path.display().to_string(), queue)
}

/// Reads a model from memory; it can have no external data.
///
/// # Errors
/// As [`load`].
pub fn read(bytes: &[u8], queue: &Queue) -> Result<OnnxModule> {
    build(bytes, None, "the data", queue)
}

/// Lists a file's operators, inputs and outputs, also of a model that cannot run.
///
/// # Errors
/// If the file is no ONNX model.
pub fn inspect(path: impl AsRef<Path>) -> Result<Report> {
    let path = path.as_ref();
    let (model, graph) = parse(&bytes_of(path)?, path.parent(), &path.display().to_string())?;
    Ok(report(&model, &graph))
}

fn bytes_of(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|reason| Error::Read { path: path.to_owned(), reason })
}

fn parse(bytes: &[u8], folder: Option<&Path>, name: &str) -> Result<(proto::Model, Graph)> {
    let malformed = |what: String| Error::Malformed { model: name.to_owned(), what };
    let model: proto::Model = wire::read(bytes).map_err(malformed)?;
    let graph = Builder::new(&model, folder).model(&model).map_err(malformed)?;
    let opset = model.opset_import.iter().find(|set| set.domain.is_empty() || set.domain == "ai.onnx");
    if let Some(set) = opset.filter(|set| !OPSETS.contains(&set.version)) {
        return Err(malformed(format!(
            "operator set {} (supported: {} to {})",
            set.version,
            OPSETS.start(),
            OPSETS.end()
        )));
    }
    Ok((model, graph))
}

fn report(model: &proto::Model, graph: &Graph) -> Report {
    let mut report = Report {
        producer: format!("{} {}", model.producer_name, model.producer_version).trim().to_owned(),
        opsets: model.opset_import.iter().map(|set| (set.domain.clone(), set.version)).collect(),
        inputs: graph.inputs.clone(),
        outputs: graph.outputs.clone(),
        operators: BTreeMap::new(),
        missing: BTreeMap::new(),
        initializers: (graph.constants.len(), graph.constants.iter().map(|(_, array)| array.len()).sum()),
    };
    graph.each(&mut |node| {
        *report.operators.entry(node.operator.clone()).or_default() += 1;
        if node.op.is_none() {
            report.missing.entry(node.operator.clone()).or_default().push(node.name.clone());
        }
    });
    report
}

fn build(bytes: &[u8], folder: Option<&Path>, name: &str, queue: &Queue) -> Result<OnnxModule> {
    let (model, mut graph) = parse(bytes, folder, name)?;
    let missing = report(&model, &graph).missing;
    if !missing.is_empty() {
        let missing =
            missing.into_iter().map(|(operator, nodes)| format!("{operator} ({})", nodes.join(", "))).collect();
        return Err(Error::Missing { model: name.to_owned(), missing });
    }
    let initializers: HashSet<String> = graph.constants.iter().map(|(name, _)| name.clone()).collect();
    fold(&mut graph, queue);
    let constants = std::mem::take(&mut graph.constants);
    let uses = uses(&graph);
    let mut stored = Vec::new();
    let mut kept = Vec::new();
    for (name, array) in constants {
        let role = match uses.get(name.as_str()) {
            Some(&role) if matches!(array.kind, Kind::F32 | Kind::F64 | Kind::F16 | Kind::BF16) => Some(role),
            _ => None,
        };
        match role {
            None | Some(Use::Host) => kept.push((name, array)),
            Some(Use::Buffer) => stored.push((name, Role::Buffer, array.to_tensor(queue)?)),
            Some(Use::Device) if initializers.contains(&name) => {
                stored.push((name, Role::Parameter, array.to_tensor(queue)?.with_grad()));
            }
            Some(Use::Device) => stored.push((name, Role::Constant, array.to_tensor(queue)?)),
        }
    }
    graph.constants = kept;
    Ok(OnnxModule { graph, stored, queue: queue.clone() })
}

/// How the nodes of a model read a constant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// As a number that decides what is computed.
    Host,
    /// As an average that is not trained.
    Buffer,
    /// As values to compute with.
    Device,
}

fn uses(graph: &Graph) -> HashMap<&str, Use> {
    let mut uses = HashMap::new();
    let mut see = |name, how| {
        uses.entry(name)
            .and_modify(|known| {
                if *known != how {
                    *known = Use::Device
                }
            })
            .or_insert(how);
    };
    graph.each(&mut |node| {
        for (i, name) in node.inputs.iter().enumerate() {
            let how = match (node.operator.as_str(), i) {
                ("Clip" | "Resize", 1 | 2) | ("Pad", 2) | ("Upsample" | "Dropout", 1) => Use::Host,
                ("QuantizeLinear" | "DequantizeLinear" | "QLinearConv" | "QLinearMatMul", _) => Use::Host,
                ("BatchNormalization", 3 | 4) => Use::Buffer,
                _ => Use::Device,
            };
            see(name.as_str(), how);
        }
    });
    uses
}

impl OnnxModule {
    /// Parameters, buffers and constants with what each is, under their names in the file.
    pub fn stored(&self) -> impl Iterator<Item = (&str, Role, &Tensor)> {
        self.stored.iter().map(|(name, role, tensor)| (name.as_str(), *role, tensor))
    }

    /// What goes in.
    pub fn inputs(&self) -> &[Port] {
        &self.graph.inputs
    }

    /// What comes out.
    pub fn outputs(&self) -> &[Port] {
        &self.graph.outputs
    }

    /// Runs the model with its inputs in order; gives all outputs in order.
    ///
    /// Arrays of types that devices compute with are copied to the module's device first.
    ///
    /// # Errors
    /// The first one of a node, with its name.
    pub fn run(&self, inputs: Vec<Value>) -> autograd::Result<Vec<Value>> {
        let ports = &self.graph.inputs;
        if inputs.len() != ports.len() {
            let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
            return Err(bad(format!(
                "the model takes {} inputs ({}), got {}",
                names.len(),
                names.join(", "),
                inputs.len()
            )));
        }
        let queue = inputs.iter().find_map(|value| match value {
            Value::Tensor(tensor) => Some(tensor.queue().clone()),
            _ => None,
        });
        let queue = queue.unwrap_or_else(|| match self.stored.first() {
            Some((_, _, tensor)) => tensor.latest().queue().clone(),
            None => self.queue.clone(),
        });
        ops::begin_run();
        let inputs = inputs.into_iter().map(|value| value.on_device(&queue)).collect::<autograd::Result<_>>()?;
        let values = self.stored.iter().map(|(name, _, tensor)| (name.as_str(), tensor.latest().into())).collect();
        run(&self.graph, inputs, &queue, Some(&Scope { values, around: None }))
    }
}

impl Module for OnnxModule {
    fn forward(&self, input: &Tensor) -> autograd::Result<Tensor> {
        let outputs = self.run(vec![input.clone().into()])?;
        outputs.first().ok_or_else(|| bad("the model has no outputs"))?.to_tensor(input.queue())
    }

    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        for (name, role, tensor) in &self.stored {
            see(
                name,
                match role {
                    Role::Parameter => Member::Parameter(tensor),
                    Role::Buffer => Member::Buffer(tensor),
                    Role::Constant => Member::Constant(tensor),
                },
            );
        }
    }

    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        for (name, role, tensor) in &mut self.stored {
            see(name, MemberMut::Tensor(*role, tensor));
        }
    }

    fn arguments(&self) -> String {
        let mut operators: BTreeMap<&str, usize> = BTreeMap::new();
        self.graph.each(&mut |node| *operators.entry(&node.operator).or_default() += 1);
        operators.iter().map(|(name, n)| format!("{name}={n}")).collect::<Vec<_>>().join(", ")
    }
}

impl std::fmt::Display for OnnxModule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({})", self.kind(), self.arguments())
    }
}
