//! Models give PyTorch's results and gradients with the same weights (golden/resnet.json).

use netcl_nn::autograd::{DType, Generator, IndexTensor, Queue};
use netcl_nn::*;
use serde_json::Value;

use crate::golden::{check, cpu, devices, fill, lengths, named, numbers, slow_compiler};

fn golden(name: &str) -> Value {
    let cases: Value = serde_json::from_str(include_str!("golden/resnet.json")).unwrap();
    cases.as_array().unwrap().iter().find(|case| case["name"] == name).unwrap().clone()
}

/// A step in training mode, all gradients, the running averages, then evaluation.
fn compare_resnet(name: &str, queue: &Queue, dtype: DType, logits_tolerance: f64, tolerance: f64) {
    let case = golden(name);
    let stem = if name.contains("cifar") { Stem::Cifar } else { Stem::ImageNet };
    let depth = if name.contains("50") { Depth::D50 } else { Depth::D18 };
    let options = ResNetOptions { stem, ..ResNetOptions::of(depth) };
    let mut model = ResNet::new_with(Build::on(queue).dtype(dtype), options).unwrap();
    fill(&model);
    let x = named(queue, dtype, case["input"].as_str().unwrap(), &lengths(&case["shape"]));
    let logits = model.forward(&x).unwrap();
    check(&format!("{name}: logits"), &logits.to_f64_vec().unwrap(), &numbers(&case["logits"]), logits_tolerance);
    let upstream = named(queue, dtype, "upstream", logits.shape());
    (&logits * &upstream).unwrap().sum((), false).unwrap().backward().unwrap();

    let (parameters, expected) = (model.named_parameters(), case["grads"].as_object().unwrap());
    assert_eq!(parameters.len(), expected.len());
    let mut worst = 0f64;
    for (key, parameter) in parameters {
        let expected = &expected[&key];
        let grad = parameter.grad().unwrap().to_f64_vec().unwrap();
        let (norm, largest) = (expected["norm"].as_f64().unwrap(), expected["largest"].as_f64().unwrap());
        let own: f64 = grad.iter().map(|g| g * g).sum::<f64>().sqrt();
        assert!((own - norm).abs() <= tolerance * norm, "{name}: {key}: norm {own:e}, expected {norm:e}");
        let samples = numbers(&expected["samples"]);
        for (i, sample) in samples.iter().enumerate() {
            let got = grad[i * (grad.len() - 1) / (samples.len() - 1)];
            let error = (got - sample).abs() / largest;
            assert!(error <= tolerance, "{name}: {key}: sample {i} is {got:e}, expected {sample:e}");
            worst = worst.max(error);
        }
    }
    let buffers = model.named_buffers();
    for (key, expected) in case["buffers"].as_object().unwrap() {
        let (_, buffer) = buffers.iter().find(|(name, _)| name == key).unwrap();
        check(&format!("{name}: {key}"), &buffer.to_f64_vec().unwrap(), &numbers(expected), tolerance);
    }
    eprintln!("{name} in {dtype}: largest error of a sampled gradient {worst:e} of the parameter's largest");

    model.eval();
    let evaluated = model.forward(&x).unwrap().to_f64_vec().unwrap();
    check(&format!("{name}: eval"), &evaluated, &numbers(&case["eval"]), logits_tolerance);
    model.fuse().unwrap();
    assert!(model.named_buffers().is_empty(), "every normalisation is folded");
    let folded = model.forward(&x).unwrap().to_f64_vec().unwrap();
    check(&format!("{name}: folded"), &folded, &evaluated, logits_tolerance);
}

#[test]
fn resnet18_equals_torchvision() {
    compare_resnet("resnet18", &cpu(), DType::F64, 1e-9, 1e-8);
    compare_resnet("resnet18", &cpu(), DType::F32, 1e-4, 1e-3);
}

#[test]
fn resnet18_with_the_cifar_stem_equals_torchvision() {
    compare_resnet("resnet18_cifar", &cpu(), DType::F32, 1e-4, 1e-3);
}

/// One OpenCL device, the one that builds kernels fastest: the whole network is a matter of how its parts are joined. In f64
/// where the device has it: in f32 a number near zero may come out on the other side of a ReLU, which changes gradients by percents.
#[test]
fn resnet18_on_an_opencl_device_equals_torchvision() {
    let all = devices();
    let opencl = all.iter().skip(1);
    if let Some(device) = opencl.clone().find(|device| !slow_compiler(device)).or(opencl.clone().next()) {
        match device.queue.check_dtype("test", DType::F64) {
            Ok(()) => compare_resnet("resnet18_cifar", &device.queue, DType::F64, 1e-9, 1e-8),
            Err(_) => compare_resnet("resnet18_cifar", &device.queue, DType::F32, 1e-4, 1e-3),
        }
    }
}

#[test]
fn resnet50_equals_torchvision() {
    compare_resnet("resnet50", &cpu(), DType::F64, 1e-9, 1e-8);
}

fn small_gpt() -> GPT {
    let options = GPTOptions { n_embd: 16, n_head: 2, n_layer: 2, ..GPTOptions::new(5, 8) };
    GPT::new_with(Build::on(&cpu()).generator(&mut Generator::new(4)), options).unwrap()
}

fn tokens(values: &[i64]) -> IndexTensor {
    IndexTensor::from_host(&cpu(), values, [1, values.len()]).unwrap()
}

#[test]
fn a_gpt_learns_to_count_and_never_looks_ahead() {
    let mut model = small_gpt();
    let counted: Vec<i64> = (0..8).map(|i| i % 5).collect();
    let (x, next) = (tokens(&counted[..7]), &counted[1..]);
    let mut losses = Vec::new();
    for _ in 0..60 {
        let logits = model.logits(&x, None).unwrap().flatten(0, 1).unwrap();
        let loss = functional::cross_entropy(&logits, next).unwrap();
        loss.backward().unwrap();
        losses.push(loss.item().unwrap());
        for parameter in model.parameters() {
            let step = (&parameter.grad().unwrap() * -0.5).unwrap();
            parameter.assign(&(&parameter.detach() + &step).unwrap()).unwrap();
        }
        model.zero_grad();
    }
    // Five tokens are equally likely at first.
    assert!((losses[0] - 5f64.ln()).abs() < 0.1 && losses[59] < 0.05, "{losses:?}");

    model.eval();
    let generate =
        |prompt: &[i64], count, sampling| model.generate(&tokens(prompt), count, sampling).unwrap().to_host().unwrap();
    let greedy = Sampling { temperature: 0.0, ..Default::default() };
    assert_eq!(generate(&[0, 1], 6, greedy), [0, 1, 2, 3, 4, 0, 1, 2]);
    assert_eq!(generate(&[0, 1], 10, greedy).len(), 12, "beyond the block");
    let drawn = |seed| generate(&[0], 30, Sampling { temperature: 5.0, top_k: Some(3), seed, ..Default::default() });
    assert_eq!(drawn(Some(1)), drawn(Some(1)));
    assert_ne!(drawn(Some(1)), drawn(Some(2)));
    for one in [Sampling { top_k: Some(1), ..Default::default() }, Sampling { top_p: Some(1e-3), ..Default::default() }]
    {
        assert_eq!(generate(&[0], 3, one), [0, 1, 2, 3], "of one there is no choice");
    }

    let logits = |values: &[i64]| model.logits(&tokens(values), None).unwrap().to_f64_vec().unwrap();
    let (a, b) = (logits(&[0, 1, 2, 3]), logits(&[0, 1, 2, 4]));
    assert_eq!(a[..15], b[..15], "what comes later is not seen");
    assert_ne!(a[15..], b[15..]);
}

#[test]
fn a_gpt_names_what_it_cannot_do() {
    let model = small_gpt();
    let refused = |prompt: &[i64], sampling| model.generate(&tokens(prompt), 1, sampling).unwrap_err().to_string();
    assert!(refused(&[], Sampling::default()).contains("at least 1"));
    assert!(refused(&[7], Sampling::default()).contains("0..5"));
    assert!(refused(&[1], Sampling { temperature: -1.0, ..Default::default() }).contains("temperature=-1"));
    assert!(refused(&[1], Sampling { top_p: Some(0.0), ..Default::default() }).contains("top_p=0"));
    assert!(model.logits(&tokens(&[0; 9]), None).unwrap_err().to_string().contains("(batch, 1 to 8)"));
}

#[test]
fn stacks_are_their_layers() {
    let options = TransformerLayerOptions { dim_feedforward: 6, dropout: 0.0, ..TransformerLayerOptions::new(4, 2) };
    let layer =
        || TransformerEncoderLayer::new_with(Build::on(&cpu()).generator(&mut Generator::new(1)), options.clone());
    let norm = || Box::new(LayerNorm::new(&cpu(), [4]).unwrap());
    let encoder = TransformerEncoder::new(layer().unwrap(), 2, Some(norm())).unwrap();
    let x = named(&cpu(), DType::F32, "x", &[2, 3, 4]);
    let (layer, norm) = (layer().unwrap(), norm());
    let expected = norm.forward(&layer.forward(&layer.forward(&x).unwrap()).unwrap()).unwrap();
    let found = encoder.encode(&x, &Masks::default()).unwrap();
    assert_eq!(found.to_f64_vec().unwrap(), expected.to_f64_vec().unwrap());
    assert!(encoder.named_parameters().len() == 2 * 12 + 2, "copies have parameters of their own");
    let config = layer_config(&encoder).unwrap();
    let again = build_layer(&cpu(), &config).unwrap();
    assert_eq!(again.state_dict().len(), encoder.state_dict().len());
}

#[test]
fn resnets_have_the_known_sizes_and_seeds() {
    let known = [(Depth::D18, 11_689_512), (Depth::D34, 21_797_672), (Depth::D50, 25_557_032)];
    for (depth, parameters) in known.into_iter().chain([(Depth::D101, 44_549_160), (Depth::D152, 60_192_808)]) {
        let options = ResNetOptions { num_classes: 1000, stem: Stem::ImageNet, ..ResNetOptions::of(depth) };
        let model = ResNet::new_with(Build::on(&cpu()).hollow(), options).unwrap();
        assert_eq!(model.num_parameters(), parameters);
    }
    let first = |seed: u64| {
        let mut generator = Generator::new(seed);
        let options = ResNetOptions { in_channels: 1, ..ResNetOptions::of(Depth::D18) };
        let model = ResNet::new_with(Build::on(&cpu()).generator(&mut generator), options).unwrap();
        model.parameters().iter().map(|p| p.to_f64_vec().unwrap()[0]).collect::<Vec<_>>()
    };
    assert_eq!(first(1), first(1));
    assert_ne!(first(1), first(2));
    let mut model =
        ResNet::new_with(&cpu(), ResNetOptions { num_classes: 2, ..ResNetOptions::of(Depth::D18) }).unwrap();
    assert!(model.fuse().unwrap_err().to_string().contains("call eval() first"));
    assert_eq!(model.named_buffers().len(), 60, "nothing has changed");
}

#[test]
fn networks_for_images_have_the_known_sizes() {
    let hollow = || Build::on(&cpu()).hollow();
    let mobile = MobileNetV2::new_with(hollow(), MobileNetV2Options::default()).unwrap();
    assert_eq!(mobile.num_parameters(), 3_504_872);
    let vit = VisionTransformer::new_with(hollow(), VisionTransformerOptions::base_16()).unwrap();
    assert_eq!(vit.num_parameters(), 86_567_656);
    let patches = VisionTransformerOptions { patch_size: 15, ..VisionTransformerOptions::base_16() };
    let refused = VisionTransformer::new_with(hollow(), patches).unwrap_err().to_string();
    assert_eq!(refused, "VisionTransformer: patches of 15 do not divide images of 224");
}
