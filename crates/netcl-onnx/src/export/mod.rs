//! Modules as ONNX files: a module runs once, and the operations that it calls are written as ONNX's.
//!
//! What depends on the size of the batch, or on other lengths that stay open, is found by running with several sizes: lengths that
//! differ are functions of the open ones, which the file computes from the shapes of its inputs.
//!
//! | file | subject |
//! |---|---|
//! | `builder.rs`, `constants.rs` | the graph: names, initialisers, constants |
//! | `lengths.rs` | lengths that stay open |
//! | `call.rs` | one operation |
//! | `ops/` | operations by family |
//! | `file.rs` | the file, and large weights beside it |

mod builder;
mod call;
mod constants;
mod file;
mod lengths;
mod ops;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use netcl_nn::autograd::trace::{Key, Value};
use netcl_nn::autograd::{self, DType, Tensor};
use netcl_nn::{Member, Module};

use crate::error::{Error, Result};
use crate::proto;
use builder::{Builder, Dim, Runs, Trouble, code};

/// The operator set of the files.
const OPSET: i64 = 18;
/// The version of the format that came with it.
const IR_VERSION: i64 = 8;
/// The version of the operator set that has bfloat16 everywhere, and of its format.
const OPSET_OF_BFLOAT16: (i64, i64) = (22, 10);
/// Why a file would repeat what the example gave.
const FOLLOWS_FROM_VALUES: &str = "follows from values of the inputs that the model reads on the host (item(), to_host(), numpy(), an index \
                                   or mask), or from random numbers; a file would repeat those of the example: compute it with \
                                   operations on tensors";
/// What one protobuf message can hold, less what else is in the file.
const MOST_INSIDE: usize = (2 << 30) - (64 << 20);

/// How [`save_with`] writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaveOptions {
    /// What the inputs are called; `input`, or `input_0` and so on, unless given.
    pub input_names: Vec<String>,
    /// What the outputs are called; `output`, or `output_0` and so on, unless given.
    pub output_names: Vec<String>,
    /// Whether the first axis of the first input, and of every other one that is as long there, may have any length. It is on by
    /// default.
    pub dynamic_batch: bool,
    /// The axes that may have any length, up to three names of lengths; given, they decide instead of `dynamic_batch`.
    pub dynamic_axes: Option<Vec<DynamicAxis>>,
    /// Whether weights lie in a file of their own beside the model; unless given, only where they are too large for one.
    pub external_data: Option<bool>,
}

impl Default for SaveOptions {
    fn default() -> SaveOptions {
        SaveOptions {
            input_names: Vec::new(),
            output_names: Vec::new(),
            dynamic_batch: true,
            dynamic_axes: None,
            external_data: None,
        }
    }
}

/// An axis of an input that may have any length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicAxis {
    /// The input's name.
    pub input: String,
    /// The axis, counted from the front.
    pub axis: usize,
    /// What the length is called in the file; axes of one name are equally long.
    pub name: String,
}

impl DynamicAxis {
    /// Axis `axis` of `input`, called `name`.
    pub fn new(input: impl Into<String>, axis: usize, name: impl Into<String>) -> DynamicAxis {
        DynamicAxis { input: input.into(), axis, name: name.into() }
    }
}

/// Writes a module as an ONNX file (operator set 18; 22 with bfloat16). `example` is an input that it takes.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Linear, Module, ReLU, sequential};
///
/// let queue = manager().cpu().queue;
/// let mut model = sequential![Linear::new(&queue, 4, 8)?, ReLU, Linear::new(&queue, 8, 2)?];
/// model.eval();
/// let path = std::env::temp_dir().join(format!("netcl-save-{}.onnx", std::process::id()));
/// let x = Tensor::from_host(&queue, &[0.5f32; 12], [3, 4])?;
/// netcl_onnx::save(&path, &model, &x)?;
///
/// let again = netcl_onnx::load(&path, &queue)?;
/// let names: Vec<String> = again.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["0.weight", "0.bias", "2.weight", "2.bias"]);
/// assert_eq!(again.forward(&x)?.to_host::<f32>()?, model.forward(&x)?.to_host::<f32>()?);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The module runs several times: with other batches, and with other values, which shows what it reads on the host.
///
/// # Errors
/// If the module is in training mode, fails, or calls operations that ONNX does not have, or that follow from values read on the host
/// (`item()`, `to_host()`): all of them are named, with their modules.
pub fn save(path: impl AsRef<Path>, module: &dyn Module, example: &Tensor) -> Result<()> {
    let forward = |inputs: &[Tensor]| Ok(vec![module.forward(&inputs[0])?]);
    save_with(path, module, std::slice::from_ref(example), &SaveOptions::default(), &forward)
}

/// [`save`] of a module that takes or gives several tensors, through a function that calls it.
///
/// # Errors
/// As [`save`].
pub fn save_with(
    path: impl AsRef<Path>,
    module: &dyn Module,
    examples: &[Tensor],
    options: &SaveOptions,
    forward: &dyn Fn(&[Tensor]) -> autograd::Result<Vec<Tensor>>,
) -> Result<()> {
    let path = path.as_ref();
    let mut model = to_proto(module, examples, options, forward)?;
    let stored: usize = model.graph.iter().flat_map(|graph| &graph.initializer).map(|one| one.raw_data.0.len()).sum();
    let external = options.external_data.unwrap_or(stored > MOST_INSIDE);
    if !external && stored > MOST_INSIDE {
        let what = format!("{stored} bytes of weights do not fit into one file; leave external_data to its default");
        return Err(Error::Export { what });
    }
    file::write(path, &mut model, external)
}

fn wrong(what: impl Into<String>) -> Error {
    Error::Export { what: what.into() }
}

/// The model as it stands in a file.
fn to_proto(
    module: &dyn Module,
    examples: &[Tensor],
    options: &SaveOptions,
    forward: &dyn Fn(&[Tensor]) -> autograd::Result<Vec<Tensor>>,
) -> Result<proto::Model> {
    if examples.is_empty() {
        return Err(wrong("no example input was given: the operations are found by running the model"));
    }
    let has_mode = module.named_modules().iter().any(|(_, part)| {
        let mut training = false;
        part.visit(&mut |_, member| training |= matches!(member, Member::Mode(true)));
        training
    });
    if has_mode {
        return Err(wrong("the model is in training mode; call eval() first"));
    }
    let stored = stored(module);
    let weights: Vec<Tensor> = stored.iter().map(|(_, tensor)| tensor.latest()).collect();
    let input_names = names(&options.input_names, "input", examples.len())?;
    let mut runs = Runs::of(examples, &weights, &input_names, options, forward)?;
    let differ = runs.keep_alike();
    let mut b = Builder::new(module.kind(), &runs, stored);
    let output_names = names(&options.output_names, "output", runs.results[0].len())?;
    input_names.iter().chain(&output_names).try_for_each(|name| b.reserve(name)).map_err(wrong)?;
    for (at, name) in input_names.iter().enumerate() {
        let seen: Vec<&Value> = runs.traces.iter().map(|trace| &trace.inputs[at]).collect();
        let dims = b.shape_of(&seen).map_err(said)?;
        b.bind(seen[0], name.clone());
        let port = port(&runs, name, seen[0].raw().dtype(), &dims);
        b.graph.input.push(port);
    }
    write_operations(&mut b, &runs)?;
    if let Some(what) = differ {
        return Err(wrong(what));
    }
    for (at, name) in output_names.iter().enumerate() {
        let seen: Vec<&Value> = runs.results.iter().map(|results| &results[at]).collect();
        if runs.result_read_on_host(at) {
            return Err(wrong(format!("the result {name:?} {FOLLOWS_FROM_VALUES}")));
        }
        let made = b.value(&seen).map_err(said)?;
        let dims = b.shape_of(&seen).map_err(said)?;
        b.name_output(&made, name);
        let port = port(&runs, name, seen[0].raw().dtype(), &dims);
        b.graph.output.push(port);
    }
    prune(&mut b.graph);
    let narrow = |value: &Value| value.raw().dtype() == DType::BF16;
    let trace = &runs.traces[0];
    let values = trace.ops.iter().flat_map(|op| op.operands().chain(&op.outputs));
    let (opset, ir_version) =
        if values.chain(&trace.inputs).any(narrow) { OPSET_OF_BFLOAT16 } else { (OPSET, IR_VERSION) };
    Ok(proto::Model {
        ir_version,
        producer_name: "netcl".to_owned(),
        producer_version: env!("CARGO_PKG_VERSION").to_owned(),
        graph: Some(b.graph),
        opset_import: vec![proto::OperatorSet { domain: String::new(), version: opset }],
        functions: Vec::new(),
    })
}

fn said(trouble: Trouble) -> Error {
    match trouble {
        Trouble::Said(what) => wrong(what),
        Trouble::Downstream => wrong("an output depends on what could not be exported"),
    }
}

/// Writes what the results depend on; an error lists everything that has no operator.
fn write_operations(b: &mut Builder<'_>, runs: &Runs) -> Result<()> {
    let traces = &runs.traces;
    let mut wanted: HashSet<Key> = runs.results[0].iter().map(Value::key).collect();
    let mut needed = vec![false; traces[0].ops.len()];
    for (at, op) in traces[0].ops.iter().enumerate().rev() {
        if op.outputs.iter().any(|output| wanted.contains(&output.key())) {
            needed[at] = true;
            wanted.extend(op.operands().map(Value::key));
        }
    }
    // Each operation and reason, with the modules it was met in.
    let mut missing: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    for (at, op) in traces[0].ops.iter().enumerate().filter(|(at, _)| needed[*at]) {
        let call = runs.call(at);
        // What depends on no argument is a constant, whatever made it, unless it follows a dynamic length.
        let constant = op.outputs.iter().all(|output| traces[0].writer(output).is_none());
        let follows = || (0..op.outputs.len()).any(|at| builder::differ(&call.output(at)));
        if constant && (op.name == "duplicate" || !follows()) {
            continue;
        }
        let read = if constant { None } else { runs.read_on_host(at) };
        let written = match read {
            Some(what) => Err(Trouble::Said(format!("{what} {FOLLOWS_FROM_VALUES}"))),
            None => ops::write(b, &call),
        };
        if let Err(trouble) = written {
            if constant {
                continue;
            }
            b.fail(op);
            if let Trouble::Said(why) = trouble {
                let modules = missing.entry((op.name, why)).or_default();
                let place = b.place(&op.module).to_owned();
                if !modules.contains(&place) {
                    modules.push(place);
                }
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let line = |((name, why), modules): (&(&str, String), &Vec<String>)| {
        let places: Vec<&str> = modules.iter().map(|path| if path.is_empty() { "the model" } else { path }).collect();
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        format!("{name} (in {}){why}", places.join(", "))
    };
    Err(wrong(format!(
        "these operations cannot be written: {}",
        missing.iter().map(line).collect::<Vec<_>>().join("; ")
    )))
}

/// Takes away nodes and initialisers that nobody reads, such as a product that a recurrent layer has taken in.
fn prune(graph: &mut proto::Graph) {
    let mut read: HashSet<String> = graph.output.iter().map(|port| port.name.clone()).collect();
    let mut nodes = std::mem::take(&mut graph.node);
    nodes.reverse();
    nodes.retain(|node| {
        let kept = node.output.iter().any(|output| read.contains(output));
        if kept {
            read.extend(node.input.iter().cloned());
        }
        kept
    });
    nodes.reverse();
    graph.node = nodes;
    graph.initializer.retain(|one| read.contains(&one.name));
}

/// Parameters and buffers by name; a shared one under its first.
fn stored(module: &dyn Module) -> Vec<(String, Tensor)> {
    let mut stored = module.named_parameters();
    stored.extend(module.named_buffers());
    stored
}

fn names(given: &[String], word: &str, count: usize) -> Result<Vec<String>> {
    match given.len() {
        0 if count == 1 => Ok(vec![word.to_owned()]),
        0 => Ok((0..count).map(|at| format!("{word}_{at}")).collect()),
        n if n == count => Ok(given.to_vec()),
        n => Err(wrong(format!("{n} {word}_names were given, the model has {count} {word}s"))),
    }
}

fn port(runs: &Runs, name: &str, dtype: DType, dims: &[Dim]) -> proto::ValueInfo {
    let dim = |dim: &Dim| match dim {
        Dim::Fixed(n) => proto::Dimension { value: Some(*n), symbol: None },
        Dim::Open(factors) => proto::Dimension { value: None, symbol: Some(runs.formula(factors)) },
        Dim::Unknown => proto::Dimension::default(),
    };
    let shape = proto::TensorShape { dim: dims.iter().map(dim).collect() };
    let tensor = proto::TensorType { element: code(dtype) as i32, shape: Some(shape) };
    let kind = proto::Type { tensor: Some(tensor), ..Default::default() };
    proto::ValueInfo { name: name.to_owned(), kind: Some(kind) }
}
