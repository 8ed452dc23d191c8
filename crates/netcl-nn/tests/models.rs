//! Models give PyTorch's results and gradients with the same weights (golden/resnet.json).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

#[path = "golden/formula.rs"]
mod formula;

use formula::{check, cpu, fill, lengths, named, numbers};
use netcl_nn::autograd::core::backend::Queue;
use netcl_nn::autograd::core::dtype::DType;
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
    let options = ResNetOptions { stem, num_classes: 10, dtype, ..Default::default() };
    let mut model = ResNet::new_with(queue, depth, options).unwrap();
    fill(&model);
    let x = named(queue, dtype, "input", &lengths(&case["shape"]));
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

#[test]
fn resnet50_equals_torchvision() {
    compare_resnet("resnet50", &cpu(), DType::F64, 1e-9, 1e-8);
}
