//! Models and checkpoints through files: what was saved comes back, what does not fit is listed, and NumPy reads it.

use std::path::{Path, PathBuf};
use std::process::Command;

use netcl_io::{
    Archive, Array, Checkpoint, Kind, LoadOptions, Rename, WriteOptions, load_weights, load_weights_with, open,
    save_model, write,
};
use netcl_nn::autograd::ops::dropout::dropout;
use netcl_nn::autograd::{DType, Queue, Tape, Tensor, default_generator, manager};
use netcl_nn::{Build, Linear, LinearOptions, Module, ReLU, Sequential, Strict, functional as F, sequential};
use netcl_optim::schedule::StepLR;
use netcl_optim::{Optimizer, SGD, Schedule, SgdOptions};

fn queue() -> Queue {
    manager().cpu().queue
}

fn model(hidden: usize) -> Sequential {
    let queue = queue();
    sequential![Linear::new(&queue, 2, hidden).unwrap(), ReLU, Linear::new(&queue, hidden, 3).unwrap()]
}

fn bits(model: &dyn Module) -> Vec<u32> {
    model.parameters().iter().flat_map(|p| p.to_host::<f32>().unwrap()).map(f32::to_bits).collect()
}

fn train(model: &dyn Module, optimizer: &mut dyn Optimizer, steps: usize) {
    let x = Tensor::from_host(&queue(), &[0.5f32, -1.0, 2.0, 0.25], [2, 2]).unwrap();
    for _ in 0..steps {
        let tape = Tape::new();
        let dropped = dropout(&model.forward(&x).unwrap(), 0.5, None).unwrap();
        let loss = F::cross_entropy(&dropped, &[0, 2]).unwrap();
        tape.backward(&loss).unwrap();
        optimizer.step().unwrap();
        optimizer.zero_grad();
    }
}

#[test]
fn weights_come_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.netcl");
    let (first, mut second) = (model(5), model(5));
    assert_ne!(bits(&first), bits(&second));
    let metadata = serde_json::json!({ "architecture": { "name": "mlp" } });
    save_model(&path, &first, metadata.as_object().unwrap().clone()).unwrap();
    let kept = second.parameters();
    assert_eq!(load_weights(&path, &mut second).unwrap()["architecture"]["name"], "mlp");
    assert_eq!(bits(&first), bits(&second));
    assert!(kept[0].shares_storage(&second.parameters()[0]), "an optimizer made before still trains these tensors");
}

#[test]
fn weights_that_do_not_fit_are_all_listed_and_nothing_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.netcl");
    save_model(&path, &model(5), Default::default()).unwrap();
    let queue = queue();
    let mut other = sequential![Linear::new(&queue, 2, 4).unwrap(), Linear::new(&queue, 4, 3).unwrap()];
    let before = bits(&other);
    let text = load_weights(&path, &mut other).unwrap_err().to_string();
    for expected in [
        "model.netcl do not fit",
        "\"0.weight\" has shape [5, 2] instead of [4, 2]",
        "\"1.weight\" is missing",
        "\"2.bias\" is unexpected",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(bits(&other), before);

    // A file may have any number of arrays: each takes the same time, and a few are named.
    let mut archive = Archive::read(&path).unwrap();
    (0..60_000).for_each(|i| archive.insert(format!("x{i}"), Array::scalar(1.0)));
    let text = archive.restore(&mut model(5)).unwrap_err().to_string();
    assert!(text.contains("\"x0\" is unexpected") && text.contains("59980 more are unexpected"), "{text}");
    assert!(text.len() < 2000, "{text}");
}

#[test]
fn a_checkpoint_continues_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run/checkpoint.netcl");
    let mut model = model(5);
    let options = SgdOptions { lr: 0.1, momentum: 0.9, ..Default::default() };
    let mut optimizer = SGD::new_with(model.parameters(), options).unwrap();
    let mut schedule = StepLR::new(&optimizer, 2, 1.0 / 3.0).unwrap();
    train(&model, &mut optimizer, 3);
    (0..3).for_each(|_| schedule.step().unwrap());
    let rate = optimizer.learning_rate();
    let mut checkpoint = Checkpoint::new(&model, Default::default()).unwrap();
    checkpoint.put("optimizer", optimizer.state()).unwrap();
    checkpoint.put("schedule", schedule.state()).unwrap();
    for name in ["optimizer", "", "a/b"] {
        assert!(checkpoint.put(name, Default::default()).is_err(), "{name:?}");
    }
    checkpoint.set_progress(serde_json::json!({ "step": 3 }));
    checkpoint.write(&path).unwrap();
    let generator = default_generator();
    train(&model, &mut optimizer, 4);
    (0..4).for_each(|_| schedule.step().unwrap());
    let expected = bits(&model);

    let saved = Checkpoint::read(&path).unwrap();
    assert_eq!(saved.progress()["step"], 3);
    assert_eq!(saved.parts(), ["optimizer", "schedule"]);
    assert!(saved.state("ema").unwrap_err().to_string().contains("has no part \"ema\""));
    saved.restore(&mut model).unwrap();
    optimizer.load_state(&saved.state("optimizer").unwrap()).unwrap();
    schedule.load_state(&saved.state("schedule").unwrap()).unwrap();
    assert_eq!((default_generator(), optimizer.learning_rate(), schedule.epoch()), (generator, rate, 3));
    assert_ne!(bits(&model), expected);
    train(&model, &mut optimizer, 4);
    assert_eq!(bits(&model), expected);

    // A checkpoint is a model file, too; a model file is no checkpoint.
    load_weights(&path, &mut model).unwrap();
    save_model(&path, &model, Default::default()).unwrap();
    let text = Checkpoint::read(&path).unwrap_err().to_string();
    assert!(text.contains("is a model, but no checkpoint"), "{text}");
}

/// An interpreter with NumPy: that of the tests' virtual environment, or the machine's.
pub(crate) fn python() -> Option<PathBuf> {
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.check/venv/bin/python");
    let usable = |python: &PathBuf| {
        Command::new(python).args(["-c", "import numpy"]).output().is_ok_and(|output| output.status.success())
    };
    let found = [venv, PathBuf::from("python3")].into_iter().find(usable);
    if found.is_none() {
        eprintln!("NOT TESTED: there is no Python with NumPy here");
        assert!(std::env::var_os("CI").is_none(), "CI needs NumPy");
    }
    found
}

#[test]
fn numpy_opens_the_files_and_its_own_are_opened() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.netcl");
    let queue = queue();
    let mut layers = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let layer = Linear::new_with(Build::on(&queue).dtype(dtype), LinearOptions::new(2, 3)).unwrap();
        layers.push(Box::new(layer) as Box<dyn Module>);
    }
    let mut model = Sequential::new(layers);
    save_model(&path, &model, serde_json::json!({ "title": "größer" }).as_object().unwrap().clone()).unwrap();
    let script = r#"
import json, sys
import numpy as np

path, copy = sys.argv[1:]
with np.load(path, allow_pickle=False) as file:
    arrays = {name: file[name] for name in file.files}
meta = json.loads(str(arrays["__netcl_meta__"]))
assert meta["title"] == "größer" and meta["format"] == "netcl.single-file", meta
assert meta["dtypes"]["3.weight"] == "bfloat16", meta
assert [arrays[f"{i}.weight"].dtype.name for i in range(4)] == ["float32", "float64", "float16", "uint16"]
assert all(arrays[f"{i}.weight"].shape == (3, 2) for i in range(4))
# The upper half of a float32 is a bfloat16.
wide = (arrays["3.weight"].astype(np.uint32) << 16).view(np.float32)
print(float(arrays["0.weight"][2, 1]), float(wide[2, 1]))
arrays["0.bias"] = np.array([1, 2, 3], np.float32)
with open(copy, "wb") as file:
    np.savez_compressed(file, **arrays)
"#;
    let copy = folder.path().join("copy.netcl");
    let output = Command::new(python).args(["-X", "utf8", "-c", script]).arg(&path).arg(&copy).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let seen: Vec<f64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let value = |layer: usize| model.parameters()[2 * layer].to_f64_vec().unwrap()[5];
    assert_eq!(seen, [value(0), value(3)]);

    load_weights(&copy, &mut model).unwrap();
    assert_eq!(model.parameters()[1].to_host::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(Archive::read(&copy).unwrap().get("3.weight").unwrap().dtype, DType::BF16);
}

#[test]
fn weights_of_other_names_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let (first, mut second) = (model(5), model(5));
    let mut archive = Archive::default();
    for (name, tensor) in first.state_dict() {
        archive.insert(format!("net.module.{name}"), Array::from_tensor(&tensor).unwrap().cast(DType::F64).unwrap());
    }
    archive.insert("optimizer.step", Array::scalar(3.0));
    for (name, kind) in [
        ("a.netcl", Kind::Netcl),
        ("a.npz", Kind::Npz),
        ("a.safetensors", Kind::SafeTensors),
        ("a.safetensors.index.json", Kind::SafeTensorsIndex),
        ("a.pt", Kind::Torch),
    ] {
        let path = folder.path().join(name);
        save_model(&path, &first, Default::default()).unwrap();
        assert_eq!(open(&path).unwrap().kind(), kind);
        load_weights(&path, &mut second).unwrap();
        assert_eq!(bits(&first), bits(&second), "{name}");
        write(&path, &archive, &WriteOptions::new(kind)).unwrap();
        second.parameters().iter().for_each(|parameter| parameter.fill(0.0).unwrap());
        let load = |strict, rules: &[(&str, &str)], model: &mut Sequential| {
            let options = LoadOptions { strict, rename: Rename::new(rules).unwrap() };
            load_weights_with(&path, model, &options)
        };
        let prefix = (r"^net\.module\.(.*)", r"\1");
        let text = load(Strict::Yes, &[prefix], &mut second).unwrap_err().to_string();
        assert!(text.contains("\"optimizer.step\" is unexpected") && !text.contains("missing"), "{text}");
        let loaded = load(Strict::No, &[prefix], &mut second).unwrap();
        assert_eq!(loaded.report.unexpected, ["optimizer.step"]);
        assert_eq!(bits(&first), bits(&second), "{name}");
        load(Strict::Yes, &[prefix, ("^optimizer.*", "")], &mut second).unwrap();
        let text = load(Strict::No, &[], &mut second).unwrap_err().to_string();
        let count = archive.arrays().count();
        assert!(text.contains(&format!("none of the file's {count} names is in the model")), "{text}");
        assert!(text.contains("the model \"0.") && text.contains("see rename"), "{text}");
        let text = load(Strict::Yes, &[(r"^net\.module\.\d", "x")], &mut second).unwrap_err().to_string();
        assert!(text.contains("\"net.module.0.") && text.contains("both get the name \"x."), "{text}");
    }
}
