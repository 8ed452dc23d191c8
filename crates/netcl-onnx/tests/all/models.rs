//! Models run op by op and compiled, train, save, and say what is missing.

use netcl_nn::autograd::{DType, Queue, Tensor, jit, manager};
use netcl_nn::{Module, Strict};
use netcl_onnx::{Array, Data, Error, Kind, OnnxModule, Value, proto, read};

use crate::build::{floats, graph, graph_attribute, int, ints, model, network, node};

fn cpu() -> Queue {
    manager().cpu().queue
}

fn made(model: &proto::Model) -> OnnxModule {
    read(&model.to_bytes(), &cpu()).unwrap()
}

fn input() -> Tensor {
    Tensor::from_host(&cpu(), &[0.5f32, -1.0, 2.0, 1.5, 0.25, -0.75], [2, 3]).unwrap()
}

#[test]
fn a_network_has_named_parameters_and_gives_what_its_layers_give() {
    let model = made(&network());
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["fc1.weight", "fc1.bias", "fc2.weight"]);
    let parameters = model.parameters();
    let hidden = input().matmul(&parameters[0].transpose(0, 1).unwrap()).unwrap();
    let hidden = (hidden + &parameters[1]).unwrap().relu().unwrap();
    let expected = hidden.matmul(&parameters[2]).unwrap();
    let y = model.forward(&input()).unwrap();
    assert_eq!(y.shape()[..], [2, 2]);
    for (a, b) in y.to_f64_vec().unwrap().iter().zip(expected.to_f64_vec().unwrap()) {
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    }
    assert!(model.to_string().starts_with("OnnxModule(Concat=1, Gather=1, Gemm=1"), "{model}");
}

#[test]
fn gradients_reach_the_parameters_and_a_step_lowers_the_loss() {
    let model = made(&network());
    let loss = |model: &OnnxModule| model.forward(&input()).unwrap().square().unwrap().sum((), false).unwrap();
    let before = loss(&model);
    before.backward().unwrap();
    for (name, parameter) in model.named_parameters() {
        let mut moved = parameter.detach();
        let step = (parameter.grad().unwrap_or_else(|| panic!("{name} has no gradient")) * 0.01).unwrap();
        let new = (&moved - &step).unwrap();
        moved.copy_(&new).unwrap();
    }
    assert!(loss(&model).item().unwrap() < before.item().unwrap());
}

#[test]
fn shape_arithmetic_disappears_when_a_model_is_compiled() {
    let model = std::sync::Arc::new(made(&network()));
    let eager = model.forward(&input()).unwrap().to_f64_vec().unwrap();
    let inside = model.clone();
    let compiled = jit(move |t: &[&Tensor]| inside.forward(t[0]));
    for _ in 0..2 {
        assert_eq!(compiled.call(&[&input()]).unwrap().to_f64_vec().unwrap(), eager);
    }
    assert_eq!(compiled.counters().traces, 1);
}

#[test]
fn weights_are_saved_and_loaded_by_name() {
    let (from, to) = (made(&network()), made(&network()));
    for parameter in to.parameters() {
        parameter.detach().zero_().unwrap();
    }
    assert_eq!(to.forward(&input()).unwrap().to_f64_vec().unwrap(), [0.0; 4]);
    to.load_state_dict(&from.state_dict(), Strict::Yes).unwrap();
    assert_eq!(
        to.forward(&input()).unwrap().to_f64_vec().unwrap(),
        from.forward(&input()).unwrap().to_f64_vec().unwrap()
    );
}

#[test]
fn all_missing_operators_are_named_with_their_nodes() {
    let nodes = vec![
        node("Frobnicate", &["x"], &["a"], vec![]),
        node("Relu", &["a"], &["b"], vec![]),
        node("Transmogrify", &["b"], &["y"], vec![]),
    ];
    let bytes = model(graph(&["x"], &["y"], nodes, vec![])).to_bytes();
    let Err(Error::Missing { missing, .. }) = read(&bytes, &cpu()) else { panic!("it was read") };
    assert_eq!(missing, ["Frobnicate (Frobnicate_a)", "Transmogrify (Transmogrify_y)"]);
}

#[test]
fn a_node_that_fails_is_named() {
    let nodes = vec![node("Reshape", &["x", "to"], &["y"], vec![])];
    let model = made(&model(graph(&["x"], &["y"], nodes, vec![ints("to", &[2], &[5, 5])])));
    let text = model.forward(&input()).unwrap_err().to_string();
    assert!(text.contains("Reshape_y") && text.contains("[5, 5]"), "{text}");
}

#[test]
fn a_graph_that_reads_what_nothing_makes_is_refused() {
    let nodes = vec![node("Add", &["x", "nobody"], &["y"], vec![])];
    let text = read(&model(graph(&["x"], &["y"], nodes, vec![])).to_bytes(), &cpu()).err().unwrap().to_string();
    assert!(text.contains("\"nobody\""), "{text}");
}

#[test]
fn a_loop_sees_what_is_around_it_and_ends_when_its_condition_says() {
    // total = total + step while total < 10
    let body = graph(
        &["i", "go", "total"],
        &["on", "next", "next"],
        vec![node("Add", &["total", "step"], &["next"], vec![]), node("Less", &["next", "limit"], &["on"], vec![])],
        vec![floats("limit", &[], &[10.0])],
    );
    let nodes = vec![node("Loop", &["", "", "x"], &["y", "all"], vec![graph_attribute("body", body)])];
    let model = made(&model(graph(&["x"], &["y", "all"], nodes, vec![floats("step", &[], &[3.0])])));
    let x = Tensor::from_host(cpu(), &[1.0f32], ()).unwrap();
    let results = model.run(vec![x.into()]).unwrap();
    assert_eq!(results[0].to_array().unwrap().data, Data::Floats(vec![10.0]));
    assert_eq!(results[1].to_array().unwrap().data, Data::Floats(vec![4.0, 7.0, 10.0]));
}

#[test]
fn small_integers_wrap_and_compute_exactly() {
    let nodes = vec![node("Mul", &["a", "b"], &["y"], vec![])];
    let module = made(&model(graph(&["a", "b"], &["y"], nodes, vec![])));
    let run = |kind, a: i64, b: i64| {
        let value = |v| Value::from(Array::ints(kind, vec![1], vec![v]));
        module.run(vec![value(a), value(b)]).unwrap()[0].to_array().unwrap()
    };
    assert_eq!(run(Kind::U8, 200, 2), Array::ints(Kind::U8, vec![1], vec![144]));
    assert_eq!(run(Kind::I8, -128, -1), Array::ints(Kind::I8, vec![1], vec![-128]));
    assert_eq!(run(Kind::I64, (1 << 53) + 1, 3), Array::ints(Kind::I64, vec![1], vec![(3 << 53) + 3]));
}

#[test]
fn indices_that_are_known_only_at_run_time_stay_on_the_device() {
    let nodes = vec![node("Gather", &["table", "ids"], &["y"], vec![int("axis", 0)])];
    let model =
        made(&model(graph(&["ids"], &["y"], nodes, vec![floats("table", &[3, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])])));
    let compiled = jit(move |t: &[&Tensor]| model.forward(t[0]));
    for (ids, expected) in [([2i64, 0], [4.0, 5.0, 0.0, 1.0]), ([-1, 1], [4.0, 5.0, 2.0, 3.0])] {
        let ids = Tensor::from_host(cpu(), &ids, [2]).unwrap();
        assert_eq!(ids.dtype(), DType::I64);
        assert_eq!(compiled.call(&[&ids]).unwrap().to_f64_vec().unwrap(), expected);
    }
}

#[test]
fn external_data_is_read_beside_the_model_and_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("model")).unwrap();
    let path = folder.path().join("model/model.onnx");
    let data: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    for place in ["model/data.bin", "outside.bin"] {
        std::fs::write(folder.path().join(place), &data).unwrap();
    }
    let write = |location: &str| {
        let entry = |key: &str, value: &str| proto::Entry { key: key.to_owned(), value: value.to_owned() };
        let weight = proto::Tensor {
            data_location: 1,
            external_data: vec![entry("location", location), entry("length", "8")],
            ..floats("w", &[2], &[])
        };
        let nodes = vec![node("Add", &["x", "w"], &["y"], vec![])];
        std::fs::write(&path, model(graph(&["x"], &["y"], nodes, vec![weight])).to_bytes()).unwrap();
        netcl_onnx::load(&path, &cpu())
    };
    let x = Tensor::from_host(cpu(), &[10.0f32, 20.0], [2]).unwrap();
    assert_eq!(write("data.bin").unwrap().forward(&x).unwrap().to_f64_vec().unwrap(), [11.0, 22.0]);
    for location in ["../outside.bin", folder.path().join("outside.bin").to_str().unwrap(), ""] {
        let text = write(location).err().unwrap().to_string();
        assert!(text.contains("outside of the model's folder"), "{text}");
    }
}

/// What one node gives for its inputs.
fn gives(operator: &str, attributes: Vec<proto::Attribute>, inputs: Vec<Value>) -> Array {
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("x{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let module = made(&model(graph(&names, &["y"], vec![node(operator, &names, &["y"], attributes)], vec![])));
    module.run(inputs).unwrap()[0].to_array().unwrap()
}

fn floats_of(values: &[f64]) -> Value {
    Array::floats(Kind::F32, vec![values.len()], values.to_vec()).into()
}

fn float(name: &str, value: f32) -> proto::Attribute {
    proto::Attribute { name: name.to_owned(), f: Some(value), kind: 1, ..Default::default() }
}

#[test]
fn powers_of_whole_numbers() {
    let wholes = |values: &[i64]| Value::from(Array::ints(Kind::I16, vec![values.len()], values.to_vec()));
    let y = gives("Pow", vec![], vec![wholes(&[2, -1, -1, 1, 3, -1, -2]), wholes(&[-1, -2, -3, -4, 200, 201, 3])]);
    // 3^200 has these lowest 16 bits.
    let lowest = (0..200).fold(1i64, |power, _| power * 3 % 65_536);
    let lowest = if lowest > 32_767 { lowest - 65_536 } else { lowest };
    assert_eq!(y.to_ints().unwrap(), [0, 1, -1, 1, lowest, -1, -8]);
}

#[test]
fn infinities_are_no_nan() {
    let inf = f64::INFINITY;
    let x = || floats_of(&[inf, -inf, 0.25, -2.0, 2.0]);
    let y = gives("PRelu", vec![], vec![x(), floats_of(&[0.5])]);
    assert_eq!(y.to_floats().unwrap(), [inf, -inf, 0.25, -1.0, 2.0]);
    let y = gives("ThresholdedRelu", vec![], vec![x()]);
    assert_eq!(y.to_floats().unwrap(), [inf, 0.0, 0.0, 0.0, 2.0]);
    let y = gives("Shrink", vec![float("bias", 0.5)], vec![x()]);
    assert_eq!(y.to_floats().unwrap(), [inf, -inf, 0.0, -1.5, 1.5]);
}

#[test]
fn bounds_of_clip_on_the_host() {
    let values = Array::floats(Kind::E4M3Fn, vec![3], vec![-4.0, 0.5, 4.0]);
    let y = gives("Clip", vec![float("min", -1.0), float("max", 1.0)], vec![values.into()]);
    assert_eq!(y.to_floats().unwrap(), [-1.0, 0.5, 1.0]);
}

#[test]
fn parameters_of_activations_belong_to_those_that_have_them() {
    // Sigmoid has none, so that the first number is LeakyRelu's.
    let texts = |names: &[&str]| proto::Attribute {
        name: "activations".to_owned(),
        strings: names.iter().map(|name| netcl_onnx::wire::Blob(name.as_bytes().to_vec())).collect(),
        kind: 8,
        ..Default::default()
    };
    let alphas =
        proto::Attribute { name: "activation_alpha".to_owned(), floats: vec![0.5], kind: 6, ..Default::default() };
    let array =
        |shape: &[usize], values: &[f64]| Value::from(Array::floats(Kind::F32, shape.to_vec(), values.to_vec()));
    let both = array(&[2, 1, 1], &[1.0, 1.0]);
    let inputs = vec![array(&[1, 1, 1], &[-4.0]), both, array(&[2, 1, 1], &[0.0, 0.0])];
    let direction = proto::Attribute {
        name: "direction".to_owned(),
        s: Some(netcl_onnx::wire::Blob(b"bidirectional".to_vec())),
        kind: 3,
        ..Default::default()
    };
    let y = gives("RNN", vec![texts(&["Sigmoid", "LeakyRelu"]), alphas, direction], inputs).to_floats().unwrap();
    assert!((y[0] - 1.0 / (1.0 + 4f64.exp())).abs() < 1e-6 && y[1] == -2.0, "{y:?}");
}

#[test]
fn names_inside_of_a_graph_hide_those_around_it() {
    // The loop's own `n` is no constant, though one of this name is around.
    let body = graph(
        &["i", "go", "n"],
        &["on", "next"],
        vec![node("Identity", &["go"], &["on"], vec![]), node("Add", &["n", "one"], &["next"], vec![])],
        vec![ints("one", &[], &[1])],
    );
    let nodes = vec![node("Loop", &["three", "", "n"], &["y"], vec![graph_attribute("body", body)])];
    let constants = vec![ints("three", &[], &[3]), ints("n", &[], &[10])];
    let y = made(&model(graph(&[], &["y"], nodes, constants))).run(vec![]).unwrap();
    assert_eq!(y[0].to_array().unwrap().to_ints().unwrap(), [13]);
    let twice = vec![node("Neg", &["x"], &["y"], vec![]), node("Abs", &["x"], &["y"], vec![])];
    let text = read(&model(graph(&["x"], &["y"], twice, vec![])).to_bytes(), &cpu()).err().unwrap().to_string();
    assert!(text.contains("\"y\", which there is already"), "{text}");
}
