//! A network learns: two moons on every device, the same bits in two runs, and PyTorch's losses step by step.

use netcl::core::random::{Generator, fill_normal_f32, fill_uniform_f32};
use netcl::nn::{Build, LinearOptions};
use netcl::prelude::*;
use serde_json::Value;

use crate::capture_support::devices;

/// Points on two half circles that reach into each other, with some noise; neighbours have different labels.
fn two_moons(n: usize, generator: &mut Generator) -> (Vec<f32>, Vec<i64>) {
    let (mut turns, mut noise) = (vec![0.0; n], vec![0.0; 2 * n]);
    fill_uniform_f32(&mut turns, &generator.reserve_words(n)).unwrap();
    fill_normal_f32(&mut noise, &generator.reserve_words(2 * n)).unwrap();
    let labels: Vec<i64> = (0..n as i64).map(|i| i % 2).collect();
    let mut points = Vec::with_capacity(2 * n);
    for i in 0..n {
        let angle = turns[i] * std::f32::consts::PI;
        let (x, y) = match labels[i] {
            0 => (angle.cos(), angle.sin()),
            _ => (1.0 - angle.cos(), 0.5 - angle.sin()),
        };
        points.extend([x + 0.1 * noise[2 * i], y + 0.1 * noise[2 * i + 1]]);
    }
    (points, labels)
}

fn network(queue: &Queue, generator: &mut Generator) -> Sequential {
    let mut layer = |inputs, outputs| {
        let build = Build::on(queue).generator(&mut *generator);
        Linear::new_with(build, LinearOptions::new(inputs, outputs)).unwrap()
    };
    sequential![layer(2, 32), ReLU, layer(32, 2)]
}

fn accuracy(model: &Sequential, x: &Tensor, labels: &[i64]) -> f64 {
    let _scope = no_grad();
    let guesses = F::argmax(&model.forward(x).unwrap(), Some(1), false).unwrap().to_host().unwrap();
    guesses.iter().zip(labels).filter(|(a, b)| a == b).count() as f64 / labels.len() as f64
}

/// The loss of every step, and the accuracy before and after.
fn train(queue: &Queue) -> (Vec<f64>, f64, f64) {
    let mut generator = Generator::new(2024);
    let (points, labels) = two_moons(256, &mut generator);
    let everything = Tensor::from_host(queue, &points, [256, 2]).unwrap();
    let model = network(queue, &mut generator);
    let options = SgdOptions { lr: 0.2, momentum: 0.9, ..Default::default() };
    let mut opt = SGD::new_with(model.parameters(), options).unwrap();
    let before = accuracy(&model, &everything, &labels);
    let mut losses = Vec::new();
    for _epoch in 0..25 {
        for (x, y) in points.chunks(2 * 64).zip(labels.chunks(64)) {
            let x_t = Tensor::from_host(queue, x, [64, 2]).unwrap();
            let y_t = IndexTensor::from_host(queue, y, [64]).unwrap();

            let tape = Tape::new();
            let logits = model.forward(&x_t).unwrap();
            let loss = F::cross_entropy(&logits, &y_t).unwrap();
            tape.backward(&loss).unwrap();

            opt.step().unwrap();
            opt.zero_grad();
            losses.push(loss.item().unwrap());
        }
    }
    (losses, before, accuracy(&model, &everything, &labels))
}

#[test]
fn a_network_learns_two_moons_on_every_device() {
    let mut first_losses: Option<Vec<f64>> = None;
    for device in devices() {
        let (losses, before, after) = train(&device.queue);
        let name = &device.device_name;
        assert!(before < 0.7 && after > 0.97, "{name}: accuracy {before} before, {after} after");
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        assert!(mean(&losses[losses.len() - 8..]) < 0.25 * mean(&losses[..4]), "{name}: {losses:?}");
        // The same seed starts every device in the same place.
        let reference = first_losses.get_or_insert_with(|| losses.clone());
        for (step, (a, b)) in losses.iter().zip(reference.iter()).take(20).enumerate() {
            assert!((a - b).abs() < 1e-4, "{name}: step {step}: {a} for {b}");
        }
    }
}

#[test]
fn two_runs_of_one_seed_have_the_same_bits() {
    let queue = manager().cpu().queue;
    let bits = || train(&queue).0.into_iter().map(f64::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(), bits());
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn fifty_losses_are_pytorchs() {
    let golden: Value = serde_json::from_str(include_str!("golden/first_network.json")).unwrap();
    let size = |key: &str| golden[key].as_u64().unwrap() as usize;
    let (rows, hidden) = (size("rows"), size("hidden"));
    let queue = manager().cpu().queue;
    let layer = |name: &str, inputs: usize, outputs: usize| {
        let parameter = |kind: &str, shape: &[usize]| {
            Tensor::from_host(&queue, &numbers(&golden["weights"][format!("{name}.{kind}")]), shape).unwrap()
        };
        Linear::from_parameters(parameter("weight", &[outputs, inputs]), Some(parameter("bias", &[outputs]))).unwrap()
    };
    let model = sequential![layer("0", 2, hidden), ReLU, layer("2", hidden, 2)];
    let options = SgdOptions { lr: 0.1, momentum: 0.9, weight_decay: 1e-3, nesterov: true, ..Default::default() };
    let mut opt = SGD::new_with(model.parameters(), options).unwrap();
    let expected = numbers(&golden["losses"]);
    assert_eq!(expected.len(), 50);
    for (step, expected) in expected.into_iter().enumerate() {
        let batch = step % golden["x"].as_array().unwrap().len();
        let x = Tensor::from_host(&queue, &numbers(&golden["x"][batch]), [rows, 2]).unwrap();
        // Labels as a float tensor of whole numbers.
        let y = Tensor::from_host(&queue, &numbers(&golden["y"][batch]), [rows]).unwrap();
        let tape = Tape::new();
        let loss = F::cross_entropy(&model.forward(&x).unwrap(), &y).unwrap();
        tape.backward(&loss).unwrap();
        opt.step().unwrap();
        opt.zero_grad();
        let got = loss.item().unwrap();
        assert!((got - expected).abs() < 1e-10, "step {step}: {got} for {expected}");
    }
}
