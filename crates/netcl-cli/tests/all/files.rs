//! `netcl inspect` and `netcl convert` with files of every kind.

use std::path::Path;

use netcl::core::dtype::DType;
use netcl::io::{Archive, Array};

use crate::train::{bad, good, json, netcl, text};

fn golden(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../netcl-io/tests/golden").join(name).to_string_lossy().into_owned()
}

#[test]
fn files_of_every_kind_are_shown() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let out = good(folder, &["inspect", &golden("checkpoint.pt")]);
    for expected in
        ["PyTorch, ", "epoch          3", "name           größer", "running_mean", "optimizer.state", "int64"]
    {
        assert!(out.contains(expected), "{expected}: {out}");
    }
    assert!(!out.contains('│'), "plain text where there is no terminal: {out}");
    for (name, kind) in [
        ("zip.pt", "PyTorch"),
        ("legacy.pt", "PyTorch"),
        ("plain.safetensors", "safetensors"),
        ("shards.safetensors.index.json", "safetensors in shards"),
        ("plain.npz", "npz"),
    ] {
        let found = json(folder, &["inspect", "--json", &golden(name)]);
        assert_eq!(found["kind"], kind);
        let first = &found["tensors"][0];
        assert!(first["stats"]["max"].is_number() && first["bytes"].is_number(), "{first}");
        let found = json(folder, &["inspect", "--json", "--no-stats", &golden(name)]);
        assert!(found["tensors"][0]["stats"].is_null());
    }
    let values = json(folder, &["inspect", "--json", "--stats", &golden("views.pt")]);
    assert_eq!(values["tensors"][0]["stats"], serde_json::json!({ "min": 0.0, "max": 5.75, "mean": 2.875, "nan": 0 }));
}

#[test]
fn damage_is_shown_and_is_a_failure() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let mut content = std::fs::read(golden("plain.npz")).unwrap();
    let at = content.windows(4).position(|window| window == 0.5f32.to_le_bytes()).unwrap();
    content[at] ^= 1;
    std::fs::write(folder.join("bad.npz"), content).unwrap();
    let output = netcl(folder, &["inspect", "bad.npz"]);
    assert_eq!(output.status.code(), Some(1));
    let out = text(&output);
    assert!(out.contains("DAMAGED: its tensor \"floats.float32\" cannot be read: its checksum is wrong"), "{out}");
    assert!(out.contains("whole.int64") || out.contains("int64"), "the others are shown: {out}");
    let (code, message) = bad(folder, &["inspect", "missing.pt"]);
    assert!(code == 1 && message.contains("missing.pt cannot be read"), "{message}");
    let (_, message) = bad(folder, &["inspect", &golden("module.pt")]);
    assert!(message.contains("Sequential, which is refused"), "{message}");
}

#[test]
fn files_become_files_of_another_kind() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let checkpoint = golden("checkpoint.pt");
    let only_model = ["--rename", r"^model\.=", "--rename", "^(optimizer|random).*="];
    for to in ["a.netcl", "a.npz", "a.safetensors", "a.safetensors.index.json", "a.pt"] {
        let out = good(folder, &[&["convert", &checkpoint, to, "--dtype", "float16"], &only_model[..]].concat());
        assert!(out.contains("7 tensors, 7 renamed") && out.contains("left out"), "{out}");
        assert_eq!(out.contains("metadata was left out"), to == "a.pt", "{out}");
        let archive = Archive::read(&folder.join(to)).unwrap();
        assert_eq!(archive.get("0.weight").unwrap().dtype, DType::F16);
        assert_eq!(archive.get("1.num_batches_tracked").unwrap().dtype, DType::I64);
        assert_eq!(archive.metadata.get("epoch").is_some(), to != "a.pt", "{to}");
    }
    // From each kind back to ours: the same arrays.
    let arrays = |path: &str| {
        let archive = Archive::read(&folder.join(path)).unwrap();
        let mut arrays: Vec<(String, Array)> =
            archive.arrays().map(|(name, array)| (name.to_owned(), array.clone())).collect();
        arrays.sort_by(|a, b| a.0.cmp(&b.0));
        arrays
    };
    for from in ["a.npz", "a.safetensors", "a.safetensors.index.json", "a.pt"] {
        let report = json(folder, &["convert", "--json", "--force", from, "b.netcl"]);
        assert_eq!((&report["tensors"], &report["renamed"]), (&7.into(), &0.into()));
        assert_eq!(arrays("b.netcl"), arrays("a.netcl"), "{from}");
    }
    let report = json(folder, &["convert", "--json", "--max-shard-size", "20", "a.pt", "s.safetensors.index.json"]);
    assert!(report["written"].as_array().unwrap().len() > 2, "{report}");
}

#[test]
fn what_cannot_be_converted_is_named() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let from = golden("plain.safetensors");
    std::fs::write(folder.join("there.npz"), b"mine").unwrap();
    for (arguments, expected) in [
        (&["there.npz"][..], "there.npz is there already; --force"),
        (&["a.txt"], "a.txt says no kind of file: use one of .safetensors.index.json, "),
        (&["a.npz", "--dtype", "int3"], "--dtype"),
        (&["a.npz", "--rename", "nothing"], "no equals sign"),
        (&["a.npz", "--rename", "(=x"], "is no pattern"),
        (&["a.npz", "--rename", ".*=x"], "both get the name \"x\""),
        (&["a.npz", "--max-shard-size", "1M"], "--max-shard-size"),
    ] {
        let (code, message) = bad(folder, &[&["convert", from.as_str()], arguments].concat());
        assert!(code == 1 && message.contains(expected), "{message} for {expected}");
    }
    let (_, message) = bad(folder, &["convert", &golden("float8.safetensors"), "a.npz"]);
    assert!(message.contains("\"eight\" has elements of type float8_e5m2"), "{message}");
    assert_eq!(std::fs::read(folder.join("there.npz")).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "nothing half-written stays");
}
