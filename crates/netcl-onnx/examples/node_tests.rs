//! Runs the ONNX project's own node tests: `cargo run -p netcl-onnx --example node_tests -- FOLDER [DEVICE] [PART OF A NAME]`.
//!
//! The folder is `onnx/backend/test/data/node` of the package `onnx` on PyPI. Prints each case that does not pass with its reason, and how
//! many pass; the exit code is 0.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use netcl_nn::autograd::{AsDevice, Queue};
use netcl_onnx::{Array, Data, Value, proto, wire};

type Outcome = Result<(), String>;

fn tensor(stored: &proto::Tensor) -> Result<Value, String> {
    netcl_onnx::tensor(stored).map(Value::from)
}

fn sequence(stored: &proto::Sequence) -> Result<Value, String> {
    let tensors = stored.tensors.iter().map(tensor);
    let inner = stored.sequences.iter().map(sequence);
    Ok(Value::Sequence(tensors.chain(inner).collect::<Result<_, _>>()?))
}

/// Reads an input or output file, whose kind the model's graph says.
fn stored(path: &Path, kind: Option<&proto::Type>) -> Result<Value, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match kind {
        Some(kind) if kind.sequence.is_some() => sequence(&wire::read(&bytes)?),
        Some(kind) if kind.optional.is_some() => {
            let optional: proto::Optional = wire::read(&bytes)?;
            match (&optional.tensor, &optional.sequence) {
                (Some(stored), _) => tensor(stored),
                (_, Some(stored)) => sequence(stored),
                _ => Ok(Value::None),
            }
        }
        _ => tensor(&wire::read(&bytes)?),
    }
}

fn compare(got: &Value, expected: &Value) -> Outcome {
    let (got, expected) = match (got, expected) {
        (Value::None, Value::None) => return Ok(()),
        (Value::Sequence(got), Value::Sequence(expected)) if got.len() == expected.len() => {
            return got.iter().zip(expected).try_for_each(|(got, expected)| compare(got, expected));
        }
        (Value::Sequence(_) | Value::None, _) | (_, Value::Sequence(_) | Value::None) => {
            return Err("a sequence or an absent value in the place of something else".to_owned());
        }
        (got, Value::Array(expected)) => (got.to_array().map_err(|error| error.to_string())?, expected),
        _ => return Err("expected arrays".to_owned()),
    };
    if (got.kind, &got.shape) != (expected.kind, &expected.shape) {
        return Err(format!(
            "{} {:?} instead of {} {:?}",
            got.kind.name(),
            got.shape,
            expected.kind.name(),
            expected.shape
        ));
    }
    elements(&got, expected)
}

/// The tolerance of the ONNX project's own runner.
fn elements(got: &Array, expected: &Array) -> Outcome {
    match (&got.data, &expected.data) {
        (Data::Floats(got), Data::Floats(expected)) => {
            let close = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-7 + 1e-3 * b.abs();
            match got.iter().zip(expected).position(|(&a, &b)| !close(a, b)) {
                Some(at) => Err(format!("element {at} is {} instead of {}", got[at], expected[at])),
                None => Ok(()),
            }
        }
        (got, expected) if got == expected => Ok(()),
        _ => Err("other elements".to_owned()),
    }
}

fn run(folder: &Path, queue: &Queue) -> Outcome {
    let path = folder.join("model.onnx");
    let model: proto::Model = wire::read(&std::fs::read(&path).map_err(|error| error.to_string())?)?;
    let graph = model.graph.as_ref().ok_or("no graph")?;
    let module = netcl_onnx::load(&path, queue).map_err(|error| error.to_string())?;
    for set in 0.. {
        let data = folder.join(format!("test_data_set_{set}"));
        if !data.is_dir() {
            return if set == 0 { Err("no data".to_owned()) } else { Ok(()) };
        }
        let read = |kind: &str, infos: &[proto::ValueInfo]| -> Result<Vec<Value>, String> {
            let file = |(i, info): (usize, &proto::ValueInfo)| {
                stored(&data.join(format!("{kind}_{i}.pb")), info.kind.as_ref())
            };
            infos.iter().enumerate().map(file).collect()
        };
        let (inputs, expected) = (read("input", &graph.input)?, read("output", &graph.output)?);
        let outputs = module.run(inputs).map_err(|error| error.to_string())?;
        for (got, expected) in outputs.iter().zip(&expected) {
            compare(got, expected)?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = Path::new(arguments.first().ok_or("which folder? See the beginning of examples/node_tests.rs")?);
    let queue = arguments.get(1).map_or("cpu", String::as_str).queue()?;
    let part = arguments.get(2).map_or("", String::as_str);
    let mut cases: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    cases.sort();
    std::panic::set_hook(Box::new(|_| {}));
    let (mut passed, mut all) = (0, 0);
    for case in cases {
        let name = case.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !name.contains(part) {
            continue;
        }
        all += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&case, &queue))).unwrap_or_else(|_| Err("PANIC".to_owned()));
        match outcome {
            Ok(()) => passed += 1,
            Err(reason) => println!("{name}\t{}", reason.replace(['\n', '\t'], " ")),
        }
    }
    println!("{passed} of {all} pass");
    Ok(())
}
