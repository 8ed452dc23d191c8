//! Files that PyTorch, safetensors and NumPy wrote (golden/make.py).

use std::path::PathBuf;

use netcl_io::{Archive, Array, Kind, TensorFile, Tensors, load_model, open};
use netcl_nn::Module;
use netcl_nn::autograd::{DType, manager};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn golden(name: &str) -> TensorFile {
    open(&path(name)).unwrap()
}

fn read(file: &TensorFile, name: &str) -> Array {
    file.read(file.find(name).unwrap()).unwrap()
}

fn values(array: &Array) -> Vec<f64> {
    let wide = array.cast(DType::F64).unwrap();
    wide.bytes.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn quarters(count: usize) -> Vec<f64> {
    (0..count).map(|i| i as f64 / 4.0).collect()
}

/// Every tensor of make.py's `state`, in a file that may lack bfloat16.
fn check_state(file: &TensorFile) {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        if dtype == DType::BF16 && matches!(file.kind(), Kind::Npz) {
            continue;
        }
        let array = read(file, &format!("floats.{}", dtype.name()));
        assert_eq!((array.dtype, &array.shape[..], values(&array)), (dtype, &[2, 3][..], quarters(6)));
    }
    let whole = [
        ("uint8", DType::U8),
        ("int8", DType::I32),
        ("int16", DType::I32),
        ("int32", DType::I32),
        ("int64", DType::I64),
        ("bool", DType::U8),
    ];
    for (name, dtype) in whole {
        let index = file.find(&format!("whole.{name}")).unwrap();
        assert_eq!(file.infos()[index].element.name(), name);
        let array = file.read(index).unwrap();
        let expected: Vec<f64> = (0..6).map(|i| f64::from(if name == "bool" { i.min(1) } else { i })).collect();
        assert_eq!((array.dtype, values(&array)), (dtype, expected), "{name}");
    }
    assert_eq!((read(file, "scalar").shape, values(&read(file, "scalar"))), (vec![], vec![0.5]));
    assert_eq!(read(file, "empty"), Array { dtype: DType::F32, shape: vec![0, 3], bytes: vec![].into() });
}

#[test]
fn every_dtype_of_every_kind_is_read() {
    for (name, kind) in [
        ("zip.pt", Kind::Torch),
        ("legacy.pt", Kind::Torch),
        ("plain.safetensors", Kind::SafeTensors),
        ("plain.npz", Kind::Npz),
        ("compressed.npz", Kind::Npz),
    ] {
        let file = golden(name);
        assert_eq!(file.kind(), kind, "{name}");
        check_state(&file);
    }
    assert_eq!(golden("zip.pt").infos()[0].name, "floats.float32");
    assert_eq!(golden("plain.safetensors").metadata()["title"], "größer");
}

#[test]
fn views_of_shared_storages_become_dense() {
    for name in ["views.pt", "views-legacy.pt"] {
        let file = golden(name);
        let base = quarters(24);
        let at = |rows: &[usize], columns: &[usize]| -> Vec<f64> {
            rows.iter().flat_map(|row| columns.iter().map(move |column| row * 6 + column)).map(|i| base[i]).collect()
        };
        let check = |name: &str, shape: &[usize], expected: Vec<f64>| {
            let array = read(&file, name);
            assert_eq!((&array.shape[..], values(&array)), (shape, expected), "{name}");
        };
        check("base", &[4, 6], base.clone());
        check("tied", &[4, 6], base.clone());
        check("part", &[2, 6], base[6..18].to_vec());
        check("columns", &[4, 3], at(&[0, 1, 2, 3], &[1, 3, 5]));
        check("expanded", &[2, 3], vec![0.5; 6]);
        check("transposed", &[6, 4], (0..6).flat_map(|column| at(&[0, 1, 2, 3], &[column])).collect());
    }
    let file = golden("views.pt");
    assert_eq!(values(&read(&file, "wide")), [1.0, 65_535.0]);
    let text = file.read(file.find("eight").unwrap()).unwrap_err().to_string();
    assert!(text.contains("\"eight\" cannot be read: its elements are float8_e4m3fn"), "{text}");
}

#[test]
fn a_training_checkpoint_has_dotted_names_and_metadata() {
    let file = golden("checkpoint.pt");
    for (name, shape) in [
        ("model.0.weight", &[2, 3][..]),
        ("model.1.running_mean", &[2]),
        ("model.1.num_batches_tracked", &[]),
        ("optimizer.state.0.exp_avg", &[2, 3]),
        ("optimizer.state.3.step", &[]),
        ("random", &[4]),
    ] {
        let info = &file.infos()[file.find(name).unwrap_or_else(|| panic!("{name} is missing"))];
        assert_eq!(info.shape, shape, "{name}");
    }
    assert_eq!(values(&read(&file, "optimizer.state.3.step")), [2.0]);
    let metadata = file.metadata();
    let expected = serde_json::json!({
        "epoch": 3, "best": 0.25, "name": "größer", "nothing": null, "dtype": "bfloat16", "shape": [2, 3],
        "history": [{ "loss": 1.5 }, { "loss": "inf" }],
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&metadata[key], value, "{key}");
    }
    assert_eq!(metadata["optimizer"]["param_groups"][0]["params"], serde_json::json!([0, 1, 2, 3]));
    assert_eq!(metadata["optimizer"]["param_groups"][0]["lr"], 0.01);
    assert_eq!(metadata["schedule"]["milestones"]["3"], 1);
    assert!(metadata.contains_key("raw") && !metadata.contains_key("model"), "{metadata:?}");
}

#[test]
fn whole_modules_are_refused_by_name() {
    let text = open(&path("module.pt")).unwrap_err().to_string();
    assert!(text.contains("torch.nn.modules.container.Sequential, which is refused"), "{text}");
    assert!(text.contains("save model.state_dict()"), "{text}");
    let text = open(&path("negated.pt")).unwrap_err().to_string();
    assert!(text.contains("negated or conjugated later"), "{text}");
}

#[test]
fn a_single_tensor_has_a_name() {
    let file = golden("legacy-protocol-4.pt");
    assert_eq!((file.infos()[0].name.as_str(), values(&read(&file, "tensor"))), ("tensor", quarters(18)[6..].to_vec()));
}

#[test]
fn shards_are_one_file() {
    let file = golden("shards.safetensors.index.json");
    assert_eq!((file.kind(), file.infos().len()), (Kind::SafeTensorsIndex, 3));
    assert_eq!(values(&read(&file, "a.weight")), quarters(6));
    assert_eq!(read(&file, "b.weight").dtype, DType::BF16);
    assert_eq!(file.metadata(), serde_json::json!({ "format": "pt" }).as_object().unwrap());
}

#[test]
fn element_types_without_a_dtype_fail_when_they_are_read() {
    let file = golden("float8.safetensors");
    assert_eq!(values(&read(&file, "good")), quarters(2));
    let text = Archive::read(&path("float8.safetensors")).unwrap_err().to_string();
    assert!(text.contains("\"eight\" cannot be read: its elements are float8_e5m2"), "{text}");
}

#[test]
fn other_orders_of_elements_are_read() {
    for name in ["plain.npz", "compressed.npz"] {
        let file = golden(name);
        let fortran = read(&file, "fortran");
        assert_eq!((&fortran.shape[..], values(&fortran)), (&[2, 3, 4][..], quarters(24)));
        assert_eq!(values(&read(&file, "big")), quarters(6));
        assert!(file.find("text").is_none(), "text is no tensor");
        assert!(file.read(file.find("names").unwrap()).unwrap_err().to_string().contains("its elements are text"));
        assert!(file.read(file.find("complex").unwrap()).unwrap_err().to_string().contains("complex64"));
    }
}

#[test]
fn networks_of_the_published_package_compute_the_same() {
    let queue = manager().cpu().queue;
    let mut model = load_model(&path("published.netcl"), &queue).unwrap();
    model.eval();
    let run = Archive::read(&path("published-run.npz")).unwrap();
    let tensor = |name: &str| run.get(name).unwrap().to_tensor(&queue).unwrap();
    let (found, expected) = (model.forward(&tensor("x")).unwrap(), tensor("y"));
    for (found, expected) in found.to_host::<f32>().unwrap().iter().zip(expected.to_host::<f32>().unwrap()) {
        assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
    }
}
