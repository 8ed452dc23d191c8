//! Every kind of file written: what was written comes back, and files of one kind become files of another.

use std::path::Path;

use netcl_io::{Archive, Array, Kind, Rename, Renamed, Tensors, WriteOptions, open, write};
use netcl_nn::autograd::DType;
use serde_json::json;

const KINDS: [(&str, Kind); 5] = [
    ("a.netcl", Kind::Netcl),
    ("a.npz", Kind::Npz),
    ("a.safetensors", Kind::SafeTensors),
    ("a.safetensors.index.json", Kind::SafeTensorsIndex),
    ("a.pt", Kind::Torch),
];

pub(crate) fn example() -> Archive {
    let metadata = json!({ "title": "größer", "epochs": [1, 2.5], "nested": { "a": null } });
    let mut archive = Archive::new(metadata.as_object().unwrap().clone());
    for (i, dtype) in
        [DType::U8, DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64].iter().enumerate()
    {
        let shape = [&[][..], &[3], &[2, 3], &[2, 0, 5], &[1, 2, 3]][i % 5].to_vec();
        let bytes: Vec<u8> = (0..shape.iter().product::<usize>() * dtype.size()).map(|byte| byte as u8).collect();
        archive.insert(format!("layer.{i}.größe"), Array { dtype: *dtype, shape, bytes: bytes.into() });
    }
    archive
}

/// The arrays in the order of their names: safetensors keeps no other.
fn sorted(archive: &Archive) -> Vec<(&str, &Array)> {
    let mut arrays: Vec<_> = archive.arrays().collect();
    arrays.sort_by_key(|(name, _)| *name);
    arrays
}

pub(crate) fn write_as(path: &Path, archive: &dyn Tensors, kind: Kind) {
    write(path, archive, &WriteOptions::new(kind)).unwrap();
}

#[test]
fn every_kind_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let example = example();
    for (name, kind) in KINDS {
        let path = folder.path().join("new").join(name);
        assert_eq!(Kind::of_name(&path), Some(kind));
        write_as(&path, &example, kind);
        let file = open(&path).unwrap();
        // An NPZ archive that knows which arrays are bfloat16 is one of ours.
        assert_eq!(file.kind(), if kind == Kind::Npz { Kind::Netcl } else { kind });
        let back = file.read_all().unwrap();
        assert_eq!(sorted(&back), sorted(&example), "{name}");
        match kind {
            Kind::Torch => assert!(back.metadata.is_empty()),
            Kind::Netcl | Kind::Npz => assert_eq!(back.metadata, example.metadata),
            _ => {
                let mut metadata = back.metadata.clone();
                assert_eq!(metadata.remove("format").unwrap(), "pt");
                assert_eq!(metadata, example.metadata, "{name}");
            }
        }
        let bytes = std::fs::read(&path).unwrap();
        write_as(&path, &example, kind);
        assert!(std::fs::read(&path).unwrap() == bytes, "the same tensors are the same file: {name}");
    }
    let names: Vec<_> =
        std::fs::read_dir(folder.path().join("new")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names.len(), 6, "no temporary file stays: {names:?}");
}

#[test]
fn a_plain_npz_has_nothing_but_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let mut archive = Archive::default();
    archive.insert("rate", Array::scalar(0.5));
    write_as(&path, &archive, Kind::Npz);
    let file = open(&path).unwrap();
    assert_eq!((file.kind(), file.read(0).unwrap()), (Kind::Npz, Array::scalar(0.5)));
}

#[test]
fn large_models_are_written_in_shards() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors.index.json");
    let mut archive = Archive::default();
    for i in 0..5 {
        let array = Array {
            dtype: DType::U8,
            shape: vec![[400, 600, 2000, 1, 1][i]],
            bytes: vec![i as u8; [400, 600, 2000, 1, 1][i]].into(),
        };
        archive.insert(format!("w{i}"), array);
    }
    let options = WriteOptions { max_shard_size: 1000, ..WriteOptions::new(Kind::SafeTensorsIndex) };
    let written = write(&path, &archive, &options).unwrap();
    let names: Vec<_> = written.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    let shard = |i| format!("model-0000{i}-of-00003.safetensors");
    assert_eq!(names, [&shard(1), &shard(2), &shard(3), "model.safetensors.index.json"]);
    let index: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(index["metadata"]["total_size"], 3002);
    assert_eq!((&index["weight_map"]["w1"], &index["weight_map"]["w4"]), (&json!(shard(1)), &json!(shard(3))));
    assert_eq!(sorted(&Archive::read(&path).unwrap()), sorted(&archive));

    // What is missing is named, and no index leads out of its folder.
    std::fs::remove_file(folder.path().join(shard(2))).unwrap();
    let refused = || open(&path).unwrap_err().to_string();
    assert!(refused().contains(&format!("its shard {:?} cannot be read", shard(2))), "{}", refused());
    for bad in ["../model.safetensors", "/etc/passwd", "a/../../b", "", "..\\b"] {
        std::fs::write(&path, json!({ "weight_map": { "w": bad } }).to_string()).unwrap();
        assert!(refused().contains("which is not in the index's folder"), "{}", refused());
    }
    std::fs::write(&path, json!({ "weight_map": { "w": shard(1) } }).to_string()).unwrap();
    assert!(refused().contains("a shard without the tensor \"w\""), "{}", refused());
}

#[test]
fn floats_are_converted_on_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let golden = open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/views.pt")).unwrap();
    let rename = Rename::new(&[("^eight$", ""), ("^", "x.")]).unwrap();
    write_as(&path, &Renamed::new(&golden, &rename).unwrap().cast(DType::F16), Kind::SafeTensors);
    let back = Archive::read(&path).unwrap();
    assert_eq!((back.get("x.part").unwrap().dtype, back.get("x.wide").unwrap().dtype), (DType::F16, DType::I32));
    let original = golden.read(golden.find("part").unwrap()).unwrap();
    assert_eq!(back.get("x.part").unwrap().cast(DType::F32).unwrap(), original);
}

#[test]
fn tensors_that_cannot_be_read_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let golden = open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/float8.safetensors")).unwrap();
    for (name, kind) in KINDS {
        let error = write(&folder.path().join(name), &golden, &WriteOptions::new(kind)).unwrap_err().to_string();
        assert!(error.contains("\"eight\" has elements of type float8_e5m2"), "{error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
