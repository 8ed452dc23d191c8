//! `netcl run`: an ONNX model on arrays from files; and what `netcl inspect` says of one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use netcl::autograd::{jit, no_grad};
use netcl::core::backend::opencl::shutdown::interrupted;
use netcl::io::{Array, npy};
use netcl::onnx::{self, OnnxModule, Port, Value};
use serde_json::json;

use crate::Verdict;
use crate::output::{print, print_json};
use crate::train::device;

pub(crate) const AFTER_HELP: &str = "\
Example: netcl run model.onnx --input x=a.npy --output y=b.npy --bench\n\
A model of one input takes --input a.npy without a name. Without --output the shapes of the results are printed.";

#[derive(Args)]
pub(crate) struct Arguments {
    /// An .onnx file
    model: PathBuf,
    /// An input and the .npy file with its array
    #[arg(long, value_name = "NAME=FILE")]
    input: Vec<String>,
    /// An output and the .npy file to write
    #[arg(long, value_name = "NAME=FILE")]
    output: Vec<String>,
    /// Run again for a second, operation by operation and compiled, and print how long a run takes
    #[arg(long)]
    bench: bool,
    /// As for train
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,
}

/// How long `--bench` runs, and how many runs it needs at least.
const BENCH: (Duration, usize) = (Duration::from_secs(1), 5);

/// The file that belongs to each port; the name may be left out where there is one.
fn files<'a>(given: &'a [String], ports: &[Port], what: &str) -> Result<Vec<(usize, &'a Path)>> {
    let names = || ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
    let one = |text: &'a String| match (text.split_once('='), ports) {
        (Some((name, file)), _) => match ports.iter().position(|port| port.name == name) {
            Some(index) => Ok((index, Path::new(file))),
            None => bail!("the model has no {what} {name:?}; it has {}", names()),
        },
        (None, [_]) => Ok((0, Path::new(text.as_str()))),
        (None, _) => bail!("--{what} {text}: write NAME=FILE; the model has {}", names()),
    };
    given.iter().map(one).collect()
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let device = device(arguments.device.as_deref())?;
    let model = Arc::new(onnx::load(&arguments.model, &device.queue)?);
    let files_in = files(&arguments.input, model.inputs(), "input")?;
    let files_out = files(&arguments.output, model.outputs(), "output")?;
    let mut inputs = Vec::new();
    for (index, port) in model.inputs().iter().enumerate() {
        let Some((_, path)) = files_in.iter().find(|(at, _)| *at == index) else {
            bail!("input {} ({}) is missing: --input {}=FILE.npy", port.name, described(port), port.name);
        };
        let content = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        match npy::parse(&content, None).map_err(anyhow::Error::msg).with_context(|| path.display().to_string())? {
            npy::Content::Array(array) => inputs.push(value(array.to_tensor(&device.queue)?)?),
            npy::Content::Text(_) => bail!("{} holds text", path.display()),
        }
    }
    let _no_gradients = no_grad();
    let outputs = model.run(inputs.clone())?;
    for (port, value) in model.outputs().iter().zip(&outputs) {
        let kind = value.kind().map_or("a sequence", |kind| kind.name());
        print(&format!("{}: {kind} {:?}", port.name, value.shape().unwrap_or_default()))?;
    }
    for (index, path) in files_out {
        let tensor = outputs[index].to_tensor(&device.queue)?;
        let content = Array::from_tensor(tensor.raw())?.to_npy();
        std::fs::write(path, content).with_context(|| format!("{} cannot be written", path.display()))?;
    }
    if arguments.bench {
        bench(&model, &inputs)?;
    }
    Ok(Verdict::Good)
}

/// One whole number, which decides what a model does, stays on the host.
fn value(tensor: netcl::Tensor) -> Result<Value> {
    let decides = tensor.shape().is_empty() && !tensor.dtype().is_float();
    Ok(if decides { onnx::Array::of_tensor(&tensor)?.into() } else { tensor.into() })
}

/// Times whole runs, until the results are there: operation by operation, and compiled.
fn bench(model: &Arc<OnnxModule>, inputs: &[Value]) -> Result<()> {
    let tensors = |values: Vec<Value>| {
        values.into_iter().filter_map(|value| match value {
            Value::Tensor(tensor) => Some(tensor),
            _ => None,
        })
    };
    measure("eager", || Ok(tensors(model.run(inputs.to_vec())?).collect()))?;
    let (inside, template) = (model.clone(), inputs.to_vec());
    let compiled = jit(move |given: &[&netcl::Tensor]| {
        let mut given = given.iter();
        let one = |value: &Value| match (value, value) {
            (Value::Tensor(_), own) => given.next().map_or_else(|| own.clone(), |&tensor| tensor.clone().into()),
            (other, _) => other.clone(),
        };
        Ok(tensors(inside.run(template.iter().map(one).collect())?).collect::<Vec<_>>())
    });
    let given: Vec<netcl::Tensor> = tensors(inputs.to_vec()).collect();
    let given: Vec<&netcl::Tensor> = given.iter().collect();
    if let Err(error) = measure("compiled", || Ok(compiled.call(&given)?)) {
        print(&format!("compiled: not possible: {error}"))?;
    }
    Ok(())
}

fn measure(what: &str, run: impl Fn() -> Result<Vec<netcl::Tensor>>) -> Result<()> {
    // Memory and programs of the first runs stay for the others.
    for _ in 0..2 {
        run()?;
    }
    let mut times = Vec::new();
    let start = Instant::now();
    while (start.elapsed() < BENCH.0 || times.len() < BENCH.1) && !interrupted() {
        let begin = Instant::now();
        for tensor in run()? {
            tensor.queue().finish()?;
        }
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    if let (Some(best), Some(median)) = (times.first(), times.get(times.len() / 2)) {
        let ms = |time: &Duration| time.as_secs_f64() * 1e3;
        print(&format!("{what}: {} runs, median {:.3} ms, best {:.3} ms", times.len(), ms(median), ms(best)))?;
    }
    Ok(())
}

fn described(port: &Port) -> String {
    let kind = port.kind.map_or("?", |kind| kind.name());
    match &port.shape {
        Some(shape) => format!("{kind} ({})", shape.join(", ")),
        None => kind.to_owned(),
    }
}

/// Prints what an ONNX file holds; a model that cannot run is no good verdict.
pub(crate) fn inspect(path: &Path, as_json: bool) -> Result<Verdict> {
    let report = onnx::inspect(path)?;
    let verdict = if report.missing.is_empty() { Verdict::Good } else { Verdict::Bad };
    if as_json {
        let ports = |ports: &[Port]| {
            ports.iter().map(|port| json!({ "name": port.name, "dtype": port.kind.map(|kind| kind.name()), "shape": port.shape })).collect::<Vec<_>>()
        };
        print_json(&json!({
            "producer": report.producer,
            "opsets": report.opsets,
            "inputs": ports(&report.inputs),
            "outputs": ports(&report.outputs),
            "operators": report.operators,
            "missing": report.missing,
            "initializers": report.initializers.0,
            "numbers": report.initializers.1,
        }))?;
        return Ok(verdict);
    }
    let opsets = report.opsets.iter().map(|(domain, version)| match domain.is_empty() {
        true => format!("opset {version}"),
        false => format!("{domain} {version}"),
    });
    print(&format!(
        "{}: ONNX model of {}, {}",
        path.display(),
        report.producer,
        opsets.collect::<Vec<_>>().join(", ")
    ))?;
    print(&format!("{} initialisers of {} numbers", report.initializers.0, report.initializers.1))?;
    for (what, ports) in [("input", &report.inputs), ("output", &report.outputs)] {
        for port in ports {
            print(&format!("  {what:<7} {}: {}", port.name, described(port)))?;
        }
    }
    for (operator, count) in &report.operators {
        let missing = report.missing.get(operator).map(|nodes| format!("  NOT SUPPORTED: {}", nodes.join(", ")));
        print(&format!("  {count:>6} {operator}{}", missing.unwrap_or_default()))?;
    }
    Ok(verdict)
}
