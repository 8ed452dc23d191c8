//! Models give PyTorch's results and gradients with the same weights (golden/resnet.json).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

#[path = "golden/formula.rs"]
mod formula;

use formula::{check, cpu, devices, fill, lengths, named, numbers, slow_compiler};
use netcl_nn::autograd::{DType, Generator, IndexTensor, Queue, Result};
use netcl_nn::*;
use serde_json::Value;

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

fn small_gpt(positions: Positions) -> GPT {
    let generator = &mut Generator::new(4);
    let (vocab_size, context, width, heads, layers) = (5, 8, 16, 2, 2);
    let generator = Some(generator);
    GPT::new(
        &cpu(),
        GPTOptions { vocab_size, context, width, heads, layers, positions, generator, ..Default::default() },
    )
    .unwrap()
}

#[test]
fn a_gpt_learns_to_count_and_never_looks_ahead() {
    for positions in [Positions::Learned, Positions::Rotary { base: 10_000.0 }] {
        let mut model = small_gpt(positions);
        let tokens: Vec<i64> = (0..8).map(|i| i % 5).collect();
        let (x, next) = (&tokens[..7], &tokens[1..]);
        let x = IndexTensor::from_host(&cpu(), x, [1, 7]).unwrap();
        let mut losses = Vec::new();
        for _ in 0..60 {
            let scores = model.scores(&x).unwrap().flatten(0, 1).unwrap();
            let loss = functional::cross_entropy(&scores, next, &Default::default()).unwrap();
            loss.backward().unwrap();
            losses.push(loss.item().unwrap());
            for parameter in model.parameters() {
                let step = (&parameter.grad().unwrap() * -0.5).unwrap();
                parameter.assign(&(&parameter.detach() + &step).unwrap()).unwrap();
            }
            model.zero_grad();
        }
        // Five tokens are equally likely at first.
        assert!((losses[0] - 5f64.ln()).abs() < 0.1 && losses[59] < 0.05, "{positions:?}: {losses:?}");

        model.eval();
        let greedy = Sampling { temperature: 0.0, ..Default::default() };
        assert_eq!(model.generate(&[0, 1], 6, greedy).unwrap(), [0, 1, 2, 3, 4, 0, 1, 2], "{positions:?}");
        let drawn = |seed: u64| {
            let sampling = Sampling { temperature: 5.0, top_k: Some(3), generator: Some(&mut Generator::new(seed)) };
            model.generate(&[0], 30, sampling).unwrap()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        let one = Sampling { top_k: Some(1), ..Default::default() };
        assert_eq!(model.generate(&[0], 3, one).unwrap(), [0, 1, 2, 3], "of one there is no choice");

        let scores = |tokens: &[i64]| {
            model.scores(&IndexTensor::from_host(&cpu(), tokens, [1, 4]).unwrap()).unwrap().to_f64_vec().unwrap()
        };
        let (a, b) = (scores(&[0, 1, 2, 3]), scores(&[0, 1, 2, 4]));
        assert_eq!(a[..15], b[..15], "what comes later is not seen");
        assert_ne!(a[15..], b[15..]);
    }
}

#[test]
fn a_gpt_names_what_it_cannot_do() {
    let model = small_gpt(Positions::Learned);
    let refused = |outcome: Result<Vec<i64>>| outcome.unwrap_err().to_string();
    assert!(refused(model.generate(&[], 1, Sampling::default())).contains("the prompt is empty"));
    assert!(refused(model.generate(&[7], 1, Sampling::default())).contains("0..5"));
    let cold = Sampling { temperature: -1.0, ..Default::default() };
    assert!(refused(model.generate(&[1], 1, cold)).contains("temperature is -1"));
    let long = IndexTensor::from_host(&cpu(), &[0i64; 9], [1, 9]).unwrap();
    assert!(model.scores(&long).unwrap_err().to_string().contains("9 tokens are more than the 8"));
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
    let mut model = ResNet::new_with(&cpu(), ResNetOptions { num_classes: 2, ..ResNetOptions::of(Depth::D18) }).unwrap();
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
